"""Protobuf decoded by column equals google.protobuf."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from support.decoded_values import decode_protobuf, ordered, protobuf_decoder
from support.examples import scaled
from support.protobuf_messages import Schemas, shown

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import select_columns
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.values.protobuf import protobuf_fields
from spark_groupsource.values.registry.schema_headers import NamedSchemas
from spark_groupsource.values.typed_columns import column_decoder


@pytest.fixture(params=[0, 1000], ids=["field by field", "value by value"])
def lanes(request, monkeypatch):
    """Both ways to read fields."""
    monkeypatch.setattr(protobuf_fields, "_FEW_LANES", request.param)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize("seed", range(scaled(25, 4)))
def test_random_values_of_random_schemas(lanes, seed: int, syntax: str) -> None:
    schemas = Schemas(seed, syntax)
    values = [schemas.value() for _ in range(30)]
    data = [value.SerializeToString() for value in values]
    found = decode_protobuf(schemas.descriptor_set, "pkg.M0", [None, *data])
    assert found.malformed == {}
    expected = [shown(value) for value in values]
    assert repr(ordered(found.values.to_pylist(), repr)) == repr([None, *expected])
    name = schemas.type.DESCRIPTOR.fields[-1].name
    selected = decode_protobuf(schemas.descriptor_set, "M0", data, name)
    assert repr(ordered(selected.values.to_pylist(), repr)) == repr([{name: row[name]} for row in expected])


FIELDS = descriptor_pb2.FieldDescriptorProto
MESSAGE, STRING, INT, ENUM, GROUP = (
    FIELDS.TYPE_MESSAGE, FIELDS.TYPE_STRING, FIELDS.TYPE_INT32, FIELDS.TYPE_ENUM, FIELDS.TYPE_GROUP
)  # fmt: skip


def descriptor_set(*messages: tuple[str, list[dict[str, Any]]], syntax: str = "proto3") -> bytes:
    """Returns a file with these messages, and the enum Color."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p.q", syntax=syntax)
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=-2)
    for name, fields in messages:
        message = file.message_type.add(name=name)
        if any("oneof_index" in field for field in fields):
            message.oneof_decl.add(name="choice")
        for number, field in enumerate(fields, 1):
            message.field.add(**{"name": f"f{number}", "number": number, "label": 1, **field})
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


TIMES = descriptor_pb2.FileDescriptorSet()
for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
    module.DESCRIPTOR.CopyToProto(TIMES.file.add())
INTS = descriptor_set(("M", [{"type": INT}, {"type": STRING}]))
INNER = ("Inner", [{"type": INT}, {"type": INT}, {"type": INT, "label": 3}])
OUTER = descriptor_set(("M", [{"type": MESSAGE, "type_name": ".p.q.Inner"}]), INNER)
ONEOF = descriptor_set(("M", [{"type": INT, "oneof_index": 0}, {"type": STRING, "oneof_index": 0}]))
CHOICE = descriptor_set(
    ("M", [{"type": MESSAGE, "type_name": ".p.q.Inner", "oneof_index": 0}, {"type": INT, "oneof_index": 0}]), INNER
)
COLORS = ("M", [{"type": ENUM, "type_name": ".p.q.Color"}])

EMPTY = descriptor_set(("M", [{"type": INT}, {"type": MESSAGE, "type_name": ".p.q.E"}]), ("E", []))


