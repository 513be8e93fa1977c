"""The topics and partitions of one broker: created, found by name or id, opened, deleted; and the append path.

Knows storage and logs; knows no request. What a client did wrong is raised as `Refusal`, with the code to answer.
"""

from __future__ import annotations

import re
import uuid
from typing import Iterator, Mapping, NamedTuple

from spark_groupsource.broker.config import BrokerConfig, TopicConfig, topic_config
from spark_groupsource.broker.files import FileCache, replace_file
from spark_groupsource.broker.log import PartitionLog, Report
from spark_groupsource.broker.producers import NO_PRODUCER_ID, ProducerStates, SequenceError
from spark_groupsource.broker.storage import DataDirectory, TopicEntry
from spark_groupsource.errors import ConfigurationError, CorruptRecordError, ErrorCode, GroupSourceError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.batch import BatchHeader, check_crc, iter_batches
from spark_groupsource.records.retention import keyed_records

OFFSETS_TOPIC = "__consumer_offsets"
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ZSTD = 4


class Refusal(GroupSourceError):
    """A request, or one entry of it, is answered with an error: `code`, and a text where the answer has room for it."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or code.name


class Appended(NamedTuple):
    """Where a produced batch stands; `log_append_time_ms` is -1 unless the broker stamps the records."""

    base_offset: int
    log_append_time_ms: int
    size: int


class Partition:
    """One partition: its log, its producers, or why it is offline."""

    def __init__(self, topic_id: uuid.UUID, log: PartitionLog, report: Report) -> None:
        self.topic_id = topic_id
        self.topic_partition = log.topic_partition
        self.log = log
        self.offline: str = ""
        self._producers = ProducerStates()
        self._report = report
        log.before_roll = self._write_snapshot

    def open(self, clean_end_offset: int | None) -> None:
        """Opens the log and rebuilds what is known of producers; trouble makes this partition offline, no other."""
        try:
            self.log.open(clean_end_offset)
            self._load_producers()
        except (StorageError, OSError) as error:
            self.take_offline(error)

    def take_offline(self, error: Exception) -> None:
        """Refuses everything from now on: nobody knows what is on the disk until a start has looked."""
        self.offline = str(error)
        self._report(f"{self.topic_partition} is offline: {error}")

    def close(self) -> None:
        """Writes what speeds up the next start.

        Raises: StorageError.
        """
        if not self.offline:
            self.log.close()
            if len(self._producers):
                self._write_snapshot(self.log.log_end_offset)

    def check_online(self) -> None:
        """Raises: Refusal when the partition cannot be used."""
        if self.offline:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def append(self, records: bytes | bytearray | memoryview, timestamp_ms: int, *, zstd: bool = True) -> Appended:
        """Checks what a producer sent and stores it.

        Raises: Refusal.
        """
        self.check_online()
        header = self._check_batch(records, zstd)
        if header.producer_id != NO_PRODUCER_ID:
            try:
                stored = self._producers.check(header)
            except SequenceError as error:
                raise Refusal(error.code, str(error)) from error
            if stored is not None:
                return Appended(stored.base_offset, -1, 0)
        stamped = self.log.config.message_timestamp_type == "LogAppendTime"
        try:
            base_offset = self.log.append(bytearray(records), header, timestamp_ms if stamped else None)
        except StorageError as error:
            self._report(f"{self.topic_partition}: {error}")
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._producers.note(header, base_offset)
        try:
            self.log.flush_if_due()
        except StorageError as error:
            self.take_offline(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return Appended(base_offset, timestamp_ms if stamped else -1, header.size)

    def _check_batch(self, records: bytes | bytearray | memoryview, zstd: bool) -> BatchHeader:
        try:
            headers = list(iter_batches(records))
            if len(headers) != 1 or headers[0].size != len(records):
                raise Refusal(ErrorCode.INVALID_RECORD, "a partition takes exactly one whole record batch per request")
            header = headers[0]
            if header.size > self.log.config.max_message_bytes:
                limit = self.log.config.max_message_bytes
                text = f"a batch of {header.size} bytes is above max.message.bytes ({limit}) of {self.topic_partition}"
                raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, text)
            check_crc(records, header)
        except CorruptRecordError as error:
            raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if header.codec > _ZSTD or (header.codec == _ZSTD and not zstd):
            raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} cannot be taken here")
        if header.is_control or header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
            raise Refusal(ErrorCode.INVALID_RECORD, "a producer sends whole batches of data records, counted from 0")
        if header.is_transactional:
            raise Refusal(ErrorCode.INVALID_TXN_STATE, "this broker serves no transactions")
        if header.producer_id != NO_PRODUCER_ID and (header.base_sequence < 0 or header.producer_epoch < 0):
            raise Refusal(ErrorCode.INVALID_RECORD, "a producer with an id numbers its batches from 0")
        if self.log.config.compacted and self.topic_partition.topic != OFFSETS_TOPIC:
            self._check_keys(records, header)
        return header

    def _check_keys(self, records: bytes | bytearray | memoryview, header: BatchHeader) -> None:
        try:
            _, keyed = keyed_records(records, header)
        except CorruptRecordError as error:
            raise Refusal(ErrorCode.INVALID_RECORD, str(error)) from error
        if any(record.key is None for record in keyed):
            text = f"Compacted topic cannot accept message without key in topic partition {self.topic_partition}."
            raise Refusal(ErrorCode.INVALID_RECORD, text)

    def last_offsets(self) -> Mapping[int, int]:
        """Producer id -> last offset of its last batch, which compaction must leave."""
        return self._producers.last_offsets()

    def _load_producers(self) -> None:
        start = self.log.log_start_offset
        bases = {segment.path.with_suffix(".snapshot") for segment in self.log.segments}
        for path in sorted(self.log.directory.glob("*.snapshot"), reverse=True):
            if path.stem.isdigit() and start <= int(path.stem) <= self.log.log_end_offset:
                try:
                    self._producers = ProducerStates.decode(path.read_bytes())
                    start = int(path.stem)
                    break
                except CorruptRecordError as error:
                    self._report(f"{path}: {error}; the log is read instead")
        try:
            for stored in self.log.batches(start, check=False):
                self._producers.note(stored.header, stored.header.base_offset)
        except CorruptRecordError:
            pass  # the damage is reported by the log, which takes no more records until it is mended
        for path in self.log.directory.glob("*.snapshot"):
            if path not in bases:
                path.unlink()

    def _write_snapshot(self, offset: int) -> None:
        replace_file(self.log.directory / f"{offset:020d}.snapshot", self._producers.encode())


class Partitions:
    """Every partition of this broker. The one caller is the broker's loop."""

    def __init__(self, data: DataDirectory, config: BrokerConfig, report: Report) -> None:
        self._data = data
        self._config = config
        self._report = report
        self.files = FileCache()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._names: dict[uuid.UUID, str] = {}

    def open_all(self) -> None:
        """Opens the log of every partition of the catalogue."""
        for entry in self._data.topics.values():
            self._names[entry.topic_id] = entry.name
            for topic_partition in entry.partitions:
                partition = self._new_partition(entry, topic_partition)
                partition.open(self._data.clean_end_offset(topic_partition))

    def close_all(self) -> Mapping[TopicPartition, int]:
        """Closes every log; returns the log ends of those that closed well."""
        ends = {}
        for topic_partition, partition in self._partitions.items():
            try:
                partition.close()
                if not partition.offline:
                    ends[topic_partition] = partition.log.log_end_offset
            except StorageError as error:
                self._report(f"{topic_partition} was not closed cleanly: {error}")
        self.files.close()
        return ends

    # --- look-up ---

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        return self._data.topics

    def topic_name(self, topic_id: uuid.UUID) -> str:
        """Raises: Refusal for an id that no topic has."""
        name = self._names.get(topic_id)
        if name is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return name

    def topic(self, name: str) -> TopicEntry:
        """Raises: Refusal for a topic that does not exist."""
        entry = self._data.topics.get(name)
        if entry is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return entry

    def partition(self, name: str, number: int) -> Partition:
        """Raises: Refusal for one that does not exist or is offline."""
        partition = self._partitions.get(TopicPartition(name, number))
        if partition is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {number} of a topic {name}")
        partition.check_online()
        return partition

    def offline_reason(self, topic_partition: TopicPartition) -> str:
        """Why a partition cannot be used, empty when it can."""
        return self._partitions[topic_partition].offline

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._partitions

    # --- topics ---

    def check_new_topic(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> TopicConfig:
        """The configuration a new topic would have.

        Raises: Refusal.
        """
        if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
            text = f"topic name {name!r} is illegal: 1 to 249 of a-z A-Z 0-9 . _ - are allowed, . and .. are not"
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        if name in self._data.topics:
            raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")
        # metric names have _ for both, so Kafka takes no two topics that differ in this alone
        twin = next((other for other in self._data.topics if other.replace(".", "_") == name.replace(".", "_")), None)
        if twin is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} collides with topic {twin}")
        if not 1 <= partition_count <= 100_000:
            raise Refusal(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to 100000 partitions, not {partition_count}")
        try:
            return topic_config(settings, self._config.topic)
        except ConfigurationError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error

    def create_topic(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> TopicEntry:
        """Makes a topic; durable when this returns.

        Raises: Refusal.
        """
        self.check_new_topic(name, partition_count, settings)
        given = {key: value for key, value in settings.items() if value is not None}
        entry = TopicEntry(name, uuid.uuid4(), partition_count, given)
        self._create_partitions(entry, 0)
        self._names[entry.topic_id] = name
        return entry

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Raises the number of partitions of a topic.

        Raises: Refusal.
        """
        entry = self.topic(name)
        self._create_partitions(
            TopicEntry(name, entry.topic_id, partition_count, entry.settings), entry.partition_count
        )

    def alter_topic(self, name: str, settings: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Gives a topic other settings, which hold at once; durable when this returns.

        Raises: Refusal.
        """
        entry = self.topic(name)
        try:
            config = topic_config(settings, self._config.topic)
        except ConfigurationError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
        if name == OFFSETS_TOPIC and config.cleanup_policy != "compact":
            text = f"{OFFSETS_TOPIC} holds what every group has committed; its cleanup.policy stays compact"
            raise Refusal(ErrorCode.POLICY_VIOLATION, text)
        if validate_only:
            return
        try:
            self._data.put_topic(TopicEntry(name, entry.topic_id, entry.partition_count, dict(settings)))
        except StorageError as error:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        for topic_partition in entry.partitions:
            self._partitions[topic_partition].log.config = config

    def delete_topic(self, name: str) -> tuple[TopicPartition, ...]:
        """Removes a topic and its files; returns the partitions that are gone.

        Raises: Refusal.
        """
        entry = self.topic(name)
        doomed = [self._partitions.pop(topic_partition) for topic_partition in entry.partitions]
        del self._names[entry.topic_id]

        def remove_files() -> None:
            for partition in doomed:
                partition.offline = f"topic {name} was deleted"
                partition.log.delete()

        try:
            self._data.remove_topic(name, remove_files)
        except (StorageError, OSError) as error:
            # the catalogue knows that it is to be removed, and the next start does so
            self._report(f"files of the deleted topic {name} remain until the next start: {error}")
        return entry.partitions

    def delete_records(self, topic_partition: TopicPartition, before_offset: int) -> int:
        """Moves a log start; durable when this returns. Returns the log start.

        Raises: Refusal.
        """
        log = self.partition(*topic_partition).log
        offset = log.log_end_offset if before_offset == -1 else before_offset
        if not 0 <= offset <= log.log_end_offset:
            text = f"{topic_partition} ends at offset {log.log_end_offset}; records up to {offset} cannot be deleted"
            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if offset > log.log_start_offset:
            try:
                self._data.set_log_start(topic_partition, offset)
                log.delete_records(offset)
            except (StorageError, OSError) as error:
                raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return log.log_start_offset

    def config_of(self, entry: TopicEntry) -> TopicConfig:
        """A topic's configuration over the broker's defaults."""
        return topic_config(entry.settings, self._config.topic)

    def _create_partitions(self, entry: TopicEntry, first: int) -> None:
        new = entry.partitions[first:]
        try:
            for topic_partition in new:
                self._new_partition(entry, topic_partition).log.create()
            self._data.put_topic(entry)
        except StorageError as error:
            for topic_partition in new:
                self._partitions.pop(topic_partition, None)
            self._report(f"topic {entry.name} was not created: {error}")
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _new_partition(self, entry: TopicEntry, topic_partition: TopicPartition) -> Partition:
        log = PartitionLog(
            self._data.partition_directory(topic_partition),
            topic_partition,
            self.config_of(entry),
            self.files,
            self._report,
            log_start_offset=self._data.log_starts.get(topic_partition, 0),
            has_gaps=topic_partition in self._data.cleaned,
        )
        partition = self._partitions[topic_partition] = Partition(entry.topic_id, log, self._report)
        return partition
