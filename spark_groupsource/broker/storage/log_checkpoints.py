"""Offset checkpoints of the logs: recovery points, log start offsets.

They are written in another thread, in which a partition may have been deleted, and recreated with the same name.

Source: Kafka `LogManager.checkpointLogRecoveryOffsets`, `LogManager.checkpointLogStartOffsets`.
"""

from __future__ import annotations

import logging
from typing import Callable, Mapping

from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.common.coroutines import in_thread, pause
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition


class LogCheckpoints:
    """Checkpoints of `partitions`. Args: `online`, returns an online partition or raises ApiError."""

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        online: Callable[[str, int], Partition],
        data: DataDirectory,
        report: Reporter,
    ) -> None:
        self._partitions = partitions
        self._online = online
        self._data = data
        self._report = report

    async def recovery_points(self) -> bool:
        """Stores the offset below which each log is on the disk; returns False if that fails, which is reported."""
        found: dict[TopicPartition, int] = {}
        partitions = dict(self._partitions)
        for topic_partition, partition in partitions.items():
            offset = partition.log.recovery_point
            if offset:  # 0 is the default
                found[topic_partition] = offset
            await pause()
        try:
            await in_thread(
                self._data.set_recovery_points, found, lambda each: self._partitions.get(each) is partitions[each]
            )
        except StorageError as error:
            self._report(f"[broker] Storing recovery points failed: {error}", logging.ERROR)
            return False
        return True

    async def log_start_offsets(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ApiError]:
        """Raises log start offsets and deletes the segments below them; durable at the end.

        The checkpoint is written once for all partitions. An error in one log does not concern the others.

        Returns: the error of each partition that failed.
        """
        errors: dict[TopicPartition, ApiError] = {}
        raised: dict[TopicPartition, Partition] = {}
        for topic_partition, offset in offsets.items():
            try:
                partition = self._online(*topic_partition)
                if offset > partition.log.log_start_offset:
                    raised[topic_partition] = partition
            except ApiError as error:
                errors[topic_partition] = error.without_traceback()

        def is_current(topic_partition: TopicPartition) -> bool:
            return self._partitions.get(topic_partition) is raised[topic_partition]

        try:
            if raised:
                stored = {topic_partition: offsets[topic_partition] for topic_partition in raised}
                await in_thread(self._data.set_log_start_offsets, stored, is_current)
        except (StorageError, OSError) as error:
            return errors | dict.fromkeys(raised, storage_error(error))
        for topic_partition, partition in raised.items():
            if not is_current(topic_partition):
                text = f"Partition {topic_partition} was deleted."
                errors[topic_partition] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
                continue
            try:
                partition.log.delete_records(offsets[topic_partition])
                partition.transaction_index.remove_before(partition.log.segments[0].base_offset)
            except (StorageError, OSError) as error:
                errors[topic_partition] = storage_error(error)
            await pause()
        return errors


def storage_error(error: Exception) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
