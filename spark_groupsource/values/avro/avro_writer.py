"""Columns of Spark as Avro values, by column.

A writer gets rows without nulls and returns the parts of their bytes; one join of all parts writes the values.

Source: Avro specification 1.12 (binary encoding); Spark `AvroSerializer`, which to_avro uses.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import (
    byte_strings,
    consecutive,
    is_valid,
    strings,
    to_mask,
    to_numbers,
)
from spark_groupsource.records.columns.binary_columns import (
    between,
    binary_bounds,
    byte_lengths,
    is_bytes,
    is_text,
    to_binary,
)
from spark_groupsource.records.columns.varint_columns import Parts, joined_parts, rows_of, varints, zigzag
from spark_groupsource.values.avro.avro_schema import AvroField, AvroType
from spark_groupsource.values.nested_columns import list_parts, restored
from spark_groupsource.values.text_columns import chosen, valid_texts

_Write = Callable[[pa.Array], Parts]
# a branch of a union with several types, as Spark names it
_MEMBER = re.compile("member[0-9]{1,6}")


def avro_writer(schema: AvroType, kind: pa.DataType, name: str, prefix: bytes = b"") -> Callable[[pa.Array], pa.Array]:
    """Returns the writer of a column; null for a null.

    Args:
        name: of the column, for messages.
        prefix: bytes before each value.
    Raises: ConfigurationError for a type that the schema does not have; the writer raises it for a value that the
        schema does not have.
    """
    write_value = _writer(schema, kind, name)
    begin = byte_strings([prefix])[0]

    def write(column: pa.Array) -> pa.Array:
        return restored(column, lambda present: joined_parts(len(present), [begin, *write_value(present)]))

    return write


def _writer(schema: AvroType, kind: pa.DataType, path: str) -> _Write:
    if schema.kind == "union":
        return _union_writer(schema, kind, path)
    if schema.kind == "record" and pa.types.is_struct(kind):
        return _record_writer(schema, kind, path)
    if schema.kind == "array" and schema.items is not None and pa.types.is_list(kind):
        write = _not_null(schema.items, kind.value_type, f"{path}.element")
        return lambda column: _write_blocks(column, write)
    if schema.kind == "map" and schema.items is not None and pa.types.is_map(kind) and is_text(kind.key_type):
        write_item = _not_null(schema.items, kind.item_type, f"{path}.value")
        return lambda column: _write_blocks(
            column, lambda entries: [*_write_strings(entries.field(0)), *write_item(entries.field(1))]
        )
    if schema.kind == "enum" and is_text(kind):
        return partial(_write_symbols, strings(schema.symbols), path)
    if schema.logical == "decimal" and pa.types.is_decimal128(kind):
        return _decimal_writer(schema, kind, path)
    if schema.kind == "fixed" and schema.logical != "decimal" and is_bytes(kind) and not is_text(kind):
        return partial(_write_fixed, schema.size, path)
    for kinds, logical, is_kind, found in _SCALARS:
        if schema.kind in kinds and schema.logical in logical and is_kind(kind):
            return found
    raise ConfigurationError(f"Column {path} is {kind}, and the Avro schema has {_shown(schema)}. Cast it.")


def _shown(schema: AvroType) -> str:
    found = " ".join(each for each in (schema.logical, schema.kind, schema.name) if each)
    return f"{found}({schema.precision},{schema.scale})" if schema.logical == "decimal" else found


def _union_writer(schema: AvroType, kind: pa.DataType, path: str) -> _Write:
    indexes = {each.kind: _index(at) for at, each in enumerate(schema.branches)}
    if pa.types.is_null(kind):
        if "null" not in indexes:
            raise ConfigurationError(f"Column {path} is void, and the Avro schema has no null there. Cast it.")
        return lambda column: [indexes["null"]]
    if schema.is_struct and pa.types.is_struct(kind) and all(_MEMBER.fullmatch(each.name) for each in kind):
        write = _members_writer(schema, kind, path)
    else:
        write = _branch_writer(schema, kind, path)

    def write_rows(column: pa.Array) -> Parts:
        if not column.null_count:
            return write(column)
        if "null" not in indexes:
            raise _null_error(path, column.null_count)
        values = restored(column, lambda present: joined_parts(len(present), write(present)))
        return [chosen(is_valid(column), byte_strings([b""])[0], indexes["null"]), values]

    return write_rows


def _members_writer(schema: AvroType, kind: pa.StructType, path: str) -> _Write:
    """Returns the writer of a struct of the branches other than null, of which one is set in each row."""
    branches = [(at, each) for at, each in enumerate(schema.branches) if each.kind != "null"]
    writers = []
    for place, field in enumerate(kind):
        number = int(field.name.removeprefix("member"))
        if number >= len(branches):
            raise ConfigurationError(
                f"Column {path}.{field.name} is no branch of the union in the Avro schema, which has {len(branches)}. "
                "Leave it out."
            )
        at, branch = branches[number]
        writers.append((place, _index(at), _writer(branch, field.type, f"{path}.{field.name}")))

    def write_rows(column: pa.Array) -> Parts:
        members = [(column.field(place), index, write) for place, index, write in writers]
        counts = sum((is_valid(values).astype(np.int64) for values, _, _ in members), np.zeros(len(column), np.int64))
        if (counts != 1).any():
            raise ConfigurationError(
                f"Writing column {path} failed: {counts[counts != 1][0]} fields of a struct are set, and a value of a "
                "union in Avro is one of them. Set one of them, or set the struct to null."
            )
        return [
            restored(values, partial(_written_member, index, write))
            for values, index, write in members
            if values.null_count < len(values)
        ]

    return write_rows


def _written_member(index: pa.Scalar, write: _Write, values: pa.Array) -> pa.Array:
    return joined_parts(len(values), [index, *write(values)])


def _branch_writer(schema: AvroType, kind: pa.DataType, path: str) -> _Write:
    """Returns the writer of the first branch that has a type."""
    errors = []
    for at, branch in enumerate(schema.branches):
        if branch.kind != "null":
            try:
                return partial(_written_branch, _index(at), _writer(branch, kind, path))
            except ConfigurationError as error:
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    shown = ", ".join(_shown(each) for each in schema.branches)
    raise ConfigurationError(f"Column {path} is {kind}, and the Avro schema has a union of {shown}. Cast it.")


def _written_branch(index: pa.Scalar, write: _Write, column: pa.Array) -> Parts:
    return [index, *write(column)]


def _not_null(schema: AvroType, kind: pa.DataType, path: str) -> _Write:
    """Returns the writer of a column that may have nulls, which only a union has."""
    write = _writer(schema, kind, path)
    if schema.kind == "union" or schema.kind == "null":
        return write

    def write_rows(column: pa.Array) -> Parts:
        if column.null_count:
            raise _null_error(path, column.null_count)
        return write(column)

    return write_rows


def _null_error(path: str, count: int) -> ConfigurationError:
    return ConfigurationError(
        f"Writing column {path} failed: {count} values are null, which the Avro schema does not have there. Filter "
        "them, or make the field a union with null."
    )


def _index(at: int) -> pa.Scalar:
    return byte_strings([bytes([2 * at])])[0] if at < 64 else byte_strings([bytes([2 * at & 127 | 128, at >> 6])])[0]


def _record_writer(schema: AvroType, kind: pa.StructType, path: str) -> _Write:
    places = {field.name: at for at, field in enumerate(kind)}
    known = {each.name for each in schema.fields}
    for field in kind:
        if field.name not in known:
            raise ConfigurationError(
                f"Column {path}.{field.name} is no field of the Avro record {schema.name}. Leave it out, or rename it."
            )
    writers: list[tuple[int, _Write]] = []
    for each in schema.fields:
        if each.name in places:
            at = places[each.name]
            writers.append((at, _not_null(each.type, kind.field(at).type, f"{path}.{each.name}")))
        else:
            writers.append((-1, _absent_writer(each, f"{path}.{each.name}")))

    def write(column: pa.Array) -> Parts:
        return [part for at, write_field in writers for part in write_field(column.field(at) if at >= 0 else column)]

    return write


def _absent_writer(field: AvroField, path: str) -> _Write:
    """Returns the writer of a field that the column does not have: it is null."""
    nulls = [at for at, each in enumerate(field.type.branches) if each.kind == "null"]
    if field.type.kind == "null":
        return lambda column: []
    if not nulls:
        raise ConfigurationError(f"Column {path} is missing: it is never null in the Avro schema. Add it.")
    index = _index(nulls[0])
    return lambda column: [index]


def _write_blocks(column: pa.Array, write: _Write) -> Parts:
    """Writes lists or maps: one block with all items, and the end."""
    parts = list_parts(column)
    end = byte_strings([b"\0"])[0]
    if not len(parts.items):
        return [end]
    data, bounds = binary_bounds(joined_parts(len(parts.items), write(parts.items)))
    return [_counts(parts.counts), between(data, bounds[parts.bounds]), end]


def _counts(counts: npt.NDArray[np.int64]) -> pa.Array:
    """Returns the numbers of items of blocks; an empty block has no bytes."""
    rows = varints(zigzag(counts))
    if not counts.all():
        rows = np.where(counts[:, None] > 0, rows, np.int16(-1))
    return rows_of([rows])


def _write_integers(numbers: npt.NDArray[np.int64]) -> Parts:
    return [rows_of([varints(zigzag(numbers))])]


def _write_strings(column: pa.Array) -> Parts:
    return _write_bytes(valid_texts(column))


def _write_bytes(column: pa.Array) -> Parts:
    data = to_binary(column)
    return [*_write_integers(byte_lengths(data)), data]


def _write_numbers(layout: str, column: pa.Array) -> Parts:
    data = to_numbers(column).astype(layout)
    return [consecutive(pa.binary(), np.full(len(data), data.itemsize), data.view(np.uint8))]


def _write_symbols(symbols: pa.Array, path: str, column: pa.Array) -> Parts:
    found = pc.index_in(column.cast(pa.string()), value_set=symbols)
    if found.null_count:
        wrong = str(column.filter(pc.is_null(found))[0].as_py())[:60]
        raise ConfigurationError(
            f"Writing column {path} failed: {wrong!r} is no symbol of the Avro enum. Correct it, or add the symbol."
        )
    return _write_integers(to_numbers(found).astype(np.int64))


def _write_fixed(size: int, path: str, column: pa.Array) -> Parts:
    data = to_binary(column)
    lengths = byte_lengths(data)
    if (lengths != size).any():
        raise ConfigurationError(
            f"Writing column {path} failed: a value has {lengths[lengths != size][0]} bytes, and the Avro schema has "
            f"{size}. Correct it."
        )
    return [data]


def _decimal_writer(schema: AvroType, kind: pa.Decimal128Type, path: str) -> _Write:
    if kind.scale != schema.scale or kind.precision > schema.precision:
        raise ConfigurationError(f"Column {path} is {kind}, and the Avro schema has {_shown(schema)}. Cast it.")
    size = schema.size if schema.kind == "fixed" else None
    return partial(_write_decimals, size)


def _write_decimals(size: int | None, column: pa.Array) -> Parts:
    """Writes two's complements, the most significant byte first; as few bytes as needed if there is no size."""
    stored = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
    rows = stored[column.offset : column.offset + len(column), ::-1]
    sign = np.where(rows[:, :1] >= 128, 255, 0).astype(np.uint8)
    if size is not None:
        wide = np.hstack([np.repeat(sign, max(size - 16, 0), axis=1), rows])[:, max(16 - size, 0) :]
        data = np.ascontiguousarray(wide).reshape(-1)
        return [consecutive(pa.binary(), np.full(len(rows), size), data)]
    # a leading byte is not needed if it is the sign, and the next one has the same sign
    repeats = (rows[:, :-1] == sign) & ((rows[:, 1:] >= 128) == (sign == 255))
    lengths = 16 - np.where(repeats.all(axis=1), 15, np.argmin(repeats, axis=1))
    is_used = np.arange(16) >= 16 - lengths[:, None]
    return [*_write_integers(lengths.astype(np.int64)), consecutive(pa.binary(), lengths, rows[is_used])]


