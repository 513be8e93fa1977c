"""Decoding of key and value into the columns of a query."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Callable, Mapping, NamedTuple

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import MalformedRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_arrays import booleans, integers, strings
from spark_groupsource.values.avro.avro_blocks import AvroDecoder, WrittenAvroDecoder
from spark_groupsource.values.avro.avro_schema import avro_schema
from spark_groupsource.values.decoded import Decoded, Decoder
from spark_groupsource.values.format_options import (
    AVRO,
    CONFLUENT,
    DROPMALFORMED,
    FAILFAST,
    GLUE,
    JSON,
    NO_HEADER,
    PERMISSIVE,
    PROTOBUF,
    ColumnFormat,
)
from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.lanes.binary_blocks import spread
from spark_groupsource.values.protobuf.protobuf_blocks import ProtobufDecoder, RegisteredMessages
from spark_groupsource.values.protobuf.protobuf_schema import protobuf_message
from spark_groupsource.values.registry.registry_client import shared_registry
from spark_groupsource.values.registry.schema_headers import NamedSchemas, confluent_header, read_confluent, read_glue
from spark_groupsource.values.serdes import NUMBERS, NumberDecoder, StringDecoder, UuidDecoder

ERROR_COLUMN = "_error"
ERROR_TYPE = pa.struct(
    [("column", pa.string()), ("reason", pa.string()), ("schemaId", pa.string()), ("bytes", pa.binary())]
)
_OFFSET, _HEADERS = "offset", "headers"
_RECEIVED = ["key", "value", _HEADERS, _OFFSET, "timestamp"]


class MalformedError(NamedTuple):
    """Why a record is malformed: its column `key` or `value`, and the schema that it names."""

    column: str
    reason: str
    schema_id: str | None


class MalformedRecords(NamedTuple):
    """Malformed records of a batch, as received.

    Attributes:
        batch: key, value, headers, offset and timestamp.
    """

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    errors: list[MalformedError]


class TypedColumn(NamedTuple):
    """A decoded column; `kind` is the type of its values, whose fields are only those that the query selects."""

    given: ColumnFormat
    kind: pa.DataType


@dataclass(frozen=True)
class TypedColumns:
    """The columns of a query that decodes keys or values.

    Attributes:
        schema: of the batches that Spark receives.
        decoded: the decoded columns.
        mode: what becomes of a record with a malformed key or value.
        dead_letter_topic: topic to which such a record is written, if any.
    """

    schema: pa.Schema
    decoded: tuple[TypedColumn, ...]
    mode: str
    dead_letter_topic: str | None = None

    @property
    def source_columns(self) -> tuple[str, ...]:
        """Names of the columns of the source from which the columns are built."""
        from spark_groupsource.records.columns.arrow_columns import COLUMNS

        typed = {column.given.column for column in self.decoded}
        flattened = {name for column in self.decoded if column.given.flatten for name in column.kind.names}
        selected = [name for name in self.schema.names if name in COLUMNS and name not in flattened]
        # the offset of a malformed record is part of its error
        headers = [_HEADERS] if any(column.given.header == CONFLUENT for column in self.decoded) else []
        received = [] if self.dead_letter_topic is None else _RECEIVED
        return tuple(dict.fromkeys([*selected, *typed, _OFFSET, *headers, *received]))

    def converter(self, report: Callable[[MalformedRecords], None] | None = None) -> BatchConverter:
        """Returns the conversion of batches, for one task.

        Args:
            report: called with malformed records, if there is a dead letter topic.
        """
        return BatchConverter(self, report)


class BatchConverter:
    """Converts batches of `TypedColumns.source_columns` into batches of the query's schema."""

    def __init__(self, columns: TypedColumns, report: Callable[[MalformedRecords], None] | None = None) -> None:
        self._columns = columns
        self._report = report
        self._decoders = [(column, column_decoder(column)) for column in columns.decoded]

    def convert(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        """Returns the batch as Spark receives it; it has no rows if all were dropped.

        Raises: MalformedRecordError in mode FAILFAST.
        """
        arrays = dict(zip(batch.schema.names, batch.columns))
        found: list[tuple[str, pa.Array, Decoded]] = []
        for column, decoder in self._decoders:
            name = column.given.column
            decoded = decoder(arrays[name], arrays.get(_HEADERS))
            if decoded.malformed and self._columns.mode == FAILFAST:
                raise _malformed(column, decoded, arrays[_OFFSET], topic_partition)
            found.append((name, arrays[name], decoded))
        errors = _errors_of(found)
        if errors and self._report is not None:
            rows = batch.select(_RECEIVED).take(integers(list(errors)))
            self._report(MalformedRecords(topic_partition, rows, list(errors.values())))
        received = {name: data for name, data, _ in found}
        for column, (name, _, decoded) in zip(self._columns.decoded, found):
            if column.given.flatten:
                arrays.update(zip(column.kind.names, decoded.values.flatten()))
            else:
                arrays[name] = decoded.values
        names = self._columns.schema.names
        # in the other modes this is a field of the value
        if self._columns.mode == PERMISSIVE and ERROR_COLUMN in names:
            arrays[ERROR_COLUMN] = _error_column(errors, received, batch.num_rows)
        result = pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=self._columns.schema)
        if errors and self._columns.mode == DROPMALFORMED:
            kept = np.ones(batch.num_rows, np.bool_)
            kept[list(errors)] = False
            result = result.filter(booleans(kept))
        return result


