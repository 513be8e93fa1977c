"""Spark types of expanded Avro types.

Source: Spark `SchemaConverters.toSqlType`, which `from_avro` uses.
"""

from __future__ import annotations

from typing import Mapping

from pyspark.sql import types as spark

from spark_groupsource.values.avro.avro_expansion import LEFT_OUT, Expansion, ExpansionRules, expanded
from spark_groupsource.values.avro.avro_schema import AvroType, avro_schema
from spark_groupsource.values.format_options import ColumnFormat, Wanted

_SCALARS: Mapping[tuple[str, str], spark.DataType] = {
    ("boolean", ""): spark.BooleanType(),
    ("int", ""): spark.IntegerType(),
    ("int", "date"): spark.DateType(),
    ("long", ""): spark.LongType(),
    ("long", "timestamp-millis"): spark.TimestampType(),
    ("long", "timestamp-micros"): spark.TimestampType(),
    ("long", "local-timestamp-millis"): spark.TimestampNTZType(),
    ("long", "local-timestamp-micros"): spark.TimestampNTZType(),
    ("long", "timestamp-nanos"): spark.LongType(),
    ("long", "local-timestamp-nanos"): spark.LongType(),
    ("float", ""): spark.FloatType(),
    ("double", ""): spark.DoubleType(),
    ("string", ""): spark.StringType(),
    ("bytes", ""): spark.BinaryType(),
    ("fixed", ""): spark.BinaryType(),
    ("enum", ""): spark.StringType(),
}


def column_expansion(given: ColumnFormat, wanted: Wanted | None = None) -> Expansion:
    """Returns what a column of Spark has of its schema. Raises: ConfigurationError as `expanded`."""
    return expanded(avro_schema(given), ExpansionRules(given.column, given.recursion_depth), wanted)


def spark_type(avro: AvroType) -> spark.DataType:
    """Returns the type of a column, given a type that does not contain itself; every field may be null."""
    if avro.logical == "decimal":
        return spark.DecimalType(avro.precision, avro.scale)
    if avro.kind == "record":
        return spark.StructType([spark.StructField(each.name, spark_type(each.type)) for each in avro.fields])
    if avro.kind in ("array", "map") and avro.items is not None:
        item = spark_type(avro.items)
        return spark.ArrayType(item) if avro.kind == "array" else spark.MapType(spark.StringType(), item)
    if avro.only is not None:
        return spark_type(avro.only)
    if avro.is_struct:
        members = [each for each in avro.branches if each.kind != "null"]
        return spark.StructType(
            [
                spark.StructField(f"member{at}", spark_type(each))
                for at, each in enumerate(members)
                if each is not LEFT_OUT
            ]
        )
    # a value that is always null, or a field of which only the name is used
    return _SCALARS.get((avro.kind, avro.logical), spark.NullType())
