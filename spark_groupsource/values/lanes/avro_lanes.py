"""Cursors over many Avro or Protobuf values, which advance together.

Each value of a block is a lane. A step reads one field of every lane with a few NumPy operations, so its cost per value
is some nanoseconds. A lane with invalid bytes gets a reason and remains at its end; the others continue.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import integers
from spark_groupsource.values.lanes.binary_blocks import Bytes, Ints, Mask

TRUNCATED, BRANCH, LENGTH, SYMBOL, TEXT, TRAILING, BLOCK, VARINT, DECIMAL, OTHER_BRANCH, OTHER_SYMBOL = range(1, 12)
TAG, WIRE_TYPE, REQUIRED, TIME, ENUM, PACKED, DEPTH, NESTING, BOOLEAN = range(12, 21)
REASONS = {
    TRUNCATED: "it ends before its last field",
    BRANCH: "the branch of a union does not exist",
    LENGTH: "a length is negative, or exceeds the value",
    SYMBOL: "the symbol of an enum does not exist",
    TEXT: "a string is not UTF-8",
    TRAILING: "bytes follow its last field",
    BLOCK: "the count of a block exceeds the value",
    VARINT: "an integer has more than 64 bits, or exceeds its type",
    DECIMAL: "a decimal exceeds its precision",
    OTHER_BRANCH: "the branch that the writer chose of a union does not fit the schema of the query",
    OTHER_SYMBOL: "the symbol of an enum is not in the schema of the query",
    TAG: "the tag of a field is invalid",
    WIRE_TYPE: "a field has another wire type than in the schema of the query",
    REQUIRED: "a required field is missing",
    TIME: "a time exceeds the range of microseconds",
    ENUM: "a number is not in its enum",
    PACKED: "the bytes of a packed field are no whole numbers",
    DEPTH: "groups are nested deeper than 100 levels",
    NESTING: "it is nested deeper than 100,000 types",
    BOOLEAN: "a boolean is neither 0 nor 1",
}
MAX_EMPTY_ITEMS = 1000
"""Items without bytes that the arrays of a value may have; their number is in no proportion to its bytes."""
Words = npt.NDArray[np.uint64]
_MAX_VARINT = 10
# a read of 8 bytes, or of a varint of 10, may begin at the last byte
PADDING = 32


class ValueBytes(bytes):
    """Bytes of a value.

    Attributes:
        empty_items: how many items without bytes its arrays may still have.
    """

    empty_items = MAX_EMPTY_ITEMS


def _u(number: int) -> np.uint64:
    return np.uint64(number)


def _words(payload: Bytes) -> Words:
    """Returns the eight bytes from each position on, in place."""
    found: Words = np.ndarray(
        (len(payload) - 7,), dtype="<u8", buffer=payload.data, strides=(1,)
    )  # type: ignore[call-overload]
    return found


class Lanes:
    """Positions in values of one payload.

    Attributes:
        payload: the bytes, followed by at least `PADDING` others.
        position: where the next field of each lane begins.
        end: end of the value of each lane.
        reason: 0, or why the value is malformed.
    """

    def __init__(
        self,
        payload: Bytes,
        position: Ints,
        end: Ints,
        reason: npt.NDArray[np.int8] | None = None,
        empty_items: Ints | None = None,
    ) -> None:
        self.payload = payload
        self.position = position
        self.end = end
        self.reason = np.zeros(len(position), np.int8) if reason is None else reason
        # few schemas have items without bytes
        self._empty_items = empty_items
        self._words = _words(payload)

    def __len__(self) -> int:
        return len(self.position)

    @property
    def empty_items(self) -> Ints:
        """How many items without bytes the arrays of each value may still have."""
        if self._empty_items is None:
            self._empty_items = np.full(len(self), MAX_EMPTY_ITEMS)
        return self._empty_items

    def subset(self, index: Ints) -> Lanes:
        """Returns some of the lanes; `merge` returns their positions."""
        empty_items = None if self._empty_items is None else self._empty_items[index]
        return Lanes(self.payload, self.position[index], self.end[index], self.reason[index], empty_items)

    def merge(self, index: Ints, part: Lanes) -> None:
        """Takes over the positions and reasons of a subset."""
        self.position[index] = part.position
        self.end[index] = part.end
        self.reason[index] = part.reason
        if part._empty_items is not None:
            self.empty_items[index] = part._empty_items

    def fail(self, mask: Mask, reason: int) -> None:
        """Marks the values as malformed, unless they are already."""
        lanes = np.flatnonzero(mask)
        if len(lanes):
            before = self.reason[lanes]
            self.reason[lanes] = np.where(before, before, reason)
            self.position[lanes] = self.end[lanes]

    def fail_lane(self, lane: int, reason: int) -> None:
        """Marks one value as malformed, unless it is already."""
        self.reason[lane] = self.reason[lane] or reason
        self.position[lane] = self.end[lane]

    def skip(self, size: int) -> Ints:
        """Advances by a fixed size; returns the previous positions, at which `size` bytes may be read."""
        start = self.position.copy()
        self.position += size
        self.fail(self.position > self.end, TRUNCATED)
        return start

    def value(self, lane: int) -> ValueBytes:
        """Returns the bytes of a lane from its position on."""
        found = ValueBytes(self.payload[self.position[lane] : self.end[lane]])
        if self._empty_items is not None:
            found.empty_items = int(self._empty_items[lane])
        return found

    def keep_empty_items(self, lane: int, value: ValueBytes) -> None:
        """Takes over how many items without bytes a value may still have."""
        if value.empty_items != MAX_EMPTY_ITEMS:
            self.empty_items[lane] = value.empty_items

    def word(self, start: Ints) -> Words:
        """Returns the eight bytes at each position; any bytes for a position at or after the end of the payload."""
        found: Words = self._words[np.minimum(start, len(self._words) - 1)]
        return found

    def long(self) -> Ints:
        """Reads an int or a long of Avro; 0 for malformed lanes."""
        raw = self.varint()
        value: Ints = (raw >> _u(1)).view(np.int64) ^ -(raw & _u(1)).view(np.int64)
        return value

    def varint(self) -> Words:
        """Reads an unsigned number; 0 for malformed lanes."""
        word = self.word(self.position)
        low = word & _u(0x7F)
        if not (word & _u(0x80)).any():
            size = np.ones(len(word), np.int64)
            raw = low
        else:
            raw, size = self._varint(word)
        self.position += size
        failed = self.position > self.end
        if failed.any():
            self.fail(failed, TRUNCATED)
            raw[failed] = 0
        return raw

    def _varint(self, word: Words) -> tuple[Words, Ints]:
        stops = ~word & _u(0x8080808080808080)
        is_long = stops == 0
        low = stops & (~stops + _u(1))
        raw = _packed(np.where(is_long, word, word & (low | (low - _u(1)))))
        # the exponent of a power of two is the position of its bit
        bit = (low.astype(np.float64).view(np.int64) >> 52) - 1023
        size = (bit + 1) >> 3
        if is_long.any():
            at = np.flatnonzero(is_long)
            rest = self.word(self.position[at] + 8)
            ninth, tenth = rest & _u(0xFF), (rest >> _u(8)) & _u(0xFF)
            has_tenth = ninth >= _u(0x80)
            raw[at] |= (ninth & _u(0x7F)) << _u(56)
            raw[at] |= np.where(has_tenth, (tenth & _u(1)) << _u(63), _u(0))
            size[at] = np.where(has_tenth, 10, 9)
            failed = np.zeros(len(word), np.bool_)
            # a tenth byte after the end is that of another value
            failed[at] = has_tenth & (tenth > _u(1)) & (self.end[at] - self.position[at] >= _MAX_VARINT)
            self.fail(failed, VARINT)
            raw[failed] = 0
            size[failed] = 0
        return raw, size

    def bytes(self) -> tuple[Ints, Ints]:
        """Reads bytes or a string; returns start and length."""
        length = self.long()
        return self._run(length)

    def delimited(self) -> tuple[Ints, Ints]:
        """Reads bytes with an unsigned length, as in Protobuf; returns start and length."""
        return self._run(self.varint().view(np.int64))

    def _run(self, length: Ints) -> tuple[Ints, Ints]:
        self.fail((length < 0) | (length > self.end - self.position), LENGTH)
        length[np.flatnonzero(self.reason)] = 0
        start = self.position.copy()
        self.position += length
        return start, length


def _packed(word: Words) -> Words:
    """Joins the low seven bits of each byte."""
    word = word & _u(0x7F7F7F7F7F7F7F7F)
    word = (word & _u(0x007F007F007F007F)) | ((word & _u(0x7F007F007F007F00)) >> _u(1))
    word = (word & _u(0x00003FFF00003FFF)) | ((word & _u(0x3FFF00003FFF0000)) >> _u(2))
    return (word & _u(0x000000000FFFFFFF)) | ((word & _u(0x0FFFFFFF00000000)) >> _u(4))


def slices(payload: Bytes, start: Ints | npt.NDArray[np.int32], length: Ints | npt.NDArray[np.int32]) -> pa.Array:
    """Returns the byte strings at `start`, in increasing order, as one binary array.

    They alternate with the bytes between them, and Arrow takes every second element.
    """
    rows = len(start)
    limits = np.empty(2 * rows + 1, np.int32)
    limits[0:-1:2] = start
    limits[1::2] = start + length
    limits[-1] = limits[-2] if rows else 0
    alternating = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(limits), pa.py_buffer(payload)])
    return alternating.take(integers(np.arange(0, 2 * rows, 2, dtype=np.int32)))
