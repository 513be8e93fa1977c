"""Scanner of flat JSON objects compiled with numba (extra `fast`).

It finds the selected fields of objects in one pass over their bytes, and validates the others. It reads only what has
one meaning: an object of scalars, without escapes in its strings. Other values are left to `json_blocks`. `json_scans`
builds the columns, and decides when this module is imported, which takes 0.3 s.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

# what the value of a field is
NONE, TEXT, NUMBER, TRUE, FALSE = range(5)
_NO_VALUE = 5
_OPEN, _CLOSE, _COLON, _COMMA, _QUOTE, _MINUS, _DOT, _ZERO, _NINE = b'{}:,"-.09'
_STOP = 255


def _tables() -> tuple[Any, Any]:
    """Returns the next state of a value for each byte, and what a value is that ends in a state."""
    table = np.full((32, 256), _STOP, np.uint8)
    ends = np.full(32, _NO_VALUE, np.uint8)
    digits = list(b"0123456789")
    # 1: in a string, 2: after it
    table[0, _QUOTE] = 1
    table[1, 0x20:] = 1
    table[1, _QUOTE], table[1, ord("\\")] = 2, _STOP
    # 3: minus, 4: zero, 5: digits, 6: point, 7: decimals, 8: e, 9: its sign, 10: its digits
    table[0, _MINUS] = 3
    table[[0, 3], _ZERO] = 4
    for state in (0, 3):
        table[state, digits[1:]] = 5
    for state, after in ((5, 5), (6, 7), (7, 7), (8, 10), (9, 10), (10, 10)):
        table[state, digits] = after
    table[[4, 5], _DOT] = 6
    for state in (4, 5, 7):
        table[state, list(b"eE")] = 8
    table[8, list(b"+-")] = 9
    ends[[2, 4, 5, 7, 10]] = TEXT, NUMBER, NUMBER, NUMBER, NUMBER
    state = 11
    for word, found in ((b"true", TRUE), (b"false", FALSE), (b"null", NONE)):
        before = 0
        for byte in word:
            table[before, byte] = before = state
            state += 1
        ends[before] = found
    return table, ends


_VALUE, _ENDS = _tables()
# a loop over this table is three times as fast as the states of a string
_IN_STRING = _VALUE[1] == 1
_BLANK = np.isin(np.arange(256), list(b" \t\r\n"))
# quotients of integers up to 2^53 and powers of ten up to 10^22 are exact
_EXACT = 1 << 53
_POWERS = np.array([10.0**each for each in range(23)])
# fields of a row whose keys are cached
_FIELDS = 64
_MAX_DIGITS, _MAX_NUMBER_BYTES = 18, 40


def _load_word(typing: Any, payload: Any, at: Any) -> Any:
    """Returns the type and the code of `_word`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.gep(data, [arguments[1]])
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(payload, types.int64), emit


# the eight bytes of an array from a position on
_word: Any = intrinsic(_load_word)


@numba.njit(inline="always")
def _is_equal(payload: Any, one: int, other: int, size: int) -> Any:
    """Returns whether two texts of a size are equal; 8 bytes after them must be in the payload."""
    place = 0
    while place + 8 <= size and _word(payload, one + place) == _word(payload, other + place):
        place += 8
    if place + 8 <= size:
        return False
    differing: Any = _word(payload, one + place) ^ _word(payload, other + place)
    return place == size or differing << np.uint64(8 * (place + 8 - size)) == 0


@numba.njit(inline="always")
def _after_blanks(payload: Any, at: int, end: int) -> Any:
    while at < end and _BLANK[payload[at]]:
        at += 1
    return at


@numba.njit(inline="always")
def _after_digits(payload: Any, at: int, end: int) -> Any:
    at += 1
    while at < end and payload[at] >= _ZERO and payload[at] <= _NINE:
        at += 1
    return at


@numba.njit(inline="always")
def _key(payload: Any, at: int, end: int, keys: Any, key_ends: Any, expected: int) -> Any:
    """Returns the column of a key, -1 without one, and the start of its value, -1 if there is no key.

    Usually it is the `expected` one: the key after the last selected one comes next.
    """
    at, column = _after_blanks(payload, at, end), -1
    if at == end or payload[at] != _QUOTE:
        return column, -1
    at += 1
    for candidate in range(expected, expected + key_ends.size):
        candidate -= key_ends.size if candidate >= key_ends.size else 0
        first = key_ends[candidate - 1] if candidate else 0
        size = key_ends[candidate] - first
        place = 0 if size < end - at else size + 1
        while place < size and keys[first + place] == payload[at + place]:
            place += 1
        if place == size and payload[at + size] == _QUOTE:
            column, at = candidate, at + size
            break
    while at < end and _IN_STRING[payload[at]]:
        at += 1
    # the quote after the key, and a colon
    if at + 1 >= end or payload[at] != _QUOTE or payload[at + 1] != _COLON:
        return column, -1
    return column, _after_blanks(payload, at + 2, end)