@pytest.mark.parametrize(
    "schema, value, row",
    [
        # the last value of a field is its value, in any order of fields
        (INTS, b"\x12\x01a\x08\x01\x08\x02", {"f1": 2, "f2": "a"}),
        (INTS, b"", {"f1": None, "f2": None}),
        # unknown fields of every wire type
        (INTS, b"\x18\x01\x21xxxxxxxx\x2a\x01x\x35xxxx\x3b\x08\x01\x43\x44\x3c\x08\x05", {"f1": 5, "f2": None}),
        # a negative number has ten bytes
        (INTS, b"\x08" + b"\xff" * 9 + b"\x01", {"f1": -1, "f2": None}),
        # messages are merged
        (
            OUTER,
            b"\x0a\x04\x08\x01\x18\x07\x0a\x04\x10\x02\x18\x08",
            {"f1": {"f1": 1, "f2": 2, "f3": [7, 8]}},
        ),
        (OUTER, b"\x0a\x04\x1a\x02\x01\x02", {"f1": {"f1": None, "f2": None, "f3": [1, 2]}}),
        (ONEOF, b"\x08\x01\x12\x01a", {"f1": None, "f2": "a"}),
        (ONEOF, b"\x12\x01a\x08\x00", {"f1": 0, "f2": None}),
        # another field of the oneof clears a message: s{a:5}, i=1, s{b:6} is s{b:6}
        (CHOICE, b"\x0a\x02\x08\x05\x10\x01\x0a\x02\x10\x06", {"f1": {"f1": None, "f2": 6, "f3": []}, "f2": None}),
        (CHOICE, b"\x10\x01\x0a\x02\x08\x05\x0a\x02\x10\x06", {"f1": {"f1": 5, "f2": 6, "f3": []}, "f2": None}),
        (CHOICE, b"\x0a\x02\x08\x05\x0a\x02\x10\x06\x10\x00", {"f1": None, "f2": 0}),
        # a zero that is written clears a field of proto3, as in Java
        (INTS, b"\x08\x05\x08\x00\x12\x01a\x12\x00", {"f1": None, "f2": None}),
        (INTS, b"\x08\x80\x80\x80\x80\x10", {"f1": None, "f2": None}),
        (descriptor_set(COLORS), b"\x08\xfe" + b"\xff" * 8 + b"\x01", {"f1": "BLUE"}),
        (descriptor_set(COLORS), b"\x08\x05", {"f1": "UNKNOWN_ENUM_VALUE_Color_5"}),
        (
            descriptor_set(("M", [{"type": GROUP, "type_name": ".p.q.Inner"}]), INNER, syntax="proto2"),
            b"\x0b\x08\x01\x0c",
            {"f1": {"f1": 1, "f2": None, "f3": []}},
        ),
        (
            descriptor_set(
                (
                    "M",
                    [
                        {"type": INT, "default_value": "-3"}, {"type": STRING, "default_value": "d\u00e9"},
                        {"type": FIELDS.TYPE_BYTES, "default_value": "\\001\\377"},
                        {"type": FIELDS.TYPE_DOUBLE, "default_value": "-inf"},
                        {"type": FIELDS.TYPE_BOOL, "default_value": "true"},
                        {"type": ENUM, "type_name": ".p.q.Color", "default_value": "BLUE"},
                        {"type": FIELDS.TYPE_FIXED64, "default_value": "18446744073709551615"},
                    ],
                ),
                syntax="proto2",
            ),
            b"",
            {"f1": -3, "f2": "d\u00e9", "f3": b"\1\xff", "f4": float("-inf"), "f5": True, "f6": "BLUE", "f7": -1},
        ),
        # a message without fields is left out
        (EMPTY, b"\x12\0", {"f1": None}),
    ],
)  # fmt: skip
def test_values(lanes, schema: bytes, value: bytes, row: dict[str, Any]) -> None:
    found = decode_protobuf(schema, "p.q.M", [value, value])
    assert (found.values.to_pylist(), found.malformed) == ([row, row], {})


def test_times_and_wrappers() -> None:
    with_times = descriptor_pb2.FileDescriptorSet()
    with_times.CopyFrom(TIMES)
    names = ("Timestamp", "Duration", "StringValue")
    with_times.MergeFromString(
        descriptor_set(("M", [{"type": MESSAGE, "type_name": f".google.protobuf.{name}"} for name in names]))
    )
    moment = timestamp_pb2.Timestamp(seconds=2, nanos=7_999_999).SerializeToString()
    duration = duration_pb2.Duration(seconds=1, nanos=-1).SerializeToString()
    value = b"\x0a%c%b\x12%c%b\x1a\0" % (len(moment), moment, len(duration), duration)
    found = decode_protobuf(with_times.SerializeToString(), "p.q.M", [value, b"\x0a\x00", b""]).values
    assert [str(field.type) for field in found.type] == [
        "timestamp[us, tz=UTC]", "duration[us]", "struct<value: string>"
    ]  # fmt: skip
    times = [None if row["f1"] is None else row["f1"].timestamp() for row in found.to_pylist()]
    assert times == [2.007999, 0.0, None]
    # nanoseconds are cut towards zero
    assert [row["f2"] for row in found.to_pylist()] == [timedelta(seconds=1), None, None]
    assert [row["f3"] for row in found.to_pylist()] == [{"value": None}, None, None]


