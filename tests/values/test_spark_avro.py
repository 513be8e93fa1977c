"""Columns of Avro values beside those of Spark's from_avro.

from_avro reads a value by Avro's Java library, and converts it by the AvroDeserializer of Spark SQL. Both are in
PySpark's archive.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from pyspark.sql.types import ArrayType, DataType, FloatType, MapType, StructType
from support.avro_strategies import avro_cases
from support.decoded_values import decode_avro, encode_avro, ordered, spark_column
from support.examples import scaled
from support.java_tools import java_gateway, spark_jars

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def jvm():
    with java_gateway(spark_jars()) as gateway:
        yield gateway.jvm


class FromAvro:
    """What from_avro makes of values of a schema."""

    def __init__(self, jvm: Any, schema: Any) -> None:
        self._jvm = jvm
        avro = jvm.org.apache.avro
        parsed = avro.Schema.Parser().parse(json.dumps(schema))
        self.type = java_column(jvm, parsed)
        sql = jvm.org.apache.spark.sql
        self._reader = avro.generic.GenericDatumReader(parsed)
        self._deserializer = sql.avro.AvroDeserializer(parsed, self.type, "CORRECTED", False, "", -1)
        convert = getattr(getattr(sql.catalyst, "CatalystTypeConverters$"), "MODULE$")
        self._plain = convert.createToScalaConverter(self.type)

    def row(self, data: bytes) -> Any:
        decoder = self._jvm.org.apache.avro.io.DecoderFactory.get().binaryDecoder(data, None)
        found = self._deserializer.deserialize(self._reader.read(None, decoder)).get()
        return self._shown(self._plain.apply(found), StructType.fromJson(json.loads(self.type.json())))

    def _shown(self, value: Any, kind: DataType) -> Any:
        to_java = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava
        if value is None:
            return None
        if isinstance(kind, StructType):
            return {each.name: self._shown(value.get(at), each.dataType) for at, each in enumerate(kind)}
        if isinstance(kind, ArrayType):
            return [self._shown(each, kind.elementType) for each in to_java(value)]
        if isinstance(kind, MapType):
            return [(key, self._shown(each, kind.valueType)) for key, each in dict(to_java(value)).items()]
        # py4j passes a float as decimal text
        return float(np.float32(value)) if isinstance(kind, FloatType) else value


def java_column(jvm: Any, parsed: Any, recursion_depth: int = -1) -> Any:
    """Returns the type of a schema's column, as from_avro in mode PERMISSIVE."""
    converters = getattr(getattr(jvm.org.apache.spark.sql.avro, "SchemaConverters$"), "MODULE$")
    return converters.toSqlType(parsed, False, "", recursion_depth).dataType().asNullable()


@settings(max_examples=scaled(200, 15))
@given(avro_cases())
def test_columns_are_those_of_from_avro(jvm, case: tuple[Any, Any, list[Any]]) -> None:
    schema, _, values = case
    data = [encode_avro(schema, value) for value in values]
    expected = FromAvro(jvm, schema)
    assert spark_column(schema).jsonValue() == json.loads(expected.type.json())
    rows = decode_avro(schema, schema, data).values.to_pylist()
    assert repr(ordered(rows)) == repr(ordered([expected.row(each) for each in data]))


@pytest.mark.parametrize(
    ("kind", "logical", "extra"),
    [
        ("int", "date", {}),
        ("long", "timestamp-millis", {}),
        ("long", "timestamp-micros", {}),
        ("long", "local-timestamp-millis", {}),
        ("long", "local-timestamp-micros", {}),
        ("int", "time-millis", {}),
        ("string", "uuid", {}),
        ("bytes", "decimal", {"precision": 38, "scale": 3}),
    ],
)
def test_logical_types_are_those_of_from_avro(jvm, kind: str, logical: str, extra: dict[str, int]) -> None:
    schema = {"type": kind, "logicalType": logical, **extra}
    expected = java_column(jvm, jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema)))
    assert spark_column(schema).json() == expected.json()


RECURSIVE = {
    "a list": {
        "type": "record", "name": "List",
        "fields": [{"name": "x", "type": "int"}, {"name": "next", "type": ["null", "List"]}],
    },
    "children in arrays and maps": {
        "type": "record", "name": "Node",
        "fields": [
            {"name": "children", "type": {"type": "array", "items": "Node"}},
            {"name": "named", "type": {"type": "map", "values": ["null", "Node"]}},
            {"name": "x", "type": "int"},
        ],
    },
    "a choice": {
        "type": "record", "name": "Choice",
        "fields": [{"name": "c", "type": ["null", "Choice", "string", {"type": "array", "items": "Choice"}]}],
    },
    "two types": {
        "type": "record", "name": "A",
        "fields": [
            {
                "name": "b",
                "type": ["null", {
                    "type": "record", "name": "B",
                    "fields": [{"name": "a", "type": ["null", "A"]}, {"name": "b", "type": ["null", "B"]}],
                }],
            },
            {"name": "x", "type": "long"},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("schema", RECURSIVE.values(), ids=RECURSIVE)
def test_recursive_types_have_the_columns_of_from_avro(jvm, schema: Any, depth: int) -> None:
    expected = java_column(jvm, jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema)), depth)
    assert spark_column(schema, depth).jsonValue() == json.loads(expected.json())
