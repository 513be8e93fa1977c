"""Columns of Spark cast to strings, by column.

The texts are those of Spark's cast in ANSI mode: decimals have no exponent.

Source: Spark `Cast`, `ToStringBase`.
"""

from __future__ import annotations

from functools import partial
from typing import Callable

import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.binary_columns import is_bytes, to_binary
from spark_groupsource.values.nested_columns import as_lists, list_parts
from spark_groupsource.values.text_columns import (
    CAST_TIMES,
    boolean_texts,
    check_zone,
    date_texts,
    float_texts,
    joined,
    number_texts,
    plain_decimal_texts,
    repeated,
    text,
    timestamp_texts,
    with_nulls,
)

Writer = Callable[[pa.Array], pa.Array]
"""Returns the text of each value; null for a null."""


def text_writer(kind: pa.DataType, name: str) -> Writer:
    """Returns the writer of a column; null for a null.

    Args:
        name: of the column, for messages.
    Raises: ConfigurationError for a type that is not written.
    """
    if is_bytes(kind):
        return to_binary
    if pa.types.is_struct(kind):
        return _struct_writer(kind, name)
    if pa.types.is_map(kind):
        writers = text_writer(kind.key_type, f"{name}.key"), text_writer(kind.item_type, f"{name}.value")
        return partial(write_maps, *writers)
    if pa.types.is_list(kind):
        return partial(write_lists, text_writer(kind.value_type, f"{name}.element"))
    if pa.types.is_timestamp(kind):
        check_zone(kind, name)
        return partial(timestamp_texts, style=CAST_TIMES)
    for is_kind, write in _SCALARS:
        if is_kind(kind):
            return write
    raise ConfigurationError(f"Column {name} is {kind}, which is not written as text. Cast it, or leave it out.")


def _struct_writer(kind: pa.StructType, name: str) -> Writer:
    writers = [text_writer(field.type, f"{name}.{field.name}") for field in kind]

    def write(column: pa.Array) -> pa.Array:
        parts: list[pa.Array | pa.Scalar] = [repeated("{", len(column))]
        for at, write_field in enumerate(writers):
            parts += [text(", " if at else ""), pc.fill_null(write_field(column.field(at)), text("null"))]
        return with_nulls(column, joined(*parts, text("}")))

    return write


def write_lists(write: Writer, column: pa.Array, separator: str = ", ") -> pa.Array:
    """Returns the elements of each list in brackets; `write` returns their texts."""
    parts = list_parts(column)
    items = pc.fill_null(write(parts.items), text("null"))
    return joined(text("["), pc.binary_join(as_lists(column, parts, items), text(separator)), text("]"))


def write_maps(
    write_key: Writer,
    write: Writer,
    column: pa.Array,
    *,
    before_key: str = "",
    after_key: str = " -> ",
    separator: str = ", ",
) -> pa.Array:
    """Returns the entries of each map in braces; `write_key` and `write` return the texts of keys and values."""
    parts = list_parts(column)
    values = pc.fill_null(write(parts.items.field(1)), text("null"))
    entries = joined(text(before_key), write_key(parts.items.field(0)), text(after_key), values)
    return joined(text("{"), pc.binary_join(as_lists(column, parts, entries), text(separator)), text("}"))


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Writer], ...] = (
    (pa.types.is_boolean, boolean_texts),
    (pa.types.is_integer, number_texts),
    (pa.types.is_decimal, plain_decimal_texts),
    (pa.types.is_floating, float_texts),
    (pa.types.is_date32, date_texts),
)
