"""Compiled conversion of plain records into columns (extra `fast`, numba).

Records whose fields are parsed first, and copied by column afterwards, pass through the processor cache twice.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from spark_groupsource.records.columns.plain_columns import BatchBases, BufferPool, Parts, PlainColumns, Strings
from spark_groupsource.records.compiled_parser import read_only, read_varint
from spark_groupsource.records.parser import MIN_RECORD_BYTES, Bytes

_NOT_PLAIN = -1
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000

_NO_STRINGS = Strings(np.empty(0, np.uint8), np.zeros(1, np.int32))

_pool = BufferPool()


def plain_columns(
    payload: Bytes, parts: Parts, bases: BatchBases, has_keys: bool, has_values: bool
) -> PlainColumns | None:
    """Returns the columns of records; see `plain_columns.ReadPlain`.

    It reads records without headers, whose values are not null, and whose keys are all null or all present.
    """
    rows, size = int(parts.counts.sum()), int((parts.ends - parts.starts).sum())
    keys, values = _strings(size, rows, has_keys), _strings(size, rows, has_values)
    offsets, timestamps = _pool.take(8 * rows).view(np.int64), _pool.take(8 * rows).view(np.int64)
    found = _convert(read_only(payload), *parts, *bases, *keys, *values, offsets, timestamps)
    if found == _NOT_PLAIN:
        return None
    return PlainColumns(keys if found else None, values, offsets, timestamps)


def _strings(size: int, rows: int, is_wanted: bool) -> Strings:
    """Returns memory for `rows` strings; without bounds they are not wanted."""
    if not is_wanted:
        return _NO_STRINGS
    bounds = _pool.take(4 * (rows + 1)).view(np.int32)
    bounds[0] = 0
    return Strings(_pool.take(size), bounds)


def _copy_code(typing: Any, target: Any, to: Any, source: Any, at: Any, count: Any) -> Any:
    """Returns the type and the code of `_copy`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        target = context.make_array(kinds[0])(context, builder, arguments[0]).data
        source = context.make_array(kinds[2])(context, builder, arguments[2]).data
        places = builder.gep(target, [arguments[1]]), builder.gep(source, [arguments[3]])
        cgutils.raw_memcpy(builder, *places, arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), emit


# copies bytes of an array to a place in another
_copy: Any = intrinsic(_copy_code)


@numba.njit(cache=True, nogil=True)
def _convert(
    payload: Any, starts: Any, ends: Any, counts: Any, bases: Any, last_deltas: Any, times: Any, factors: Any,
    keys: Any, key_bounds: Any, values: Any, value_bounds: Any, offsets: Any, timestamps: Any,
) -> Any:  # fmt: skip
    """Returns whether the records have keys, `_NOT_PLAIN` if they are not plain."""
    row, previous, key_to, value_to, with_keys = 0, np.int64(-1), np.int64(0), np.int64(0), 0
    for part in range(starts.size):
        at, size = starts[part], ends[part]
        for _ in range(counts[part]):
            length, at = read_varint(payload, at, size, 5)
            if at < 0 or length < MIN_RECORD_BYTES - 1 or length > size - at:
                return _NOT_PLAIN
            end = at + length
            delta, at = read_varint(payload, at + 1, end, 10)
            if at < 0:
                return _NOT_PLAIN
            offset, at = read_varint(payload, at, end, 5)
            if at < 0 or offset < 0 or offset > last_deltas[part]:
                return _NOT_PLAIN
            length, at = read_varint(payload, at, end, 5)
            if at < 0 or length < -1 or length > end - at:
                return _NOT_PLAIN
            if key_bounds.size > 1:
                if row == 0:
                    with_keys = int(length >= 0)
                if with_keys != (length >= 0):
                    return _NOT_PLAIN
                if with_keys:
                    _copy(keys, key_to, payload, at, length)
                    key_to += length
                    key_bounds[row + 1] = key_to
            at += max(length, 0)
            length, at = read_varint(payload, at, end, 5)
            if at < 0 or length < 0 or length != end - at - 1 or payload[end - 1] != 0:
                return _NOT_PLAIN
            if value_bounds.size > 1:
                _copy(values, value_to, payload, at, length)
                value_to += length
                value_bounds[row + 1] = value_to
            offset += bases[part]
            moment = times[part] + delta * factors[part]
            if offset <= previous or moment > _MAX_TIMESTAMP_MS or moment < -_MAX_TIMESTAMP_MS:
                return _NOT_PLAIN
            offsets[row], timestamps[row], previous = offset, moment * 1000, offset
            at, row = end, row + 1
        if at != size:
            return _NOT_PLAIN
    return with_keys
