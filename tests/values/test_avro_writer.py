"""Columns written as Avro, beside fastavro, and schemas of columns beside Spark's."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType
from support.avro_strategies import avro_cases
from support.decoded_values import decode_avro, encode_avro
from support.java_tools import java_gateway, spark_jars

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.avro.avro_schema import parse_avro_schema
from spark_groupsource.values.avro.avro_writer import avro_writer
from spark_groupsource.values.avro.derived_schema import derived_avro_schema
from spark_groupsource.values.registry.schema_headers import confluent_prefix

ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "d": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text("ab\u00e9", max_size=4),
        "x": st.none() | st.binary(max_size=4),
        "n": st.none() | st.decimals(-(10**28), 10**28, places=9, allow_nan=False),
        "t": st.none() | st.datetimes().map(lambda each: each.replace(tzinfo=None)),
        "y": st.none() | st.dates(),
        "a": st.none() | st.lists(st.none() | st.integers(0, 200), max_size=3),
        "m": st.none() | st.dictionaries(st.text("ab", max_size=2), st.none() | st.booleans(), max_size=2),
        "r": st.none() | st.fixed_dictionaries({"q": st.none() | st.integers(-1, 1)}),
    }
)
KIND = pa.struct(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("n", pa.decimal128(38, 9)),
        ("t", pa.timestamp("us")),
        ("y", pa.date32()),
        ("a", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.bool_())),
        ("r", pa.struct([("q", pa.int16())])),
    ]
)


def written(schema: Any, column: pa.Array, prefix: bytes = b"") -> list[Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    found: list[Any] = avro_writer(parse_avro_schema("schema", text), column.type, "value", prefix)(column).to_pylist()
    return found


def read(schema: Any, data: bytes) -> Any:
    stream = BytesIO(data)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema))
    assert not stream.read()
    return found


@given(st.lists(st.none() | ROWS, max_size=5), st.integers(0, 2))
def test_values_of_the_derived_schema_are_read_by_fastavro(rows: list[Any], first: int) -> None:
    column = pa.array([row and {**row, "m": row["m"] and list(row["m"].items())} for row in rows], KIND)[first:]
    schema = json.loads(derived_avro_schema(KIND, "value"))
    found = [None if each is None else read(schema, each) for each in written(schema, column)]
    expected = [None if row is None else {**row, "m": row["m"] or (row["m"] and {})} for row in rows[first:]]
    for row in (each for each in found if each is not None and each["t"] is not None):
        row["t"] = row["t"].replace(tzinfo=None)
    assert found == expected


@pytest.mark.java
def test_values_are_read_by_javas_reader_after_confluents_header() -> None:
    """Java's Avro deserializer of Confluent, which cannot be had, reads the header and calls this reader."""
    full = {
        "i": -1, "l": 2**40, "f": 1.5, "d": -0.25, "s": "a\u00e9", "x": b"\0\xff", "n": Decimal("-12.5"),
        "t": datetime(1969, 12, 31, 23, 59, 59, 1), "y": date(2026, 2, 28), "a": [1, None, 200], "m": [("k", True)],
        "r": {"q": 7},
    }  # fmt: skip
    column = pa.array([full, dict.fromkeys(full), None, {**full, "a": [], "m": [], "r": {"q": None}}], KIND)
    schema = derived_avro_schema(KIND, "value")
    data = [each for each in written(schema, column, confluent_prefix(258)) if each is not None]
    with java_gateway(spark_jars()) as gateway:
        avro, io = gateway.jvm.org.apache.avro, gateway.jvm.org.apache.avro.io
        parsed = avro.Schema.Parser().parse(schema)
        reader, writer = avro.generic.GenericDatumReader(parsed), avro.generic.GenericDatumWriter(parsed)
        shown, again = [], []
        for each in data:
            record = reader.read(None, io.DecoderFactory.get().binaryDecoder(each[5:], None))
            out = gateway.jvm.java.io.ByteArrayOutputStream()
            encoder = io.EncoderFactory.get().binaryEncoder(out, None)
            writer.write(record, encoder)
            encoder.flush()
            shown.append(str(record.get("s")))
            again.append(b"\0\0\0\1\2" + bytes(out.toByteArray()))
    assert (shown, again) == (["a\u00e9", "None", "a\u00e9"], data)


