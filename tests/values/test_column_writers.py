"""Columns encoded as values of records, beside Python's json and other serializers."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.serialization import DoubleDeserializer, IntegerDeserializer, StringDeserializer
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.column_writers import ColumnWriters, column_writer
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.serdes import NUMBERS, NumberDecoder

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
FIELDS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | TEXTS,
        "d": st.none() | st.floats(),
        "b": st.none() | st.booleans(),
        "x": st.none() | st.binary(max_size=7),
        "l": st.none() | st.lists(st.none() | TEXTS, max_size=3),
        "m": st.none() | st.dictionaries(TEXTS, st.none() | st.integers(0, 9), max_size=3),
        "r": st.none() | st.fixed_dictionaries({"n": st.none() | st.integers(0, 9)}),
    }
)
KIND = pa.struct(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("x", pa.binary()),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("r", pa.struct([("n", pa.int64())])),
    ]
)


def written(name: str, values: pa.Array) -> list[Any]:
    found: list[Any] = column_writer(ColumnFormat("value", name), values.type)(values).to_pylist()
    return found


def arrow(rows: list[Any]) -> pa.Array:
    return pa.array([row and {**row, "m": row["m"] and list(row["m"].items())} for row in rows], KIND)


@given(st.lists(st.none() | FIELDS, max_size=5), st.integers(0, 2))
def test_json_is_read_back_by_the_source_and_by_python(rows: list[Any], first: int) -> None:
    column = arrow(rows)[first:]
    data = column_writer(ColumnFormat("value", "json"), KIND)(column)
    decoded = JsonDecoder(KIND).decode(data)
    assert not decoded.malformed
    assert repr(decoded.values.to_pylist()) == repr(column.to_pylist())
    for text, row in zip(data.to_pylist(), column.to_pylist()):
        if row is None:
            assert text is None
            continue
        found = json.loads(text)
        assert list(found) == [name for name, value in row.items() if value is not None]
        for name in ("i", "s", "b", "l", "r"):
            expected = row[name] if name != "r" else row["r"] and {k: v for k, v in row["r"].items() if v is not None}
            assert found.get(name) == expected
        if row["d"] is not None and math.isfinite(row["d"]):
            assert repr(found["d"]) == repr(row["d"])


@given(st.lists(st.none() | st.floats(), max_size=5), st.lists(st.none() | st.floats(width=32), max_size=5))
def test_text_of_a_number_identifies_it(doubles: list[float | None], floats: list[float | None]) -> None:
    for values, kind in ((doubles, pa.float64()), (floats, pa.float32())):
        texts = written("string", pa.array(values, kind))
        assert [text is None for text in texts] == [value is None for value in values]
        found = [None if text is None else float(text) for text in texts]
        assert repr(pa.array(found, kind).to_pylist()) == repr(pa.array(values, kind).to_pylist())


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_back_by_the_source(name: str) -> None:
    kind = NUMBERS[name].kind
    values = pa.array([0, None, 1, -1, 127], kind)
    data = column_writer(ColumnFormat("value", name), kind)(values)
    assert NumberDecoder(name).decode(data).values.equals(values)
    assert column_writer(ColumnFormat("value", name), kind)(values[1:3]).to_pylist() == data.to_pylist()[1:3]


def test_values_are_read_by_foreign_deserializers() -> None:
    assert [IntegerDeserializer()(each) for each in written("int", pa.array([-5, None], pa.int32()))] == [-5, None]
    assert [DoubleDeserializer()(each) for each in written("double", pa.array([1.5, None]))] == [1.5, None]
    assert [StringDeserializer()(each) for each in written("string", pa.array(["\u00e9", None]))] == ["\u00e9", None]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("long", pa.array([7, None], pa.int8())),
        ("double", pa.array([7, None], pa.float32())),
        ("string", pa.array([7, None], pa.int16())),
        ("uuid", pa.array(["6F9619FF-8B86-D011-B42D-00C04FC964FF", None])),
        ("long", pa.nulls(2)),
        ("json", pa.nulls(2)),
    ],
)
def test_types_that_a_format_contains(name: str, values: pa.Array) -> None:
    expected = {
        ("long", "int8"): b"\0\0\0\0\0\0\0\7",
        ("double", "float"): b"\x40\x1c\0\0\0\0\0\0",
        ("string", "int16"): b"7",
        ("uuid", "string"): b"6f9619ff-8b86-d011-b42d-00c04fc964ff",
    }
    assert written(name, values) == [expected.get((name, str(values.type))), None]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("json", pa.int32(), "Column value is int32; with value.format=json it must be a struct, an array or a map."),
        ("json", pa.string(), "Use struct(...), or set value.format to string for text that is JSON already."),
        ("json", pa.struct([("a", pa.list_(pa.duration("us")))]), "Column value.a.element is duration[us], which is"),
        ("json", pa.map_(pa.binary(), pa.int32()), "Column value is a map with keys of binary, which are no names"),
        (
            "json",
            pa.struct([("t", pa.timestamp("us", "No/Zone"))]),
            "Column value.t has timestamps in the time zone No",
        ),
        ("string", pa.struct([("a", pa.time64("ns"))]), "Column value.a is time64[ns], which is not written as text."),
        ("long", pa.float64(), "Column value is double; with value.format=long it must be int8 or int16 or int32 or"),
        ("int", pa.int64(), "Column value is int64; with value.format=int it must be int8 or int16 or int32. Cast it."),
        ("float", pa.float64(), "Column value is double; with value.format=float it must be float or int8 or int16."),
        ("uuid", pa.binary(), "Column value is binary; with value.format=uuid it must be string. Cast it."),
    ],
)
def test_types_that_are_not_written(name: str, kind: pa.DataType, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        column_writer(ColumnFormat("value", name), kind)
    assert message in str(raised.value)


def test_a_text_that_is_no_uuid() -> None:
    with pytest.raises(ConfigurationError) as raised:
        written("uuid", pa.array([None, "x"]))
    assert "Writing column value failed: it has 1 bytes, which are no UUID in text form." in str(raised.value)


def test_columns_above_two_gibibytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_groupsource.values import column_writers

    def write(column: pa.Array) -> pa.Array:
        if len(column) > 2:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return column.cast(pa.binary())

    batch = pa.record_batch({"value": ["a", None, "b", "c", "d"]})
    monkeypatch.setattr(column_writers, "text_writer", lambda kind, name: write)
    monkeypatch.setattr(column_writers, "_MAX_BYTES", batch.nbytes)
    parts = list(ColumnWriters([ColumnFormat("value", "string")], "t").encoded(batch))
    assert [each for part in parts for each in part.column(0).to_pylist()] == [b"a", None, b"b", b"c", b"d"]


def test_only_columns_with_a_format_are_encoded() -> None:
    batch = pa.record_batch({"key": pa.array([1, None]), "topic": pa.array(["t", "t"]), "value": pa.array(["a", None])})
    (found,) = ColumnWriters([ColumnFormat("key", "long"), ColumnFormat("value")], None).encoded(batch)
    assert found.to_pydict() == {"key": [b"\0\0\0\0\0\0\0\1", None], "topic": ["t", "t"], "value": ["a", None]}


@pytest.mark.parametrize("name", ["json", "string", "avro"])
def test_types_with_long_offsets(name: str) -> None:
    # of spark.sql.execution.arrow.useLargeVarTypes
    rows = [{"s": "a\n", "x": b"b", "l": ["c", None], "m": [("k", "v")]}, None, {"s": "", "m": []}]
    found = []
    for text, data in ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())):
        kind = pa.struct([("s", text), ("x", data), ("l", pa.list_(text)), ("m", pa.map_(text, text))])
        found.append(written(name, pa.array(rows, kind)))
    assert found[0] == found[1]
    assert found[0][1] is None
