"""Protobuf schemas of a registry: texts, references, message indexes, newer versions."""

from __future__ import annotations

import pickle
from base64 import b64encode
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from schema_registry import SchemaRegistryServer

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import select_columns
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.values.decoded import Malformed
from spark_groupsource.values.protobuf.plain_protobuf import WrittenProtobuf
from spark_groupsource.values.protobuf.protobuf_blocks import ProtobufDecoder
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.protobuf.protobuf_types import message_type
from spark_groupsource.values.registry import proto_files
from spark_groupsource.values.registry.proto_files import descriptor_set
from spark_groupsource.values.registry.schema_headers import NamedSchemas
from spark_groupsource.values.typed_columns import column_decoder

PLACE = 'syntax = "proto3"; package geo; message Unused {} message Place { string city = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "geo/place.proto";
import "google/protobuf/timestamp.proto";
import "confluent/meta.proto";
message Order {
  option (confluent.message_meta).doc = "an { order }";  // braces } in comments
  int64 id = 1;
  geo.Place to = 2 [deprecated = true];
  google.protobuf.Timestamp at = 3;
  map<string, int32> counts = 4;
  message Line { string sku = 1; }
  repeated Line lines = 5;
}
message Payment { string iban = 1; }
"""
REFERENCE = {"name": "geo/place.proto", "subject": "place", "version": 1}
# at 1 s: id 7, to Bern, one line
VALUE = b"\x08\x07\x12\x06\x0a\x04Bern\x1a\x02\x08\x01\x2a\x03\x0a\x01s"
ROW = {"id": 7, "to": {"city": "Bern"}, "counts": [], "lines": [{"sku": "s"}]}


@pytest.fixture
def registry():
    with SchemaRegistryServer() as running:
        running.register("place", PLACE, "PROTOBUF")
        yield running


def prefixed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def decode(registry: SchemaRegistryServer, values: list[bytes], headers: Any = None, **given: str):
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders", "value.format": "protobuf"}
    options |= {
        "value.schema.registry.url": registry.url,
        **{name.replace("_", "."): each for name, each in given.items()},
    }
    source = GroupDataSource(options)
    schema = source.schema()
    # private: the decoding that a task receives
    columns = pickle.loads(pickle.dumps(source.reader(schema)._columns.typed))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return column_decoder(columns.decoded[0])(
        pa.array(values, pa.binary()), None if headers is None else pa.array(headers, kind)
    )


def rows(found: Any) -> list[Any]:
    return [row and {name: each for name, each in row.items() if name != "at"} for row in found.values.to_pylist()]


def test_columns_of_the_text_of_a_subject_and_its_references(registry) -> None:
    schema_id = registry.register("orders-value", ORDER, "PROTOBUF", [REFERENCE])
    data = [prefixed(schema_id, indexes + VALUE) for indexes in (b"\0", b"\2\0")]
    found = decode(registry, [*data, prefixed(schema_id, b"\2\2\x0a\1x"), prefixed(schema_id, b"\4\0\2")])
    assert rows(found) == [ROW, ROW, None, None]
    assert found.values[0]["at"].as_py().timestamp() == 1
    assert found.malformed == dict.fromkeys((2, 3), "its message indexes are not those of shop.Order")
    payments = decode(registry, [prefixed(schema_id, b"\2\2\x0a\1x")], value_message_name="Payment")
    assert payments.values.to_pylist() == [{"iban": "x"}]
    # protoc declares the entry of the map as the first message of Order, and some serializers count it
    values = [prefixed(schema_id, indexes + b"\x0a\1s") for indexes in (b"\4\0\2", b"\4\0\0", b"\4\0\4")]
    lines = decode(registry, values, value_message_name="shop.Order.Line")
    assert lines.values.to_pylist() == [{"sku": "s"}, {"sku": "s"}, None]


def test_indexes_are_those_of_the_writers_file(registry) -> None:
    older = 'syntax = "proto3"; package shop; message Other {} message Order { int64 id = 1; }'
    ids = [
        registry.register("orders-value", older, "PROTOBUF"),
        registry.register("orders-value", ORDER, "PROTOBUF", [REFERENCE]),
        registry.register("others", 'syntax = "proto3"; message Order {}', "PROTOBUF"),
        registry.register("broken", 'syntax = "proto3"; message {', "PROTOBUF"),
        registry.register("avro", {"type": "string"}),
        99,
    ]
    found = decode(registry, [prefixed(ids[0], b"\2\2" + VALUE[:2]), *(prefixed(each, b"\0" + VALUE) for each in ids)])
    assert [row and row["id"] for row in found.values.to_pylist()] == [7, None, 7, None, None, None, None]
    assert found.malformed[1] == "its message indexes are not those of shop.Order"
    assert found.malformed[3] == "its schema has no message shop.Order"
    assert found.malformed[4].startswith("Compiling the Protobuf schema of id 5 failed: line:1:")
    assert found.malformed[5] == found.malformed[6] == "the registry has no Protobuf schema with this id"
    assert found.schema_ids[3] == str(ids[2])


def test_an_invalid_file_without_syntax_is_named_by_its_errors_only() -> None:
    with pytest.raises(ConfigurationError, match=r"of subject s failed: line:1:13: Expected .*optional") as caught:
        descriptor_set("subject s", "message M { Other x = 1; }")
    assert "WARNING" not in str(caught.value) and "parser.cc" not in str(caught.value)


TREE = """
syntax = "proto3"; package shop; import "google/protobuf/struct.proto";
message Order { int64 id = 1; Order parent = 2; google.protobuf.Struct extra = 3; }
"""


def test_writers_and_readers_with_recursive_messages(registry) -> None:
    """A field that Spark cannot represent affects no other field, in the writer's and in the reader's file."""
    flat = registry.register(
        "orders-value", 'syntax = "proto3"; package shop; message Order { int64 id = 1; }', "PROTOBUF"
    )
    tree = registry.register("others", TREE, "PROTOBUF")
    value = b"\0\x08\x07\x12\x04\x08\x05\x12\x00\x1a\x00"
    found = decode(registry, [prefixed(tree, value), prefixed(flat, value)])
    assert found.values.to_pylist() == [{"id": 7}] * 2
    registry.register("orders-value", TREE, "PROTOBUF")
    found = decode(registry, [prefixed(tree, value)])
    assert found.values.to_pylist() == [{"id": 7, "extra": {"fields": []}}]
    found = decode(registry, [prefixed(tree, value)], value_recursive_fields_max_depth="2")
    assert found.values.to_pylist() == [{"id": 7, "parent": {"id": 5, "extra": None}, "extra": {"fields": []}}]


def test_ids_and_indexes_in_record_headers(registry) -> None:
    schema_id = registry.register("orders-value", ORDER, "PROTOBUF", [REFERENCE])
    guid = b"\1" + bytes.fromhex(registry.guid(schema_id).replace("-", ""))
    headers = [[{"key": "__value_schema_id", "value": guid + indexes}] for indexes in (b"\0", b"\2\2", b"")]
    found = decode(registry, [VALUE] * 3, headers)
    assert rows(found) == [ROW, None, ROW]


def test_strategies_name_the_message(registry) -> None:
    schema_id = registry.register("shop.Payment", ORDER, "PROTOBUF", [REFERENCE])
    given = {"value_subject_name_strategy": "RecordNameStrategy", "value_record_name": "shop.Payment"}
    found = decode(registry, [prefixed(schema_id, b"\2\2\x0a\1x")], **given)
    assert found.values.to_pylist() == [{"iban": "x"}]


def test_descriptors_in_place_of_texts(registry) -> None:
    """confluent-kafka for Python registers these."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    field = {"name": "at", "number": 1, "label": 1, "type": 11, "type_name": ".google.protobuf.Timestamp"}
    file.message_type.add(name="M").field.add(**field)
    schema_id = registry.register("orders-value", b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    found = decode(registry, [prefixed(schema_id, b"\0\x0a\2\x08\1")])
    assert found.values[0]["at"].as_py().timestamp() == 1


def test_a_schema_given_as_text(tmp_path) -> None:
    path = tmp_path / "pay.proto"
    path.write_text('syntax = "proto2"; message Pay { optional int32 cents = 1 [default = 5]; }')
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "protobuf"}
    parsed = parse_options({**options, "value.schema": str(path), "value.message.name": "Pay"})
    schema = GroupDataSource({**options, "value.schema": str(path), "value.message.name": "Pay"}).schema()
    columns = select_columns(schema, False, parsed.values).typed
    assert column_decoder(columns.decoded[0])(pa.array([b""]), None).values.to_pylist() == [{"cents": 5}]


