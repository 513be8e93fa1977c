"""Values with registered schemas, read by Confluent's deserializers and by the source."""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Decimal
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from schema_registry import SchemaRegistryServer

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.sink_options import SinkOptions, parse_sink_options
from spark_groupsource.source.options.value_options import WRITTEN_VALUE_OPTIONS
from spark_groupsource.values.column_writers import ColumnWriters, column_writer
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.json.derived_json_schema import derived_json_schema
from spark_groupsource.values.registry.proto_files import descriptor_set
from spark_groupsource.values.typed_columns import TypedColumn, column_decoder

KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])
ROWS = [{"id": 1, "name": "a"}, None, {"id": None, "name": "\u00e9"}]


@pytest.fixture
def registry():
    with SchemaRegistryServer() as server:
        yield server


@pytest.fixture
def client(registry):
    """Confluent's client."""
    with SchemaRegistryClient({"url": registry.url}) as found:
        yield found


def parsed(registry: SchemaRegistryServer | None, **options: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.max.block.ms": "1000", "topic": "t", "value.format": "avro"}
    if registry is not None:
        given["value.schema.registry.url"] = registry.url
    return parse_sink_options({**given, **{name.replace("_", "."): text for name, text in options.items()}}, "batch")


def written(options: SinkOptions, rows: list[Any] = ROWS, topics: list[str | None] | None = None) -> list[bytes | None]:
    columns = {"value": pa.array(rows, KIND)} | ({} if topics is None else {"topic": pa.array(topics, pa.string())})
    batches = ColumnWriters(options.formats, None if topics else options.topic).encoded(pa.record_batch(columns))
    return [each for batch in batches for each in batch["value"].to_pylist()]


def text_of(registry: SchemaRegistryServer, schema_id: int) -> str:
    return str(registry.respond("GET", f"/schemas/ids/{schema_id}", b"")[1]["schema"])


def ids(data: list[bytes | None]) -> list[int | None]:
    return [None if each is None else int.from_bytes(each[1:5], "big") for each in data]


def failure(options: SinkOptions, topics: list[str | None] | None = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        written(options, topics=topics)
    return str(raised.value)


def test_the_schema_of_the_column_is_registered_once_and_read_by_confluents_deserializer(registry, client) -> None:
    data = [written(parsed(registry)) for _ in range(2)]
    assert data[0] == data[1]
    posts = [each for each in registry.requests if each.startswith("POST")]
    assert posts == ["POST /subjects/t-value/versions"]
    read = AvroDeserializer(client)
    context = SerializationContext("t", MessageField.VALUE)
    assert [read(each, context) for each in data[0]] == ROWS
    assert json.loads(text_of(registry, 1))["name"] == "topLevelRecord"


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({}, "t-value"),
        ({"value_record_name": "a.B"}, "t-value"),
        ({"value_subject_name_strategy": "record", "value_record_name": "a.B"}, "a.B"),
        ({"value_subject_name_strategy": "record"}, "topLevelRecord"),
        ({"value_subject_name_strategy": "io.confluent.TopicRecordNameStrategy"}, "t-topLevelRecord"),
        ({"value_subject_name_strategy": "record", "value_schema": "{schema}"}, "n.R"),
    ],
)
def test_subjects(registry, options: dict[str, str], subject: str) -> None:
    fields = [{"name": "id", "type": ["null", "long"]}, {"name": "name", "type": ["null", "string"]}]
    schema = json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": fields})
    given = {name: text.format(schema=schema) if text == "{schema}" else text for name, text in options.items()}
    written(parsed(registry, **given))
    assert registry.requests == [f"POST /subjects/{subject}/versions"]
    found = text_of(registry, 1)
    if "value_schema" in options:
        assert found == schema
    elif "value_record_name" in options:
        assert json.loads(found)["namespace"] == "a"


def test_versions_of_a_subject(registry, client) -> None:
    def schema(*names: str) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": each, "type": ["null", "long"]} for each in names]}

    text = {"name": "name", "type": ["string", "null"]}
    first = {**schema("id"), "fields": [*schema("id")["fields"], text]}
    second = {**schema("added", "id"), "fields": [*schema("added", "id")["fields"], text]}
    registry.register("other", "long")
    for each in (first, second):
        registry.register("t-value", each)
    assert ids(written(parsed(registry, value_schema_version="1"))) == [2, None, 2]
    assert ids(written(parsed(registry, value_schema_version="latest"))) == [3, None, 3]
    read = AvroDeserializer(client)
    context = SerializationContext("t", MessageField.VALUE)
    data = written(parsed(registry, value_schema_version="latest"))
    assert read(data[0], context) == {"added": None, "id": 1, "name": "a"}
    assert not [each for each in registry.requests if each.startswith("POST")]
    requested = len(registry.requests)
    written(parsed(registry, value_schema_version="latest"))
    assert len(registry.requests) == requested
    assert "Version 9 of subject t-value does not exist." in failure(parsed(registry, value_schema_version="9"))


