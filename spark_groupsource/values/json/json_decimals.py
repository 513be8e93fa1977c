"""Decimals that PyArrow's JSON reader may read as other numbers.

The reader multiplies a number up to the scale of its type in 128 bits, without a check for all overflows, and looks an
exponent up in a table without a check of its bounds. So the text is examined before it is read.

Source: Arrow `cpp/src/arrow/util/decimal.cc` (`DecimalFromString`), `basic_decimal.cc` (`Rescale`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.values.lanes.binary_blocks import Bytes, Ints, Mask, bounds

_MAX_PRECISION = 38
_PLUS, _POINT, _BACKSLASH, _SMALL_E, _SMALL_U = b"+.\\eu"
_TO_SMALL = 0x20
_PART_BYTES = 128 * 1024
_ESCAPE_BYTES = 6
_SIGN = np.isin(np.arange(256), list(b"+-"))
_DIGIT = np.isin(np.arange(256), list(b"0123456789"))
_DIGIT_OR_POINT = np.isin(np.arange(256), list(b"0123456789."))
# bytes beside a number, which may be a string
_BESIDE = np.isin(np.arange(256), list(b'" \t\r\n,:[]{}'))
# the characters of a number as code points
_ESCAPES = [f"{code:04{form}}".encode() for code in b"+,-.0123456789Ee" for form in "xX"]


def most_digits(kind: pa.DataType) -> int | None:
    """Returns how many successive digits a decimal within `kind` may have that PyArrow reads; None without decimals."""
    if pa.types.is_nested(kind):
        found = [most_digits(kind.field(at).type) for at in range(kind.num_fields)]
        return min((each for each in found if each is not None), default=None)
    return _MAX_PRECISION - kind.scale if pa.types.is_decimal(kind) else None


def unsafe_decimals(lines: pa.Array, digits: int) -> Mask:
    """Returns which values have more than so many successive digits, or a number with an exponent.

    Args:
        lines: objects, so that no number is at the end of the bytes.
    """
    found = np.zeros(len(lines), np.bool_)
    if not len(lines):
        return found
    payload, starts, ends = bounds(lines)
    payload = payload[: ends[-1]]
    # a longer run of digits has one at such a place
    step = max(digits, 1)
    places = np.flatnonzero(_DIGIT[payload[::step]]) * step
    # and it has further ones on a side of it
    before, after = np.maximum(places - digits // 2, 0), np.minimum(places + digits // 2, len(payload) - 1)
    places = places[_DIGIT[payload[before]] | _DIGIT[payload[after]]]
    sizes = _last(payload, places, 1, _DIGIT) - _last(payload, places, -1, _DIGIT) + 1
    _mark(found, places[sizes > digits], starts, ends)
    _mark(found, _exponents(payload), starts, ends)
    _mark(found, _escapes(payload), starts, ends)
    return found


def _exponents(payload: Bytes) -> Ints:
    """Returns the letters of exponents of numbers."""
    letters = _letters(payload)
    after = _last(payload, letters + _SIGN[payload[letters + 1]], 1, _DIGIT) + 1
    letters = letters[_BESIDE[payload[after]]]
    first = _last(payload, letters, -1, _DIGIT_OR_POINT) - 1
    first -= _SIGN[payload[first]]
    return letters[_BESIDE[payload[first]]]


def _letters(payload: Bytes) -> Ints:
    """Returns where the letter of an exponent may be: after a digit or a point, and before a digit or a sign."""
    found = []
    # the arrays of a part remain in the processor's cache
    for first in range(0, len(payload), _PART_BYTES):
        part = payload[first : first + _PART_BYTES + 2]
        # between the digits and the other characters is one more
        is_letter = (part[:-2] - np.uint8(_POINT)) < 12
        is_letter &= (part[1:-1] | np.uint8(_TO_SMALL)) == _SMALL_E
        is_letter &= (part[2:] - np.uint8(_PLUS)) < 15
        found.append(np.flatnonzero(is_letter) + (first + 1))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _last(payload: Bytes, places: Ints, step: int, table: Mask) -> Ints:
    """Returns the last places in a direction before a byte that is not in a table."""
    places = places.copy()
    pending = np.arange(len(places))
    while len(pending):
        pending = pending[table[payload[places[pending] + step]]]
        places[pending] += step
    return places


def _escapes(payload: Bytes) -> Ints:
    """Returns where a character of a number is escaped."""
    found = np.flatnonzero(payload == _BACKSLASH)
    found = found[found + _ESCAPE_BYTES <= len(payload)]
    found = found[payload[found + 1] == _SMALL_U]
    codes = payload[found[:, None] + np.arange(2, _ESCAPE_BYTES)]
    escapes: Ints = found[np.isin(codes.view("S4")[:, 0], _ESCAPES)] if len(found) else found
    return escapes


def _mark(rows: Mask, places: Ints, starts: Ints, ends: Ints) -> None:
    """Marks the rows of some places of the payload."""
    if len(places):
        # the bytes before the first value are those of another one
        places = places[places >= starts[0]]
        rows[np.searchsorted(ends, places, side="right")] = True


def beyond_precision(found: pa.Array) -> Mask | None:
    """Returns which decimals have more digits than their type, which the reader accepts; None for no one."""
    kind = found.type
    limit = 10 ** (kind.precision - kind.scale)
    if all(each is None or abs(each) < limit for each in pc.min_max(found).as_py().values()):
        return None
    return np.array([each is not None and abs(each) >= limit for each in found.to_pylist()], np.bool_)
