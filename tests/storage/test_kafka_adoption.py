"""Adoption of constructed Kafka directories; tests/matrix adopts real ones."""

from __future__ import annotations

import struct
import uuid
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.reported_lines import ReportedLines

from spark_groupsource.broker.leaders import Leaders, save_first_epoch
from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage.adoption import read_kafka_directory
from spark_groupsource.storage.data_directory import DataDirectory

IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in ("t", "u", "gone", "__consumer_offsets")}


class KafkaDirectory:
    """A broker's log directory under `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports = ReportedLines()
        path.mkdir()
        (path / "meta.properties").write_text("#\n#today\nnode.id=7\ndirectory.id=x\nversion=1\ncluster.id=abc\n")

    def partition(self, topic: str, number: int, *batches: bytes, base: int = 0) -> Path:
        directory = self.path / f"{topic}-{number}"
        directory.mkdir()
        (directory / f"{base:020d}.log").write_bytes(b"".join(batches))
        topic_id = urlsafe_b64encode(IDS[topic].bytes).decode().rstrip("=")
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
        return directory

    def metadata(self, *records: bytes, name: str = f"{0:020d}.log", base: int = 0) -> None:
        directory = self.path / "__cluster_metadata-0"
        directory.mkdir(exist_ok=True)
        (directory / name).write_bytes(encode_batch([Record(None, each, 0) for each in records], base_offset=base))

    def open(self) -> DataDirectory:
        data = DataDirectory(self.path, adopt=True, report=self.reports)
        data.open(1, save_leader_epoch=partial(save_first_epoch, self.path))
        return data


@pytest.fixture
def directory(tmp_path: Path) -> KafkaDirectory:
    return KafkaDirectory(tmp_path / "kafka")


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def topic(name: str, *partitions: int) -> list[bytes]:
    added = [b"\1\3\0" + struct.pack(">i", number) + IDS[name].bytes for number in partitions]
    return [b"\1\2\0" + text(name) + IDS[name].bytes, *added]


def setting(topic: str, name: str, value: str) -> bytes:
    return b"\1\4\0\2" + text(topic) + text(name) + text(value)


def removed(name: str) -> bytes:
    return b"\1\x09\0" + IDS[name].bytes


BEGIN, END, ABORT = b"\1\x17\0\0", b"\1\x18\0\0", b"\1\x19\0\0"


def test_topics_settings_and_producer_ids_are_read_from_the_metadata_log(directory: KafkaDirectory) -> None:
    directory.partition("t", 0)
    directory.partition("t", 1)
    directory.partition("u", 0)
    directory.metadata(
        *topic("gone", 0), setting("gone", "retention.ms", "1"), removed("gone"),
        *topic("t", 0, 1), setting("t", "retention.ms", "5"), setting("t", "retention.ms", "6"),
        setting("t", "no.such.setting", "x"),
        BEGIN, *topic("u", 0), END,
        BEGIN, removed("t"), ABORT,
        b"\1\x0f\0" + struct.pack(">iqq", 7, 0, 3000),
    )  # fmt: skip
    data = directory.open()
    assert {entry.name: (entry.topic_id, entry.partition_count) for entry in data.topics.values()} == {
        "t": (IDS["t"], 2),
        "u": (IDS["u"], 1),
    }
    assert dict(data.topics["t"].settings) == {"retention.ms": "6"}
    assert data.next_producer_id() == 3000
    assert data.cluster_id == "abc"
    assert any("Ignoring no.such.setting=x: this broker does not support it" in line for line in directory.reports)
    assert "broker 7, cluster abc: 2 topics, 3 partitions" in directory.reports[-1]
    data.close(is_clean=False)
    again = DataDirectory(directory.path)
    again.open(1)
    assert again.topics == data.topics and again.next_producer_id() >= 3000
    again.close(is_clean=False)


def test_metadata_log_is_replayed_from_the_newest_snapshot(directory: KafkaDirectory) -> None:
    directory.partition("t", 0)
    directory.partition("u", 0)
    directory.metadata(*topic("gone", 0))
    directory.metadata(*topic("gone", 0), name=f"{1:020d}-{1:010d}.checkpoint")
    directory.metadata(*topic("t", 0), name=f"{10:020d}-{1:010d}.checkpoint")
    directory.metadata(*topic("gone", 0), name=f"{99:020d}-{1:010d}.checkpoint.part")
    directory.metadata(*topic("u", 0), base=10, name=f"{10:020d}.log")
    assert set(directory.open().topics) == {"t", "u"}


def test_topics_are_read_from_partition_directories_without_metadata_log(directory: KafkaDirectory) -> None:
    directory.partition("t", 0)
    (directory.partition("t", 1) / "partition.metadata").unlink()
    directory.partition("__consumer_offsets", 0)
    data = directory.open()
    assert data.topics["t"].topic_id == IDS["t"] and data.topics["t"].partition_count == 2
    assert dict(data.topics["__consumer_offsets"].settings) == {"cleanup.policy": "compact"}
    assert "get the default settings" in directory.reports[0]


def test_deleted_and_stray_partition_directories_are_ignored(directory: KafkaDirectory) -> None:
    directory.partition("t", 0)
    stray = directory.partition("u", 0)
    directory.partition("gone", 0).rename(directory.path / f"gone-0.{'0' * 32}-delete")
    directory.metadata(*topic("t", 0))
    assert set(directory.open().topics) == {"t"}
    line = f"[partition=u-0] Directory {stray} belongs to no existing topic and is ignored."
    assert line in directory.reports
    assert stray.exists()


def batch(base_offset: int, *deltas: int, **options: int) -> bytes:
    records = [Record(b"k", b"v", 1, offset_delta=delta) for delta in deltas]
    return encode_batch(records, base_offset=base_offset, **options)


@pytest.mark.parametrize(
    ("batches", "gaps"),
    [
        ((batch(5, 0, 1), batch(7, 0)), False),
        ((batch(5, 0, 1), batch(8, 0)), True),
        ((batch(5, 0, 2),), True),
        ((), False),
    ],
)
def test_log_start_gaps_epochs_and_producer_ids_are_read_from_the_logs(
    directory: KafkaDirectory, batches: tuple[bytes, ...], gaps: bool
) -> None:
    directory.partition("t", 0, *batches, base=5)
    (directory.path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 5\n6 9\n")
    directory.partition("u", 0, batch(0, 0, producer_id=1234, producer_epoch=0, base_sequence=0, leader_epoch=3))
    data = directory.open()
    place = TopicPartition("t", 0)
    assert data.log_start_offsets == {place: 5}
    assert data.cleaner_offsets == ({place: 5} if gaps else {})
    assert data.next_producer_id() == 2000
    leaders = Leaders([1], directory.reports)
    leaders.open(directory.path)
    assert leaders.leader(place).epoch > 6


def test_kafkas_checkpoints_are_kept(directory: KafkaDirectory) -> None:
    directory.partition("t", 0, batch(0, 0), batch(4, 0))
    directory.partition("u", 0)
    (directory.path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    (directory.path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    data = directory.open()
    place = TopicPartition("t", 0)
    assert (data.cleaner_offsets, data.log_start_offsets) == ({place: 4}, {place: 2})


def message(version: int) -> bytes:
    """Returns a message of format v0 or v1."""
    fields = bytes([version, 0]) + b"\0" * 8 * version + struct.pack(">ii", -1, 1) + b"v"
    return struct.pack(">qiI", 1, len(fields) + 4, zlib.crc32(fields)) + fields


@pytest.mark.parametrize("version", [0, 1])
def test_messages_of_old_formats_are_rejected_by_name(directory: KafkaDirectory, version: int) -> None:
    segment = directory.partition("t", 0, batch(0, 0), message(version)) / f"{0:020d}.log"
    with pytest.raises(StorageError) as raised:
        directory.open()
    assert f"{segment} has messages of format v{version}" in str(raised.value)
    assert "Copy topic t to a new topic" in str(raised.value)


@pytest.mark.parametrize("size", [0, 1000])
def test_corrupt_batch_that_looks_like_an_old_message_is_adopted(directory: KafkaDirectory, size: int) -> None:
    corrupt = bytearray(batch(1, 0))
    corrupt[16] = 1
    struct.pack_into(">i", corrupt, 8, size or len(corrupt) - 12)
    directory.partition("t", 0, batch(0, 0), bytes(corrupt))
    assert set(directory.open().topics) == {"t"}


Damage = Callable[[KafkaDirectory], object]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: d.partition("u", 1), "lacks partitions 0 of topic u"),
        (lambda d: d.metadata(*topic("t", 0), *topic("u", 0, 1)), "lacks partitions 0, 1 of topic u"),
        (lambda d: (d.partition("u", 0) / f"{0:020d}.log").unlink(), "u-0 has no segment"),
        (lambda d: (d.path / "t-0" / "partition.metadata").write_text("version: 9"), "partition.metadata is corrupt"),
        (lambda d: (d.path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\nx\n"), "epoch-checkpoint is corrupt"),
        (lambda d: d.metadata(b"\1\2\0\x7f"), "__cluster_metadata-0 cannot be read"),
        (lambda d: (d.path / "cleaner-offset-checkpoint").write_text("0\n1\nx\n"), "checkpoint is corrupt"),
    ],
)
def test_an_incomplete_or_corrupt_directory_is_rejected_and_unchanged(
    directory: KafkaDirectory, damage: Damage, reason: str
) -> None:
    directory.partition("t", 0)
    damage(directory)
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match=reason):
        directory.open()
    (directory.path / ".lock").unlink()
    assert {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()} == before


def test_reading_a_kafka_directory_changes_no_file(directory: KafkaDirectory) -> None:
    directory.partition("t", 0, batch(0, 0))
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    found = read_kafka_directory(directory.path, {}, {}, directory.reports)
    assert [each.name for each in found.topics] == ["t"]
    assert {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()} == before
