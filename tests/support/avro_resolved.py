"""Values of one Avro schema read as another, beside fastavro."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import numpy as np
from support.decoded_values import decode_avro, encode_avro

from spark_groupsource.values.avro.avro_resolution import UnresolvedError


def check_resolved(writer: Any, reader: Any, values: list[Any]) -> None:
    """Compares values of a writer, read as those of a reader, with what fastavro reads.

    Raises: AssertionError.
    """
    data, rows, malformed = [encode_avro(writer, each) for each in values], [], []
    for at, value in enumerate(data):
        try:
            found = fastavro.schemaless_reader(
                io.BytesIO(value), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
            )
            rows.append(_expected(reader, found))
        except fastavro.read.SchemaResolutionError:
            rows.append(None)
            malformed.append(at)
    try:
        decoded = decode_avro(writer, reader, data)
    except UnresolvedError:
        # no value of the writer can be read
        assert len(malformed) == len(data)
        return
    assert (decoded.values.to_pylist(), list(decoded.malformed)) == (rows, malformed)
    if not malformed:
        name = reader["fields"][0]["name"]
        assert decode_avro(writer, reader, data, name).values.to_pylist() == [{name: row[name]} for row in rows]


def _expected(schema: Any, value: Any) -> Any:
    """Returns what fastavro read, or left of a default in JSON, as PyArrow shows the column."""
    if isinstance(schema, list):
        return _union(schema, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {
            field["name"]: _expected(field["type"], value.get(field["name"], field.get("default")))
            for field in schema["fields"]
        }
    if kind == "array":
        return [_expected(schema["items"], each) for each in value]
    if kind == "map":
        return [(key, _expected(schema["values"], each)) for key, each in value.items()]
    if kind in ("bytes", "fixed"):
        return value.encode("latin-1") if isinstance(value, str) else value
    return float(np.float32(value)) if kind == "float" else value


def _union(schema: list[Any], value: Any) -> Any:
    others = [each for each in schema if each != "null"]
    if value is None or len(others) == 1:
        return None if value is None else _expected(others[0], value)
    place = next(at for at, each in enumerate(others) if _type_in_python(value) in _kinds_in_python(each))
    return {f"member{at}": _expected(each, value) if at == place else None for at, each in enumerate(others)}


def _type_in_python(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", bytes: "text", list: "array", dict: "map"}
    return names[type(value)]


def _kinds_in_python(schema: Any) -> tuple[str, ...]:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("int", "long", "float", "double"):
        return ("number",)
    return ("text",) if kind in ("string", "bytes") else (kind,)
