"""Vectorized record parser: positions of the fields of many records, with NumPy.

The input is the decompressed records of one or more batches, the output one array per field; no Python object is
created per record. Each record starts with its length, so the boundaries form a chain that a simple parser follows
sequentially. This parser finds candidates in parallel and verifies them:

1. The attributes byte of a record is 0, and so is the header count at the end of a record without headers. A record
   therefore starts after a zero byte, and its length varint fills the gap up to the next zero byte. Every such gap is a
   candidate: it has a start and, by its length, an end.
2. If the candidates form a chain from the first byte to the last, where each one ends at the start of the next, they
   are the boundaries that a sequential parser finds: starting at the same byte, it reads the same varint.
3. Zero bytes in keys and values cause false candidates. A candidate whose end is neither a candidate nor the end of the
   payload, or at whose start no candidate ends, is not in the chain and is removed; a few rounds isolate the chain.
4. Records with headers do not end with a zero byte. In this case the search is repeated with every varint that ends
   before a zero byte.
5. If no chain is found, the boundaries are parsed sequentially.

Source: https://kafka.apache.org/documentation/#record.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_groupsource.errors import CorruptRecordError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Table = npt.NDArray[Any]

MIN_RECORD_BYTES = 7
"""The shortest record has a length, attributes, two deltas, two lengths and a header count."""

_MAX_LENGTH_BYTES = 5
_ROUNDS = 6
# values full of zeros have so many candidates that following the lengths is faster, and takes less memory
_MANY_ZEROS = 1 << 19
_ZEROS_PER_RECORD = 16
# with fewer remaining records a loop is faster than array operations
_FEW_RECORDS = 8
_HEADERS_PER_STEP = 8192
_HEADER_COPY_BYTES = 1 << 18


class RecordFields(NamedTuple):
    """The fields of n records, one array each. Positions are relative to the payload; a length of -1 is null.

    `header_start` is the position after the header count, `end` that after the record.
    """

    timestamp_delta: Ints
    offset_delta: Ints
    key_start: Ints
    key_length: Ints
    value_start: Ints
    value_length: Ints
    header_count: Ints
    header_start: Ints
    end: Ints


class HeaderFields(NamedTuple):
    """All headers of n records, in order. A value length of -1 is null."""

    key_start: Ints
    key_length: Ints
    value_start: Ints
    value_length: Ints


def parse_records(payload: Bytes, count: int, is_open: bool = False) -> RecordFields:
    """Returns the positions of the fields of `count` records.

    The last record of a payload that `is_open` may be incomplete: the whole ones are parsed, at most `count`.
    Headers are not parsed. The end of a record is checked if it has no headers; else `parse_headers` checks it.

    Raises: CorruptRecordError if `payload` is not exactly `count` records, or a whole record is invalid.
    """
    body, end = record_bounds(payload, count, is_open)
    # no bit of the attributes byte is used
    timestamp_delta, at = read_varints(payload, body + 1, 10)
    offset_delta, at = read_varints(payload, at)
    key_length, key_start = read_varints(payload, at)
    at = _field_end(key_start, key_length, end, "key")
    value_length, value_start = read_varints(payload, at)
    at = _field_end(value_start, value_length, end, "value")
    header_count, header_start = read_varints(payload, at)
    if ((header_count < 0) | (header_start + 2 * header_count > end)).any():
        raise CorruptRecordError("The header count of a record exceeds its length.")
    if ((header_count == 0) & (header_start != end)).any():
        raise CorruptRecordError("The length of a record does not match its fields.")
    return RecordFields(
        timestamp_delta, offset_delta, key_start, key_length, value_start, value_length, header_count, header_start, end
    )


def _field_end(start: Ints, length: Ints, end: Ints, name: str) -> Ints:
    """Returns the end of a field of `length` bytes; null has none."""
    if length.size and int(length.max()) == -1 == int(length.min()):
        return start
    field_end: Ints = start + np.maximum(length, 0)
    if ((length < -1) | (field_end > end)).any():
        raise CorruptRecordError(f"The {name} length exceeds the record.")
    return field_end


def read_varints(payload: Bytes, at: Ints, max_bytes: int = 5) -> tuple[Ints, Ints]:
    """Returns the zigzag varints at the positions `at`, and the positions after them. 5 bytes hold 32 bits, 10 hold 64.

    A position after the payload reads the last byte; the caller must check the end of the record.

    Raises: CorruptRecordError if a varint does not end within `max_bytes`.
    """
    byte = payload.take(at, mode="clip")
    following = at + 1
    more = byte >= 0x80
    if not more.any():
        small = byte.astype(np.int64)
        return (small >> 1) ^ -(small & 1), following
    raw = (byte & 0x7F).astype(np.int64)
    shift = 7
    while more.any():
        if shift >= 7 * max_bytes:
            raise CorruptRecordError(f"A varint is longer than {max_bytes} bytes.")
        byte = payload.take(following, mode="clip")
        raw |= ((byte & 0x7F) * more).astype(np.int64) << shift
        following += more
        more &= byte >= 0x80
        shift += 7
    if max_bytes == 5 and shift > 28:
        raw &= 0xFFFFFFFF
    return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1), following


def record_bounds(payload: Bytes, count: int, is_open: bool = False) -> tuple[Ints, Ints]:
    """Returns for each record the position after its length, and its end; see `parse_records`.

    Raises: CorruptRecordError if `payload` is not exactly `count` records, or one of an open payload is invalid.
    """
    # one record may be large, and its zero bytes are as large as itself
    is_zero = payload == 0 if count > 1 else None
    most = _MANY_ZEROS if is_open else max(_MANY_ZEROS, _ZEROS_PER_RECORD * count)
    if is_zero is not None and np.count_nonzero(is_zero) <= most:
        zeros = np.flatnonzero(is_zero)
        for find in (_after_zero, _before_zero):
            found = _chain(*find(payload, zeros, is_open), payload.size, None if is_open else count)
            if found is not None:
                return found[0][:count], found[1][:count]
    return _sequential_bounds(payload, count, is_open)


_Candidates = tuple[Ints, Ints, Ints]  # starts of the length and of the record, end of the record; ordered


def _after_zero(payload: Bytes, zeros: Ints, is_open: bool) -> _Candidates:
    """Returns length varints between two zero bytes; the first record has no zero byte before it."""
    if zeros.size and zeros[0] <= _MAX_LENGTH_BYTES:
        zeros = np.concatenate((np.array([-1], dtype=np.int64), zeros))
    gap = zeros[1:] - zeros[:-1]
    chosen = (gap >= 2) & (gap <= 1 + _MAX_LENGTH_BYTES)
    body = zeros[1:][chosen]
    return _candidates(payload, body, gap[chosen] - 1, is_open)


def _before_zero(payload: Bytes, zeros: Ints, is_open: bool) -> _Candidates:
    """Returns all varints before a zero byte: at most five bytes, all but the last with the top bit set."""
    bodies, sizes = [], []
    body = zeros[zeros > 0]
    size = 1
    while body.size and size <= _MAX_LENGTH_BYTES:
        bodies.append(body)
        sizes.append(np.full(body.size, size, dtype=np.int64))
        size += 1
        body = body[body >= size]
        body = body[payload[body - size] >= 0x80]
    if not bodies:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, nothing
    body, sizes_ = np.concatenate(bodies), np.concatenate(sizes)
    order = np.argsort(body - sizes_, kind="stable")
    return _candidates(payload, body[order], sizes_[order], is_open)


def _candidates(payload: Bytes, body: Ints, size: Ints, is_open: bool) -> _Candidates:
    """Returns the candidates whose length varint is the `size` bytes before `body`, without invalid ones.

    If the payload `is_open`, the last record may end after it.
    """
    if not body.size:
        return body, body, body
    byte = payload[body - 1]
    valid = byte < 0x80
    raw = byte.astype(np.int64)
    for place in range(2, int(size.max()) + 1):
        inside = size >= place
        byte = payload.take(body - place, mode="clip")
        valid &= (byte >= 0x80) | ~inside
        raw = np.where(inside, (raw << 7) | (byte & 0x7F), raw)
    end = body + (raw >> 1)
    valid &= raw & 1 == 0
    if not is_open:
        valid &= end <= payload.size
    if valid.all():
        return body - size, body, end
    body = body[valid]
    return body - size[valid], body, end[valid]


def _chain(begin: Ints, body: Ints, end: Ints, size: int, count: int | None) -> tuple[Ints, Ints] | None:
    """Returns the chain of `count` candidates from byte 0 to the end, or None if it was not isolated.

    Without a count the payload is open: the start of the record after the last whole one is no candidate if its
    attributes byte is not in the payload.
    """
    is_last = end > size - _MAX_LENGTH_BYTES - 1 if count is None else end == size
    for _ in range(_ROUNDS):
        if len(begin) < (count or 1) or begin[0] != 0:
            return None
        if count in (None, len(begin)) and is_last[-1] and np.array_equal(end[:-1], begin[1:]):
            whole = end <= size
            return body[whole], end[whole]
        following = np.searchsorted(begin, end)
        inner = following < len(begin)
        linked = np.zeros(len(begin), dtype=bool)
        linked[inner] = begin[following[inner]] == end[inner]
        reached = np.zeros(len(begin), dtype=bool)
        reached[following[linked]] = True
        reached[0] = True
        keep = reached & (linked | is_last)
        if keep.all():
            return None
        begin, body, end, is_last = begin[keep], body[keep], end[keep], is_last[keep]
    return None


def _sequential_bounds(payload: Bytes, count: int, is_open: bool) -> tuple[Ints, Ints]:
    """Returns the bounds, parsed sequentially; those of the whole records if the payload `is_open`."""
    size = payload.size
    if is_open:
        count = min(count, size // MIN_RECORD_BYTES)
    # bytes are read faster than a view, but a copy of one large record costs more
    data: bytes | memoryview = payload.data if count <= _FEW_RECORDS else payload.tobytes()
    bounds = np.empty((2, count), dtype=np.int64)
    at = 0
    for record in range(count):
        raw = shift = 0
        while True:
            if at >= size or shift > 28:
                if is_open and shift <= 28:
                    return bounds[0, :record], bounds[1, :record]
                raise CorruptRecordError(f"The length of record {record} does not end.")
            byte = data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        length = ((raw & 0xFFFFFFFF) >> 1) ^ -(raw & 1)
        bounds[0, record] = at
        at += length
        if is_open and at > size and length >= MIN_RECORD_BYTES - 1:
            return bounds[0, :record], bounds[1, :record]
        if length < MIN_RECORD_BYTES - 1 or at > size:
            raise CorruptRecordError(f"Record {record}: length {length}, {size - at + length} bytes left.")
        bounds[1, record] = at
    if at != size and not is_open:
        raise CorruptRecordError(f"{size - at} bytes after record {count}.")
    return bounds[0], bounds[1]


def parse_headers(payload: Bytes, fields: RecordFields) -> HeaderFields:
    """Returns the positions of the headers of all records, in order.

    Raises: CorruptRecordError if headers do not end with their record, or if a header key is null.
    """
    table = np.empty((4, int(fields.header_count.sum())), dtype=np.int64)
    for _ in _walk_headers(payload, fields, table):
        pass
    return HeaderFields(*table)


def check_headers(payload: Bytes, fields: RecordFields) -> Iterator[None]:
    """Checks the headers of all records in steps of some milliseconds.

    Raises: CorruptRecordError if headers do not end with their record, or if a header key is null.
    """
    return _walk_headers(payload, fields, None)


def _walk_headers(payload: Bytes, fields: RecordFields, table: Table | None) -> Iterator[None]:
    """Writes the fields of each header to `table`, and yields between steps: the n-th headers of all records together,
    while many records have one, and then record by record.
    """
    counts = fields.header_count
    first = np.cumsum(counts) - counts
    pending = np.flatnonzero(counts)
    at = fields.header_start[pending]
    index = 0
    while pending.size > _FEW_RECORDS:
        key_length, key_start = read_varints(payload, at)
        if (key_length < 0).any():
            raise CorruptRecordError("A header key is null.")
        at = _field_end(key_start, key_length, fields.end[pending], "header key")
        value_length, value_start = read_varints(payload, at)
        at = _field_end(value_start, value_length, fields.end[pending], "header value")
        if table is not None:
            table[:, first[pending] + index] = key_start, key_length, value_start, value_length
        index += 1
        done = counts[pending] == index
        if (at[done] != fields.end[pending[done]]).any():
            raise CorruptRecordError("The headers of a record do not match its length.")
        pending, at = pending[~done], at[~done]
        yield
    for record, position in zip(pending.tolist(), at.tolist()):
        end, row, last_row = int(fields.end[record]), int(first[record]) + index, int(first[record] + counts[record])
        while row < last_row:
            count = min(_HEADERS_PER_STEP, last_row - row)
            rows = None if table is None else table[:, row : row + count]
            position = _parse_headers_of_record(payload, position, end, count, rows)
            row += count
            yield
        if position != end:
            raise CorruptRecordError("The headers of a record do not match its length.")


def _parse_headers_of_record(payload: Bytes, begin: int, end: int, count: int, table: Table | None) -> int:
    """Writes `count` headers of one record, which ends at `end`, to `table`; returns the position after them."""
    # a small copy is made first: headers are short, but a record may continue for megabytes
    for size in (min(_HEADER_COPY_BYTES, end - begin), end - begin):
        rows: list[int] = []
        data = payload[begin : begin + size].tobytes()
        try:
            at = _append_headers(rows, data, begin, count)
            break
        except IndexError:
            if begin + size == end:
                raise CorruptRecordError("The length of a header exceeds its record, or its key is null.") from None
    if table is not None:
        table[:] = np.array(rows, dtype=np.int64).reshape(count, 4).T
    return begin + at


def _append_headers(rows: list[int], data: bytes, begin: int, count: int) -> int:
    """Appends the fields of `count` headers; returns their size. Raises: IndexError if `data` ends before."""
    at = 0
    for _ in range(count):
        for least in (0, -1):
            raw = shift = 0
            while True:
                byte = data[at]
                at += 1
                raw |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 28:
                    raise CorruptRecordError("A header exceeds its record.")
            length = ((raw & 0xFFFFFFFF) >> 1) ^ -(raw & 1)
            if length < least:
                raise CorruptRecordError("The length of a header exceeds its record, or its key is null.")
            rows += (begin + at, length)
            at += max(length, 0)
        if at > len(data):
            raise IndexError
    return at
