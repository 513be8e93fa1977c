"""Loader of a partition log: segments, recovery after an unclean shutdown.

Recovery reads every segment that is not below the recovery point, the offset below which everything is on the disk.
Invalid bytes from the recovery point on are unflushed writes before a power loss or the end of a killed process: they
are truncated, with everything after them. Invalid bytes below the recovery point are damage: nothing is truncated, and
they become a corrupt range. A power loss may also take the end of a segment, or a whole one, and leave later segments:
the log is truncated where the first offset is missing. Compaction leaves gaps too, but only below the recovery point.

Source: Kafka `LogLoader`, `LogSegment.recover`.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

from spark_groupsource.broker.storage.corrupt_ranges import CorruptRanges
from spark_groupsource.broker.storage.files import sync_directory
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.broker.storage.segment import LogSegment
from spark_groupsource.broker.storage.segment_scan import InvalidBatchError
from spark_groupsource.broker.storage.segment_swap import complete_swaps, segment_base_offsets
from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition


class LoadedLog(NamedTuple):
    """The segments of a log, the last one active.

    `first_recovered_offset` is the base offset of the first segment that was recovered, the log end offset after a
    clean shutdown; `unflushed_batches` are those of the active segment. A log that was never written has an empty
    segment without files.
    """

    segments: list[LogSegment]
    log_start_offset: int
    first_recovered_offset: int
    unflushed_batches: int
    has_files: bool = True


class LogLoader:
    """Loads the log in `directory`. Damage is added to `corrupt_ranges`; `report` gets one line for each change.

    Args: `new_segment` returns the segment with a base offset; `flush_in_background` flushes a completed one;
    `gaps_end` is that of `PartitionLog`.
    """

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        new_segment: Callable[[int], LogSegment],
        corrupt_ranges: CorruptRanges,
        flush_in_background: Callable[[LogSegment], None],
        report: Reporter,
        gaps_end: int = 0,
    ) -> None:
        self._gaps_end = gaps_end
        self._directory = directory
        self._topic_partition = topic_partition
        self._new_segment = new_segment
        self._corrupt_ranges = corrupt_ranges
        self._flush_in_background = flush_in_background
        self._report = report
        self._segments: list[LogSegment] = []
        self._unflushed_batches = 0

    def load(self, log_start_offset: int, recovery_point: int, is_clean: bool) -> LoadedLog:
        """Loads the segments, and recovers those not below `recovery_point` unless `is_clean`.

        Raises: StorageError when the directory or a file is missing or cannot be read.
        """
        try:
            complete_swaps(self._directory)
            base_offsets = segment_base_offsets(self._directory)
            self._remove_orphaned_indexes(base_offsets)
            if not base_offsets and recovery_point <= log_start_offset:
                # nothing was flushed: the files are created by the first append
                return LoadedLog([self._new_segment(log_start_offset)], log_start_offset, log_start_offset, 0, False)
            log_start_offset = self._load_segments(base_offsets, log_start_offset)
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be read: {error.strerror}. Check the disk.") from error
        first = max(bisect_right([segment.base_offset for segment in self._segments], recovery_point) - 1, 0)
        first_recovered_offset = self._segments[first].base_offset
        flushed = self._segments if is_clean else self._segments[:first]
        for segment, next_segment in zip(flushed, self._segments[1:]):
            segment.next_offset = next_segment.base_offset
            if segment.index.load(segment.size, segment.is_contiguous):
                segment.index.thin()
            else:
                self._recover_segment(segment)
                segment.next_offset = next_segment.base_offset
        if is_clean:
            self._load_active_segment()
        else:
            self._recover_unflushed(first, recovery_point)
        active = self._segments[-1]
        if active.next_offset < recovery_point and log_start_offset < recovery_point:
            self._corrupt_ranges.add_missing_end(active, recovery_point)
            active.is_closed = True
        if active.next_offset < log_start_offset:
            self._restart_at(log_start_offset)
        end = self._segments[-1].next_offset
        return LoadedLog(
            self._segments, log_start_offset, end if is_clean else first_recovered_offset, self._unflushed_batches
        )

    def _load_segments(self, base_offsets: Sequence[int], log_start_offset: int) -> int:
        """Creates the segments; returns the log start offset, which is higher if segments are missing."""
        if not base_offsets:
            raise StorageError(
                f"{self._directory} has no segment of {self._topic_partition}. Restore a copy or delete the topic."
            )
        for base_offset, next_base_offset in zip(base_offsets, [*base_offsets[1:], None]):
            segment = self._new_segment(base_offset)
            if next_base_offset is not None and next_base_offset <= log_start_offset:
                segment.delete()  # a crash interrupted its deletion
                continue
            segment.size = segment.path.stat().st_size
            self._segments.append(segment)
        first_offset = self._segments[0].base_offset
        if first_offset > log_start_offset:
            self._report(
                f"[partition={self._topic_partition}] {self._directory} begins at offset {first_offset}, but "
                f"the log start offset is {log_start_offset}: segments were removed. Restore them from a copy."
            )
        return max(first_offset, log_start_offset)

    def _remove_orphaned_indexes(self, base_offsets: Sequence[int]) -> None:
        """Removes indexes of segments that were deleted, or whose log a power loss has removed."""
        for path in self._directory.glob("*index"):
            if path.stem.isdigit() and int(path.stem) not in base_offsets:
                path.unlink()

    def _load_active_segment(self) -> None:
        active = self._segments[-1]
        if not active.index.load(active.size, active.is_contiguous):
            self._recover_segment(active)
            return
        batches = active.scan(active.index.position_floor(active.size), active.size)
        _, invalid = active.add_scanned(batches, is_indexed=True)
        if invalid is not None:
            self._recover_segment(active)

    def _recover_unflushed(self, first: int, recovery_point: int) -> None:
        """Recovers the segments from number `first` on; truncates the log at the first invalid bytes."""
        for number, segment in enumerate(self._segments[first:], first):
            self._unflushed_batches, is_truncated = self._recover_segment(segment, recovery_point)
            following = self._segments[number + 1 :]
            if not following:
                break
            end, expected = segment.next_offset, following[0].base_offset
            has_gap = end < expected and (segment.is_contiguous or expected > self._gaps_end)
            if is_truncated or (has_gap and end >= recovery_point):
                self._remove_unflushed(following, end)
                break
            if segment.is_contiguous and end < expected:
                self._corrupt_ranges.add_missing_end(segment, expected)
            segment.next_offset = expected

    def _remove_unflushed(self, segments: Sequence[LogSegment], log_end_offset: int) -> None:
        self._report(
            f"[partition={self._topic_partition}] Deleted segments from offset {segments[0].base_offset} on, which "
            f"follow a truncated one: {len(segments)} segments, log end offset {log_end_offset}."
        )
        self._remove_segments(segments)

    def _restart_at(self, log_start_offset: int) -> None:
        """Deletes every segment: the log start offset was stored, the records up to it were not flushed."""
        self._report(
            f"[partition={self._topic_partition}] Deleted every segment, because the log start offset "
            f"{log_start_offset} is above the log end offset {self._segments[-1].next_offset}."
        )
        self._remove_segments(tuple(self._segments))
        self._corrupt_ranges.clear()
        segment = self._new_segment(log_start_offset)
        segment.create()
        sync_directory(self._directory)
        self._segments.append(segment)

    def _remove_segments(self, segments: Sequence[LogSegment]) -> None:
        for segment in segments:
            segment.delete()
        del self._segments[len(self._segments) - len(segments) :]
        sync_directory(self._directory)

    def _recover_segment(self, segment: LogSegment, truncate_from: int | None = None) -> tuple[int, bool]:
        """Recovers a segment; see `recover_segment`. The indexes of a completed one are then flushed."""
        batches, invalid = recover_segment(segment, self._corrupt_ranges, truncate_from)
        if invalid is not None:
            self._truncate_unflushed(segment, invalid)
        if segment is self._segments[-1]:
            segment.index.write()
        else:
            segment.index.complete()
            self._flush_in_background(segment)
        return batches, invalid is not None

    def _truncate_unflushed(self, segment: LogSegment, error: InvalidBatchError) -> None:
        self._report(
            f"[partition={self._topic_partition}] Truncated unflushed bytes at the end of {segment.path} "
            f"({error.reason}): {segment.size - error.position} bytes, log end offset {segment.next_offset}."
        )
        segment.truncate(error.position)
        segment.flush()  # another power loss must not restore the truncated bytes


def recover_segment(
    segment: LogSegment, corrupt_ranges: CorruptRanges, truncate_from: int | None = None
) -> tuple[int, InvalidBatchError | None]:
    """Scans a segment, rebuilds its indexes in memory and adds its corrupt ranges to `corrupt_ranges`.

    Returns: the number of batches, and the first invalid bytes from offset `truncate_from` on, where the scan ends.

    Raises: StorageError.
    """
    segment.reset()
    expected_offset = segment.base_offset if segment.is_contiguous else None
    position, batches = 0, 0
    while position < segment.size:
        count, error = segment.add_scanned(segment.scan(position, segment.size, expected_offset))
        batches += count
        if error is None:
            break
        if truncate_from is not None and segment.next_offset >= truncate_from:
            return batches, error
        next_valid = segment.next_valid_batch(error.position, segment.next_offset)
        corrupt = corrupt_ranges.add(segment, error, segment.next_offset, next_valid)
        if next_valid is None:
            segment.next_offset = corrupt.next_offset
            segment.is_closed = True
            break
        position = next_valid.position
        expected_offset = next_valid.header.base_offset if segment.is_contiguous else None
    return batches, None
