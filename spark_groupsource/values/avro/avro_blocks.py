"""Decoding of blocks of Avro values, with and without a writer's schema.

Source: Avro schema resolution.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import integers
from spark_groupsource.values.avro.avro_resolution import UnresolvedError, resolved
from spark_groupsource.values.avro.avro_schema import AvroType, parse_avro_schema
from spark_groupsource.values.decoded import Decoded, bounded_reason
from spark_groupsource.values.lanes.avro_lanes import TRAILING, Lanes
from spark_groupsource.values.lanes.binary_blocks import Ints
from spark_groupsource.values.lanes.lane_blocks import decode_lanes
from spark_groupsource.values.registry.registry_client import SchemaRegistry, UnreadableSchemaError
from spark_groupsource.values.registry.schema_headers import NamedSchemas


class AvroDecoder:
    """Decodes Avro values of one writer's schema, without a header.

    Args:
        reader: schema of the column.
        kind: type of the column; of records, only its fields are decoded.
    Raises: UnresolvedError if values of the writer cannot be read as those of the reader.
    """

    def __init__(self, writer: AvroType, reader: AvroType, kind: pa.DataType) -> None:
        self._kind = kind
        self._node = resolved(writer, reader, kind)

    def decode(self, data: pa.Array) -> Decoded:
        return decode_lanes(data, self._kind, self._read)

    def _read(self, lanes: Lanes) -> pa.Array | None:
        column = self._node.read(lanes)
        lanes.fail(lanes.position != lanes.end, TRAILING)
        return column


class WrittenAvroDecoder:
    """Decodes each value by its writer's schema.

    Args:
        reader: schema of the column.
        kind: type of the column; of records, only its fields are decoded.
    """

    def __init__(self, registry: SchemaRegistry, reader: AvroType, kind: pa.DataType) -> None:
        self._registry = registry
        self._reader = reader
        self._kind = kind
        self._decoders: dict[int | str, AvroDecoder | str] = {}

    def decode_named(self, named: NamedSchemas) -> Decoded:
        """Decodes values whose headers were read."""
        size = len(named.data)
        malformed = dict(named.malformed)
        schema_ids: dict[int, str] = {}
        parts: list[tuple[Ints, pa.Array]] = []
        for schema_id, rows in named.rows.items():
            found = self._decode(schema_id, named.data if len(rows) == size else named.data.take(integers(rows)))
            malformed.update({int(rows[row]): reason for row, reason in found.malformed.items()})
            schema_ids.update({int(rows[row]): str(schema_id) for row in found.malformed})
            parts.append((rows, found.values))
        if len(parts) == 1 and len(parts[0][0]) == size:
            return Decoded(parts[0][1], malformed, schema_ids)
        joined = pa.concat_arrays([pa.nulls(0, self._kind), *(values for _, values in parts)])
        places = np.full(size, -1, np.int64)
        if parts:
            places[np.concatenate([rows for rows, _ in parts])] = np.arange(len(joined))
        return Decoded(joined.take(integers(places, places >= 0)), malformed, schema_ids)

    def _decode(self, schema_id: int | str, data: pa.Array) -> Decoded:
        if schema_id not in self._decoders:
            self._decoders[schema_id] = self._decoder(schema_id)
        decoder = self._decoders[schema_id]
        if isinstance(decoder, str):
            return Decoded(pa.nulls(len(data), self._kind), dict.fromkeys(range(len(data)), decoder))
        return decoder.decode(data)

    def _decoder(self, schema_id: int | str) -> AvroDecoder | str:
        """Returns the decoder of a writer's schema, or why there is none."""
        try:
            text = self._registry.schema(schema_id)
        except UnreadableSchemaError as error:
            return bounded_reason(str(error))
        if text is None:
            return "the registry has no Avro schema with this id"
        try:
            return AvroDecoder(parse_avro_schema("The schema of the registry", text), self._reader, self._kind)
        except (ConfigurationError, UnresolvedError) as error:
            return bounded_reason(str(error))
