"""Bytes of records by partition, compiled with numba (extra `fast`).

It writes the bytes of `record_payloads`, whose tests cover both. The records are not ordered by partition first: one
pass finds the batch of each, and another writes it to its place.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import is_valid
from spark_groupsource.records.columns.binary_columns import binary_bounds
from spark_groupsource.records.columns.record_payloads import OpenBatches, Pieces, RecordWriter, Rows
from spark_groupsource.records.compiled_copy import copy_bytes
from spark_groupsource.records.header import HEADER_BYTES
from spark_groupsource.records.key_partitions import Bytes, Numbers

_HEADER_BYTES = np.int64(HEADER_BYTES)
# rows of the table of pieces
_SLOT, _IS_NEW, _COUNT, _SIZE, _FIRST_TIMESTAMP, _MAX_TIMESTAMP = range(6)
# the number of headers, 0; read-only, as the bytes of columns are
_NO_BYTES, _NO_HEADERS = np.frombuffer(b"", np.uint8), np.frombuffer(b"\0", np.uint8)


def hashes_of_keys(data: Bytes, starts: Numbers, lengths: Numbers) -> Numbers:
    """Returns the hash of each key; see `key_partitions.hashes_of_keys`."""
    found = np.empty(len(starts), np.int64)
    _hash(data, starts, lengths, found)
    return found


def write_records(rows: Rows, open_batches: OpenBatches, batch_bytes: int) -> tuple[Bytes, Pieces]:
    """Writes records; see `record_payloads.RecordWriter`."""
    count = len(rows.slots)
    keys, values, headers = (_fields(each, count) for each in (rows.keys, rows.values, rows.headers))
    if rows.headers is None:
        headers = _NO_HEADERS, np.zeros(count, np.int64), np.ones(count, np.int64)
    pieces = np.empty((6, count), np.int64)
    # of each record: its piece, its length, its offset delta and timestamp delta
    places = np.empty((4, count), np.int64)
    piece_count = _place(
        keys[2], values[2], headers[2], rows.timestamps, rows.slots, *open_batches, batch_bytes, pieces, places
    )
    pieces = pieces[:, :piece_count]
    order = np.argsort(pieces[_SLOT], kind="stable")
    ordered = pieces[:, order]
    ends = np.cumsum(ordered[_SIZE])
    starts = ends - ordered[_SIZE]
    at = np.empty(piece_count, np.int64)
    at[order] = starts
    payload = np.empty(int(ends[-1]), np.uint8)
    _write(*keys, *values, *headers, places, at, payload)
    return payload, Pieces(
        ordered[_SLOT], ordered[_IS_NEW].astype(np.bool_), ordered[_COUNT], starts, ends, ordered[_FIRST_TIMESTAMP],
        ordered[_MAX_TIMESTAMP],
    )  # fmt: skip


def _fields(column: pa.Array | None, count: int) -> tuple[Bytes, Numbers, Numbers]:
    """Returns the bytes of a column, and where each value starts and its length, -1 for a null."""
    if column is None:
        return _NO_BYTES, np.zeros(count, np.int64), np.full(count, -1, np.int64)
    data, bounds = binary_bounds(column)
    lengths = np.diff(bounds)
    if column.null_count:
        lengths[~is_valid(column)] = -1
    return data, bounds[:-1], lengths


@numba.njit(cache=True, nogil=True)
def _hash(data: Any, starts: Any, lengths: Any, found: Any) -> Any:
    multiplier = np.uint32(0x5BD1E995)
    for row in range(starts.size):
        at, length = starts[row], lengths[row]
        value = np.uint32(0x9747B28C) ^ np.uint32(length)
        end = at + (length & ~3)
        while at < end:
            word = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            word |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
            word = np.uint32(word * multiplier)
            word = np.uint32((word ^ word >> np.uint32(24)) * multiplier)
            value = np.uint32(value * multiplier) ^ word
            at += 4
        rest = length & 3
        if rest:
            if rest > 2:
                value ^= np.uint32(data[at + 2]) << np.uint32(16)
            if rest > 1:
                value ^= np.uint32(data[at + 1]) << np.uint32(8)
            value = np.uint32((value ^ np.uint32(data[at])) * multiplier)
        value = np.uint32((value ^ value >> np.uint32(13)) * multiplier)
        value ^= value >> np.uint32(15)
        found[row] = np.int64(value & np.uint32(0x7FFFFFFF))


@numba.njit(cache=True, nogil=True)
def _width(number: Any) -> Any:
    """Returns the number of bytes of a zigzag varint."""
    rest = np.uint64(number << 1) ^ np.uint64(number >> 63)
    width = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        width += 1
    return width


@numba.njit(cache=True, nogil=True)
def _put(target: Any, at: Any, number: Any) -> Any:
    """Writes a zigzag varint; returns the position after it."""
    rest = np.uint64(number << 1) ^ np.uint64(number >> 63)
    while rest > np.uint64(0x7F):
        target[at] = np.uint8(rest & np.uint64(0x7F) | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += 1
    target[at] = np.uint8(rest)
    return at + 1


@numba.njit(cache=True, nogil=True)
def _put_bytes(target: Any, at: Any, source: Any, start: Any, length: Any) -> Any:
    """Writes bytes; returns the position after them."""
    if length > 0:
        copy_bytes(target, at, source, start, length)
        return at + length
    return at


@numba.njit(cache=True, nogil=True)
def _place(
    key_lengths: Any, value_lengths: Any, header_lengths: Any, timestamps: Any, slots: Any, counts: Any, sizes: Any,
    bases: Any, limit: Any, pieces: Any, places: Any,
) -> Any:  # fmt: skip
    """Finds the place of each record; returns the number of pieces."""
    current = np.full(counts.size, -1, np.int64)
    piece_count = 0
    for row in range(slots.size):
        slot, timestamp = slots[row], timestamps[row]
        key_length, value_length = key_lengths[row], value_lengths[row]
        content = _width(key_length) + max(key_length, 0) + _width(value_length) + max(value_length, 0)
        content += 1 + header_lengths[row]
        count, is_new = counts[slot], counts[slot] == 0
        time_delta = timestamp - bases[slot]
        tail = content + _width(time_delta) + _width(count)
        size = tail + _width(tail)
        if is_new or sizes[slot] + size > limit:
            is_new, count, time_delta = True, 0, 0
            tail = content + 2
            size = tail + _width(tail)
            sizes[slot], bases[slot] = _HEADER_BYTES, timestamp
        piece = current[slot]
        if is_new or piece < 0:
            piece = piece_count
            piece_count += 1
            current[slot] = piece
            pieces[_SLOT, piece], pieces[_IS_NEW, piece] = slot, is_new
            pieces[_COUNT, piece] = pieces[_SIZE, piece] = 0
            pieces[_FIRST_TIMESTAMP, piece] = pieces[_MAX_TIMESTAMP, piece] = timestamp
        pieces[_COUNT, piece] += 1
        pieces[_SIZE, piece] += size
        pieces[_MAX_TIMESTAMP, piece] = max(pieces[_MAX_TIMESTAMP, piece], timestamp)
        counts[slot] = count + 1
        sizes[slot] += size
        places[0, row], places[1, row], places[2, row], places[3, row] = piece, tail, count, time_delta
    return piece_count


@numba.njit(cache=True, nogil=True)
def _write(
    keys: Any, key_starts: Any, key_lengths: Any, values: Any, value_starts: Any, value_lengths: Any, headers: Any,
    header_starts: Any, header_lengths: Any, places: Any, piece_ends: Any, payload: Any,
) -> Any:  # fmt: skip
    """Writes each record after the others of its piece."""
    for row in range(key_lengths.size):
        piece = places[0, row]
        at = _put(payload, piece_ends[piece], places[1, row])
        payload[at] = 0
        at = _put(payload, at + 1, places[3, row])
        at = _put(payload, at, places[2, row])
        at = _put(payload, at, key_lengths[row])
        at = _put_bytes(payload, at, keys, key_starts[row], key_lengths[row])
        at = _put(payload, at, value_lengths[row])
        at = _put_bytes(payload, at, values, value_starts[row], value_lengths[row])
        piece_ends[piece] = _put_bytes(payload, at, headers, header_starts[row], header_lengths[row])


COMPILED_WRITER = RecordWriter(hashes_of_keys, write_records)