# a function that is called, and not inlined, would count references to each array, which takes longer than the scan
@numba.njit(cache=True, nogil=True)
def scan(payload: Any, begins: Any, ends: Any, keys: Any, key_ends: Any, starts: Any, lengths: Any, kinds: Any) -> Any:
    """Finds fields: start, length and kind of the value by column and row. Returns which rows are left."""
    left = np.ones(begins.size, np.bool_)
    # the text before the value of each field, as it was written in an earlier row: mostly it is the same
    texts, sizes, columns = np.zeros(_FIELDS, np.int64), np.zeros(_FIELDS, np.int64), np.zeros(_FIELDS, np.int64)
    for row in range(begins.size):
        at, end, expected, field = begins[row], ends[row], 0, 0
        has_next = at < end and payload[at] == _OPEN
        while has_next:
            has_next = False
            size = sizes[field]
            is_inside = size and at + size < end and at + size + 8 <= payload.size
            if is_inside and _is_equal(payload, texts[field], at, size):
                # an earlier row may have fewer blanks
                column, at = columns[field], _after_blanks(payload, at + size, end)
            else:
                text = at
                column, at = _key(payload, at + 1, end, keys, key_ends, expected)
                if at < 0:
                    break
                texts[field], sizes[field], columns[field] = text, at - text, column
            field += field < _FIELDS - 1
            begin, state = at, 0
            if at < end and payload[at] == _QUOTE:
                at, state = at + 1, 1
                while at < end and _IN_STRING[payload[at]]:
                    at += 1
            elif at < end and payload[at] > _ZERO and payload[at] <= _NINE:
                at, state = _after_digits(payload, at, end), 5
                if at + 1 < end and payload[at] == _DOT and _ZERO <= payload[at + 1] <= _NINE:
                    at, state = _after_digits(payload, at + 1, end), 7
            while at < end and _VALUE[state, payload[at]] != _STOP:
                at, state = at + 1, _VALUE[state, payload[at]]
            # a key that is repeated has a start already
            if _ENDS[state] == _NO_VALUE or column >= 0 and starts[column, row] != begins[row]:
                break
            if column >= 0:
                starts[column, row], lengths[column, row], kinds[column, row] = begin, at - begin, _ENDS[state]
                expected = column + 1
            at = _after_blanks(payload, at, end)
            has_next = at < end and payload[at] == _COMMA
            left[row] = at + 1 != end or payload[at] != _CLOSE
    return left


@numba.njit(cache=True, nogil=True)
def integers(payload: Any, starts: Any, lengths: Any, kinds: Any, limit: int, found: Any, left: Any) -> None:
    """Reads integers from -limit to limit - 1; others, and -0, are left."""
    for row in range(starts.size):
        if kinds[row] != NUMBER:
            continue
        at = starts[row]
        end = at + lengths[row]
        negative = payload[at] == _MINUS
        at += negative
        if end - at > _MAX_DIGITS:
            left[row] = True
            continue
        value = 0
        while at < end and payload[at] >= _ZERO and payload[at] <= _ZERO + 9:
            value = value * 10 + payload[at] - _ZERO
            at += 1
        value = -value if negative else value
        left[row] |= at < end or (negative and value == 0) or value < -limit or value >= limit
        found[row] = value


@numba.njit(cache=True, nogil=True)
def doubles(payload: Any, starts: Any, lengths: Any, kinds: Any, found: Any, inexact: Any, left: Any) -> None:
    """Reads numbers whose digits and decimals have an exact quotient; others are `inexact`, or left."""
    for row in range(starts.size):
        if kinds[row] != NUMBER:
            continue
        at = starts[row]
        end = at + lengths[row]
        negative = payload[at] == _MINUS
        at += negative
        value, point = np.int64(0), end
        while at < end:
            digit = np.int64(payload[at]) - _ZERO
            if payload[at] == _DOT:
                point = at + 1
            elif digit < 0 or digit > 9:
                left[row] = True
            elif value <= _EXACT:
                value = value * 10 + digit
            at += 1
        left[row] |= lengths[row] > _MAX_NUMBER_BYTES
        inexact[row] = not left[row] and (value > _EXACT or end - point >= _POWERS.size or (negative and value == 0))
        if not inexact[row] and not left[row]:
            found[row] = (-value if negative else value) / _POWERS[end - point]