@pytest.mark.parametrize(
    "schema, references, message",
    [
        ('syntax = "proto3"; message M { N n = 1; }', (), 'of s failed: line:1:32: "N" is not defined.'),
        ('syntax = "proto3"; import "x.proto";', (), "x.proto: File not found"),
        ("message M {}", (("../x.proto", PLACE),), "reference '../x.proto' is no relative path"),
        ("message M {}", (("/x.proto", PLACE),), "reference '/x.proto' is no relative path"),
        ("message M {}", (("x.proto", "eA=="),), "file x.proto is no .proto text"),
        ("message M {} // \ud800", (), "file 'schema-of-the-value.proto' cannot be written: UnicodeEncodeError"),
        ("message M {}", (("", PLACE),), "file '' cannot be written: IsADirectoryError"),
        ("message M {}", (("x" * 300, PLACE),), "cannot be written: OSError"),
        ("message M {}", (("a.proto", PLACE), ("a.proto/b.proto", PLACE)), "cannot be written: "),
        ("message M {}", (("\ud800.proto", PLACE),), "cannot be written: UnicodeEncodeError"),
        ("no base64", (), "it is neither the text of a .proto file nor a descriptor in base64"),
        ("eA==", (), "it is neither the text of a .proto file nor a descriptor in base64"),
    ],
)
def test_invalid_schemas_are_rejected(schema: str, references: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        descriptor_set("s", schema, references)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "indexes", [b"", b"\0", b"\2\0", b"\2\2", b"\2\1", b"\x80\0", b"\2\x80\0", b"\1", b"\4\0\2", b"\xff"]
)
@pytest.mark.parametrize("is_in_header", [False, True])
def test_indexes_are_those_of_columns_and_of_values_for_people(indexes: bytes, is_in_header: bool) -> None:
    text = descriptor_set("s", 'syntax = "proto3"; message M { int32 a = 1; message N { int32 a = 1; } }')
    values = [b"\x08\x05" if is_in_header else indexes + b"\x08\x05"]
    files = ProtoFiles("Schema", text)
    plain = WrittenProtobuf(files, lambda each: each.values.to_pylist()).decode(
        values, [indexes if is_in_header else None]
    )
    message = files.message("message", "M")
    named = NamedSchemas(pa.array(values), {1: np.array([0])}, {}, {0: indexes} if is_in_header else {})
    column = ProtobufDecoder(message, message_type(message)).decode_named(named)
    assert isinstance(plain[0], Malformed) == (0 in column.malformed)
    assert plain[0] == column.values.to_pylist()[0] or 0 in column.malformed


def test_files_of_references_are_no_modules_of_protoc() -> None:
    """protoc runs in Python, and must not import what a registry returned."""
    evil = (("grpc_tools/__init__.py", "raise SystemExit(7);"), ("sitecustomize.py", "raise SystemExit(7);"))
    found = ProtoFiles("Schema", descriptor_set("s", 'syntax = "proto3"; message M {}', evil))
    assert dict(found.names) == {(0,): "M"}


def test_a_missing_compiler_fails_the_task(registry, monkeypatch) -> None:
    """It is no malformed value."""
    monkeypatch.setattr(proto_files.importlib.util, "find_spec", lambda name: None)
    schema_id = registry.register("orders-value", PLACE + "// another text", "PROTOBUF")
    with pytest.raises(ConfigurationError, match="grpcio-tools is not installed. Run: pip install 'spark-groupsource"):
        decode(registry, [prefixed(schema_id, b"\0")])
