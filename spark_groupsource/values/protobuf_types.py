"""Spark types of Protobuf messages.

Source: Spark `protobuf.utils.SchemaConverters`, which `from_protobuf` uses, with its default options.
"""

from __future__ import annotations

from typing import Mapping

from pyspark.sql import types as spark

from spark_groupsource.values.protobuf_schema import ProtoField, ProtoMessage

_INT, _LONG = spark.IntegerType(), spark.LongType()
_SCALARS: Mapping[str, spark.DataType] = {
    **dict.fromkeys(("int32", "uint32", "sint32", "fixed32", "sfixed32"), _INT),
    **dict.fromkeys(("int64", "uint64", "sint64", "fixed64", "sfixed64"), _LONG),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "bool": spark.BooleanType(),
    "string": spark.StringType(),
    "bytes": spark.BinaryType(),
    "enum": spark.StringType(),
}
_TIMES: Mapping[str, spark.DataType] = {"Timestamp": spark.TimestampType(), "Duration": spark.DayTimeIntervalType()}


def message_type(message: ProtoMessage) -> spark.StructType:
    """Returns the type of a message; every field may be null. A message without fields is left out."""
    found = [(each.name, _field_type(each)) for each in message.fields]
    return spark.StructType([spark.StructField(name, kind) for name, kind in found if kind is not None])


def _field_type(field: ProtoField) -> spark.DataType | None:
    kind = _value_type(field)
    if kind is None or isinstance(kind, spark.MapType) or not field.is_repeated:
        return kind
    return spark.ArrayType(kind)


def _value_type(field: ProtoField) -> spark.DataType | None:
    if field.message is None:
        return _SCALARS[field.kind]
    if field.message.time:
        return _TIMES[field.message.time]
    if field.message.is_map_entry and field.is_repeated:
        key, value = (_value_type(each) for each in field.message.fields)
        return None if key is None or value is None else spark.MapType(key, value)
    found = message_type(field.message)
    return found if found.fields else None
