"""Members of the consumer protocol (KIP-848) in a query's group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient
from real_kafka import RealKafka
from support.clusters import Cluster
from support.direct_readers import StreamQuery
from support.members import JavaMember
from support.topics import create_topic, produce
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.usefixtures("in_process")]

PARTITIONS, COUNT, MEMBERS = 6, 60, 3
Positions = list[tuple[int, int]]
Owned = Callable[[], int]


@contextmanager
def librdkafka_member(servers: str, group: str, topic: str, read: Positions) -> Iterator[Owned]:
    """A member of the consumer protocol that adds each record to `read` and commits it; yields what counts its
    partitions."""
    settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    partitions: set[tuple[str, int]] = set()

    def assigned(_: Any, added: list[TopicPartition]) -> None:
        partitions.update((each.topic, each.partition) for each in added)

    def revoked(_: Any, removed: list[TopicPartition]) -> None:
        partitions.difference_update((each.topic, each.partition) for each in removed)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
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
        yield lambda: len(partitions)
    finally:
        ended.set()
        thread.join(30)
        consumer.close()


@contextmanager
def java_member(servers: str, group: str, topic: str, read: Positions) -> Iterator[Owned]:
    """As `librdkafka_member`, of Java's consumer."""
    member = JavaMember(servers, group, topic, protocol="consumer")
    try:
        member.wait_for("startup_complete")
        yield lambda: len(member.partitions)
    finally:
        member.stop()
        read += member.positions


def group_type(admin: AdminClient, group: str) -> ConsumerGroupType:
    listed = admin.list_consumer_groups().result().valid
    return next(each.type for each in listed if each.group_id == group)


def query_options(topic: str, group: str, assignor: str) -> dict[str, str]:
    return {
        "subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest", "members": str(MEMBERS),
        "kafka.heartbeat.interval.ms": "500", "kafka.partition.assignment.strategy": assignor,
    }  # fmt: skip


@pytest.mark.parametrize("assignor", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.soak)])
def test_upgrade_and_downgrade_of_the_group_of_a_query(
    kafka: RealKafka, topic: str, group: str, assignor: str
) -> None:
    servers = kafka.bootstrap_servers
    create_topic(servers, topic, PARTITIONS)
    options = query_options(topic, group, assignor)
    read: Positions = []
    produced = 0
    with StreamQuery(Cluster("kafka", servers), options) as query:

        def run_until(condition: Callable[[], bool], what: str) -> None:
            wait_until(lambda: query.trigger() and False or condition(), what, 90)

        def produce_and_read() -> None:
            nonlocal produced
            produce(servers, topic, [(n % PARTITIONS, None, b"x") for n in range(COUNT)])
            produced += COUNT
            run_until(lambda: committed() == produced, f"{produced} records are read and committed")

        def committed() -> int:
            found = checker.committed([TopicPartition(topic, number) for number in range(PARTITIONS)])
            return sum(max(0, each.offset) for each in found)

        admin = AdminClient({"bootstrap.servers": servers})
        checker = Consumer({"bootstrap.servers": servers, "group.id": group})
        try:
            produce_and_read()
            for _ in range(2):
                assert group_type(admin, group) is ConsumerGroupType.CLASSIC
                with librdkafka_member(servers, group, topic, read) as first:
                    run_until(lambda: first() > 0, "the member of librdkafka has partitions")
                    assert group_type(admin, group) is ConsumerGroupType.CONSUMER
                    produce_and_read()
                    with java_member(servers, group, topic, read) as second:
                        run_until(lambda: first() > 0 and second() > 0, "both members have partitions")
                        produce_and_read()
                    produce_and_read()
                run_until(lambda: group_type(admin, group) is ConsumerGroupType.CLASSIC, "the group is classic again")
                produce_and_read()
        finally:
            checker.close()
    found = [(row["partition"], row["offset"]) for row in query.rows] + read
    assert set(found) == {(p, n) for p in range(PARTITIONS) for n in range(produced // PARTITIONS)}
    assert len(found) == produced, "members that leave gracefully repeat nothing"
    # the query alone has read the records of three rounds, and some of each other round
    assert len(query.rows) > 3 * COUNT and len(read) > COUNT


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_members_of_the_consumer_protocol_leave_one_after_the_other_during_a_batch(
    kafka: RealKafka, topic: str, group: str, assignor: str
) -> None:
    """The downgrade gives all members a generation that none of them has joined."""
    servers = kafka.bootstrap_servers
    create_topic(servers, topic, PARTITIONS)
    options = query_options(topic, group, assignor)
    read: Positions = []
    admin = AdminClient({"bootstrap.servers": servers})
    with StreamQuery(Cluster("kafka", servers), options) as query, ExitStack() as members:
        joined = [members.enter_context(librdkafka_member(servers, group, topic, read)) for _ in range(2)]
        wait_until(lambda: query.trigger() and False or all(owned() for owned in joined), "all have partitions", 90)
        produce(servers, topic, [(n % PARTITIONS, None, b"x") for n in range(COUNT)])
        wait_until(lambda: len(read) >= COUNT * sum(owned() for owned in joined) // PARTITIONS, "theirs are read")

        def all_leave() -> None:
            members.close()
            wait_until(lambda: group_type(admin, group) is ConsumerGroupType.CLASSIC, "the group is classic again")

        wait_until(lambda: query.trigger(all_leave), "a batch", 90)
        produce(servers, topic, [(n % PARTITIONS, None, b"x") for n in range(COUNT)])
        wait_until(lambda: query.trigger() and False or len(query.rows) + len(read) >= 2 * COUNT, "all are read", 90)
    found = [(row["partition"], row["offset"]) for row in query.rows] + read
    assert sorted(found) == [(p, n) for p in range(PARTITIONS) for n in range(2 * COUNT // PARTITIONS)]
