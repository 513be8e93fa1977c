"""Conversions between Arrow arrays and NumPy arrays without pandas.

`pa.array`, `pa.scalar`, `to_numpy` and Arrow functions with a Python value as an argument import pandas where it is
installed, which takes 0.2 s and 44 MB in each worker process.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


def bitmap(mask: Mask) -> pa.Buffer | None:
    """Returns the validity buffer for `mask`; None if all values are valid."""
    return None if mask.all() else _bits(mask)


def fixed_width(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask | None = None) -> pa.Array:
    """Returns an array of NumPy values of the same width."""
    validity = None if valid is None else bitmap(valid)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def integers(values: npt.NDArray[Any] | Sequence[int], valid: Mask | None = None) -> pa.Array:
    """Returns an array of 64-bit integers, for example the indices of `take`."""
    return fixed_width(pa.int64(), np.asarray(values, np.int64), valid)


def booleans(values: Mask, valid: Mask | None = None) -> pa.Array:
    """Returns an array of booleans."""
    validity = None if valid is None else bitmap(valid)
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity, _bits(values)])


def consecutive(kind: pa.DataType, lengths: npt.NDArray[Any], data: bytes | npt.NDArray[np.uint8]) -> pa.Array:
    """Returns an array of strings or byte strings that follow each other in `data`, without nulls."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def byte_strings(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Returns an array of byte strings, or of the strings that they encode if `kind` says so."""
    lengths = np.fromiter((len(value or b"") for value in values), np.int32, len(values))
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    found = consecutive(kind or pa.binary(), lengths, b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(found.type, len(values), [bitmap(valid), *found.buffers()[1:]])


def strings(values: Sequence[str | None]) -> pa.Array:
    """Returns an array of strings. Raises: UnicodeEncodeError for a lone surrogate."""
    return byte_strings([None if value is None else value.encode() for value in values], pa.string())


def to_numbers(data: pa.Array) -> npt.NDArray[Any]:
    """Returns the numbers of an array of a fixed width; those of nulls are undefined."""
    values = np.frombuffer(data.buffers()[1], data.type.to_pandas_dtype())
    return values[data.offset : data.offset + len(data)]


def to_mask(data: pa.Array) -> Mask:
    """Returns an array of booleans; a null is false."""
    return is_valid(data) & _unpacked(data.buffers()[1], data)


def is_valid(data: pa.Array) -> Mask:
    """Returns which values are not null."""
    if not data.null_count:
        return np.ones(len(data), np.bool_)
    validity = data.buffers()[0]
    # an array of type null has no buffer
    return np.zeros(len(data), np.bool_) if validity is None else _unpacked(validity, data)


def _unpacked(bits: pa.Buffer, data: pa.Array) -> Mask:
    end = data.offset + len(data)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")[data.offset :].view(np.bool_)


def _bits(mask: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
