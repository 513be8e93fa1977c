"""Clients follow coordinators and leaders that move between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import group_client, open_cluster, polling, settle
from support.members import JavaMember, LibrdkafkaMember
from support.python_members import AioKafkaMember, KafkaPythonMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import LATEST
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record
from spark_groupsource.records.header import iter_batches

CONFIG = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
NODES = (1, 2, 3)
MEMBERS = {"librdkafka": LibrdkafkaMember, "kafka-python": KafkaPythonMember, "aiokafka": AioKafkaMember}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=CONFIG, brokers=3) as running:
        yield running


def generation(broker: EmbeddedBroker, group: str) -> int:
    def read(inside: Any) -> int:
        shards = inside.group_coordinator.shards
        shard = shards.find_loaded(shards.partition_of(group).partition)
        return -1 if shard is None else shard.state_machine.store.groups[group].generation_id

    return wait_until(lambda: broker.call(read) + 1, "the group is loaded") - 1


def next_node(node: int) -> int:
    return node % len(NODES) + 1


def committed(broker: EmbeddedBroker, group: str, topic: str, partitions: int) -> list[int]:
    """Offsets as the group's log has them, -1 where there is none."""
    with open_cluster(broker.bootstrap_servers) as client:
        found = client.fetch_committed(group, [TopicPartition(topic, n) for n in range(partitions)])
    return [found[tp].offset if found.get(tp) else -1 for tp in sorted(found)]


def member_follows(broker: EmbeddedBroker, member: Any, topic: str, group: str, seen: Any) -> None:
    """Leaders and the coordinator move while it reads; it stays in its generation and reads and commits on."""
    member.wait_for_partitions(3)
    before = generation(broker, group)

    def read_on(expected: int) -> None:
        produce(broker.bootstrap_servers, topic, ((n % 3, None, b"x") for n in range(30)))
        wait_until(lambda: seen() == expected, f"{expected} records are read", 60)
        offsets = [expected // 3] * 3
        wait_until(lambda: committed(broker, group, topic, 3) == offsets, f"{offsets} are committed", 60)

    read_on(30)
    for number in range(3):
        broker.move_leader(topic, number, next_node(broker.leader(topic, number).node_id))
    read_on(60)
    broker.pause_loading()
    broker.move_coordinator(group, next_node(broker.coordinator(group)))
    broker.pause_loading(False)
    read_on(90)
    assert len(member.partitions) == 3 and generation(broker, group) == before
    member.stop()
    assert committed(broker, group, topic, 3) == [30, 30, 30]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEMBERS)
def test_librdkafka_member_follows_moved_coordinators_and_leaders(
    broker: EmbeddedBroker, topic: str, group: str, kind: str
) -> None:
    create_topic(broker.bootstrap_servers, topic, 3)
    with MEMBERS[kind](broker.bootstrap_servers, group, topic) as member:
        member_follows(broker, member, topic, group, lambda: sum(member.seen.values()))
        assert set(member.seen.values()) == {1}, "nothing twice"


@pytest.mark.kafka
def test_java_member_follows_moved_coordinators_and_leaders(broker: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(broker.bootstrap_servers, topic, 3)
    with JavaMember(broker.bootstrap_servers, group, topic) as member:
        member_follows(broker, member, topic, group, lambda: member.consumed)


def test_our_members_follow_moved_coordinators_and_leaders(broker: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(broker.bootstrap_servers, topic, 3)
    with open_cluster(broker.bootstrap_servers) as client, group_client(client, group, topic, members=2) as ours:
        view = settle(ours, 3)
        before = generation(broker, group)
        for turn in range(1, 4):
            broker.move_coordinator(group, next_node(broker.coordinator(group)))
            ours.commit({tp: OffsetAndMetadata(turn) for tp in view.partitions})
            assert committed(broker, group, topic, 3) == [turn] * 3
        assert settle(ours, 3).generation_id == view.generation_id == generation(broker, group) == before


def test_our_members_continue_after_a_node_stopped(broker: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(broker.bootstrap_servers, topic, 3)
    with open_cluster(broker.bootstrap_servers) as client, group_client(client, group, topic, members=2) as ours:
        view = settle(ours, 3)
        gone = broker.coordinator(group)
        with polling(ours):
            broker.stop_node(gone)
            try:
                ours.commit({tp: OffsetAndMetadata(7) for tp in view.partitions})
                assert committed(broker, group, topic, 3) == [7] * 3
            finally:
                broker.start_node(gone)
        assert settle(ours, 3).generation_id == view.generation_id


@pytest.mark.slow
def test_fetcher_and_producer_follow_the_leader(broker: EmbeddedBroker, topic: str) -> None:
    create_topic(broker.bootstrap_servers, topic, 1)
    tp = TopicPartition(topic, 0)
    with open_cluster(broker.bootstrap_servers) as client:
        producer = BatchProducer(client)
        for number in range(6):
            producer.send(encoded(tp, [Record(None, b"%d" % number, 1)]))
            broker.move_leader(topic, 0, next_node(broker.leader(topic, 0).node_id))
        assert client.list_offsets({tp: LATEST})[tp].offset == 6
        found = []
        for block in PartitionFetcher(client).fetch_blocks([OffsetRange(tp, 0, 6)]):
            assert not block.error, block
            for header in iter_batches(block.data):
                found += [record.value for record in decode_records(block.data, header)]
            broker.move_leader(topic, 0, next_node(broker.leader(topic, 0).node_id))
        assert found == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("idempotent", [False, True])
def test_librdkafka_producer_loses_no_record_when_leaders_move(
    broker: EmbeddedBroker, topic: str, idempotent: bool
) -> None:
    from confluent_kafka import Producer

    create_topic(broker.bootstrap_servers, topic, 1)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1, "enable.idempotence": idempotent}
    producer, failed = Producer({**settings, "batch.num.messages": 10, "log_level": 0}), []
    for number in range(400):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
        if number % 100 == 50:
            broker.move_leader(topic, 0, next_node(broker.leader(topic, 0).node_id))
    assert producer.flush(30) == 0 and not failed
    end = broker.call(lambda b: b.partitions.partition(topic, 0).log.log_end_offset)
    assert end == 400 if idempotent else end >= 400
