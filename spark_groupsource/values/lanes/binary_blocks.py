"""Access to the bytes of a binary Arrow array with NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import bitmap, integers, is_valid

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def bounds(data: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """Returns the bytes of a binary array, and start and end of each value in them; of a null they are equal."""
    _, offsets, content = data.buffers()
    ends = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    payload = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    starts, ends = ends[:-1], ends[1:]
    if data.null_count:
        starts = np.where(is_valid(data), starts, ends)
    return payload, starts, ends


def spread(data: pa.Array, places: Ints, rows: int) -> pa.Array:
    """Returns an array of `rows` strings: those of `data` at increasing `places`, and nulls elsewhere.

    A null of `data` must have no bytes.
    """
    offsets = np.zeros(rows + 1, np.int32)
    payload, starts, ends = bounds(data)
    offsets[places + 1] = ends - starts
    valid = np.zeros(rows, np.bool_)
    valid[places] = is_valid(data)
    limits = pa.py_buffer(np.cumsum(offsets, dtype=np.int32))
    content = pa.py_buffer(payload[starts[0] if len(data) else 0 :])
    return pa.Array.from_buffers(data.type, rows, [bitmap(valid), limits, content])


def as_text(data: pa.Array) -> pa.Array:
    """Returns a binary array as strings, without validation."""
    return pa.Array.from_buffers(pa.string(), len(data), data.buffers(), data.null_count, data.offset)


def is_utf8(text: pa.Array) -> bool:
    """Returns whether all strings are valid UTF-8."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def invalid_text(data: pa.Array) -> Mask:
    """Returns which values of a binary array are no valid UTF-8."""
    found = np.zeros(len(data), np.bool_)
    if is_utf8(as_text(data)):
        return found
    payload, starts, ends = bounds(data)
    high = np.flatnonzero(payload[: ends[-1]] >= 0x80)
    # an empty value ends where the next one begins
    rows = np.unique(np.searchsorted(ends, high[high >= starts[0]], side="right"))
    checked = data.take(integers(rows))
    pending = [(0, len(checked))]
    while pending:
        first, after = pending.pop()
        if is_utf8(as_text(checked[first:after])):
            continue
        if after - first == 1:
            found[rows[first]] = True
        else:
            middle = (first + after) // 2
            pending += [(first, middle), (middle, after)]
    return found
