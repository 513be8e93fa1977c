"""Columns of flat JSON objects by the compiled scanner."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import bitmap, booleans, to_numbers
from spark_groupsource.values.lanes.avro_lanes import slices
from spark_groupsource.values.lanes.binary_blocks import Bytes, Mask, as_text, bounds, invalid_text

_MAX_COLUMNS = 64
# the scanner compares keys as they are written
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_OTHERS = (pa.float64(), pa.string(), pa.bool_())


class _Rows:
    """Counts the decoded rows of this process.

    The scanner saves 0.6 us per record and takes 0.4 s to load, so it is loaded when it would have saved as much.
    """

    load_after = 700_000
    decoded = 0


@lru_cache(maxsize=1)
def _scanner() -> Any | None:
    """Returns the compiled module; None without numba, or without a cache directory for it."""
    try:
        from spark_groupsource.values.json import compiled_json
    except (ImportError, RuntimeError):
        return None
    return compiled_json


class _Found(NamedTuple):
    """The values of a column: their places and kinds; `left` has the rows that are left to another reader."""

    payload: Bytes
    starts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    left: Mask


class JsonScanner:
    """Reads objects as structs of numbers, booleans and text."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        keys = [field.name.encode() for field in kind]
        self._keys = np.frombuffer(b"".join(keys), np.uint8)
        self._key_ends = np.cumsum([len(key) for key in keys]).astype(np.int64)

    @staticmethod
    def reads(kind: pa.DataType) -> bool:
        """Returns whether values of a type can be read."""
        if not pa.types.is_struct(kind) or not 0 < kind.num_fields <= _MAX_COLUMNS:
            return False
        if any(_ESCAPED.search(field.name) for field in kind):
            return False
        return all(pa.types.is_signed_integer(each.type) or each.type in _OTHERS for each in kind)

    def read(self, data: pa.Array) -> tuple[pa.Array, Mask] | None:
        """Returns structs, and the rows that are left to another reader; None if the scanner is not loaded."""
        _Rows.decoded += len(data)
        module = _scanner() if _Rows.decoded > _Rows.load_after else None
        if module is None or not len(data):
            return None
        payload, begins, ends = bounds(data)
        payload = payload.view()
        # numba compiles a function for each kind of array
        payload.setflags(write=False)
        shape = (self._kind.num_fields, len(data))
        # without a value, the start is that of the row, so that the starts increase
        starts = np.empty(shape, np.int32)
        starts[:] = begins
        lengths, kinds = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
        left = module.scan(payload, begins, ends, self._keys, self._key_ends, starts, lengths, kinds)
        left |= invalid_text(data)
        # their fields may have a part of a value, or invalid text
        kinds[:, left] = module.NONE
        columns = [
            _column(module, field.type, _Found(payload, starts[at], lengths[at], kinds[at], left))
            for at, field in enumerate(self._kind)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind)), left


def _column(module: Any, kind: pa.DataType, found: _Found) -> pa.Array:
    """Returns the values of a column; those of rows that are left may be any."""
    payload, starts, lengths, kinds, left = found
    valid = kinds != module.NONE
    if kind == pa.string():
        left |= valid & (kinds != module.TEXT)
        is_text = kinds == module.TEXT
        text = as_text(slices(payload, starts + is_text, np.where(is_text, lengths - 2, 0)))
        return pa.Array.from_buffers(kind, len(text), [bitmap(valid), *text.buffers()[1:]])
    if kind == pa.bool_():
        left |= valid & (kinds != module.TRUE) & (kinds != module.FALSE)
        return booleans(kinds == module.TRUE, valid)
    left |= valid & (kinds != module.NUMBER)
    values = np.zeros(len(starts), kind.to_pandas_dtype())
    if pa.types.is_integer(kind):
        # an int of 64 bits has at most 18 digits here
        module.integers(payload, starts, lengths, kinds, 1 << min(kind.bit_width - 1, 62), values, left)
    else:
        inexact = np.zeros(len(starts), np.bool_)
        module.doubles(payload, starts, lengths, kinds, values, inexact, left)
        rows = np.flatnonzero(inexact)
        if len(rows):
            values[rows] = to_numbers(as_text(slices(payload, starts[rows], lengths[rows])).cast(kind))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), pa.py_buffer(values)])
