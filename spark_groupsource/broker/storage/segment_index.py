"""Offset index and time index of one segment, in Kafka's formats.

The indexes are sparse: one entry per `index.interval.bytes` of log. Entries are kept in memory and written later,
because recovery after an unclean shutdown rebuilds the indexes anyway.

Of a completed segment, fewer entries are kept than its files have: at 4 kB each GB of log would take 8 MB, which is not
bounded, because Kafka's segments are as many as the disk permits.

Source: Kafka `OffsetIndex` (entries of relative offset int32, position int32) and `TimeIndex` (timestamp int64,
relative offset int32).
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

from spark_groupsource.broker.storage.files import write_exactly
from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import StorageError

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_WRITE_BYTES = 4096
# a segment with more entries has at most one in the default of index.interval.bytes
_FREE_ENTRIES, _MIN_INTERVAL_BYTES = 4_096, 4_096
_THINNED_INTERVAL_BYTES = 16_384
_NO_ENTRIES = array("q")
_NO_BYTES = bytearray()


class IndexEntry(NamedTuple):
    """An offset of the batch at `position` of the log, usually its last offset."""

    offset: int
    position: int


class TimestampAndOffset(NamedTuple):
    """Result of a lookup by timestamp: the timestamp of the record (epoch ms) and its offset."""

    timestamp_ms: int
    offset: int


class SegmentIndex:
    """Both indexes of one log file; `max_timestamp` is -1 without timestamps."""

    __slots__ = (
        "_bytes_since_entry", "_interval_bytes", "_log_path", "_offsets", "_positions", "_sizes", "_suffix",
        "_timestamp_offsets", "_timestamps", "_unwritten", "_unwritten_times", "base_offset", "max_timestamp",
        "offset_of_max_timestamp",
    )  # fmt: skip

    def __init__(self, log_path: Path | str, base_offset: int, interval_bytes: int, suffix: str = "") -> None:
        self.base_offset = base_offset
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        self._log_path, self._suffix = str(log_path), suffix
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        # empty ones are shared until the first entry: most segments of many partitions have none
        self._offsets = self._positions = self._timestamps = self._timestamp_offsets = _NO_ENTRIES
        self._unwritten = self._unwritten_times = _NO_BYTES
        self._sizes = (0, 0)  # bytes of the files with complete entries

    @property
    def paths(self) -> tuple[Path, Path]:
        path = Path(self._log_path)
        return path.with_suffix(f".index{self._suffix}"), path.with_suffix(f".timeindex{self._suffix}")

    # --- lookup ---

    def lookup(self, offset: int) -> IndexEntry | None:
        """Returns the last entry at or below `offset`."""
        found = bisect_right(self._offsets, offset) - 1
        return IndexEntry(self._offsets[found], self._positions[found]) if found >= 0 else None

    def position_floor(self, limit: int) -> int:
        """Returns the last indexed position at or below `limit`, else 0."""
        found = bisect_right(self._positions, limit) - 1
        return self._positions[found] if found >= 0 else 0

    def offset_before_timestamp(self, timestamp_ms: int) -> int:
        """Returns an offset below which every record is older than `timestamp_ms`."""
        found = bisect_left(self._timestamps, timestamp_ms) - 1
        return self._timestamp_offsets[found] if found >= 0 else self.base_offset

    # --- entries ---

    def add_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Adds the batch at `position`, with an entry if enough bytes follow the last entry."""
        # few calls: recovery adds every batch
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, last_offset
        distance = self._bytes_since_entry
        # clients can set the interval, and the entries take memory
        if distance > self._interval_bytes and (
            distance > _MIN_INTERVAL_BYTES or len(self._offsets) < _FREE_ENTRIES
        ):
            self._make_writable()
            self._offsets.append(last_offset)
            self._positions.append(position)
            self._unwritten += _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
            self._add_time_entry()
            distance = 0
        self._bytes_since_entry = distance + size

    def add_timestamp(self, last_offset: int, max_timestamp: int) -> None:
        """Adds the max timestamp of a batch."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, last_offset

    def add_unindexed_batch(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """Adds a batch after the last entry of loaded indexes, without an entry."""
        self.add_timestamp(last_offset, max_timestamp)
        self._bytes_since_entry += size

    def add_search_entry(self, offset: int, position: int) -> None:
        """Adds an entry in memory only, at which a search for `offset` and later offsets starts."""
        self._make_writable()
        at = bisect_left(self._offsets, offset)
        self._offsets.insert(at, offset)
        self._positions.insert(at, position)

    def _make_writable(self) -> None:
        if self._offsets is _NO_ENTRIES:
            self._offsets, self._positions = array("q"), array("q")
            self._timestamps, self._timestamp_offsets = array("q"), array("q")
            self._unwritten, self._unwritten_times = bytearray(), bytearray()

    def _add_time_entry(self) -> None:
        if self.max_timestamp >= 0 and (not self._timestamps or self.max_timestamp > self._timestamps[-1]):
            self._make_writable()
            self._timestamps.append(self.max_timestamp)
            self._timestamp_offsets.append(self.offset_of_max_timestamp)
            relative = self.offset_of_max_timestamp - self.base_offset
            self._unwritten_times += _TIME_ENTRY.pack(self.max_timestamp, relative)

    # --- files ---

    @property
    def should_write(self) -> bool:
        """Whether enough entries are in memory for a `write`."""
        return len(self._unwritten) >= _WRITE_BYTES

    def complete(self) -> None:
        """Adds the last time index entry, as Kafka does when it rolls or closes a segment, and writes both indexes.

        Raises: StorageError.
        """
        self._add_time_entry()
        self.write()
        self.thin()

    def thin(self) -> None:
        """Removes entries of a completed segment from memory: searches read up to 16 kB more of the log."""
        step = _THINNED_INTERVAL_BYTES * len(self._positions) // self._positions[-1] if self._positions else 1
        if step > 1:
            self._offsets, self._positions = self._offsets[::step], self._positions[::step]
        if step > 1 and self._timestamps:
            kept = slice((len(self._timestamps) - 1) % step, None, step)  # with the last one, for the next entry
            self._timestamps, self._timestamp_offsets = self._timestamps[kept], self._timestamp_offsets[kept]

    def write(self) -> None:
        """Appends new entries to the files.

        Raises: StorageError; the next call writes the same entries at the same position.
        """
        if not (self._unwritten or self._unwritten_times):
            return
        sizes = list(self._sizes)
        for number, (path, entries) in enumerate(zip(self.paths, (self._unwritten, self._unwritten_times))):
            if not entries:
                continue
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    write_exactly(descriptor, entries, sizes[number])
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise StorageError(
                    f"{path} cannot be written: {describe_os_error(error, 'Free space or check the disk.')}"
                ) from error
            sizes[number] += len(entries)
            self._sizes = (sizes[0], sizes[1])
            entries.clear()

    def load(self, log_bytes: int, is_contiguous: bool) -> bool:
        """Reads both files; False when they do not match a log of `log_bytes` and must be rebuilt.

        `is_contiguous` if every offset of the log has a record.
        """
        try:
            offsets = self.paths[0].read_bytes()
            times = self.paths[1].read_bytes()
        except OSError:
            return False
        if len(offsets) % _OFFSET_ENTRY.size or len(times) % _TIME_ENTRY.size or (log_bytes and not times):
            return False
        if offsets or times:
            self._make_writable()
        last_offset, last_position, last_timestamp = self.base_offset - 1, -1, -1
        for relative, position in _OFFSET_ENTRY.iter_unpack(offsets):
            if self.base_offset + relative <= last_offset or not last_position < position < log_bytes:
                return False
            last_offset, last_position = self.base_offset + relative, position
            self._offsets.append(last_offset)
            self._positions.append(position)
        for timestamp, relative in _TIME_ENTRY.iter_unpack(times):
            # a record has more than one byte, so a contiguous log has fewer offsets than bytes
            if timestamp <= last_timestamp or relative < 0 or (is_contiguous and relative >= log_bytes):
                return False
            last_timestamp = timestamp
            self._timestamps.append(timestamp)
            self._timestamp_offsets.append(self.base_offset + relative)
        if self._timestamps:
            self.add_timestamp(self._timestamp_offsets[-1], self._timestamps[-1])
        self._sizes = (len(offsets), len(times))
        return True

    def reset(self) -> None:
        """Removes all entries and empties the files.

        Raises: StorageError.
        """
        self._offsets = self._positions = self._timestamps = self._timestamp_offsets = _NO_ENTRIES
        self._unwritten = self._unwritten_times = _NO_BYTES
        self._sizes = (0, 0)
        self._bytes_since_entry = 0
        self.max_timestamp, self.offset_of_max_timestamp = -1, self.base_offset
        for path in self.paths:
            try:
                with open(path, "wb"):
                    pass
            except OSError as error:
                reason = describe_os_error(error, "Check permissions.")
                raise StorageError(f"{path} cannot be written: {reason}") from error
