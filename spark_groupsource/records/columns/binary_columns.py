"""Columns of bytes of any Arrow type, as binary arrays.

The lengths of a column are computed without its bytes, so that a column above 2 GiB, which a binary array cannot be, is
divided before it is converted.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import bitmap, is_valid, to_numbers

Lengths = npt.NDArray[np.int64]

_VIEW_WORDS = 4
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_IsKind = Callable[[pa.DataType], bool]


def _is(*names: str) -> _IsKind:
    """Returns a test for types; an older PyArrow does not know each."""
    tests: list[Any] = [getattr(pa.types, name) for name in names if hasattr(pa.types, name)]
    return lambda kind: any(test(kind) for test in tests)


_is_small = _is("is_binary", "is_string")
_is_large = _is("is_large_binary", "is_large_string")
_is_view = _is("is_binary_view", "is_string_view")
_is_text = _is("is_string", "is_large_string", "is_string_view", "is_null")


def is_bytes(kind: pa.DataType) -> bool:
    """Returns whether a column of this type is one of binary or string values, or of nulls alone."""
    if pa.types.is_dictionary(kind):
        return is_bytes(kind.value_type)
    return (
        pa.types.is_null(kind)
        or pa.types.is_fixed_size_binary(kind)
        or _is_small(kind)
        or _is_large(kind)
        or _is_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a column of this type is one of strings, or of nulls alone."""
    return is_text(kind.value_type) if pa.types.is_dictionary(kind) else _is_text(kind)


def byte_lengths(column: pa.Array) -> Lengths:
    """Returns the number of bytes of each value, -1 for a null."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), -1, np.int64)
    if pa.types.is_dictionary(kind):
        # an index of a null is undefined
        at = np.where(is_valid(column.indices), to_numbers(column.indices).astype(np.int64), -1)
        return np.append(byte_lengths(column.dictionary), -1)[at]
    if pa.types.is_fixed_size_binary(kind):
        found = np.full(len(column), kind.byte_width, np.int64)
    elif _is_view(kind):
        words = np.frombuffer(column.buffers()[1], np.int32)[::_VIEW_WORDS]
        found = words[column.offset : column.offset + len(column)].astype(np.int64)
    else:
        found = np.diff(_offsets(column)).astype(np.int64)
    if column.null_count:
        found[~is_valid(column)] = -1
    return found


def to_binary(column: pa.Array) -> pa.Array:
    """Returns a column as a binary array; its bytes are below 2 GiB, and not copied where they follow each other."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if pa.types.is_dictionary(kind):
        values = column.dictionary
        # PyArrow takes no values of views
        values = values.cast(pa.large_binary()) if _is_view(values.type) else values
        return to_binary(values.take(column.indices))
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if _is_view(kind):
        return to_binary(column.cast(pa.large_binary()))
    if _is_small(kind):
        return column.view(pa.binary())
    offsets = _offsets(column)
    first = int(offsets[0])
    bounds = pa.py_buffer((offsets - first).astype(np.int32))
    data = column.buffers()[2]
    data = data if data is None else data.slice(first, int(offsets[-1]) - first)
    return pa.Array.from_buffers(pa.binary(), len(column), [bitmap(is_valid(column)), bounds, data])


def binary_bounds(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Lengths]:
    """Returns the bytes of a binary array, read-only, and the bound before the first value and after each."""
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    # numba compiles a function for each kind of array
    data.setflags(write=False)
    return data, _offsets(column).astype(np.int64)


def between(data: npt.NDArray[np.uint8], bounds: Lengths) -> pa.Array:
    """Returns the binary array of the bytes between each two bounds, which do not decrease."""
    return pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    )


def milliseconds(column: pa.Array) -> Lengths:
    """Returns the timestamps of a column in ms, rounded down; those of nulls are undefined."""
    numbers = to_numbers(column.view(pa.int64()))
    return numbers * 1_000 if column.type.unit == "s" else numbers // _UNITS_PER_MS[column.type.unit]


def _offsets(column: pa.Array) -> npt.NDArray[Any]:
    if not len(column):
        return np.zeros(1, np.int64)
    kind = np.int64 if _is_large(column.type) else np.int32
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column) + 1]
