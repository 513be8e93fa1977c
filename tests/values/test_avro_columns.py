"""Columns of Avro schemas with fields that Spark cannot represent."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)
from schema_registry import SchemaRegistryServer
from support.avro_schemas import LIST, chained, doubled, listed, record
from support.decoded_values import encode_avro
from support.random_avro import RandomAvro

from spark_groupsource.errors import ConfigurationError, MalformedRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import select_columns
from spark_groupsource.source.options.typed_schema import ERROR_FIELD
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.values.avro.avro_schema import parse_avro_schema
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.plain_values import plain_decoder

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "avro"}
LONG_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}
UNREPRESENTABLE: dict[str, tuple[Any, str]] = {
    "decimal": (LONG_DECIMAL, "is a decimal of 64 digits, more than 38"),
    "fixed decimal": (LONG_DECIMAL | {"type": "fixed", "name": "f", "size": 30}, "is a decimal of 64 digits"),
    "null": ("null", "is always null"),
    "union of null": (["null"], "is always null"),
    "union without types": ([], "is a union without types"),
    "optional decimal": (["null", LONG_DECIMAL], "is a decimal of 64 digits"),
    "array of nulls": ({"type": "array", "items": "null"}, "is always null"),
    "map of decimals": ({"type": "map", "values": LONG_DECIMAL}, "is a decimal of 64 digits"),
    "array of arrays": ({"type": "array", "items": {"type": "array", "items": LONG_DECIMAL}}, "is a decimal of 64"),
    "recursion": (["null", "r"], "is of type r, which contains it; value.recursive.fields.max.depth is -1"),
    "array of itself": ({"type": "array", "items": "r"}, "is of type r, which contains it"),
    "choice of nothing": ([LONG_DECIMAL, {"type": "array", "items": "r"}], "is a decimal of 64 digits"),
}


def columns(schema: Any, **given: str) -> StructType:
    """Returns the columns that load() has."""
    options = {name.replace("_", "."): text for name, text in given.items()}
    found = GroupDataSource({**BASE, "value.schema": json.dumps(schema), **options}).schema()
    assert isinstance(found, StructType)
    return found


def select(schema: Any, value: Any, **given: str):
    options = {name.replace("_", "."): text for name, text in given.items()}
    values = parse_options({**BASE, "value.schema": json.dumps(schema), **options}).values
    return select_columns(StructType([StructField("value", value)]), False, values)


def struct(*fields: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def rows(selected: Any, *values: bytes) -> list[Any]:
    data = {"value": pa.array(values, pa.binary()), "offset": pa.array(range(len(values)), pa.int64())}
    batch = pa.RecordBatch.from_pydict({name: data[name] for name in selected.names})
    return selected.typed.converter().convert(batch, TopicPartition("t", 0))["value"].to_pylist()


@pytest.mark.parametrize("name", UNREPRESENTABLE)
def test_a_field_that_spark_cannot_represent_is_left_out(name: str, caplog) -> None:
    kind, reason = UNREPRESENTABLE[name]
    schema = record(("a", "int"), ("x", kind), ("b", "string"))
    with caplog.at_level(logging.WARNING):
        assert columns(schema)["value"].dataType == struct(("a", IntegerType()), ("b", StringType()))
    assert f"[column=value] Fields that Spark cannot represent are left out: value.x (it {reason}" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert [field.name for field in columns(schema, value_flatten="true")][1:3] == ["a", "b"]
    assert caplog.text.count("are left out") == 1
    with pytest.raises(ConfigurationError, match=f"Column value.x of the schema cannot be read: it {reason}"):
        select(schema, struct(("x", BinaryType())))
    # the others are read
    selected = select(schema, struct(("b", StringType())))
    empty = {"null": b"", "union of null": b"\0", "recursion": b"\0", "decimal": b"\2\1", "fixed decimal": bytes(30)}
    written = b"\2" + empty.get(name, b"\0") + b"\2b"
    if name == "choice of nothing":
        written = b"\2\2\0\2b"
    if name != "union without types":
        assert rows(selected, written) == [{"b": "b"}]


def test_what_is_left_out_of_nested_types() -> None:
    inner = record(("d", LONG_DECIMAL), ("n", "int")) | {"name": "i"}
    schema = record(
        ("list", {"type": "array", "items": inner}),
        ("map", {"type": "map", "values": ["null", "i"]}),
        ("choice", ["null", LONG_DECIMAL, "string", "i"]),
        ("only", {"type": "record", "name": "o", "fields": [{"name": "d", "type": LONG_DECIMAL}]}),
    )
    one = struct(("n", IntegerType()))
    kind = struct(
        ("list", ArrayType(one)),
        ("map", MapType(StringType(), one)),
        ("choice", struct(("member1", StringType()), ("member2", one))),
        ("only", struct()),
    )
    assert columns(schema)["value"].dataType == kind
    written = b"\2\2\1\4\0" + b"\2\2k\2\2\1\6\0" + b"\2\2\7" + b"\2\7"
    other = b"\0" + b"\0" + b"\4\2s" + b"\2\7"
    assert rows(select(schema, kind), written, other) == [
        {"list": [{"n": 2}], "map": [("k", {"n": 3})], "choice": {"member1": None, "member2": None}, "only": {}},
        {"list": [], "map": [], "choice": {"member1": "s", "member2": None}, "only": {}},
    ]
    for path, wanted in (
        ("value.list.element.d", struct(("list", ArrayType(struct(("d", DecimalType(38, 2))))))),
        ("value.map.value.d", struct(("map", MapType(StringType(), struct(("d", BinaryType())))))),
        ("value.choice.member0", struct(("choice", struct(("member0", DecimalType(38, 2)))))),
    ):
        with pytest.raises(ConfigurationError, match=f"Column {path} of the schema cannot be read: it is a decimal of"):
            select(schema, wanted)


@pytest.mark.parametrize("schema", ["null", LONG_DECIMAL, ["null"], [], {"type": "array", "items": "null"}])
def test_a_schema_without_anything_that_spark_can_represent(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="Option value.schema has nothing that a column can have: it is a"):
        columns(schema)
    with pytest.raises(ConfigurationError, match="Option value.schema has nothing that a column can have: it is a"):
        select(schema, NullType())


@pytest.mark.parametrize("seed", range(3))
def test_every_damaged_value_is_malformed_in_each_mode(seed: int) -> None:
    source = RandomAvro(random.Random(seed))
    schema = source.record(3)
    values = [source.encoded(schema) for _ in range(40)]
    values = [each if row % 3 else source.damaged(each) for row, each in enumerate(values)]
    kind = columns(schema)["value"].dataType
    arrays = {"value": pa.array(values, pa.binary()), "offset": pa.array(range(50, 90), pa.int64())}

    def convert(mode: str, *fields: StructField) -> pa.RecordBatch:
        given = parse_options({**BASE, "value.schema": json.dumps(schema), "mode": mode}).values
        selected = select_columns(StructType([StructField("value", kind), *fields]), False, given)
        batch = pa.RecordBatch.from_pydict({name: arrays[name] for name in selected.names})
        return selected.typed.converter().convert(batch, TopicPartition("t", 4))

    described = convert("PERMISSIVE", StructField("offset", LongType()), ERROR_FIELD).to_pylist()
    errors = {row["offset"]: row["_error"] for row in described if row["_error"]}
    assert errors and all(row["value"] is None for row in described if row["_error"])
    assert all(each["bytes"] == values[offset - 50] and each["reason"] for offset, each in errors.items())
    kept = convert("DROPMALFORMED", StructField("offset", LongType())).to_pylist()
    good = [{"value": row["value"], "offset": row["offset"]} for row in described if not row["_error"]]
    assert repr(kept) == repr(good)
    first = min(errors)
    with pytest.raises(MalformedRecordError) as caught:
        convert("FAILFAST")
    assert f"value of t-4 at offset {first} as avro failed: {errors[first]['reason']}." in str(caught.value)


def test_the_depth_of_recursive_fields() -> None:
    kind: Any = struct(("x", IntegerType()))
    for depth in ("-1", "0", "1"):
        assert columns(LIST, value_recursive_fields_max_depth=depth)["value"].dataType == kind
    for depth in range(2, 16):
        kind = struct(("x", IntegerType()), ("next", kind))
        given = {"value_recursive_fields_max_depth": str(depth)}
        assert columns(LIST, **given)["value"].dataType == kind
    found = rows(select(LIST, kind, **given), listed(20))
    assert str(found).count("'x'") == 15 and "'x': 15" in str(found)
    with pytest.raises(ConfigurationError, match="value.next.next of the schema cannot be read: .*max.depth is 2"):
        select(LIST, kind, value_recursive_fields_max_depth="2")


TREE = record(("l", ["null", "r"]), ("r", ["null", "r"]), ("x", "int"))
MANY = "has more than 20000 types, .* Declare the fields to read with .schema"


def test_columns_with_too_many_types_are_rejected_only_if_they_are_selected() -> None:
    with pytest.raises(ConfigurationError, match=MANY):
        columns(TREE, value_recursive_fields_max_depth="15")
    wanted = struct(("l", struct(("l", struct(("x", IntegerType()))))))
    found = select(TREE, wanted, value_recursive_fields_max_depth="15")
    assert rows(found, b"\2\2\0\0\6\0\4\0\2") == [{"l": {"l": {"x": 3}}}]
    schema = record(("many", doubled(40, "int")), ("n", "long"))
    with pytest.raises(ConfigurationError, match=MANY):
        columns(schema)
    assert select(schema, struct(("n", LongType()))).typed is not None
    with pytest.raises(ConfigurationError, match="does not exist: the fields are many, n. Correct the name"):
        select(schema, struct(("other", LongType())))


def test_types_that_are_nested_by_their_names_are_left_out_below_a_depth() -> None:
    found = columns(chained(150))["value"].dataType.simpleString()
    assert found.count("struct<x:int>") < 150 and "f149" in found


@pytest.mark.parametrize("levels", [99, 101, 500, 100_000])
def test_a_schema_that_is_nested_deeply_is_a_clear_error(levels: int) -> None:
    for begin, end in (('{"type":"array","items":', "}"), ("[", "]"), ('{"type":', "}")):
        text = begin * levels + '"int"' + end * levels
        try:
            parse_avro_schema("Option value.schema", text)
        except ConfigurationError as error:
            assert str(error).startswith("Option value.schema is no ") and len(str(error)) < 300
        else:
            assert levels == 99
    fields = '{"type":"record","name":"r","fields":[{"name":"x","type":'
    with pytest.raises(ConfigurationError, match="nested deeper than 100 types|no Avro schema"):
        parse_avro_schema("Option value.schema", fields * 101 + '"int"' + "}]}" * 101)


def test_a_writer_with_fields_that_spark_cannot_represent_is_read() -> None:
    """Debezium writes decimals of 64 digits; the reader's version does not have the field."""
    writer = record(("id", "int"), ("amount", LONG_DECIMAL), ("next", ["null", "r"]), ("none", "null"))
    reader = record(("id", "int"))
    data = encode_avro(record(("id", "int")), {"id": 7})
    with SchemaRegistryServer() as server:
        server.register("t-value", reader)
        number = server.register("t-value", writer)
        options = {**BASE, "value.schema.registry.url": server.url, "value.schema": json.dumps(reader)}
        values = parse_options({**options, "mode": "DROPMALFORMED"}).values
        selected = select_columns(struct(("value", struct(("id", IntegerType())))), False, values)
        value = b"\0" + number.to_bytes(4, "big") + data + b"\4\1\2" + b"\2\4\2\1\0" + b""
        arrays = {
            "value": pa.array([value, value[:-1]], pa.binary()),
            "offset": pa.array([0, 1], pa.int64()),
            "headers": pa.array([None, None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
        batch = pa.RecordBatch.from_pydict({name: arrays[name] for name in selected.names})
        found = selected.typed.converter().convert(batch, TopicPartition("t", 0))
        assert found["value"].to_pylist() == [{"id": 7}]
        # the columns of the writer itself have the field that Spark can represent
        assert columns(reader) == columns(writer)
        shown = plain_decoder(ColumnFormat("value", "avro", registry=values.value.registry, header="confluent"))
        assert shown(arrays["value"][:1], None) == [
            {"id": 7, "amount": "2.58", "next": {"id": 2, "amount": "0.01", "next": None, "none": None}, "none": None}
        ]