def _micros(unit: int) -> _Write:
    return lambda column: _write_integers(to_numbers(column.view(pa.int64())) // unit)


def _is_timestamp(has_zone: bool) -> Callable[[pa.DataType], bool]:
    return lambda kind: pa.types.is_timestamp(kind) and (kind.tz is not None) == has_zone


def _is_integer(*widths: int) -> Callable[[pa.DataType], bool]:
    return lambda kind: pa.types.is_signed_integer(kind) and kind.bit_width in widths


def _any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(test(kind) for test in tests)


_NONE = ("",)
# kinds and logical types of Avro, test of the column's type, writer
_SCALARS: Sequence[tuple[Sequence[str], Sequence[str], Callable[[pa.DataType], bool], _Write]] = (
    (("null",), _NONE, pa.types.is_null, lambda column: []),
    (
        ("boolean",),
        _NONE,
        pa.types.is_boolean,
        lambda column: [consecutive(pa.binary(), np.ones(len(column), np.int32), to_mask(column).view(np.uint8))],
    ),
    (
        ("int",),
        _NONE,
        _is_integer(8, 16, 32),
        lambda column: _write_integers(to_numbers(column).astype(np.int64)),
    ),
    (
        ("long",),
        (*_NONE, "timestamp-nanos", "local-timestamp-nanos"),
        _is_integer(8, 16, 32, 64),
        lambda column: _write_integers(to_numbers(column).astype(np.int64)),
    ),
    (("float",), _NONE, _any_of(pa.types.is_float32, _is_integer(8, 16)), partial(_write_numbers, "<f4")),
    (("double",), _NONE, _any_of(pa.types.is_floating, _is_integer(8, 16, 32)), partial(_write_numbers, "<f8")),
    (("string",), _NONE, lambda kind: is_text(kind) and not pa.types.is_null(kind), _write_strings),
    (("bytes",), _NONE, lambda kind: is_bytes(kind) and not is_text(kind), _write_bytes),
    (
        ("int",),
        (*_NONE, "date"),
        pa.types.is_date32,
        lambda column: _write_integers(to_numbers(column.view(pa.int32())).astype(np.int64)),
    ),
    # a long without a logical type is a time in ms, as in Spark
    (("long",), (*_NONE, "timestamp-millis"), _is_timestamp(True), _micros(1000)),
    (("long",), ("timestamp-micros",), _is_timestamp(True), _micros(1)),
    (("long",), (*_NONE, "local-timestamp-millis"), _is_timestamp(False), _micros(1000)),
    (("long",), ("local-timestamp-micros",), _is_timestamp(False), _micros(1)),
)
