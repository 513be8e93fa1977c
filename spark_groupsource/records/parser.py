"""Where the fields of many records lie: the record walk, in NumPy.

Takes the decompressed records of one or more batches, one after another, and gives one array per field; no Python
object is made per record. Record lengths are varints that chain from one to the next, which looks sequential; here the
boundaries are guessed and the guess is proved:

1. The attributes byte of a record is 0, and so is the header count at the end of a record without headers. So a
   record begins behind a zero byte, and its length varint fills the gap up to the next zero byte. Every such gap is a
   candidate: it names a start and, by its length, the start of the record after it.
2. If the candidates chain, each one's next being the one after it, from the first byte to the last, they are what a
   sequential walk would find: a walk that starts where a candidate does reads the same varint.
3. Zero bytes inside keys and values give false candidates. One whose next is neither a candidate nor the end, or that
   no candidate leads to, cannot be in the chain and is dropped; a few rounds leave the chain alone.
4. Records with headers do not end with a zero, so the guess is repeated with every varint that ends before a zero.
5. What resists is walked byte by byte.

Source: https://kafka.apache.org/documentation/#record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_groupsource.errors import CorruptRecordError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_MAX_LENGTH_BYTES = 5
_ROUNDS = 6
# below this many records with headers left a loop over them beats array operations
_FEW_LANES = 8


class RecordFields(NamedTuple):
    """RecordFields of n records, one array each; positions count from the beginning of the payload.

    A length of -1 is null. `header_start` is where the headers begin, behind their count; `end` is where the record
    ends.
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
    """All headers of n records, in order; `record` is the record each belongs to. A value length of -1 is null."""

    record: Ints
    key_start: Ints
    key_length: Ints
    value_start: Ints
    value_length: Ints


def parse_records(payload: Bytes, count: int) -> RecordFields:
    """The fields of exactly `count` records that fill `payload`.

    HeaderFields are not looked into; where a record has none its end is checked, else `parse_headers` does.

    Raises: CorruptRecordError when the payload is anything else.
    """
    body, end = record_bounds(payload, count)
    # the attributes byte has no bit that means anything
    timestamp_delta, at = read_varints(payload, body + 1, 10)
    offset_delta, at = read_varints(payload, at)
    key_length, key_start = read_varints(payload, at)
    at = _behind(key_start, key_length, end, "key")
    value_length, value_start = read_varints(payload, at)
    at = _behind(value_start, value_length, end, "value")
    header_count, header_start = read_varints(payload, at)
    if ((header_count < 0) | (header_start + 2 * header_count > end)).any():
        raise CorruptRecordError("a record claims more headers than it has room for")
    if ((header_count == 0) & (header_start != end)).any():
        raise CorruptRecordError("a record does not end where its length says")
    return RecordFields(
        timestamp_delta, offset_delta, key_start, key_length, value_start, value_length, header_count, header_start, end
    )


def _behind(start: Ints, length: Ints, end: Ints, name: str) -> Ints:
    """Where a field of `length` bytes ends; null takes none."""
    if length.size and int(length.max()) == -1 == int(length.min()):
        return start
    behind: Ints = start + np.maximum(length, 0)
    if ((length < -1) | (behind > end)).any():
        raise CorruptRecordError(f"a record's {name} claims more bytes than the record has")
    return behind


def read_varints(payload: Bytes, at: Ints, max_bytes: int = 5) -> tuple[Ints, Ints]:
    """Zigzag varints at the positions `at`, and the positions behind them; 5 bytes hold 32 bits, 10 hold 64.

    Positions behind the payload read its last byte: whoever asks checks afterwards where a record ended.

    Raises: CorruptRecordError when one does not end within `max_bytes`.
    """
    byte = payload.take(at, mode="clip")
    behind = at + 1
    more = byte >= 0x80
    if not more.any():
        small = byte.astype(np.int64)
        return (small >> 1) ^ -(small & 1), behind
    raw = (byte & 0x7F).astype(np.int64)
    shift = 7
    while more.any():
        if shift >= 7 * max_bytes:
            raise CorruptRecordError(f"a varint is longer than {max_bytes} bytes")
        byte = payload.take(behind, mode="clip")
        raw |= ((byte & 0x7F) * more).astype(np.int64) << shift
        behind += more
        more &= byte >= 0x80
        shift += 7
    if max_bytes == 5 and shift > 28:
        raw &= 0xFFFFFFFF
    return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1), behind


def record_bounds(payload: Bytes, count: int) -> tuple[Ints, Ints]:
    """Where each of `count` records begins, behind its length, and where it ends; they fill `payload`.

    Raises: CorruptRecordError when the lengths do not chain to the end in `count` records.
    """
    if count and payload.size:
        zeros = np.flatnonzero(payload == 0)
        for guess in (_after_zero, _before_zero):
            found = _chain(*guess(payload, zeros), count, payload.size)
            if found is not None:
                return found
    return _sequential_bounds(payload, count)


_Candidates = tuple[Ints, Ints, Ints]  # where the length begins, where the record does, where it ends; by beginning


def _after_zero(payload: Bytes, zeros: Ints) -> _Candidates:
    """Length varints that fill the gap between two zero bytes; the first record has no zero before it."""
    if zeros.size and zeros[0] <= _MAX_LENGTH_BYTES:
        zeros = np.concatenate((np.array([-1], dtype=np.int64), zeros))
    gap = zeros[1:] - zeros[:-1]
    chosen = (gap >= 2) & (gap <= 1 + _MAX_LENGTH_BYTES)
    body = zeros[1:][chosen]
    return _candidates(payload, body, gap[chosen] - 1)


