"""Avro decoded by column equals fastavro."""

from __future__ import annotations

import io
import json
import random
import time
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Callable

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.decoded_values import parsed_avro, spark_column
from support.examples import scaled

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.avro import avro_nested
from spark_groupsource.values.avro.avro_blocks import AvroDecoder
from spark_groupsource.values.avro.avro_schema import parse_avro_schema

UTC = timezone.utc
# a datum, and what it is in Arrow
Make = Callable[[], "tuple[Any, Any]"]


def same(value: Any) -> tuple[Any, Any]:
    return value, value


def number(rng: random.Random, bits: int) -> int:
    return rng.choice([rng.randrange(-64, 64), rng.randrange(-(1 << rng.randrange(1, bits)), 1 << (bits - 1))])


def scalar(rng: random.Random) -> tuple[Any, Make]:
    text = lambda: same("".join(rng.choice("ab\u00e9\U0001d11e") for _ in range(rng.randrange(5))))  # noqa: E731
    data = lambda: same(rng.randbytes(rng.randrange(20)))  # noqa: E731
    moment = lambda: same(datetime(2024, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number(rng, 40)))  # noqa: E731
    cents = lambda: same(Decimal(rng.randrange(-(10**6) + 1, 10**6)).scaleb(-2))  # noqa: E731
    kinds: list[tuple[Any, Make]] = [
        ("boolean", lambda: same(rng.random() < 0.5)),
        ("int", lambda: same(number(rng, 32))),
        ("long", lambda: same(number(rng, 64))),
        ("float", lambda: same(float(np.float32(rng.random())))),
        ("double", lambda: same(rng.random())),
        ("string", text),
        ("bytes", data),
        ({"type": "int", "logicalType": "date"}, lambda: same(date(2024, 1, 1) + timedelta(days=number(rng, 16)))),
        ({"type": "long", "logicalType": "timestamp-millis"}, moment),
        ({"type": "long", "logicalType": "timestamp-micros"}, moment),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, cents),
        ({"type": "string", "logicalType": "unknown"}, text),
    ]
    return rng.choice(kinds)


