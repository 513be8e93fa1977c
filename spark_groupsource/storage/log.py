"""The log of one partition: segments on disk, append, read, look-up by time, recovery at start.

Knows batches as bytes with a header; what is in them is not looked at, except for a look-up by time. There is one
replica, so the high watermark is the log's end.

Recovery tells a torn tail from damage. Bytes at the very end that are no whole batch are what an interrupted write
leaves: nobody was told that they are stored, so they are cut off. A whole batch whose checksum fails, and senseless
bytes with sound batches behind them, are damage: nothing is cut, the log is served up to there and not beyond, and
nothing is appended, until `delete_records` gives up what is damaged.

Source: Kafka `LogSegment.recover`, `UnifiedLog`, `LogLoader`.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import assign_offset
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.storage.files import FileCache, sync_directory
from spark_groupsource.storage.leader_epoch_cache import LeaderEpochCache
from spark_groupsource.storage.segment import InvalidBatchError, LogSegment, StoredBatch
from spark_groupsource.storage.segment_swap import (
    CleanedSegment,
    complete_swaps,
    replacement_steps,
    segment_base_offsets,
)
from spark_groupsource.storage.topic_config import TopicConfig

Reporter = Callable[[str], None]
"""Takes one line for the operator."""


class CorruptRange(NamedTuple):
    """Offsets from `offset` up to `next_offset` (excluded) cannot be read; `position` is in the file of `segment`."""

    offset: int
    next_offset: int
    segment: LogSegment
    position: int


class TimestampAndOffset(NamedTuple):
    """What a look-up by time finds: the record's stamp (epoch ms) and its offset."""

    timestamp_ms: int
    offset: int


