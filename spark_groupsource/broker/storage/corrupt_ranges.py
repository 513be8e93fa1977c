"""Corrupt ranges of one log, found by recovery and reads."""

from __future__ import annotations

import logging
from typing import Iterator, NamedTuple

from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.broker.storage.segment import LogSegment
from spark_groupsource.broker.storage.segment_scan import InvalidBatchError, StoredBatch
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition


class CorruptRange(NamedTuple):
    """Offsets from `offset` to `next_offset` (excluded) that cannot be read; `position` is in the file of `segment`."""

    offset: int
    next_offset: int
    segment: LogSegment
    position: int


class CorruptRanges:
    """Every corrupt range of a log that was found, in the order of offsets; each is reported once.

    Attributes: `ranges`, all of them; read-only.
    """

    __slots__ = ("_report", "_topic_partition", "ranges")

    def __init__(self, topic_partition: TopicPartition, report: Reporter) -> None:
        self._topic_partition = topic_partition
        self._report = report
        self.ranges: list[CorruptRange] = []

    def __len__(self) -> int:
        return len(self.ranges)

    def __iter__(self) -> Iterator[CorruptRange]:
        return iter(self.ranges)

    def clear(self) -> None:
        """Removes all ranges, when their segments are deleted."""
        self.ranges.clear()

    def add(
        self, segment: LogSegment, error: InvalidBatchError, offset: int, next_valid: StoredBatch | None
    ) -> CorruptRange:
        """Adds the range from `offset` to the batch `next_valid`, or to the end of the segment, and reports it.

        Raises: StorageError.
        """
        if next_valid is not None:
            next_offset = next_valid.header.base_offset
            segment.index.add_search_entry(next_offset, next_valid.position)
        else:
            next_offset = max(segment.next_offset, segment.claimed_next_offset(error.position, offset))
        corrupt = CorruptRange(offset, next_offset, segment, error.position)
        self.ranges = sorted([*self.ranges, corrupt], key=lambda each: each.offset)
        self._report(
            f"[partition={self._topic_partition}] {segment.path} is damaged at byte {error.position} ({error.reason}). "
            f"The partition is read-only up to offset {offset}. Restore the file from a copy, or remove the corrupt "
            f"records with DeleteRecords up to offset {next_offset}.",
            logging.ERROR,
        )
        return corrupt

    def add_missing_end(self, segment: LogSegment, flushed_offset: int) -> None:
        """Adds the range from the end of a segment to `flushed_offset`, which becomes its next offset.

        Raises: StorageError.
        """
        offset, segment.next_offset = segment.next_offset, flushed_offset
        error = InvalidBatchError(segment.size, "the file ends before the flushed offset", False)
        self.add(segment, error, offset, None)

    def found_by_read(self, segment: LogSegment, shown: InvalidBatchError) -> CorruptRange:
        """Returns the known or new range whose first batch a read found as `shown`.

        Raises: StorageError.
        """
        error, offset = segment.locate_corruption(shown)
        for known in self.ranges:
            if known.segment is segment and known.position == error.position:
                return known
        return self.add(segment, error, offset, segment.next_valid_batch(error.position, offset))

    def first_above(self, log_start_offset: int) -> CorruptRange | None:
        """Returns the first range that DeleteRecords has not removed."""
        return next((each for each in self.ranges if each.next_offset > log_start_offset), None)

    def check_appendable(self, log_start_offset: int) -> None:
        """Raises: StorageError while DeleteRecords has not removed all ranges."""
        corrupt = self.first_above(log_start_offset)
        if corrupt is not None:
            raise StorageError(
                f"Partition {self._topic_partition} is damaged at offset {corrupt.offset} and takes no records. "
                f"Restore its files from a copy, or delete records up to offset {corrupt.next_offset}."
            )

    def read_error(self, corrupt: CorruptRange) -> CorruptRecordError:
        """Returns the error of a read of a range."""
        return CorruptRecordError(
            f"{corrupt.segment.path} is damaged at byte {corrupt.position}: {self._topic_partition} is readable up to "
            f"offset {corrupt.offset}. Restore the file from a copy, or delete records up to offset "
            f"{corrupt.next_offset}."
        )
