"""Positions after Avro values, found one value after the other.

Items of an array that is longer than the others are found this way, and then read together as lanes.

Source: Avro specification 1.12 (binary encoding).
"""

from __future__ import annotations

from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_lanes import ValueBytes

# of the tenth byte of a varint, which has one bit
_LAST_SHIFT = 63


class DamagedValueError(ValueError):
    """A value has no end; `reason` is one of `avro_lanes`."""

    def __init__(self, reason: int) -> None:
        super().__init__(reasons.REASONS[reason])
        self.reason = reason


def skip_long(data: bytes, at: int) -> int:
    """Returns the position after a varint. Raises: IndexError if it does not end."""
    while data[at] > 127:
        at += 1
    return at + 1


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number of a varint of at most 64 bits, and the position after it.

    Raises: IndexError if it does not end, DamagedValueError for a longer one.
    """
    byte = data[at]
    value, shift = byte & 0x7F, 7
    while byte > 127:
        at += 1
        byte = data[at]
        if shift == _LAST_SHIFT and byte > 1:
            raise DamagedValueError(reasons.VARINT)
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Returns an int or a long, and the position after it. Raises: as `read_unsigned`."""
    value, at = read_unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def skip_bytes(data: bytes, at: int) -> int:
    """Returns the position after bytes or a string."""
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise DamagedValueError(reasons.LENGTH)
    return at + length


def read_block_count(data: ValueBytes, at: int, is_empty: bool) -> tuple[int, int]:
    """Returns the count of the items in a block, and the position of the first; `is_empty` if they have no bytes."""
    count, at = read_long(data, at)
    if count < 0:
        count = -count
        _, at = read_long(data, at)
    if count > (data.empty_items if is_empty else len(data) - at):
        raise DamagedValueError(reasons.BLOCK)
    if is_empty:
        data.empty_items -= count
    return count, at
