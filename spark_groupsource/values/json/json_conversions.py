"""Columns of the types that PyArrow's JSON reader reads as text.

PyArrow reads dates and times in other forms than from_json. So only the usual form is converted here, which means the
same to both; the rows of other values are left to the decoder of single values.
"""

from __future__ import annotations

from typing import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.columns.arrow_arrays import booleans, byte_strings, is_valid, to_mask, to_numbers
from spark_groupsource.values.json.json_decimals import beyond_precision
from spark_groupsource.values.json.json_records import MalformedValueError, base64_bytes
from spark_groupsource.values.lanes.binary_blocks import Mask, bounds

_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
)
_DATE = f"[0-9]{{4}}-{_DAYS}"
_ZONE = "(?:Z|[+-](?:(?:0[0-9]|1[0-7]):?[0-5][0-9]|18:?00))"
_TIME = "[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\\.[0-9]{1,6})?ZONE)?"
_PATTERNS = {
    pa.date32(): f"^{_DATE}$",
    pa.timestamp("us"): f"^{_DATE}(?:{_TIME.replace('ZONE', '')})?$",
    pa.timestamp("us", "UTC"): f"^{_DATE}(?:{_TIME.replace('ZONE', f'{_ZONE}?')})?$",
}
# a day of which the pattern does not say whether it exists
_LEAP_DAY = "-02-29"
_HAS_ZONE = f"{_ZONE}$"
_ZULU = ord("Z")
_DATE_BYTES, _SECONDS_BYTES = len("2000-01-01"), len("2000-01-01T00:00:00Z")


def read_type(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type that the reader reads for `kind`; None if it reads no such values."""
    if pa.types.is_struct(kind):
        fields = [(field.name, read_type(field.type)) for field in kind]
        has_all = kind.num_fields and all(each is not None for _, each in fields)
        return pa.struct(fields) if has_all else None
    if pa.types.is_map(kind):
        return None
    if pa.types.is_list(kind):
        element = read_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    return pa.string() if kind in _PATTERNS or pa.types.is_binary(kind) else kind


def converted(found: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Converts an array of the type that was read.

    Returns: the array, and which rows are left because of one of their values; None for no row.
    """
    convert = _conversion(kind)
    return (found, None) if convert is None else convert(found, kind)


_Convert = Callable[[pa.Array, pa.DataType], tuple[pa.Array, "Mask | None"]]


def _conversion(kind: pa.DataType) -> _Convert | None:
    """Returns the conversion to a type; None if the reader reads it."""
    if pa.types.is_nested(kind):
        if not any(_conversion(kind.field(at).type) for at in range(kind.num_fields)):
            return None
        return _to_struct if pa.types.is_struct(kind) else _to_list
    if pa.types.is_decimal(kind):
        return _to_decimals
    if pa.types.is_binary(kind):
        return _to_bytes
    return _to_times if kind in _PATTERNS else None


def _to_struct(found: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    fields = [converted(child, field.type) for child, field in zip(found.flatten(), kind)]
    children = [child for child, _ in fields]
    values = pa.StructArray.from_arrays(children, fields=list(kind), mask=found.is_null())
    return values, any_row([left for _, left in fields])


def _to_list(found: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    offsets = found.offsets
    begin, end = offsets[0].as_py(), offsets[-1].as_py()
    elements, left = converted(found.values[begin:end], kind.value_type)
    starts = pc.subtract(offsets, offsets[0])
    values = pa.ListArray.from_arrays(starts, elements, type=kind, mask=found.is_null())
    if left is None:
        return values, None
    rows = np.zeros(len(found), np.bool_)
    rows[np.searchsorted(to_numbers(starts)[1:], np.flatnonzero(left), side="right")] = True
    return values, rows


def any_row(masks: list[Mask | None]) -> Mask | None:
    """Returns the rows of some masks; None for no row."""
    given = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(given) if given else None


def _to_decimals(found: pa.Array, _: pa.DataType) -> tuple[pa.Array, Mask | None]:
    left = beyond_precision(found)
    return (found, None) if left is None else (_where(~left, found), left)


def _to_bytes(found: pa.Array, _: pa.DataType) -> tuple[pa.Array, Mask | None]:
    values: list[bytes | None] = []
    left: list[int] = []
    for row, text in enumerate(found.to_pylist()):
        try:
            values.append(None if text is None else base64_bytes(text))
        except MalformedValueError:
            values.append(None)
            left.append(row)
    return byte_strings(values), _rows(left, len(values))


def _rows(listed: list[int], size: int) -> Mask | None:
    if not listed:
        return None
    mask = np.zeros(size, np.bool_)
    mask[listed] = True
    return mask


def _to_times(found: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    usual = _cast_usual(found, kind)
    if usual is not None:
        return usual, None
    left = is_valid(found) & ~to_mask(pc.match_substring_regex(found, _PATTERNS[kind]))
    while True:
        selected = _where(~left, found)
        try:
            return _cast(selected, kind), left
        except pa.ArrowInvalid:
            further = to_mask(pc.match_substring(selected, _LEAP_DAY))
            if not further.any():
                raise
            left |= further


def _cast_usual(found: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Casts values that all have one form, which takes less time; None for others."""
    payload, starts, ends = bounds(found)
    shown = ends > starts
    sizes, last = (ends - starts)[shown], payload[ends[shown] - 1]
    written = kind
    if pa.types.is_date(kind):
        is_usual = (sizes == _DATE_BYTES).all()
    elif kind.tz is None:
        is_usual = True
    else:
        # Spark has no zone after minutes
        is_usual = ((last == _ZULU) & (sizes >= _SECONDS_BYTES)).all()
        if not is_usual and not (last == _ZULU).any():
            written, is_usual = pa.timestamp("us"), True
    try:
        return found.cast(written).view(kind) if is_usual else None
    except pa.ArrowInvalid:
        return None


def _cast(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts dates, or times of which each may have a zone or not. Raises: ArrowInvalid."""
    if not (pa.types.is_timestamp(kind) and kind.tz):
        return found.cast(kind)
    has_zone = to_mask(pc.match_substring_regex(found, _HAS_ZONE))
    local = _where(~has_zone, found).cast(pa.timestamp("us")).view(kind)
    return pc.coalesce(local, _where(has_zone, found).cast(kind))


def _where(selected: Mask, found: pa.Array) -> pa.Array:
    """Returns the selected values, and null in place of the others."""
    return pc.if_else(booleans(selected), found, pa.nulls(len(found), found.type))
