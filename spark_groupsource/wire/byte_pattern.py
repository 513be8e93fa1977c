"""Encoded messages that differ in some numbers only.

A client often sends a request again with other numbers: the offsets of a commit, the positions of a fetch. A pattern
reads these numbers with one call and compares all other bytes with those of an earlier request, which takes a tenth of
the time of decoding.
"""

from __future__ import annotations

import re
from struct import Struct, error
from typing import Any, Callable, Sequence

from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import Request

_CODES = {4: "i", 8: "q"}
Bytes = bytes | bytearray | memoryview


class BytePattern:
    """Bytes with numbers of `number_bytes` each at `positions`; the others are those of `constant`.

    Attributes: `gaps`, the bytes before, between and after the numbers; `size`, of all bytes.
    """

    def __init__(self, constant: bytes, positions: Sequence[int], number_bytes: int) -> None:
        ends = [0, *(position + number_bytes for position in positions)]
        gaps = [next_one - end for end, next_one in zip(ends, [*positions, len(constant)])]
        self.gaps = tuple(constant[end : end + gap] for end, gap in zip(ends, gaps))
        fields = _CODES[number_bytes].join(f"{gap}s" for gap in gaps)
        layout = Struct(f">{fields}")
        self._unpack, self._pack, self.size = layout.unpack, layout.pack, layout.size
        self._fields: list[bytes | int] = [0] * (2 * len(self.gaps) - 1)
        self._fields[::2] = self.gaps

    def match(self, data: Bytes) -> tuple[int, ...] | None:
        """Returns the numbers in `data`, None if another byte differs."""
        try:
            fields = self._unpack(data)
        except error:  # another size
            return None
        return fields[1::2] if fields[::2] == self.gaps else None

    def fill(self, numbers: Sequence[int]) -> bytes:
        """Returns the bytes with other numbers. Raises: struct.error for another count, or a number out of range."""
        fields = self._fields.copy()
        fields[1::2] = numbers
        return self._pack(*fields)


def pattern_of(encoded: Sequence[Bytes], number_bytes: int) -> BytePattern | None:
    """Returns the pattern of two encodings of a message, with 0 and with -1 as its numbers.

    None if they differ otherwise.
    """
    first, second = encoded
    if len(first) != len(second):
        return None
    differing = (int.from_bytes(first, "big") ^ int.from_bytes(second, "big")).to_bytes(len(first), "big")
    positions = [found.start() for found in re.finditer(b"\xff{%d}" % number_bytes, differing, re.DOTALL)]
    if len(differing) - differing.count(0) != len(positions) * number_bytes:
        return None
    return BytePattern(bytes(first), positions, number_bytes)


def field_pattern(
    encode: Callable[[], Bytes], structs: Sequence[object], field: str, number_bytes: int
) -> BytePattern | None:
    """Returns the pattern of what `encode` returns, with other numbers in one field of `structs`. Changes nothing."""
    numbers = [getattr(each, field) for each in structs]
    encoded = []
    for number in (0, -1):
        for each in structs:
            setattr(each, field, number)
        encoded.append(encode())
    for each, found in zip(structs, numbers):
        setattr(each, field, found)
    return pattern_of(encoded, number_bytes)


def request_pattern(
    request: Request[Any], version: int, body: Bytes, structs: Sequence[object], field: str, number_bytes: int
) -> BytePattern | None:
    """Returns the pattern of requests that differ from `body`, the encoding of `request`, in one field of `structs`.

    None if `body` has other bytes than this package would encode. Changes nothing.
    """
    pattern = field_pattern(
        lambda: encode_request(request, version, 0, None)[-len(body) :], structs, field, number_bytes
    )
    numbers = tuple(getattr(each, field) for each in structs)
    return pattern if pattern is not None and pattern.match(body) == numbers else None
