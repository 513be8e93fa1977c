"""A consumer group protocol (KIP-848) member in the group of a query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from real_kafka import RealKafka
from support.clusters import Cluster
from support.direct_readers import StreamQuery
from support.topics import create_topic, produce
from support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.usefixtures("in_process")]

PARTITIONS, COUNT = 4, 40
Positions = list[tuple[int, int]]


@contextmanager
def consumer_protocol_member(servers: str, group: str, topic: str, read: Positions) -> Iterator[list[Any]]:
    """A member that adds each record to `read` and commits it; yields its partitions."""
    settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    partitions: list[Any] = []
    consumer.subscribe([topic], on_assign=lambda _, assigned: partitions.extend(assigned))
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                read.append((message.partition(), message.offset()))
                consumer.commit(message, asynchronous=False)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield partitions
    finally:
        ended.set()
        thread.join(30)
        consumer.close()


def test_member_of_the_consumer_protocol_shares_the_group(kafka: RealKafka, topic: str, group: str) -> None:
    servers = kafka.bootstrap_servers
    create_topic(servers, topic, PARTITIONS)
    options = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest"}
    with StreamQuery(Cluster("kafka", servers), {**options, "kafka.heartbeat.interval.ms": "500"}) as query:
        read: Positions = []

        def run_until(condition: Callable[[], bool], what: str) -> None:
            wait_until(lambda: query.trigger() and False or condition(), what, 60)

        def read_all(count: int) -> None:
            produce(servers, topic, [(n % PARTITIONS, None, b"x") for n in range(COUNT)])
            run_until(lambda: len(query.rows) + len(read) >= count, f"{count} records are read")

        read_all(COUNT)
        with consumer_protocol_member(servers, group, topic, read) as partitions:
            run_until(lambda: len(partitions) == 2, "the member has two partitions")
            read_all(2 * COUNT)
            assert read and len(query.rows) > COUNT
        read_all(3 * COUNT)
        query.trigger()
        found = [(row["partition"], row["offset"]) for row in query.rows] + read
        assert sorted(found) == sorted((p, n) for p in range(PARTITIONS) for n in range(3 * COUNT // PARTITIONS))
