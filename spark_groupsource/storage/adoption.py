"""Reader of an Apache Kafka log directory, for its adoption.

It reads the partitions with their ``partition.metadata``, the checkpoints and `__cluster_metadata`, which has the
topics and their settings. It changes nothing: `DataDirectory` writes what was read.

Source: Kafka `LogManager`, `LogLoader`, `PartitionMetadataFile`, `CheckpointFile`; KIP-500 (metadata log), KIP-630
(snapshots).
"""

from __future__ import annotations

import re
import uuid
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Iterator, Mapping

from spark_groupsource.errors import ConfigurationError, CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX_LAYOUT,
    BatchHeader,
    check_crc,
    decode_header,
    iter_batches,
)
from spark_groupsource.records.message_sets import with_record_batches
from spark_groupsource.storage.catalog import OFFSETS_TOPIC, PRODUCER_ID_BLOCK_SIZE, TopicEntry
from spark_groupsource.storage.leader_epoch_cache import CHECKPOINT_NAME
from spark_groupsource.storage.metadata_files import corrupt_file
from spark_groupsource.storage.reporter import Reporter
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
_PARTITION_NAME = re.compile(r"(.+)-(\d+)")


@dataclass
class KafkaDirectory:
    """Content of a Kafka broker's log directory.

    Attributes:
        topics: every topic, with the settings that this broker has.
        log_start_offsets: of the logs that do not start at offset 0.
        cleaner_offsets: of every log with gaps, the end offset of its compacted part.
        next_producer_id: above every producer id in use.
        leader_epoch: the largest leader epoch of any partition.
    """

    topics: list[TopicEntry] = field(default_factory=list)
    log_start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    cleaner_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    next_producer_id: int = 0
    leader_epoch: int = 0


@dataclass
class _MetadataImage:
    """State of the metadata log, by topic id."""

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
    path: Path, log_starts: Mapping[TopicPartition, int], cleaned: Mapping[TopicPartition, int], report: Reporter
) -> KafkaDirectory:
    """Reads the log directory `path`; `log_starts` and `cleaned` are the content of its offset checkpoints.

    Topic settings that this broker does not have are dropped and reported.

    Raises: StorageError when partitions are missing, or when only Kafka can complete an interrupted operation.
    """
    directories = _partition_directories(path)
    image = _read_metadata_log(path / f"{_METADATA_TOPIC}-0")
    if image is None:
        report(f"[broker] Data directory {path} has no {_METADATA_TOPIC}-0: its topics get the default settings.")
        image = _image_of_directories(directories)
    content = KafkaDirectory(next_producer_id=image.next_producer_id)
    for topic_id, name in sorted(image.names.items(), key=lambda item: item[1]):
        numbers = image.partitions[topic_id]
        _check_partitions(path, name, topic_id, numbers, directories)
        settings = _known_settings(name, image.settings.get(name, {}), report)
        content.topics.append(TopicEntry(name, uuid.UUID(bytes=topic_id), len(numbers), settings))
    known = {topic_partition for topic in content.topics for topic_partition in topic.partitions}
    for topic_partition in sorted(set(directories) - known):
        stray = directories[topic_partition].path
        report(f"[partition={topic_partition}] Directory {stray} belongs to no existing topic and is ignored.")
    for topic_partition in sorted(known):
        directory = directories[topic_partition].path
        _read_log(content, topic_partition, directory, log_starts.get(topic_partition, 0))
        if topic_partition in cleaned:
            content.cleaner_offsets[topic_partition] = cleaned[topic_partition]
    return content


# --- partition directories ---


@dataclass(frozen=True)
class _PartitionDirectory:
    path: Path
    topic_id: bytes | None


def _partition_directories(path: Path) -> dict[TopicPartition, _PartitionDirectory]:
    """Returns the partition directories, without those being deleted (they have a suffix) and the metadata log."""
    directories = {}
    try:
        for entry in path.iterdir():
            name = _PARTITION_NAME.fullmatch(entry.name)
            if name is not None and entry.is_dir() and name[1] != _METADATA_TOPIC:
                topic_id = _read_topic_id(entry / "partition.metadata")
                directories[TopicPartition(name[1], int(name[2]))] = _PartitionDirectory(entry, topic_id)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. Check permissions.") from error
    return directories


