"""Searches for JSON values that PyArrow's reader may reject.

The reader reports one error for a block. A check finds all values that can cause such an error: other values may be
among them, and some may be missing, so the block is read again without them.

Source: messages of Arrow `cpp/src/arrow/json` (parser.cc, converter.cc).
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.columns.arrow_arrays import to_mask
from spark_groupsource.values.lanes.binary_blocks import Bytes, Ints, Mask, bounds

Check = Callable[[pa.Array], Mask]

_CHANGED = re.compile(r"Column\((?:/.*)?/(\w+)((?:/\[\])*)\) changed from (\w+) to ")
_TWICE = re.compile(r"Column\((?:/.*)?/(\w+)\) was specified twice")
_CONVERSION = re.compile(r"(?:Failed to convert JSON to|as a scalar of type) (.+?)(?:$|, couldn't parse|: )")
# first bytes of a value of each kind
_FIRST_BYTES = {"number": b"-0123456789", "string": b'"', "boolean": b"tf", "array": b"[", "object": b"{"}
_SPACE, _COLON = b" :"
_WHITESPACE = r"[ \t\r\n]*"
# escapes of code points are not examined
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrtu])*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
# bytes after a key that are compared with a pattern: a time has 34
_WINDOW = 40
_ELEMENTS = {"number": _NUMBER, "string": _STRING, "boolean": "true|false"}
_INTEGERS = {
    8: "[1-9][0-9]|1[01][0-9]",
    16: "[1-9][0-9]{1,3}|[12][0-9]{4}",
    32: "[1-9][0-9]{1,8}|1[0-9]{9}",
    64: "[1-9][0-9]{1,17}|[1-8][0-9]{18}",
}


def checks(message: str, kind: pa.DataType) -> Iterator[tuple[str, Check]]:
    """Returns the checks for the reader's message about a block of type `kind`, with names, the most specific first."""
    if found := _CHANGED.search(message):
        name, expected = found[1], found[3]
        if not found[2]:
            yield f"{expected} {name}", _has_other_kind(name, expected)
        elif found[2] == "/[]" and expected in _ELEMENTS:
            yield f"list of {expected} {name}", _has_other_value(name, _array(f"(?:{_ELEMENTS[expected]}|null)"))
    elif found := _TWICE.search(message):
        yield f"twice {found[1]}", _has_key_twice(found[1])
    elif found := _CONVERSION.search(message):
        for field in kind:
            values = _pattern(field.type) if str(field.type) == found[1] else None
            if values is not None:
                yield f"{found[1]} {field.name}", _has_other_value(field.name, values)
    yield "no JSON", _is_no_json


def _positions(payload: Bytes, key: bytes) -> Ints:
    """Returns where `key` is in the payload. This takes half of the time of a search in each line."""
    size = max(len(payload) - 3, 0)
    words: npt.NDArray[np.uint32] = np.ndarray((size,), dtype="<u4", buffer=payload.data, strides=(1,))  # type: ignore[call-overload]
    head = key[:4]
    if len(head) < 4:
        words = words & np.uint32((1 << (8 * len(head))) - 1)
    found = np.flatnonzero(words == np.uint32(int.from_bytes(head, "little")))
    for place in range(4, len(key)):
        found = found[payload[np.minimum(found + place, len(payload) - 1)] == key[place]]
    return found


class _Occurrences:
    """Places of a key in the lines: the row, and the position after the key."""

    def __init__(self, lines: pa.Array, name: str) -> None:
        key = json.dumps(name, ensure_ascii=False).encode()
        self.payload, starts, ends = bounds(lines)
        self.rows = len(lines)
        self.at = _positions(self.payload, key)
        self.at = self.at[(self.at >= starts[0]) & (self.at < ends[-1])] + len(key)
        self.row = np.searchsorted(ends, self.at, side="right")

    def bytes(self, at: Ints) -> Bytes:
        """Returns the byte at each position, or the last one."""
        found: Bytes = self.payload[np.minimum(at, len(self.payload) - 1)]
        return found

    def mask(self, selected: Mask) -> Mask:
        """Returns the rows of some occurrences."""
        found = np.zeros(self.rows, np.bool_)
        found[self.row[selected]] = True
        return found


def _has_other_kind(name: str, kind: str) -> Check:
    """Finds values with another kind of value after the key; at most one space around the colon is looked at."""
    allowed = np.zeros(256, np.bool_)
    allowed[list(_FIRST_BYTES.get(kind, b"") + b"n")] = True

    def check(lines: pa.Array) -> Mask:
        found = _Occurrences(lines, name)
        at = found.at
        for skipped in (_SPACE, _COLON, _SPACE):
            at = at + (found.bytes(at) == skipped)
        return found.mask(~allowed[found.bytes(at)])

    return check


def _has_key_twice(name: str) -> Check:
    def check(lines: pa.Array) -> Mask:
        found = _Occurrences(lines, name)
        twice: Mask = np.bincount(found.row, minlength=len(lines)) > 1
        return twice

    return check


def _has_other_value(name: str, values: str) -> Check:
    """Finds values that do not match a pattern within `_WINDOW` bytes after the key."""
    pattern = f"^{_WHITESPACE}:{_WHITESPACE}(?:{values}|null){_WHITESPACE}[,}}]"

    def check(lines: pa.Array) -> Mask:
        found = _Occurrences(lines, name)
        window = found.bytes(found.at[:, None] + np.arange(_WINDOW))
        offsets = np.arange(len(found.at) + 1, dtype=np.int32) * _WINDOW
        texts = pa.Array.from_buffers(pa.binary(), len(found.at), [None, pa.py_buffer(offsets), pa.py_buffer(window)])
        return found.mask(~to_mask(pc.match_substring_regex(texts, pattern)))

    return check


def _pattern(kind: pa.DataType) -> str | None:
    """Returns a pattern of the values that the reader converts to a type; None if every number or string is one."""
    if pa.types.is_decimal(kind):
        fraction = f"(?:\\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        return f"-?(?:0|[1-9][0-9]{{0,{max(kind.precision - kind.scale - 1, 0)}}}){fraction}"
    if pa.types.is_integer(kind):
        return f"-?(?:[0-9]|{_INTEGERS[kind.bit_width]})"
    return None


def _is_no_json(lines: pa.Array) -> Mask:
    """Finds what is no JSON, numbers beyond the range, and what is nested deeper than two levels."""
    return ~to_mask(pc.match_substring_regex(lines, _object_pattern()))


@cache
def _object_pattern() -> str:
    value = scalar = f"(?:{_STRING}|{_NUMBER}|true|false|null)"
    for _ in range(2):
        value = f"(?:{scalar}|{_array(value)}|{_object(value)})"
    return f"^{_object(value)}$"


def _array(value: str) -> str:
    return f"\\[{_WHITESPACE}(?:{_listed(value)})?\\]"


def _object(value: str) -> str:
    pair = f"{_STRING}{_WHITESPACE}:{_WHITESPACE}{value}"
    return f"\\{{{_WHITESPACE}(?:{_listed(pair)})?\\}}"


def _listed(item: str) -> str:
    return f"{item}{_WHITESPACE}(?:,{_WHITESPACE}{item}{_WHITESPACE})*"
