"""Values of one Avro schema read as another equal those of fastavro."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from support.avro_resolved import check_resolved
from support.avro_strategies import avro_cases
from support.decoded_values import decode_avro, encode_avro
from support.examples import scaled

from spark_groupsource.values.avro.avro_resolution import UnresolvedError


@settings(max_examples=scaled(600, 30))
@given(avro_cases())
def test_random_schemas_and_values(case: tuple[Any, Any, list[Any]]) -> None:
    check_resolved(*case)


def rec(name: str, *fields: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **extra}


def field(name: str, kind: Any, **extra: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **extra}


MILLIS, MICROS, NANOS = (
    {"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros", "nanos")
)  # fmt: skip


def cents(precision: int, scale: int = 2) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


INNER = rec("S", field("t", MILLIS), field("d", cents(4), default="\u00ff"))


@pytest.mark.parametrize(
    "writer, reader, value, row",
    [
        # the name of a record is compared without its namespace
        (rec("a.R", field("x", "int")), rec("b.R", field("x", "long")), {"x": 1}, {"x": 1}),
        (rec("a.R", field("x", "int")), rec("b.S", field("x", "long"), aliases=["a.R"]), {"x": 1}, {"x": 1}),
        # a field with the name comes before one with the alias
        (
            rec("R", field("x", "int"), field("y", "int")),
            rec("R", field("y", "int", aliases=["x"])),
            {"x": 1, "y": 2},
            {"y": 2},
        ),
        # the default of a union is that of the branch it fits
        (rec("R"), rec("R", field("x", ["null", "int"], default=None)), {}, {"x": None}),
        (rec("R"), rec("R", field("x", ["int", "null"], default=3)), {}, {"x": 3}),
        (
            rec("R"), rec("R", field("x", ["string", "int"], default=3)), {},
            {"x": {"member0": None, "member1": 3}},
        ),
        (
            rec("R"),
            rec("R", field("r", INNER, default={"t": 5})),
            {},
            {"r": {"t": 5000, "d": -1}},
        ),
        (rec("R"), rec("R", field("x", "double", default="NaN")), {}, {"x": "nan"}),
        # the exact type of a union comes before a wider one
        ("int", ["double", "int"], 1, {"member0": None, "member1": 1}),
        ("long", ["string", "double"], 2, {"member0": None, "member1": 2.0}),
        (["int", "string"], "double", 3, 3.0),
        # of several records the one with the full name, then the one with the name, then the one that fits
        (
            rec("b.R", field("x", "int")), [rec("a.R", field("x", "int")), rec("b.R", field("x", "int"))], {"x": 1},
            {"member0": None, "member1": {"x": 1}},
        ),
        (
            rec("R", field("x", "int")),
            [rec("a.R", field("y", "int")), rec("b.R", field("x", "int"))],
            {"x": 1},
            {"member0": None, "member1": {"x": 1}},
        ),
        # a time keeps its unit; a number without one has that of the reader
        (MILLIS, MICROS, 5, 5000),
        (MICROS, MILLIS, 5000, 5000),
        ("long", MILLIS, 5, 5000),
        ("int", MICROS, 5, 5),
        (NANOS, MICROS, -1, -1),
        (NANOS, MILLIS, 5_999, 5),
        (MILLIS, NANOS, 5, 5_000_000),
        (MICROS, NANOS, 5, 5_000),
        (NANOS, NANOS, 5, 5),
        ("long", NANOS, 5, 5),
        (NANOS, "long", 5, 5),
        # two numbers become the wider one, without logical types
        ([{"type": "int", "logicalType": "date"}, MILLIS], [{"type": "int", "logicalType": "date"}, MILLIS], 5, 5),
        (MILLIS, "long", 5, 5),
        (cents(4), cents(6), b"\xff", -1),
        (cents(4), "bytes", b"\xff", b"\xff"),
        ("bytes", cents(4), b"\xff", -1),
    ],
)
def test_rules(writer: Any, reader: Any, value: Any, row: Any) -> None:
    def plain(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: plain(each) for name, each in found.items()}
        return "nan" if found != found else found

    source = json.loads(json.dumps(writer).replace('"logicalType"', '"ignored"'))
    found = decode_avro(writer, reader, [encode_avro(source, value)])
    assert not found.malformed
    assert plain(unscaled(found.values)[0]) == row


def unscaled(column: pa.Array) -> list[Any]:
    """Returns times as microseconds, and decimals without their scale."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_decimal(kind):
        return [int(each.scaleb(kind.scale)) for each in column.to_pylist()]
    if pa.types.is_struct(kind):
        columns = [unscaled(child) for child in column.flatten()]
        rows = [dict(zip(kind.names, each)) for each in zip(*columns)]
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist())]
    return column.to_pylist()


@pytest.mark.parametrize(
    "writer, reader, reason",
    [
        (rec("R"), rec("S"), "field value was written as record R, the schema of the query has record S"),
        (
            rec("R", field("s", rec("S", field("x", "string")))),
            rec("R", field("s", rec("S", field("x", "int")))),
            "field s.x was written as string, the schema of the query has int",
        ),
        (
            rec("R"),
            rec("R", field("x", "int")),
            "field x was not written, and the schema of the query has no default for it",
        ),
        (rec("R"), rec("R", field("x", "int", default="1")), "the default of field x is invalid: 1 is not of its type"),
        ("long", "int", "field value was written as long, the schema of the query has int"),
        ({"type": "int", "logicalType": "date"}, MICROS, "value was written as int date, .* long timestamp-micros"),
        (cents(4), cents(4, 1), r"value was written as decimal\(4,2\), .* decimal\(4,1\)"),
        (cents(6), cents(4), r"value was written as decimal\(6,2\), .* decimal\(4,2\)"),
        (
            {"type": "fixed", "name": "f", "size": 2},
            {"type": "fixed", "name": "f", "size": 3},
            "value was written as fixed f of 2 bytes, .* fixed f of 3 bytes",
        ),
        ("string", ["int", "null"], "value was written as string, the schema of the query has union"),
        (["string", "bytes"], "int", "value was written as string, the schema of the query has int"),
    ],
)
def test_a_schema_that_cannot_be_read_is_named(writer: Any, reader: Any, reason: str) -> None:
    with pytest.raises(UnresolvedError, match=reason):
        decode_avro(writer, reader, [])


def test_only_values_of_a_branch_or_symbol_that_is_missing_are_malformed() -> None:
    found = decode_avro(["string", "int"], ["int", "null"], [b"\x00\x02a", b"\x02\x04"])
    assert found.values.to_pylist() == [None, 2]
    assert found.malformed == {0: "the branch that the writer chose of a union does not fit the schema of the query"}
    enums = [{"type": "enum", "name": "e", "symbols": list(symbols)} for symbols in ("AB", "BC")]
    found = decode_avro(*enums, [b"\x00", b"\x02"])
    assert found.values.to_pylist() == [None, "B"]
    assert found.malformed == {0: "the symbol of an enum is not in the schema of the query"}
    enums[1]["default"] = "C"
    assert decode_avro(*enums, [b"\x00", b"\x02"]).values.to_pylist() == ["C", "B"]


def test_a_field_that_is_not_selected_needs_no_default() -> None:
    reader = rec("R", field("x", "int"), field("y", "int"))
    assert decode_avro(rec("R", field("x", "int")), reader, [b"\x02"], "x").values.to_pylist() == [{"x": 1}]
