"""Columns of the sink: those of Spark's Kafka sink.

Source: Spark `KafkaWriter`.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Callable, Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.format_options import BINARY, ColumnFormat

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType))


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    # Spark's sink compares the names as Spark's analyzer does by default
    fields = [(field.name.lower(), type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


SINK_COLUMNS: Mapping[str, tuple[Callable[[DataType], bool], str]] = {
    "key": (_is_bytes, "binary or string"),
    "value": (_is_bytes, "binary or string"),
    "topic": (lambda kind: isinstance(kind, StringType), "string"),
    "partition": (lambda kind: isinstance(kind, IntegerType), "int"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
}
"""Column -> test of its type, and the types it may have."""

TABLE_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("headers", _HEADERS),
    ]
)
"""Schema of a table of the catalog to which SQL writes."""


def check_columns(schema: StructType, topic: str | None, formats: Sequence[ColumnFormat] = ()) -> None:
    """Checks the columns of a write; further ones are ignored.

    Args:
        topic: option topic, which takes precedence over the column.
        formats: of key and value.
    Raises: ConfigurationError for a missing column or another type.
    """
    # of two columns of a name, the first one counts
    found = {field.name: field.dataType for field in reversed(schema.fields)}
    if "value" not in found:
        raise ConfigurationError(
            f"Column value is missing: the columns are {', '.join(schema.fieldNames()) or 'none'}. Select the value of "
            "the records as value."
        )
    if topic is None and "topic" not in found:
        raise ConfigurationError("No topic is given. Set option topic, or add a column topic.")
    encoded = {each.column: each for each in formats if each.format != BINARY}
    for name, (is_allowed, types) in SINK_COLUMNS.items():
        kind = found.get(name)
        if kind is not None and name in encoded:
            _check_encoded(encoded[name], kind, topic)
            continue
        if kind is None or name == "topic" and topic is not None or isinstance(kind, NullType) and name != "value":
            continue
        if not is_allowed(kind):
            remedy = f"Cast it, or set option {name}.format." if name in ("key", "value") else "Cast it."
            raise ConfigurationError(f"Column {name} is {kind.simpleString()}; it must be {types}. {remedy}")


def _check_encoded(given: ColumnFormat, kind: DataType, topic: str | None) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    from spark_groupsource.values.column_writers import column_writer

    # the time zone of the session is known to the tasks; PySpark 4.0 and 4.1 take UTC where none is given
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
    try:
        arrow = to_arrow_type(kind, **zone)
    except (PySparkException, ValueError):
        # ValueError: PyArrow has no nulls that are required, as the elements of array() and the keys of map()
        raise ConfigurationError(
            f"Column {given.column} is {kind.simpleString()}, which has a type that Spark does not pass to a Python "
            "data source. Cast it."
        ) from None
    column_writer(given, arrow, topic)
