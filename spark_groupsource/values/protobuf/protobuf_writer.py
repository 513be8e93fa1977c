"""Columns of Spark as Protobuf messages, by column.

A writer gets rows without nulls and returns the parts of their bytes; one join of all parts writes the messages. Fields
are written in the order of their numbers, and repeated numbers packed, which every parser reads.

Source: https://protobuf.dev/programming-guides/encoding; Spark `ProtobufSerializer`, which to_protobuf uses.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Mapping

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
from spark_groupsource.records.columns.varint_columns import Parts, joined_parts, joined_rows, rows_of, varints, zigzag
from spark_groupsource.values.lanes.protobuf_scan import DELIMITED, END_GROUP, GROUP, VARINT
from spark_groupsource.values.nested_columns import list_parts, restored
from spark_groupsource.values.protobuf.protobuf_schema import ProtoField, ProtoMessage
from spark_groupsource.values.registry.protobuf_indexes import varint
from spark_groupsource.values.text_columns import valid_texts

_Write = Callable[[pa.Array], Parts]
_Mask = npt.NDArray[np.bool_]
_FIXED: Mapping[str, tuple[int, str]] = {
    "double": (1, "<f8"),
    "fixed64": (1, "<i8"),
    "sfixed64": (1, "<i8"),
    "float": (5, "<f4"),
    "fixed32": (5, "<i4"),
    "sfixed32": (5, "<i4"),
}
_MICROS = 1_000_000


def protobuf_writer(
    message: ProtoMessage, kind: pa.DataType, name: str, prefix: bytes = b""
) -> Callable[[pa.Array], pa.Array]:
    """Returns the writer of a column; null for a null.

    Args:
        name: of the column, for messages.
        prefix: bytes before each message.
    Raises: ConfigurationError for a type that the message does not have; the writer raises it for a value that the
        message does not have.
    """
    if not pa.types.is_struct(kind):
        raise ConfigurationError(f"Column {name} is {kind}; with {name}.format=protobuf it must be a struct.")
    write_message = _message_writer(message, kind, name)
    begin = byte_strings([prefix])[0]
    return lambda column: restored(column, lambda present: joined_parts(len(present), [begin, *write_message(present)]))


def _message_writer(message: ProtoMessage, kind: pa.DataType, path: str) -> _Write:
    if message.time:
        return _time_writer(message, kind, path)
    if not pa.types.is_struct(kind):
        raise ConfigurationError(f"Column {path} is {kind}, and the Protobuf schema has {message.name}. Cast it.")
    places = {field.name: at for at, field in enumerate(kind)}
    known = {each.name for each in message.fields}
    for name in places:
        if name not in known:
            raise ConfigurationError(
                f"Column {path}.{name} is no field of the Protobuf message {message.name}. Leave it out, or rename it."
            )
    writers: list[tuple[int, ProtoField, _Write]] = []
    for each in sorted(message.fields, key=lambda field: field.number):
        if each.name in places:
            at = places[each.name]
            writers.append((at, each, _field_writer(each, kind.field(at).type, f"{path}.{each.name}")))
        elif each.is_required:
            raise ConfigurationError(f"Column {path}.{each.name} is missing: the Protobuf field is required. Add it.")

    def write(column: pa.Array) -> Parts:
        found: Parts = []
        of_oneofs: dict[int, _Mask] = {}
        for at, field, write_field in writers:
            values = column.field(at)
            if field.is_required and values.null_count:
                raise ConfigurationError(
                    f"Writing column {path}.{field.name} failed: {values.null_count} values are null, and the Protobuf "
                    "field is required. Filter them."
                )
            if field.oneof is not None:
                _check_oneof(of_oneofs, field, is_valid(values), path)
            found += write_field(values)
        return found

    return write


def _check_oneof(found: dict[int, _Mask], field: ProtoField, valid: _Mask, path: str) -> None:
    assert field.oneof is not None
    earlier = found.get(field.oneof)
    if earlier is not None and (earlier & valid).any():
        raise ConfigurationError(
            f"Writing column {path} failed: {field.name} and another field of its oneof are both set in a row. Set one "
            "of them to null."
        )
    found[field.oneof] = valid if earlier is None else earlier | valid


def _time_writer(message: ProtoMessage, kind: pa.DataType, path: str) -> _Write:
    is_timestamp = message.time == "Timestamp"
    if is_timestamp and not pa.types.is_timestamp(kind) or not is_timestamp and not pa.types.is_duration(kind):
        raise ConfigurationError(f"Column {path} is {kind}, and the Protobuf schema has {message.name}. Cast it.")
    fields = [(_field_writer(each, kind, path)) for each, kind in zip(message.fields, (pa.int64(), pa.int32()))]

    def write(column: pa.Array) -> Parts:
        times = to_numbers(column.view(pa.int64()))
        seconds, rest = np.divmod(times, _MICROS)
        if not is_timestamp:
            # both parts of a duration have its sign
            is_negative = (times < 0) & (rest > 0)
            seconds, rest = seconds + is_negative, rest - _MICROS * is_negative
        nanos = fixed_width(pa.int32(), (rest * 1000).astype(np.int32))
        return [*fields[0](integers(seconds)), *fields[1](nanos)]

    return write


def _field_writer(field: ProtoField, kind: pa.DataType, path: str) -> _Write:
    """Returns the writer of a field, whose column may have nulls: they are not set."""
    if pa.types.is_null(kind):
        return lambda column: []
    if not field.is_repeated:
        wire, write = _value_writer(field, kind, path)
        return partial(_write_single, field, wire, write)
    if field.message is not None and field.message.is_map_entry:
        if not pa.types.is_map(kind):
            raise ConfigurationError(f"Column {path} is {kind}, and the Protobuf schema has a map. Cast it.")
        return _map_writer(field, field.message, kind, path)
    if not pa.types.is_list(kind):
        raise ConfigurationError(f"Column {path} is {kind}, and the Protobuf field is repeated. Cast it to an array.")
    wire, write = _value_writer(field, kind.value_type, f"{path}.element")
    return partial(_write_repeated, field, wire, _without_nulls(write, f"{path}.element"))


def _without_nulls(write: _Write, path: str) -> _Write:
    def write_rows(column: pa.Array) -> Parts:
        if column.null_count:
            raise ConfigurationError(
                f"Writing column {path} failed: {column.null_count} values are null, which Protobuf does not have in "
                "arrays and maps. Filter them."
            )
        return write(column)

    return write_rows


def _tag(number: int, wire: int) -> pa.Scalar:
    return byte_strings([varint(number << 3 | wire)])[0]


def _tagged(field: ProtoField, wire: int, parts: Parts) -> Parts:
    """Returns a value with its tag, and that at the end of a group."""
    end = [_tag(field.number, END_GROUP)] if wire == GROUP else []
    return [_tag(field.number, wire), *parts, *end]


def _write_single(field: ProtoField, wire: int, write: _Write, column: pa.Array) -> Parts:
    is_set = is_valid(column)
    if not field.has_presence:
        is_set = is_set & ~_is_default(field, column)
    if is_set.all():
        return _tagged(field, wire, write(column))
    values = column.filter(booleans(is_set))
    found = joined_parts(len(values), _tagged(field, wire, write(values)))
    return [found.take(integers(np.cumsum(is_set) - 1, is_set))]


def _is_default(field: ProtoField, column: pa.Array) -> _Mask:
    """Returns which values are those of a field that is not set; of a null anything."""
    kind = column.type
    if field.kind == "enum" and is_text(kind) and field.enum is not None:
        zero = strings([field.enum.names.get(0, "")])
        return to_mask(pc.is_in(column.cast(pa.string()), value_set=zero))
    found: _Mask
    if is_bytes(kind):
        found = byte_lengths(column) == 0
        return found
    if pa.types.is_boolean(kind):
        return ~to_mask(column)
    numbers = to_numbers(column)
    # the bits of -0.0 are no default
    found = (numbers == 0) & ~np.signbit(numbers) if pa.types.is_floating(kind) else numbers == 0
    return found


def _lists(column: pa.Array, write: Callable[[pa.Array], pa.Array]) -> tuple[npt.NDArray[np.int64], pa.Array] | None:
    """Returns the number of elements of each list, and their bytes; None without any element."""
    parts = list_parts(column)
    if not len(parts.items):
        return None
    data, bounds = binary_bounds(write(parts.items))
    return parts.counts, between(data, bounds[parts.bounds])


def _write_repeated(field: ProtoField, wire: int, write: _Write, column: pa.Array) -> Parts:
    is_packed = wire not in (DELIMITED, GROUP)

    def write_items(items: pa.Array) -> pa.Array:
        found = write(items)
        return joined_parts(len(items), found if is_packed else _tagged(field, wire, found))

    found = _lists(column, write_items)
    if found is None:
        return []
    counts, data = found
    if not is_packed:
        return [data]
    sizes = rows_of([varints(byte_lengths(data))])
    packed = joined_rows(_tag(field.number, DELIMITED), sizes, data)
    return [packed if counts.all() else pc.if_else(booleans(counts > 0), packed, byte_strings([b""])[0])]


def _map_writer(field: ProtoField, entry: ProtoMessage, kind: pa.MapType, path: str) -> _Write:
    key, value = entry.fields
    key_wire, write_key = _value_writer(key, kind.key_type, f"{path}.key")
    wire, write = _value_writer(value, kind.item_type, f"{path}.value")
    write_value = _without_nulls(write, f"{path}.value")

    def write_entries(entries: pa.Array) -> pa.Array:
        keys = _tagged(key, key_wire, write_key(entries.field(0)))
        data = joined_parts(len(entries), [*keys, *_tagged(value, wire, write_value(entries.field(1)))])
        return joined_rows(_tag(field.number, DELIMITED), *_sized(data))

    def write_maps(column: pa.Array) -> Parts:
        found = _lists(column, write_entries)
        return [] if found is None else [found[1]]

    return write_maps


def _sized(data: pa.Array) -> Parts:
    return [rows_of([varints(byte_lengths(data))]), data]


def _value_writer(field: ProtoField, kind: pa.DataType, path: str) -> tuple[int, _Write]:
    """Returns the wire type and the writer of values without their tags."""
    if field.message is not None:
        write = _message_writer(field.message, kind, path)
        if field.kind == "group":
            return GROUP, write
        return DELIMITED, lambda column: _sized(joined_parts(len(column), write(column)))
    if field.kind == "string" and is_text(kind):
        return DELIMITED, lambda column: _sized(valid_texts(column))
    if field.kind == "bytes" and is_bytes(kind) and not is_text(kind):
        return DELIMITED, lambda column: _sized(to_binary(column))
    if field.kind == "bool" and pa.types.is_boolean(kind):
        return VARINT, lambda column: _write_varints(to_mask(column).astype(np.int64))
    if field.kind == "enum" and field.enum is not None and is_text(kind):
        return VARINT, partial(_write_names, {name: number for number, name in field.enum.names.items()}, path)
    if _is_number(field.kind, kind):
        if field.kind in _FIXED:
            wire, layout = _FIXED[field.kind]
            return wire, partial(_write_fixed, layout)
        return VARINT, partial(_write_integers, field.kind, path)
    raise ConfigurationError(f"Column {path} is {kind}, and the Protobuf schema has {field.kind}. Cast it.")


def _is_number(name: str, kind: pa.DataType) -> bool:
    """Returns whether a field has all numbers of a type."""
    if name in ("float", "double"):
        return pa.types.is_float32(kind) or name == "double" and pa.types.is_float64(kind)
    if not pa.types.is_signed_integer(kind):
        return False
    # uint32 is int or bigint in Spark
    return name not in ("bool", "string", "bytes") and (kind.bit_width <= 32 or "64" in name or name == "uint32")


def _write_fixed(layout: str, column: pa.Array) -> Parts:
    data = to_numbers(column).astype(layout)
    return [consecutive(pa.binary(), np.full(len(data), data.itemsize), data.view(np.uint8))]


def _write_varints(numbers: npt.NDArray[np.int64]) -> Parts:
    return [rows_of([varints(numbers)])]


def _write_integers(name: str, path: str, column: pa.Array) -> Parts:
    numbers = to_numbers(column).astype(np.int64)
    if name.startswith("sint"):
        return _write_varints(zigzag(numbers))
    if name == "uint32":
        if column.type.bit_width <= 32:
            numbers = numbers & 0xFFFFFFFF
        elif ((numbers < 0) | (numbers >> 32 != 0)).any():
            raise ConfigurationError(f"Writing column {path} failed: a number is not from 0 to 4294967295. Correct it.")
    return _write_varints(numbers)


def _write_names(numbers: Mapping[str, int], path: str, column: pa.Array) -> Parts:
    found = pc.index_in(column.cast(pa.string()), value_set=strings(list(numbers)))
    if found.null_count:
        wrong = str(column.filter(pc.is_null(found))[0].as_py())[:60]
        raise ConfigurationError(f"Writing column {path} failed: {wrong!r} is no name of the enum. Correct it.")
    return _write_varints(np.array(list(numbers.values()), np.int64)[to_numbers(found)])
