"""Keys and values of the records of a batch.

A restarting broker reads every record of the coordinators' logs, so this takes a fraction of the time of `decode`, to
which it leaves batches with anything unusual. Source: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import Iterator, Optional

from spark_groupsource.records.decode import decode_records, records_bytes
from spark_groupsource.records.header import BatchHeader, Buffer
from spark_groupsource.records.plain_records import MIN_RUN, run_of_equal_sizes

KeyValue = tuple[Optional[bytes], Optional[bytes]]
_SLICE_RECORDS = 2_000


def key_value_slices(buffer: Buffer, header: BatchHeader) -> Iterator[list[KeyValue]]:
    """Yields the keys and values of the records of a batch, some at a time. The checksum is not verified.

    Raises: CorruptRecordError as `decode_records`, after some slices.
    """
    done = 0
    try:
        for found in plain_slices(buffer, header):
            yield found
            done += len(found)
    except (IndexError, ValueError):
        yield [(record.key, record.value) for record in decode_records(buffer, header)][done:]


def _record_start(data: bytes, at: int) -> tuple[int, int, int, int, int, int]:
    """Reads the fields before the key.

    Returns: the encoded length of the record, its end, the places of the timestamp delta and the offset delta, the
    encoded offset delta, and the place of the key's length.
    """
    length, at = data[at], at + 1
    if length > 127:
        length, at = _long_varint(data, length, at)
    timestamp_at, delta_at = at + 1, at + 2  # the byte before it has no meaning
    if data[timestamp_at] > 127:
        delta_at += 1
        if data[delta_at - 1] > 127:
            raise ValueError("a timestamp far from that of the batch")
    delta, key_at = data[delta_at], delta_at + 1
    if delta > 127:
        delta, key_at = _long_varint(data, delta, key_at)
    return length, at + (length >> 1), timestamp_at, delta_at, delta, key_at


def _field(data: bytes, at: int) -> tuple[bytes | None, int, int, int]:
    """Returns a key or value, where it begins, its encoded length (0 for null), and the place after it."""
    length, at = data[at], at + 1
    if length == 1:
        return None, 0, 0, at
    if length > 127:
        length, at = _long_varint(data, length, at)
    end = at + (length >> 1)
    return data[at:end], at, length, end


def _run(data: bytes, places: tuple[int, int, int, int, int, int], index: int, limit: int) -> tuple[int, bool]:
    """Returns how many of the next records have equal sizes, and whether their offsets are consecutive."""
    try:
        run = run_of_equal_sizes(data, *places, index, limit)
    except ValueError:
        return 0, False
    return (0 if run is None else run[0]), True


def plain_slices(buffer: Buffer, header: BatchHeader) -> Iterator[list[KeyValue]]:
    """Yields the keys and values of a batch whose records have the common form, some at a time.

    That is: no headers, a timestamp delta of at most two bytes, and lengths of at most three bytes.

    Raises: CorruptRecordError if the records do not decompress; IndexError or ValueError at a record of another form.
    """
    data, count = records_bytes(buffer, header), header.record_count
    if count > header.last_offset_delta + 1:
        raise ValueError("more records than offsets")
    # few calls, as in `plain_records`; varints are zigzag encoded: the lowest bit of the first byte is the sign
    found: list[KeyValue] = []
    at = index = last_size = 0
    last_delta, max_delta, is_consecutive = -2, header.last_offset_delta << 1, True
    while index < count:
        begin = at
        length, end, timestamp_at, delta_at, delta, key_at = _record_start(data, at)
        if delta & 1 or not last_delta < delta <= max_delta:
            raise ValueError("an invalid offset")
        last_delta = delta
        is_consecutive &= delta == index << 1  # compaction leaves gaps
        key, key_begin, key_length, value_at = _field(data, key_at)
        value, value_begin, value_length, at = _field(data, value_at)
        if data[at] or at + 1 != end or (length | key_length | value_length) & 1:
            raise ValueError("headers, or lengths that do not match")
        found.append((key, value))
        at, index, size = end, index + 1, end - begin
        if size == last_size and is_consecutive and count - index >= MIN_RUN and None not in (key, value):
            places = (begin, timestamp_at, delta_at, key_at, value_at, end)
            run, is_consecutive = _run(data, places, index, count - index)
            if run:
                keys = range(key_begin + size, key_begin + (run + 1) * size, size)
                found += _equal_sizes(data, keys, len(key or b""), value_begin - key_begin, len(value or b""))
                at, index = at + run * size, index + run
                last_delta = index - 1 << 1
        last_size = size
        if len(found) >= _SLICE_RECORDS:
            yield found
            found = []
    if at != len(data):
        raise ValueError("bytes after the last record")
    yield found


def _long_varint(data: bytes, low: int, at: int) -> tuple[int, int]:
    """Returns a varint of two or three bytes, the second of which is at `at`, and the position after it."""
    high = data[at]
    if high < 128:
        return low + (high << 7) - 128, at + 1
    highest = data[at + 1]
    if highest > 127:
        raise ValueError("a varint of more than three bytes")
    return low + (high << 7) + (highest << 14) - 16_512, at + 2


def _equal_sizes(data: bytes, places: range, key_size: int, value_at: int, value_size: int) -> list[KeyValue]:
    """Returns the keys and values of records whose keys begin at `places`, and whose values `value_at` later."""
    value_end = value_at + value_size
    return [(data[at : at + key_size], data[at + value_at : at + value_end]) for at in places]