class Schemas:
    """Random schemas, with distinct names of types."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def any(self, depth: int) -> tuple[Any, Make]:
        makers = [self.enum, self.fixed, self.optional, self.record, self.array, self.map, self.union]
        return scalar(self.rng) if depth <= 0 or self.rng.random() < 0.4 else self.rng.choice(makers)(depth - 1)

    def enum(self, depth: int) -> tuple[Any, Make]:
        symbols = ["RED", "GREEN", "BLUE"]
        return {"type": "enum", "name": self.name(), "symbols": symbols}, lambda: same(self.rng.choice(symbols))

    def fixed(self, depth: int) -> tuple[Any, Make]:
        size = self.rng.randrange(1, 12)
        return {"type": "fixed", "name": self.name(), "size": size}, lambda: same(self.rng.randbytes(size))

    def optional(self, depth: int) -> tuple[Any, Make]:
        schema, make = self.any(depth)
        if isinstance(schema, list):
            return schema, make
        branches = ["null", schema] if self.rng.random() < 0.5 else [schema, "null"]
        return branches, lambda: same(None) if self.rng.random() < 0.3 else make()

    def record(self, depth: int) -> tuple[Any, Make]:
        fields = [(f"f{n}", *self.any(depth)) for n in range(self.rng.randrange(1, 5))]

        def make() -> tuple[Any, Any]:
            found = {name: each() for name, _, each in fields}
            datum = {name: each for name, (each, _) in found.items()}
            return datum, {name: each for name, (_, each) in found.items()}

        schema = [{"name": name, "type": kind} for name, kind, _ in fields]
        return {"type": "record", "name": self.name(), "fields": schema}, make

    def array(self, depth: int) -> tuple[Any, Make]:
        items, make = self.any(depth)

        def array() -> tuple[Any, Any]:
            found = [make() for _ in range(self.rng.choice([0, 0, 1, 3]))]
            return [datum for datum, _ in found], [arrow for _, arrow in found]

        return {"type": "array", "items": items}, array

    def map(self, depth: int) -> tuple[Any, Make]:
        values, make = self.any(depth)

        def entries() -> tuple[Any, Any]:
            found = {f"k{n}": make() for n in range(self.rng.choice([0, 1, 2]))}
            return {key: datum for key, (datum, _) in found.items()}, [(key, each) for key, (_, each) in found.items()]

        return {"type": "map", "values": values}, entries

    def union(self, depth: int) -> tuple[Any, Make]:
        members = [scalar(self.rng) for _ in range(1)] + [self.array(depth)]
        if isinstance(members[0][0], dict):
            members[0] = "string", lambda: same("s")

        def make() -> tuple[Any, Any]:
            at = self.rng.randrange(3)
            if at == 2:
                return None, None
            datum, arrow = members[at][1]()
            return datum, {"member0": arrow if at == 0 else None, "member1": arrow if at == 1 else None}

        return [members[0][0], "null", members[1][0]], make


def encoded(schema: Any, values: list[Any]) -> list[bytes]:
    parsed, found = fastavro.parse_schema(schema), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


def decoder(schema: Any, *fields: str) -> AvroDecoder:
    avro = parsed_avro(schema)
    kind = arrow_type(spark_column(schema), "value")
    return AvroDecoder(avro, avro, pa.struct([kind.field(name) for name in fields]) if fields else kind)


def decode(schema: Any, data: list[bytes | None], *fields: str):
    found = decoder(schema, *fields).decode(pa.array(data, pa.binary()))
    found.values.validate(full=True)
    return found


@pytest.fixture(params=[0, 1000], ids=["item by item", "array by array"])
def arrays(request, monkeypatch):
    """Both ways to read arrays."""
    monkeypatch.setattr(avro_nested, "_FEW_LANES", request.param)
    monkeypatch.setattr(avro_nested, "_PIECE", 3)


@pytest.mark.parametrize("seed", range(scaled(40, 6)))
def test_random_values_of_random_schemas(arrays, seed: int) -> None:
    schema, make = Schemas(seed).record(3)
    pairs = [make() for _ in range(30)]
    data = encoded(schema, [datum for datum, _ in pairs])
    found = decode(schema, [None, *data])
    assert found.malformed == {}
    assert found.values.to_pylist() == [None, *(arrow for _, arrow in pairs)]
    name = schema["fields"][-1]["name"]
    assert decode(schema, data, name).values.to_pylist() == [{name: arrow[name]} for _, arrow in pairs]


@pytest.mark.parametrize("seed", range(60, 60 + scaled(25, 5)))
def test_damaged_values_affect_no_other(arrays, seed: int) -> None:
    schemas = Schemas(seed)
    schema, make = schemas.record(3)
    pairs = [make() for _ in range(20)]
    data = encoded(schema, [datum for datum, _ in pairs])
    damaged = set()
    for row in range(0, 20, 3):
        value, noise = data[row], schemas.rng.randbytes(12)
        data[row] = schemas.rng.choice([value[:-1], value + b"\0", noise, b"\xff" * 20, b""])
        damaged.add(row)
    found = decode(schema, data)
    assert set(found.malformed) <= damaged
    for row, (_, arrow) in enumerate(pairs):
        if row not in damaged:
            assert found.values[row].as_py() == arrow
        elif row in found.malformed:
            assert found.values[row].as_py() is None
        else:
            # other bytes may be another value
            parsed = fastavro.parse_schema(schema)
            assert fastavro.schemaless_reader(io.BytesIO(data[row]), parsed, None) is not None


RECORD = {
    "type": "record", "name": "r",
    "fields": [{"name": "s", "type": "string"}, {"name": "a", "type": {"type": "array", "items": "int"}}],
}  # fmt: skip
INT_FIELD = '{"name":"x","type":"int"}'
LONG = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, {"name": "m", "type": "int"}]}


@pytest.mark.parametrize(
    "schema, value, reason",
    [
        (RECORD, b"", "it ends before its last field"),
        (RECORD, b"\x02", "a length is negative, or exceeds the value"),
        (RECORD, b"\x01", "a length is negative, or exceeds the value"),
        (RECORD, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01x", "a length is negative, or exceeds the value"),
        (RECORD, b"\x02\xff\x00", "a string is not UTF-8"),
        (RECORD, b"\x00\x00\x00", "bytes follow its last field"),
        (RECORD, b"\x00\x80\x80\x80\x80\x80\x80\x80\x80\x40\x02", "the count of a block exceeds the value"),
        (RECORD, b"\x00\x02", "the count of a block exceeds the value"),
        (LONG, b"\x80" * 11, "an integer has more than 64 bits, or exceeds its type"),
        (LONG, b"\x00\x80\x80\x80\x80\x80\x01", "an integer has more than 64 bits, or exceeds its type"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe" + b"\xff" * 8 + b"\x01",
            "an integer has more than 64 bits, or exceeds its type",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xff" + b"\xff" * 8 + b"\x01",
            "an integer has more than 64 bits, or exceeds its type",
        ),
        ("boolean", b"\x02", "a boolean is neither 0 nor 1"),
        (["null", "int"], b"\x04", "the branch of a union does not exist"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02", "the symbol of an enum does not exist"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x02\x64",
            "a decimal exceeds its precision",
        ),
    ],
)
def test_reasons(arrays, schema: Any, value: bytes, reason: str) -> None:
    assert decode(schema, [value, value]).malformed == {0: reason, 1: reason}


EMPTY = {"type": "record", "name": "e", "fields": []}


def array_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def nested(depth: int) -> Any:
    return "int" if not depth else array_of(nested(depth - 1))


@pytest.mark.parametrize(
    "schema, value, reason",
    [
        (RECORD, b"\x00" + b"\xff" * 9 + b"\x01" + b"\x02\x02\x00", "the count of a block exceeds the value"),
        (RECORD, b"\x00\x02" + b"\x80" * 10 + b"\x01\x00", "an integer has more than 64 bits, or exceeds its type"),
        (RECORD, b"\x00" + b"\x80" * 11, "an integer has more than 64 bits, or exceeds its type"),
        (array_of("string"), b"\x04\x02a\x02\xff\x00", "a string is not UTF-8"),
        (array_of("string"), b"\x04\x02a\x40\x00", "a length is negative, or exceeds the value"),
        (array_of(["null", "int"]), b"\x02\x04\x00", "the branch of a union does not exist"),
        (array_of({"type": "fixed", "name": "f", "size": 10**6}), b"\x04\0\0\0\0", "it ends before its last field"),
        (array_of(EMPTY), b"\xd2\x0f\0", "the count of a block exceeds the value"),
        (nested(99), b"\x02" * 98, "the count of a block exceeds the value"),
        (nested(99), b"\x02" * 98 + b"\x80\x80\x40", "the count of a block exceeds the value"),
    ],
)
def test_reasons_in_arrays(arrays, schema: Any, value: bytes, reason: str) -> None:
    assert decode(schema, [value, value]).malformed == {0: reason, 1: reason}


def test_deep_arrays_and_items_without_bytes(arrays) -> None:
    found = decode(nested(99), [b"\x02" * 100 + b"\x00" * 99]).values.to_pylist()
    assert json.dumps(found).count("[") == 100
    assert decode(array_of(EMPTY), [b"\xd0\x0f\0"]).values.to_pylist() == [[{}] * 1000]


def test_a_long_array_costs_no_more_for_each_item() -> None:
    item = {"type": "record", "name": "i", "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "int"}]}
    block = b"\x02" + b"\x02a\x04"
    for long in (block * 20_000 + b"\0", b"\xc0\xb8\x02" + b"\x02a\x04" * 20_000 + b"\0"):
        begin = time.process_time()
        found = decode(array_of(item), [block + b"\0"] * 1000 + [long])
        # a step for each item takes 3 seconds
        assert time.process_time() - begin < 1
        assert pc.list_value_length(found.values).to_pylist() == [1] * 1000 + [20_000]
        assert found.values[1000][-1].as_py() == {"s": "a", "n": 2}


def test_of_a_repeated_key_a_map_has_the_last_value(arrays) -> None:
    def entry(key: bytes, value: int) -> bytes:
        return b"\2" + key + bytes([2 * value])

    blocks = [
        b"\6" + entry(b"a", 1) + entry(b"b", 2) + entry(b"a", 3) + b"\2" + entry(b"b", 4),
        b"\2" + entry(b"a", 5),
        b"",
        b"\4" + entry(b"b", 6) + entry(b"b", 7),
    ]
    schema = {"type": "map", "values": "int"}
    data = [each + b"\0" for each in blocks]
    expected = [fastavro.schemaless_reader(io.BytesIO(each), schema, None) for each in data]
    assert decode(schema, data).values.to_pylist() == [list(each.items()) for each in expected]
    assert decode(array_of(schema), [b"\2" + each + b"\0" for each in data]).values.to_pylist() == [
        [list(each.items())] for each in expected
    ]


def test_blocks_with_sizes_and_extreme_numbers(arrays) -> None:
    # two blocks: -2 items in 2 bytes, then one item
    assert decode(RECORD, [b"\x00\x03\x04\x02\x04\x02\x06\x00"]).values.to_pylist() == [{"s": "", "a": [1, 2, 3]}]
    numbers = ((2**63 - 1, 2**31 - 1), (-(2**63), -(2**31)), (2**56, 0), (-(2**55) - 1, 1))
    values = [{"n": n, "m": m} for n, m in numbers]
    assert decode(LONG, encoded(LONG, values)).values.to_pylist() == values
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    unscaled = [10**38 - 1, 1 - 10**38, 0]
    data = [bytes([2 * 16]) + each.to_bytes(16, "big", signed=True) for each in unscaled]
    found = decode(wide, data).values.to_pylist()
    assert [each.as_tuple() for each in found] == [Decimal(f"{each}e-10").as_tuple() for each in unscaled]
    assert decode(["int", "long", "null"], [b"\x00\x02", b"\x02\x04", b"\x04"]).values.to_pylist() == [1, 2, None]


@pytest.mark.parametrize("precision, logical", [(4, "decimal"), (5, ""), (39, ""), (0, ""), (None, "")])
def test_a_decimal_whose_precision_is_invalid_is_ignored(precision: int | None, logical: str) -> None:
    schema = {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": precision}
    assert parse_avro_schema("Option value.schema", json.dumps(schema)).logical == logical


def doubled(levels: int) -> str:
    """Returns a schema of `levels` records, each of which has the previous one twice."""
    kind: Any = "int"
    for level in range(levels):
        inner = kind if isinstance(kind, str) else kind["name"]
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": inner}]
        kind = {"type": "record", "name": f"r{level}", "fields": fields}
    return json.dumps(kind)


def test_a_type_that_is_used_repeatedly() -> None:
    assert spark_column(json.loads(doubled(3))).simpleString().count(":int") == 8


def test_a_precision_costs_no_time() -> None:
    schema = {"type": "fixed", "name": "f", "size": 2**31 - 1, "logicalType": "decimal", "precision": 10**12}
    assert parse_avro_schema("Option value.schema", json.dumps(schema)).logical == ""


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is no Avro schema"),
        ('{"type":"array","items":"Other"}', "type Other is not defined"),
        ('{"type":"record","name":"r","fields":[' + ",".join([INT_FIELD] * 2) + "]}", "a field twice"),
        ('["null",["int"]]', "a union has a union as branch"),
        ('{"type":"record","name":"r","fields":[{"name":"\\ud800","type":"int"}]}', "record r has a field without a"),
        ('{"type":"enum","name":"\\ud800","symbols":[]}', "a enum has no name"),
        ('{"type":"fixed","name":"f"}', "fixed f has no size"),
        ('{"type":"array","items":' * 101 + '"int"' + "}" * 101, "nested deeper than 100 types"),
        ('{"type":"record","name":"r","fields":[{"name":1,"type":"int"}]}', "record r has a field without a name"),
        ('{"type":"record","name":"r","fields":[{"type":"int"}]}', "record r has a field without a name"),
        ('{"type":"fixed","name":"f","size":9223372036854775808}', "fixed f has no size from 0 to 2147483647"),
    ],
)
def test_invalid_schemas_are_rejected_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Option value.schema .*{message}"):
        parse_avro_schema("Option value.schema", text)
