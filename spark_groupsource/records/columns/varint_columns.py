"""Varints of numbers, and bytes joined by row, with NumPy.

Source: https://protobuf.dev/programming-guides/encoding (varints, zigzag).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.columns.arrow_arrays import byte_strings, consecutive
from spark_groupsource.records.key_partitions import Numbers

Varints = npt.NDArray[np.int16]
"""Bytes of each row; -1 where a row has none."""
Parts = list["pa.Array | pa.Scalar"]
"""Binary arrays, and bytes that all rows have."""
_TABLE_SIZE = 1 << 13


def zigzag(numbers: Numbers) -> Numbers:
    """Returns the zigzag code of numbers, as bits of 64."""
    return (numbers << 1) ^ (numbers >> 63)


def varint_widths(codes: Numbers) -> Numbers:
    """Returns the number of bytes of the varint of each code."""
    bits = codes.view(np.uint64)
    widths, largest = np.ones(len(bits), np.int64), int(bits.max(initial=0))
    for width in range(1, -(-largest.bit_length() // 7)):
        widths += bits >> np.uint64(7 * width) != 0
    return widths


def varints(codes: Numbers) -> Varints:
    """Returns the varint of each code, one row per code, padded with -1."""
    largest = int(codes.view(np.uint64).max(initial=0))
    if largest < 2 * _TABLE_SIZE:
        return _varint_table()[codes, : 1 if largest < 128 else 2]
    return _encoded_varints(codes, -(-largest.bit_length() // 7))


@cache
def _varint_table() -> Varints:
    """Returns the varints of all codes with at most two bytes."""
    return _encoded_varints(np.arange(2 * _TABLE_SIZE), 2)


def _encoded_varints(codes: Numbers, width: int) -> Varints:
    rest = codes.view(np.uint64)[:, None] >> np.arange(width, dtype=np.uint64) * np.uint64(7)
    found = (rest & np.uint64(0x7F)).astype(np.int16)
    found[rest >= np.uint64(128)] |= 0x80
    found[:, 1:][rest[:, 1:] == 0] = -1
    return found


def rows_of(columns: list[Varints]) -> pa.Array:
    """Returns the bytes of each row."""
    rows = np.hstack(columns)
    is_used = rows >= 0
    return consecutive(pa.binary(), is_used.sum(axis=1), rows[is_used].astype(np.uint8))


def joined_rows(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Returns the bytes of the parts of each row, one after the other; a null has none."""
    return pc.binary_join_element_wise(*parts, _no_bytes(), null_handling="replace")


def joined_parts(count: int, parts: Parts) -> pa.Array:
    """As `joined_rows`, of `count` rows, also without an array among the parts."""
    if not any(isinstance(each, pa.Array) for each in parts):
        parts = [*parts, consecutive(pa.binary(), np.zeros(count, np.int32), b"")]
    return joined_rows(*parts)


@cache
def _no_bytes() -> pa.Scalar:
    return byte_strings([b""])[0]
