"""Columns of Spark as JSON texts, by column.

The texts are those of Spark's to_json: fields that are null are left out.

Source: Spark `JacksonGenerator`; Jackson `WriterBasedJsonGenerator`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import bitmap, byte_strings, is_valid
from spark_groupsource.records.columns.binary_columns import binary_bounds, is_bytes, is_text, to_binary
from spark_groupsource.values.text_columns import (
    JSON_TIMES,
    boolean_texts,
    check_zone,
    chosen,
    date_texts,
    float_texts,
    joined,
    number_texts,
    repeated,
    text,
    timestamp_texts,
    valid_texts,
    with_nulls,
)
from spark_groupsource.values.text_writer import Writer, write_lists, write_maps

_SHORT = {ord(char): after for char, after in zip('"\\\b\t\n\f\r', '"\\btnfr')}
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def json_writer(kind: pa.DataType, name: str) -> Writer:
    """Returns the writer of a column.

    Args:
        name: of the column, for messages.
    Raises: ConfigurationError for a type that to_json does not accept, and one that is not written.
    """
    if not (pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_list(kind)):
        raise ConfigurationError(
            f"Column {name} is {kind}; with {name}.format=json it must be a struct, an array or a map. Use "
            f"struct(...), or set {name}.format to string for text that is JSON already."
        )
    return _writer(kind, name)


def _writer(kind: pa.DataType, path: str) -> Writer:
    if pa.types.is_struct(kind):
        return _struct_writer(kind, path)
    if pa.types.is_map(kind):
        writers = _key_writer(kind.key_type, path), _writer(kind.item_type, f"{path}.value")
        return partial(write_maps, *writers, before_key='"', after_key='":', separator=",")
    if pa.types.is_list(kind):
        return partial(write_lists, _writer(kind.value_type, f"{path}.element"), separator=",")
    if pa.types.is_timestamp(kind):
        check_zone(kind, path)
        return lambda column: quoted(timestamp_texts(column, JSON_TIMES))
    if is_text(kind):
        # and a column of nulls
        return lambda column: quoted(escaped_texts(valid_texts(column)))
    if is_bytes(kind):
        return lambda column: quoted(base64_texts(to_binary(column)))
    for is_kind, write in _SCALARS:
        if is_kind(kind):
            return write
    raise ConfigurationError(f"Column {path} is {kind}, which is not written as JSON. Cast it, or leave it out.")


def _write_floats(column: pa.Array) -> pa.Array:
    found = float_texts(column)
    finite = pc.is_finite(column)
    # a null has no text
    return found if pc.all(finite, min_count=0).as_py() is not False else pc.if_else(finite, found, quoted(found))


def _struct_writer(kind: pa.StructType, path: str) -> Writer:
    fields = [(escaped_name(field.name), _writer(field.type, f"{path}.{field.name}")) for field in kind]

    def write(column: pa.Array) -> pa.Array:
        # whether an earlier field of a row has been written
        begun = np.zeros(len(column), np.bool_)
        parts: list[pa.Array | pa.Scalar] = [repeated("{", len(column))]
        for at, (name, write_field) in enumerate(fields):
            values = write_field(column.field(at))
            present = is_valid(values)
            first, next_one = text(f"{name}:"), text(f",{name}:")
            if begun.all() or not begun.any():
                before: pa.Array | pa.Scalar = next_one if len(begun) and begun[0] else first
            else:
                before = chosen(begun, next_one, first)
            parts += [before if present.all() else chosen(present, before, text("")), values]
            begun = begun | present
        return with_nulls(column, joined(*parts, text("}"), skips_nulls=True))

    return write


def _key_writer(kind: pa.DataType, path: str) -> Writer:
    """Returns the writer of names; dates and times are their numbers, as in to_json."""
    if is_text(kind):
        return lambda column: escaped_texts(valid_texts(column))
    if pa.types.is_date32(kind):
        return lambda column: number_texts(column.view(pa.int32()))
    if pa.types.is_timestamp(kind):
        return lambda column: number_texts(column.view(pa.int64()))
    if pa.types.is_floating(kind):
        return float_texts
    for is_kind, write in _SCALARS:
        if is_kind(kind):
            return write
    raise ConfigurationError(
        f"Column {path} is a map with keys of {kind}, which are no names in JSON. Cast the keys to string."
    )


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Writer], ...] = (
    (pa.types.is_boolean, boolean_texts),
    (pa.types.is_integer, number_texts),
    (pa.types.is_decimal, number_texts),
    (pa.types.is_floating, _write_floats),
    (pa.types.is_date32, lambda column: quoted(date_texts(column))),
)


def quoted(column: pa.Array) -> pa.Array:
    """Returns texts in quotes."""
    return joined(text('"'), column, text('"'))


def escaped_name(name: str) -> str:
    """Returns the name of a field in quotes."""
    return str(quoted(escaped_texts(byte_strings([name.encode()])))[0].as_py().decode())


@cache
def _widths() -> npt.NDArray[np.uint8]:
    """Returns the number of characters of each byte in a string of JSON."""
    found = np.ones(256, np.uint8)
    found[:32] = 6
    found[list(_SHORT)] = 2
    return found


def escaped_texts(column: pa.Array) -> pa.Array:
    """Returns strings, given as a binary array in UTF-8, with the escapes of JSON."""
    data, bounds = binary_bounds(column)
    data = data[bounds[0] : bounds[-1]]
    widths = _widths()[data]
    at = np.flatnonzero(widths != 1)
    if not len(at):
        return column
    found = np.repeat(data, widths)
    ends = np.concatenate(([0], np.cumsum(widths, dtype=np.int64)))
    escaped, starts = data[at], ends[at]
    found[starts] = ord("\\")
    for byte, after in _SHORT.items():
        found[starts[escaped == byte] + 1] = ord(after)
    is_long = widths[at] == 6
    long_starts, codes = starts[is_long], escaped[is_long]
    for place, characters in enumerate((ord("u"), ord("0"), ord("0"), _HEX[codes >> 4], _HEX[codes & 15]), 1):
        found[long_starts + place] = characters
    return _bytes_of(column, ends[bounds - bounds[0]], found)


def base64_texts(column: pa.Array) -> pa.Array:
    """Returns a binary array in base64."""
    data, bounds = binary_bounds(column)
    data = data[bounds[0] : bounds[-1]]
    lengths = np.diff(bounds)
    groups = -(-lengths // 3)
    starts = np.concatenate(([0], np.cumsum(groups)))
    padded = np.zeros(3 * int(starts[-1]), np.uint8)
    padded[np.arange(len(data)) + np.repeat(3 * starts[:-1] - (bounds[:-1] - bounds[0]), lengths)] = data
    first, second, third = padded.reshape(-1, 3).T
    found = np.empty((int(starts[-1]), 4), np.uint8)
    found[:, 0], found[:, 1] = first >> 2, (first & 3) << 4 | second >> 4
    found[:, 2], found[:, 3] = (second & 15) << 2 | third >> 6, third & 63
    found = _BASE64[found]
    last = starts[1:] - 1
    found[last[lengths % 3 == 1], 2] = found[last[lengths % 3 != 0], 3] = ord("=")
    return _bytes_of(column, 4 * starts, found.reshape(-1))


def _bytes_of(column: pa.Array, bounds: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.Array:
    if int(bounds[-1]) >= 1 << 31:
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
    buffers = [bitmap(is_valid(column)), pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)
