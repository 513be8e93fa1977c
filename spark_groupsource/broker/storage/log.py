"""Log of one partition: segments, append, read, timestamp lookup, flush.

Batches are handled by their headers; only a lookup by timestamp decodes records. There is one replica, so the high
watermark is the log end offset.

A log with a corrupt range serves the offsets before it and accepts no appends until `delete_records` has removed the
range.

Source: Kafka `UnifiedLog`, `LocalLog`.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from concurrent.futures import Future
from pathlib import Path
from typing import Callable, Iterator, Sequence

from spark_groupsource.broker.storage.corrupt_ranges import CorruptRange, CorruptRanges
from spark_groupsource.broker.storage.files import FileCache, sync_directory, sync_files
from spark_groupsource.broker.storage.leader_epoch_cache import LeaderEpochCache
from spark_groupsource.broker.storage.log_loader import LogLoader, recover_segment
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.broker.storage.segment import LogSegment
from spark_groupsource.broker.storage.segment_index import TimestampAndOffset
from spark_groupsource.broker.storage.segment_scan import InvalidBatchError, StoredBatch
from spark_groupsource.broker.storage.segment_swap import CleanedSegment, replacement_steps
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.common.config_def import INT64_MAX
from spark_groupsource.common.coroutines import pause, run_parts
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import assign_offset
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.records.timestamp_lookup import first_record_at

MAX_SEGMENTS = 30_000
"""Segments of all logs above which `segment.bytes` below 1 MiB and `segment.ms` do not roll a segment."""
_MIN_BYTES_ABOVE_LIMIT = 1_048_576


class PartitionLog:
    """Records of one partition from `log_start_offset` (included) to `log_end_offset` (excluded).

    Attributes:
        active: the last segment, which takes the appends.
        has_files: whether the directory and the active segment exist: the first append creates them.
        has_new_files: whether the directory may have files that are not durable; set when a transaction index is added.
        gaps_end: the offset below which compaction may have left gaps; 0 if it never did, `INT64_MAX` if it is unknown.
        corrupt_ranges: every corrupt range that was found, in the order of offsets.
        first_recovered_offset: base offset of the first segment that `open` has recovered after an unclean shutdown,
            else the log end offset. Indexes from it on are not trusted.
        on_roll: called with the base offset of a new segment before it is created.
    """

    __slots__ = (
        "_base_offsets", "_directory", "_files", "_flushed_offset", "_flushes", "_is_deleted",
        "_is_directory_flushed", "_recovery_point", "_report", "_segments", "_unflushed_batches", "active", "config",
        "corrupt_ranges", "first_recovered_offset", "gaps_end", "has_files", "has_new_files", "leader_epochs",
        "log_start_offset", "on_roll", "topic_partition",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
        files: FileCache,
        report: Reporter,
        *,
        log_start_offset: int = 0,
        gaps_end: int = 0,
    ) -> None:
        self.topic_partition = topic_partition
        self._directory = str(directory)  # as the path of a segment
        self.config = config
        self.log_start_offset = log_start_offset
        self.gaps_end = gaps_end
        self.corrupt_ranges = CorruptRanges(topic_partition, report)
        self.on_roll: Callable[[int], None] = lambda base_offset: None
        self.leader_epochs = LeaderEpochCache(self._directory)
        self._files = files
        self._report = report
        self.first_recovered_offset = 0
        self._recovery_point = 0
        self._flushed_offset = 0
        self._flushes: list[tuple[int, Future[None]]] = []  # base offset of a completed segment, its flush
        self._unflushed_batches = 0
        self.has_files = False
        self._is_directory_flushed = False  # whether the directory itself is durable
        self.has_new_files = True
        self._segments: list[LogSegment] = []
        self.active: LogSegment  # set by `create` and `open`
        self._is_deleted = False
        self._base_offsets: list[int] = []

    # --- opening and closing ---

    def create(self) -> None:
        """Starts an empty log, whose directory and files are created by the first append.

        Raises: StorageError when the directory exists and has records.
        """
        if os.path.lexists(self._directory):
            for path in self.directory.glob("*.log"):
                if path.stat().st_size:
                    raise StorageError(f"{path} is in the way of a new topic. Move {self.directory} elsewhere.")
        self._add_segment(self._new_segment(self.log_start_offset))

    def _create_files(self) -> None:
        try:
            self.directory.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self.directory} cannot be created: {error.strerror}. Check space and permissions."
            ) from error
        self.active.create()
        self.has_files = True

    def open(self, recovery_point: int = 0, is_clean: bool = False) -> None:
        """Opens the segments, and recovers those not below `recovery_point` unless `is_clean`, after a clean shutdown.

        The recovery point of a clean shutdown is the log end offset.

        Raises: StorageError when the directory or a file is missing or cannot be read.
        """
        self._recovery_point = self._flushed_offset = recovery_point
        loader = LogLoader(
            self.directory,
            self.topic_partition,
            self._new_segment,
            self.corrupt_ranges,
            self._flush_in_background,
            self._report,
            self.gaps_end,
        )
        loaded = loader.load(self.log_start_offset, recovery_point, is_clean)
        self.log_start_offset = loaded.log_start_offset
        self.first_recovered_offset = loaded.first_recovered_offset
        self._unflushed_batches = loaded.unflushed_batches
        self.has_files = loaded.has_files
        self._is_directory_flushed = is_clean and self.has_files
        self.has_new_files = not self._is_directory_flushed
        for segment in loaded.segments:
            self._add_segment(segment)
        if not is_clean:
            self.leader_epochs.truncate_from(self.log_end_offset)
            self.flush_if_due()
        if self.log_start_offset:
            # the log start offset was stored, but a crash may have prevented this
            self.leader_epochs.truncate_before(self.log_start_offset)

    def close(self) -> None:
        """Writes the indexes; everything is on the disk on return.

        Raises: StorageError.
        """
        for segment in self._segments:
            segment.index.write()
        if self.active.size:  # else its empty files are on the disk since their creation
            self.active.index.complete()
            sync_files(self.active.paths)
        for _, flush in self._flushes:
            flush.result()
        self._flushes.clear()
        if self.has_files:
            self.leader_epochs.store()
            self._flush_directory()
        self._flushed_offset = self.log_end_offset

    def close_files(self) -> None:
        """Closes every file without writing anything, before the directory is deleted."""
        self._is_deleted = True
        for segment in self._segments:
            self._files.close_file(segment.path)
        self._files.segment_count -= len(self._segments)

    # --- state ---

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.active.next_offset

    high_watermark = log_end_offset

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on the disk, with the indexes of completed segments."""
        self._flushes = [each for each in self._flushes if not each[1].done() or each[1].exception() is not None]
        if self._flushes:
            self._recovery_point = max(self._recovery_point, self._flushes[0][0])
        elif self._segments:
            self._recovery_point = max(self._flushed_offset, self.active.base_offset)
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        return tuple(self._segments)

    @property
    def corrupt_range(self) -> CorruptRange | None:
        """The first corrupt range above the log start offset."""
        return self.corrupt_ranges.first_above(self.log_start_offset)

    def _corruption_in(self, segment: LogSegment) -> CorruptRange | None:
        """Returns the first corrupt range if it is in `segment`."""
        corrupt = self.corrupt_range
        return corrupt if corrupt is not None and corrupt.segment is segment else None

    # --- append ---

    def append(
        self, batch: bytearray, header: BatchHeader, now_ms: int, log_append_time_ms: int | None = None
    ) -> int:
        """Assigns offsets to a validated batch and writes it at the time `now_ms`; returns its base offset.

        On return the batch is in the file and survives a killed process. Call `flush_if_due` before it is acknowledged.

        Raises: StorageError when the log is corrupt or cannot be written; nothing is then appended.
        """
        if self.corrupt_ranges.ranges:
            self.corrupt_ranges.check_appendable(self.log_start_offset)
        base_offset = self.active.next_offset
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp if log_append_time_ms is None else log_append_time_ms
        if self._should_roll(len(batch), last_offset, max_timestamp, now_ms):
            self.roll()
        if not self.has_files:
            self._create_files()
        epochs = self.leader_epochs
        if not epochs.is_stored:
            epochs.store()
        assign_offset(batch, header, base_offset, epochs.latest_epoch, log_append_time_ms)
        self.active.append(batch, last_offset, max_timestamp, now_ms)
        self._unflushed_batches += 1
        return base_offset

    def flush_if_due(self) -> None:
        """Flushes the active segment when `flush.messages` batches were appended since the last flush.

        Raises: StorageError: the content of the disk is then unknown, and the log must not be used any longer.
        """
        if self._unflushed_batches >= self.config.flush_messages:
            self._flush_active()

    def _flush_active(self) -> None:
        self.active.flush()
        self._flush_directory()
        self._unflushed_batches = 0
        self._flushed_offset = self.log_end_offset

    def _flush_directory(self) -> None:
        """Makes new files durable, and the directory."""
        if self.has_new_files:
            sync_directory(self.directory)
            self.has_new_files = False
        if not self._is_directory_flushed:
            sync_directory(self.directory.parent)
            self._is_directory_flushed = True

    def _flush_in_background(self, segment: LogSegment) -> None:
        """Flushes a completed segment in another thread, so that appends to the next one do not wait."""

        def flush() -> None:
            try:
                sync_files((*segment.paths, self._snapshot_path(segment.next_offset)))
                sync_directory(self.directory)
                if not self._is_directory_flushed:
                    sync_directory(self.directory.parent)
                    self._is_directory_flushed = True
            except StorageError as error:
                if self._is_deleted:
                    return  # the directory is renamed after `close_files`
                text = f"[partition={self.topic_partition}] A completed segment was not flushed: {error}"
                self._report(text, logging.ERROR)
                raise

        self._flushes.append((segment.base_offset, self._files.run_in_background(flush)))

    def _should_roll(self, batch_bytes: int, last_offset: int, timestamp_ms: int, now_ms: int) -> bool:
        """Whether a new segment is needed for a batch. Above `MAX_SEGMENTS`, segments have Kafka's smallest size."""
        min_bytes = _MIN_BYTES_ABOVE_LIMIT if self._files.segment_count >= MAX_SEGMENTS else 0
        active, config = self.active, self.config
        if not active.fits(batch_bytes, last_offset, max(config.segment_bytes, min_bytes)):
            return True
        return active.size >= min_bytes and active.exceeds_roll_time(timestamp_ms, now_ms, config.roll_ms)

    def roll(self) -> None:
        """Completes the active segment and creates a new one, unless it is empty.

        Raises: StorageError.
        """
        if self.active.base_offset == self.log_end_offset:
            return  # as in Kafka, one segment has a base offset
        self.active.index.complete()
        self.on_roll(self.log_end_offset)
        if self.config.flush_messages < INT64_MAX or self._flushed_offset == self.log_end_offset:
            # the stored recovery point may be the end of this segment, whose indexes are then not rebuilt
            sync_files(self.active.paths)
            self._flush_directory()
            self._unflushed_batches, self._flushed_offset = 0, self.log_end_offset
        else:
            self._flush_in_background(self.active)
        segment = self._new_segment(self.log_end_offset)
        segment.create()
        self.has_new_files = True
        self._add_segment(segment)

    def _snapshot_path(self, offset: int) -> Path:
        """Returns the file of the producer state before `offset`."""
        return self.directory / f"{offset:020d}.snapshot"

    def _new_segment(self, base_offset: int) -> LogSegment:
        is_contiguous = not (self.config.is_compacted or self.gaps_end)
        return LogSegment(self._directory, base_offset, self._files, self.config.index_interval_bytes, is_contiguous)

    def _add_segment(self, segment: LogSegment) -> None:
        self._segments.append(segment)
        self.active = segment
        self._base_offsets.append(segment.base_offset)
        self._files.segment_count += 1

    # --- read ---

    def read(self, offset: int, max_bytes: int, before: int | None = None) -> memoryview:
        """Returns complete batches from the one with `offset` on: at least one, more up to `max_bytes`, of one segment
        only.

        Empty at the log end offset, and at or above the offset `before`, which is the base offset of a batch. The
        caller continues with the next offset.

        Raises: CorruptRecordError at a corrupt range; StorageError; ValueError for an offset outside the log.
        """
        end_offset = self.active.next_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise ValueError(f"offset {offset} is outside {self.log_start_offset} to {end_offset}")
        corrupt = self.corrupt_range if self.corrupt_ranges.ranges else None
        if corrupt is not None and offset >= corrupt.offset:
            raise self.corrupt_ranges.read_error(corrupt)
        if offset == end_offset or (before is not None and offset >= before):
            return memoryview(b"")
        if corrupt is not None and before is not None and before >= corrupt.offset:
            before = None  # the search for `before` would read the corrupt range
        for segment in self._segments[bisect_right(self._base_offsets, offset) - 1 :]:
            if before is not None and segment.base_offset >= before:
                break
            if offset >= segment.next_offset or not segment.size:
                continue  # emptied by compaction, or just rolled
            end = corrupt.position if corrupt is not None and corrupt.segment is segment else None
            try:
                data = segment.read(max(offset, segment.base_offset), max_bytes, end, before)
                if data:
                    return data
            except InvalidBatchError as error:
                raise self._read_error(segment, error) from error
        return memoryview(b"")

    def batches(self, start_offset: int, of_producers: bool = False) -> Iterator[StoredBatch]:
        """Yields every batch, or those of producers with an id, from the one with `start_offset` to the end.

        Raises: CorruptRecordError at a corrupt range; StorageError.
        """
        for segment in self._segments:
            if segment.next_offset <= start_offset:
                continue
            corrupt = self._corruption_in(segment)
            end = segment.size if corrupt is None else corrupt.position
            try:
                yield from segment.batches(start_offset, end, of_producers)
            except InvalidBatchError as error:
                raise self._read_error(segment, error) from error
            if corrupt is not None:
                raise self.corrupt_ranges.read_error(corrupt)

    async def find_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """Returns the first record with a timestamp of at least `timestamp_ms`; None without one.

        Raises: CorruptRecordError at a corrupt range; StorageError, also if retention or compaction has removed the
            segment during a pause.
        """
        for segment in tuple(self._segments):
            if segment.index.max_timestamp < timestamp_ms or segment.next_offset <= self.log_start_offset:
                continue
            found = await self._record_at_or_after(segment, timestamp_ms, self.log_start_offset)
            if found is not None:
                return found
        return None

    async def find_latest_timestamp(self) -> TimestampAndOffset | None:
        """Returns the first record with the largest timestamp; None without records.

        Like Kafka's, it may be below the log start offset while its segment is not removed
        (`UnifiedLog.fetchOffsetByTimestamp`).

        Raises: as `find_timestamp`.
        """
        newest = max(self._segments, key=lambda segment: segment.index.max_timestamp, default=None)
        if newest is None:
            return None
        return await self._record_at_or_after(newest, newest.index.max_timestamp, newest.base_offset)

    async def _record_at_or_after(
        self, segment: LogSegment, timestamp_ms: int, min_offset: int
    ) -> TimestampAndOffset | None:
        corrupt = self._corruption_in(segment)
        end = segment.size if corrupt is None else corrupt.position
        try:
            for stored in segment.batches_from_timestamp(timestamp_ms, end):
                if stored.header.max_timestamp >= timestamp_ms:
                    parts = first_record_at(stored.buffer, stored.header, timestamp_ms, min_offset)
                    found = await run_parts(parts)
                    if found is not None:
                        return TimestampAndOffset(*found)
                await pause()
        except InvalidBatchError as error:
            if segment not in self._segments:
                text = f"{segment.path} was removed while it was searched. Retry the request."
                raise StorageError(text) from error
            raise self._read_error(segment, error) from error
        return None

    def _read_error(self, segment: LogSegment, error: InvalidBatchError) -> CorruptRecordError:
        return self.corrupt_ranges.read_error(self.corrupt_ranges.found_by_read(segment, error))

    # --- compaction and deletion ---

    def replace_segments(self, segments: Sequence[LogSegment], cleaned: CleanedSegment) -> None:
        """Replaces adjacent segments by the cleaned segment that was written from them.

        Raises: StorageError: the replacement may be half done, and the log must not be used until it is opened again.
        """
        for _ in replacement_steps(self.directory, cleaned.base_offset, cleaned.end_offset, self._files.close_file):
            pass
        first = self._segments.index(segments[0])
        segment = self._new_segment(cleaned.base_offset)
        segment.is_contiguous = False
        segment.size, segment.next_offset = cleaned.size, cleaned.end_offset
        if segment.index.load(segment.size, False):
            segment.index.thin()
        else:
            recover_segment(segment, self.corrupt_ranges)
            segment.index.complete()
            self._flush_in_background(segment)
            segment.next_offset = cleaned.end_offset
        self._segments[first : first + len(segments)] = [segment]
        self.active = self._segments[-1]
        self._base_offsets[first : first + len(segments)] = [segment.base_offset]
        self._files.segment_count -= len(segments) - 1

    def delete_records(self, before_offset: int) -> int:
        """Raises the log start offset to `before_offset` and deletes segments below it; returns the log start offset.

        The caller stores the new log start offset.

        Raises: StorageError when the leader epochs cannot be stored.
        """
        self.log_start_offset = max(self.log_start_offset, before_offset)
        while len(self._segments) > 1 and self._segments[0].next_offset <= self.log_start_offset:
            self._base_offsets.pop(0)
            self._segments.pop(0).delete()
            self._files.segment_count -= 1
        self.leader_epochs.truncate_before(self.log_start_offset)
        return self.log_start_offset

    def retention_start_offset(self, timestamp_ms: int) -> int:
        """Returns the log start offset that `retention.ms` and `retention.bytes` require at `timestamp_ms` (epoch ms).

        It is the log end offset if the active segment is to be deleted too; the caller must then roll it.

        Raises: StorageError.
        """
        if not self.config.is_deleted_by_retention:
            return self.log_start_offset
        start_offset = self.log_start_offset
        excess = self.size_bytes - self.config.retention_bytes if self.config.retention_bytes >= 0 else 0
        for segment in self._segments:
            if segment is self.active and not segment.size:
                break
            is_too_old = 0 <= self.config.retention_ms < timestamp_ms - segment.max_timestamp_ms()
            is_excess = 0 <= self.config.retention_bytes and segment.size <= excess
            if not (is_too_old or is_excess):
                break
            excess -= segment.size
            start_offset = segment.next_offset
        return start_offset
