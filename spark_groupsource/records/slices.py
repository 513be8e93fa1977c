"""Records of one batch in slices of bounded size.

A compressed batch may expand by a factor of 60,000. It is decompressed and parsed slice by slice, so that memory and
the time between two slices depend on the slice size and on the largest record only.
"""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple, Protocol, TypeVar

import numpy as np

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, DecompressionStream, SizeLimitError
from spark_groupsource.records.header import HEADER_BYTES, BatchHeader, Buffer
from spark_groupsource.records.parser import Bytes, RecordFields, parse_records
from spark_groupsource.records.varint import read_varint

_MAX_LENGTH_BYTES = 5
_CHUNK_BYTES = 1 << 18
_FIRST_SLICE_BYTES = 1 << 18
_MIN_SLICE_BYTES = 1 << 14


class _LeadingRecords(Protocol):
    """The whole records at the start of a payload."""

    @property
    def record_count(self) -> int: ...
    @property
    def byte_count(self) -> int: ...
    @property
    def header_count(self) -> int: ...


class RecordSlice(NamedTuple):
    """Whole records, and the positions of their fields in `payload`."""

    payload: Bytes
    fields: RecordFields
    record_count: int
    byte_count: int
    header_count: int


_Read = TypeVar("_Read", bound=_LeadingRecords)


def record_slices(
    buffer: Buffer,
    header: BatchHeader,
    *,
    max_slice_bytes: int,
    max_slice_items: int,
    max_record_bytes: int = DEFAULT_MAX_BYTES,
) -> Iterator[RecordSlice | None]:
    """Yields the parsed records of one batch in order; see `read_slices`."""

    def parse(payload: Bytes, limit: int) -> RecordSlice:
        fields = parse_records(payload, limit, is_open=True)
        size = int(fields.end[-1]) if len(fields.end) else 0
        return RecordSlice(payload[:size], fields, len(fields.end), size, int(fields.header_count.sum()))

    return read_slices(buffer, header, parse, max_slice_bytes, max_slice_items, max_record_bytes)


def read_slices(
    buffer: Buffer,
    header: BatchHeader,
    read: Callable[[Bytes, int], _Read],
    max_slice_bytes: int,
    max_slice_items: int,
    max_record_bytes: int,
) -> Iterator[_Read | None]:
    """Yields the records of one batch in order, and None between the parts of which a slice is read.

    Args:
        read: reads the whole records at the start of a payload, at most a number of them.
        max_slice_bytes: maximum size of a slice, decompressed; a larger record forms its own slice.
        max_slice_items: maximum records of a slice, and about the maximum of its records and headers together.

    Raises: CorruptRecordError if the bytes are not the records that the header announces; SizeLimitError if a record
        exceeds `max_record_bytes`.
    """
    body = memoryview(buffer)[header.position + HEADER_BYTES : header.position + header.size]
    window = _View(body) if header.codec == 0 else _Stream(DecompressionStream(header.codec, body))
    missing = header.record_count
    # the records are at least as large as their part of the compressed bytes
    expected_bytes = len(body) * max_slice_items // max(1, missing)
    slice_bytes = min(max(_FIRST_SLICE_BYTES, expected_bytes), max_slice_bytes)
    while missing:
        while not window.fill(slice_bytes):
            yield None
        size = _first_record_bytes(window.head())
        if size > max_record_bytes:
            raise SizeLimitError(f"A record of {size} bytes exceeds the limit of {max_record_bytes} bytes.")
        while size > slice_bytes and not window.fill(size):
            yield None
        payload = window.first(max(size, slice_bytes))
        found = read(payload, 1 if size > slice_bytes else min(missing, max_slice_items))
        count, end = found.record_count, found.byte_count
        if not count:
            raise CorruptRecordError(f"{missing} records are missing; {payload.size} bytes are left.")
        items = count + found.header_count
        yield found
        # its memory is for the next slice
        del found
        window.skip(end)
        missing -= count
        slice_bytes = max(_MIN_SLICE_BYTES, min(end * max_slice_items // items, max_slice_bytes))
    window.fill(1)
    if window.first(1).size:
        raise CorruptRecordError("The batch continues after its last record.")


def _first_record_bytes(head: bytes) -> int:
    """Returns the size of the record that starts with `head`, which may be incomplete; 0 if its length is invalid."""
    try:
        length, start = read_varint(head, 0)
    except (ValueError, IndexError):
        return 0
    return start + max(length, 0)


class _View:
    """The records of an uncompressed batch, without a copy."""

    def __init__(self, body: memoryview) -> None:
        self._left = np.frombuffer(body, dtype=np.uint8)

    def fill(self, size: int) -> bool:
        return True

    def head(self) -> bytes:
        return self._left[:_MAX_LENGTH_BYTES].tobytes()

    def first(self, size: int) -> Bytes:
        return self._left[:size]

    def skip(self, size: int) -> None:
        self._left = self._left[size:]


class _Stream:
    """The next decompressed bytes of a batch, in one array that is not changed after it was returned."""

    def __init__(self, stream: DecompressionStream) -> None:
        self._stream = stream
        self._buffer: Bytes = np.empty(0, dtype=np.uint8)
        self._size = 0
        self._is_complete = False

    def fill(self, size: int) -> bool:
        """Reads a part of the next `size` bytes; returns True if all of them, or the last ones, are in memory."""
        missing = size - self._size
        if missing > 0 and not self._is_complete:
            if size > self._buffer.size:
                buffer: Bytes = np.empty(size, dtype=np.uint8)
                buffer[: self._size] = self._buffer[: self._size]
                self._buffer = buffer
            chunk_bytes = min(missing, _CHUNK_BYTES)
            chunk = self._stream.read(chunk_bytes)
            self._is_complete = len(chunk) < chunk_bytes
            self._buffer[self._size : self._size + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            self._size += len(chunk)
        return self._is_complete or self._size >= size

    def head(self) -> bytes:
        return self.first(_MAX_LENGTH_BYTES).tobytes()

    def first(self, size: int) -> Bytes:
        return self._buffer[: min(size, self._size)]

    def skip(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._size -= size