def column_decoder(column: TypedColumn) -> Callable[[pa.Array, pa.Array | None], Decoded]:
    """Returns a function of the values and the record headers."""
    given = column.given
    if given.header == NO_HEADER:
        decoder = _decoder(column)
        return lambda data, _: decoder.decode(data)
    if given.format == AVRO and given.registry is not None:
        registry = shared_registry(given.registry, given.column)
        by_schema = WrittenAvroDecoder(registry, avro_schema(given), column.kind).decode_named
    elif given.format == PROTOBUF and given.header == CONFLUENT:
        message, written = protobuf_message(given), None
        if given.registry is not None:
            written = RegisteredMessages(shared_registry(given.registry, given.column), message, given.reader)
        by_schema = ProtobufDecoder(message, column.kind, written).decode_named
    else:
        by_schema = partial(_decode_alike, _decoder(column))
    if given.header == GLUE:
        return lambda data, _: by_schema(read_glue(data))
    name = confluent_header(given.column)
    return lambda data, headers: by_schema(read_confluent(data, headers, name))


def _decode_alike(decoder: Decoder, named: NamedSchemas) -> Decoded:
    """Decodes values in the same way whatever their schemas."""
    found = decoder.decode(named.data)
    schema_ids = {
        int(row): str(schema_id)
        for schema_id, rows in (named.rows if found.malformed else {}).items()
        for row in rows
        if int(row) in found.malformed
    }
    return Decoded(found.values, {**named.malformed, **found.malformed}, schema_ids)


def _decoder(column: TypedColumn) -> Decoder:
    name = column.given.format
    if name == JSON:
        return JsonDecoder(column.kind)
    if name == AVRO:
        schema = avro_schema(column.given)
        return AvroDecoder(schema, schema, column.kind)
    if name == PROTOBUF:
        return ProtobufDecoder(protobuf_message(column.given), column.kind)
    if name == "string":
        return StringDecoder()
    return NumberDecoder(name) if name in NUMBERS else UuidDecoder()


def _malformed(
    column: TypedColumn, decoded: Decoded, offsets: pa.Array, topic_partition: TopicPartition
) -> MalformedRecordError:
    row = min(decoded.malformed)
    schema_id = decoded.schema_ids.get(row)
    written = f" (schema id {schema_id})" if schema_id is not None else ""
    return MalformedRecordError(
        f"[MALFORMED_RECORD] Decoding the {column.given.column} of {topic_partition} at offset {offsets[row]} as "
        f"{column.given.format} failed{written}: {decoded.malformed[row]}. Set option mode to PERMISSIVE for null and "
        f"the column {ERROR_COLUMN}, or to DROPMALFORMED to leave such records out."
    )


def _errors_of(found: list[tuple[str, pa.Array, Decoded]]) -> dict[int, MalformedError]:
    """Returns row -> error in the order of the rows; of a record whose key and value are malformed, that of the key."""
    errors: dict[int, MalformedError] = {}
    for name, _, decoded in found:
        for row, reason in decoded.malformed.items():
            errors.setdefault(row, MalformedError(name, reason, decoded.schema_ids.get(row)))
    return {row: errors[row] for row in sorted(errors)}


def _error_column(errors: Mapping[int, MalformedError], received: Mapping[str, pa.Array], rows: int) -> pa.Array:
    if not errors:
        return pa.nulls(rows, ERROR_TYPE)
    listed = np.array(list(errors))
    columns, reasons, schema_ids = zip(*errors.values())
    given = [strings(column) for column in (columns, reasons, schema_ids)]
    children = [spread(column, listed, rows) for column in (*given, _bytes_of(errors, received))]
    is_error = np.zeros(rows, np.bool_)
    is_error[listed] = True
    return pa.StructArray.from_arrays(children, fields=list(ERROR_TYPE), mask=booleans(~is_error))


def _bytes_of(errors: Mapping[int, MalformedError], received: Mapping[str, pa.Array]) -> pa.Array:
    """Returns the malformed bytes of each error."""
    rows = {name: [row for row, error in errors.items() if error.column == name] for name in received}
    found = pa.concat_arrays([data.take(integers(rows[name])) for name, data in received.items()])
    return found.take(integers(np.argsort(np.concatenate(list(rows.values())))))
