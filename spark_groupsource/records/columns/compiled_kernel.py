"""Record kernel compiled with numba (extra `fast`).

One pass over the bytes validates each record and copies its fields into the columns. Importing this module takes 0.3 s
and the first call 0.15 s (some seconds once per machine, to compile), so `arrow` imports it only in a process that
decodes millions of records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns.arrow_arrays import Mask, bitmap
from spark_groupsource.records.columns.buffer_pool import BufferPool
from spark_groupsource.records.columns.record_kernel import (
    MAX_HEADERS,
    MAX_TIMESTAMP_MS,
    NOT_INCREASING,
    OUT_OF_RANGE,
    Layout,
    RecordArrays,
    RecordGroup,
    TooManyHeadersError,
    header_lists,
    malformed_timestamp,
)
from spark_groupsource.records.compiled_copy import copy_bytes
from spark_groupsource.records.parser import MIN_RECORD_BYTES, Bytes

_OK, _OFFSET_ORDER, _OFFSET_RANGE, _TIMESTAMP, _TOO_MANY_HEADERS = range(5)
_RECORD_LENGTH, _VARINT, _FIELD_LENGTH, _HEADER_COUNT, _HEADER, _RECORD_END, _LEFT_OVER = range(5, 12)

_REASONS = {
    _OFFSET_ORDER: NOT_INCREASING,
    _OFFSET_RANGE: OUT_OF_RANGE,
    _RECORD_LENGTH: "the length exceeds the batch, or is less than the minimum.",
    _VARINT: "a varint is too long, or exceeds the record.",
    _FIELD_LENGTH: "the length of the key or value exceeds the record.",
    _HEADER_COUNT: "the header count exceeds the record.",
    _HEADER: "the length of a header exceeds the record, or its key is null.",
    _RECORD_END: "the length does not match the fields.",
    _LEFT_OVER: "the batch continues after the last record.",
}

_pool = BufferPool()


class _Strings(NamedTuple):
    """Memory for byte strings: each is between two bounds. Those that are not wanted are not copied."""

    data: Bytes
    bounds: npt.NDArray[np.int32]
    valid: Mask
    is_wanted: int

    def array(self, rows: int) -> pa.Array:
        valid, bounds = self.valid[:rows], self.bounds[: rows + 1]
        if not valid.any():
            return pa.nulls(rows, pa.binary())
        data = self.data[: bounds[rows]]
        return pa.Array.from_buffers(pa.binary(), rows, [bitmap(valid), pa.py_buffer(bounds), pa.py_buffer(data)])


_NO_STRINGS = _Strings(np.empty(0, np.uint8), np.zeros(2, np.int32), np.empty(1, np.bool_), 0)


def read_compiled(group: RecordGroup, layout: Layout) -> RecordArrays:
    """Reads the records of a group; see `record_kernel.RecordKernel`."""
    size, columns = int((group.ends - group.starts).sum()), layout.columns
    rows, header_rows = min(int(group.counts.sum()), size // MIN_RECORD_BYTES), min(size // 2, MAX_HEADERS)
    keys, values = (_strings(size, rows) if name in columns else _NO_STRINGS for name in ("key", "value"))
    has_headers = "headers" in columns
    names, texts = (_strings(size, header_rows) if has_headers else _NO_STRINGS for _ in range(2))
    header_bounds = _zero_and(rows) if has_headers else _NO_STRINGS.bounds[:0]
    offsets = _pool.take(8 * rows).view(np.int64)
    timestamps = _pool.take(8 * rows).view(np.int64) if "timestamp" in columns else offsets[:0]
    # plain tuples: the cache of numba refers to the class of another one, which the next version may not have
    batches = group.starts, group.ends, group.counts, group.headers.base_offset, group.headers.last_offset_delta
    limits = layout.start_offset, layout.end_offset, group.lowest_offset, int(group.is_open)
    status, record, rows, end, offset = _read(
        _read_only(group.payload), (*batches, *group.timestamps), limits, offsets, timestamps, (*keys,), (*values,),
        header_bounds, (*names,), (*texts,),
    )  # fmt: skip
    if status == _TIMESTAMP:
        raise malformed_timestamp(offset, int(timestamps[rows]))
    if status == _TOO_MANY_HEADERS:
        raise TooManyHeadersError
    if status != _OK:
        raise CorruptRecordError(f"Record {record}: {_REASONS[status]}")
    headers = int(header_bounds[rows]) if has_headers else 0
    return RecordArrays(
        offsets[:rows],
        timestamps[:rows],
        keys.array(rows) if keys.is_wanted else None,
        values.array(rows) if values.is_wanted else None,
        header_lists(names.array(headers), texts.array(headers), header_bounds[: rows + 1]) if has_headers else None,
        record_count=record,
        byte_count=end,
        header_count=headers,
        next_offset=offset + 1,
    )


def _strings(size: int, rows: int) -> _Strings:
    """Returns memory for `rows` byte strings of `size` bytes together."""
    return _Strings(_pool.take(size), _zero_and(rows), _pool.take(rows).view(np.bool_), 1)


def _zero_and(rows: int) -> npt.NDArray[np.int32]:
    """Returns memory for 0 and `rows` ends."""
    bounds = _pool.take(4 * (rows + 1)).view(np.int32)
    bounds[0] = 0
    return bounds


def _read_only(payload: Bytes) -> Bytes:
    """Returns a view without the permission to write: numba compiles a function for each kind of array."""
    view = payload.view()
    view.setflags(write=False)
    return view


_compiled = numba.njit(cache=True, nogil=True)
# a call takes as long as a varint
_inlined = numba.njit(cache=True, nogil=True, forceinline=True)


@_inlined
def _read_varint(payload: Any, at: int, end: int, max_bytes: int) -> Any:
    """Returns the value and the position after it, -1 if the varint does not end before `end` or in `max_bytes`."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for _ in range(max_bytes):
        if at >= end:
            return np.int64(0), -1
        byte = np.uint64(payload[at])
        at += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if max_bytes == 5:
                raw &= np.uint64(0xFFFFFFFF)
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), -1