class PartitionLog:
    """One partition's records from `log_start_offset` (included) to `log_end_offset` (excluded)."""

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
        files: FileCache,
        report: Reporter,
        *,
        log_start_offset: int = 0,
        has_gaps: bool = False,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.config = config
        self.log_start_offset = log_start_offset
        self.has_gaps = has_gaps  # it was compacted, whatever its policy is now
        self.corrupt_ranges: list[CorruptRange] = []
        self.on_roll: Callable[[int], None] = lambda base_offset: None
        self._files = files
        self._report = report
        self.leader_epochs = LeaderEpochCache(directory)
        self._unflushed_batches = 0
        self._segments: list[LogSegment] = []
        self._bases: list[int] = []

    # --- opening and closing ---

    def create(self) -> None:
        """Makes the directory and an empty first segment.

        Raises: StorageError when records of something else stand there.
        """
        try:
            self.directory.mkdir(exist_ok=True)
            for path in self.directory.glob("*.log"):
                if path.stat().st_size:
                    raise StorageError(f"{path} is in the way of a new topic; move {self.directory} elsewhere")
        except OSError as error:
            text = f"{self.directory} cannot be created: {error.strerror}; check space and permissions"
            raise StorageError(text) from error
        segment = self._new_segment(self.log_start_offset)
        segment.create()
        self._add_segment(segment)
        self._sync_directory()

    def open(self, recovery_point: int | None = None) -> None:
        """Opens the segments; `recovery_point` is the end noted at a clean stop, None when there was none.

        Raises: StorageError when the directory or a file is missing or cannot be read.
        """
        try:
            complete_swaps(self.directory)
            bases = segment_base_offsets(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be read: {error.strerror}") from error
        if not bases:
            text = f"{self.directory} holds no segment of {self.topic_partition}"
            raise StorageError(f"{text}; restore it from a copy or delete the topic")
        for base in bases:
            segment = self._new_segment(base)
            segment.size = segment.path.stat().st_size
            self._add_segment(segment)
        if bases[0] > self.log_start_offset:
            self._report(
                f"{self.directory} begins at offset {bases[0]}, {self.topic_partition} should begin at "
                f"{self.log_start_offset}: segments were removed by something else; restore them from a copy"
            )
            self.log_start_offset = bases[0]
        for segment, following in zip(self._segments, bases[1:]):
            segment.next_offset = following
            if not segment.index.load(segment.size, segment.is_contiguous):
                self._rescan(segment, tail=False)
                segment.next_offset = following
        self._open_active(recovery_point)

    def _open_active(self, recovery_point: int | None) -> None:
        active = self._active
        if recovery_point is None or not active.index.load(active.size, active.is_contiguous):
            self._rescan(active, tail=recovery_point is None)
        else:
            try:
                for stored in active.scan(active.index.position_floor(active.size), active.size):
                    active.add_scanned(stored, has_entry=True)
            except InvalidBatchError:
                self._rescan(active, tail=False)
        if recovery_point is not None and active.next_offset < recovery_point:
            end, active.next_offset, active.is_closed = active.next_offset, recovery_point, True
            reason = "the file ends before what was stored when the broker stopped"
            missing = InvalidBatchError(active.size, reason, False)
            self._add_corrupt_range(active, missing, end, None)

    def _rescan(self, segment: LogSegment, tail: bool) -> None:
        """Walks a whole segment, makes its indexes anew, and finds out what is damaged and what is a torn tail."""
        segment.reset()
        expected = segment.base_offset if segment.is_contiguous else None
        position = 0
        while position < segment.size:
            try:
                for stored in segment.scan(position, segment.size, expected):
                    segment.add_scanned(stored)
                break
            except InvalidBatchError as error:
                behind = segment.next_valid_batch(error.position, segment.next_offset)
                if behind is None and tail and not error.is_complete:
                    self._cut_tail(segment, error)
                    break
                damage = self._add_corrupt_range(segment, error, segment.next_offset, behind)
                if behind is None:
                    segment.next_offset = damage.next_offset
                    segment.is_closed = True
                    break
                position = behind.position
                expected = behind.header.base_offset if segment.is_contiguous else None
        segment.index.write()

    def _cut_tail(self, segment: LogSegment, error: InvalidBatchError) -> None:
        self._report(
            f"{segment.path}: cut {segment.size - error.position} bytes off the end ({error.reason}); "
            f"a write was interrupted there and never acknowledged, {self.topic_partition} goes on at offset "
            f"{segment.next_offset}"
        )
        segment.truncate(error.position)

    def _add_corrupt_range(
        self, segment: LogSegment, error: InvalidBatchError, offset: int, behind: StoredBatch | None
    ) -> CorruptRange:
        if behind is not None:
            next_offset = behind.header.base_offset
            segment.index.add_search_entry(next_offset, behind.position)
        else:
            next_offset = max(segment.next_offset, segment.claimed_next_offset(error.position, offset))
        damage = CorruptRange(offset, next_offset, segment, error.position)
        self.corrupt_ranges = sorted([*self.corrupt_ranges, damage], key=lambda each: each.offset)
        self._report(
            f"{segment.path} is damaged at byte {error.position} ({error.reason}): {self.topic_partition} is served up "
            f"to offset {offset} and takes no records. Restore the file from a copy, or give the records up with "
            f"DeleteRecords up to offset {next_offset}"
        )
        return damage

    def close(self) -> None:
        """Writes the indexes and flushes the active segment.

        Raises: StorageError.
        """
        for segment in self._segments:
            segment.index.write()
        if self._segments and self._active.size:
            self._active.index.complete()
            self._active.flush()

    def delete(self) -> None:
        """Removes all files and the directory."""
        for segment in self._segments:
            segment.remove()
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()

    # --- state ---

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._active.next_offset

    high_watermark = log_end_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        return tuple(self._segments)

    @property
    def corrupt_range(self) -> CorruptRange | None:
        """The first damage that is not below the log start."""
        return next((damage for damage in self.corrupt_ranges if damage.next_offset > self.log_start_offset), None)

    @property
    def _active(self) -> LogSegment:
        return self._segments[-1]

    # --- append ---

    def append(self, batch: bytearray, header: BatchHeader, log_append_time_ms: int | None = None) -> int:
        """Gives a checked batch its offsets and writes it; returns its base offset.

        When this returns the batch is in the file: a killed process does not lose it. Call `flush_if_due` before it is
        acknowledged.

        Raises: StorageError when the log is damaged or cannot be written; nothing is then appended.
        """
        damage = self.corrupt_range
        if damage is not None:
            raise StorageError(f"{self.topic_partition} is damaged at offset {damage.offset} and takes no records")
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp if log_append_time_ms is None else log_append_time_ms
        fits = self._active.fits(len(batch), last_offset, self.config.segment_bytes)
        if not fits or self._is_over_age(max_timestamp):
            self.roll()
        assign_offset(batch, header, base_offset, self.leader_epochs.latest_epoch, log_append_time_ms)
        self._active.append(batch, last_offset, max_timestamp)
        self._unflushed_batches += 1
        return base_offset

    def flush_if_due(self) -> None:
        """Waits until everything appended is on the disk, when `flush.messages` batches are not.

        Raises: StorageError: nobody knows then what is on the disk, and the log must not be used any longer.
        """
        if self._unflushed_batches >= self.config.flush_messages:
            self._active.flush()
            self._unflushed_batches = 0

    def _is_over_age(self, timestamp_ms: int) -> bool:
        """By the stamps of records, as Kafka counts it: the clock alone rolls nothing."""
        first = self._active.first_timestamp
        return first is not None and first >= 0 and timestamp_ms - first > self.config.roll_ms

    def roll(self) -> None:
        """Closes the active segment and begins a new one.

        Raises: StorageError.
        """
        self._active.index.complete()
        self._active.flush_in_background(self._report)
        self.on_roll(self.log_end_offset)
        segment = self._new_segment(self.log_end_offset)
        segment.create()
        self._add_segment(segment)
        self._sync_directory()

    def _sync_directory(self) -> None:
        try:
            sync_directory(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be flushed: {error.strerror}; mend the disk") from error

    def _new_segment(self, base_offset: int) -> LogSegment:
        contiguous = not (self.config.is_compacted or self.has_gaps)
        return LogSegment(self.directory, base_offset, self._files, self.config.index_interval_bytes, contiguous)

    def _add_segment(self, segment: LogSegment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    # --- read ---

    def read(self, offset: int, max_bytes: int, before: int | None = None) -> memoryview:
        """Whole batches from the one holding `offset` on: at least one, else as many as `max_bytes` allows.

        Empty at the end of the log, and at `before`, an offset at which a batch begins and which is not passed. Batches
        of one segment only; the caller reads on with the next offset.

        Raises: CorruptRecordError at damage; StorageError; ValueError for an offset outside the log.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ValueError(f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}")
        damage = self.corrupt_range
        if damage is not None and offset >= damage.offset:
            raise self._corrupt(damage)
        if offset == self.log_end_offset or (before is not None and offset >= before):
            return memoryview(b"")
        if damage is not None and before is not None and before >= damage.offset:
            before = None
        for segment in self._segments[bisect_right(self._bases, offset) - 1 :]:
            if before is not None and segment.base_offset >= before:
                break
            if offset >= segment.next_offset or not segment.size:
                continue  # what compaction removed, or a segment just rolled
            end = damage.position if damage is not None and damage.segment is segment else None
            try:
                data = segment.read(max(offset, segment.base_offset), max_bytes, end, before)
                if data:
                    return data
            except InvalidBatchError as error:
                raise self._corrupt(self._corruption_found_by_read(segment, error)) from error
        return memoryview(b"")

    def bytes_from(self, offset: int) -> int:
        """About how many bytes a reader at `offset` has before it; 0 only when there is nothing."""
        if offset >= self.log_end_offset:
            return 0
        found = bisect_right(self._bases, offset) - 1
        segment = self._segments[found]
        rest = sum(later.size for later in self._segments[found + 1 :])
        return rest + max(segment.size - segment.position_at_or_before(offset), 1)

    def batches(self, start_offset: int, check: bool = True) -> Iterator[StoredBatch]:
        """Every batch from the one holding `start_offset` to the end, for replay at start.

        Raises: CorruptRecordError at damage; StorageError.
        """
        for segment in self._segments:
            if segment.next_offset <= start_offset:
                continue
            damage = self.corrupt_range
            end = damage.position if damage is not None and damage.segment is segment else segment.size
            try:
                for stored in segment.scan(segment.position_at_or_before(start_offset), end, check=check):
                    if stored.header.last_offset >= start_offset:
                        yield stored
            except InvalidBatchError as error:
                raise self._corrupt(self._corruption_found_by_read(segment, error)) from error
            if damage is not None and damage.segment is segment:
                raise self._corrupt(damage)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """The first record stamped `timestamp_ms` or later; None when there is none.

        Raises: CorruptRecordError at damage; StorageError.
        """
        for segment in self._segments:
            if segment.index.max_timestamp < timestamp_ms or segment.next_offset <= self.log_start_offset:
                continue
            found = self._record_at(segment, timestamp_ms)
            if found is not None:
                return found
        return None

    def latest_timestamp(self) -> TimestampAndOffset | None:
        """The record with the largest stamp, the first of several; None when the log is empty.

        Raises: CorruptRecordError at damage; StorageError.
        """
        live = [segment for segment in self._segments if segment.next_offset > self.log_start_offset]
        largest = max((segment.index.max_timestamp for segment in live), default=-1)
        return self.offset_for_timestamp(largest) if largest >= 0 else None

    def _record_at(self, segment: LogSegment, timestamp_ms: int) -> TimestampAndOffset | None:
        damage = self.corrupt_range
        end = damage.position if damage is not None and damage.segment is segment else segment.size
        try:
            for stored in segment.batches_from_timestamp(timestamp_ms, end):
                if stored.header.max_timestamp < timestamp_ms:
                    continue
                for record in decode_records(stored.buffer, stored.header):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                        return TimestampAndOffset(record.timestamp_ms, record.offset)
        except InvalidBatchError as error:
            raise self._corrupt(self._corruption_found_by_read(segment, error)) from error
        return None

    # --- damage found while reading ---

    def _corruption_found_by_read(self, segment: LogSegment, shown: InvalidBatchError) -> CorruptRange:
        error, offset = segment.locate_corruption(shown)
        known = next((d for d in self.corrupt_ranges if d.segment is segment and d.position == error.position), None)
        if known is not None:
            return known
        return self._add_corrupt_range(segment, error, offset, segment.next_valid_batch(error.position, offset))

    def _corrupt(self, damage: CorruptRange) -> CorruptRecordError:
        return CorruptRecordError(
            f"{damage.segment.path} is damaged at byte {damage.position}: {self.topic_partition} is readable up to "
            f"offset {damage.offset}, restore the file from a copy or delete records up to {damage.next_offset}"
        )

    # --- compaction ---

    def replace(self, group: Sequence[LogSegment], cleaned: CleanedSegment) -> None:
        """Puts a cleaned segment in the place of those it was made of.

        Raises: StorageError: it may be half done, and the log must not be used until it was opened again.
        """
        for _ in replacement_steps(self.directory, cleaned.base_offset, cleaned.end_offset, self._files.close_file):
            pass
        first = self._segments.index(group[0])
        segment = self._new_segment(cleaned.base_offset)
        segment.is_contiguous = False
        segment.size, segment.next_offset = cleaned.size, cleaned.end_offset
        if not segment.index.load(segment.size, False):
            self._rescan(segment, tail=False)
            segment.next_offset = cleaned.end_offset
        self._segments[first : first + len(group)] = [segment]
        self._bases[first : first + len(group)] = [segment.base_offset]

    # --- removal ---

    def delete_records(self, before_offset: int) -> int:
        """Moves the log start up to `before_offset` and removes segments that are wholly below; returns the log start.

        The caller keeps the new log start over a restart.
        """
        self.log_start_offset = max(self.log_start_offset, before_offset)
        while len(self._segments) > 1 and self._segments[0].next_offset <= self.log_start_offset:
            self._bases.pop(0)
            self._segments.pop(0).remove()
        return self.log_start_offset

    def retention_start_offset(self, timestamp_ms: int) -> int:
        """Up to which offset segments are too old or too many by the topic's retention.

        Compacted topics are never touched. The active segment may be among those that are, and must then be rolled.

        Raises: StorageError.
        """
        if not self.config.is_deleted_by_retention:
            return self.log_start_offset
        limit = self.log_start_offset
        excess = self.size_bytes - self.config.retention_bytes if self.config.retention_bytes >= 0 else 0
        for segment in self._segments:
            old = 0 <= self.config.retention_ms < timestamp_ms - segment.max_timestamp_ms()
            too_many = 0 <= self.config.retention_bytes and segment.size <= excess
            if not (old or too_many) or (segment is self._active and not segment.size):
                break
            excess -= segment.size
            limit = segment.next_offset
        return limit
