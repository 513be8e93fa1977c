"""Avro schemas of columns of Spark.

Source: Spark `SchemaConverters.toAvroType`, which to_avro uses.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.binary_columns import is_bytes, is_text

RECORD_NAME = "topLevelRecord"
"""Name of the record of a column, if none is given."""
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def derived_avro_schema(kind: pa.DataType, path: str, record: str = RECORD_NAME) -> str:
    """Returns the schema of a column whose nulls are no values.

    Args:
        path: name of the column, for messages.
        record: full name of the record.
    Raises: ConfigurationError for a type that Avro does not have, and a name that is none in Avro.
    """
    namespace, _, name = record.rpartition(".")
    return json.dumps(_schema(kind, path, name, namespace), separators=(",", ":"))


def _schema(kind: pa.DataType, path: str, record: str, namespace: str) -> Any:
    if pa.types.is_struct(kind):
        found = _named({"type": "record", "name": record}, namespace)
        inner = f"{namespace}.{record}" if namespace else record
        found["fields"] = [
            {"name": _checked(field.name, path), "type": _nullable(field, f"{path}.{field.name}", field.name, inner)}
            for field in kind
        ]
        return found
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, f"{path}.element", record, namespace)}
    if pa.types.is_map(kind) and is_text(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_field, f"{path}.value", record, namespace)}
    if pa.types.is_decimal128(kind):
        inner = f"{namespace}.{record}" if namespace else record
        found = _named({"type": "fixed", "name": "fixed"}, inner) | {"size": _decimal_bytes(kind.precision)}
        return found | {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-micros"}
    for is_kind, found in _SCALARS:
        if is_kind(kind):
            return found
    raise ConfigurationError(f"Column {path} is {kind}, which is not written as Avro. Cast it, or leave it out.")


def _nullable(field: pa.Field, path: str, record: str, namespace: str) -> Any:
    found = _schema(field.type, path, record, namespace)
    return [found, "null"] if field.nullable and found != "null" else found


def _named(found: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**found, "namespace": namespace} if namespace else found


def _checked(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"Column {path} has a field {name!r}, which is no name in Avro: letters, digits and _. Rename it."
        )
    return name


def _decimal_bytes(precision: int) -> int:
    """Returns the bytes of the largest number with so many digits (Spark `Decimal.minBytesForPrecision`)."""
    largest = 10**precision - 1
    return int(largest).bit_length() // 8 + 1


_SCALARS: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_signed_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (is_text, "string"),
    (is_bytes, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
)
