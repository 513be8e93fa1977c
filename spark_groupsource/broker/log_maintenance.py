"""Periodic maintenance of all partitions: retention, expiration of producer ids, recovery points."""

from __future__ import annotations

import logging
from functools import partial
from typing import Callable, Iterable, Mapping

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.periodic_work import PeriodicWork, StartTask
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.coroutines import pause, portions
from spark_groupsource.common.timers import Timers
from spark_groupsource.errors import ApiError, StorageError
from spark_groupsource.model import TopicPartition

_PARTITIONS_PER_CHECKPOINT = 500


class LogMaintenance:
    """Deletes expired segments, removes idle producers and stores recovery points at the configured intervals.

    Args: `config` returns the effective configuration, parts of which change at run time; `on_truncate` is called with
    partitions whose log start has moved.

    Source: Kafka `LogManager.cleanupLogs`, `LogManager.checkpointLogRecoveryOffsets`,
    `ProducerStateManager.removeExpiredProducers`.
    """

    def __init__(
        self,
        partitions: LogManager,
        timers: Timers,
        clock: Clock,
        start_task: StartTask,
        config: Callable[[], BrokerConfig],
        on_truncate: Callable[[Iterable[TopicPartition]], None],
        report: Reporter,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._config = config
        every = partial(PeriodicWork, timers, clock, start_task)
        self._jobs = (
            every(self._apply_retention, lambda: config().log_retention_check_interval_ms),
            every(self._expire_producers, lambda: config().producer_id_expiration_check_interval_ms),
            every(partitions.checkpoints.recovery_points, lambda: config().log_flush_offset_checkpoint_interval_ms),
        )
        self._on_truncate = on_truncate
        self._report = report

    def start(self) -> None:
        """Starts the timers."""
        for job in self._jobs:
            job.start()

    async def _expire_producers(self) -> None:
        for partition in self._partitions:
            config = self._config()
            partition.remove_expired_producers(self._clock.timestamp_ms() - config.producer_id_expiration_ms)
            await pause()

    async def _apply_retention(self) -> None:
        partitions = tuple(self._partitions)
        for some in portions(partitions, _PARTITIONS_PER_CHECKPOINT):
            expired: dict[TopicPartition, int] = {}
            for partition in some:
                try:
                    limit = self._retention_limit(partition)
                except (ApiError, StorageError) as error:
                    self._report_failure(partition.topic_partition, error)
                else:
                    if limit is not None:
                        expired[partition.topic_partition] = limit
                await pause()
            if expired:
                await self._delete_expired(expired)

    def _retention_limit(self, partition: Partition) -> int | None:
        """Returns the new log start offset of a partition, None without expired segments. Raises: StorageError."""
        if partition.offline_reason:
            return None
        limit = partition.log.retention_start_offset(self._clock.timestamp_ms())
        if limit <= partition.log.log_start_offset:
            return None
        if limit == partition.log.log_end_offset:
            partition.log.roll()  # the active segment has expired too
        return limit

    async def _delete_expired(self, offsets: Mapping[TopicPartition, int]) -> None:
        errors = await self._partitions.checkpoints.log_start_offsets(offsets)
        for topic_partition in offsets:
            if topic_partition in errors:
                self._report_failure(topic_partition, errors[topic_partition])
            else:
                self._on_truncate([topic_partition])
            await pause()

    def _report_failure(self, topic_partition: TopicPartition, error: Exception) -> None:
        text = f"[partition={topic_partition}] Deleting expired segments failed: {error}"
        self._report(text, logging.ERROR)
