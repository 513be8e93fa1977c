"""The columns a query wants: the source's schema in Spark's types, and the check of a schema the user gave."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_groupsource.errors import ConfigurationError

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
"""Column -> type, in the order of Spark's own Kafka source."""

_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


class SelectedColumns(NamedTuple):
    """Names of the wanted columns in the wanted order, and those the user declared NOT NULL."""

    names: tuple[str, ...]
    not_null: frozenset[str] = frozenset()


def select_columns(schema: StructType, include_headers: bool) -> SelectedColumns:
    """The columns a schema chooses.

    Raises: ConfigurationError naming a column that is not the source's, has another type, or may be null.
    """
    allowed = {name: type_ for name, type_ in TYPES.items() if include_headers or name != "headers"}
    for field in schema.fields:
        if field.name not in allowed:
            hint = " (set includeHeaders to true)" if field.name == "headers" else ""
            raise ConfigurationError(
                f"schema: column {field.name!r} is not one of the source's: {', '.join(allowed)}{hint}; "
                "decode key and value with DataFrame functions"
            )
        wanted, has = field.dataType.simpleString(), allowed[field.name].simpleString()
        if wanted != has:
            raise ConfigurationError(f"schema: column {field.name} is {has}, not {wanted}; cast it after load()")
        if not field.nullable and field.name not in _NEVER_NULL:
            raise ConfigurationError(f"schema: column {field.name} may be null; leave NOT NULL out")
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) != len(names) or not names:
        raise ConfigurationError("schema: each column may be named once, and one at least must be")
    return SelectedColumns(names, frozenset(field.name for field in schema.fields if not field.nullable))
