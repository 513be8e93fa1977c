"""Decoding of key and value into the columns of a query."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import MalformedRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.values.avro_blocks import AvroDecoder
from spark_groupsource.values.avro_schema import avro_schema
from spark_groupsource.values.avro_writers import WrittenAvroDecoder
from spark_groupsource.values.decoded import Decoded, Decoder
from spark_groupsource.values.json_blocks import JsonDecoder
from spark_groupsource.values.options import AVRO, DROPMALFORMED, FAILFAST, JSON, ColumnFormat
from spark_groupsource.values.registry import SchemaRegistry
from spark_groupsource.values.registry_address import RegistryAddress
from spark_groupsource.values.serdes import NUMBERS, NumberDecoder, StringDecoder, UuidDecoder

ERROR_COLUMN = "_error"
ERROR_TYPE = pa.struct(
    [("column", pa.string()), ("reason", pa.string()), ("schemaId", pa.string()), ("bytes", pa.binary())]
)
_OFFSET = "offset"


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
    """

    schema: pa.Schema
    decoded: tuple[TypedColumn, ...]
    mode: str

    @property
    def source_columns(self) -> tuple[str, ...]:
        """Names of the columns of the source from which the columns are built."""
        from spark_groupsource.records.arrow_columns import COLUMNS

        typed = {column.given.column for column in self.decoded}
        flattened = {name for column in self.decoded if column.given.flatten for name in column.kind.names}
        selected = [name for name in self.schema.names if name in COLUMNS and name not in flattened]
        # the offset of a malformed record is part of its error
        return tuple(dict.fromkeys([*selected, *typed, _OFFSET]))

    def converter(self) -> BatchConverter:
        """Returns the conversion of batches, for one task."""
        return BatchConverter(self)


class BatchConverter:
    """Converts batches of `TypedColumns.source_columns` into batches of the query's schema."""

    def __init__(self, columns: TypedColumns) -> None:
        self._columns = columns
        self._decoders = [(column, _decoder(column)) for column in columns.decoded]

    def convert(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        """Returns the batch as Spark receives it; it has no rows if all were dropped.

        Raises: MalformedRecordError in mode FAILFAST.
        """
        arrays = dict(zip(batch.schema.names, batch.columns))
        found: list[tuple[str, pa.Array, Decoded]] = []
        for column, decoder in self._decoders:
            name = column.given.column
            decoded = decoder.decode(arrays[name])
            if decoded.malformed and self._columns.mode == FAILFAST:
                raise _malformed(column, decoded, arrays[_OFFSET], topic_partition)
            found.append((name, arrays[name], decoded))
        for column, (name, _, decoded) in zip(self._columns.decoded, found):
            if column.given.flatten:
                arrays.update(zip(column.kind.names, decoded.values.flatten()))
            else:
                arrays[name] = decoded.values
        names = self._columns.schema.names
        if ERROR_COLUMN in names:
            arrays[ERROR_COLUMN] = _errors(found, batch.num_rows)
        result = pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=self._columns.schema)
        rows = sorted({row for _, _, decoded in found for row in decoded.malformed})
        if rows and self._columns.mode == DROPMALFORMED:
            kept = np.ones(batch.num_rows, np.bool_)
            kept[rows] = False
            result = result.filter(pa.array(kept))
        return result


def _decoder(column: TypedColumn) -> Decoder:
    name = column.given.format
    if name == JSON:
        return JsonDecoder(column.kind)
    if name == AVRO and column.given.registry is not None:
        option = f"{column.given.column}.schema.registry.url"
        return WrittenAvroDecoder(_registry(column.given.registry, option), column.kind)
    if name == AVRO:
        return AvroDecoder(avro_schema(column.given), column.kind)
    if name == "string":
        return StringDecoder()
    return NumberDecoder(name) if name in NUMBERS else UuidDecoder()


@cache
def _registry(address: RegistryAddress, option: str) -> SchemaRegistry:
    """Returns the client of this process, with the schemas that it has read."""
    return SchemaRegistry(address, option)


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


def _errors(found: list[tuple[str, pa.Array, Decoded]], rows: int) -> pa.Array:
    """Returns the column of errors; of a record whose key and value are malformed, that of the key."""
    errors: dict[int, tuple[str, str, str | None, bytes]] = {}
    for name, data, decoded in found:
        for row, reason in decoded.malformed.items():
            errors.setdefault(row, (name, reason, decoded.schema_ids.get(row), data[row].as_py()))
    if not errors:
        return pa.nulls(rows, ERROR_TYPE)
    listed = sorted(errors)
    columns = zip(*(errors[row] for row in listed))
    children = [pa.array(column, field.type) for column, field in zip(columns, ERROR_TYPE)]
    entries = pa.StructArray.from_arrays(children, fields=list(ERROR_TYPE))
    indices = np.full(rows, -1, np.int64)
    indices[listed] = np.arange(len(listed))
    return entries.take(pa.array(indices, mask=indices < 0))
