"""The log directory of an Apache Kafka broker, read so that this broker can go on with it.

Knows Kafka's files: partitions with their ``partition.metadata``, the checkpoints, and `__cluster_metadata`, which
tells of topics and settings. Nothing is changed here; `DataDirectory` writes down what was found.

Source: Kafka `LogManager`, `LogLoader`, `PartitionMetadataFile`, `CheckpointFile`; KIP-500 (metadata log), KIP-630
(its snapshots).
"""

from __future__ import annotations

import re
import uuid
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Callable, Iterator

from spark_groupsource.errors import ConfigurationError, CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import HEADER_BYTES, BatchHeader, check_crc, decode_header, iter_batches
from spark_groupsource.storage.leader_epoch_cache import CHECKPOINT_NAME
from spark_groupsource.storage.segment_swap import segment_base_offsets
from spark_groupsource.storage.topic_config import TopicConfig, topic_config
from spark_groupsource.wire.metadata_records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionRecord,
    decode_metadata_record,
)

_METADATA_TOPIC = "__cluster_metadata"
_OFFSETS_TOPIC = "__consumer_offsets"
_PARTITION_NAME = re.compile(r"(.+)-(\d+)")
_PRODUCER_ID_BLOCK = 1000


@dataclass
class FoundTopic:
    """One topic of the directory; `settings` are those that mean something here."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    settings: dict[str, str]


@dataclass
class Found:
    """Content of the directory.

    Attributes:
        topics: every topic of the metadata log.
        log_start_offsets: of the logs that do not start at offset 0.
        cleaner_offsets: of every log with gaps, the end offset of its compacted part.
        next_producer_id: above every producer id in use.
        leader_epoch: the largest leader epoch of any partition.
    """

    topics: list[FoundTopic] = field(default_factory=list)
    log_start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    cleaner_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    next_producer_id: int = 0
    leader_epoch: int = 0


@dataclass
class _Cluster:
    """What the metadata log says, by topic id."""

    names: dict[bytes, str] = field(default_factory=dict)
    partitions: dict[bytes, set[int]] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0

    def replay(self, record: MetadataRecord) -> None:
        match record:
            case TopicRecord(name, topic_id):
                self.names[topic_id] = name
                self.partitions.setdefault(topic_id, set())
            case PartitionRecord(topic_id, partition):
                self.partitions.setdefault(topic_id, set()).add(partition)
            case RemoveTopicRecord(topic_id):
                self.settings.pop(self.names.pop(topic_id, ""), None)
                self.partitions.pop(topic_id, None)
            case ConfigRecord(kind, resource, name, value) if kind == TOPIC_RESOURCE:
                settings = self.settings.setdefault(resource, {})
                if value is None:
                    settings.pop(name, None)
                else:
                    settings[name] = value
            case ProducerIdsRecord(next_producer_id):
                self.next_producer_id = next_producer_id


def read_kafka_directory(
    path: Path, log_starts: dict[TopicPartition, int], cleaned: dict[TopicPartition, int], report: Callable[[str], None]
) -> Found:
    """What the Kafka broker that had `path` has left; `log_starts` and `cleaned` are what its checkpoints say.

    Settings that mean nothing here are left out, and `report` is told of each.

    Raises: StorageError, naming the mend, when partitions are missing or the broker died in the middle of something
    that only it can finish.
    """
    directories = _partition_directories(path)
    cluster = _read_cluster(path / f"{_METADATA_TOPIC}-0")
    if cluster is None:
        report(f"{path} has no {_METADATA_TOPIC}-0: settings of its topics are not known, the defaults hold")
        cluster = _cluster_of(directories)
    found = Found(next_producer_id=cluster.next_producer_id)
    for topic_id, name in sorted(cluster.names.items(), key=lambda each: each[1]):
        _check_partitions(path, name, topic_id, cluster.partitions[topic_id], directories)
        settings = _settings(name, cluster.settings.get(name, {}), report)
        found.topics.append(FoundTopic(name, uuid.UUID(bytes=topic_id), len(cluster.partitions[topic_id]), settings))
    known = {TopicPartition(topic.name, n) for topic in found.topics for n in range(topic.partition_count)}
    for topic_partition in sorted(set(directories) - known):
        report(f"{directories[topic_partition].path} belongs to no topic that exists; it is left where it is")
    for topic_partition in sorted(known):
        directory = directories[topic_partition].path
        _note_log(found, topic_partition, directory, log_starts.get(topic_partition, 0))
        if topic_partition in cleaned:
            found.cleaner_offsets[topic_partition] = cleaned[topic_partition]
    return found


# --- directories ---


@dataclass(frozen=True)
class _Directory:
    path: Path
    topic_id: bytes | None


def _partition_directories(path: Path) -> dict[TopicPartition, _Directory]:
    """Those of partitions; what Kafka is about to delete bears another name, and the metadata log is none."""
    found = {}
    try:
        for each in path.iterdir():
            name = _PARTITION_NAME.fullmatch(each.name)
            if name is not None and each.is_dir() and name[1] != _METADATA_TOPIC:
                found[TopicPartition(name[1], int(name[2]))] = _Directory(each, _topic_id(each / "partition.metadata"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; check permissions") from error
    return found


def _topic_id(path: Path) -> bytes | None:
    """The id in a ``partition.metadata``, None where there is no such file (brokers before 2.8).

    Raises: StorageError when the file is damaged.
    """
    if not path.exists():
        return None
    values = dict(line.split(": ", 1) for line in path.read_text("utf-8", "replace").splitlines() if ": " in line)
    try:
        topic_id = urlsafe_b64decode(values["topic_id"] + "==")
        if values["version"] != "0" or len(topic_id) != 16:
            raise ValueError(f"version {values['version']}, an id of {len(topic_id)} bytes")
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path} is damaged ({error!r}); restore it from a copy") from error
    return topic_id


def _check_partitions(
    path: Path, name: str, topic_id: bytes, numbers: set[int], directories: dict[TopicPartition, _Directory]
) -> None:
    missing = []
    for number in range(max(numbers, default=-1) + 1):
        there = directories.get(TopicPartition(name, number))
        if number not in numbers or there is None or there.topic_id not in (None, topic_id):
            missing.append(str(number))
        elif not segment_base_offsets(there.path):
            raise StorageError(f"{there.path} holds no segment; restore it from a copy")
        elif any(there.path.glob("*.swap")):
            raise StorageError(
                f"{there.path}: Kafka was killed while it replaced segments there; start that Kafka on the original "
                "once more, stop it, and copy the directory again"
            )
    if missing:
        raise StorageError(
            f"{path} lacks partitions {', '.join(missing)} of topic {name}; what is adopted must be everything a "
            "single broker has: of several directories in log.dirs, copy all partitions into one"
        )


# --- the metadata log ---


def _cluster_of(directories: dict[TopicPartition, _Directory]) -> _Cluster:
    """What the partitions themselves tell."""
    cluster = _Cluster()
    ids: dict[str, bytes] = {}
    for (topic, number), directory in directories.items():
        topic_id = ids.setdefault(topic, directory.topic_id or uuid.uuid4().bytes)
        cluster.replay(TopicRecord(topic, topic_id))
        cluster.replay(PartitionRecord(topic_id, number))
    return cluster


def _read_cluster(directory: Path) -> _Cluster | None:
    """What the newest snapshot and the log behind it say; None where there is no such log.

    Raises: StorageError.
    """
    if not directory.is_dir():
        return None
    cluster, next_offset = _Cluster(), 0
    snapshots = [path for path in directory.glob("*.checkpoint") if path.stem.partition("-")[0].isdigit()]
    try:
        if snapshots:
            newest = max(snapshots, key=lambda path: path.stem)
            next_offset = int(newest.stem.partition("-")[0])
            for record in _metadata_records(newest, 0):
                cluster.replay(record)
        pending: list[MetadataRecord] | None = None
        for base in segment_base_offsets(directory):
            for record in _metadata_records(directory / f"{base:020d}.log", next_offset):
                match record:
                    case TransactionRecord("begin"):
                        pending = []
                    case TransactionRecord(what):
                        for held in pending or () if what == "end" else ():
                            cluster.replay(held)
                        pending = None
                    case _ if pending is not None:
                        pending.append(record)
                    case _:
                        cluster.replay(record)
    except (OSError, CorruptRecordError) as error:
        raise StorageError(f"{directory} cannot be read: {error}; restore it from a copy") from error
    return cluster


def _metadata_records(path: Path, from_offset: int) -> Iterator[MetadataRecord]:
    """Those of one file; what is torn off at its end was never acknowledged."""
    data = path.read_bytes()
    for header in iter_batches(data):
        if header.is_control or header.last_offset < from_offset:
            continue
        check_crc(data, header)
        for record in decode_records(data, header):
            decoded = None if record.value is None else decode_metadata_record(record.value)
            if decoded is not None:
                yield decoded


def _settings(topic: str, given: dict[str, str], report: Callable[[str], None]) -> dict[str, str]:
    kept = {}
    for name, value in sorted(given.items()):
        try:
            topic_config({name: value}, TopicConfig())
            kept[name] = value
        except ConfigurationError:
            report(f"topic {topic}: {name}={value} is not followed here, it is left out")
    if topic == _OFFSETS_TOPIC:
        kept["cleanup.policy"] = "compact"
    return kept


# --- the logs ---


def _note_log(found: Found, topic_partition: TopicPartition, directory: Path, log_start: int) -> None:
    bases = segment_base_offsets(directory)
    if max(log_start, bases[0]) > 0:
        found.log_start_offsets[topic_partition] = max(log_start, bases[0])
    found.leader_epoch = max(found.leader_epoch, _last_epoch(directory / CHECKPOINT_NAME))
    due, has_gaps = bases[0], False
    try:
        for base in bases:
            has_gaps |= base > due
            due = base
            for header in _heads(directory / f"{base:020d}.log"):
                has_gaps |= header.base_offset > due or header.record_count <= header.last_offset_delta
                due = header.next_offset
                if header.producer_id >= found.next_producer_id:
                    # ids are taken by the block, and whoever took one may not have used it up
                    found.next_producer_id = (header.producer_id // _PRODUCER_ID_BLOCK + 1) * _PRODUCER_ID_BLOCK
                found.leader_epoch = max(found.leader_epoch, header.partition_leader_epoch)
    except CorruptRecordError:
        pass  # found again, and told, when the log is opened or read there
    except OSError as error:
        raise StorageError(f"{directory} cannot be read: {error.strerror}; check permissions") from error
    if has_gaps:
        found.cleaner_offsets[topic_partition] = bases[0]


def _last_epoch(path: Path) -> int:
    """The last epoch in a ``leader-epoch-checkpoint``, 0 where there is none: it may have begun without a record.

    Raises: StorageError when the file is damaged.
    """
    if not path.exists():
        return 0
    try:
        return max((int(line.split(" ")[0]) for line in path.read_text().splitlines()[2:]), default=0)
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error!r}); restore it from a copy") from error


def _heads(path: Path) -> Iterator[BatchHeader]:
    """The heads of a segment's batches; their records are stepped over."""
    with open(path, "rb") as file:
        position = 0
        while (head := _read_head(file, position)) is not None:
            header = decode_header(head)
            yield header
            position += header.size


def _read_head(file: BinaryIO, position: int) -> bytes | None:
    file.seek(position)
    head = file.read(HEADER_BYTES)
    return head if len(head) == HEADER_BYTES else None