def _read_topic_id(path: Path) -> bytes | None:
    """Returns the topic id of a ``partition.metadata``, None without the file (brokers before 2.8).

    Raises: StorageError when the file is corrupt.
    """
    if not path.exists():
        return None
    values = dict(line.split(": ", 1) for line in path.read_text("utf-8", "replace").splitlines() if ": " in line)
    try:
        topic_id = urlsafe_b64decode(values["topic_id"] + "==")
        if values["version"] != "0" or len(topic_id) != 16:
            raise ValueError(f"version {values['version']}, topic id of {len(topic_id)} bytes")
    except (KeyError, ValueError) as error:
        raise corrupt_file(path, error) from error
    return topic_id


def _check_partitions(
    path: Path, name: str, topic_id: bytes, numbers: set[int], directories: Mapping[TopicPartition, _PartitionDirectory]
) -> None:
    missing = []
    for number in range(max(numbers, default=-1) + 1):
        directory = directories.get(TopicPartition(name, number))
        if number not in numbers or directory is None or directory.topic_id not in (None, topic_id):
            missing.append(str(number))
        elif not segment_base_offsets(directory.path):
            raise StorageError(f"{directory.path} has no segment. Restore it from a copy.")
        elif any(directory.path.glob("*.swap")):
            raise StorageError(
                f"{directory.path} has .swap files: Kafka was killed while it replaced segments. Start and stop that "
                "Kafka once more on the original directory and copy the directory again."
            )
    if missing:
        raise StorageError(
            f"{path} lacks partitions {', '.join(missing)} of topic {name}. Adoption needs every partition of a single "
            "broker in one directory: if log.dirs has several directories, copy all partitions into one."
        )


# --- metadata log ---


def _image_of_directories(directories: Mapping[TopicPartition, _PartitionDirectory]) -> _MetadataImage:
    """Returns the topics of the partition directories, for a directory without metadata log."""
    image = _MetadataImage()
    ids: dict[str, bytes] = {}
    for (topic, number), directory in directories.items():
        topic_id = ids.setdefault(topic, directory.topic_id or uuid.uuid4().bytes)
        image.replay(TopicRecord(topic, topic_id))
        image.replay(PartitionRecord(topic_id, number))
    return image


def _read_metadata_log(directory: Path) -> _MetadataImage | None:
    """Replays the newest snapshot and the records after it; None without metadata log.

    Raises: StorageError.
    """
    if not directory.is_dir():
        return None
    image, next_offset = _MetadataImage(), 0
    snapshots = [path for path in directory.glob("*.checkpoint") if path.stem.partition("-")[0].isdigit()]
    try:
        if snapshots:
            newest = max(snapshots, key=lambda path: path.stem)
            next_offset = int(newest.stem.partition("-")[0])
            for record in _metadata_records(newest, 0):
                image.replay(record)
        pending: list[MetadataRecord] | None = None
        for base_offset in segment_base_offsets(directory):
            for record in _metadata_records(directory / f"{base_offset:020d}.log", next_offset):
                match record:
                    case TransactionRecord("begin"):
                        pending = []
                    case TransactionRecord(outcome):
                        for held in pending or () if outcome == "end" else ():
                            image.replay(held)
                        pending = None
                    case _ if pending is not None:
                        pending.append(record)
                    case _:
                        image.replay(record)
    except (OSError, CorruptRecordError) as error:
        raise StorageError(f"{directory} cannot be read: {error}. Restore it from a copy.") from error
    return image


def _metadata_records(path: Path, from_offset: int) -> Iterator[MetadataRecord]:
    """Yields the records of one file; an incomplete batch at its end was never acknowledged."""
    data = path.read_bytes()
    for header in iter_batches(data):
        if header.is_control or header.last_offset < from_offset:
            continue
        check_crc(data, header)
        for record in decode_records(data, header):
            decoded = None if record.value is None else decode_metadata_record(record.value)
            if decoded is not None:
                yield decoded


