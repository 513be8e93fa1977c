"""Texts of columns equal those of Spark's to_json and cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_groupsource.values.column_writers import column_writer
from spark_groupsource.values.format_options import ColumnFormat

ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "+05:30", "Australia/Lord_Howe", "GMT-03:00")
TIMES = [
    "1970-01-01 00:00:00Z",
    "1969-12-31 23:59:59.999999Z",
    "1883-11-18 12:00:00.1Z",
    "0001-01-01 00:00:00Z",
    "2024-03-31 01:00:00Z",
    "2024-10-27 00:59:59.12Z",
    "2036-12-31 23:59:59Z",
    "2037-07-01 00:00:00.123456Z",
    "2050-07-01 00:00:00.000001Z",
    "2052-02-29 12:00:00.1Z",
    "2100-07-01 00:00:00Z",
    "9999-12-31 23:59:59.999999Z",
    "+10000-01-01 00:00:00Z",
    "-0044-03-15 00:00:00Z",
    "+294247-01-10 04:00:54.775807Z",
]
STRINGS = [
    "",
    "a",
    '"',
    "\\",
    "\b\t\n\f\r",
    "".join(map(chr, range(32))),
    "\x7f\x80\u2028\u20ac\U0001f600",
    "</a>",
    "\ufeff",
]
# Java 17 writes some numbers with more digits than needed: those here are not among them
DOUBLES = [
    "0.0", "-0.0", "1.0", "-1.5", "0.001", "9.999999E-4", "1.0E-5", "123456.789", "9999999.0", "1.0E7", "12345678.9",
    "1.0E10", "1.0E15", "1.2345E16", "1.0E21", "1.7976931348623157E308", "2.2250738585072014E-308", "4.9E-324",
    "0.1", "0.30000000000000004", "1.0E-300", "-1.0E-10", "9007199254740993", "100.0", "1230.0",
]  # fmt: skip
SPECIAL = [f"double('{each}')" for each in ("NaN", "Infinity", "-Infinity")]
FLOATS = ["0.0", "-0.0", "1.0", "0.1", "1.0E-4", "1.0E7", "1.6777216E7", "3.4028235E38", "1.4E-45"]
GRID = {
    "boolean": ["true", "false"],
    "tinyint": ["-128", "127", "0"],
    "smallint": ["-32768", "32767"],
    "int": ["-2147483648", "2147483647", "0"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "double": [*(f"double('{each}')" for each in DOUBLES), *SPECIAL],
    "float": [*(f"float('{each}')" for each in FLOATS), *(f"float({each})" for each in SPECIAL)],
    "decimal(10,0)": ["0", "-1", "9999999999"],
    "decimal(10,2)": ["0", "-0.01", "99999999.99", "1.50"],
    "decimal(38,18)": ["0", "1", "-0.000000000000000001", "0.000001", "0.0000001", "12345678901234567890.5"],
    "decimal(38,38)": ["0", "0.1", "-0.00000000000000000000000000000000000001"],
    "date": [f"date'{each}'" for each in ("1970-01-01", "0001-01-01", "9999-12-31", "+10000-01-01", "-0044-03-15")],
    "timestamp": [f"timestamp'{each}'" for each in TIMES],
    "timestamp_ntz": [f"timestamp_ntz'{each[:-1]}'" for each in TIMES],
    "binary": ["x''", "x'00'", "x'0001'", "x'616263'", "x'fffefdfc'"],
}


ROWS = 1 + max(map(len, GRID.values()))
NESTED = (
    """struct<a: struct<b: struct<c: int>, d: array<array<struct<e: int>>>>, f: map<string,map<string,int>>, v: void>"""
)
NESTED_ROWS = [
    None,
    {"a": None, "f": None, "v": None},
    {"a": {"b": None, "d": []}, "f": {}, "v": None},
    {"a": {"b": {"c": None}, "d": [None, [], [None, {"e": None}, {"e": 1}]]}, "f": {"x": None, "y": {"z": None}}},
]


def element(kind: str) -> str:
    """Returns an expression for a value of the grid, given the number i of a row."""
    listed = [*(f"cast({each} as {kind})" for each in GRID[kind]), f"cast(null as {kind})"]
    return f"element_at(array({', '.join(listed)}), cast(i % {len(listed)} + 1 as int))"


def check(frame: Any, formats: tuple[str, ...] = ("json", "string")) -> None:
    """Compares the texts of all columns with those of Spark."""
    functions = {"json": "to_json({})", "string": "cast({} as string)"}
    names = [f"`{name}`" for name in frame.columns]
    expected = [functions[each].format(name) for each in formats for name in names]
    # toArrow fails for a null struct with a field that is declared as never null
    table = pa.Table.from_batches(frame.coalesce(1).selectExpr(*names, *expected)._collect_as_arrow())
    for column, texts in enumerate(table.columns[len(names) :]):
        values = table.column(column % len(names)).combine_chunks()
        shown = texts.cast(pa.binary()).to_pylist()
        assert len(shown) > 1
        write = column_writer(ColumnFormat("value", formats[column // len(names)]), values.type)
        differing = [pair for pair in zip(write(values).to_pylist(), shown) if pair[0] != pair[1]]
        assert differing == []
        # a part of an array has the buffers of the array
        assert write(values[1:-1]).to_pylist() == shown[1:-1]
        assert write(values[:0]).to_pylist() == []


@pytest.fixture
def zones(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", before)


def test_scalars_within_structs_lists_and_maps(spark) -> None:
    rows = spark.range(2 * ROWS).selectExpr("id as i", *(f"{element(kind)} as `{kind}`" for kind in GRID))
    nested = "struct({0}, {0} as `b\"\\n`, array({0}, {0}) as a, map('k\"', {0}) as m, struct({0}) as s)"
    nested = f"if(i % 7 = 6, null, {nested})"
    check(rows.selectExpr(*(f"{nested.format(f'`{kind}`')} as `{kind}`" for kind in GRID)))


def test_scalars_as_text(spark) -> None:
    check(
        spark.range(ROWS).selectExpr("id as i").selectExpr(*(f"{element(kind)} as `{kind}`" for kind in GRID)),
        ("string",),
    )


@pytest.mark.parametrize("zone", ZONES)
def test_times_in_the_time_zone_of_the_session(spark, zones, zone: str) -> None:
    zones(zone)
    hours = spark.range(0, 24 * 366 * 90, 997)
    listed = ", ".join(f"timestamp'{each}'" for each in TIMES)
    times = f"if(id < 15 * 997, array({listed})[id div 997], timestamp_micros(id * 3600000000L - 1000000000000000))"
    check(hours.selectExpr(f"struct({times} as t) as value"))


def test_strings_and_their_escapes(spark) -> None:
    rows = [({"s": each, "m": {each: each}, "a": [each, None]},) for each in STRINGS]
    check(spark.createDataFrame(rows, "value struct<s: string, m: map<string,string>, a: array<string>>"))


def test_bytes_that_are_no_text(spark) -> None:
    texts = "if(id = 1, cast(x'61ff62c3' as string), 'a') as s"
    check(spark.range(3).selectExpr(f"struct({texts}, 'b' as t) as value"), ("json",))


def test_keys_of_maps(spark) -> None:
    kinds = ["int", "bigint", "boolean", "double", "date", "timestamp", "decimal(38,18)"]
    rows = spark.range(ROWS).selectExpr("id as i", *(f"{element(kind)} as `{kind}`" for kind in kinds))
    check(rows.selectExpr(*(f"if(`{kind}` is null, null, map(`{kind}`, i)) as `{kind}`" for kind in kinds)), ("json",))


def test_nested_nulls_and_empty_ones(spark) -> None:
    check(spark.createDataFrame([(each,) for each in NESTED_ROWS], f"value {NESTED}"))
    lists = "if(id = 1, null, array(struct(id as a), null)) as l"
    check(spark.range(3).selectExpr(lists, "if(id = 1, null, named_struct('e', named_struct(), 'f', id)) as s"))


def test_avro_is_that_of_to_avro(spark) -> None:
    rows = spark.range(ROWS).selectExpr("id as i", *(f"{element(kind)} as `{kind}`" for kind in GRID))
    nested = "struct({0} as v, array({0}, {0}) as a, map('k', {0}) as m, struct({0} as w) as s)"
    frame = rows.selectExpr(*(f"{nested.format(f'`{kind}`')} as `{kind}`" for kind in GRID)).coalesce(1)
    table = pa.Table.from_batches(frame._collect_as_arrow())
    theirs = frame._jdf.queryExecution().executedPlan().executeCollect()
    for at in range(len(GRID)):
        values = table.column(at).combine_chunks()
        write = column_writer(ColumnFormat("value", "avro"), values.type)
        encode = to_avro(spark._jvm, frame._jdf.schema().apply(at).dataType())
        assert write(values).to_pylist() == [encode(row.getStruct(at, 4)) for row in theirs]


def to_avro(jvm: Any, kind: Any) -> Callable[[Any], bytes]:
    """Returns the function of Spark's to_avro, whose SQL function is in another archive."""
    schema = getattr(getattr(jvm.org.apache.spark.sql.avro, "SchemaConverters$"), "MODULE$").toAvroType(
        kind, False, "topLevelRecord", ""
    )
    serializer = jvm.org.apache.spark.sql.avro.AvroSerializer(kind, schema, False)

    def encode(row: Any) -> bytes:
        stream = jvm.java.io.ByteArrayOutputStream()
        encoder = jvm.org.apache.avro.io.EncoderFactory.get().binaryEncoder(stream, None)
        jvm.org.apache.avro.generic.GenericDatumWriter(schema).write(serializer.serialize(row), encoder)
        encoder.flush()
        return bytes(stream.toByteArray())

    return encode
