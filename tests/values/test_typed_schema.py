"""Schemas, options and modes of queries that decode keys or values."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_groupsource.errors import ConfigurationError, MalformedRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import query_schema, select_columns
from spark_groupsource.source.options.typed_schema import ERROR_FIELD
from spark_groupsource.source.spark.datasource import GroupDataSource

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
ERROR = ("_error", ERROR_FIELD.dataType)
POINT = StructType([StructField("id", LongType()), StructField("name", StringType())])


def select(schema: StructType, **given: str):
    return select_columns(schema, False, parse_options({**BASE, **dotted(given)}).values)


def dotted(given: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): text for name, text in given.items()}


def fields(*given: tuple[str, object]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in given])


def test_serdes_change_the_types_of_key_and_value() -> None:
    schema = GroupDataSource({**BASE, "key.format": "LONG", "value.format": "uuid"}).schema()
    assert [(f.name, f.dataType.simpleString()) for f in schema][:2] == [("key", "bigint"), ("value", "string")]
    assert select(schema, key_format="long", value_format="uuid").typed.schema.types[:2] == [pa.int64(), pa.string()]


@pytest.mark.parametrize(
    "given", ["id bigint, name string", "STRUCT<id bigint, name string>", "Struct\n<id bigint, name string>\n"]
)
def test_ddl_is_parsed_by_spark(given: str) -> None:
    options = {**BASE, "value.format": "json", "value.schema": given, "mode": "permissive"}
    found = GroupDataSource(options).schema()
    assert found.startswith("`key` binary, value struct<id bigint, name string>, `topic` string")
    flat = GroupDataSource({**options, "value.flatten": "true"}).schema()
    assert flat.startswith("`key` binary, id bigint, name string, `topic` string")
    assert found.endswith("`_error` struct<column:string,reason:string,schemaId:string,bytes:binary>")


def test_the_json_of_a_struct_type_is_nullable_and_may_be_in_a_file(tmp_path) -> None:
    declared = StructType([StructField("id", LongType(), False), StructField("tags", ArrayType(StringType(), False))])
    path = tmp_path / "schema.json"
    path.write_text(declared.json())
    for given in (declared.json(), str(path), f"file:{path}", f"file://{path}"):
        options = {**BASE, "value.format": "json", "value.schema": given, "value.flatten": "true"}
        found = GroupDataSource(options).schema()
        assert [f.name for f in found][:3] == ["key", "id", "tags"] and "value" not in found.names
        assert all(f.nullable for f in found) and found["tags"].dataType.containsNull


@pytest.mark.parametrize(
    "given, message",
    [
        ({"value.format": "yaml"}, "Option value.format must be one of binary, string, json, avro"),
        ({"value.format": "json"}, "Option value.schema is missing: value.format is json."),
        ({"value.format": "avro"}, "Option value.schema is missing: value.format is avro."),
        ({"value.schema": "a int"}, "with value.format=binary. Set value.format to json, avro or protobuf."),
        ({"value.format": "int", "value.flatten": "true"}, "Set it to json, avro or protobuf."),
        *(
            (
                {"value.format": "json", "value.schema": given, "value.flatten": "true"},
                f"Option value.flatten needs values with fields, got {given} in value.schema. Set it to false.",
            )
            for given in ("map<string,int>", "ARRAY <struct<id bigint>>")
        ),
        ({"value.format": "json", "value.schema": "/no/such/file"}, "Reading the schema of option value.schema failed"),
        ({"value.format": "json", "value.schema": "{}"}, "Option value.schema is no schema"),
        (
            {"value.format": "json", "value.schema": "a int", "value.recursive.fields.max.depth": "2"},
            "Option value.recursive.fields.max.depth has no effect with value.format=json. Set value.format to avro",
        ),
        (
            {"value.format": "avro", "value.schema": '"int"', "value.recursive.fields.max.depth": "16"},
            "Option value.recursive.fields.max.depth must be at most 15 with value.format=avro, got 16.",
        ),
        (
            {"value.format": "protobuf", "value.schema": "x", "value.recursive.fields.max.depth": "11"},
            "Option value.recursive.fields.max.depth must be at most 10 with value.format=protobuf, got 11.",
        ),
        (
            {"value.format": "avro", "value.schema": '"int"', "value.recursive.fields.max.depth": "two"},
            "Option value.recursive.fields.max.depth must be an integer",
        ),
        ({"mode": "ignore"}, "Option mode must be one of FAILFAST, PERMISSIVE, DROPMALFORMED, got 'ignore'."),
    ],
)
def test_invalid_options_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        GroupDataSource({**BASE, **given}).schema()
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "schema, given, message",
    [
        (fields(("key", StringType())), {"key_format": "int"}, "Column key of the schema must be int, got string."),
        (fields(("value", NullType())), {"value_format": "json"}, "Column value of the schema has type void"),
        (
            fields(("value", MapType(IntegerType(), StringType()))),
            {"value_format": "json"},
            "Column value of the schema is a map with keys of type int. Declare its keys as string.",
        ),
        (
            fields(("value", fields(("d", DayTimeIntervalType())))),
            {"value_format": "json"},
            "Column value.d of the schema has type interval day to second, which is not decoded.",
        ),
        (fields(("id", LongType())), {"value_format": "json"}, "Column 'id' of the schema does not exist"),
        (fields(("value", POINT), ERROR), {"value_format": "json"}, "Set mode to PERMISSIVE."),
        (fields(("offset", LongType()), ERROR), {"value_format": "json", "mode": "PERMISSIVE"}, "Add key or value."),
        (
            fields(("offset", LongType()), ERROR),
            {"value_format": "json", "mode": "PERMISSIVE", "value_flatten": "true"},
            "Add key, or a field of the value.",
        ),
        (fields(("offset", LongType()), ERROR), {"mode": "PERMISSIVE"}, "Set value.format to decode values."),
        (
            fields(("id", LongType()), ("_error", LongType())),
            {"value_format": "json", "mode": "PERMISSIVE", "value_flatten": "true"},
            "Column _error of the schema must be struct<column:string,",
        ),
        (
            StructType([StructField("value", StructType([StructField("id", LongType(), False)]))]),
            {"value_format": "json"},
            "Column value.id of the schema may be null. Leave NOT NULL out.",
        ),
        (
            fields(("value", ArrayType(fields(("id", LongType()), ("ID", LongType()), ("id", StringType()))))),
            {"value_format": "json"},
            "Column value.element of the schema has field id twice. Name each field once.",
        ),
    ],
)
def test_invalid_columns_are_named(schema: StructType, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        select(schema, **given)


def batch(columns, *values: bytes | None) -> pa.RecordBatch:
    arrays = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array([b"\0\0\0\1"] * len(values), pa.binary()),
        "offset": pa.array(range(100, 100 + len(values)), pa.int64()),
    }
    return pa.RecordBatch.from_pydict({name: arrays[name] for name in columns.names})


def converted(columns, *values: bytes | None) -> pa.RecordBatch:
    columns = pickle.loads(pickle.dumps(columns))
    return columns.typed.converter().convert(batch(columns, *values), TopicPartition("t", 3))


def test_modes() -> None:
    schema = fields(("offset", LongType()), ("value", POINT))
    values = (b'{"id": 1}', b"{", None)
    found = converted(select(schema.add(ERROR_FIELD), value_format="json", mode="PERMISSIVE"), *values)
    assert found.to_pylist() == [
        {"offset": 100, "value": {"id": 1, "name": None}, "_error": None},
        {
            "offset": 101,
            "value": None,
            "_error": {
                "column": "value",
                "reason": "Expecting property name enclosed in double quotes at character 1",
                "schemaId": None,
                "bytes": b"{",
            },
        },
        {"offset": 102, "value": None, "_error": None},
    ]
    schema = fields(("offset", LongType()), ("value", POINT))
    dropped = converted(select(schema, value_format="json", mode="dropmalformed"), *values)
    assert dropped["offset"].to_pylist() == [100, 102]
    with pytest.raises(MalformedRecordError, match=r"value of t-3 at offset 101 as json failed: Exp.*option mode"):
        converted(select(schema, value_format="json"), *values)


@pytest.mark.parametrize(
    "kind, value",
    [
        (TimestampType(), b"1691241070000000"),
        (TimestampType(), b'"300000-01-01"'),
        (DateType(), b'"5881581-01-01"'),
        (DecimalType(38, 18), b"NaN"),
        (DecimalType(38, 18), b'"sNaN"'),
        (DecimalType(38, 18), b"123456789012345678901234567890"),
        (DecimalType(38, 18), b"1e99999999999"),
        (MapType(StringType(), LongType()), b'{"\\ud800": "\\ud800"}'),
        (LongType(), b'"\\ud800\\u001b[31m"'),
        (StringType(), b"[" * 2000 + b"]" * 2000),
    ],
)
def test_a_value_that_its_type_does_not_have_is_malformed_in_every_mode(kind, value: bytes) -> None:
    values = (b"{}", b'{"v": %s}' % value)
    schema = fields(("offset", LongType()), ("value", fields(("v", kind))))
    dropped = converted(select(schema, value_format="json", mode="DROPMALFORMED"), *values)
    assert dropped["offset"].to_pylist() == [100]
    found = converted(select(schema.add(ERROR_FIELD), value_format="json", mode="PERMISSIVE"), *values)
    assert found["value"].to_pylist() == [{"v": None}, None] and found["_error"][1]["bytes"].as_py() == values[1]
    assert found["_error"][1]["reason"].as_py().isprintable()
    schema = fields(("offset", LongType()), ("value", fields(("v", kind))))
    with pytest.raises(MalformedRecordError, match="value of t-3 at offset 101 as json failed: "):
        converted(select(schema, value_format="json"), *values)


def test_errors_of_keys_and_values() -> None:
    schema = fields(("key", IntegerType()), ("value", POINT)).add(ERROR_FIELD)
    columns = select(schema, value_format="json", key_format="int", mode="PERMISSIVE")
    keys = [b"\0", b"\0\0\0\1", b"long key", None, b"\0\0\0\2", b"", b"\0\0\0\3"]
    values = [b"{}", b'{"id": 1}', b"{", b"[", None, b'{"id": 2}', b"x"]
    arrays = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    given = pa.RecordBatch.from_pydict({**arrays, "offset": pa.array(range(7), pa.int64())})
    # the first record is left out: the arrays of a batch may begin within their buffers
    found = columns.typed.converter().convert(given.select(columns.names)[1:], TopicPartition("t", 3))
    found.validate(full=True)
    errors = [row and (row["column"], row["schemaId"], row["bytes"]) for row in found["_error"].to_pylist()]
    assert errors == [
        None, ("key", None, b"long key"), ("value", None, b"["), None, ("key", None, b""), ("value", None, b"x"),
    ]  # fmt: skip
    assert found["key"].to_pylist() == [1, None, None, 2, None, 3]
    assert [row and row["id"] for row in found["value"].to_pylist()] == [1, None, None, None, 2, None]


def test_flattened_fields_and_a_decoded_key() -> None:
    schema = fields(("name", StringType()), ("key", IntegerType()), ("id", LongType()))
    columns = select(schema, value_format="json", value_flatten="true", key_format="int")
    assert set(columns.names) == {"key", "value", "offset"}
    found = converted(columns, b'{"id": 1, "name": "x"}', None)
    assert found.to_pylist() == [{"name": "x", "key": 1, "id": 1}, {"name": None, "key": 1, "id": None}]


def test_what_is_not_selected_is_not_decoded() -> None:
    columns = select(fields(("offset", LongType())), value_format="json", key_format="int")
    assert columns.names == ("offset",) and columns.typed.decoded == ()
    assert query_schema(False, parse_options(BASE).values).names[:2] == ["key", "value"]


def flattened(schema: str, **given: str):
    options = {**BASE, "value.format": "json", "value.flatten": "true", "value.schema": schema, **given}
    return GroupDataSource(options).schema()


@pytest.mark.parametrize("column", ["key", "topic", "partition", "offset", "timestamp", "timestampType"])
@pytest.mark.parametrize("write", [str, str.upper, lambda name: name.lower()])
def test_a_flattened_field_with_the_name_of_a_column_is_named(column: str, write) -> None:
    name = write(column)
    for schema in (
        f"id bigint, {name} string",
        f"`{name}` bigint COMMENT 'a, b', id decimal(10,2)",
        f"at struct<x: map<string, array<int>>, y: int>, {name}: timestamp",
        StructType([StructField("id", LongType()), StructField(name, LongType())]).json(),
    ):
        with pytest.raises(ConfigurationError) as caught:
            flattened(schema)
        assert f"Field {name} of the value has the name of column {column}, and value.flatten is true." in str(
            caught.value
        )
        assert "Set value.flatten to false" in str(caught.value)
        # without flatten, and where the query declares its columns, there is one column of each name
        flattened(schema, **{"value.flatten": "false"})
    declared = fields(("id", LongType()), ("topic", StringType()))
    assert select(declared, value_format="json", value_flatten="true", value_schema=f"id bigint, {name} string")


def test_flattened_names_that_differ_in_case_alone_are_rejected() -> None:
    for schema in (
        "id bigint, ID string",
        StructType([StructField("id", LongType()), StructField("Id", LongType())]).json(),
    ):
        with pytest.raises(ConfigurationError, match="Fields id and I[Dd] of the value differ in case alone"):
            flattened(schema)
        flattened(schema, **{"value.flatten": "false"})
    options = {"value_format": "json", "value_flatten": "true"}
    with pytest.raises(ConfigurationError, match="Column Offset of the schema differs from .* offset.*write offset"):
        select(fields(("Offset", LongType()), ("id", LongType())), **options)
    with pytest.raises(ConfigurationError, match="each column once, got id, ID"):
        select(fields(("id", LongType()), ("ID", LongType())), **options)
    assert select(fields(("Value", LongType()), ("id", LongType())), **options).names


def test_flattened_fields_may_have_the_names_of_columns_that_are_not_there() -> None:
    schema = "value bigint, headers string, _error int, `a``b,c` int, x struct<topic: string, offset: bigint>"
    assert flattened(schema).startswith(f"`key` binary, {schema}, `topic`")
    for given, name in (({"includeHeaders": "true"}, "headers"), ({"mode": "PERMISSIVE"}, "_error")):
        with pytest.raises(ConfigurationError, match=f"Field {name} of the value has the name of column {name}"):
            flattened(schema, **given)
    declared = fields(("value", LongType()), ("headers", StringType()), ("offset", LongType()))
    found = converted(select(declared, value_format="json", value_flatten="true"), b'{"value": 1, "headers": "x"}')
    assert found.to_pylist() == [{"value": 1, "headers": "x", "offset": 100}]


AVRO_IDS = (
    '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "_error", "type": "int"}]}'
)
PROTOBUF_IDS = 'syntax = "proto3"; message R { int64 id = 1; int32 _error = 2; }'


@pytest.mark.parametrize(
    "given, good, bad",
    [
        ({"value_format": "json"}, b'{"id": 1, "_error": 7}', b'{"id": "x", "_error": {"reason": "y"}}'),
        ({"value_format": "avro", "value_schema": AVRO_IDS}, b"\x02\x0e", b"\x02"),
        (
            {"value_format": "protobuf", "value_schema": PROTOBUF_IDS, "value_message_name": "R"},
            b"\x08\x01\x10\x07",
            b"\x08",
        ),
    ],
    ids=["json", "avro", "protobuf"],
)
def test_the_column_of_errors_is_no_field_of_a_flattened_value(given: dict[str, str], good: bytes, bad: bytes) -> None:
    given = given | {"value_flatten": "true"}
    found = converted(select(fields(("id", LongType()), ERROR), mode="PERMISSIVE", **given), good, bad)
    assert found["id"].to_pylist() == [1, None]
    assert [error and (error["column"], error["bytes"]) for error in found["_error"].to_pylist()] == [
        None,
        ("value", bad),
    ]
    # the other modes have no such column
    field = fields(("_error", IntegerType()))
    for mode in ("FAILFAST", "DROPMALFORMED"):
        assert converted(select(field, mode=mode, **given), good)["_error"].to_pylist() == [7]
