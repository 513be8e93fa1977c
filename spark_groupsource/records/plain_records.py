"""Check of plain records: consecutive offset deltas in the shortest varints.

Producers write records in this form. Records of equal size have their fields at equal distances, so a run of them is
checked by column: a byte of each record is one strided slice. Other records are parsed one by one, as far as that is
faster than array operations.
"""

from __future__ import annotations

from itertools import compress
from typing import Callable, NamedTuple

from spark_groupsource.model import new_tuple
from spark_groupsource.records.varint import read_varint

# more records that are in no run are checked faster by array operations
_MAX_SINGLE = 200
_MAX_SINGLE_OF_MANY = 24
MIN_RUN = 6
"""Fewer records are parsed faster one by one."""
_ALL = bytes(range(256))
_LAST = _ALL[:128]
_LAST_EVEN = bytes(range(0, 128, 2))
_CONTINUED_EVEN = bytes(range(128, 256, 2))
# the bytes of the varints of 0 to 8191; later numbers have a third byte
_BLOCK = 8192
_LOW = _LAST_EVEN + _CONTINUED_EVEN * (_BLOCK // 64 - 1)
_LOW_CONTINUED = _CONTINUED_EVEN * (_BLOCK // 64)
_HIGH = bytes(number >> 6 for number in range(_BLOCK))
_HIGH_CONTINUED = bytes(number >> 6 | 128 for number in range(_BLOCK))


class PlainRecords(NamedTuple):
    """Summary of plain records: the range of their timestamp deltas, and whether all have a key."""

    min_timestamp_delta: int
    max_timestamp_delta: int
    has_keys: bool


def check_plain_records(data: bytes, count: int, start: int = 0) -> PlainRecords | None:
    """Returns the summary of `count` records; None if `data` from `start` is not as many records in plain form.

    With None, the records may be valid or invalid. The time is bounded by some 0.2 ms and 1 ns per byte.
    """
    try:
        return _check(data, count, start)
    except (IndexError, ValueError):
        return None


def _check(data: bytes, count: int, at: int) -> PlainRecords | None:
    """Raises: IndexError or ValueError for invalid records."""
    # one loop without calls: each call per record would take as long as the checks of the record
    index = last_size = 0
    low, high = 1 << 63, -1 << 63
    has_keys = True
    singles = count if count <= _MAX_SINGLE else _MAX_SINGLE_OF_MANY
    while index < count:
        singles -= 1
        if singles < 0:
            return None
        begin = at
        length = data[at]
        at += 1
        if length > 127:
            byte = data[at]
            at += 1
            if byte < 128:
                length += (byte << 7) - 128
            else:
                length, at = _unsigned(data, begin)
        end = at + (length >> 1)
        signs = length
        timestamp_at = at + 1  # no bit of the attributes, the byte before it, is used
        delta = data[timestamp_at]
        at += 2
        if delta > 127:
            delta, at = read_varint(data, timestamp_at, 10)
        else:
            delta = delta >> 1 ^ -(delta & 1)
        if delta > high:
            high = delta
        if delta < low:
            low = delta
        offset_at = at
        if index < 64:
            if data[at] != index << 1:
                return None
            at += 1
        elif index < _BLOCK:
            if data[at] != _LOW[index] or data[at + 1] != _HIGH[index]:
                return None
            at += 2
        else:
            at += 3
            if read_varint(data, offset_at) != (index, at):
                return None
        key_at = at
        length = data[at]
        at += 1
        if length == 1:
            has_keys = False
        else:
            if length > 127:
                length, at = _unsigned(data, key_at)
            signs |= length
            at += length >> 1
        value_at = at
        length = data[at]
        at += 1
        if length != 1:
            if length > 127:
                byte = data[at]
                at += 1
                if byte < 128:
                    length += (byte << 7) - 128
                else:
                    length, at = _unsigned(data, value_at)
            signs |= length
            at += length >> 1
        headers = data[at]
        at += 1
        if headers:
            at = _end_of_headers(data, at, headers)
        if at != end or signs & 1:
            return None
        index += 1
        size = at - begin
        # the first record whose offset delta has one byte, or two, is usually followed by others of its size
        may_begin_run = size == last_size or index == 1 or index == 65
        if may_begin_run and not headers and count - index >= MIN_RUN:
            run = run_of_equal_sizes(data, begin, timestamp_at, offset_at, key_at, value_at, at, index, count - index)
            if run is not None:
                length, first, last = run
                index += length
                at += length * size
                low, high = min(low, first), max(high, last)
        last_size = size
    return new_tuple(PlainRecords, (low, high, has_keys)) if at == len(data) else None


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Returns a varint of at most 32 bits, before zigzag decoding, and the position after it."""
    value, after = read_varint(data, at)
    return (value << 1 if value >= 0 else ~(value << 1)), after


def _end_of_headers(data: bytes, at: int, headers: int) -> int:
    """Returns the position after the headers, whose count was read as one byte."""
    if headers > 127 or headers & 1:
        raise ValueError("too many headers")
    for _ in range(headers >> 1):
        length = data[at]
        at += 1
        if length > 127:
            length, at = _unsigned(data, at - 1)
        signs = length
        at += length >> 1
        length = data[at]
        at += 1
        if length != 1:
            if length > 127:
                length, at = _unsigned(data, at - 1)
            signs |= length
            at += length >> 1
        if signs & 1:
            raise ValueError("the length of a header is negative")
    return at


def run_of_equal_sizes(
    data: bytes, begin: int, timestamp_at: int, offset_at: int, key_at: int, value_at: int, end: int, index: int,
    count: int,
) -> tuple[int, int, int] | None:  # fmt: skip
    """Finds the records from `end` on that have fields of the same sizes as the record from `begin` to `end`.

    Each of them begins where the one before it ends, because all have the same length.

    Args:
        timestamp_at, offset_at, key_at, value_at: positions in the record before them; the lengths of key and value.
        index: number of the first.
        count: their maximum number.

    Returns: their number, and the range of their timestamp deltas; None without any, or without a few of equal length.

    Raises: ValueError if their offset deltas are not `index` and the following numbers.
    """
    size, timestamp_bytes = end - begin, offset_at - timestamp_at
    if data[end : end + size * MIN_RUN : size] != data[begin : begin + 1] * MIN_RUN:
        return None  # records of random sizes: the columns would take longer than the records
    if timestamp_bytes > 2 or key_at - offset_at != (1 if index < 64 else 2 if index < _BLOCK else 3):
        return None
    count = min(count, (len(data) - end) // size, _BLOCK - index % _BLOCK if index >= 64 else 64 - index)
    places = [*range(begin, timestamp_at - 1), key_at, value_at, end - 1]
    for at in (key_at, value_at):
        while data[at] > 127:
            at += 1
            places.append(at)
    after = end + size * count
    for at in places:
        constant = data[at : at + 1]
        column = data[at + size : after : size]
        if column != constant * count:
            count = min(count, _prefix(column, constant))
    first = data[timestamp_at + size : after : size]
    second = data[timestamp_at + 1 + size : after : size]
    if timestamp_bytes == 1:
        count = min(count, _prefix(first, _LAST_EVEN))
    else:
        count = min(count, _prefix(first, _CONTINUED_EVEN), _prefix(second, _LAST))
    if count < 1:
        return None
    for at, expected in enumerate(_offset_columns(index, count), offset_at + size):
        if data[at : end + size * count : size] != expected:
            raise ValueError("the offset deltas have gaps")
    if timestamp_bytes == 1:
        return count, _lowest(first[:count]) >> 1, _highest(first[:count]) >> 1
    pair = first[:count], second[:count]
    return count, _two_bytes(*pair, _lowest), _two_bytes(*pair, _highest)


def _prefix(column: bytes, allowed: bytes) -> int:
    """Returns the number of bytes before the first that is not `allowed`."""
    if not column.translate(None, allowed):
        return len(column)
    return len(column) - len(column.lstrip(allowed))


def _offset_columns(index: int, count: int) -> tuple[bytes, ...]:
    """Returns the bytes of the varints of `index` and the following numbers; all are in one block."""
    block, start = divmod(index, _BLOCK)
    part = slice(start, start + count)
    if index < 64:
        return (_LOW[part],)
    if not block:
        return _LOW[part], _HIGH[part]
    return _LOW_CONTINUED[part], _HIGH_CONTINUED[part], bytes((block,)) * count


def _two_bytes(first: bytes, second: bytes, choose: Callable[[bytes], int]) -> int:
    """Returns the lowest or highest of the even varints of two bytes, decoded."""
    chosen = choose(second)
    part = slice(second.index(chosen), second.rindex(chosen) + 1)
    is_chosen = bytes(number == chosen for number in range(128))
    candidates = bytes(compress(first[part], second[part].translate(is_chosen.ljust(256, b"\0"))))
    return chosen << 6 | choose(candidates) - 128 >> 1


def _lowest(column: bytes) -> int:
    # faster than min() if the column is sorted, as timestamps are
    lower = column.translate(None, _ALL[column[0] :])
    return min(lower) if lower else column[0]


def _highest(column: bytes) -> int:
    higher = column.translate(None, _ALL[: column[-1] + 1])
    return max(higher) if higher else column[-1]