def _known_settings(topic: str, settings: Mapping[str, str], report: Reporter) -> dict[str, str]:
    known = {}
    for name, value in sorted(settings.items()):
        try:
            topic_config({name: value}, TopicConfig())
            known[name] = value
        except ConfigurationError:
            report(f"[topic={topic}] Ignoring {name}={value}: this broker does not support it.")
    if topic == OFFSETS_TOPIC:
        known["cleanup.policy"] = "compact"
    return known


# --- logs ---


def _read_log(content: KafkaDirectory, topic_partition: TopicPartition, directory: Path, log_start: int) -> None:
    """Adds the log start offset, gaps, leader epoch and producer ids of one log, from its batch headers."""
    base_offsets = segment_base_offsets(directory)
    if max(log_start, base_offsets[0]) > 0:
        content.log_start_offsets[topic_partition] = max(log_start, base_offsets[0])
    content.leader_epoch = max(content.leader_epoch, _last_epoch(directory / CHECKPOINT_NAME))
    expected_offset, has_gaps = base_offsets[0], False
    try:
        for base_offset in base_offsets:
            has_gaps |= base_offset > expected_offset
            expected_offset = base_offset
            for header in _batch_headers(directory / f"{base_offset:020d}.log", topic_partition.topic):
                has_gaps |= header.base_offset > expected_offset or header.record_count <= header.last_offset_delta
                expected_offset = header.next_offset
                if header.producer_id >= content.next_producer_id:
                    # another broker allocated the block and may not have used all of it
                    block = header.producer_id // PRODUCER_ID_BLOCK_SIZE
                    content.next_producer_id = (block + 1) * PRODUCER_ID_BLOCK_SIZE
                content.leader_epoch = max(content.leader_epoch, header.partition_leader_epoch)
    except CorruptRecordError:
        pass  # the partition reports it when its log is opened or read
    except OSError as error:
        raise StorageError(f"{directory} cannot be read: {error.strerror}. Check permissions.") from error
    if has_gaps:
        content.cleaner_offsets[topic_partition] = base_offsets[0]


def _last_epoch(path: Path) -> int:
    """Returns the last epoch of a ``leader-epoch-checkpoint``, which may have no records; 0 without the file.

    Raises: StorageError when the file is corrupt.
    """
    if not path.exists():
        return 0
    try:
        return max((int(line.split(" ")[0]) for line in path.read_text().splitlines()[2:]), default=0)
    except ValueError as error:
        raise corrupt_file(path, error) from error


def _batch_headers(path: Path, topic: str) -> Iterator[BatchHeader]:
    """Yields the batch headers of a segment, without reading the records.

    Raises: StorageError for a message of an old format, which this broker would take for a corrupt batch.
    """
    with open(path, "rb") as file:
        position = 0
        while len(data := _read(file, position, HEADER_BYTES)) > MAGIC_AT:
            _check_format(file, position, data, topic)
            if len(data) < HEADER_BYTES:
                return
            header = decode_header(data)
            yield header
            position += header.size


def _check_format(file: BinaryIO, position: int, data: bytes, topic: str) -> None:
    version = data[MAGIC_AT]
    if version >= MAGIC:
        return
    _, length = PREFIX_LAYOUT.unpack_from(data)
    try:
        is_message = bool(with_record_batches(memoryview(_read(file, position, LOG_OVERHEAD_BYTES + max(length, 0)))))
    except CorruptRecordError:
        is_message = False
    if not is_message:
        return  # a corrupt or incomplete batch
    raise StorageError(
        f"{file.name} has messages of format v{version}, which only Kafka before 4.0 writes and this broker does not "
        f"serve. Copy topic {topic} to a new topic while Kafka runs, delete it, and copy the directory again."
    )


def _read(file: BinaryIO, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)
