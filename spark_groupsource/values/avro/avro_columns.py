"""Reading of Avro fields of all lanes into Arrow columns.

A node reads one type of the writer's schema. A field that is not selected has a node without column, which only
advances. `avro_resolution` decides which nodes read a schema.

Source: Avro specification 1.12 (binary encoding), Spark `AvroDeserializer`.
"""

from __future__ import annotations

from typing import Protocol, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import booleans, fixed_width, integers, strings
from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_lanes import Lanes, ValueBytes, slices
from spark_groupsource.values.lanes.avro_scan import DamagedValueError, skip_bytes, skip_long
from spark_groupsource.values.lanes.binary_blocks import Ints, Mask, as_text, invalid_text

_INT_LIMIT = 1 << 31
_LONG_MAX = (1 << 63) - 1
_LOW_BITS = (1 << 64) - 1
_DECIMAL128_BYTES = 16


class AvroNode(Protocol):
    """Reads one type."""

    def read(self, lanes: Lanes) -> pa.Array | None:
        """Advances every lane. Returns the column of the lanes, None if it is not selected."""

    def skip(self, data: ValueBytes, at: int) -> int:
        """Returns the position after one value; it may be after the end of `data`.

        Raises: IndexError or DamagedValueError.
        """


class Null:
    """A null."""

    def __init__(self, kind: pa.DataType | None) -> None:
        self._kind = kind

    def skip(self, data: ValueBytes, at: int) -> int:
        return at

    def read(self, lanes: Lanes) -> pa.Array | None:
        return None if self._kind is None else pa.nulls(len(lanes), self._kind)


