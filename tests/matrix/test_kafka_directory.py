"""Log directories of a stopped Kafka: decoding of `__consumer_offsets`, adoption."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.main import main
from spark_groupsource.client import admin as our_admin
from spark_groupsource.client.cluster.client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import StorageError

pytestmark = pytest.mark.kafka
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIG = {
    **BROKER_CONFIG,
    "transaction.state.log.num.partitions": "2",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.0001",
    "log.index.size.max.bytes": "4096",
    # several snapshots of the cluster metadata, as in a directory in use for an hour
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}
Records = dict[tuple[str, int, int], tuple[Any, ...]]


class Left(NamedTuple):
    """Directories of Kafka, `stopped` cleanly and `torn` by a kill, and its responses before the stop."""

    stopped: Path
    torn: Path
    topic_ids: dict[str, Any]
    records: Records
    committed: Records
    refused_while_it_ran: str


def read_all(bootstrap_servers: str, isolation: str) -> Records:
    """Every record of both topics by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition("t", n) for n in range(3)] + [TopicPartition("c", 0)]
    consumer.assign(places)
    found: Records = {}
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(places):
        message = consumer.poll(20)
        assert message is not None, f"nothing came within 20 s; ended are {ended}"
        place = message.topic(), message.partition()
        if message.error():
            ended.add(place)
        else:
            found[(*place, message.offset())] = (message.key(), message.value(), message.timestamp(), message.headers())
    consumer.close()
    return found


