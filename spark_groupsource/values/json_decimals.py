"""Decimals that PyArrow's JSON reader may read as other numbers.

The reader multiplies a number up to the scale of its type in 128 bits, without a check for all overflows, and looks an
exponent up in a table without a check of its bounds. So the text is examined before it is read.

Source: Arrow `cpp/src/arrow/util/decimal.cc` (`DecimalFromString`), `basic_decimal.cc` (`Rescale`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.arrow_arrays import integers, to_mask
from spark_groupsource.values.binary_blocks import Ints, Mask, bounds

_MAX_PRECISION = 38
_ZERO, _BACKSLASH, _SMALL_E, _TO_SMALL = ord("0"), ord("\\"), ord("e"), 0x20
_EXPONENT = r"[0-9.][eE][+-]?[0-9]"
_NUMBER_WITH_EXPONENT = rf'[\s:,\[{{"][+-]?[0-9.,]*{_EXPONENT}'
# the characters of a number as code points
_ESCAPED_NUMBER = r"\\u00(?:2[bBcCdDeE]|3[0-9]|[46]5)"


def most_digits(kind: pa.DataType) -> int | None:
    """Returns how many successive digits a decimal within `kind` may have that PyArrow reads; None without decimals."""
    if pa.types.is_nested(kind):
        found = [most_digits(kind.field(at).type) for at in range(kind.num_fields)]
        return min((each for each in found if each is not None), default=None)
    return _MAX_PRECISION - kind.scale if pa.types.is_decimal(kind) else None


def unsafe_decimals(lines: pa.Array, digits: int) -> Mask:
    """Returns which values have more than so many successive digits, or a number with an exponent."""
    payload, starts, ends = bounds(lines)
    payload = payload[: ends[-1]] if len(ends) else payload
    found = np.zeros(len(lines), np.bool_)
    is_digit = (payload - np.uint8(_ZERO)) < 10
    run, size = is_digit, 1
    while size <= digits and len(run):
        step = min(size, digits + 1 - size)
        run = run[:-step] & run[step:]
        size += step
    _mark(found, np.flatnonzero(run), starts, ends)
    is_exponent = (payload[1:] | np.uint8(_TO_SMALL)) == _SMALL_E
    # the byte before it is a digit or a point
    is_exponent &= is_digit[:-1] | (payload[:-1] == ord("."))
    for places, pattern in (
        (np.flatnonzero(is_exponent), _NUMBER_WITH_EXPONENT),
        (np.flatnonzero(payload == _BACKSLASH), _ESCAPED_NUMBER),
    ):
        suspects = np.zeros(len(lines), np.bool_)
        _mark(suspects, places, starts, ends)
        rows = np.flatnonzero(suspects & ~found)
        if len(rows):
            found[rows] = to_mask(pc.match_substring_regex(lines.take(integers(rows)), pattern))
    return found


def _mark(rows: Mask, places: Ints, starts: Ints, ends: Ints) -> None:
    """Marks the rows of some places of the payload."""
    if len(places):
        places = places[places >= starts[0]]
        rows[np.searchsorted(ends, places, side="right")] = True


def beyond_precision(found: pa.Array) -> Mask | None:
    """Returns which decimals have more digits than their type, which the reader accepts; None for no one."""
    kind = found.type
    limit = 10 ** (kind.precision - kind.scale)
    if all(each is None or abs(each) < limit for each in pc.min_max(found).as_py().values()):
        return None
    return np.array([each is not None and abs(each) >= limit for each in found.to_pylist()], np.bool_)
