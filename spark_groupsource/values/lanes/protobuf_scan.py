"""Fields of Protobuf values, found one value after the other.

Source: Protobuf encoding (`https://protobuf.dev/programming-guides/encoding`), `CodedInputStream`.
"""

from __future__ import annotations

from typing import Iterator

from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_scan import DamagedValueError, read_unsigned

VARINT, FIXED64, DELIMITED, GROUP, END_GROUP, FIXED32 = range(6)
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
MAX_TAG = (1 << 32) - 1
_MAX_DEPTH = 100


def read_value(data: bytes, at: int, tag: int, depth: int = 0) -> tuple[int, int, int, int]:
    """Reads the value of a field.

    Returns: the number of a varint, start and end of the value, and the position after it.
    Raises: IndexError, DamagedValueError.
    """
    wire = tag & 7
    if tag >> 3 == 0 or tag > MAX_TAG:
        raise DamagedValueError(reasons.TAG)
    if wire == VARINT:
        number, after = read_unsigned(data, at)
        return number, at, after, after
    if wire in FIXED_SIZES:
        after = at + FIXED_SIZES[wire]
        if after > len(data):
            raise DamagedValueError(reasons.TRUNCATED)
        return 0, at, after, after
    if wire == DELIMITED:
        length, at = read_unsigned(data, at)
        if length > len(data) - at:
            raise DamagedValueError(reasons.LENGTH)
        return 0, at, at + length, at + length
    if wire != GROUP:
        raise DamagedValueError(reasons.TAG)
    if depth == _MAX_DEPTH:
        raise DamagedValueError(reasons.DEPTH)
    start = at
    while True:
        end = at
        inner, at = read_unsigned(data, at)
        if inner == (tag & ~7) | END_GROUP:
            return 0, start, end, at
        at = read_value(data, at, inner, depth + 1)[3]


def read_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Returns number, wire type and value of each field. Raises: IndexError, DamagedValueError."""
    at = 0
    while at < len(data):
        tag, at = read_unsigned(data, at)
        number, start, end, at = read_value(data, at, tag)
        yield tag >> 3, tag & 7, number if tag & 7 == VARINT else data[start:end]