def topic_ids(bootstrap_servers: str) -> dict[str, Any]:
    settings = ClientSettings.parse({"bootstrap.servers": bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as cluster:
        topics = our_admin.list_topics(cluster, internal=True).values()
        return {topic.name: (topic.topic_id, len(topic.partitions)) for topic in topics}


def alter(admin: AdminClient, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def fill(where: str) -> None:
    """Creates two topics, one compacted; a group with many commits; transactions, one of them aborted."""
    admin = AdminClient({"bootstrap.servers": where})
    create_topic(where, "t", 3, {"retention.ms": "-1", "compression.type": "producer"})
    create_topic(where, "c", 1, {"cleanup.policy": "compact", "segment.ms": "100", "compression.type": "gzip"})
    create_topic(where, "gone", 1)
    for codec in CODECS:
        records = ((n % 3, b"k%d" % n, b"%s %d" % (codec.encode(), n)) for n in range(60))
        produce(where, "t", records, compression_codec=codec, enable_idempotence=True)
    place = TopicPartition("t", 1, 10)
    admin.delete_records([place])[place].result(30)
    consumer = Consumer({"bootstrap.servers": where, "group.id": "simple"})
    commit(consumer, [TopicPartition("gone", 0, 1)])
    delete_topic(where, "gone")
    alter(admin, "__consumer_offsets", segment_ms="100", min_cleanable_dirty_ratio="0.0001")
    transactional = Producer({"bootstrap.servers": where, "transactional.id": "x"})
    transactional.init_transactions()
    for number in range(4):
        produce(where, "c", ((0, b"k%d" % (n % 7), b"%d %d" % (number, n)) for n in range(20)))
        places = [TopicPartition("t", p, 15 + number, metadata="m") for p in range(3)]
        commit(consumer, places)
        transactional.begin_transaction()
        transactional.produce("t", b"transaction %d" % number, b"k", 0)
        # an abort discards unsent records
        assert transactional.flush(30) == 0
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
    left_open = Producer({"bootstrap.servers": where, "transactional.id": "open"})
    left_open.init_transactions()
    left_open.begin_transaction()
    left_open.produce("t", b"left open", b"k", 2)
    left_open.flush(30)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    path = tmp_path_factory.mktemp("left")
    kafka = RealKafka(CONFIG)
    with kafka:
        where, data = kafka.bootstrap_servers, kafka.data_directory
        fill(where)
        with JavaMember(where, "g", "t", group_instance_id="first", session_timeout_ms=45_000) as java:
            with LibrdkafkaMember(where, "g", "t", group_instance_id="second", session_timeout_ms=45_000) as other:
                wait_until(lambda: {len(java.partitions), len(other.partitions)} == {1, 2}, "both have partitions")
                wait_until(lambda: java.consumed + sum(other.seen.values()) >= 290, "the group has read the topic")
                cleaned = data / "cleaner-offset-checkpoint"
                wait_until(lambda: {"c 0", "__con"} <= _cleaned(cleaned), "both topics are compacted")
        # static members remain in the group after they stop
        wait_until(lambda: list(data.glob("__cluster_metadata-0/*.checkpoint")), "a snapshot of the metadata")
        with pytest.raises(StorageError) as refused:
            EmbeddedBroker(data, adopt=True).start()
        returned = topic_ids(where), read_all(where, "read_uncommitted"), read_all(where, "read_committed")
        shutil.copytree(data, path / "torn", ignore=shutil.ignore_patterns("*.deleted", "*.cleaned", "*.swap"))
        kafka.hand_over(path / "stopped")
    yield Left(path / "stopped", path / "torn", *returned, str(refused.value))


def _cleaned(checkpoint: Path) -> set[str]:
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    return {line[:3] if line.startswith("c ") else line[:5] for line in lines}


def test_offsets_records_are_printed_as_by_kafkas_tool(left: Left, java: JavaTools) -> None:
    run = CliRunner().invoke(main, ["offsets-log", str(left.stopped)])
    assert (run.exit_code, run.stderr) == (0, "")
    lines = parsed(run.stdout)
    assert lines == dump_tool(java, segments(left.stopped))
    returned = [line for line in lines if isinstance(line, tuple)]
    assert any(payload == "<DELETE>" for *_, payload in returned)
    assert {payload["version"] for *_, payload in returned if payload != "<DELETE>"} == {"0", "3", "4"}
    assert {key["type"] for _, key, _ in returned} >= {"1", "2", "3", "5", "7", "8"}
    assert "endTxnMarker: ABORT" in run.stdout and "endTxnMarker: COMMIT" in run.stdout


@pytest.mark.parametrize("way", ["stopped", "torn"])
def test_an_adopted_directory_keeps_records_groups_and_transactions(left: Left, tmp_path: Path, way: str) -> None:
    path = tmp_path / "copy"
    shutil.copytree(getattr(left, way), path)
    with pytest.raises(StorageError, match="belongs to an Apache Kafka broker.*--adopt"):
        EmbeddedBroker(path).start()
    with EmbeddedBroker(path, adopt=True) as broker:
        where = broker.bootstrap_servers
        reports = list(broker.reports)
        assert topic_ids(where) == left.topic_ids
        assert read_all(where, "read_uncommitted") == left.records
        assert read_all(where, "read_committed") == left.committed
        assert len(left.records) == len(left.committed) + 2
        settings = broker.call(lambda running: dict(running.partitions.topic("c").settings))
        assert settings.items() >= {"cleanup.policy": "compact", "segment.ms": "100"}.items()
        assert any("of Kafka broker 1" in line and f": {len(left.topic_ids)} topics" in line for line in reports)
        check_group(where)
        check_transactions(where)
        produce(where, "t", [(0, None, b"new")], enable_idempotence=True)
    with EmbeddedBroker(path) as broker:  # it is ours by now
        assert topic_ids(broker.bootstrap_servers) == left.topic_ids
        found = read_all(broker.bootstrap_servers, "read_uncommitted")
        assert found.items() > left.records.items() and len(found) == len(left.records) + 6
        assert len(read_all(broker.bootstrap_servers, "read_committed")) == len(found) - 2


def check_group(where: str) -> None:
    """Checks commits of both protocols and the group with its members; one of them rejoins and continues."""
    for group, offsets in (("simple", [25, 26, 27]), ("newer", [12, 13])):
        consumer = Consumer({"bootstrap.servers": where, "group.id": group})
        committed = consumer.committed([TopicPartition("t", p) for p in range(len(offsets))], 30)
        consumer.close()
        assert [each.offset for each in committed] == offsets
    admin = AdminClient({"bootstrap.servers": where})
    described = admin.describe_consumer_groups(["g"])["g"].result(30)
    assert {member.group_instance_id for member in described.members} == {"first", "second"}
    assert described.partition_assignor == "range"
    produce(where, "t", ((p, None, b"later") for p in range(3)))
    with JavaMember(where, "g", "t", group_instance_id="first") as java:
        # records committed on Kafka are not read again; the stopped member owns the other partitions
        java.wait_for("records_consumed")
        assert 0 < java.consumed <= 3


def check_transactions(where: str) -> None:
    """Checks that both producers continue with their transactional ids; the ongoing transaction is aborted."""
    for name in ("x", "open"):
        producer = Producer({"bootstrap.servers": where, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", name.encode(), b"k", 2)
        producer.commit_transaction(30)


def test_adopting_a_directory_in_use_or_an_empty_one_is_an_error(left: Left, tmp_path: Path) -> None:
    assert "in use by another broker" in left.refused_while_it_ran
    with pytest.raises(StorageError, match="nothing to adopt"):
        EmbeddedBroker(tmp_path / "typo", adopt=True).start()


def test_adopting_an_incomplete_directory_is_an_error_and_changes_nothing(left: Left, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(left.stopped, path)
    shutil.move(path / "t-1", tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="lacks partitions 1 of topic t. .*log.dirs"):
        EmbeddedBroker(path, adopt=True).start()
    shutil.move(tmp_path / "elsewhere", path / "t-1")
    half_done = path / "t-0" / f"{0:020d}.log.swap"
    half_done.touch()
    with pytest.raises(StorageError, match="killed while it replaced segments"):
        EmbeddedBroker(path, adopt=True).start()
    half_done.unlink()
    (path / ".lock").unlink()
    assert {each.name for each in path.iterdir()} == {each.name for each in left.stopped.iterdir()}
    assert (path / "meta.properties").read_bytes() == (left.stopped / "meta.properties").read_bytes()
