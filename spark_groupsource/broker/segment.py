"""One segment of a partition's log: a file of record batches with its offset and time index, in Kafka's formats.

Knows bytes, files and the fixed head of a record batch; knows no topic and no protocol. An index is sparse: one entry
after every `index.interval.bytes` of log. Entries are kept in memory and written behind, for a log that was not closed
cleanly is scanned anyway and its indexes made anew.

Source: Kafka `LogSegment`, `OffsetIndex` (entries of relative offset int32, position int32) and `TimeIndex` (timestamp
int64, relative offset int32).
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Iterator, NamedTuple

from spark_groupsource.broker.files import FileCache, read_exactly, write_exactly
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.records.batch import BatchHeader, check_crc, iter_batches

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
# base offset, batch length, leader epoch, magic, crc, attributes, last offset delta
_HEAD = struct.Struct(">qiiBIhi")
_BATCH_PREFIX_BYTES = 12
_SMALLEST_BATCH_BYTES = 61
_SCAN_BYTES = 1 << 20
_INDEX_WRITE_BYTES = 4096
_LARGEST_RELATIVE_OFFSET = 2**31 - 1


class StoredBatch(NamedTuple):
    """A batch met by a scan: its header, the buffer the header points into, its position in the file."""

    header: BatchHeader
    buffer: bytes
    position: int


class UnreadableBytes(Exception):
    """Bytes that are no good batch, at `position` of the file; `complete` when a whole batch stands there."""

    def __init__(self, position: int, reason: str, complete: bool) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.complete = complete


class Segment:
    """Batches from `base_offset` on; `size` counts the bytes that are part of the log."""

    def __init__(
        self, directory: Path, base_offset: int, files: FileCache, index_interval_bytes: int, contiguous: bool
    ) -> None:
        self.base_offset = base_offset
        self.contiguous = contiguous  # no offset is missing: nothing was compacted away
        self.path = directory / f"{base_offset:020d}.log"
        self.index_path = self.path.with_suffix(".index")
        self.time_index_path = self.path.with_suffix(".timeindex")
        self.closed = False  # nothing more may be appended
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        self._files = files
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_entry = 0
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self._timestamp_offsets = array("q")
        self._unwritten = bytearray()
        self._unwritten_times = bytearray()
        self._verified = _Ranges()

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
            for path in (self.path, self.index_path, self.time_index_path):
                with open(path, "wb"):
                    pass
        except OSError as error:
            text = f"{self.path} cannot be created: {error.strerror}; check space and permissions"
            raise StorageError(text) from error

    def fits(self, batch_bytes: int, last_offset: int, segment_bytes: int) -> bool:
        """False when the log must roll before a batch is appended."""
        if self.closed or last_offset - self.base_offset > _LARGEST_RELATIVE_OFFSET:
            return False
        return self.size == 0 or self.size + batch_bytes <= segment_bytes

    def append(self, batch: bytes | bytearray | memoryview, last_offset: int, max_timestamp: int) -> None:
        """Writes a batch whose offsets are set.

        Raises: StorageError when it cannot be written whole; the segment is then as before.
        """
        try:
            write_exactly(self._descriptor, batch, self.size)
        except OSError as error:
            self.cut(self.size)
            text = f"{self.path} cannot be written: {error.strerror}; free space or mend the disk"
            raise StorageError(text) from error
        position = self.size
        self.size += len(batch)
        self._verified.add(position, self.size)
        self._note(position, len(batch), last_offset, max_timestamp)

    def cut(self, size: int) -> None:
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
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be flushed: {error.strerror}; mend the disk") from error

    def remove(self) -> None:
        """Deletes the files."""
        self._files.forget(self.path)
        for path in (self.path, self.index_path, self.time_index_path, self.path.with_suffix(".snapshot")):
            path.unlink(missing_ok=True)

    # --- reading ---

    def read(self, offset: int, max_bytes: int, end: int | None = None) -> memoryview:
        """Whole batches from the one that holds `offset` on, at least one, then as many as `max_bytes` allows.

        `end` is a position in the file not to be passed. Every byte returned was verified, now or before.

        Raises: UnreadableBytes at damage in the first batch; StorageError.
        """
        end = self.size if end is None else end
        start = self._position_of(offset, end)
        (length,) = struct.unpack_from(">i", self._bytes(start + 8, 4))
        stop = self._last_boundary(start, max(min(start + max_bytes, end), start + length + _BATCH_PREFIX_BYTES))
        if stop > end:
            raise UnreadableBytes(start, "a batch reaches past the end of the log", False)
        data = self._bytes(start, stop - start)
        if not self._verified.covers(start, stop):
            stop = self._verify(data, start)
        return memoryview(data)[: stop - start]

    def from_timestamp(self, timestamp_ms: int, end: int) -> Iterator[StoredBatch]:
        """The batches among which the first record stamped `timestamp_ms` or later is, and those behind it.

        Raises: UnreadableBytes, StorageError.
        """
        entry = bisect_left(self._timestamps, timestamp_ms) - 1
        return self.scan(self.position_at_or_before(self._timestamp_offsets[entry]) if entry >= 0 else 0, end)

    def position_at_or_before(self, offset: int) -> int:
        """Where the index says to begin a search for `offset`."""
        entry = bisect_right(self._offsets, offset) - 1
        return self._positions[entry] if entry >= 0 else 0

    def locate(self, error: UnreadableBytes) -> tuple[UnreadableBytes, int]:
        """Where the damage that showed as `error` really begins, and the offset due there.

        A wrong length or offset shows at the batch behind the damaged one, so everything from the index entry before
        is checked.

        Raises: StorageError.
        """
        start = self._indexed_before(error.position)
        while True:
            offset = self.base_offset
            expected = self.base_offset if self.contiguous and start == 0 else None
            try:
                for stored in self.scan(start, self.size, expected):
                    if stored.position > start and self.contiguous and stored.header.base_offset != offset:
                        raise UnreadableBytes(stored.position, f"offset {offset} is due here", True)
                    if stored.position >= error.position:
                        return error, offset
                    offset = stored.header.next_offset
            except UnreadableBytes as found:
                if found.position > start or start == 0:
                    return found, offset
                start = self._indexed_before(start)
            else:
                return error, offset

    def _indexed_before(self, position: int) -> int:
        entry = bisect_left(self._positions, position) - 1
        return self._positions[entry] if entry >= 0 else 0

    def scan(
        self, start: int, end: int, expected_offset: int | None = None, check: bool = True
    ) -> Iterator[StoredBatch]:
        """Walks the batches between two positions, checksums included unless `check` is False.

        `expected_offset` demands that the batches follow one another without a gap from that offset on.

        Raises: UnreadableBytes, StorageError.
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
                        raise UnreadableBytes(position, reason, True)
                    if check:
                        self._check(chunk, header, position)
                    yield StoredBatch(header, chunk, position)
                    position += header.size
                    lowest = header.next_offset
                    expected_offset = None if expected_offset is None else header.next_offset
            except CorruptRecordError as error:
                raise UnreadableBytes(position, str(error), False) from error
            if position == start:
                raise UnreadableBytes(position, f"the last {end - position} bytes are no whole batch", False)
            start = position

    def next_good_batch(self, position: int, lowest_offset: int) -> StoredBatch | None:
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

    def _position_of(self, offset: int, end: int) -> int:
        # an entry names an offset of the batch at its position, the last one as a rule; base offsets have no checksum,
        # so they are held against the index and against one another
        entry = bisect_right(self._offsets, offset) - 1
        position = self._positions[entry] if entry >= 0 else 0
        held = self._offsets[entry] if entry >= 0 else None
        base_due = self.base_offset if self.contiguous else None
        while position < end:
            head = self._bytes(position, min(4096 + _HEAD.size, end - position))
            at = 0
            while at + _HEAD.size <= len(head):
                base_offset, length, _, magic, _, _, delta = _HEAD.unpack_from(head, at)
                if magic != 2 or delta < 0 or length + _BATCH_PREFIX_BYTES < _SMALLEST_BATCH_BYTES:
                    raise UnreadableBytes(position + at, "the head of a batch is senseless", False)
                last_offset = base_offset + delta
                sound = base_due in (None, base_offset) if held is None else base_offset <= held <= last_offset
                if not sound:
                    raise UnreadableBytes(position + at, f"offset {base_offset} stands in a wrong place", True)
                if last_offset >= offset:
                    return position + at
                held, base_due = None, last_offset + 1 if self.contiguous else None
                at += length + _BATCH_PREFIX_BYTES
            if at == 0:
                break
            position += at
        raise UnreadableBytes(position, f"offset {offset} is not where the log should hold it", False)

    def _last_boundary(self, start: int, limit: int) -> int:
        """The last end of a batch that is not past `limit`; `start` is the beginning of one."""
        if limit >= self.size:
            return self.size
        entry = bisect_right(self._positions, limit) - 1
        position = max(self._positions[entry], start) if entry >= 0 else start
        while position < limit:
            head = self._bytes(position, min(4096 + _BATCH_PREFIX_BYTES, self.size - position))
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
                if base_due >= 0 and (gap < 0 or (gap > 0 and self.contiguous)):
                    break  # the next read begins here, and says what is wrong
                self._check(data, header, position)
                position += header.size
                base_due = header.next_offset
        except CorruptRecordError as error:
            if position == start:
                raise UnreadableBytes(position, str(error), False) from error
        except UnreadableBytes:
            if position == start:
                raise
        if position == start:
            raise UnreadableBytes(position, "no whole batch stands here", False)
        self._verified.add(start, position)
        return position

    def _check(self, buffer: bytes, header: BatchHeader, position: int) -> None:
        try:
            check_crc(buffer, header)
        except CorruptRecordError as error:
            raise UnreadableBytes(position, str(error), True) from error

    def _bytes(self, position: int, size: int) -> bytes:
        return read_exactly(self._descriptor, size, position, self.path)

    # --- indexes ---

    def _note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self._bytes_since_entry > self._index_interval_bytes:
            self._add_entry(last_offset, position)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.next_offset = last_offset + 1

    def _add_entry(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset)
        self._positions.append(position)
        self._unwritten += _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
        self._add_time_entry()
        if len(self._unwritten) >= _INDEX_WRITE_BYTES:
            self.write_indexes()

    def _add_time_entry(self) -> None:
        if self.max_timestamp >= 0 and (not self._timestamps or self.max_timestamp > self._timestamps[-1]):
            self._timestamps.append(self.max_timestamp)
            self._timestamp_offsets.append(self.offset_of_max_timestamp)
            relative = self.offset_of_max_timestamp - self.base_offset
            self._unwritten_times += _TIME_ENTRY.pack(self.max_timestamp, relative)

    def seal(self) -> None:
        """Completes the time index, as Kafka does when it rolls or closes a segment, and writes both indexes.

        Raises: StorageError.
        """
        self._add_time_entry()
        self.write_indexes()

    def write_indexes(self) -> None:
        """Appends to the index files what is not yet in them.

        Raises: StorageError.
        """
        for path, entries in ((self.index_path, self._unwritten), (self.time_index_path, self._unwritten_times)):
            if not entries:
                continue
            try:
                with open(path, "ab") as file:
                    file.write(entries)
            except OSError as error:
                text = f"{path} cannot be written: {error.strerror}; free space or mend the disk"
                raise StorageError(text) from error
            entries.clear()

    def load_indexes(self) -> bool:
        """Reads both index files of a closed segment; False when they do not fit the log and must be made anew."""
        try:
            offsets = self.index_path.read_bytes()
            times = self.time_index_path.read_bytes()
        except OSError:
            return False
        if len(offsets) % _OFFSET_ENTRY.size or len(times) % _TIME_ENTRY.size or (self.size and not times):
            return False
        last_offset, last_position, last_timestamp = self.base_offset - 1, -1, -1
        for relative, position in _OFFSET_ENTRY.iter_unpack(offsets):
            if self.base_offset + relative <= last_offset or not last_position < position < self.size:
                return False
            last_offset, last_position = self.base_offset + relative, position
            self._offsets.append(last_offset)
            self._positions.append(position)
        for timestamp, relative in _TIME_ENTRY.iter_unpack(times):
            # a record takes more than a byte, so a gapless log has fewer offsets than bytes
            if timestamp <= last_timestamp or relative < 0 or (self.contiguous and relative >= self.size):
                return False
            last_timestamp = timestamp
            self._timestamps.append(timestamp)
            self._timestamp_offsets.append(self.base_offset + relative)
        if self._timestamps:
            self.max_timestamp, self.offset_of_max_timestamp = self._timestamps[-1], self._timestamp_offsets[-1]
        return True

    def last_indexed_position(self) -> int:
        """Where a scan for the end of the log may begin."""
        return self._positions[-1] if self._positions else 0

    def reset_indexes(self) -> None:
        """Forgets the indexes, in memory and on disk."""
        for entries in (self._offsets, self._positions, self._timestamps, self._timestamp_offsets):
            del entries[:]
        self._unwritten.clear()
        self._unwritten_times.clear()
        self._bytes_since_entry = 0
        self.max_timestamp, self.offset_of_max_timestamp = -1, self.base_offset
        self.next_offset = self.base_offset
        for path in (self.index_path, self.time_index_path):
            try:
                with open(path, "wb"):
                    pass
            except OSError as error:
                raise StorageError(f"{path} cannot be written: {error.strerror}; check permissions") from error

    def note_scanned(self, stored: StoredBatch) -> None:
        """Takes a batch met by a scan of the whole segment into the indexes."""
        header = stored.header
        self._verified.add(stored.position, stored.position + header.size)
        self._note(stored.position, header.size, header.last_offset, header.max_timestamp)

    def add_landmark(self, stored: StoredBatch) -> None:
        """Lets a search for the offsets of the first batch behind damage begin there; in memory only."""
        at = bisect_left(self._offsets, stored.header.base_offset)
        self._offsets.insert(at, stored.header.base_offset)
        self._positions.insert(at, stored.position)

    def note_tail(self, stored: StoredBatch) -> None:
        """Takes a batch behind the last index entry into account without an entry of its own."""
        header = stored.header
        self._verified.add(stored.position, stored.position + header.size)
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
        self._bytes_since_entry += header.size
        self.next_offset = header.next_offset


class _Ranges:
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
