"""Recursive Protobuf messages: columns to a depth, errors when deeper are selected."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from pyspark.sql.types import StructType
from support.protobuf_messages import Field

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.values.plain_values import plain_values
from spark_groupsource.values.protobuf.plain_protobuf import WrittenProtobuf
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.typed_columns import column_decoder

MESSAGE, STRING, REPEATED = Field.TYPE_MESSAGE, Field.TYPE_STRING, 3


def files(*messages: tuple[str, list[tuple[str, int, str | None, int]]]) -> descriptor_pb2.FileDescriptorSet:
    """Returns a file of messages with fields: name, type, name of the type, label."""
    found = descriptor_pb2.FileDescriptorSet()
    struct_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="t.proto", package="p", syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name])
    for name, fields in messages:
        message = file.message_type.add(name=name)
        for number, (field, kind, type_name, label) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind, type_name=type_name, label=label)
    return found


PERSON = files(("M", [("name", STRING, None, 1), ("bff", MESSAGE, ".p.M", 1)]))
MUTUAL = files(
    ("M", [("a", STRING, None, 1), ("n", MESSAGE, ".p.N", 1)]),
    ("N", [("list", MESSAGE, ".p.M", REPEATED), ("only", MESSAGE, ".p.O", 1)]),
    ("O", [("back", MESSAGE, ".p.N", 1)]),
)
STRUCT = files(("M", [("id", STRING, None, 1), ("payload", MESSAGE, ".google.protobuf.Struct", 1)]))
PLAIN_VALUE = "null_value:string,number_value:double,string_value:string,bool_value:boolean"


def source(given: descriptor_pb2.FileDescriptorSet, **options: Any) -> GroupDataSource:
    found = {
        "kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "protobuf", "value.message.name": "p.M",
        "value.schema": b64encode(given.SerializeToString()).decode(),
    }  # fmt: skip
    return GroupDataSource({**found, **{name.replace("_", "."): str(each) for name, each in options.items()}})


def value_type(given: descriptor_pb2.FileDescriptorSet, depth: int) -> str:
    return source(given, value_recursive_fields_max_depth=depth).schema()["value"].dataType.simpleString()


def decoded(loaded: GroupDataSource, columns: StructType, value: bytes) -> Any:
    # private: the decoding that a task receives
    (column,) = loaded.reader(columns)._columns.typed.decoded
    found = column_decoder(column)(pa.array([value]), None)
    assert not found.malformed
    return found.values.to_pylist()[0]


@pytest.mark.parametrize(
    "given, depth, expected",
    [
        # the examples of SchemaConverters
        (PERSON, 1, "struct<name:string>"),
        (PERSON, -1, "struct<name:string>"),
        (PERSON, 2, "struct<name:string,bff:struct<name:string>>"),
        (PERSON, 3, "struct<name:string,bff:struct<name:string,bff:struct<name:string>>>"),
        # a repeated field whose message is left out is left out, and a message without fields, too
        (MUTUAL, 1, "struct<a:string>"),
        (
            MUTUAL,
            2,
            "struct<a:string,n:struct<list:array<struct<a:string>>,only:struct<back:struct<list:array<struct<a:string>>>>>>",
        ),
        (STRUCT, 1, f"struct<id:string,payload:struct<fields:map<string,struct<{PLAIN_VALUE}>>>>"),
        (STRUCT, -1, f"struct<id:string,payload:struct<fields:map<string,struct<{PLAIN_VALUE}>>>>"),
    ],
)
def test_columns_have_recursive_fields_to_a_depth(given: Any, depth: int, expected: str) -> None:
    assert value_type(given, depth) == expected


def test_values_are_cut_at_the_depth() -> None:
    loaded = source(PERSON, value_recursive_fields_max_depth=2)
    value = b"\x0a\x01a\x12\x08\x0a\x01b\x12\x03\x0a\x01c"
    assert decoded(loaded, loaded.schema(), value) == {"name": "a", "bff": {"name": "b"}}


def test_a_struct_is_read() -> None:
    payload = struct_pb2.Struct()
    payload.update({"n": 1.5, "list": [True, {"deep": "x"}]})
    loaded = source(STRUCT, value_recursive_fields_max_depth=2)
    data = payload.SerializeToString()
    row = decoded(loaded, loaded.schema(), b"\x0a\x01i\x12" + bytes([len(data)]) + data)
    fields = dict(row["payload"]["fields"])
    assert row["id"] == "i" and fields["n"]["number_value"] == 1.5
    first, second = fields["list"]["list_value"]["values"]
    assert first["bool_value"] is True and second["string_value"] is None


def struct_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


def test_recursive_fields_are_rejected_when_they_are_selected() -> None:
    other = StructType().add("value", StructType.fromJson(struct_of(("name", "string"))))
    assert decoded(source(PERSON), other, b"\x0a\x01a\x12\x03\x0a\x01b") == {"name": "a"}
    recursive = StructType().add(
        "value", StructType.fromJson(struct_of(("bff", struct_of(("bff", struct_of(("name", "string")))))))
    )
    for depth, path in ((-1, "value.bff"), (1, "value.bff"), (2, "value.bff.bff")):
        with pytest.raises(ConfigurationError) as caught:
            source(PERSON, value_recursive_fields_max_depth=depth).reader(recursive)
        assert str(caught.value) == (
            f"Column {path} of the schema cannot be read: it is of type p.M, which contains it; "
            f"value.recursive.fields.max.depth is {depth}. Leave it out."
        )
    deep = source(PERSON, value_recursive_fields_max_depth=3)
    value = b"\x0a\x01a\x12\x08\x0a\x01b\x12\x03\x0a\x01c"
    assert decoded(deep, recursive, value) == {"bff": {"bff": {"name": "c"}}}


WIDE = files(
    *((f"M{at or ''}", [(name, MESSAGE, f".p.M{at + 1}", 1) for name in "ab"]) for at in range(40)),
    ("M40", [("x", STRING, None, 1)]),
)
INCOMPLETE = files(("M", [("id", STRING, None, 1), ("a", MESSAGE, ".p.Missing", 1), ("e", Field.TYPE_ENUM, ".p.E", 1)]))


def test_other_columns_of_an_unusable_schema_are_read() -> None:
    """Too many messages, and types that are not defined, are reported when they are selected."""
    for given, message in ((WIDE, "more than 20000 messages"), (INCOMPLETE, "type p.Missing is not defined")):
        with pytest.raises(ConfigurationError, match=message):
            source(given).schema()
    one = StructType().add("value", StructType.fromJson(struct_of(("id", "string"))))
    assert decoded(source(INCOMPLETE), one, b"\x0a\x01a\x12\x00\x18\x05") == {"id": "a"}
    for name in "ae":
        selected = StructType().add("value", StructType.fromJson(struct_of((name, "string"))))
        with pytest.raises(ConfigurationError, match="is not defined. Write it with protoc --include_imports."):
            source(INCOMPLETE).reader(selected)
    deep: Any = "string"
    for name in ("x", *["a"] * 40):
        deep = struct_of((name, deep))
    deepest = decoded(source(WIDE), StructType().add("value", StructType.fromJson(deep)), b"")
    assert deepest == {"a": None}


def test_a_writer_with_recursive_messages_is_shown() -> None:
    text = b64encode(PERSON.SerializeToString()).decode()
    written = WrittenProtobuf(ProtoFiles("Schema", text), lambda each: plain_values(each.values))
    assert written.decode([b"\0\x0a\x01a\x12\x03\x0a\x01b"], [None]) == [
        {"name": "a", "bff": {"name": "b", "bff": None}}
    ]