class Sized:
    """A value of a constant number of bytes."""

    def __init__(self, size: int, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._size = size

    def skip(self, data: ValueBytes, at: int) -> int:
        return at + self._size

    def read(self, lanes: Lanes) -> pa.Array | None:
        start = lanes.skip(self._size)
        return None if self._kind is None else self._column(lanes, start, self._kind)

    def _column(self, lanes: Lanes, start: Ints, kind: pa.DataType) -> pa.Array:
        raise NotImplementedError


class Boolean(Sized):
    """A boolean."""

    def __init__(self, kind: pa.DataType | None) -> None:
        super().__init__(1, kind)

    def _column(self, lanes: Lanes, start: Ints, kind: pa.DataType) -> pa.Array:
        byte = lanes.word(start) & np.uint64(0xFF)
        # Java reads other bytes as false, fastavro as true
        lanes.fail((byte > np.uint64(1)) & (lanes.reason == 0), reasons.BOOLEAN)
        return booleans(byte == np.uint64(1))


class Float(Sized):
    """A float of four or eight bytes."""

    def _column(self, lanes: Lanes, start: Ints, kind: pa.DataType) -> pa.Array:
        word = lanes.word(start)
        values = word.astype(np.uint32).view("<f4") if self._size == 4 else word.view("<f8")
        # a signaling NaN becomes a quiet one
        with np.errstate(invalid="ignore"):
            return fixed_width(kind, values.astype(_numpy(kind), copy=False))


class Integer:
    """An int or a long, also of a date or timestamp.

    Args:
        factor: the values are multiplied by it.
        divisor: the values are divided by it, towards the past.
    """

    def __init__(self, is_int: bool, factor: int, divisor: int, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._is_int = is_int
        self._factor = factor
        self._divisor = divisor

    def skip(self, data: ValueBytes, at: int) -> int:
        return skip_long(data, at)

    def read(self, lanes: Lanes) -> pa.Array | None:
        value = lanes.long()
        if self._is_int:
            failed = (value >= _INT_LIMIT) | (value < -_INT_LIMIT)
            lanes.fail(failed, reasons.VARINT)
            value = np.where(failed, 0, value) if failed.any() else value
        if self._kind is None:
            return None
        if self._divisor != 1:
            value = value // self._divisor
        if self._factor != 1:
            limit = _LONG_MAX // self._factor
            failed = (value > limit) | (value < -limit)
            lanes.fail(failed, reasons.VARINT)
            value = np.where(failed, 0, value) * self._factor
        return fixed_width(self._kind, value.astype(_numpy(self._kind), copy=False))


def _numpy(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return f"<f{kind.bit_width // 8}"
    return f"<i{kind.bit_width // 8}"


class Bytes:
    """Bytes, a string, or a decimal in bytes."""

    def __init__(self, kind: pa.DataType | None) -> None:
        self._kind = kind

    def skip(self, data: ValueBytes, at: int) -> int:
        return skip_bytes(data, at)

    def read(self, lanes: Lanes) -> pa.Array | None:
        start, length = lanes.bytes()
        return None if self._kind is None else _column(lanes, start, length, self._kind)


class Fixed(Sized):
    """A fixed, or a decimal in one."""

    def _column(self, lanes: Lanes, start: Ints, kind: pa.DataType) -> pa.Array:
        # a malformed lane is at its end, so that the positions still increase
        is_read = lanes.reason == 0
        return _column(lanes, np.where(is_read, start, lanes.position), np.where(is_read, self._size, 0), kind)


def _column(lanes: Lanes, start: Ints, length: Ints, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return _decimals(lanes, start, length, kind)
    found = slices(lanes.payload, start, length)
    if pa.types.is_binary(kind):
        return found
    failed = invalid_text(found)
    if failed.any():
        lanes.fail(failed, reasons.TEXT)
        found = slices(lanes.payload, start, np.where(failed, 0, length))
    return as_text(found)


def _decimals(lanes: Lanes, start: Ints, length: Ints, kind: pa.DataType) -> pa.Array:
    """Returns big-endian numbers in two's complement; bytes beyond those of the column must repeat the sign."""
    width = kind.bit_width // 8
    end = start + length
    sign = np.where((length > 0) & ((lanes.word(start) & np.uint64(0x80)) != 0), 0xFF, 0).astype(np.uint8)
    digits = np.empty((len(start), width), np.uint8)
    for place in range(width):
        at = end - 1 - place
        byte = (lanes.word(np.maximum(at, 0)) & np.uint64(0xFF)).astype(np.uint8)
        digits[:, place] = np.where(at >= start, byte, sign)
    limit = 10**kind.precision
    if width == _DECIMAL128_BYTES:
        failed = _exceeds(digits, limit)
        checked = np.flatnonzero(length > width)
    else:
        failed = np.zeros(len(start), np.bool_)
        checked = np.arange(len(start))
    for lane in checked.tolist():
        raw = bytes(lanes.payload[start[lane] : end[lane]])
        failed[lane] = not -limit < int.from_bytes(raw, "big", signed=True) < limit
    lanes.fail(failed, reasons.DECIMAL)
    if failed.any():
        digits[failed] = 0
    return pa.Array.from_buffers(kind, len(start), [None, pa.py_buffer(digits)])


def _exceeds(digits: npt.NDArray[np.uint8], limit: int) -> Mask:
    """Returns which little-endian numbers of 16 bytes are not between `-limit` and `limit`, exclusively."""
    low = digits[:, :8].copy().view("<u8")[:, 0]
    high = digits[:, 8:].copy().view("<i8")[:, 0]
    most_high, most_low = np.int64(limit >> 64), np.uint64(limit & _LOW_BITS)
    least_high, least_low = np.int64(-limit >> 64), np.uint64(-limit & _LOW_BITS)
    is_over = (high > most_high) | ((high == most_high) & (low >= most_low))
    is_under = (high < least_high) | ((high == least_high) & (low <= least_low))
    found: Mask = is_over | is_under
    return found


class Enum:
    """An enum.

    Args:
        places: for each symbol of the writer its place in `symbols`, -1 if it has none.
    """

    def __init__(self, places: Sequence[int], symbols: Sequence[str], kind: pa.DataType | None) -> None:
        self._kind = kind
        self._places = np.array(places, np.int64)
        self._symbols = strings(symbols)

    def skip(self, data: ValueBytes, at: int) -> int:
        return skip_long(data, at)

    def read(self, lanes: Lanes) -> pa.Array | None:
        index = lanes.long()
        failed = (index < 0) | (index >= len(self._places))
        lanes.fail(failed, reasons.SYMBOL)
        if self._kind is None:
            return None
        if not len(self._places):
            return pa.nulls(len(lanes), self._kind)
        place = self._places[np.where(failed, 0, index)]
        failed = place < 0
        lanes.fail(failed, reasons.OTHER_SYMBOL)
        return self._symbols.take(integers(np.where(failed, 0, place)))


class Mismatch:
    """A branch of the writer's union that cannot be read as the reader's type."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def skip(self, data: ValueBytes, at: int) -> int:
        raise DamagedValueError(reasons.OTHER_BRANCH)

    def read(self, lanes: Lanes) -> pa.Array | None:
        lanes.fail(np.ones(len(lanes), np.bool_), reasons.OTHER_BRANCH)
        return pa.nulls(len(lanes), self._kind)
