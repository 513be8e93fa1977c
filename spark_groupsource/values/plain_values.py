"""Keys and values as Python objects for people."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Callable, Collection, Mapping, Protocol, Sequence

import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import integers
from spark_groupsource.values.avro.avro_blocks import AvroDecoder
from spark_groupsource.values.avro.avro_expansion import LEFT_OUT, SPARK_DIGITS, ExpansionRules, expanded
from spark_groupsource.values.avro.avro_schema import AvroType, avro_schema, parse_avro_schema
from spark_groupsource.values.decoded import Decoded, Malformed, bounded_reason
from spark_groupsource.values.format_options import AVRO, NO_HEADER, PROTOBUF, ColumnFormat
from spark_groupsource.values.json.framed_json import parse_bare_json
from spark_groupsource.values.protobuf.plain_protobuf import WrittenProtobuf, shown_column
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.python_values import python_values
from spark_groupsource.values.registry.proto_files import descriptor_set, is_proto_text
from spark_groupsource.values.registry.registry_client import RegisteredSchema, UnreadableSchemaError, shared_registry
from spark_groupsource.values.registry.schema_headers import confluent_header, read_confluent
from spark_groupsource.values.typed_columns import TypedColumn, column_decoder

# digits of Arrow's longest decimals, and how often a record within itself is shown
_RULES = ExpansionRules("value", recursion_depth=8, digits=76, has_nulls=True)
PlainDecoder = Callable[[pa.Array, "pa.Array | None"], Sequence[Any]]
"""Decodes values, given those and the record headers; a malformed value is a `Malformed`."""


class _Column(Protocol):
    """Decodes values without their headers, given what follows the ids in record headers; one without is None."""

    def __call__(self, values: pa.Array, after_ids: list[bytes | None]) -> Sequence[Any]: ...


def plain_decoder(given: ColumnFormat, kinds: Collection[str] | None = None) -> PlainDecoder:
    """Returns the decoder of a column of Avro or Protobuf.

    Without a schema, each value is shown as it was written, by its schema in the registry.

    Args:
        kinds: AVRO, JSON, PROTOBUF: which schemas of the registry are used. None for the format of the column.
    Raises: ConfigurationError for an invalid schema.
    """
    if given.schema is None:
        return _AsWritten(given, kinds or (given.format.upper(),)).decode
    if given.format == PROTOBUF:
        given, kind = shown_column(given)
    else:
        assert given.format == AVRO
        kind = plain_type(expanded(avro_schema(given), _RULES._replace(column=given.column)).type)
    decode = column_decoder(TypedColumn(given, kind))
    return lambda data, headers: _plain(decode(data, headers))


class _AsWritten:
    """Decodes each value as the type of its writer's schema."""

    def __init__(self, given: ColumnFormat, kinds: Collection[str]) -> None:
        if given.registry is None or given.header == NO_HEADER:
            raise ConfigurationError(f"Format {given.format} needs a schema. Give the schema, or schema.registry.url.")
        self._registry = shared_registry(given.registry, given.column)
        self._header = confluent_header(given.column)
        self._kinds = kinds
        self._format = " or ".join(_KIND_NAMES[kind] for kind in kinds)
        self._decoders: dict[int | str, _Column | Malformed] = {}

    def decode(self, data: pa.Array, headers: pa.Array | None) -> Sequence[Any]:
        named = read_confluent(data, headers, self._header)
        found: list[Any] = [None] * len(data)
        for row, reason in named.malformed.items():
            found[row] = Malformed(reason)
        for schema_id, rows in named.rows.items():
            decoder = self._decoder(schema_id)
            listed = rows.tolist()
            if isinstance(decoder, Malformed):
                values: Sequence[Any] = [decoder] * len(rows)
            else:
                values = decoder(named.data.take(integers(rows)), [named.after_ids.get(row) for row in listed])
            for row, value in zip(listed, values):
                found[row] = value
        return found

    def _decoder(self, schema_id: int | str) -> _Column | Malformed:
        if schema_id not in self._decoders:
            try:
                schema = self._registry.registered(schema_id)
            except UnreadableSchemaError as error:
                return Malformed(str(error))
            if schema is None or schema.kind not in self._kinds:
                return Malformed(f"the registry has no {self._format} schema with id {schema_id}")
            try:
                self._decoders[schema_id] = self._of_schema(schema, schema_id)
            except ConfigurationError as error:
                self._decoders[schema_id] = Malformed(str(error))
        return self._decoders[schema_id]

    def _of_schema(self, schema: RegisteredSchema, schema_id: int | str) -> _Column:
        if schema.kind == "PROTOBUF":
            files = ProtoFiles(f"The schema with id {schema_id}", schema.descriptor_set(f"id {schema_id}"))
            written = WrittenProtobuf(files, _plain)
            return lambda values, after_ids: written.decode(values.to_pylist(), after_ids)
        if schema.kind == "JSON":
            return lambda values, after_ids: [_json(value) for value in values.to_pylist()]
        avro = parse_avro_schema("The schema of the registry", schema.avro)
        decoder = AvroDecoder(avro, avro, plain_type(expanded(avro, _RULES).type))
        return lambda values, after_ids: _plain(decoder.decode(values))


