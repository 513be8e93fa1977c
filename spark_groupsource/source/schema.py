"""Schema in Spark's types, and the columns that a query selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns import HEADERS_TYPE, SOURCE_COLUMNS

if TYPE_CHECKING:
    from spark_groupsource.monitor.definitions import TableDefinition

_SPARK_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "array<int>": ArrayType(IntegerType()),
    HEADERS_TYPE: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class SelectedColumns(NamedTuple):
    """Names of the selected columns in the selected order; `not_null`: columns that the user declared NOT NULL."""

    names: tuple[str, ...]
    not_null: frozenset[str] = frozenset()


def spark_schema(include_headers: bool) -> StructType:
    """Returns the schema of Spark's Kafka source, which declares every column nullable."""
    columns = SOURCE_COLUMNS if include_headers else SOURCE_COLUMNS[:-1]
    return StructType([StructField(column.name, _SPARK_TYPES[column.type]) for column in columns])


def select_columns(schema: StructType, include_headers: bool) -> SelectedColumns:
    """Returns the columns that a user's schema selects.

    Raises: ConfigurationError for a column that the source does not have, has with another type, or may be null.
    """
    nullable = {column.name for column in SOURCE_COLUMNS if column.can_be_null}
    allowed = {field.name: field.dataType.simpleString() for field in spark_schema(include_headers)}
    for field in schema.fields:
        if field.name not in allowed:
            hint = "Set includeHeaders to true." if field.name == "headers" else "Decode key and value after load()."
            raise ConfigurationError(
                f"Column {field.name!r} of the schema does not exist: the columns are {', '.join(allowed)}. {hint}"
            )
        actual, declared = allowed[field.name], field.dataType.simpleString()
        if declared != actual:
            raise ConfigurationError(
                f"Column {field.name} of the schema must be {actual}, got {declared}. Cast it after load()."
            )
        if not field.nullable and field.name in nullable:
            raise ConfigurationError(f"Column {field.name} of the schema may be null. Leave NOT NULL out.")
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) != len(names) or not names:
        raise ConfigurationError(
            f"The schema must name at least one column, and each column once, got {', '.join(names) or 'none'}."
        )
    return SelectedColumns(names, frozenset(field.name for field in schema.fields if not field.nullable))


def table_schema(table: TableDefinition) -> StructType:
    """Returns the schema of a table, with the descriptions of its columns as comments."""
    return StructType(
        [StructField(c.name, _SPARK_TYPES[c.type], metadata={"comment": c.comment}) for c in table.columns]
    )


def select_table_columns(schema: StructType, table: TableDefinition) -> list[str]:
    """Returns the columns that a user's schema selects; the others are not computed.

    Raises: ConfigurationError for a column that the table does not have, or has with another type.
    """
    types = {column.name: column.type for column in table.columns}
    for field in schema.fields:
        if field.name not in types:
            raise ConfigurationError(
                f"Column {field.name!r} of the schema does not exist: the columns of table {table.name} are "
                f"{', '.join(types)}. Correct the name."
            )
        declared = field.dataType.simpleString()
        if declared != types[field.name]:
            raise ConfigurationError(
                f"Column {field.name} of the schema must be {types[field.name]}, got {declared}. Cast it after load()."
            )
    return schema.fieldNames()
