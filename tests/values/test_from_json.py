"""JSON values equal those of from_json, but for documented differences."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from support.from_json import from_json, from_json_as_it_is, unexplained
from support.json_differences import DIFFERENCES, Compared, Difference, explained
from support.json_grid import CONTEXTS, RECORD_KIND, RECORD_SCHEMA, RECORDS, SCALARS, VALUES
from support.json_paths import one_block

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.python_values import python_values

_PAGE = Path(__file__).parents[2] / "docs" / "typed-values.md"


def test_the_list_of_differences_is_that_of_the_documentation() -> None:
    rows = _PAGE.read_text().split("| case | `from_json` |")[1].split("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [each.case for each in DIFFERENCES]


@pytest.mark.parametrize("context", CONTEXTS)
def test_values_are_those_of_from_json(spark, context: str) -> None:
    assert unexplained(spark, context, SCALARS, VALUES) == []


def test_records_are_those_of_from_json(spark) -> None:
    (theirs,) = from_json(spark, RECORDS, [RECORD_SCHEMA])
    compared = [
        Compared(
            record, "string" if record.startswith(b'{"s":') else None, record[5:-1].decode("utf-8", "replace"), *both
        )
        for record, *both in zip(RECORDS, theirs, one_block(RECORD_KIND, RECORDS))
    ]
    assert [each for each in compared if each.theirs != each.ours and not explained(each)] == []


@pytest.mark.parametrize("ddl", ["array<int>", "array<string>", "map<string,int>", "map<string,struct<v:int>>"])
def test_arrays_and_maps_are_those_of_from_json(spark, ddl: str) -> None:
    from pyspark.sql.types import _parse_datatype_string

    kind = arrow_type(_parse_datatype_string(ddl), "value")
    texts = (
        "",
        "null",
        "[]",
        "{}",
        "[1, null]",
        "[null]",
        '{"a":1,"a":2}',
        '{"a":null}',
        '{"a":{"v":1}}',
        "1",
        '"x"',
        "[[1, 2]]",
    )
    records = [text.encode() for text in (*texts, '{"\\ud800":1}', '{"\\u0061":{"v":1,"v":2}}')]
    found = JsonDecoder(kind).decode(pa.array(records, pa.binary()))
    assert python_values(found.values) == [from_json_as_it_is(spark, record, ddl) for record in records]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.case)
def test_a_difference_exists(spark, difference: Difference) -> None:
    from pyspark.sql.types import _parse_datatype_string

    record = difference.record if isinstance(difference.record, bytes) else difference.record.encode()
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        theirs = from_json_as_it_is(spark, record, difference.ddl)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        kind = arrow_type(_parse_datatype_string(difference.ddl), "value")
    except ConfigurationError as error:
        assert "is not decoded" in str(error)
        return
    (ours,) = python_values(JsonDecoder(kind).decode(pa.array([record], pa.binary())).values)
    # a time is another one if it is another moment, and -0.0 another number than 0.0
    assert json.dumps(theirs, default=lambda time: time.timestamp()) != json.dumps(
        ours, default=lambda time: time.timestamp()
    )