@given(avro_cases())
def test_values_of_any_schema_are_read_back_by_the_source(case: tuple[Any, Any, list[Any]]) -> None:
    schema, _, values = case
    column = decode_avro(schema, schema, [encode_avro(schema, each) for each in values]).values
    data = written(schema, column)
    decoded = decode_avro(schema, schema, data)
    assert not decoded.malformed
    assert repr(decoded.values.to_pylist()) == repr(column.to_pylist())


@pytest.mark.parametrize("size", [None, 1, 2, 9, 16, 20])
def test_decimals(size: int | None) -> None:
    limit = 10 ** min(38, {None: 38, 1: 2, 2: 4, 9: 21}.get(size, 38))
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, 2**62, limit - 1, 1 - limit]
    values = [Decimal(each) for each in numbers if abs(each) < limit]
    precision = len(str(limit)) - 1
    schema: Any = {"type": "bytes"} if size is None else {"type": "fixed", "name": "f", "size": size}
    schema = {**schema, "logicalType": "decimal", "precision": precision, "scale": 0}
    data = written(schema, pa.array(values, pa.decimal128(precision, 0)))
    assert [read(schema, each) for each in data] == values
    if size is not None:
        assert data == [encode_avro(schema, each) for each in values]
    else:
        # as BigInteger.toByteArray, which needs no byte for the sign of -128
        assert data[:7] == [b"\2\0", b"\2\1", b"\2\xff", b"\2\x7f", b"\4\0\x80", b"\2\x80", b"\4\xff\x7f"]


def test_enums_fixed_values_and_defaults() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "later", "type": ["null", "long"], "default": None},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "f", "type": ["null", {"type": "fixed", "name": "F", "size": 2}]},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "v", "type": "null"},
        ],
    }
    kind = pa.struct(
        [("f", pa.binary()), ("e", pa.string()), ("t", pa.timestamp("us", "Europe/Berlin")), ("v", pa.null())]
    )
    column = pa.array([{"f": b"xy", "e": "B", "t": -1}, {"f": None, "e": "A", "t": 1999}, None], kind)
    assert written(schema, column, b"\0\0\0\0\7") == [
        b"\0\0\0\0\7\0\2\2xy\1",
        b"\0\0\0\0\7\0\0\0\2",
        None,
    ]


