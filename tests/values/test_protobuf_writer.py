"""Columns written as Protobuf messages, beside Google's library."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.decoded_values import decode_protobuf
from support.examples import scaled
from support.protobuf_messages import EDITIONS, Schemas

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.protobuf.protobuf_writer import protobuf_writer
from spark_groupsource.values.registry.proto_files import descriptor_set

PROTO = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
enum Color { RED = 0; GREEN = 7; BLUE = -1; }
message M {
  int32 i = 3; uint32 u = 2; uint64 ul = 4; sint32 z = 5; sint64 zl = 300; fixed32 f = 6; sfixed64 g = 7;
  double d = 8; float e = 9; bool b = 10; string s = 11; bytes x = 12; Color c = 13;
  optional int32 o = 14; repeated int32 r = 15; repeated string t = 16; repeated Color rc = 17;
  map<string, int32> m = 18; map<int64, N> n = 19; N one = 20; repeated N many = 21;
  google.protobuf.Timestamp at = 22; google.protobuf.Duration took = 23;
  oneof choice { int32 left = 24; string right = 25; }
  message N { string name = 1; M again = 2; }
}
"""
DESCRIPTORS = descriptor_set("the test", PROTO)


def message_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(b64decode(DESCRIPTORS)).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


M = message_class()
N = pa.struct([("name", pa.string())])


def writer(kind: pa.DataType, name: str = "p.M", schema: str = DESCRIPTORS) -> Any:
    message = ProtoFiles("Option value.schema", schema).message("value.message.name", name, 1 << 30)
    return protobuf_writer(message, kind, "value")


def column(**fields: Any) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def check(found: pa.Array, expected: list[Any]) -> None:
    """Compares the messages of a column, and those of a part of it, with Google's."""
    data = writer(found.type)(found).to_pylist()
    assert [M.FromString(each) for each in data] == expected
    # fields in the order of their numbers, numbers packed, defaults left out: as Google's serializer
    assert [len(each) for each in data] == [len(each.SerializeToString()) for each in expected]
    assert writer(found.type)(found[1:]).to_pylist() == data[1:]


@pytest.mark.parametrize("syntax", ["proto2", "proto3", *EDITIONS])
@pytest.mark.parametrize("seed", range(scaled(25, 6)))
def test_random_messages_are_read_back_by_the_source(seed: int, syntax: str) -> None:
    schemas = Schemas(seed, syntax)
    data = [schemas.value().SerializeToString() for _ in range(30)]
    decoded = decode_protobuf(schemas.descriptor_set, "pkg.M0", [None, *data])
    assert decoded.malformed == {}
    # the number of an enum without a name is not known any more
    kept = [at for at, row in enumerate(decoded.values.to_pylist()) if "UNKNOWN_ENUM_VALUE" not in repr(row)]
    values = decoded.values.take(pa.array(kept))
    assert len(values) > 1
    schema = b64encode(schemas.descriptor_set).decode()
    found = writer(values.type, "pkg.M0", schema)(values).to_pylist()
    assert found[0] is None
    again = decode_protobuf(schemas.descriptor_set, "pkg.M0", found)
    assert again.malformed == {}
    assert repr(again.values.to_pylist()) == repr(values.to_pylist())


def test_scalars() -> None:
    rng = random.Random(0)
    numbers = [None, 0, 1, -1, 127, 128, -(2**31), 2**31 - 1, rng.randrange(2**31)]
    ints = pa.array(numbers, pa.int32())
    longs = pa.array([each and each * 2**32 for each in numbers], pa.int64())
    floats = [None, 0.0, -0.0, 1.5, float("inf"), 1e-45, 3e38, -1.0, 2.0]
    texts = [None, "", "a", "\u00e9", "b" * 200, "", "c", "d", "e"]
    names = [None, "RED", "GREEN", "BLUE", "RED", "RED", None, "GREEN", "BLUE"]
    found = column(
        s=pa.array(texts),
        x=pa.array([each and each.encode() for each in texts]),
        **{name: ints for name in ("i", "z", "f", "u", "o")},
        **{name: longs for name in ("zl", "g", "ul")},
        e=pa.array(floats, pa.float32()),
        d=pa.array(floats),
        b=pa.array([None, False, True, *[True] * 6]),
        c=pa.array(names),
    )
    expected = []
    for row in found.to_pylist():
        given = {name: value for name, value in row.items() if value is not None and name != "c"}
        given["u"] = given.get("u", 0) & 0xFFFFFFFF
        given["f"] = given.get("f", 0) & 0xFFFFFFFF
        given["ul"] = given.get("ul", 0) & (2**64 - 1)
        expected.append(M(**given, **({} if row["c"] is None else {"c": row["c"]})))
    check(found, expected)