@_inlined
def _read_length(payload: Any, at: int, end: int, least: int) -> Any:
    """Returns the length of a field and where it starts, -1 if it exceeds `end` or the length is less than `least`."""
    length, at = _read_varint(payload, at, end, 5)
    return length, at if least <= length <= end - at else -1


@_inlined
def _append(target: Any, row: int, payload: Any, at: int, length: int) -> Any:
    """Copies a field to a row; returns the position after it."""
    # without a branch, which would make numba count references to the arrays: 8 times as slow
    data, bounds, valid, is_wanted = target
    row *= is_wanted
    size, to = max(length, 0), np.int64(bounds[row])
    copy_bytes(data, to, payload, at, size * is_wanted)
    bounds[row + 1] = to + size
    valid[row] = length >= 0
    return at + size


@_compiled
def _read(
    payload: Any, batches: Any, limits: Any, offsets: Any, timestamps: Any, keys: Any, values: Any, header_bounds: Any,
    names: Any, texts: Any,
) -> Any:  # fmt: skip
    """Returns a status, the numbers of records read and of rows written, the position after them, the last offset.

    A record that is not selected is overwritten by the next one.
    """
    starts, ends, counts, base_offsets, last_deltas, base_timestamps, timestamp_factors = batches
    start_offset, end_offset, lowest_offset, is_open = limits
    record, row, at, header_row = 0, 0, np.int64(0), 0
    offset = previous = np.int64(lowest_offset - 1)
    for part in range(starts.size):
        at, size = starts[part], ends[part]
        for _ in range(counts[part]):
            begin = at
            length, at = _read_varint(payload, at, size, 5)
            if is_open and (length > size - at if at >= 0 else size - begin < 5):
                return _OK, record, row, begin, previous
            if at < 0 or length < MIN_RECORD_BYTES - 1 or length > size - at:
                return _RECORD_LENGTH, record, row, begin, previous
            end = at + length
            # no bit of the attributes, the byte before it, is used; a short loop is unrolled
            timestamp_at = at + 1
            timestamp_delta, at = _read_varint(payload, timestamp_at, end, 4)
            if at < 0:
                timestamp_delta, at = _read_varint(payload, timestamp_at, end, 10)
            if at < 0:
                return _VARINT, record, row, begin, previous
            offset_delta, at = _read_varint(payload, at, end, 5)
            if at < 0:
                return _VARINT, record, row, begin, previous
            if offset_delta < 0 or offset_delta > last_deltas[part]:
                return _OFFSET_RANGE, record, row, begin, previous
            offset = base_offsets[part] + offset_delta
            if offset <= previous:
                return _OFFSET_ORDER, record, row, begin, previous
            previous = offset
            is_selected = start_offset <= offset < end_offset
            length, at = _read_length(payload, at, end, -1)
            if at < 0:
                return _FIELD_LENGTH, record, row, begin, previous
            at = _append(keys, row, payload, at, length)
            length, at = _read_length(payload, at, end, -1)
            if at < 0:
                return _FIELD_LENGTH, record, row, begin, previous
            at = _append(values, row, payload, at, length)
            headers, at = _read_varint(payload, at, end, 5)
            if at < 0 or headers < 0 or 2 * headers > end - at:
                return _HEADER_COUNT, record, row, begin, previous
            if header_bounds.size:
                if header_row + headers > names[2].size:
                    return _TOO_MANY_HEADERS, record, row, begin, previous
                header_bounds[row + 1] = header_row + headers
            for header in range(header_row, header_row + headers):
                length, at = _read_length(payload, at, end, 0)
                if at < 0:
                    return _HEADER, record, row, begin, previous
                at = _append(names, header, payload, at, length)
                length, at = _read_length(payload, at, end, -1)
                if at < 0:
                    return _HEADER, record, row, begin, previous
                at = _append(texts, header, payload, at, length)
            if at != end:
                return _RECORD_END, record, row, begin, previous
            record += 1
            if is_selected:
                offsets[row] = offset
                if timestamps.size:
                    timestamp = base_timestamps[part] + timestamp_delta * timestamp_factors[part]
                    timestamps[row] = timestamp
                    if timestamp > MAX_TIMESTAMP_MS or timestamp < -MAX_TIMESTAMP_MS:
                        return _TIMESTAMP, record, row, at, previous
                    timestamps[row] = timestamp * 1000
                row += 1
                header_row += headers
        if at != size and not is_open:
            return _LEFT_OVER, record, row, at, previous
    return _OK, record, row, at, previous
