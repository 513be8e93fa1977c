"""Log cleaner: compaction in time slices of the broker's event loop.

Each pass compacts the log with the highest dirty ratio. It builds a map from each key of the uncompacted part
to its last offset, then rewrites the segments below the active one without superseded records and replaces them.
Offsets do not change. These batches are retained, if necessary without records: the last batch of each idempotent
producer, and the last batch of the compacted part, so that a consumer gets past it. The last marker of a producer
without batches of its epoch is retained, because it fences the earlier epochs.

Compaction ends at the last stable offset and below the recovery point, which is stored before the first replacement: a
power loss cannot take records that have superseded others, and a missing offset above the stored recovery point is
never one that compaction removed. Aborted records are removed; tombstones and transaction markers are removed
`delete.retention.ms` after the pass that could first have removed them. Batches whose records cannot be decoded are
retained and supersede nothing.

Source: Kafka `LogCleaner`, `LogCleanerManager`, `Cleaner.doClean`; KIP-58 (min lag), KIP-354 (max lag), KIP-534
(tombstones and markers).
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from itertools import compress, repeat
from typing import Any, Callable, Coroutine, Generator, Iterable, Mapping, NamedTuple, Optional, Sequence, TypeVar

from spark_groupsource.broker.storage.cleaned_transaction_metadata import CleanedTransactionMetadata
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.broker.storage.segment import LogSegment
from spark_groupsource.broker.storage.segment_scan import MAX_RELATIVE_OFFSET, InvalidBatchError, StoredBatch
from spark_groupsource.broker.storage.segment_swap import CleanedSegment
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.coroutines import run_parts
from spark_groupsource.common.timers import Timers
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compaction import (
    KeyedRecords,
    KeyedSlice,
    RetainedBatch,
    delete_horizon_ms,
    empty_batch,
)
from spark_groupsource.records.header import BatchHeader, iter_batches

_RETRY_BACKOFF_MS = 300_000
# about 100 bytes each; the next pass compacts the rest
_MAX_KEYS = 1_000_000
_MAX_PLAIN_KEY_BYTES = 32
# more bytes are compressed in the flush thread
_INLINE_BYTES = 256 * 1024

Result = TypeVar("Result")
Parts = Generator[Optional["Future[None]"], None, Result]
"""Yields between short parts: the future of work in the flush thread, or None."""


class OffsetMap:
    """Key -> last offset. Long keys are stored as a digest of 128 bits.

    Source: Kafka `SkimpyOffsetMap`.
    """

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._offsets: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._max_keys

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_digest(key)] = offset

    def get(self, key: bytes) -> int:
        """The last offset of a key, -1 without one."""
        return self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    # as in Kafka, the map has digests of keys: among a million keys a collision has a probability of 10**-27
    return key if len(key) <= _MAX_PLAIN_KEY_BYTES else b"#" * 17 + hashlib.blake2b(key, digest_size=16).digest()


class LogToClean(NamedTuple):
    """A log with uncompacted records: the segments of a pass, and the ratio of bytes from `first_dirty_offset` on."""

    segments: tuple[LogSegment, ...]
    first_dirty_offset: int
    dirty_ratio: float
    is_overdue: bool

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset


def log_to_clean(
    log: PartitionLog, cleaned_offset: int, timestamp_ms: int, last_stable_offset: int | None = None
) -> LogToClean | None:
    """The part of a log that can be compacted; None without one. The log is compacted up to `cleaned_offset`.

    The active segment is never compacted, nor records that are younger than `min.compaction.lag.ms`, not below
    `last_stable_offset`, or not flushed yet.
    """
    if not log.config.is_compacted or log.corrupt_range is not None:
        return None
    if cleaned_offset > log.segments[-1].base_offset:
        cleaned_offset = 0  # a power loss has truncated the log since
    first_dirty = max(cleaned_offset, log.log_start_offset)
    segments: list[LogSegment] = []
    lag_ms = log.config.min_compaction_lag_ms
    recovery_point = log.recovery_point
    for segment in log.segments[:-1]:
        if segment.next_offset > recovery_point:
            break
        if segment.next_offset > first_dirty and 0 < lag_ms and segment.index.max_timestamp > timestamp_ms - lag_ms:
            break
        if last_stable_offset is not None and segment.next_offset > last_stable_offset:
            break
        segments.append(segment)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    stamps = [stamp for segment in dirty if (stamp := segment.first_timestamp) is not None and stamp > 0]
    is_overdue = bool(stamps) and min(stamps) < timestamp_ms - log.config.max_compaction_lag_ms
    ratio = dirty_bytes / sum(segment.size for segment in segments)
    return LogToClean(tuple(segments), first_dirty, ratio, is_overdue)


def group_segments_by_size(segments: Sequence[LogSegment], segment_bytes: int) -> list[list[LogSegment]]:
    """Groups of adjacent segments that fit in one segment."""
    groups: list[list[LogSegment]] = []
    size = 0
    for segment in segments:
        fits = groups and size + segment.size <= segment_bytes
        if fits and segment.next_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups


class Cleaner:
    """One pass over one log, in short parts."""

    def __init__(
        self,
        partition: Partition,
        task: LogToClean,
        data: DataDirectory,
        files: FileCache,
        timestamp_ms: int,
        max_keys: int = _MAX_KEYS,
    ) -> None:
        self.partition = partition
        self._log = partition.log
        self._task = task
        self._data = data
        self._files = files
        self._timestamp_ms = timestamp_ms
        self._latest = OffsetMap(max_keys)
        self._map_end = task.first_dirty_offset
        self._last_offsets: Mapping[int, int] = partition.last_data_offsets()
        self._last_marker_epochs: Mapping[int, int] = partition.last_marker_epochs()
        self._aborted = partition.transaction_index.overlapping(0, task.end_offset)
        self._transactions = CleanedTransactionMetadata(self._aborted)

    def run(self) -> Parts[None]:
        """Compacts the log.

        Raises: StorageError, InvalidBatchError: the log is unchanged or partly compacted.
        """
        topic_partition = self._log.topic_partition
        yield from self._build_offset_map()
        self._log.gaps_end = max(self._log.gaps_end, self._task.end_offset)
        if self._data.recovery_points.get(topic_partition, 0) < self._task.end_offset:
            yield from self._wait(self._store_recovery_point)
        if topic_partition not in self._data.cleaner_offsets:
            # before the first gap: a log without a cleaner offset must have no gaps. After the recovery point, because
            # a log with a cleaner offset and without a recovery point may have gaps anywhere
            self._data.set_cleaner_offset(topic_partition, self._task.first_dirty_offset)
        # later segments must get no delete horizon: the records that their tombstones supersede are retained
        mapped = [segment for segment in self._task.segments if segment.base_offset < self._map_end]
        for group in group_segments_by_size(mapped, self._log.config.segment_bytes):
            yield from self._clean_segments(group)
        self._data.set_cleaner_offset(topic_partition, self._map_end)

    def _store_recovery_point(self) -> None:
        self._data.raise_recovery_point(
            self._log.topic_partition, self._task.end_offset, lambda _: not self.partition.offline_reason
        )

    @property
    def is_obsolete(self) -> bool:
        """Whether segments of the pass or the partition were deleted, or the topic is not compacted any more."""
        if self.partition.offline_reason or not self._log.config.is_compacted:
            return True
        return self._log.segments[0].base_offset > self._task.segments[0].base_offset

    def _build_offset_map(self) -> Parts[None]:
        start = self._task.first_dirty_offset
        transactions = CleanedTransactionMetadata([row for row in self._aborted if row.last_offset >= start])
        for segment in self._task.segments:
            if segment.next_offset <= start:
                continue
            for stored in segment.scan(segment.position_at_or_before(start), segment.size):
                header = stored.header
                if header.last_offset < start:
                    continue
                if self._latest.is_full:
                    return
                if not header.is_control and not transactions.is_aborted(header):
                    yield from self._add_keys(stored, start)
                elif header.is_control:
                    transactions.should_retain_marker(stored.buffer, header)
                self._map_end = header.next_offset
                yield None
            self._map_end = segment.next_offset

    def _add_keys(self, stored: StoredBatch, start: int) -> Parts[None]:
        try:
            records = KeyedRecords(stored.buffer, stored.header)
            for _ in records.check():
                yield None
        except CorruptRecordError:
            return  # its checksum is valid: the producer sent it so, and it is retained
        for found in records.slices():
            if found is not None:
                for key, offset in zip(found.keys, found.offsets):
                    if key is not None and offset >= start:
                        self._latest.put(key, offset)
            yield None

    def _clean_segments(self, group: Sequence[LogSegment]) -> Parts[None]:
        interval = self._log.config.index_interval_bytes
        end = group[-1].next_offset
        base = group[0].base_offset
        cleaned = CleanedSegment(self._log.directory, base, end, interval)
        changed = len(group) > 1
        try:
            for segment in group:
                for stored in segment.scan(0, segment.size):
                    header = stored.header
                    retained = yield from self._retained(stored)
                    if retained is None:
                        cleaned.append(memoryview(stored.buffer)[header.position :][: header.size], header)
                    else:
                        changed = True
                        for rest in iter_batches(retained):
                            cleaned.append(retained, rest)
                    yield None
            rows = [row for row in self._transactions.retained if base <= row.last_offset < end]
            cleaned.finish(rows)
            if not changed:
                return
            yield from self._wait(cleaned.flush)
            try:
                self._log.replace_segments(group, cleaned)
                self.partition.transaction_index.segments_replaced(base, end, len(rows))
            except Exception as error:  # the replacement may be half done, and only a start can complete it
                self.partition.mark_offline(error)
                raise
        finally:
            cleaned.close()
            if not self.partition.offline_reason:
                cleaned.discard()  # without effect after the replacement

    def _retained(self, stored: StoredBatch) -> Parts[bytes | None]:
        """The retained part of a batch: None if it is unchanged, empty if nothing is retained."""
        header = stored.header
        if header.is_control:
            return (yield from self._retained_marker(stored))
        aborted = self._transactions.is_aborted(header)
        is_last = self._last_offsets.get(header.producer_id) == header.last_offset
        must_retain = is_last or header.next_offset == self._task.end_offset
        if not header.record_count:
            return None if must_retain else b""
        horizon = delete_horizon_ms(header)
        past_horizon = horizon is not None and horizon <= self._timestamp_ms
        masks: list[bytes] = []
        has_tombstone = False
        try:
            records = KeyedRecords(stored.buffer, header)
            for found in records.slices():
                if found is not None:
                    masks.append(bytes(len(found.keys)) if aborted else self._mask(found, past_horizon))
                    has_tombstone |= not all(compress(found.has_value, masks[-1]))
                yield None
        except CorruptRecordError:
            return None
        if not any(map(any, masks)):
            return empty_batch(header) if must_retain else b""
        new_horizon = self._new_horizon_ms() if horizon is None and has_tombstone else None
        if new_horizon is None and all(map(all, masks)):
            return None
        return (yield from self._rewrite(header, records, masks, new_horizon))

    def _mask(self, found: KeyedSlice, past_horizon: bool) -> bytes:
        """1 for each record that is retained, else 0."""
        latest, map_end = self._latest.get, self._map_end
        return bytes(
            offset >= map_end or (key is not None and offset >= latest(key) and (has_value or not past_horizon))
            for offset, key, has_value in zip(found.offsets, found.keys, found.has_value)
        )

    def _rewrite(
        self, header: BatchHeader, records: KeyedRecords, masks: Iterable[bytes], horizon_ms: int | None
    ) -> Parts[bytes]:
        batch = RetainedBatch(header, horizon_ms)
        next_mask = iter(masks)
        for found in records.slices():
            if found is not None:
                batch.add(found, next(next_mask))
            yield None
        if batch.size <= _INLINE_BYTES:
            return batch.build()
        built: list[bytes] = []
        yield from self._wait(lambda: built.append(batch.build()))
        return built[0]

    def _wait(self, work: Callable[[], None]) -> Parts[None]:
        """Runs `work` in the flush thread."""
        done = self._files.run_in_background(work)
        yield done
        done.result()

    def _retained_marker(self, stored: StoredBatch) -> Parts[bytes | None]:
        """`_retained` for a control batch."""
        header = stored.header
        at_end = header.next_offset == self._task.end_offset
        is_last = self._last_marker_epochs.get(header.producer_id) == header.producer_epoch
        try:
            if self._transactions.should_retain_marker(stored.buffer, header):
                return None
            if not header.record_count:
                return None if at_end or is_last else b""
            records = KeyedRecords(stored.buffer, header)
        except CorruptRecordError:
            return None
        horizon = delete_horizon_ms(header)
        if horizon is None:
            return (yield from self._rewrite(header, records, repeat(b"\1"), self._new_horizon_ms()))
        if horizon > self._timestamp_ms or is_last:
            return None
        return empty_batch(header) if at_end else b""

    def _new_horizon_ms(self) -> int:
        return min(self._timestamp_ms + self._log.config.delete_retention_ms, 2**63 - 1)


class LogCleaner:
    """Compacts logs one after another, in descending order of their dirty ratio."""

    def __init__(
        self,
        partitions: LogManager,
        data: DataDirectory,
        timers: Timers,
        clock: Clock,
        backoff_ms: int,
        report: Reporter,
        start_task: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._partitions = partitions
        self._data = data
        self._start_timer = timers.timer(self.start_next_pass)
        self._start_task = start_task
        self._clock = clock
        self.backoff_ms = backoff_ms
        self._report = report
        self._is_stopped = False
        self._is_running = False
        self._not_before: dict[TopicPartition, int] = {}
        self.completed_passes = 0

    def start(self) -> None:
        """Schedules the next pass after `log.cleaner.backoff.ms`."""
        self._start_timer.set(self._clock.now_ms() + self.backoff_ms)

    def stop(self) -> None:
        """Stops the current pass; segments that it has replaced stay replaced."""
        self._is_stopped = True
        self._start_timer.cancel()

    def start_next_pass(self) -> None:
        """Starts a pass over the log with the highest dirty ratio, if one needs compaction and no pass runs."""
        if self._is_running:
            # two passes over one log would replace each other's segments
            return
        now_ms, timestamp_ms = self._clock.now_ms(), self._clock.timestamp_ms()
        found: list[tuple[float, Partition, LogToClean]] = []
        for partition in self._partitions:
            topic_partition = partition.topic_partition
            if not partition.log.config.is_compacted or len(partition.log.segments) < 2:
                continue  # the active segment is never compacted
            if partition.offline_reason or self._not_before.get(topic_partition, 0) > now_ms:
                continue
            try:
                cleaned_offset = self._data.cleaner_offsets.get(topic_partition, 0)
                task = log_to_clean(partition.log, cleaned_offset, timestamp_ms, partition.last_stable_offset)
            except StorageError as error:
                self._on_failure(partition, error)
                continue
            if task and (task.is_overdue or task.dirty_ratio > partition.log.config.min_cleanable_dirty_ratio):
                found.append((task.dirty_ratio, partition, task))
        if not found:
            self.start()
            return
        _, partition, task = max(found, key=lambda each: each[0])
        self._is_running = True
        self._start_task(self._clean(partition, task, timestamp_ms))

    async def _clean(self, partition: Partition, task: LogToClean, timestamp_ms: int) -> None:
        try:
            cleaner = Cleaner(partition, task, self._data, self._partitions.files, timestamp_ms)
            self.completed_passes += await run_parts(self._parts(cleaner))
        except InvalidBatchError as error:
            self._on_failure(partition, StorageError(f"{error.reason}."))
        except StorageError as error:
            self._on_failure(partition, error)
        except Exception:  # the caller reports it; other logs are still compacted
            unexpected = StorageError("Cleaning failed: unexpected error, see the broker log.")
            self._on_failure(partition, unexpected)
            raise
        finally:
            self._is_running = False
            if not self._is_stopped:
                self._start_timer.set(self._clock.now_ms())

    def _parts(self, cleaner: Cleaner) -> Parts[bool]:
        """Runs a pass while it has a purpose; returns whether it is complete."""
        for waits_for in cleaner.run():
            yield waits_for
            if self._is_stopped or cleaner.is_obsolete:
                return False
        return True

    def _on_failure(self, partition: Partition, error: StorageError) -> None:
        self._report(
            f"[partition={partition.topic_partition}] Compaction failed, retrying in {_RETRY_BACKOFF_MS:,} ms: {error}"
        )
        self._not_before[partition.topic_partition] = self._clock.now_ms() + _RETRY_BACKOFF_MS
