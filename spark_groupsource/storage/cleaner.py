"""Compaction: of each key only the latest record stays, and a tombstone no longer than it is needed.

One pass over one log: the newest offset of every key in its new part is learnt, then the closed segments are written
again without what is superseded, and swapped in. It is done in small slices between requests, so nobody waits for it.
Offsets do not change; the last batch of each idempotent producer stays, if need be without records, and so does the
end of what was cleaned, so that a reader comes past it.

What a transaction has written counts when it has ended, so nothing behind the first open one is cleaned; aborted
records go, and markers that have nothing more to end as tombstones do. Bytes that are no records stay as they are, and
supersede nothing.

Source: Kafka `LogCleaner`, `LogCleanerManager`, `Cleaner.doClean`; KIP-58 (lag), KIP-354 (longest lag), KIP-534
(tombstones).
"""

from __future__ import annotations

import hashlib
from typing import Generator, Mapping, NamedTuple, Sequence

from spark_groupsource.clock import Clock
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compaction import delete_horizon_ms, keyed_records, retain_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.storage.cleaned_transaction_metadata import CleanedTransactionMetadata
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.files import FileCache
from spark_groupsource.storage.log import PartitionLog
from spark_groupsource.storage.log_manager import LogManager
from spark_groupsource.storage.partition import Partition
from spark_groupsource.storage.reporter import Reporter
from spark_groupsource.storage.segment import InvalidBatchError, LogSegment, StoredBatch
from spark_groupsource.storage.segment_swap import CleanedSegment
from spark_groupsource.timers import Timers

# how long requests may wait for a slice, and how long they have before the next
_SLICE_MS = 5
_PAUSE_MS = 5
_PAUSE_AFTER_FAILURE_MS = 300_000
# about 100 bytes each; what does not fit is left to the next pass
_MOST_KEYS = 1_000_000
_LONGEST_KEY_KEPT = 32
_LARGEST_RELATIVE_OFFSET = 2**31 - 1