@pytest.mark.parametrize(
    ("schema", "kind", "rows", "message"),
    [
        ("long", pa.string(), [], "Column value is string, and the Avro schema has long. Cast it."),
        ("int", pa.int64(), [], "Column value is int64, and the Avro schema has int. Cast it."),
        (["null", "int", "string"], pa.float64(), [], "is double, and the Avro schema has a union of null, i"),
        ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [[1, None]], "value.element failed: 1 values"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]},
            pa.struct([("b", pa.int64())]),
            [],
            "Column value.b is no field of the Avro record R. Leave it out, or rename it.",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]},
            pa.struct([]),
            [],
            "Column value.a is missing: it is never null in the Avro schema. Add it.",
        ),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string(), ["A", "B"], "'B' is no symbol of the Avro enum"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), [b"ab", b"a"], "a value has 1 bytes, and the Avr"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            pa.decimal128(5, 2),
            [],
            "Column value is decimal128(5, 2), and the Avro schema has decimal bytes(4,2). Cast it.",
        ),
    ],
)
def test_columns_that_a_schema_does_not_have(schema: Any, kind: pa.DataType, rows: list[Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        written(schema, pa.array(rows, kind))
    assert message in str(raised.value)


def test_members_of_unions() -> None:
    schema = ["string", "null", {"type": "array", "items": ["null", "int", "boolean"]}]
    item = pa.struct([("member1", pa.bool_()), ("member0", pa.int32())])
    kind = pa.struct([("member0", pa.string()), ("member1", pa.list_(item))])
    rows = [
        {"member0": "a"},
        {"member1": [{"member0": 1}, None, {"member1": True}]},
        {"member1": []},
        None,
    ]
    record = {"type": "record", "name": "R", "fields": [{"name": "u", "type": schema}]}
    column = pa.StructArray.from_arrays([pa.array(rows, kind)], names=["u"])
    data = written(record, column)
    assert [read(record, each)["u"] for each in data] == ["a", [1, None, True], [], None]
    for wrong in ({}, {"member0": "a", "member1": []}):
        with pytest.raises(ConfigurationError) as raised:
            written(schema, pa.array([wrong], kind))
        assert f"{len(wrong)} fields of a struct are set" in str(raised.value)
    with pytest.raises(ConfigurationError) as raised:
        written(schema, pa.array([], pa.struct([("member2", pa.string())])))
    assert "Column value.member2 is no branch of the union in the Avro schema, which has 2." in str(raised.value)


def test_null_structs_with_fields_that_are_never_null() -> None:
    inner = pa.StructArray.from_arrays([pa.array([1, None])], fields=[pa.field("b", pa.int64(), nullable=False)])
    struct = pa.StructArray.from_arrays([inner.field(0)], fields=list(inner.type), mask=pa.array([False, True]))
    column = pa.StructArray.from_arrays([struct], names=["a"])
    schema = json.loads(derived_avro_schema(column.type, "value"))
    assert [read(schema, each) for each in written(schema, column)] == [{"a": {"b": 1}}, {"a": None}]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.struct([("a b", pa.int64())]), "Column value has a field 'a b', which is no name in Avro"),
        (pa.struct([("a", pa.duration("us"))]), "Column value.a is duration[us], which is not written as Avro."),
        (pa.map_(pa.int32(), pa.int32()), "Column value is map<int32, int32>, which is not written as Avro."),
    ],
)
def test_types_without_a_schema(kind: pa.DataType, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        derived_avro_schema(kind, "value")
    assert message in str(raised.value)


@pytest.mark.java
def test_derived_schemas_are_those_of_to_avro() -> None:
    types = [
        "struct<a: int, b: struct<c: array<struct<d: decimal(9,2)>>, e: map<string,decimal(38,18)>>, f: binary>",
        "struct<a: boolean, b: tinyint, c: smallint, d: bigint, e: float, f: double, g: string, h: date, i: timestamp>",
        "struct<a: timestamp_ntz, b: array<array<timestamp>>,c: map<string,map<string,void>>, d: void, e: decimal(20)>",
        "array<struct<a: decimal(1)>>",
        "map<string,array<decimal(18,18)>>",
        "decimal(10,3)",
        "bigint",
    ]
    with java_gateway(spark_jars()) as gateway:
        jvm = gateway.jvm
        convert = getattr(getattr(jvm.org.apache.spark.sql.avro, "SchemaConverters$"), "MODULE$").toAvroType
        for ddl in types:
            parsed = jvm.org.apache.spark.sql.types.StructType.fromDDL(f"value {ddl}").apply(0).dataType()
            field = {"name": "v", "type": json.loads(parsed.json()), "nullable": True}
            kind = StructType.fromJson({"fields": [field]})["v"].dataType
            for record in ("topLevelRecord", "com.acme.Flight"):
                namespace, _, name = record.rpartition(".")
                theirs = convert(parsed, False, name, namespace).toString()
                ours = derived_avro_schema(to_arrow_type(kind, timezone="UTC"), "value", record)
                # the text of a schema names what is in the enclosing namespace without it
                assert str(jvm.org.apache.avro.Schema.Parser().parse(ours)) == theirs
