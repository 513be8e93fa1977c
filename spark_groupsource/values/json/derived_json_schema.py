"""JSON Schemas of columns of Spark that are written as JSON.

Source: JSON Schema draft 7, which Confluent's serializers use.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from spark_groupsource.records.columns.binary_columns import is_text


def derived_json_schema(kind: pa.DataType, title: str) -> str:
    """Returns the schema of a column whose type `json_writer` accepts; NaN and infinity are no numbers of it."""
    found = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **_schema(kind)}
    return json.dumps(found, separators=(",", ":"))


def title_of(text: str) -> str:
    """Returns the title of a schema, which names its record; empty if it has none."""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    return str(found.get("title", "")) if isinstance(found, dict) else ""


def _schema(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        # a null field is left out
        return {"type": "object", "properties": {field.name: _schema(field.type) for field in kind}}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field)}
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _nullable(kind.item_field)}
    return next((found for is_kind, found in _SCALARS if is_kind(kind)), {"type": "number"})


def _nullable(field: pa.Field) -> dict[str, Any]:
    found = _schema(field.type)
    return {"oneOf": [{"type": "null"}, found]} if field.nullable and found != {"type": "null"} else found


_SCALARS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (pa.types.is_null, {"type": "null"}),
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_integer, {"type": "integer"}),
    (is_text, {"type": "string"}),
    (pa.types.is_date32, {"type": "string", "format": "date"}),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, {"type": "string", "format": "date-time"}),
    (pa.types.is_timestamp, {"type": "string"}),
    (pa.types.is_binary, {"type": "string", "contentEncoding": "base64"}),
    (pa.types.is_large_binary, {"type": "string", "contentEncoding": "base64"}),
)
