"""Numbers, dates and times as the texts that Spark writes, by column.

Each function returns a binary array; a null remains null.

Source: Java `Double.toString` and `BigDecimal.toString`; Spark `DateFormatter`, `TimestampFormatter`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import (
    booleans,
    byte_strings,
    consecutive,
    fixed_width,
    integers,
    is_valid,
    strings,
    to_numbers,
)
from spark_groupsource.records.columns.binary_columns import to_binary
from spark_groupsource.values.lanes.binary_blocks import invalid_text

Numbers = npt.NDArray[np.int64]
_DAY_US = 86_400_000_000
# Java writes other numbers with an exponent
_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7
# below, two digits may be nearer to a number than the one digit that identifies it
_SUBNORMAL = {"float": 1e-43, "double": 1e-321}
# Arrow's time zones have no daylight saving time in later years
_LAST_YEAR_OF_ZONES = 2036
_OFFSET_ZONE = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])(\d{1,2})(?::?(\d\d))?)?|Z")


def text(value: str) -> pa.Scalar:
    """Returns the bytes of a text."""
    return byte_strings([value.encode()])[0]


def repeated(value: str, rows: int) -> pa.Array:
    """Returns the bytes of a text for each row."""
    data = value.encode()
    return consecutive(pa.binary(), np.full(rows, len(data)), data * rows)


def joined(*parts: pa.Array | pa.Scalar, skips_nulls: bool = False) -> pa.Array:
    """Returns the bytes of the parts of each row, one after the other.

    Args:
        skips_nulls: whether a null has no bytes; else a row with one is null.
    """
    handling = "replace" if skips_nulls else "emit_null"
    return pc.binary_join_element_wise(*parts, text(""), null_handling=handling)


def chosen(mask: npt.NDArray[np.bool_], then: pa.Array | pa.Scalar, other: pa.Array | pa.Scalar) -> pa.Array:
    """Returns the values of `then` where the mask is true, and of `other` elsewhere."""
    return pc.if_else(booleans(mask), then, other)


def with_nulls(column: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the values, null where the column is."""
    return values if not column.null_count else chosen(is_valid(column), values, pa.nulls(1, values.type)[0])


def valid_texts(column: pa.Array) -> pa.Array:
    """Returns strings as a binary array in UTF-8; invalid bytes become U+FFFD, as in Java."""
    data = to_binary(column)
    is_invalid = invalid_text(data)
    if not is_invalid.any():
        return data
    # Spark keeps the bytes of a binary column that was cast to a string
    values = data.filter(booleans(is_invalid)).to_pylist()
    replaced = byte_strings([value.decode("utf-8", "replace").encode() for value in values])
    return pc.replace_with_mask(data, booleans(is_invalid), replaced)


def boolean_texts(column: pa.Array) -> pa.Array:
    """Returns ``true`` and ``false``."""
    return pc.if_else(column, text("true"), text("false"))


def number_texts(column: pa.Array) -> pa.Array:
    """Returns integers and decimals; a small decimal has an exponent, as in Java's BigDecimal.toString."""
    return to_binary(pc.cast(column, pa.string()))


def plain_decimal_texts(column: pa.Array) -> pa.Array:
    """Returns decimals without an exponent."""
    found = pc.cast(column, pa.string())
    scale = column.type.scale
    if scale <= 6:
        return to_binary(found)
    # the digits alone, as an integer
    digits = pc.cast(_unscaled(column), pa.string())
    sign = pc.if_else(pc.starts_with(digits, pattern="-"), strings(["-"])[0], strings([""])[0])
    padded = pc.utf8_lpad(pc.replace_substring(digits, "-", ""), scale + 1, padding="0")
    after = pc.utf8_slice_codeunits(padded, -scale, None)
    before = pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(padded, 0, -scale), strings([""])[0])
    return to_binary(pc.binary_join_element_wise(before, after, strings(["."])[0]))


def _unscaled(column: pa.Array) -> pa.Array:
    """Returns the decimals times ten to the power of their scale."""
    kind = pa.decimal128(38, 0)
    return pa.Array.from_buffers(kind, len(column), column.buffers(), column.null_count, column.offset)


def float_texts(column: pa.Array) -> pa.Array:
    """Returns the shortest text that identifies each number, in the form of Java: 1.0, 1.0E10, NaN, -Infinity."""
    numbers = np.abs(to_numbers(column))
    with np.errstate(invalid="ignore"):
        is_plain = (numbers >= _PLAIN_FROM) & (numbers < _PLAIN_BELOW) | (numbers == 0)
    is_plain |= ~is_valid(column)
    shown = pc.cast(column, pa.string())
    dotted = pc.if_else(
        pc.match_substring(shown, "."), shown, pc.binary_join_element_wise(shown, strings([".0"])[0], strings([""])[0])
    )
    if is_plain.all():
        return to_binary(dotted)
    at = integers(np.flatnonzero(~is_plain))
    return to_binary(pc.replace_with_mask(dotted, booleans(~is_plain), _scientific(column.take(at), shown.take(at))))


