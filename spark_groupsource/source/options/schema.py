"""Schema in Spark's types, and the columns that a query selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Container, Iterable, NamedTuple, Sequence

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
from spark_groupsource.records.columns.column_types import HEADERS_TYPE, SOURCE_COLUMNS
from spark_groupsource.source.options.typed_schema import (
    ERROR_FIELD,
    available_type,
    check_flattened,
    check_selected,
    other_type,
    serde_type,
    typed_schema,
)
from spark_groupsource.values.format_options import AVRO, JSON, PERMISSIVE, PROTOBUF, ColumnFormat, ValueOptions

if TYPE_CHECKING:
    from spark_groupsource.monitor.tables.definitions import TableDefinition
    from spark_groupsource.values.typed_columns import TypedColumn, TypedColumns

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
    """Names of the selected columns in the selected order.

    Attributes:
        not_null: columns that the user declared NOT NULL.
        typed: conversion of the columns `names` into those of the query, if it decodes keys or values.
    """

    names: tuple[str, ...]
    not_null: frozenset[str] = frozenset()
    typed: TypedColumns | None = None


def query_schema(include_headers: bool, values: ValueOptions) -> StructType | str:
    """Returns the schema of a query, in Spark's types or as DDL. Raises: ConfigurationError."""
    plain = spark_schema(include_headers)
    return typed_schema(plain, values) if values.is_typed else plain


def loaded_schema(include_headers: bool, values: ValueOptions) -> StructType | str:
    """Returns the schema of a query that does not declare its columns.

    Raises: ConfigurationError, also for two columns of one name.
    """
    check_flattened(spark_schema(include_headers), values)
    return query_schema(include_headers, values)


def spark_schema(include_headers: bool) -> StructType:
    """Returns the schema of Spark's Kafka source, which declares every column nullable."""
    columns = SOURCE_COLUMNS if include_headers else SOURCE_COLUMNS[:-1]
    return StructType([StructField(column.name, _SPARK_TYPES[column.type]) for column in columns])


def select_columns(schema: StructType, include_headers: bool, values: ValueOptions = ValueOptions()) -> SelectedColumns:
    """Returns the columns that a user's schema selects.

    Raises: ConfigurationError for a column that the source does not have, has with another type, or may be null.
    """
    decoded = {each.column: each for each in (values.key, values.value) if each.format != "binary"}
    declared: dict[str, list[StructField]] = {name: [] for name in decoded}
    nullable = {column.name for column in SOURCE_COLUMNS if column.can_be_null}
    allowed = {field.name: field.dataType.simpleString() for field in spark_schema(include_headers)}
    if values.value.flatten:
        del allowed["value"]
    if values.has_error_column:
        allowed[ERROR_FIELD.name] = ERROR_FIELD.dataType.simpleString()
        nullable.add(ERROR_FIELD.name)
    for field in schema.fields:
        if field.name in decoded and field.name in allowed:
            declared[field.name].append(field)
        elif field.name in allowed:
            _check_column(field, allowed[field.name], nullable)
        elif values.value.flatten:
            column = next((name for name in allowed if name.lower() == field.name.lower()), None)
            if column is not None:
                raise ConfigurationError(
                    f"Column {field.name} of the schema differs from column {column} of the source in case alone, and "
                    f"value.flatten is true. Names have no case in Spark: write {column}, or set value.flatten to "
                    "false to read a field of this name."
                )
            declared["value"].append(field)
        else:
            raise _unknown_column(field.name, allowed, values.is_typed)
    names = tuple(field.name for field in schema.fields)
    distinct = {name.lower() for name in names} if values.value.flatten else set(names)
    if len(distinct) != len(names) or not names:
        raise ConfigurationError(
            f"The schema must name at least one column, and each column once, got {', '.join(names) or 'none'}."
        )
    not_null = frozenset(field.name for field in schema.fields if not field.nullable)
    if not values.is_typed:
        return SelectedColumns(names, not_null)
    return _typed_selection(schema, values, [(decoded[name], fields) for name, fields in declared.items() if fields])


def _unknown_column(name: str, allowed: Iterable[str], is_typed: bool) -> ConfigurationError:
    hint = "Set includeHeaders to true." if name == "headers" else "Set value.format to decode values."
    if name == ERROR_FIELD.name and is_typed:
        hint = f"Set mode to {PERMISSIVE}."
    return ConfigurationError(
        f"Column {name!r} of the schema does not exist: the columns are {', '.join(allowed)}. {hint}"
    )


def _check_column(field: StructField, actual: str, nullable: Container[str]) -> None:
    if field.dataType.simpleString() != actual:
        raise other_type(field.name, actual, field.dataType)
    if not field.nullable and field.name in nullable:
        raise ConfigurationError(f"Column {field.name} of the schema may be null. Leave NOT NULL out.")


def _typed_selection(
    schema: StructType, values: ValueOptions, declared: Sequence[tuple[ColumnFormat, list[StructField]]]
) -> SelectedColumns:
    """Returns the columns of a query that decodes the `declared` ones."""
    # these import PyArrow, which a query without decoding does not need for its schema
    import pyarrow as pa

    from spark_groupsource.records.columns.arrow_columns import columns_schema
    from spark_groupsource.values.typed_columns import ERROR_TYPE, TypedColumns

    typed = tuple(_typed_column(given, fields) for given, fields in declared)
    fields = {ERROR_FIELD.name: pa.field(ERROR_FIELD.name, ERROR_TYPE)}
    if not typed and values.has_error_column and ERROR_FIELD.name in schema.names:
        needed = "key, or a field of the value" if values.value.flatten else "key or value"
        raise ConfigurationError(
            f"Column {ERROR_FIELD.name} of the schema needs a decoded column beside it. Add {needed}."
        )
    for column in typed:
        flat = column.given.flatten
        fields |= {each.name: each for each in (column.kind if flat else [pa.field(column.given.column, column.kind)])}
    for field in schema.fields:
        if field.name not in fields:
            fields[field.name] = columns_schema([field.name]).field(0).with_nullable(field.nullable)
    selected = pa.schema([fields[name] for name in schema.names])
    found = TypedColumns(selected, typed, values.mode, values.dead_letter_topic)
    return SelectedColumns(found.source_columns, typed=found)


def _typed_column(given: ColumnFormat, fields: list[StructField]) -> TypedColumn:
    """Returns the decoding of a column; `fields` are the column, or its fields if they are flattened."""
    from spark_groupsource.values.arrow_types import arrow_type
    from spark_groupsource.values.typed_columns import TypedColumn

    for field in fields:
        serde = serde_type(given)
        _check_column(field, (serde or field.dataType).simpleString(), (field.name,))
    kind = StructType(fields) if given.flatten else fields[0].dataType
    if given.format in (AVRO, PROTOBUF):
        actual, left_out = available_type(given, kind)
        check_selected(kind, actual, given.column, left_out)
    return TypedColumn(given, arrow_type(kind, given.column, is_json=given.format == JSON))


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
        if field.dataType.simpleString() != types[field.name]:
            raise other_type(field.name, types[field.name], field.dataType)
    return schema.fieldNames()
