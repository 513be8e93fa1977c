"""An Avro value does not depend on how its block is read."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from support.avro_fuzz import check_random_schema, check_random_text
from support.avro_paths import check_paths
from support.avro_schemas import LIST, chained, doubled, listed, record
from support.decoded_values import decode_avro, parsed_avro, spark_column
from support.examples import scaled
from support.random_avro import varint

from spark_groupsource.values.arrow_types import arrow_type


@pytest.mark.parametrize("seed", range(scaled(60, 8)))
def test_random_schemas_and_damaged_values(seed: int) -> None:
    check_random_schema(random.Random(seed))


def test_a_damaged_schema_is_a_schema_or_a_clear_error() -> None:
    for seed in range(scaled(2000, 150)):
        check_random_text(random.Random(seed))


LONGS = [
    varint(7),
    varint(-(2**63)),
    b"\x80" * 9 + b"\x01",
    b"\x80" * 9 + b"\x02",
    b"\x80" * 10 + b"\x01",
    b"\xff" * 10 + b"\x00",
    b"\x80\x80",
    b"\x80" * 9,
    b"\x81\x00",
]
STRING = ["", "a", "\u00e9"]
SCALARS: dict[str, tuple[Any, list[bytes]]] = {
    "int": ("int", [*LONGS, varint(2**31), varint(-(2**31))]),
    "long": ("long", LONGS),
    "boolean": ("boolean", [b"\0", b"\1", b"\2", b""]),
    "double": ("double", [bytes(8), bytes(7)]),
    "string": ("string", [varint(1) + b"a", varint(1) + b"\xff", varint(-1), varint(9) + b"a", *LONGS]),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, [varint(1), varint(2), varint(-1), *LONGS]),
    "fixed": ({"type": "fixed", "name": "f", "size": 3}, [b"abc", b"ab"]),
    "union": (["null", "int", "string"], [b"\0", b"\2\2", b"\4\2\xff", b"\6", *LONGS]),
    "null": ("null", [b""]),
    "nothing": ({"type": "record", "name": "n", "fields": []}, [b""]),
    "no symbols": ({"type": "enum", "name": "e", "symbols": []}, [b"\0", *LONGS]),
    "no types": ([], [b"\0", *LONGS]),
}


def blocks(items: list[bytes]) -> list[bytes]:
    """Returns arrays with each item, first, last and among others, and with sizes and counts of every form."""
    found = []
    for each in items:
        found += [varint(1) + each + b"\0", varint(2) + items[0] + each + b"\0", varint(2) + each + items[0] + b"\0"]
        found += [varint(-1) + size + each + b"\0" for size in (varint(len(each)), *LONGS[2:6])]
        found += [varint(1) + each + varint(1) + each + b"\0", varint(1) + each, varint(3) + each + b"\0"]
    return [*found, b"", b"\0", *LONGS, varint(-(2**63)), varint(-1) + b"\0"]


def check(schema: Any, data: list[bytes]) -> None:
    """Compares the ways for all fields, and for the last one, so that the others are skipped."""
    avro, kind = parsed_avro(schema), arrow_type(spark_column(schema), "value")
    for part in (kind, pa.struct([kind.field(kind.num_fields - 1)])):
        check_paths(avro, avro, part, list(dict.fromkeys(data)))


@pytest.mark.parametrize("name", SCALARS)
def test_scalars(name: str) -> None:
    kind, values = SCALARS[name]
    check(record(("a", kind), ("b", "long")), [one + b"\2" for one in values] + values)


@pytest.mark.parametrize("is_map", [False, True], ids=["array", "map"])
@pytest.mark.parametrize("name", SCALARS)
def test_arrays_and_maps(name: str, is_map: bool) -> None:
    kind, values = SCALARS[name]
    kind = {"type": "map", "values": kind} if is_map else {"type": "array", "items": kind}
    entries = [b"\2k" + each for each in values] if is_map else values
    data = [each + b"\2" for each in blocks(entries)]
    check(record(("a", kind), ("b", "long")), data)


def test_records_in_arrays_in_arrays() -> None:
    inner = {"type": "record", "name": "i", "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "int"}]}
    items = [b"\2a\4", b"\2\xff\4", b"\2a", b"\2\xff", b"\2a\xfe\xff\xff\xff\x7f"]
    data = [each + b"\2" for each in blocks(blocks(items[:4])[::4])]
    nested = {"type": "array", "items": {"type": "array", "items": inner}}
    check(record(("a", nested), ("b", "long")), data)


@pytest.mark.parametrize("depth", [-1, 1, 2, 3, 15])
def test_a_list_is_read_to_a_depth(depth: int) -> None:
    counts = [1, 2, 3, 4, 15, 16, 40_000]
    found = decode_avro(LIST, LIST, [listed(count) for count in counts], recursion_depth=depth)
    assert not found.malformed
    for count, row in zip(counts, found.values.to_pylist()):
        numbers = []
        while row is not None:
            numbers.append(row["x"])
            row = row.get("next")
        assert numbers == list(range(1, min(count, max(depth, 1)) + 1))


def test_damage_in_what_is_skipped_of_a_list() -> None:
    values = [listed(5)[:-1], listed(5)[:-1] + b"\4", b"\2\2\x80", listed(5) + b"\0", b"\2\2" * 60_000]
    found = decode_avro(LIST, LIST, values)
    assert list(found.malformed.values()) == [
        "it ends before its last field",
        "the branch of a union does not exist",
        "it ends before its last field",
        "bytes follow its last field",
        "it is nested deeper than 100,000 types",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "e", "fields": []}])
def test_a_few_bytes_are_not_millions_of_items(items: Any) -> None:
    """The limit is that of a value, in all blocks and all arrays."""
    thousand, half = varint(1000), varint(500)
    one = record(("a", {"type": "array", "items": items}), ("b", "long"))
    two = record(("a", {"type": "array", "items": {"type": "array", "items": items}}), ("b", "long"))
    long = [thousand * 20_000, half + b"\1" * 40_000]
    check(one, [thousand + b"\0\2", half * 2 + b"\0\2", half * 3 + b"\0\2", *long])
    inner = [thousand + b"\0", half + b"\0" + half + b"\0", (half + b"\0") * 3, (thousand + b"\0") * 10_000]
    counts = [1, 2, 3, 10_000]
    check(two, [varint(count) + each + b"\0\2" for count, each in zip(counts, inner)])
    found = decode_avro(two, two, [varint(count) + each + b"\0\2" for count, each in zip(counts, inner)])
    assert list(found.malformed) == [2, 3]


NEVER = {"type": "record", "name": "N", "fields": [{"name": "a", "type": "N"}, {"name": "b", "type": "N"}]}


def test_a_type_that_has_no_value() -> None:
    """A record that has itself in each value is valid in Java, too."""
    found = decode_avro(record(("n", NEVER)), record(), [b"", b"\0"])
    assert set(found.malformed.values()) == {"it is nested deeper than 100,000 types"}
    arrays = decode_avro(record(("n", {"type": "array", "items": NEVER})), record(), [b"\0", b"\2\0"])
    assert list(arrays.malformed) == [1]


@pytest.mark.parametrize("innermost", ["int", "null", {"type": "fixed", "name": "f", "size": 4}])
def test_a_writer_with_more_types_than_a_column_can_have(innermost: Any) -> None:
    writer = record(("n", "int"), ("many", doubled(60, innermost)), ("m", "int"))
    reader = record(("n", "int"), ("m", "int"))
    data = [b"\2\4" + bytes(20), b"\2", b"\2\4"]
    found = decode_avro(writer, reader, data)
    assert list(found.malformed) == ([0, 1] if innermost == "null" else [0, 1, 2])


def test_types_that_are_nested_by_their_names() -> None:
    """The text of the schema is not nested, and its types are."""
    schema, levels = chained(2000), 2000
    values = b"\2" + b"\0" * (levels - 1)
    found = decode_avro(schema, record(("f0", record(("x", "int")) | {"name": "c0"})), [values, values[:-1]])
    assert found.values.to_pylist() == [{"f0": {"x": 1}}, None]
    deep = record(("last", schema["fields"][-1]["type"]), ("x", "int"))
    with pytest.raises(ValueError, match="type c1998 is not defined"):
        parsed_avro(deep)


def test_unions_in_unions_are_resolved_in_time() -> None:
    """No branch is tried twice, or each level would take twice the time."""

    def nested(innermost: Any) -> Any:
        kind: Any = innermost
        for level in range(45):
            kind = {"type": "record", "name": f"u{level}", "fields": [{"name": "u", "type": ["null", kind]}]}
        return kind

    values = [b"\2" * 45 + b"\2a", b"\0"]
    found = decode_avro(nested(record(("x", "string"))), nested(record(("x", "int"))), values)
    assert list(found.malformed) == [0] and found.values.to_pylist() == [None, {"u": None}]