def _scientific(column: pa.Array, shown: pa.Array) -> pa.Array:
    """Returns numbers with an exponent, given them and the texts of Arrow."""
    numbers = to_numbers(column)
    nothing, point, zero = (strings([each])[0] for each in ("", ".", "0"))
    sign = chosen(np.signbit(numbers), strings(["-"])[0], nothing)
    parts = pc.extract_regex(shown, r"^-?(?P<before>\d+)\.?(?P<after>\d*)(?:e\+?(?P<exponent>-?\d+))?$")
    finite = np.isfinite(numbers)
    # a number that is not finite has no parts
    before, after, exponent = (pc.fill_null(parts.field(at), nothing) for at in range(3))
    digits = pc.binary_join_element_wise(before, after, nothing)
    significant = pc.utf8_ltrim(digits, characters="0")
    zeros = _lengths(digits) - _lengths(significant)
    given = pc.cast(chosen(_lengths(exponent) == 0, zero, exponent), pa.int64())
    exponents = _lengths(before) - 1 - zeros + np.where(finite, to_numbers(given), 0)
    kept = pc.utf8_rtrim(significant, characters="0")
    first, rest = pc.utf8_slice_codeunits(kept, 0, 1), pc.utf8_slice_codeunits(kept, 1, None)
    is_single = finite & (_lengths(rest) == 0)
    rest = chosen(is_single, zero, rest)
    tiny = is_single & (np.abs(numbers) < _SUBNORMAL[str(column.type)])
    if tiny.any():
        # a few numbers exist below the limit
        distinct, places = np.unique(np.abs(numbers[tiny]), return_inverse=True)
        two = np.array([f"{each:.1e}" for each in distinct.tolist()])[places]
        mask = booleans(tiny)
        first = pc.replace_with_mask(first, mask, strings([each[0] for each in two.tolist()]))
        rest = pc.replace_with_mask(rest, mask, strings([each[2] for each in two.tolist()]))
        exponents[tiny] = [int(each.partition("e")[2]) for each in two.tolist()]
    mantissa = pc.binary_join_element_wise(first, rest, point)
    found = pc.binary_join_element_wise(mantissa, pc.cast(integers(exponents), pa.string()), strings(["E"])[0])
    others = chosen(np.isnan(numbers), strings(["NaN"])[0], strings(["Infinity"])[0])
    sign = chosen(np.isnan(numbers), nothing, sign)
    return pc.binary_join_element_wise(sign, chosen(finite, found, others), nothing)


def _lengths(column: pa.Array) -> Numbers:
    found: Numbers = to_numbers(pc.binary_length(column)).astype(np.int64)
    return found


def date_texts(column: pa.Array) -> pa.Array:
    """Returns dates as yyyy-MM-dd; a year after 9999 has the sign +."""
    return with_nulls(column, _dates(to_numbers(column.view(pa.int32())).astype(np.int64)))


def _dates(days: Numbers) -> pa.Array:
    months = days.astype("datetime64[D]").astype("datetime64[M]")
    month_numbers = months.astype(np.int64)
    years, month = 1970 + month_numbers // 12, month_numbers % 12 + 1
    day = days - months.astype("datetime64[D]").astype(np.int64) + 1
    after = [*_digits(month, 2, "-"), *_digits(day, 2, "-")]
    if not len(days) or 0 <= int(years.min()) and int(years.max()) <= 9999:
        return _rows([*_digits(years, 4), *after])
    padded = pc.utf8_lpad(pc.cast(integers(np.abs(years)), pa.string()), 4, padding="0")
    sign = chosen(years < 0, text("-"), chosen(years > 9999, text("+"), text("")))
    return joined(sign, to_binary(padded), _rows(after))


class TimeStyle(NamedTuple):
    """How a time is written.

    Attributes:
        separator: between date and time.
        digits: of the fraction of a second; None for all of the six that are not zeros at the end.
        has_offset: whether a time with a time zone has its offset at the end.
    """

    separator: str
    digits: int | None
    has_offset: bool


JSON_TIMES = TimeStyle("T", 3, True)
CAST_TIMES = TimeStyle(" ", None, False)


