"""Protobuf editions: presence, closed enums, encoding of messages, as google.protobuf."""

from __future__ import annotations

from base64 import b64decode, b64encode
from itertools import product
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from support.decoded_values import decode_protobuf
from support.protobuf_messages import EDITIONS, SYNTAXES

from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles, ProtoMessage
from spark_groupsource.values.registry.proto_files import descriptor_set

FEATURES = descriptor_pb2.FeatureSet


def file_of(syntax: str) -> Any:
    """Returns a file with a message, and in it one of each kind of type."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p")
    if syntax in EDITIONS:
        file.syntax, file.edition = "editions", EDITIONS[syntax]
    else:
        file.syntax = syntax
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    message = file.message_type.add(name="M")
    kinds = ((Field.TYPE_MESSAGE, ".p.N"), (Field.TYPE_ENUM, ".p.E"), (Field.TYPE_INT32, ""), (Field.TYPE_STRING, ""))
    for number, (kind, name) in enumerate(kinds, 1):
        message.field.add(name=f"f{number}", number=number, type=kind, label=1, type_name=name or None)
    message.field.add(name="list", number=9, type=Field.TYPE_INT32, label=3)
    message.oneof_decl.add(name="choice")
    message.field.add(name="chosen", number=10, type=Field.TYPE_INT32, label=1, oneof_index=0)
    inner = file.message_type.add(name="N")
    inner.field.add(name="a", number=1, type=Field.TYPE_INT32, label=1)
    entry = message.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, label=1, type_name=".p.N")
    message.field.add(name="map", number=11, type=Field.TYPE_MESSAGE, label=3, type_name=".p.M.MapEntry")
    return file


def message_of(file: Any) -> ProtoMessage:
    text = b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return ProtoFiles("Schema", text).message("message", "p.M")


def assert_as_google(file: Any) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    expected = pool.FindMessageTypeByName("p.M")
    for ours, field in zip(message_of(file).fields, expected.fields):
        is_group = field.type == Field.TYPE_GROUP
        assert (ours.kind == "group") == is_group, field.name
        assert ours.is_required == field.is_required, field.name
        assert field.is_repeated or ours.has_presence == field.has_presence, field.name
        assert ours.enum is None or ours.enum.is_closed == field.enum_type.is_closed
        if ours.message is not None and ours.message.is_map_entry:
            value = field.message_type.fields_by_name["value"]
            assert (ours.message.fields[1].kind == "group") == (value.type == Field.TYPE_GROUP)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_defaults_of_each_syntax(syntax: str) -> None:
    assert_as_google(file_of(syntax))


GRID = [
    *product(["field_presence"], [1, 2], ["file", "f3", "f4"]),
    *product(["field_presence"], [3], ["f1", "f2", "f3"]),
    *product(["enum_type"], [1], ["file", "enum"]),
    ("enum_type", 2, "enum"),
    *product(["message_encoding"], [1, 2], ["file", "f1"]),
]


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name, value, where", GRID)
@pytest.mark.parametrize("outer", [1, 2])
def test_features_are_inherited(edition: str, name: str, value: int, where: str, outer: int) -> None:
    file = file_of(edition)
    fields = {field.name: field for field in file.message_type[0].field}
    if where != "file" and (name, outer) != ("enum_type", 2):
        setattr(file.options.features, name, outer)
    # a field without presence has no closed enum
    if where in fields and name == "field_presence" and outer == 2:
        fields["f2"].options.features.field_presence = FEATURES.EXPLICIT
    target = file if where == "file" else file.enum_type[0] if where == "enum" else fields[where]
    setattr(target.options.features, name, value)
    assert_as_google(file)


def test_options_that_are_set_twice_are_merged() -> None:
    file = file_of("2023")
    file.options.java_package = "j"
    data = file.SerializeToString()
    file.ClearField("options")
    # field 8 of the file again, with other features
    for presence in (1, 2):
        file.options.features.field_presence = presence
        data += b"\x42%c%b" % (file.options.ByteSize(), file.options.SerializeToString())
    merged = descriptor_pb2.FileDescriptorProto.FromString(data)
    assert [each.has_presence for each in message_of(merged).fields][:4] == [True, False, False, False]


TEXT = """
edition = "2023"; package p;
message Order {
  Line line = 1 [features.message_encoding = DELIMITED];
  Color color = 2;
  int32 count = 3 [features.field_presence = LEGACY_REQUIRED];
  repeated Line lines = 4 [features.message_encoding = DELIMITED];
  repeated int32 numbers = 5 [features.repeated_field_encoding = EXPANDED];
}
message Line { string sku = 1; int64 size = 2 [features.field_presence = IMPLICIT]; }
enum Color { option features.enum_type = CLOSED; RED = 0; }
"""


def test_values_of_an_edition() -> None:
    text = descriptor_set("s", TEXT)
    files = descriptor_pb2.FileDescriptorSet.FromString(b64decode(text))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Order"))(count=0, numbers=[1, 2])
    order.line.sku = "a"
    order.lines.add(sku="b", size=3)
    data = order.SerializeToString()
    assert data.startswith(b"\x0b\x0a\x01a\x0c")
    found = decode_protobuf(files.SerializeToString(), "p.Order", [data, data + b"\x10\x05", b"\x10\x00"])
    assert found.values.to_pylist() == [
        {
            "line": {"sku": "a", "size": None},
            "color": None,
            "count": 0,
            "lines": [{"sku": "b", "size": 3}],
            "numbers": [1, 2],
        },
        None,
        None,
    ]
    assert found.malformed == {1: "a number is not in its enum", 2: "a required field is missing"}
