"""The log directory of a Kafka: decoding of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from real_kafka import RealKafka
from support.clusters import BROKER_CONFIG
from support.commits import commit, commit_as
from support.dumped import dump_tool, parsed, segments
from support.java_tools import JavaTools
from support.members import JavaMember, LibrdkafkaMember
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource.cli.main import main

pytestmark = pytest.mark.kafka
CONFIG = {
    **BROKER_CONFIG,
    "transaction.state.log.num.partitions": "2",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.0001",
}


def alter(admin: AdminClient, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def fill(where: str) -> None:
    """Creates a topic; a group with many commits; offsets in transactions, one of them aborted; a newer group."""
    admin = AdminClient({"bootstrap.servers": where})
    create_topic(where, "t", 3)
    create_topic(where, "gone", 1)
    produce(where, "t", ((n % 3, b"k%d" % n, b"%d" % n) for n in range(300)))
    consumer = Consumer({"bootstrap.servers": where, "group.id": "simple"})
    commit(consumer, [TopicPartition("gone", 0, 1)])
    delete_topic(where, "gone")
    alter(admin, "__consumer_offsets", segment_ms="100", min_cleanable_dirty_ratio="0.0001")
    transactional = Producer({"bootstrap.servers": where, "transactional.id": "x"})
    transactional.init_transactions()
    for number in range(4):
        places = [TopicPartition("t", p, 15 + number, metadata="m") for p in range(3)]
        commit(consumer, places)
        transactional.begin_transaction()
        metadata = consumer.consumer_group_metadata()
        transactional.send_offsets_to_transaction([TopicPartition("t", 2, 20 + number)], metadata)
        (transactional.abort_transaction if number == 2 else transactional.commit_transaction)()
    consumer.close()
    for future in admin.delete_consumer_groups(["simple"]).values():
        future.result(30)
    commit_as(where, "simple", [TopicPartition("t", p, 25 + p, metadata="é") for p in range(3)])
    settings = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    newer = Consumer({"bootstrap.servers": where, "group.id": "newer", **settings})
    newer.subscribe(["t"])
    message = newer.poll(30)
    assert message is not None and message.topic() == "t"
    commit(newer, [TopicPartition("t", 0, 12), TopicPartition("t", 1, 13)])
    newer.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    """The log directory of a Kafka that was killed after it has compacted the topic."""
    with RealKafka(CONFIG) as kafka:
        where, data = kafka.bootstrap_servers, kafka.data_directory
        fill(where)
        with JavaMember(where, "g", "t", group_instance_id="first", session_timeout_ms=45_000) as java:
            with LibrdkafkaMember(where, "g", "t", group_instance_id="second", session_timeout_ms=45_000) as other:
                wait_until(lambda: {len(java.partitions), len(other.partitions)} == {1, 2}, "both have partitions")
                wait_until(lambda: java.consumed + sum(other.seen.values()) >= 290, "the group has read the topic")
                cleaned = data / "cleaner-offset-checkpoint"
                wait_until(lambda: cleaned.exists() and "__consumer_offsets" in cleaned.read_text(), "it is compacted")
        kafka.kill()
        yield data


def test_offsets_records_are_printed_as_by_kafkas_tool(directory: Path, java: JavaTools) -> None:
    run = CliRunner().invoke(main, ["offsets-log", str(directory)])
    assert (run.exit_code, run.stderr) == (0, "")
    lines = parsed(run.stdout)
    assert lines == dump_tool(java, segments(directory))
    returned = [line for line in lines if isinstance(line, tuple)]
    assert any(payload == "<DELETE>" for *_, payload in returned)
    assert {payload["version"] for *_, payload in returned if payload != "<DELETE>"} == {"0", "3", "4"}
    assert {key["type"] for _, key, _ in returned} >= {"1", "2", "3", "5", "7", "8"}
    assert "endTxnMarker: ABORT" in run.stdout and "endTxnMarker: COMMIT" in run.stdout
