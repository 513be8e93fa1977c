"""Topics and partitions of one broker: create, find, open, alter, delete.

Errors that a client caused are raised as `ApiError`.

Source: Kafka `LogManager`, `ReplicationControlManager`.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import Callable, Container, Iterable, Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.broker.storage.catalog import COORDINATOR_TOPICS, TopicEntry
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.log_checkpoints import LogCheckpoints, storage_error
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.producer_state import ProducerCount
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.broker.storage.topic_config import TopicConfig, check_topic_config, topic_config
from spark_groupsource.common.coroutines import in_thread, pause, run_at_once
from spark_groupsource.errors import ApiError, ConfigurationError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition

MAX_SETTINGS_BYTES = 1_048_576
"""Approximate memory of the settings of all topics. Kafka has no such limit."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicPlan(NamedTuple):
    """A topic to be created: its name, partitions and settings."""

    name: str
    partition_count: int
    settings: Mapping[str, str | None]


class LogManager:
    """Every partition of this broker. Called by the broker's event loop only."""

    def __init__(self, data: DataDirectory, topic_defaults: TopicConfig, report: Reporter) -> None:
        self._data = data
        self._topic_defaults = topic_defaults
        self._report = report
        self.files = FileCache()
        self._partitions: dict[TopicPartition, Partition] = {}
        self.checkpoints = LogCheckpoints(self._partitions, self.partition, data, report)
        self._topics: dict[str, TopicEntry] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._metric_names: dict[str, str] = {}
        self._creating = 0  # partitions
        self._settings_bytes = 0
        self.producer_count = ProducerCount()
        self._changing: set[str] = set()  # topics whose partitions are being created or deleted

    def open_all(self, expired_until_ms: int | None = None) -> None:
        """Opens the log of every partition of the catalog; `expired_until_ms` is that of `Partition.open`."""
        for entry in self._data.topics.values():
            self._add_topic(entry)
            config = self.config_of(entry)
            for topic_partition in entry.partitions:
                partition = self._partitions[topic_partition] = self._new_partition(entry, topic_partition, config)
                recovery_point = self._data.recovery_points.get(topic_partition, 0)
                partition.open(recovery_point, self._data.had_clean_shutdown, expired_until_ms)

    def last_leader_epoch(self) -> int:
        """Returns the largest leader epoch of any log."""
        return max((partition.last_leader_epoch() for partition in self), default=0)

    def close_all(self) -> bool:
        """Closes every log and stores the recovery points; returns whether there was no error."""
        is_clean = True
        for topic_partition, partition in self._partitions.items():
            try:
                partition.close()
                is_clean &= not partition.offline_reason
            except StorageError as error:
                self._report(f"[partition={topic_partition}] The log was not closed cleanly: {error}", logging.ERROR)
                is_clean = False
        self.files.close()
        return run_at_once(self.checkpoints.recovery_points()) and is_clean

    # --- lookup ---

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics whose partitions can be used."""
        return self._topics

    def topic_name(self, topic_id: uuid.UUID) -> str:
        """Returns the name of a topic id.

        Raises: ApiError for an unknown id.
        """
        name = self._names.get(topic_id)
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"Unknown topic id {topic_id}.")
        return name

    def topic(self, name: str) -> TopicEntry:
        """Returns the catalog entry of a topic.

        Raises: ApiError for an unknown topic.
        """
        entry = self._topics.get(name)
        if entry is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unknown topic {name}.")
        return entry

    def partition(self, name: str, number: int) -> Partition:
        """Returns an online partition.

        Raises: ApiError for an unknown or offline partition.
        """
        # a tuple is equal to a TopicPartition, which takes longer to create than the lookup
        partition: Partition | None = self._partitions.get((name, number))  # type: ignore[call-overload]
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unknown partition {number} of topic {name}.")
        if partition.offline_reason:
            partition.check_online()
        return partition

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Returns a partition, also an offline one, if it exists."""
        return self._partitions.get(topic_partition)

    def offline_reason(self, topic_partition: TopicPartition) -> str:
        """Why a partition is offline, empty when it is online."""
        return self._partitions[topic_partition].offline_reason

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        """Returns the number of partitions, also of those that are being created."""
        return len(self._partitions) + self._creating

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._partitions

    def contains_all(self, name: str, numbers: Iterable[int]) -> bool:
        """Returns whether all of these partitions of a topic exist, with one call for those of a commit."""
        known: Container[object] = self._partitions
        for number in numbers:
            if (name, number) not in known:  # a tuple is equal to a TopicPartition
                return False
        return True

    # --- topics ---

    def check_name(self, name: str) -> None:
        """Raises: ApiError for an illegal topic name."""
        if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
            text = f"Topic name {name!r} is illegal. Use 1 to 249 characters of a-z A-Z 0-9 . _ -, not . or .. alone."
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)

    def check_new_topic(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> TopicConfig:
        """Validates a new topic and returns its configuration, without creating it.

        Raises: ApiError.
        """
        self.check_name(name)
        if name in self._topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name} already exists.")
        self._check_not_changing(name)
        # Kafka rejects a name that differs only in . and _ from another, because its metric names replace . by _
        other = self._metric_names.get(_metric_name(name))
        if other is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic {name} collides with existing topic {other}.")
        config = self.check_settings(settings)
        if not 1 <= partition_count <= 100_000:
            text = f"A topic must have 1 to 100000 partitions, got {partition_count}."
            raise ApiError(ErrorCode.INVALID_PARTITIONS, text)
        return config

    def check_settings(self, settings: Mapping[str, str | None]) -> TopicConfig:
        """Returns the configuration of a topic with these settings.

        Raises: ApiError with INVALID_CONFIG.
        """
        try:
            config = topic_config(settings, self._topic_defaults)
            check_topic_config(config)
            return config
        except ConfigurationError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error

    async def create_topics(
        self, new: Sequence[TopicPlan], check: Callable[[TopicPlan], None] = lambda topic: None
    ) -> list[TopicEntry | ApiError]:
        """Creates topics, which are unknown until the end; durable then, with one write for all of them.

        `check` is called with each topic before its partitions are counted, and may raise ApiError.

        Returns: the topic or the error of each.
        """
        results: list[TopicEntry | ApiError] = []
        reserved: list[TopicEntry] = []
        try:
            for topic in new:
                try:
                    check(topic)
                    reserved.append(self._reserve(topic))
                    results.append(reserved[-1])
                except ApiError as error:
                    results.append(error.without_traceback())
                await pause()
            failed = await self._create_partitions([(entry, 0) for entry in reserved])
        finally:
            for entry in reserved:
                self._creating -= entry.partition_count
                self._settings_bytes -= _settings_bytes(entry)
                if entry.name not in self._topics:
                    self._metric_names.pop(_metric_name(entry.name), None)
                self._changing.discard(entry.name)
        return [failed.get(each.name, each) if isinstance(each, TopicEntry) else each for each in results]

    def _reserve(self, topic: TopicPlan) -> TopicEntry:
        """Returns the entry of a new topic, whose name cannot be used until it is released. Raises: ApiError."""
        self.check_new_topic(topic.name, topic.partition_count, topic.settings)
        explicit = {key: value for key, value in topic.settings.items() if value is not None}
        entry = TopicEntry(topic.name, uuid.uuid4(), topic.partition_count, explicit)
        self._check_settings_bytes(_settings_bytes(entry))
        self._creating += entry.partition_count
        self._settings_bytes += _settings_bytes(entry)
        self._metric_names[_metric_name(entry.name)] = entry.name
        self._changing.add(entry.name)
        return entry

    async def add_partitions(self, name: str, partition_count: int) -> TopicEntry:
        """Adds partitions to a topic, up to `partition_count`; durable at the end.

        Raises: ApiError.
        """
        entry = self.topic(name)
        self._check_not_changing(name)
        grown = TopicEntry(name, entry.topic_id, partition_count, entry.settings)
        added = partition_count - entry.partition_count
        self._changing.add(name)
        self._creating += added
        try:
            failed = await self._create_partitions([(grown, entry.partition_count)])
        finally:
            self._changing.discard(name)
            self._creating -= added
        if name in failed:
            raise failed[name]
        return grown

    async def alter_topic(
        self, name: str, settings: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replaces the settings of a topic, which apply at the end; durable then.

        Raises: ApiError.
        """
        entry = self.topic(name)
        self._check_not_changing(name)
        config = self.check_settings(settings)
        if name in COORDINATOR_TOPICS and config.cleanup_policy != ("compact",):
            text = f"cleanup.policy of internal topic {name} must be compact."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        altered = TopicEntry(name, entry.topic_id, entry.partition_count, dict(settings))
        self._check_settings_bytes(_settings_bytes(altered) - _settings_bytes(entry))
        if validate_only:
            return
        self._changing.add(name)
        try:
            await in_thread(self._data.put_topics, altered)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        finally:
            self._changing.discard(name)
        self._add_topic(altered)
        for topic_partition in entry.partitions:
            self._partitions[topic_partition].log.config = config

    async def set_topic_defaults(self, topic_defaults: TopicConfig) -> None:
        """Replaces the defaults of all topics."""
        self._topic_defaults = topic_defaults
        for entry in tuple(self._topics.values()):
            config = self.config_of(entry)
            for topic_partition in entry.partitions if self._topics.get(entry.name) is entry else ():
                self._partitions[topic_partition].log.config = config
            await pause()

    def _check_settings_bytes(self, added: int) -> None:
        if added > 0 and self._settings_bytes + added > MAX_SETTINGS_BYTES:
            text = (
                f"The settings of all topics take {self._settings_bytes:,} bytes, the limit is {MAX_SETTINGS_BYTES:,}. "
                "Remove settings, or set the defaults of the broker."
            )
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)

    async def remove_topic(self, name: str) -> tuple[TopicPartition, ...]:
        """Removes a topic, durable at the end, and returns its partitions; must be followed by `delete_files`.

        Until then its name cannot be used again.

        Raises: ApiError.
        """
        entry = self.topic(name)
        self._check_not_changing(name)
        self._changing.add(name)
        try:
            await in_thread(self._data.remove_topic, name)
        except StorageError as error:
            self._changing.discard(name)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        del self._topics[name]
        self._settings_bytes -= _settings_bytes(entry)
        del self._names[entry.topic_id]
        del self._metric_names[_metric_name(name)]
        removed = [self._partitions.pop(topic_partition) for topic_partition in entry.partitions]
        for partition in removed:
            partition.delete()
            await pause()
        return entry.partitions

    async def delete_files(self, name: str) -> None:
        """Deletes the files of the removed topic `name`, whose name can be used again when they are renamed."""
        self._changing.add(name)
        try:
            await self._data.delete_files()
        except StorageError as error:
            self._report(f"[topic={name}] Files of the deleted topic remain until the next start: {error}")
        finally:
            self._changing.discard(name)

    def new_log_start_offset(self, topic_partition: TopicPartition, before_offset: int) -> int:
        """Returns the log start offset after deletion of the records before `before_offset` (-1: high watermark).

        Raises: ApiError.
        """
        log = self.partition(*topic_partition).log
        offset = log.log_end_offset if before_offset == -1 else before_offset
        if not 0 <= offset <= log.log_end_offset:
            text = f"Offset {offset} of {topic_partition} is out of range: the log end offset is {log.log_end_offset}."
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        return max(offset, log.log_start_offset)

    def config_of(self, entry: TopicEntry) -> TopicConfig:
        """Returns the configuration of a topic: its settings over the broker's defaults."""
        return topic_config(entry.settings, self._topic_defaults)

    def _check_not_changing(self, name: str) -> None:
        if name in self._changing:
            text = f"Partitions of topic {name} are being created or deleted. Retry when that has ended."
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)

    async def _create_partitions(self, grown: Sequence[tuple[TopicEntry, int]]) -> dict[str, ApiError]:
        """Creates partitions of topics that nothing else changes, from the first new number of each on.

        Returns: the error of each topic that failed.
        """
        failed: dict[str, ApiError] = {}
        created: dict[str, list[Partition]] = {}
        for entry, first in grown:
            try:
                created[entry.name] = await self._new_partitions(entry, first)
            except StorageError as error:
                failed[entry.name] = self._creation_error(entry.name, error)
            await pause()
        stored = [entry for entry, _ in grown if entry.name in created]
        try:
            if stored:
                await in_thread(self._data.put_topics, *stored)
        except StorageError as error:
            return failed | {entry.name: self._creation_error(entry.name, error) for entry in stored}
        for entry in stored:
            self._add_topic(entry)
            self._partitions.update((partition.topic_partition, partition) for partition in created[entry.name])
        return failed

    def _creation_error(self, name: str, error: StorageError) -> ApiError:
        self._report(f"[topic={name}] Partitions were not created: {error}", logging.ERROR)
        return storage_error(error)

    async def _new_partitions(self, entry: TopicEntry, first: int) -> list[Partition]:
        """Raises: StorageError."""
        new, config = entry.partitions[first:], self.config_of(entry)
        await self._data.prepare_new(new)
        created: list[Partition] = []
        for topic_partition in new:
            partition = self._new_partition(entry, topic_partition, config)
            partition.log.create()
            created.append(partition)
            await pause()
        return created

    def _add_topic(self, entry: TopicEntry) -> None:
        replaced = self._topics.get(entry.name)
        self._settings_bytes += _settings_bytes(entry) - (0 if replaced is None else _settings_bytes(replaced))
        self._topics[entry.name] = entry
        self._names[entry.topic_id] = entry.name
        self._metric_names[_metric_name(entry.name)] = entry.name

    def _new_partition(self, entry: TopicEntry, topic_partition: TopicPartition, config: TopicConfig) -> Partition:
        log = PartitionLog(
            self._data.partition_directory(topic_partition),
            topic_partition,
            config,
            self.files,
            self._report,
            log_start_offset=self._data.log_start_offsets.get(topic_partition, 0),
            gaps_end=self._data.gaps_end(topic_partition, config.is_compacted),
        )
        return Partition(entry.topic_id, log, self._report, self.producer_count)


def _settings_bytes(entry: TopicEntry) -> int:
    """Returns the approximate memory of the settings of a topic; an entry of a list takes more than its text."""
    return sum(len(name) + len(value) + 64 * value.count(",") for name, value in entry.settings.items())


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")