def test_schemas_that_are_not_registered(registry) -> None:
    options = parsed(registry, value_auto_register_schemas="false")
    assert failure(options) == (
        "The schema of column value is no version of subject t-value. Register it, or set value.auto.register.schemas "
        "to true, or value.schema.version to latest."
    )
    data = written(parsed(registry))
    assert written(options) == data


def test_each_topic_has_its_subject(registry) -> None:
    registry.register("b-value", "long")
    data = written(parsed(registry), [*ROWS, *ROWS], ["a", "b", "b", "a", None, "c"])
    assert registry.requests == [f"POST /subjects/{name}-value/versions" for name in ("a", "b", "c")]
    # a schema has one id in all subjects
    assert ids(data) == [2, None, 2, 2, None, 2]
    assert [each and each[5:] for each in data[:3]] == [b"\0\2\0\2a", None, b"\2\0\4\xc3\xa9"]


def test_a_registry_that_rejects_a_schema(registry) -> None:
    registry.intercept = lambda method, path, headers: (409, {"error_code": 409, "message": "Schema is incompatible"})
    assert failure(parsed(registry)) == (
        f"Sending a schema to {registry.url}/subjects/t-value/versions failed: Schema is incompatible (409). Correct "
        "the types of the columns, or the schema."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_auto_register_schemas": "true"}, "value.auto.register.schemas has no effect without value.schema."),
        ({"value_schema_version": "1"}, "Option value.schema.version has no effect without value.schema.registry.url."),
        ({"value_use_latest_version": "true"}, "is not supported. Set value.schema.version=latest."),
        ({"value_flatten": "true"}, "Option value.flatten is not allowed when writing: it is an option of reads."),
        ({"mode": "PERMISSIVE"}, "Option mode is not allowed when writing: it is an option of reads. Remove it."),
        ({"value_schema_header": "glue"}, "Option value.schema.header is not allowed when writing"),
        ({"onSchemaChange": "fail"}, "Option onSchemaChange is not allowed when writing"),
        ({"value_format": "json", "value_schema": "a int"}, "value.schema has no effect without value.schema.regis"),
        ({"value_format": "long", "value_schema": "x"}, "Option value.schema has no effect with value.format=long."),
        ({"value_message_name": "M"}, "Option value.message.name has no effect with value.format=avro."),
        ({"value_format": "yaml"}, "Option value.format must be one of"),
        ({"value_basic_auth_user_info": "a:b"}, "has no effect without value.schema.registry.url"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parsed(None, **options)
    assert message in str(raised.value)


def test_a_version_excludes_a_schema_and_registration(registry) -> None:
    for option in ("value_schema", "value_auto_register_schemas"):
        with pytest.raises(ConfigurationError) as raised:
            parsed(registry, value_schema_version="1", **{option: "true"})
        assert "are both set. Remove one of them" in str(raised.value)


def test_a_strategy_of_records_needs_one(registry) -> None:
    options = parsed(registry, value_subject_name_strategy="record")
    batch = pa.record_batch({"value": pa.array([1])})
    with pytest.raises(ConfigurationError) as raised:
        list(ColumnWriters(options.formats, "t").encoded(batch))
    assert "needs a record, and the schema of column value is none. Set it to" in str(raised.value)
    with pytest.raises(ConfigurationError) as raised:
        parsed(registry, value_subject_name_strategy="record", value_schema_version="1")
    assert "Option value.record.name is missing" in str(raised.value)


def test_every_option_of_written_columns_is_one_of_reads_or_a_documented_one() -> None:
    assert "value.auto.register.schemas" in WRITTEN_VALUE_OPTIONS
    assert "{" not in "".join(each.doc for each in WRITTEN_VALUE_OPTIONS.values())


PROTO = """syntax = "proto3";
package p;
message First { message Within { int64 id = 1; } }
message R { int64 id = 1; optional string name = 2; }
"""


def messages() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(b64decode(descriptor_set("the test", PROTO))).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.R"))


@pytest.mark.parametrize("is_text", [True, False])
def test_protobuf_is_registered_and_read_by_confluents_deserializer(registry, client, is_text: bool) -> None:
    schema = PROTO if is_text else descriptor_set("the test", PROTO)
    options = parsed(registry, value_format="protobuf", value_schema=schema, value_message_name="R")
    data = written(options)
    # the second message of the file
    assert [each and each[:7] for each in data] == [b"\0\0\0\0\1\2\2", None, b"\0\0\0\0\1\2\2"]
    # a registry returns a text as a descriptor on request, which the one of the tests does not
    read = ProtobufDeserializer(messages(), {"use.deprecated.format": False}, None if is_text else client)
    context = SerializationContext("t", MessageField.VALUE)
    found = [each and read(each, context) for each in data]
    assert [each and (each.id, each.name) for each in found] == [(1, "a"), None, (0, "\u00e9")]
    assert registry.requests[0] == "POST /subjects/t-value/versions"
    assert (text_of(registry, 1) == PROTO.strip()) is is_text
    # the source reads it by the schema of the registry
    named = ColumnFormat(
        "value",
        "protobuf",
        descriptor_set("the test", PROTO),
        registry=options.formats[1].registry,
        header="confluent",
        message="p.R",
    )
    decode = column_decoder(TypedColumn(named, KIND))
    assert decode(pa.array(data, pa.binary()), None).values.to_pylist() == ROWS


def test_protobuf_by_a_version_of_a_subject(registry) -> None:
    registry.register("t-value", PROTO, "PROTOBUF")
    given = {"value_format": "protobuf", "value_schema_version": "latest"}
    assert written(parsed(registry, **given, value_message_name="p.R"))[0] == b"\0\0\0\0\1\2\2\x08\1\x12\1a"
    kind = pa.struct([("id", pa.int64())])
    within = parsed(registry, **given, value_message_name="p.First.Within")
    (found,) = ColumnWriters(within.formats, "t").encoded(pa.record_batch({"value": pa.array([{"id": 1}], kind)}))
    assert found["value"].to_pylist() == [b"\0\0\0\0\1\4\0\0\x08\1"]
    registry.register("t-value", "long")
    with pytest.raises(ConfigurationError) as raised:
        written(parsed(registry, **{**given, "value_schema_version": "2"}))
    assert "Version 2 of subject t-value is a schema of AVRO. Correct option value.schema.version" in str(raised.value)


def test_protobuf_without_a_registry() -> None:
    options = parsed(None, value_format="protobuf", value_schema=PROTO, value_message_name="R")
    assert written(options) == [b"\x08\1\x12\1a", None, b"\x12\2\xc3\xa9"]
    for given, message in (
        ({}, "Option value.schema is missing: value.format is protobuf."),
        ({"value_schema": PROTO}, "Option value.message.name is missing: value.format is protobuf."),
    ):
        with pytest.raises(ConfigurationError) as raised:
            parsed(None, value_format="protobuf", **given)
        assert message in str(raised.value)


def test_json_is_registered_and_read_by_confluents_deserializer(registry, client) -> None:
    data = written(parsed(registry, value_format="json", value_record_name="a.B"))
    assert data == [b'\0\0\0\0\1{"id":1,"name":"a"}', None, b'\0\0\0\0\1{"name":"\xc3\xa9"}']
    read = JSONDeserializer(None, schema_registry_client=client)
    context = SerializationContext("t", MessageField.VALUE)
    assert [each and read(each, context) for each in data] == [{"id": 1, "name": "a"}, None, {"name": "\u00e9"}]
    assert json.loads(text_of(registry, 1))["title"] == "a.B"
    # a given schema is registered as it is, and named by its title
    given = {"value_format": "json", "value_subject_name_strategy": "record"}
    assert ids(written(parsed(registry, **given, value_schema='{"title":"T"}'))) == [2, None, 2]
    assert registry.requests[-1] == "POST /subjects/T/versions"
    latest = parsed(registry, **given, value_schema_version="latest", value_record_name="T")
    assert ids(written(latest)) == [2, None, 2]


def test_values_match_the_json_schema_of_their_column() -> None:
    kind = pa.struct(
        [
            ("b", pa.bool_()),
            ("d", pa.float64()),
            ("n", pa.decimal128(9, 2)),
            ("x", pa.binary()),
            ("y", pa.date32()),
            ("t", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.struct([("q", pa.string())]))),
            ("m", pa.map_(pa.int32(), pa.timestamp("us"))),
            ("v", pa.null()),
        ]
    )
    rows = [
        {"b": True, "d": 1e300, "n": Decimal("1.50"), "x": b"a", "y": 1, "t": 1, "l": [None, {"q": "a"}]},
        {"m": [(1, 2), (2, None)], "l": []},
        {},
    ]
    schema = json.loads(derived_json_schema(kind, "T"))
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema, format_checker=jsonschema.FormatChecker())
    for text in column_writer(ColumnFormat("value", "json"), kind)(pa.array(rows, kind)).to_pylist():
        validator.validate(json.loads(text))
    for wrong in ({"b": 1}, {"l": [1]}, {"m": {"a": 1}}, {"y": "no"}):
        assert not validator.is_valid(wrong)