def _before_zero(payload: Bytes, zeros: Ints) -> _Candidates:
    """Every varint that ends before a zero byte: of its at most five bytes all but the last have their top bit set."""
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
    return _candidates(payload, body[order], sizes_[order])


def _candidates(payload: Bytes, body: Ints, size: Ints) -> _Candidates:
    """Candidates whose length varint is the `size` bytes before `body`; those that are none are left out."""
    if not body.size:
        return body, body, body
    byte = payload[body - 1]
    sound = byte < 0x80
    raw = byte.astype(np.int64)
    for place in range(2, int(size.max()) + 1):
        inside = size >= place
        byte = payload.take(body - place, mode="clip")
        sound &= (byte >= 0x80) | ~inside
        raw = np.where(inside, (raw << 7) | (byte & 0x7F), raw)
    end = body + (raw >> 1)
    sound &= (raw & 1 == 0) & (end <= payload.size)
    if sound.all():
        return body - size, body, end
    body = body[sound]
    return body - size[sound], body, end[sound]


def _chain(begin: Ints, body: Ints, end: Ints, count: int, size: int) -> tuple[Ints, Ints] | None:
    """The candidates that lead from byte 0 to the end in `count` steps, or None if they were not isolated."""
    for _ in range(_ROUNDS):
        if len(begin) < count or begin[0] != 0:
            return None
        if len(begin) == count and end[-1] == size and np.array_equal(end[:-1], begin[1:]):
            return body, end
        following = np.searchsorted(begin, end)
        leads = end == size
        inner = following < len(begin)
        leads[inner] |= begin[following[inner]] == end[inner]
        reached = np.zeros(len(begin) + 1, dtype=bool)
        reached[following[leads]] = True
        reached[0] = True
        keep = reached[:-1] & leads
        if keep.all():
            return None
        begin, body, end = begin[keep], body[keep], end[keep]
    return None


def _sequential_bounds(payload: Bytes, count: int) -> tuple[Ints, Ints]:
    """The bounds, one record after the other."""
    data = payload.tobytes()
    size = len(data)
    bounds = np.empty((2, count), dtype=np.int64)
    at = 0
    for record in range(count):
        raw = shift = 0
        while True:
            if at >= size or shift > 28:
                raise CorruptRecordError(f"the length of record {record} does not end")
            byte = data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        length = ((raw & 0xFFFFFFFF) >> 1) ^ -(raw & 1)
        bounds[0, record] = at
        at += length
        # the shortest record has attributes, two deltas, two lengths and a header count
        if length < 6 or at > size:
            raise CorruptRecordError(f"record {record} claims {length} bytes where {size - at + length} are left")
        bounds[1, record] = at
    if at != size:
        raise CorruptRecordError(f"{count} records end {size - at} bytes before their batch does")
    return bounds[0], bounds[1]


def parse_headers(payload: Bytes, fields: RecordFields) -> HeaderFields:
    """The headers of all records, in order.

    Raises: CorruptRecordError when headers do not end where their record does, or one has no key.
    """
    counts = fields.header_count
    first = np.cumsum(counts) - counts
    total = int(counts.sum())
    table = np.empty((4, total), dtype=np.int64)
    lanes = np.flatnonzero(counts)
    at = fields.header_start[lanes]
    turn = 0
    while lanes.size > _FEW_LANES:
        key_length, key_start = read_varints(payload, at)
        if (key_length < 0).any():
            raise CorruptRecordError("a header has no key")
        at = _behind(key_start, key_length, fields.end[lanes], "header key")
        value_length, value_start = read_varints(payload, at)
        at = _behind(value_start, value_length, fields.end[lanes], "header value")
        table[:, first[lanes] + turn] = key_start, key_length, value_start, value_length
        turn += 1
        done = counts[lanes] == turn
        if (at[done] != fields.end[lanes[done]]).any():
            raise CorruptRecordError("the headers of a record do not end where it does")
        lanes, at = lanes[~done], at[~done]
    for lane, position in zip(lanes.tolist(), at.tolist()):
        _walk_lane(payload, position, int(fields.end[lane]), table[:, first[lane] + turn : first[lane] + counts[lane]])
    return HeaderFields(np.repeat(np.arange(len(counts), dtype=np.int64), counts), *table)


def _walk_lane(payload: Bytes, at: int, end: int, table: npt.NDArray[Any]) -> None:
    """The headers of one record, from `at` to `end`, into `table`."""
    data = payload[at:end].tobytes()
    begin = at
    at = 0
    rows = []
    for _ in range(table.shape[1]):
        row = []
        for least in (0, -1):
            raw = shift = 0
            while True:
                if at >= len(data) or shift > 28:
                    raise CorruptRecordError("a header does not end inside its record")
                byte = data[at]
                at += 1
                raw |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            length = ((raw & 0xFFFFFFFF) >> 1) ^ -(raw & 1)
            if length < least or at + length > len(data):
                raise CorruptRecordError("a header claims more bytes than its record has, or has no key")
            row += [begin + at, length]
            at += max(length, 0)
        rows.append(row)
    if at != len(data):
        raise CorruptRecordError("the headers of a record do not end where it does")
    table[:] = np.array(rows, dtype=np.int64).T
