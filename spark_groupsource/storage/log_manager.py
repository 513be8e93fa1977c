"""The topics and partitions of one broker: created, found by name or id, opened, deleted.

Knows storage and logs; knows no request. What a client did wrong is raised as `ApiError`, with the code to answer.
"""

from __future__ import annotations

import re
import uuid
from typing import Iterator, Mapping

from spark_groupsource.errors import ApiError, ConfigurationError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.storage.catalog import INTERNAL_TOPICS, TopicEntry
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.files import FileCache
from spark_groupsource.storage.log import PartitionLog
from spark_groupsource.storage.partition import Partition
from spark_groupsource.storage.reporter import Reporter
from spark_groupsource.storage.topic_config import TopicConfig, topic_config

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class LogManager:
    """Every partition of this broker. The one caller is the broker's loop."""

    def __init__(self, data: DataDirectory, topic_defaults: TopicConfig, report: Reporter) -> None:
        self._data = data
        self._topic_defaults = topic_defaults
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
                partition.open(self._data.recovery_point(topic_partition))

    def close_all(self) -> Mapping[TopicPartition, int]:
        """Closes every log; returns the log ends of those that closed well."""
        ends = {}
        for topic_partition, partition in self._partitions.items():
            try:
                partition.close()
                if not partition.offline_reason:
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
        """Raises: ApiError for an id that no topic has."""
        name = self._names.get(topic_id)
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return name

    def topic(self, name: str) -> TopicEntry:
        """Raises: ApiError for a topic that does not exist."""
        entry = self._data.topics.get(name)
        if entry is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return entry

    def partition(self, name: str, number: int) -> Partition:
        """Raises: ApiError for one that does not exist or is offline."""
        partition = self._partitions.get(TopicPartition(name, number))
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {number} of a topic {name}")
        partition.check_online()
        return partition

    def offline_reason(self, topic_partition: TopicPartition) -> str:
        """Why a partition cannot be used, empty when it can."""
        return self._partitions[topic_partition].offline_reason

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._partitions

    # --- topics ---

    def check_name(self, name: str) -> None:
        """Raises: ApiError for a name that no topic can have."""
        if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
            text = f"topic name {name!r} is illegal: 1 to 249 of a-z A-Z 0-9 . _ - are allowed, . and .. are not"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)

    def check_new_topic(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> TopicConfig:
        """The configuration a new topic would have.

        Raises: ApiError.
        """
        self.check_name(name)
        if name in self._data.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")
        # metric names have _ for both, so Kafka takes no two topics that differ in this alone
        twin = next((other for other in self._data.topics if other.replace(".", "_") == name.replace(".", "_")), None)
        if twin is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} collides with topic {twin}")
        if not 1 <= partition_count <= 100_000:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to 100000 partitions, not {partition_count}")
        try:
            return topic_config(settings, self._topic_defaults)
        except ConfigurationError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def create_topic(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> TopicEntry:
        """Makes a topic; durable when this returns.

        Raises: ApiError.
        """
        self.check_new_topic(name, partition_count, settings)
        given = {key: value for key, value in settings.items() if value is not None}
        entry = TopicEntry(name, uuid.uuid4(), partition_count, given)
        self._create_partitions(entry, 0)
        self._names[entry.topic_id] = name
        return entry

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Raises the number of partitions of a topic.

        Raises: ApiError.
        """
        entry = self.topic(name)
        self._create_partitions(
            TopicEntry(name, entry.topic_id, partition_count, entry.settings), entry.partition_count
        )

    def alter_topic(self, name: str, settings: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Gives a topic other settings, which hold at once; durable when this returns.

        Raises: ApiError.
        """
        entry = self.topic(name)
        try:
            config = topic_config(settings, self._topic_defaults)
        except ConfigurationError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
        if name in INTERNAL_TOPICS and config.cleanup_policy != ("compact",):
            text = f"{name} holds the latest of every group or transaction; its cleanup.policy stays compact"
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        if validate_only:
            return
        try:
            self._data.put_topic(TopicEntry(name, entry.topic_id, entry.partition_count, dict(settings)))
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        for topic_partition in entry.partitions:
            self._partitions[topic_partition].log.config = config

    def set_topic_defaults(self, topic_defaults: TopicConfig) -> None:
        """Replaces the defaults of all topics."""
        self._topic_defaults = topic_defaults
        for entry in self._data.topics.values():
            for topic_partition in entry.partitions:
                if topic_partition in self._partitions:
                    self._partitions[topic_partition].log.config = self.config_of(entry)

    def delete_topic(self, name: str) -> tuple[TopicPartition, ...]:
        """Removes a topic and its files; returns the partitions that are gone.

        Raises: ApiError.
        """
        entry = self.topic(name)
        doomed = [self._partitions.pop(topic_partition) for topic_partition in entry.partitions]
        del self._names[entry.topic_id]

        def remove_files() -> None:
            for partition in doomed:
                partition.offline_reason = f"topic {name} was deleted"
                partition.log.delete()

        try:
            self._data.remove_topic(name, remove_files)
        except (StorageError, OSError) as error:
            # the catalogue knows that it is to be removed, and the next start does so
            self._report(f"files of the deleted topic {name} remain until the next start: {error}")
        return entry.partitions

    def delete_records(self, topic_partition: TopicPartition, before_offset: int) -> int:
        """Moves a log start; durable when this returns. Returns the log start.

        Raises: ApiError.
        """
        log = self.partition(*topic_partition).log
        offset = log.log_end_offset if before_offset == -1 else before_offset
        if not 0 <= offset <= log.log_end_offset:
            text = f"{topic_partition} ends at offset {log.log_end_offset}; records up to {offset} cannot be deleted"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if offset > log.log_start_offset:
            try:
                self._data.set_log_start_offset(topic_partition, offset)
                log.delete_records(offset)
            except (StorageError, OSError) as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return log.log_start_offset

    def config_of(self, entry: TopicEntry) -> TopicConfig:
        """A topic's configuration over the broker's defaults."""
        return topic_config(entry.settings, self._topic_defaults)

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
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _new_partition(self, entry: TopicEntry, topic_partition: TopicPartition) -> Partition:
        log = PartitionLog(
            self._data.partition_directory(topic_partition),
            topic_partition,
            self.config_of(entry),
            self.files,
            self._report,
            log_start_offset=self._data.log_start_offsets.get(topic_partition, 0),
            has_gaps=topic_partition in self._data.cleaner_offsets,
        )
        partition = self._partitions[topic_partition] = Partition(entry.topic_id, log, self._report)
        return partition
