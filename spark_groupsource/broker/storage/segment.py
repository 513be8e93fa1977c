"""Log segment: record batches with offset and time index.

The files have the formats of Kafka.

Source: Kafka `LogSegment`.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from itertools import dropwhile
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

from spark_groupsource.broker.storage.files import FileCache, read_exactly, sync_data, write_exactly
from spark_groupsource.broker.storage.producer_state import NO_PRODUCER_ID
from spark_groupsource.broker.storage.segment_index import SegmentIndex
from spark_groupsource.broker.storage.segment_scan import (
    MAX_RELATIVE_OFFSET,
    InvalidBatchError,
    StoredBatch,
    check_stored_crc,
    scan_batches,
    scan_producer_batches,
)
from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.records.header import check_crc, iter_batches

# base offset, batch length, leader epoch, magic, crc, attributes, last offset delta
_HEADER_START = struct.Struct(">qiiBIhi")
_PREFIX = struct.Struct(">qi")  # base offset, batch length
_BATCH_PREFIX_BYTES = _PREFIX.size
_MIN_BATCH_BYTES = 61
_MAX_TIMESTAMP_POSITION = 35
_HEADERS_BYTES = 4096  # read at a time when only headers are needed


class _Chunk(NamedTuple):
    """Bytes of the file from `position` on."""

    position: int
    data: bytes


class LogSegment:
    """Batches from `base_offset` on.

    Attributes:
        size: bytes of the file that are part of the log.
        next_offset: the offset after the last record.
        is_contiguous: whether every offset has a record; compaction leaves gaps.
        is_closed: whether the segment accepts no appends, although it may be small.
    """

    __slots__ = (
        "_appended_since_ms", "_file", "_files", "_first_timestamp", "_producers_start", "_verified", "base_offset",
        "index", "is_closed", "is_contiguous", "next_offset", "size",
    )  # fmt: skip

    def __init__(
        self, directory: Path | str, base_offset: int, files: FileCache, index_interval_bytes: int, is_contiguous: bool
    ) -> None:
        self.base_offset = base_offset
        self.is_contiguous = is_contiguous
        # a Path takes 500 bytes, and a broker may have thousands of partitions
        self._file = f"{directory}{os.sep}{base_offset:020d}.log"
        self.index = SegmentIndex(self._file, base_offset, index_interval_bytes)
        self.is_closed = False
        self.size = 0
        self.next_offset = base_offset
        self._first_timestamp: int | None = None
        self._appended_since_ms: int | None = None
        self._files = files
        self._producers_start = 0  # no batch before this position is of a producer with an id
        self._verified = _ByteRanges()

    @property
    def path(self) -> Path:
        """The file with the batches."""
        return Path(self._file)

    @property
    def _descriptor(self) -> int:
        try:
            return self._files.descriptor(self._file)
        except OSError as error:
            reason = describe_os_error(error, "Check permissions.")
            raise StorageError(f"{self.path} cannot be opened: {reason}") from error

    def create(self) -> None:
        """Creates the empty files, which are not durable yet.

        Raises: StorageError.
        """
        try:
            for path in (self.path, *self.index.paths):
                self._files.create(path)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be created: {describe_os_error(error, 'Check space and permissions.')}"
            ) from error

    def fits(self, batch_bytes: int, last_offset: int, segment_bytes: int) -> bool:
        """False when the log must be rolled before a batch is appended."""
        if self.is_closed or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return False
        return self.size == 0 or self.size + batch_bytes <= segment_bytes

    def exceeds_roll_time(self, timestamp_ms: int, now_ms: int, roll_ms: int) -> bool:
        """Whether the segment is full by `segment.ms` for a batch with the max timestamp `timestamp_ms`.

        Counted from the first batch. If it has no timestamp, the time `now_ms` is compared with that of the first
        append to the open segment.

        Raises: StorageError.

        Source: Kafka `LogSegment.timeWaitedForRoll`.
        """
        first = self._first_timestamp  # usually known
        if first is None:
            first = self.first_timestamp
        if first is not None and first >= 0:
            return timestamp_ms - first > roll_ms
        return self._appended_since_ms is not None and now_ms - self._appended_since_ms > roll_ms

    @property
    def first_timestamp(self) -> int | None:
        """The max timestamp of the first batch, which `segment.ms` is counted from; None for an empty segment.

        Raises: StorageError.
        """
        if self._first_timestamp is None and self.size >= _MIN_BATCH_BYTES:
            (self._first_timestamp,) = struct.unpack(">q", self._read(_MAX_TIMESTAMP_POSITION, 8))
        return self._first_timestamp

    def max_timestamp_ms(self) -> int:
        """Returns the largest record timestamp; without timestamps, the modification time of the file.

        Raises: StorageError.
        """
        if self.index.max_timestamp >= 0:
            return self.index.max_timestamp
        try:
            return int(self.path.stat().st_mtime * 1000)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {describe_os_error(error, 'Check the disk.')}") from error

    def append(
        self, batch: bytes | bytearray | memoryview, last_offset: int, max_timestamp: int, now_ms: int
    ) -> None:
        """Writes a batch whose offsets are assigned, at the time `now_ms`.

        Raises: StorageError when the batch cannot be written completely; the segment is then unchanged.
        """
        try:
            write_exactly(self._descriptor, batch, self.size)
        except OSError as error:
            self.truncate(self.size)
            raise StorageError(
                f"{self.path} cannot be written: {describe_os_error(error, 'Free space or check the disk.')}"
            ) from error
        position = self.size
        self.size += len(batch)
        self.next_offset = last_offset + 1
        if self._appended_since_ms is None:
            self._appended_since_ms = now_ms
        self._verified.add(position, self.size)
        self.index.add_batch(position, len(batch), last_offset, max_timestamp)
        if self.index.should_write:
            try:
                self.index.write()
            except StorageError:
                pass  # the batch is stored, the entries are kept, and a roll or close raises the error again

    def truncate(self, size: int) -> None:
        """Removes everything after `size` bytes from the file.

        Raises: StorageError.
        """
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be truncated to {size} bytes: {describe_os_error(error, 'Check the disk.')}"
            ) from error
        self.size = size
        self._producers_start = min(self._producers_start, size)

    def flush(self) -> None:
        """Returns when the batches, but not the indexes, are on the disk.

        Raises: StorageError.
        """
        try:
            sync_data(self._descriptor)
        except OSError as error:
            reason = describe_os_error(error, "Check the disk.")
            raise StorageError(f"{self.path} cannot be flushed: {reason}") from error

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file of the segment except the producer snapshot; the transaction index may not exist."""
        return (self.path, *self.index.paths, self.path.with_suffix(".txnindex"))

    def delete(self) -> None:
        """Deletes the files."""
        self._files.close_file(self.path)
        for path in (*self.paths, self.path.with_suffix(".snapshot")):
            path.unlink(missing_ok=True)

    # --- reading ---

    def read(self, offset: int, max_bytes: int, end: int | None = None, before: int | None = None) -> memoryview:
        """Returns complete batches from the one with `offset` on: at least one, more up to `max_bytes`.

        Empty where compaction removed everything from `offset` on, and where nothing is below the offset `before`, the
        base offset of a batch. The position `end` in the file is not passed. Every byte returned was verified, by this
        call or an earlier one.

        Raises: InvalidBatchError when the first batch is corrupt; StorageError.
        """
        end = self.size if end is None else end
        start, chunk = self._position_of(offset, end)
        if start is None:
            return memoryview(b"")
        if before is not None and before < self.next_offset:
            limit, _ = self._position_of(before, end)
            end = end if limit is None else limit
            if start >= end:
                return memoryview(b"")
        _, length = _PREFIX.unpack(self._part(chunk, start, _BATCH_PREFIX_BYTES))
        largest = max(min(start + max_bytes, end), start + length + _BATCH_PREFIX_BYTES)
        stop = self._last_batch_end(start, largest, chunk)
        if stop > end:
            raise InvalidBatchError(start, "a batch reaches past the end of the log", False)
        data = self._part(chunk, start, stop - start)
        if not self._verified.covers(start, stop):
            stop = self._verify(data, start)
        return memoryview(data)[: stop - start]

    def batches_from_timestamp(self, timestamp_ms: int, end: int) -> Iterator[StoredBatch]:
        """Returns the batches from one before the first record with a timestamp of at least `timestamp_ms` on.

        Raises: InvalidBatchError, StorageError.
        """
        return self.scan(self.position_at_or_before(self.index.offset_before_timestamp(timestamp_ms)), end)

    def position_at_or_before(self, offset: int) -> int:
        """Returns the position from the index at which a search for `offset` starts."""
        entry = self.index.lookup(offset)
        return entry.position if entry else 0

    def locate_corruption(self, error: InvalidBatchError) -> tuple[InvalidBatchError, int]:
        """Returns the start of the corruption that a read found as `error`, and the offset expected there.

        A wrong length or offset is found at the batch after the corrupt one, so everything from the preceding index
        entry on is checked.

        Raises: StorageError.
        """
        start = self.index.position_floor(error.position - 1)
        while True:
            offset = self.base_offset
            expected_offset = self.base_offset if self.is_contiguous and start == 0 else None
            try:
                for stored in self.scan(start, self.size, expected_offset):
                    if stored.position > start and self.is_contiguous and stored.header.base_offset != offset:
                        raise InvalidBatchError(stored.position, f"offset {offset} is expected here", True)
                    if stored.position >= error.position:
                        return error, offset
                    offset = stored.header.next_offset
            except InvalidBatchError as found:
                if found.position > start or start == 0:
                    return found, offset
                start = self.index.position_floor(start - 1)
            else:
                return error, offset

    def scan(self, start: int, end: int, expected_offset: int | None = None) -> Iterator[StoredBatch]:
        """Yields the batches between two positions, with valid checksums.

        With `expected_offset` the batches must be contiguous from that offset on.

        Raises: InvalidBatchError, StorageError.
        """
        return scan_batches(self._read, start, end, self.base_offset, expected_offset)

    def batches(self, start_offset: int, end: int, of_producers: bool) -> Iterator[StoredBatch]:
        """Yields the batches from the one with `start_offset` to a position, or only those of producers with an id.

        Checksums that were verified since the segment was opened, and those of producers, are not verified.

        Raises: InvalidBatchError, StorageError.
        """
        start = self.position_at_or_before(start_offset)
        if of_producers:
            found = scan_producer_batches(self._read, max(start, self._producers_start), end)
            return (stored for stored in found if stored.header.last_offset >= start_offset)
        found = scan_batches(self._read, start, end, self.base_offset, is_verified=self._verified.covers)
        return dropwhile(lambda stored: stored.header.last_offset < start_offset, found)

    def next_valid_batch(self, position: int, min_offset: int) -> StoredBatch | None:
        """Returns the first valid batch after the corruption at `position`, found by trying every byte; None without
        one.

        Raises: StorageError.
        """
        data = self._read(position, self.size - position)
        at = data.find(b"\x02", 17)
        while at >= 0:
            start = at - 16
            base_offset, length = _PREFIX.unpack_from(data, start)
            size = length + _BATCH_PREFIX_BYTES
            is_plausible = min_offset <= base_offset <= min_offset + MAX_RELATIVE_OFFSET
            if is_plausible and _MIN_BATCH_BYTES <= size <= len(data) - start:
                batch = data[start : start + size]
                try:
                    header = next(iter_batches(batch))
                    check_crc(batch, header)
                    return StoredBatch(header, batch, position + start)
                except (CorruptRecordError, StopIteration):
                    pass  # any byte may look like a magic byte
            at = data.find(b"\x02", at + 1)
        return None

    def claimed_next_offset(self, position: int, base_offset: int) -> int:
        """Returns the next offset by the header of a corrupt last batch if it is plausible, else `base_offset` + 1."""
        header = self._read(position, min(_HEADER_START.size, self.size - position))
        delta = _HEADER_START.unpack(header)[6] if len(header) == _HEADER_START.size else 0
        is_plausible = 0 <= delta < self.size - position  # a record has at least one byte
        return base_offset + (delta if is_plausible else 0) + 1

    def _position_of(self, offset: int, end: int) -> tuple[int | None, _Chunk]:
        """Returns the position of the batch with `offset`; None where compaction removed everything from it on.

        Also returns the last bytes that were read, because a read of few records needs no others.

        Base offsets are not covered by the checksum, so they are compared with the index and with one another.
        """
        # an index entry has an offset of the batch at its position, usually the last one
        entry = self.index.lookup(offset)
        position, indexed_offset = (entry.position, entry.offset) if entry else (0, None)
        expected_base = self.base_offset if self.is_contiguous else None
        while position < end:
            headers = self._read(position, min(_HEADERS_BYTES + _HEADER_START.size, end - position))
            at = 0
            while at + _HEADER_START.size <= len(headers):
                base_offset, length, _, magic, _, _, delta = _HEADER_START.unpack_from(headers, at)
                if magic != 2 or delta < 0 or length + _BATCH_PREFIX_BYTES < _MIN_BATCH_BYTES:
                    raise InvalidBatchError(position + at, "a batch header is invalid", False)
                last_offset = base_offset + delta
                is_valid = expected_base in (None, base_offset)
                if indexed_offset is not None:
                    is_valid = base_offset <= indexed_offset <= last_offset
                if not is_valid:
                    raise InvalidBatchError(position + at, f"a batch has the wrong base offset {base_offset}", True)
                if last_offset >= offset:
                    return position + at, _Chunk(position, headers)
                indexed_offset, expected_base = None, last_offset + 1 if self.is_contiguous else None
                at += length + _BATCH_PREFIX_BYTES
            if at == 0:
                break
            position += at
        if position == self.size and not self.is_contiguous:
            return None, _Chunk(position, b"")
        raise InvalidBatchError(position, f"offset {offset} is not at its position", False)

    def _last_batch_end(self, start: int, limit: int, chunk: _Chunk) -> int:
        """Returns the last end of a batch that is not after `limit`; `start` is the start of one."""
        if limit >= self.size:
            return self.size
        position = max(self.index.position_floor(limit), start)
        while position < limit:
            headers = chunk.data[position - chunk.position :] if position >= chunk.position else b""
            if len(headers) < _BATCH_PREFIX_BYTES:
                headers = self._read(position, min(_HEADERS_BYTES + _BATCH_PREFIX_BYTES, self.size - position))
            at = 0
            while at + _BATCH_PREFIX_BYTES <= len(headers):
                _, length = _PREFIX.unpack_from(headers, at)
                next_batch = at + (length if length > 0 else 0) + _BATCH_PREFIX_BYTES
                if position + next_batch > limit:
                    return position + at
                at = next_batch
            if at == 0:
                break
            position += at
        return position

    def _verify(self, data: bytes, start: int) -> int:
        """Verifies the batches of `data`; returns the end of the valid ones, raises if the first is invalid."""
        position, expected_base = start, -1
        try:
            for header in iter_batches(data):
                gap = header.base_offset - expected_base
                if expected_base >= 0 and (gap < 0 or (gap > 0 and self.is_contiguous)):
                    break  # the next read starts here and raises the error
                check_stored_crc(data, header, position)
                position += header.size
                expected_base = header.next_offset
        except CorruptRecordError as error:
            if position == start:
                raise InvalidBatchError(position, str(error), False) from error
        except InvalidBatchError:
            if position == start:
                raise
        if position == start:
            raise InvalidBatchError(position, "there is no complete batch", False)
        self._verified.add(start, position)
        return position

    def _part(self, chunk: _Chunk, position: int, size: int) -> bytes:
        """Reads from the file what `chunk` does not have."""
        begin = position - chunk.position
        if begin < 0 or begin + size > len(chunk.data):
            return self._read(position, size)
        return chunk.data[begin : begin + size]

    def _read(self, position: int, size: int) -> bytes:
        return read_exactly(self._descriptor, size, position, self._file)

    # --- recovery ---

    def reset(self) -> None:
        """Empties the indexes, before a scan of the whole segment rebuilds them.

        Raises: StorageError.
        """
        self.index.reset()
        self.next_offset = self.base_offset
        self._producers_start = 0

    def add_scanned(
        self, batches: Iterable[StoredBatch], is_indexed: bool = False
    ) -> tuple[int, InvalidBatchError | None]:
        """Adds the adjacent batches of a scan; `is_indexed` if the indexes were loaded and need no entry for them.

        Returns: their number, and the invalid bytes at which the scan ended.

        Raises: StorageError.
        """
        count, start, end, last_offset = 0, 0, 0, -1
        first_of_producer: int | None = None
        invalid: InvalidBatchError | None = None
        add_batch, add_unindexed_batch = self.index.add_batch, self.index.add_unindexed_batch
        try:
            # few calls: recovery adds every batch that is not flushed
            for header, _, position in batches:
                size, last_offset = header.size, header.base_offset + header.last_offset_delta
                # a batch that compaction emptied has a max timestamp but no record
                max_timestamp = header.max_timestamp if header.record_count else -1
                if is_indexed:
                    add_unindexed_batch(size, last_offset, max_timestamp)
                else:
                    add_batch(position, size, last_offset, max_timestamp)
                if first_of_producer is None and header.producer_id != NO_PRODUCER_ID:
                    first_of_producer = position
                start, end = start if count else position, position + size
                count += 1
        except InvalidBatchError as error:
            invalid = error
        if count:
            self.next_offset = last_offset + 1
            self._verified.add(start, end)
            if start <= self._producers_start:
                self._producers_start = end if first_of_producer is None else first_of_producer
        return count, invalid


class _ByteRanges:
    """Set of byte ranges; adjacent ranges are merged."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        if self._stops and start == self._stops[-1]:  # the usual case: an append
            self._stops[-1] = stop
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def covers(self, start: int, stop: int) -> bool:
        found = bisect_right(self._starts, start) - 1
        return found >= 0 and self._stops[found] >= stop
