"""One segment of a partition's log: a file of record batches with its offset and time index, in Kafka's formats.

Knows bytes, files and the fixed head of a record batch; knows no topic and no protocol.

Source: Kafka `LogSegment`.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.records.header import BatchHeader, check_crc, iter_batches
from spark_groupsource.storage.files import FileCache, read_exactly, sync_data, write_exactly
from spark_groupsource.storage.segment_index import SegmentIndex

# base offset, batch length, leader epoch, magic, crc, attributes, last offset delta
_HEAD = struct.Struct(">qiiBIhi")
_BATCH_PREFIX_BYTES = 12
_SMALLEST_BATCH_BYTES = 61
_MAX_TIMESTAMP_AT = 35
_SCAN_BYTES = 1 << 20
_HEADS_BYTES = 4096  # read at a time where only heads are looked at
_LARGEST_RELATIVE_OFFSET = 2**31 - 1


class StoredBatch(NamedTuple):
    """A batch met by a scan: its header, the buffer the header points into, its position in the file."""

    header: BatchHeader
    buffer: bytes
    position: int


class InvalidBatchError(Exception):
    """Bytes that are no good batch, at `position` of the file; `complete` when a whole batch stands there."""

    def __init__(self, position: int, reason: str, complete: bool) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.is_complete = complete


class LogSegment:
    """Batches from `base_offset` on; `size` counts the bytes that are part of the log."""

    def __init__(
        self, directory: Path, base_offset: int, files: FileCache, index_interval_bytes: int, contiguous: bool
    ) -> None:
        self.base_offset = base_offset
        self.is_contiguous = contiguous  # no offset is missing: nothing was compacted away
        self.path = directory / f"{base_offset:020d}.log"
        self.index = SegmentIndex(self.path, base_offset, index_interval_bytes)
        self.is_closed = False  # nothing more may be appended
        self.size = 0
        self.next_offset = base_offset
        self._first_timestamp: int | None = None
        self._files = files
        self._verified = _ByteRanges()

    @property
    def _descriptor(self) -> int:
        try:
            return self._files.descriptor(self.path)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be opened: {error.strerror}") from error

    def create(self) -> None:
        """Makes the empty files.

        Raises: StorageError.
        """
        try:
            for path in (self.path, *self.index.paths):
                with open(path, "wb"):
                    pass
        except OSError as error:
            text = f"{self.path} cannot be created: {error.strerror}; check space and permissions"
            raise StorageError(text) from error

    def fits(self, batch_bytes: int, last_offset: int, segment_bytes: int) -> bool:
        """False when the log must roll before a batch is appended."""
        if self.is_closed or last_offset - self.base_offset > _LARGEST_RELATIVE_OFFSET:
            return False
        return self.size == 0 or self.size + batch_bytes <= segment_bytes

    @property
    def first_timestamp(self) -> int | None:
        """The stamp of the first batch, from which time until a roll counts; None without one.

        Raises: StorageError.
        """
        if self._first_timestamp is None and self.size >= _SMALLEST_BATCH_BYTES:
            (self._first_timestamp,) = struct.unpack(">q", self._bytes(_MAX_TIMESTAMP_AT, 8))
        return self._first_timestamp

    def max_timestamp_ms(self) -> int:
        """The largest stamp of a record; without one, when the file was last written.

        Raises: StorageError.
        """
        if self.index.max_timestamp >= 0:
            return self.index.max_timestamp
        try:
            return int(self.path.stat().st_mtime * 1000)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be looked at: {error.strerror}") from error

    def append(self, batch: bytes | bytearray | memoryview, last_offset: int, max_timestamp: int) -> None:
        """Writes a batch whose offsets are set.

        Raises: StorageError when it cannot be written whole; the segment is then as before.
        """
        try:
            write_exactly(self._descriptor, batch, self.size)
        except OSError as error:
            self.truncate(self.size)
            text = f"{self.path} cannot be written: {error.strerror}; free space or mend the disk"
            raise StorageError(text) from error
        position = self.size
        self.size += len(batch)
        self.next_offset = last_offset + 1
        self._verified.add(position, self.size)
        self.index.add_batch(position, len(batch), last_offset, max_timestamp)
        if self.index.should_write:
            try:
                self.index.write()
            except StorageError:
                pass  # the batch is stored all the same; the entries are kept, and a roll or close says what is wrong

    def truncate(self, size: int) -> None:
        """Drops what stands in the file from `size` on.

        Raises: StorageError.
        """
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be cut to {size} bytes: {error.strerror}") from error
        self.size = size

    def flush(self) -> None:
        """Waits until the batches are on the disk.

        Raises: StorageError.
        """
        try:
            sync_data(self._descriptor)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be flushed: {error.strerror}; mend the disk") from error

    def flush_in_background(self, report: Callable[[str], None]) -> None:
        """Has a segment that is done written to the disk, while others are appended to."""
        self._files.flush_in_background(
            self.path, lambda error: report(f"{self.path} cannot be flushed: {error.strerror}")
        )

    def remove(self) -> None:
        """Deletes the files."""
        self._files.close_file(self.path)
        beside = (self.path.with_suffix(suffix) for suffix in (".snapshot", ".txnindex"))
        for path in (self.path, *self.index.paths, *beside):
            path.unlink(missing_ok=True)

    # --- reading ---

    def read(self, offset: int, max_bytes: int, end: int | None = None, before: int | None = None) -> memoryview:
        """Whole batches from the one that holds `offset` on, at least one, then as many as `max_bytes` allows.

        Empty where compaction has left nothing from `offset` on, and where there is nothing below the offset `before`,
        at which a batch begins. `end` is a position in the file not to be passed. Every byte returned was verified, now
        or before.

        Raises: InvalidBatchError at damage in the first batch; StorageError.
        """
        end = self.size if end is None else end
        start = self._position_of(offset, end)
        if start is None:
            return memoryview(b"")
        if before is not None and before < self.next_offset:
            limit = self._position_of(before, end)
            end = end if limit is None else limit
            if start >= end:
                return memoryview(b"")
        (length,) = struct.unpack_from(">i", self._bytes(start + 8, 4))
        stop = self._last_boundary(start, max(min(start + max_bytes, end), start + length + _BATCH_PREFIX_BYTES))
        if stop > end:
            raise InvalidBatchError(start, "a batch reaches past the end of the log", False)
        data = self._bytes(start, stop - start)
        if not self._verified.covers(start, stop):
            stop = self._verify(data, start)
        return memoryview(data)[: stop - start]

    def batches_from_timestamp(self, timestamp_ms: int, end: int) -> Iterator[StoredBatch]:
        """The batches among which the first record stamped `timestamp_ms` or later is, and those behind it.

        Raises: InvalidBatchError, StorageError.
        """
        return self.scan(self.position_at_or_before(self.index.offset_before_timestamp(timestamp_ms)), end)

    def position_at_or_before(self, offset: int) -> int:
        """Where the index says to begin a search for `offset`."""
        entry = self.index.lookup(offset)
        return entry.position if entry else 0

    def locate_corruption(self, error: InvalidBatchError) -> tuple[InvalidBatchError, int]:
        """Where the damage that showed as `error` really begins, and the offset due there.

        A wrong length or offset shows at the batch behind the damaged one, so everything from the index entry before
        is checked.

        Raises: StorageError.
        """
        start = self.index.position_floor(error.position - 1)
        while True:
            offset = self.base_offset
            expected = self.base_offset if self.is_contiguous and start == 0 else None
            try:
                for stored in self.scan(start, self.size, expected):
                    if stored.position > start and self.is_contiguous and stored.header.base_offset != offset:
                        raise InvalidBatchError(stored.position, f"offset {offset} is due here", True)
                    if stored.position >= error.position:
                        return error, offset
                    offset = stored.header.next_offset
            except InvalidBatchError as found:
                if found.position > start or start == 0:
                    return found, offset
                start = self.index.position_floor(start - 1)
            else:
                return error, offset

    def scan(
        self, start: int, end: int, expected_offset: int | None = None, check: bool = True
    ) -> Iterator[StoredBatch]:
        """Walks the batches between two positions, checksums included unless `check` is False.

        `expected_offset` demands that the batches follow one another without a gap from that offset on.

        Raises: InvalidBatchError, StorageError.
        """
        lowest = self.base_offset
        while start < end:
            chunk = self._bytes(start, min(_SCAN_BYTES, end - start))
            if len(chunk) >= _BATCH_PREFIX_BYTES:
                (length,) = struct.unpack_from(">i", chunk, 8)
                if len(chunk) < length + _BATCH_PREFIX_BYTES <= end - start:
                    chunk = self._bytes(start, length + _BATCH_PREFIX_BYTES)
            position = start
            try:
                for header in iter_batches(chunk):
                    wanted = lowest if expected_offset is None else expected_offset
                    if header.base_offset < wanted or (expected_offset is not None and header.base_offset != wanted):
                        reason = f"a batch of offset {header.base_offset} stands where {wanted} is due"
                        raise InvalidBatchError(position, reason, True)
                    if check:
                        self._check(chunk, header, position)
                    yield StoredBatch(header, chunk, position)
                    position += header.size
                    lowest = header.next_offset
                    expected_offset = None if expected_offset is None else header.next_offset
            except CorruptRecordError as error:
                raise InvalidBatchError(position, str(error), False) from error
            if position == start:
                raise InvalidBatchError(position, f"the last {end - position} bytes are no whole batch", False)
            start = position

    def next_valid_batch(self, position: int, lowest_offset: int) -> StoredBatch | None:
        """The first sound batch after the damage at `position`, found by trying every byte; None when there is none.

        Raises: StorageError.
        """
        data = self._bytes(position, self.size - position)
        at = data.find(b"\x02", 17)
        while at >= 0:
            start = at - 16
            base_offset, length = struct.unpack_from(">qi", data, start)
            size = length + _BATCH_PREFIX_BYTES
            near = lowest_offset <= base_offset <= lowest_offset + _LARGEST_RELATIVE_OFFSET
            if near and _SMALLEST_BATCH_BYTES <= size <= len(data) - start:
                batch = data[start : start + size]
                try:
                    header = next(iter_batches(batch))
                    check_crc(batch, header)
                    return StoredBatch(header, batch, position + start)
                except (CorruptRecordError, StopIteration):
                    pass  # the search goes on: any byte may look like a head
            at = data.find(b"\x02", at + 1)
        return None

    def claimed_next_offset(self, position: int, base_offset: int) -> int:
        """What a damaged last batch says the next offset is, if that can be believed, else one after its base."""
        head = self._bytes(position, min(_HEAD.size, self.size - position))
        delta = _HEAD.unpack(head)[6] if len(head) == _HEAD.size else 0
        believable = 0 <= delta < self.size - position  # a record has at least one byte
        return base_offset + (delta if believable else 0) + 1

    def _position_of(self, offset: int, end: int) -> int | None:
        # an entry names an offset of the batch at its position, the last one as a rule; base offsets have no checksum,
        # so they are held against the index and against one another
        entry = self.index.lookup(offset)
        position, held = (entry.position, entry.offset) if entry else (0, None)
        base_due = self.base_offset if self.is_contiguous else None
        while position < end:
            head = self._bytes(position, min(_HEADS_BYTES + _HEAD.size, end - position))
            at = 0
            while at + _HEAD.size <= len(head):
                base_offset, length, _, magic, _, _, delta = _HEAD.unpack_from(head, at)
                if magic != 2 or delta < 0 or length + _BATCH_PREFIX_BYTES < _SMALLEST_BATCH_BYTES:
                    raise InvalidBatchError(position + at, "the head of a batch is senseless", False)
                last_offset = base_offset + delta
                sound = base_due in (None, base_offset) if held is None else base_offset <= held <= last_offset
                if not sound:
                    raise InvalidBatchError(position + at, f"offset {base_offset} stands in a wrong place", True)
                if last_offset >= offset:
                    return position + at
                held, base_due = None, last_offset + 1 if self.is_contiguous else None
                at += length + _BATCH_PREFIX_BYTES
            if at == 0:
                break
            position += at
        if position == self.size and not self.is_contiguous:
            return None
        raise InvalidBatchError(position, f"offset {offset} is not where the log should hold it", False)

    def _last_boundary(self, start: int, limit: int) -> int:
        """The last end of a batch that is not past `limit`; `start` is the beginning of one."""
        if limit >= self.size:
            return self.size
        position = max(self.index.position_floor(limit), start)
        while position < limit:
            head = self._bytes(position, min(_HEADS_BYTES + _BATCH_PREFIX_BYTES, self.size - position))
            at = 0
            while at + _BATCH_PREFIX_BYTES <= len(head):
                _, length = struct.unpack_from(">qi", head, at)
                following = at + max(length, 0) + _BATCH_PREFIX_BYTES
                if position + following > limit:
                    return position + at
                at = following
            if at == 0:
                break
            position += at
        return position

    def _verify(self, data: bytes, start: int) -> int:
        """Checks the batches of `data`; returns where the sound ones end, raises when the first is not sound."""
        position, base_due = start, -1
        try:
            for header in iter_batches(data):
                gap = header.base_offset - base_due
                if base_due >= 0 and (gap < 0 or (gap > 0 and self.is_contiguous)):
                    break  # the next read begins here, and says what is wrong
                self._check(data, header, position)
                position += header.size
                base_due = header.next_offset
        except CorruptRecordError as error:
            if position == start:
                raise InvalidBatchError(position, str(error), False) from error
        except InvalidBatchError:
            if position == start:
                raise
        if position == start:
            raise InvalidBatchError(position, "no whole batch stands here", False)
        self._verified.add(start, position)
        return position

    def _check(self, buffer: bytes, header: BatchHeader, position: int) -> None:
        try:
            check_crc(buffer, header)
        except CorruptRecordError as error:
            raise InvalidBatchError(position, str(error), True) from error

    def _bytes(self, position: int, size: int) -> bytes:
        return read_exactly(self._descriptor, size, position, self.path)

    # --- what a scan finds ---

    def reset(self) -> None:
        """Begins a scan of the whole segment, which makes its indexes anew.

        Raises: StorageError.
        """
        self.index.reset()
        self.next_offset = self.base_offset

    def add_scanned(self, stored: StoredBatch, has_entry: bool = False) -> None:
        """Takes a batch met by a scan in; `has_entry` where the indexes were loaded and reach up to it."""
        header = stored.header
        # a batch that compaction emptied has a time stamp and no record that bears it
        max_timestamp = header.max_timestamp if header.record_count else -1
        self._verified.add(stored.position, stored.position + header.size)
        self.next_offset = header.next_offset
        if has_entry:
            self.index.add_unindexed_batch(header.size, header.last_offset, max_timestamp)
        else:
            self.index.add_batch(stored.position, header.size, header.last_offset, max_timestamp)


class _ByteRanges:
    """A set of byte ranges, merged where they meet."""

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
