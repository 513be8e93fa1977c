"""Partition log of transactional producers, reopened with or without a clean shutdown."""

from __future__ import annotations

import uuid

import pytest
from support.partition_logs import batch
from support.reported_lines import ReportedLines

from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition

NOW = 5_000


class LoggedTransactions:
    """A partition in a directory; `reopen` without `close` is a restart after a kill."""

    def __init__(self, directory, config: TopicConfig = TopicConfig()) -> None:
        self.directory, self.config = directory, config
        self.reports = ReportedLines()
        self.partition = self.new_partition()
        self.partition.log.create()

    def new_partition(self) -> Partition:
        log = PartitionLog(self.directory, TopicPartition("t", 0), self.config, FileCache(), self.reports)
        return Partition(uuid.uuid4(), log, self.reports)

    def reopen(self, recovery_point: int | None = None) -> None:
        self.partition = self.new_partition()
        self.partition.open(recovery_point or 0, recovery_point is not None)
        assert not self.partition.offline_reason

    def send(self, producer_id: int, sequence: int, *values: bytes, epoch: int = 0, transactional: bool = True) -> int:
        data = batch(
            *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
        )
        return self.partition.append(data, NOW).base_offset

    def end(self, producer_id: int, committed: bool, *, epoch: int = 0, coordinator_epoch: int = 0) -> int:
        marker = self.partition.append_transaction_marker(producer_id, epoch, committed, coordinator_epoch, NOW)
        return marker.base_offset

    @property
    def state(self):
        """The transaction state that a restart must recover."""
        producers = {
            number: (entry.epoch, entry.coordinator_epoch, entry.first_offset)
            for number, entry in self.partition.producers().items()
        }
        end = self.partition.log.log_end_offset
        return self.partition.last_stable_offset, self.partition.transaction_index.overlapping(0, end), producers

    def rejected(self, action, *arguments, **options) -> ErrorCode:
        with pytest.raises(ApiError) as caught:
            action(*arguments, **options)
        return caught.value.code


def write_transactions(logged: LoggedTransactions) -> None:
    """Ended, aborted and open transactions over several segments."""
    logged.send(1, 0, b"a")
    logged.send(2, 0, b"b")
    logged.end(1, False)
    logged.partition.log.roll()
    logged.send(3, 0, b"c", transactional=False)
    logged.end(2, False, epoch=1, coordinator_epoch=2)
    logged.send(4, 0, b"d")
    logged.partition.log.roll()
    logged.send(5, 0, b"e")
    logged.end(5, False)
    logged.send(5, 1, b"f")


def snapshots(logged: LoggedTransactions) -> list[int]:
    return sorted(int(path.stem) for path in logged.directory.glob("*.snapshot"))