def _json(value: bytes) -> Any:
    try:
        return parse_bare_json(value)
    except ValueError as error:
        return Malformed(bounded_reason(str(error)))


_KIND_NAMES = {"AVRO": "Avro", "JSON": "JSON", "PROTOBUF": "Protobuf"}


def plain_type(avro: AvroType) -> pa.DataType:
    """Returns the Arrow type of the column that `avro_types.spark_type` describes, without PySpark.

    Decimals may have 76 digits, and types may be null.
    """
    if avro.logical == "decimal":
        decimal = pa.decimal128 if avro.precision <= SPARK_DIGITS else pa.decimal256
        return decimal(avro.precision, avro.scale)
    if avro.kind == "record":
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in avro.fields])
    if avro.kind == "array" and avro.items is not None:
        return pa.list_(pa.field("element", plain_type(avro.items)))
    if avro.kind == "map" and avro.items is not None:
        key = pa.field("key", pa.string(), nullable=False)
        return pa.map_(key, pa.field("value", plain_type(avro.items)))
    if avro.only is not None:
        return plain_type(avro.only)
    if avro.is_struct:
        members = [each for each in avro.branches if each.kind != "null"]
        return pa.struct(
            [pa.field(f"member{at}", plain_type(each)) for at, each in enumerate(members) if each is not LEFT_OUT]
        )
    return _SCALARS.get(avro.logical) or _SCALARS.get(avro.kind, pa.null())


_SCALARS = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def _plain(decoded: Decoded) -> Sequence[Any]:
    values: list[Any] = plain_values(decoded.values)
    for row, reason in decoded.malformed.items():
        values[row] = Malformed(reason)
    return values


def plain_values(values: pa.Array) -> list[Any]:
    """Returns objects, lists, text, numbers: maps become objects, times and decimals text, bytes text or base64."""
    convert = _conversion(values.type)
    listed = python_values(values)
    return listed if convert is None else [None if value is None else convert(value) for value in listed]


def _conversion(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns the conversion of a value that is not null, None if it remains."""
    if pa.types.is_struct(kind):
        fields = {field.name: _conversion(field.type) for field in kind}
        return _of_values(lambda name: fields[name]) if any(fields.values()) else None
    if pa.types.is_list(kind):
        element = _conversion(kind.value_type)
        return None if element is None else lambda items: [None if each is None else element(each) for each in items]
    if pa.types.is_map(kind):
        item = _conversion(kind.item_type)
        return lambda pairs: _of_values(lambda _: item)(dict(pairs))
    if pa.types.is_binary(kind):
        return lambda data: data.decode() if _is_text(data) else {"base64": b64encode(data).decode()}
    return str if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) else None


def _of_values(chosen: Callable[[str], Callable[[Any], Any] | None]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def convert(found: Mapping[str, Any]) -> dict[str, Any]:
        each = {name: (chosen(name), value) for name, value in found.items()}
        return {name: value if value is None or to is None else to(value) for name, (to, value) in each.items()}

    return convert


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def schema_text(schema: Any) -> str:
    """Returns the text of a schema that is given as text or as parsed JSON."""
    return schema if isinstance(schema, str) else json.dumps(schema)


def descriptors(owner: str, schema: Any) -> str:
    """Returns the descriptor set in base64 of a Protobuf schema that is given as its bytes, base64 or text.

    Args:
        owner: what has the schema, for messages.
    Raises: ConfigurationError for a schema that does not compile.
    """
    if isinstance(schema, bytes):
        return b64encode(schema).decode()
    return descriptor_set(owner, schema) if is_proto_text(str(schema)) else str(schema)
