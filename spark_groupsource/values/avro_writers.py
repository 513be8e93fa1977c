"""Decoding of Avro values that name their writer's schema in a header.

Source: Confluent wire format (a zero byte, the id of the schema in four bytes, the value), Avro schema resolution.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.avro_blocks import AvroDecoder
from spark_groupsource.values.avro_schema import parse_avro_schema
from spark_groupsource.values.avro_types import spark_type
from spark_groupsource.values.binary_blocks import Ints, bounds, is_valid
from spark_groupsource.values.decoded import Decoded, bounded_reason
from spark_groupsource.values.registry import SchemaRegistry

_HEADER_BYTES = 5
_WIDER = {
    "int32": ("int64", "float", "double"),
    "int64": ("float", "double"),
    "float": ("double",),
    "string": ("binary",),
    "binary": ("string",),
}


class WrittenAvroDecoder:
    """Decodes each value by its writer's schema, as fields of the column's type.

    A field that the writer does not have is null.
    """

    def __init__(self, registry: SchemaRegistry, kind: pa.DataType) -> None:
        self._registry = registry
        self._kind = kind
        self._decoders: dict[int, AvroDecoder | str] = {}

    def decode(self, data: pa.Array) -> Decoded:
        payload, starts, ends = bounds(data)
        has_header = is_valid(data) & (ends - starts >= _HEADER_BYTES)
        has_header[has_header] = payload[starts[has_header]] == 0
        ids = np.full(len(data), -1, np.int64)
        header = payload[starts[has_header][:, None] + np.arange(1, _HEADER_BYTES)]
        ids[has_header] = header.astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
        malformed = {
            int(row): "it does not begin with a zero byte and the id of a schema"
            for row in np.flatnonzero(is_valid(data) & ~has_header)
        }
        schema_ids: dict[int, str] = {}
        parts: list[tuple[Ints, pa.Array]] = []
        for schema_id in np.unique(ids[has_header]).tolist():
            rows = np.flatnonzero(ids == schema_id)
            found = self._decode(schema_id, _without_header(data, rows))
            malformed.update({int(rows[row]): reason for row, reason in found.malformed.items()})
            schema_ids.update({int(rows[row]): str(schema_id) for row in found.malformed})
            parts.append((rows, found.values))
        if len(parts) == 1 and len(parts[0][0]) == len(data):
            return Decoded(parts[0][1], malformed, schema_ids)
        joined = pa.concat_arrays([pa.nulls(0, self._kind), *(values for _, values in parts)])
        places = np.full(len(data), -1, np.int64)
        if parts:
            places[np.concatenate([rows for rows, _ in parts])] = np.arange(len(joined))
        return Decoded(joined.take(pa.array(places, mask=places < 0)), malformed, schema_ids)

    def _decode(self, schema_id: int, data: pa.Array) -> Decoded:
        if schema_id not in self._decoders:
            self._decoders[schema_id] = self._decoder(schema_id)
        decoder = self._decoders[schema_id]
        if isinstance(decoder, str):
            return Decoded(pa.nulls(len(data), self._kind), dict.fromkeys(range(len(data)), decoder))
        return decoder.decode(data)

    def _decoder(self, schema_id: int) -> AvroDecoder | str:
        """Returns the decoder of a writer's schema, or why there is none."""
        text = self._registry.schema(schema_id)
        if text is None:
            return "the registry has no Avro schema with this id, or one with references to others"
        try:
            writer = parse_avro_schema("of the registry", text)
            written = arrow_type(spark_type(writer), "value")
        except ConfigurationError as error:
            return bounded_reason(str(error))
        problem = unresolved(written, self._kind, "")
        return problem or AvroDecoder(writer, self._kind)


def _without_header(data: pa.Array, rows: Ints) -> pa.Array:
    """Returns the values of some rows without their headers, in the buffer of `data` if these are all rows."""
    if len(rows) != len(data):
        data = data.take(pa.array(rows))
    payload, starts, ends = bounds(data)
    keep = np.ones(len(payload), np.bool_)
    keep[(starts[:, None] + np.arange(_HEADER_BYTES)).ravel()] = False
    first, last = int(starts[0]), int(ends[-1])
    offsets = np.zeros(len(data) + 1, np.int32)
    np.cumsum(ends - starts - _HEADER_BYTES, out=offsets[1:])
    values = payload[first:last][keep[first:last]]
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def unresolved(written: pa.DataType, kind: pa.DataType, path: str) -> str:
    """Returns why values of one type cannot be read as another, empty if they can."""
    if pa.types.is_struct(kind) and pa.types.is_struct(written):
        if [field.name for field in written][:1] == ["member0"] and written != kind:
            return f"field {path or 'value'} is another union"
        for field in kind:
            index = written.get_field_index(field.name)
            if index >= 0:
                problem = unresolved(written.field(index).type, field.type, f"{path}.{field.name}".lstrip("."))
                if problem:
                    return problem
        return ""
    if pa.types.is_list(kind) and pa.types.is_list(written):
        return unresolved(written.value_type, kind.value_type, path)
    if pa.types.is_map(kind) and pa.types.is_map(written):
        return unresolved(written.item_type, kind.item_type, path)
    if written == kind or str(kind) in _WIDER.get(str(written), ()):
        return ""
    return f"field {path or 'value'} was written as {str(written)[:40]}, the schema of the query has {str(kind)[:40]}"