LAST = (1 << 63) - 1


@pytest.mark.parametrize("name, number", [("Timestamp", 1), ("Duration", 2)])
@pytest.mark.parametrize(
    "seconds, nanos, micros",
    [
        (LAST // 1_000_000, 775_807_999, LAST),
        (LAST // 1_000_000, 775_808_000, None),
        # invalid nanoseconds are added, too
        (LAST // 1_000_000 - 1, (1 << 31) - 1, None),
        (LAST // 1_000_000 - 1, -(1 << 31), LAST // 1_000_000 * 1_000_000 - 1_000_000 - 2_147_483),
        (-(LAST // 1_000_000), -775_808_999, -LAST - 1),
        (-(LAST // 1_000_000), -775_809_000, None),
        (-(LAST // 1_000_000) - 1, 0, None),
        (LAST // 1_000_000 + 1, 0, None),
        (LAST, 0, None),
        (-LAST - 1, 0, None),
        # Spark multiplies these by 1000, which wraps to a time near 1970
        ((1 << 64) // 1000, 0, None),
        (253_402_300_799, 999_999_999, 253_402_300_799_999_999),
        (-1, -1, -1_000_000),
    ],
)
def test_times_at_their_limits(lanes, name: str, number: int, seconds: int, nanos: int, micros: int | None) -> None:
    with_times = descriptor_pb2.FileDescriptorSet()
    with_times.CopyFrom(TIMES)
    with_times.MergeFromString(descriptor_set(("M", [{"type": MESSAGE, "type_name": f".google.protobuf.{name}"}])))
    module = timestamp_pb2.Timestamp if number == 1 else duration_pb2.Duration
    value = module(seconds=seconds, nanos=nanos).SerializeToString()
    found = decode_protobuf(with_times.SerializeToString(), "p.q.M", [b"", b"\x0a%c%b" % (len(value), value)])
    assert [each["f1"].value if each.is_valid else None for each in found.values][1:] == [micros]
    assert found.malformed == ({} if micros is not None else {1: "a time exceeds the range of microseconds"})


def test_messages_with_the_name_of_a_time_and_other_fields_are_structs() -> None:
    """Spark compares the names of their fields only, and fails for every value."""
    schema = descriptor_set(
        ("M", [{"type": MESSAGE, "type_name": ".p.q.Timestamp"}, {"type": MESSAGE, "type_name": ".p.q.Duration"}]),
        ("Timestamp", [{"name": "seconds", "type": FIELDS.TYPE_DOUBLE}, {"name": "nanos", "type": INT}]),
        ("Duration", [{"name": "seconds", "type": FIELDS.TYPE_INT64}, {"name": "nanos", "type": INT, "label": 3}]),
    )
    found = decode_protobuf(schema, "p.q.M", [b"\x0a\x02\x10\x07\x12\x02\x10\x07"])
    assert found.values.to_pylist() == [{"f1": {"seconds": None, "nanos": 7}, "f2": {"seconds": None, "nanos": [7]}}]


@pytest.mark.parametrize(
    "value, reason",
    [
        # a tag of 63 bits, and numbers whose tenth byte is behind the value
        (b"\x08\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "the tag of a field is invalid"),
        (b"\x08" + b"\xff" * 9, "it ends before its last field"),
        (b"\x08" + b"\xff" * 10, "an integer has more than 64 bits, or exceeds its type"),
        # values that are replaced are read
        (b"\x12\x01\xff\x12\x01a", "a string is not UTF-8"),
    ],
)
@pytest.mark.parametrize("neighbor", [b"", b"\x08\x01", b"\xff" * 12, b"\x7f"])
def test_reasons_do_not_depend_on_neighbors(lanes, value: bytes, reason: str, neighbor: bytes) -> None:
    found = decode_protobuf(INTS, "p.q.M", [neighbor, value, neighbor])
    assert found.malformed[1] == reason


def test_replaced_messages_need_no_required_fields(lanes) -> None:
    inner = ("Inner", [{"type": INT, "label": 2}, {"type": STRING}])
    schema = descriptor_set(
        ("M", [{"type": MESSAGE, "type_name": ".p.q.Inner", "oneof_index": 0}, {"type": INT, "oneof_index": 0}]),
        inner,
        syntax="proto2",
    )
    data = [b"\x0a\x00\x10\x01", b"\x0a\x03\x12\x01\xff\x10\x01", b"\x10\x01\x0a\x00"]
    found = decode_protobuf(schema, "p.q.M", data)
    assert found.malformed == {1: "a string is not UTF-8", 2: "a required field is missing"}
    assert found.values.to_pylist()[0] == {"f1": None, "f2": 1}


REQUIRED = descriptor_set(("M", [{"type": INT, "label": 2}, {"type": INT}]), syntax="proto2")


@pytest.mark.parametrize(
    "schema, value, reason",
    [
        (INTS, b"\x08", "it ends before its last field"),
        (INTS, b"\x08\x80", "it ends before its last field"),
        (INTS, b"\x08" + b"\xff" * 10 + b"\x01", "an integer has more than 64 bits, or exceeds its type"),
        (INTS, b"\x12\x05a", "a length is negative, or exceeds the value"),
        (INTS, b"\x12" + b"\xff" * 9 + b"\x01", "a length is negative, or exceeds the value"),
        (INTS, b"\x12\x01\xff", "a string is not UTF-8"),
        (INTS, b"\x00\x01", "the tag of a field is invalid"),
        (INTS, b"\x0e", "the tag of a field is invalid"),
        (INTS, b"\x0c", "the tag of a field is invalid"),
        (INTS, b"\xff\xff\xff\xff\xff\xff\x01", "the tag of a field is invalid"),
        (INTS, b"\x0d1234", "a field has another wire type than in the schema of the query"),
        (INTS, b"\x23\x08\x01", "it ends before its last field"),
        (INTS, b"\x23\x2c", "the tag of a field is invalid"),
        (INTS, b"\x23" * 200 + b"\x24" * 200, "groups are nested deeper than 100 levels"),
        (OUTER, b"\x0a\x02\x1a\x05", "a length is negative, or exceeds the value"),
        (OUTER, b"\x0a\x03\x1a\x01\x80", "the bytes of a packed field are no whole numbers"),
        (descriptor_set(COLORS, syntax="proto2"), b"\x08\x05", "a number is not in its enum"),
        (REQUIRED, b"\x10\x01", "a required field is missing"),
    ],
)
def test_reasons(lanes, schema: bytes, value: bytes, reason: str) -> None:
    good = b"\x08\x00" if schema not in (OUTER,) else b""
    found = decode_protobuf(schema, "p.q.M", [good, value, value, good])
    assert found.malformed == {1: reason, 2: reason}
    assert [row is None for row in found.values.to_pylist()] == [False, True, True, False]
    # the columns of option value.flatten
    assert all(column[row].as_py() is None for column in found.values.flatten() for row in found.malformed)


@pytest.mark.parametrize("seed", range(scaled(30, 4)))
def test_damaged_values_affect_no_other(lanes, seed: int) -> None:
    schemas = Schemas(seed)
    values = [schemas.value() for _ in range(20)]
    data = [value.SerializeToString() for value in values]
    for row in range(0, 20, 3):
        value, noise = data[row], schemas.rng.randbytes(12)
        data[row] = schemas.rng.choice([value[:-1], value + b"\0", noise, b"\xff" * 20, value + value])
    found = decode_protobuf(schemas.descriptor_set, "pkg.M0", data)
    for row, each in enumerate(data):
        if row in found.malformed:
            assert row % 3 == 0 and found.values[row].as_py() is None
        else:
            assert repr(ordered(found.values[row].as_py(), repr)) == repr(shown(schemas.type.FromString(each)))


def test_a_value_with_many_fields_costs_no_more_for_each() -> None:
    schema = descriptor_set(("M", [{"type": STRING, "label": 3}]))
    begin = time.process_time()
    found = decode_protobuf(schema, "p.q.M", [b"\x0a\x01a"] * 1000 + [b"\x0a\x01a" * 50_000])
    # a step for each field takes 2.5 seconds
    assert time.process_time() - begin < 2
    assert pc.list_value_length(found.values.field("f1")).to_pylist() == [1] * 1000 + [50_000]


def test_values_with_different_fields_cost_no_step_for_each() -> None:
    def varint(number: int) -> bytes:
        return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14])

    data = [varint(8 * number) + b"\x01" for number in range(3000, 33_000)]
    begin = time.process_time()
    found = decode_protobuf(INTS, "p.q.M", [b"\x08\x02", *data])
    # a step for each value takes over 5 seconds
    assert time.process_time() - begin < 2
    assert not found.malformed and found.values[0].as_py() == {"f1": 2, "f2": None}
    broken = decode_protobuf(OUTER, "p.q.M", [b"\x0a\x02\x1a\x05"] * 10_000)
    assert len(broken.malformed) == 10_000


def test_message_indexes_of_confluent() -> None:
    schema = descriptor_set(("M", [{"type": INT}]), ("N", [{"type": INT}]))
    data = pa.array([b"\0\x08\x01", b"\x02\0\x08\x02", b"\x02\x02\x08\x03", None, b"", b"\x08\x04"], pa.binary())
    rows = {5: np.array([0, 1, 2, 4]), "1d6b6a3e-0000-0000-0000-000000000000": np.array([5])}
    found = protobuf_decoder(schema, "p.q.M").decode_named(NamedSchemas(data, rows, {}, {5: b""}))
    assert found.values.to_pylist() == [{"f1": 1}, {"f1": 2}, None, None, None, {"f1": 4}]
    reason = "its message indexes are not those of p.q.M"
    assert (found.malformed, found.schema_ids) == ({2: reason, 4: reason}, {2: "5", 4: "5"})
    # in a record header the indexes follow the id
    found = protobuf_decoder(schema, "p.q.N").decode_named(NamedSchemas(data, rows, {}, {5: b"\2\2"}))
    assert [row and row["f1"] for row in found.values.to_pylist()] == [None, None, 3, None, None, 4]
    found = protobuf_decoder(schema, "p.q.N").decode_named(NamedSchemas(data, rows, {}, {5: b"\0"}))
    assert found.malformed.keys() == {0, 1, 4, 5}


@pytest.mark.parametrize(
    "schema, name, message",
    [
        (b"no set", "M", "Option value.schema is no descriptor set: "),
        (INTS, "N", "message.name names 'N', which no message has in value.schema; its messages are p.q.M. Give"),
        (
            descriptor_set(("M", [{"type": MESSAGE, "type_name": ".google.protobuf.Any"}])),
            "M",
            "type google.protobuf.Any is not defined. Write it with protoc --include_imports.",
        ),
        (
            descriptor_set(
                *(
                    (f"M{level}", [{"type": MESSAGE, "type_name": f".p.q.M{level + 1}"}] * 2 if level < 60 else [])
                    for level in range(61)
                )
            ),
            "M0",
            "has more than 20000 messages, those that are used repeatedly included",
        ),
    ],
)
def test_invalid_schemas_are_rejected_by_name(schema: bytes, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        protobuf_decoder(schema, name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_options(tmp_path) -> None:
    path = tmp_path / "m.desc"
    path.write_bytes(INTS)
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "protobuf"}
    given = {**options, "value.schema": str(path), "value.message.name": "p.q.M", "value.flatten": "true"}
    schema = GroupDataSource(given).schema()
    assert [(field.name, field.dataType.simpleString()) for field in schema][1:3] == [("f1", "int"), ("f2", "string")]
    columns = select_columns(schema, False, parse_options(given).values).typed
    decoded = column_decoder(columns.decoded[0])(pa.array([b"\x08\x01"]), None)
    assert decoded.values.to_pylist() == [{"f1": 1, "f2": None}]
    for missing, message in (
        ({}, "Option value.schema is missing: value.format is protobuf."),
        ({"value.schema": str(path)}, "Option value.message.name is missing: value.format is protobuf."),
        ({"value.schema": str(path), "value.schema.registry.url": "http://r:1"}, "value.message.name is missing"),
        ({"value.format": "json", "value.message.name": "M"}, "value.message.name has no effect with value.f"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            GroupDataSource({**options, **missing}).schema()