def timestamp_texts(column: pa.Array, style: TimeStyle) -> pa.Array:
    """Returns timestamps in the time zone of their type, which `check_zone` accepts."""
    times = to_numbers(column.view(pa.int64())).astype(np.int64)
    times = np.where(is_valid(column), times, 0)
    zone = column.type.tz
    offsets = np.zeros(len(times), np.int64) if zone is None else _offsets(times, zone)
    # the last times of all have no local time in 64 bits
    days, rest = np.divmod(times, _DAY_US)
    carried, rest = np.divmod(rest + offsets, _DAY_US)
    days += carried
    seconds, fraction = np.divmod(rest, 1_000_000)
    clock = [*_digits(seconds // 3600, 2, style.separator), *_digits(seconds // 60 % 60, 2, ":")]
    clock += _digits(seconds % 60, 2, ":")
    parts = [_dates(days)]
    if style.digits is not None:
        parts.append(_rows([*clock, *_digits(fraction // 10 ** (6 - style.digits), style.digits, ".")]))
    else:
        parts.append(_rows(clock))
        if fraction.any():
            shown = pc.utf8_rtrim(_rows(_digits(fraction, 6, ".")).view(pa.string()), characters="0")
            parts.append(to_binary(chosen(fraction != 0, shown, strings([""])[0])))
    if zone is not None and style.has_offset:
        distinct, places = np.unique(offsets, return_inverse=True)
        shown_offsets = byte_strings([_offset_text(each // 1_000_000).encode() for each in distinct.tolist()])
        parts.append(shown_offsets.take(integers(places)))
    return with_nulls(column, joined(*parts))


def check_zone(kind: pa.DataType, name: str) -> None:
    """Raises: ConfigurationError for timestamps in a time zone that Arrow does not know."""
    try:
        _offsets(np.zeros(1, np.int64), kind.tz or "UTC")
    except pa.ArrowInvalid:
        raise ConfigurationError(
            f"Column {name} has timestamps in the time zone {kind.tz}, which is not known. Set "
            "spark.sql.session.timeZone to a region such as Europe/Berlin, or to an offset such as +02:00."
        ) from None


def _offsets(times_us: Numbers, zone: str) -> Numbers:
    """Returns the offset of the time zone at each time, in us. Raises: ArrowInvalid for an unknown time zone."""
    if zone == "Etc/UTC" or (found := _OFFSET_ZONE.fullmatch(zone)) is not None and found[1] is None:
        return np.zeros(len(times_us), np.int64)
    if found is not None:
        size = int(found[2]) * 3600 + int(found[3] or 0) * 60
        return np.full(len(times_us), (-size if found[1] == "-" else size) * 1_000_000)
    times_us = _in_known_years(times_us)
    local = pc.local_timestamp(fixed_width(pa.timestamp("us", tz=zone), times_us))
    offsets: Numbers = to_numbers(local.view(pa.int64())) - times_us
    return offsets


def _in_known_years(times_us: Numbers) -> Numbers:
    """Returns times of later years in an earlier year with the same calendar."""
    years = times_us.view("datetime64[us]").astype("datetime64[Y]")
    is_later = years.astype(np.int64) + 1970 > _LAST_YEAR_OF_ZONES
    if not is_later.any():
        return times_us
    first = years[is_later].astype("datetime64[D]").astype(np.int64)
    lengths = (years[is_later] + 1).astype("datetime64[D]").astype(np.int64) - first
    known = np.arange(_LAST_YEAR_OF_ZONES - 1997, _LAST_YEAR_OF_ZONES - 1969).astype("datetime64[Y]")
    begins = known.astype("datetime64[D]").astype(np.int64)
    calendars = {(begin % 7, int(end) - begin): begin for begin, end in zip(begins.tolist(), [*begins[1:], _END])}
    table = np.zeros((7, 2), np.int64)
    for (weekday, length), begin in calendars.items():
        table[weekday, length - 365] = begin
    shifted = times_us.copy()
    shifted[is_later] += (table[first % 7, lengths - 365] - first) * _DAY_US
    return shifted


_END = np.datetime64(f"{_LAST_YEAR_OF_ZONES + 1}", "D").astype(np.int64)


def _offset_text(seconds: int) -> str:
    """Returns an offset as Java's ZoneOffset; local mean times have seconds."""
    if not seconds:
        return "Z"
    minutes, rest = divmod(abs(seconds), 60)
    shown = f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{shown}:{rest:02d}" if rest else shown


def _digits(numbers: Numbers, width: int, before: str = "") -> list[npt.NDArray[np.uint8]]:
    """Returns columns of characters: those of `before`, and the digits of the numbers."""
    marks = [np.full(len(numbers), ord(each), np.uint8) for each in before]
    return marks + [(numbers // 10**power % 10 + ord("0")).astype(np.uint8) for power in range(width - 1, -1, -1)]


def _rows(columns: list[npt.NDArray[np.uint8]]) -> pa.Array:
    """Returns the characters of each row."""
    found = np.stack(columns, axis=1)
    return consecutive(pa.binary(), np.full(len(found), len(columns)), np.ascontiguousarray(found).reshape(-1))