class OffsetMap:
    """Key -> the newest offset seen. Long keys stand as a digest of 128 bits."""

    def __init__(self, most_keys: int = _MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._offsets: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._most_keys

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[_short(key)] = offset

    def get(self, key: bytes) -> int:
        """-1 for a key that was not seen."""
        return self._offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    # as Kafka has it: two keys of one digest among a million would take 10**26 such logs
    return key if len(key) <= _LONGEST_KEY_KEPT else b"#" * 17 + hashlib.blake2b(key, digest_size=16).digest()


class LogToClean(NamedTuple):
    """A log that has something to clean: its closed segments, from which offset they are new, how much of it is."""

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
    """What can be cleaned of a log that is clean up to `cleaned_offset`; None when there is nothing new.

    The active segment is never cleaned, nor is what is younger than the topic's ``min.compaction.lag.ms`` or not below
    `last_stable_offset`.
    """
    if not log.config.is_compacted or log.corrupt_range is not None:
        return None
    first_dirty = max(cleaned_offset, log.log_start_offset)
    segments: list[LogSegment] = []
    lag_ms = log.config.min_compaction_lag_ms
    for segment in log.segments[:-1]:
        if segment.next_offset > first_dirty and 0 < lag_ms and segment.index.max_timestamp > timestamp_ms - lag_ms:
            break
        if last_stable_offset is not None and segment.next_offset > last_stable_offset:
            break
        segments.append(segment)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    oldest = dirty[0].first_timestamp
    is_overdue = oldest is not None and 0 <= oldest < timestamp_ms - log.config.max_compaction_lag_ms
    ratio = dirty_bytes / sum(segment.size for segment in segments)
    return LogToClean(tuple(segments), first_dirty, ratio, is_overdue)


def groups(segments: Sequence[LogSegment], segment_bytes: int) -> list[list[LogSegment]]:
    """Neighbours that fit in one segment together."""
    found: list[list[LogSegment]] = []
    size = 0
    for segment in segments:
        fits = found and size + segment.size <= segment_bytes
        if fits and segment.next_offset - 1 - found[-1][0].base_offset <= _LARGEST_RELATIVE_OFFSET:
            found[-1].append(segment)
            size += segment.size
        else:
            found.append([segment])
            size = segment.size
    return found


class Cleaner:
    """One pass over one log. `run` is resumed until it ends; each time it has done a little, or waits and says True."""

    def __init__(
        self,
        partition: Partition,
        task: LogToClean,
        data: DataDirectory,
        files: FileCache,
        timestamp_ms: int,
        most_keys: int = _MOST_KEYS,
    ) -> None:
        self.partition = partition
        self._log = partition.log
        self._task = task
        self._data = data
        self._files = files
        self._timestamp_ms = timestamp_ms
        self._latest = OffsetMap(most_keys)
        self._map_end = task.first_dirty_offset
        self._last_offsets: Mapping[int, int] = partition.last_data_offsets()
        self._aborted = partition.transaction_index.overlapping(0, task.end_offset)
        self._transactions = CleanedTransactionMetadata(self._aborted)

    def run(self) -> Generator[bool, None, None]:
        """Cleans the log.

        Raises: StorageError, InvalidBatchError: the log is as it was, or in part cleaned.
        """
        topic_partition = self._log.topic_partition
        yield from self._learn()
        if topic_partition not in self._data.cleaner_offsets:
            # before the first gap: a log that is not named there must have none
            self._data.set_cleaner_offset(topic_partition, self._task.first_dirty_offset)
            self._log.has_gaps = True
        for group in groups(self._task.segments, self._log.config.segment_bytes):
            yield from self._clean(group)
        self._data.set_cleaner_offset(topic_partition, self._map_end)

    @property
    def is_obsolete(self) -> bool:
        """True when the log lost segments, or itself, while they were looked at."""
        segments = self._log.segments
        return bool(self.partition.offline_reason) or segments[0].base_offset > self._task.segments[0].base_offset

    def _learn(self) -> Generator[bool, None, None]:
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
                    self._learn_batch(stored, start)
                elif header.is_control:
                    transactions.should_retain_marker(stored.buffer, header)
                self._map_end = header.next_offset
                yield False
            self._map_end = segment.next_offset

    def _learn_batch(self, stored: StoredBatch, start: int) -> None:
        try:
            _, records = keyed_records(stored.buffer, stored.header)
        except CorruptRecordError:
            return  # its checksum holds: a producer sent it so, and it stays so
        for record in records:
            if record.key is not None and record.offset >= start:
                self._latest.put(record.key, record.offset)

    def _clean(self, group: Sequence[LogSegment]) -> Generator[bool, None, None]:
        interval = self._log.config.index_interval_bytes
        end = group[-1].next_offset
        base = group[0].base_offset
        cleaned = CleanedSegment(self._log.directory, base, end, interval)
        changed = len(group) > 1
        try:
            for segment in group:
                for stored in segment.scan(0, segment.size):
                    header = stored.header
                    retained = self._retained(stored)
                    if retained is None:
                        cleaned.append(memoryview(stored.buffer)[header.position :][: header.size], header)
                    else:
                        changed = True
                        for rest in iter_batches(retained):
                            cleaned.append(retained, rest)
                    yield False
            rows = [row for row in self._transactions.retained if base <= row.last_offset < end]
            cleaned.finish(rows)
            if not changed:
                return
            flushed = self._files.run_in_background(cleaned.flush)
            while not flushed.done():
                yield True
            flushed.result()
            try:
                self._log.replace_segments(group, cleaned)
                self.partition.transaction_index.replace(base, end, rows)
            except Exception as error:  # half done, whatever it was: only a start finds out how far
                self.partition.mark_offline(error)
                raise
        finally:
            cleaned.close()
            if not self.partition.offline_reason:
                cleaned.discard()  # after a swap there is nothing left of it

    def _retained(self, stored: StoredBatch) -> bytes | None:
        """What stays of a batch, empty when nothing does; None when it stays as it is."""
        header = stored.header
        if header.is_control:
            return self._retained_marker(stored)
        aborted = self._transactions.is_aborted(header)
        is_last = self._last_offsets.get(header.producer_id) == header.last_offset
        needed = is_last or header.next_offset == self._task.end_offset
        if not header.record_count:
            return None if needed else b""
        try:
            payload, records = keyed_records(stored.buffer, header)
        except CorruptRecordError:
            return None
        if aborted:
            return retain_records(header, payload, []) if needed else b""
        horizon = delete_horizon_ms(header)
        past_horizon = horizon is not None and horizon <= self._timestamp_ms
        kept = [
            record
            for record in records
            if record.offset >= self._map_end
            or (
                record.key is not None
                and record.offset >= self._latest.get(record.key)
                and (record.has_value or not past_horizon)
            )
        ]
        new_horizon = None
        if horizon is None and not all(record.has_value for record in kept):
            new_horizon = self._new_horizon_ms()
        if len(kept) == len(records) and new_horizon is None:
            return None
        return retain_records(header, payload, kept, new_horizon) if kept or needed else b""

    def _retained_marker(self, stored: StoredBatch) -> bytes | None:
        """Like `_retained` for a control batch."""
        header = stored.header
        at_end = header.next_offset == self._task.end_offset
        try:
            if self._transactions.should_retain_marker(stored.buffer, header):
                return None
            if not header.record_count:
                return None if at_end else b""
            payload, records = keyed_records(stored.buffer, header)
        except CorruptRecordError:
            return None
        horizon = delete_horizon_ms(header)
        if horizon is None:
            return retain_records(header, payload, records, self._new_horizon_ms())
        if horizon > self._timestamp_ms:
            return None
        return retain_records(header, payload, []) if at_end else b""

    def _new_horizon_ms(self) -> int:
        return min(self._timestamp_ms + self._log.config.delete_retention_ms, 2**63 - 1)


class LogCleaner:
    """Finds the log that needs cleaning most and cleans it, again and again. The one caller is the broker's loop."""

    def __init__(
        self,
        partitions: LogManager,
        data: DataDirectory,
        timers: Timers,
        clock: Clock,
        backoff_ms: int,
        report: Reporter,
    ) -> None:
        self._partitions = partitions
        self._data = data
        self._start_timer = timers.timer(self.start_next_pass)
        self._resume_timer = timers.timer(self.resume_pass)
        self._clock = clock
        self.backoff_ms = backoff_ms
        self._report = report
        self._pass: Cleaner | None = None
        self._run: Generator[bool, None, None] | None = None
        self._not_before: dict[TopicPartition, int] = {}
        self.completed_passes = 0

    def start(self) -> None:
        """Has logs looked for after the usual pause."""
        self._start_timer.set(self._clock.now_ms() + self.backoff_ms)

    def stop(self) -> None:
        """Gives up the pass in progress; what it has swapped in stays."""
        self._drop()
        self._start_timer.cancel()
        self._resume_timer.cancel()

    def start_next_pass(self) -> None:
        """Begins to clean the log that needs it most, if one does."""
        now_ms, timestamp_ms = self._clock.now_ms(), self._clock.timestamp_ms()
        found: list[tuple[float, Partition, LogToClean]] = []
        for partition in self._partitions:
            topic_partition = partition.topic_partition
            if partition.offline_reason or self._not_before.get(topic_partition, 0) > now_ms:
                continue
            try:
                cleaned_offset = self._data.cleaner_offsets.get(topic_partition, 0)
                task = log_to_clean(partition.log, cleaned_offset, timestamp_ms, partition.last_stable_offset)
            except StorageError as error:
                self._failed(partition, error)
                continue
            if task and (task.is_overdue or task.dirty_ratio > partition.log.config.min_cleanable_dirty_ratio):
                found.append((task.dirty_ratio, partition, task))
        if not found:
            self.start()
            return
        _, partition, task = max(found, key=lambda each: each[0])
        self._pass = Cleaner(partition, task, self._data, self._partitions.files, timestamp_ms)
        self._run = self._pass.run()
        self._resume_timer.set(now_ms)

    def resume_pass(self) -> None:
        """Goes on with the pass for a few milliseconds."""
        if self._pass is None or self._run is None:
            return
        until_ms = self._clock.now_ms() + _SLICE_MS
        try:
            if not self._pass.is_obsolete:
                while not next(self._run) and self._clock.now_ms() < until_ms:
                    pass
                self._resume_timer.set(self._clock.now_ms() + _PAUSE_MS)
                return
        except StopIteration:
            self.completed_passes += 1
        except InvalidBatchError as error:
            self._failed(self._pass.partition, StorageError(error.reason))
        except StorageError as error:
            self._failed(self._pass.partition, error)
        except Exception:  # a bug, which the caller reports: other logs are cleaned on
            self._failed(self._pass.partition, StorageError("Cleaning failed: unexpected error, see the broker log."))
            self._drop()
            self.start()
            raise
        self._drop()
        self._start_timer.set(self._clock.now_ms())

    def _drop(self) -> None:
        run, self._run, self._pass = self._run, None, None
        if run is not None:
            run.close()

    def _failed(self, partition: Partition, error: StorageError) -> None:
        self._report(f"{partition.topic_partition} cannot be compacted, it is served as it is: {error}")
        self._not_before[partition.topic_partition] = self._clock.now_ms() + _PAUSE_AFTER_FAILURE_MS
