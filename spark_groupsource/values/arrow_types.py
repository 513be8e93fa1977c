"""Arrow types of Spark's types.

They are those that Spark expects from a Python data source.

Source: PySpark `pyspark.sql.pandas.types.to_arrow_type`.
"""

from __future__ import annotations

from functools import cache
from typing import Mapping

import pyarrow as pa
from pyspark.sql import types as spark

from spark_groupsource.errors import ConfigurationError


@cache
def _scalars() -> Mapping[type, pa.DataType]:
    return {
        spark.BooleanType: pa.bool_(),
        spark.ByteType: pa.int8(),
        spark.ShortType: pa.int16(),
        spark.IntegerType: pa.int32(),
        spark.LongType: pa.int64(),
        spark.FloatType: pa.float32(),
        spark.DoubleType: pa.float64(),
        spark.StringType: pa.string(),
        spark.BinaryType: pa.binary(),
        spark.DateType: pa.date32(),
        spark.TimestampType: pa.timestamp("us", tz="UTC"),
        spark.TimestampNTZType: pa.timestamp("us"),
        spark.DayTimeIntervalType: pa.duration("us"),
    }


def spark_type(kind: pa.DataType) -> spark.DataType:
    """Returns Spark's type of an Arrow type of `arrow_type`; everything may be null."""
    if pa.types.is_struct(kind):
        return spark.StructType([spark.StructField(field.name, spark_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return spark.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return spark.ArrayType(spark_type(kind.value_type))
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    return next((each() for each, arrow in _scalars().items() if arrow == kind), spark.NullType())


def arrow_type(kind: spark.DataType, name: str, is_json: bool = True) -> pa.DataType:
    """Returns the Arrow type of a decoded column.

    Args:
        name: path of the column, for messages.
        is_json: whether the values are JSON: the keys of maps must be strings, and intervals are not decoded.
    Raises: ConfigurationError for a type that no format has, a map whose keys have a wrong type, a field declared
        NOT NULL, or two fields of one name.
    """
    if isinstance(kind, spark.StructType):
        _check_names(kind, name)
        return pa.struct([_field(field, f"{name}.{field.name}", is_json) for field in kind.fields])
    if isinstance(kind, spark.ArrayType):
        _check_nullable(kind.containsNull, f"{name}.element")
        return pa.list_(pa.field("element", arrow_type(kind.elementType, f"{name}.element", is_json)))
    if isinstance(kind, spark.MapType):
        if is_json and not isinstance(kind.keyType, spark.StringType):
            raise ConfigurationError(
                f"Column {name} of the schema is a map with keys of type {kind.keyType.simpleString()}. Declare its "
                "keys as string."
            )
        _check_nullable(kind.valueContainsNull, f"{name}.value")
        key = pa.field("key", arrow_type(kind.keyType, f"{name}.key", is_json), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(kind.valueType, f"{name}.value", is_json)))
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = _scalars().get(type(kind))
    if found is None or is_json and isinstance(kind, spark.DayTimeIntervalType):
        raise ConfigurationError(
            f"Column {name} of the schema has type {kind.simpleString()}, which is not decoded. Declare another "
            "type, or leave the column out."
        )
    return found


def _field(field: spark.StructField, name: str, is_json: bool) -> pa.Field:
    _check_nullable(field.nullable, name)
    return pa.field(field.name, arrow_type(field.dataType, name, is_json))


def _check_names(kind: spark.StructType, name: str) -> None:
    # Spark cannot read such an Arrow struct
    for at, field in enumerate(kind.names):
        if field in kind.names[:at]:
            raise ConfigurationError(f"Column {name} of the schema has field {field} twice. Name each field once.")


def _check_nullable(is_nullable: bool, name: str) -> None:
    if not is_nullable:
        raise ConfigurationError(f"Column {name} of the schema may be null. Leave NOT NULL out.")