def test_lists_maps_and_messages() -> None:
    found = column(
        r=pa.array([[1, -1, 300], [], None], pa.list_(pa.int32())),
        t=pa.array([["a", ""], None, []]),
        rc=pa.array([None, ["GREEN", "RED"], []]),
        m=pa.array([[("a", 1), ("", 0)], [], None], pa.map_(pa.string(), pa.int32())),
        n=pa.array([[(0, {"name": "x"})], None, [(-1, {"name": None})]], pa.map_(pa.int64(), N)),
        one=pa.array([{"name": "n"}, {"name": ""}, None], N),
        many=pa.array([None, [{"name": "p"}, {"name": None}], []], pa.list_(N)),
    )
    expected = [
        M(r=[1, -1, 300], t=["a", ""], m={"a": 1, "": 0}, n={0: M.N(name="x")}, one=M.N(name="n")),
        M(rc=["GREEN", "RED"], one=M.N(), many=[M.N(name="p"), M.N()]),
        M(n={-1: M.N()}),
    ]
    check(found, expected)


def test_times_and_a_message_within_itself() -> None:
    micros = [0, 1, -1, 1_500_000, -1_500_000, -2_000_000]
    found = column(
        at=pa.array(micros, pa.timestamp("us", "Europe/Berlin")),
        took=pa.array(micros, pa.duration("us")),
        one=column(again=column(one=column(name=pa.array(["deep"] * 6)))),
    )
    expected = []
    for each in micros:
        message = M(one=M.N(again=M(one=M.N(name="deep"))))
        message.at.FromMicroseconds(each)
        message.took.FromMicroseconds(each)
        expected.append(message)
    check(found, expected)


def test_an_empty_column_and_nulls() -> None:
    found = pa.array([None, {"i": None}, {"i": 1}], pa.struct([("i", pa.int32())]))
    assert writer(found.type)(found).to_pylist() == [None, b"", b"\x18\1"]
    assert writer(found.type)(found[:0]).to_pylist() == []
    assert writer(pa.struct([]))(pa.array([{}, None], pa.struct([]))).to_pylist() == [b"", None]


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        (pa.int32(), [], "Column value is int32; with value.format=protobuf it must be a struct."),
        (pa.struct([("i", pa.int64())]), [], "Column value.i is int64, and the Protobuf schema has int32. Cast it."),
        (pa.struct([("no", pa.int64())]), [], "Column value.no is no field of the Protobuf message p.M. Leave it out"),
        (pa.struct([("r", pa.int32())]), [], "Column value.r is int32, and the Protobuf field is repeated."),
        (pa.struct([("m", pa.list_(N))]), [], "and the Protobuf schema has a map. Cast it."),
        (pa.struct([("at", pa.int64())]), [], "value.at is int64, and the Protobuf schema has google.protobuf.T"),
        (pa.struct([("one", pa.string())]), [], "Column value.one is string, and the Protobuf schema has p.M.N."),
        (pa.struct([("c", pa.string())]), [{"c": "PINK"}], "value.c failed: 'PINK' is no name of the enum."),
        (pa.struct([("u", pa.int64())]), [{"u": 2**32}], "value.u failed: a number is not from 0 to 4294967295."),
        (pa.struct([("t", pa.list_(pa.string()))]), [{"t": ["a", None]}], "value.t.element failed: 1 values are null"),
        (
            pa.struct([("left", pa.int32()), ("right", pa.string())]),
            [{"left": 1}, {"left": 1, "right": "a"}],
            "Writing column value failed: right and another field of its oneof are both set in a row.",
        ),
    ],
)
def test_columns_that_a_message_does_not_have(kind: pa.DataType, rows: list[Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        writer(kind)(pa.array(rows, kind))
    assert message in str(raised.value)


def test_required_fields() -> None:
    schema = descriptor_set("the test", 'syntax = "proto2"; message R { required int32 a = 1; optional int32 b = 2; }')
    kind = pa.struct([("a", pa.int32())])
    assert writer(kind, "R", schema)(pa.array([{"a": 0}], kind)).to_pylist() == [b"\x08\0"]
    for given, rows in ((kind, [{"a": None}]), (pa.struct([("b", pa.int32())]), [])):
        with pytest.raises(ConfigurationError) as raised:
            writer(given, "R", schema)(pa.array(rows, given))
        assert "the Protobuf field is required" in str(raised.value)
