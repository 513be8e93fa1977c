"""Schemas of columns from subjects of a registry: load(), restart, newer versions."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType
from schema_registry import SchemaRegistryServer
from support.session_fakes import P0, FakeCluster, FakeGroup, Query

from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError, SchemaChangedError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.checkpoint import schemas_in_checkpoint
from spark_groupsource.source.positions.schema_changes import SchemaChanges
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.values.json.json_schema import struct_of_json_schema
from spark_groupsource.values.registry.registry_client import shared_registry

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "avro", "value.flatten": "true"}
BATCH = {P0: (0, 10)}


def flight(*fields: str) -> dict:
    return {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [{"name": f, "type": "int"} for f in fields],
    }


@pytest.fixture
def server():
    with SchemaRegistryServer() as running:
        running.register("t-value", flight("delay"))
        yield running


def source(server, **given: str) -> GroupDataSource:
    options = {name.replace("_", "."): text for name, text in given.items()}
    return GroupDataSource({**BASE, "value.schema.registry.url": server.url, **options})


def fields(found: GroupDataSource) -> list[str]:
    names = found.schema().names
    return names[names.index("key") + 1 : names.index("topic")]


def query(server, start=None, columns=None, **given: str) -> Query:
    """A query of partition 0, loaded as Spark does; `columns` are those that it declares."""
    loaded = source(server, **{"kafka_group_id": "g", "startingOffsets": "earliest", **given})
    columns = columns or loaded.schema()
    reader = pickle.loads(pickle.dumps(loaded)).streamReader(columns)
    # private: the options that the reader process receives
    return Query(start, FakeCluster({P0: (0, 10)}), FakeGroup({P0: 0}), parsed=reader._options)


def test_columns_are_those_of_the_subject_when_the_query_was_loaded(server) -> None:
    loaded = source(server, kafka_group_id="g")
    assert fields(loaded) == ["delay"]
    server.register("t-value", flight("delay", "gate"))
    # the copies in the reader process and in the tasks request nothing
    requests = len(server.requests)
    copy = pickle.loads(pickle.dumps(loaded))
    for reader in (copy.streamReader(loaded.schema()), copy.reader(loaded.schema())):
        # private: the decoding that a task receives
        assert reader._columns.typed.decoded[0].kind == pa.struct([("delay", pa.int32())])
    assert len(server.requests) == requests
    assert fields(source(server)) == ["delay", "gate"] and fields(source(server, value_schema_version="1")) == ["delay"]


def test_strategies_of_subject_names(server) -> None:
    server.register("air.Flight", flight("by_record"))
    server.register("t-air.Flight", flight("by_both"))
    name = {"value_record_name": "air.Flight"}
    for strategy in ("record", "io.confluent.kafka.serializers.subject.RecordNameStrategy"):
        assert fields(source(server, value_subject_name_strategy=strategy, **name)) == ["by_record"]
    assert fields(source(server, value_subject_name_strategy="topic-record", **name)) == ["by_both"]
    assert fields(source(server, value_subject_name_strategy="TopicNameStrategy")) == ["delay"]
    several = {"subscribe": "t,u", "value_subject_name_strategy": "record"}
    assert fields(source(server, **several, **name)) == ["by_record"]


def test_columns_of_a_json_schema(server, tmp_path) -> None:
    place = {
        "type": "object",
        "properties": {"lat": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {}}},
    }
    properties = {
        "id": {"type": "integer"}, "at": {"oneOf": [{"type": "null"}, {"$ref": "place.json"}]},
        "by": {"type": "object", "additionalProperties": {"type": "boolean"}}, "kind": {"enum": ["a", "b"]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]}, "size": {"type": ["integer", "number"]},
    }  # fmt: skip
    # the place is a schema of another subject
    server.register("place", place, "JSON")
    references = [{"name": "place.json", "subject": "place", "version": 1}]
    server.register("j-value", {"properties": properties}, "JSON", references)
    strategy = {"value_subject_name_strategy": "record", "value_record_name": "j-value"}
    given = {"value_format": "json", "value_flatten": "false", "kafka_group_id": "g", **strategy}
    loaded = source(server, **given)
    kind = (
        "struct<id:bigint,at:struct<lat:double,tags:array<string>>,by:map<string,boolean>,kind:string,either:string,"
        "size:double>"
    )
    assert loaded.schema()["value"].dataType.simpleString() == kind
    server.register("j-value", {"properties": {"id": {"type": "string"}}}, "JSON")
    copy = pickle.loads(pickle.dumps(loaded))
    assert copy.reader(loaded.schema())._columns.typed.decoded[0].given.reader.version == 1
    # a query with columns of its own needs no subject
    requests = len(server.requests)
    declared = source(server, **{**given, "value_record_name": "none"})
    columns = StructType([StructField("value", StructType([StructField("id", LongType())]))])
    for reader in (declared.reader(columns), declared.streamReader(columns)):
        assert reader._columns.typed.decoded[0].given.reader is None
    assert len(server.requests) == requests
    # through the checkpoint
    running = query(server, **{**given, "value_schema_version": "1"})
    running.trigger()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(running.start)}")
    kept = source(server, **given, checkpointLocation=str(tmp_path))
    assert kept.schema()["value"].dataType.simpleString() == kind


@pytest.mark.parametrize(
    "schema, message",
    [
        ({"type": "array", "items": {}}, "Schema of subject t-value is no object with properties"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "refers to other.json, which does not exist"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "refers to #/$defs/x, which does not exist"),
        ("{", "is no JSON Schema"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/0"}},
                "$defs": {
                    str(at): {"properties": dict.fromkeys("ab", {"$ref": f"#/$defs/{at + 1}"})} for at in range(40)
                }
                | {"40": {}},
            },
            "has more than 20000, those that are used repeatedly included",
        ),
        ({"oneOf": 5, "type": [{}, []]}, "is no object with properties"),
    ],
)
def test_other_json_schemas_are_named(schema, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        struct_of_json_schema(schema if isinstance(schema, str) else json.dumps(schema), "of subject t-value")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"subscribe": "u"}, "no version of subject u-value. Register it"),
        ({"value_schema_version": "7"}, "no version 7 of subject t-value"),
        ({"value_schema_version": "0"}, "must be latest or the number of a version, got '0'"),
        ({"subscribe": "t,u"}, "has a subject for each topic, and the query has 2 topics. Subscribe to one topic"),
        ({"value_subject_name_strategy": "record"}, "Option value.record.name is missing"),
        ({"value_record_name": "x"}, "value.record.name has no effect with value.subject.name.strategy=topic. Set the"),
        ({"value_format": "protobuf", "value_record_name": "x"}, "strategy=topic. Set value.message.name, or remove"),
        ({"value_subject_name_strategy": "other"}, "must be one of topic, record, topic-record"),
        ({"value_schema": '"int"', "value_record_name": "x"}, "value.record.name has no effect with value.schema"),
        ({"value_schema": '"int"', "onSchemaChange": "fail"}, "onSchemaChange=fail needs a schema of a subject"),
        ({"value_schema_version": "1", "onSchemaChange": "restart"}, "needs value.schema.version=latest, got 1"),
        ({"subscribe": "bad"}, "The schema of subject bad-value is no supported Avro schema: type x is not defined."),
        ({"subscribe": "json"}, "subject json-value has schemas of type JSON. Correct value.format"),
    ],
)
def test_invalid_options_are_named(server, given: dict[str, str], message: str) -> None:
    server.register("json-value", "{}", "JSON")
    server.register("bad-value", {"type": "array", "items": "x"})
    with pytest.raises(ConfigurationError) as caught:
        source(server, **given).schema()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_registry_that_does_not_respond_or_rejects_ends_load(server) -> None:
    server.intercept = lambda *request: (503, {})
    with pytest.raises(NetworkError, match="Check option value.schema.registry.url"):
        source(server, kafka_default_api_timeout_ms="30")
    server.intercept = lambda *request: (401, {})
    with pytest.raises(AuthenticationError):
        source(server)


def test_a_table_of_the_catalog_keeps_the_version(server) -> None:
    options = {f"option.{name}": text for name, text in {**BASE, "value.schema.registry.url": server.url}.items()}
    created = GroupDataSource({**options, "provider": "groupsource"})
    schema = created.schema()
    server.register("t-value", flight("delay", "gate"))
    typed = GroupDataSource({}).reader(schema)._columns.typed
    assert typed.decoded[0].given.reader.version == 1


def test_the_checkpoint_keeps_the_schema(server, tmp_path) -> None:
    running = query(server)
    assert running.trigger() == BATCH
    kept = running.start["@group"]["schemas"]["value"]
    assert kept == {"id": 1, "subject": "t-value", "version": 1, "schema": json.dumps(flight("delay"))}
    (tmp_path / "offsets").mkdir()
    assert schemas_in_checkpoint(f"file://{tmp_path}") == []
    for remote in ("s3a://bucket/query", "hdfs:/query", "dbfs:/query"):
        with pytest.raises(ConfigurationError, match=f"Option checkpointLocation .* got '{remote}'"):
            schemas_in_checkpoint(remote)
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(running.start)}")
    server.register("t-value", flight("delay", "gate"))
    assert fields(source(server, checkpointLocation=str(tmp_path))) == ["delay"]
    assert fields(source(server, checkpointLocation=str(tmp_path), onSchemaChange="restart")) == ["delay", "gate"]
    # another subject
    server.register("u-value", flight("other"))
    assert fields(source(server, checkpointLocation=str(tmp_path), subscribe="u")) == ["other"]
    # too long for the checkpoint
    server.register("t-value", flight(*(f"f{number}" for number in range(3_000))))
    running = query(server)
    running.trigger()
    assert running.start["@group"]["schemas"]["value"] == {"id": 4, "subject": "t-value", "version": 3}
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(running.start)}")
    server.register("t-value", flight("last"))
    assert len(fields(source(server, checkpointLocation=str(tmp_path)))) == 3_000


def test_a_restart_with_other_columns(server, caplog) -> None:
    running = query(server)
    running.trigger()
    server.register("t-value", {**flight("delay"), "doc": "the same columns"})
    again = query(server, start=running.start)
    again.trigger()
    assert again.committed() == {P0: 10}
    with pytest.raises(SchemaChangedError, match="version 1 of subject t-value, .* of version 2. Set option value.sch"):
        query(server, start=running.start, onSchemaChange="fail").trigger()
    server.register("t-value", flight("delay", "gate"))
    with pytest.raises(SchemaChangedError, match="Set option value.schema.version=1, or checkpointLocation"):
        query(server, start=running.start).trigger()
    # a logged batch is read again before anything else
    with pytest.raises(SchemaChangedError):
        query(server).session.input_partitions({}, running.start)
    assert query(server, start=running.start, value_schema_version="1").trigger() is None
    newer = query(server, start=running.start, onSchemaChange="restart")
    assert newer.trigger() is None and "[column=value] The schema has changed: the checkpoint has" in caplog.text
    newer.cluster.logs[P0] = (0, 20)
    newer.clock.advance_ms(200)
    assert newer.trigger() == {P0: (10, 20)} and newer.start["@group"]["schemas"]["value"]["version"] == 3


def test_a_restart_with_columns_of_the_query(server) -> None:
    server.register("t-value", flight("delay", "gate"))
    columns = StructType([StructField("delay", IntegerType()), StructField("offset", LongType())])
    running = query(server, value_schema_version="1", columns=columns)
    running.trigger()
    again = query(server, start=running.start, columns=columns)
    assert again.trigger() is None and again.committed() == {P0: 10}
    with pytest.raises(SchemaChangedError):
        query(server, start=running.start).trigger()


@pytest.mark.parametrize("reaction", ["ignore", "fail", "restart"])
def test_a_newer_version_while_the_query_runs(server, reaction: str) -> None:
    running = query(server, onSchemaChange=reaction)
    assert running.trigger() == BATCH
    server.register("t-value", flight("delay", "gate"))
    # without records nothing changes
    running.clock.advance_ms(200)
    assert running.trigger() is None and running.committed() == {P0: 10}
    running.cluster.logs[P0] = (0, 20)
    running.clock.advance_ms(200)
    if reaction == "ignore":
        assert running.trigger() == {P0: (10, 20)}
        return
    with pytest.raises(SchemaChangedError, match=f"t-value has version 2, the col.* version 1, .*Change is {reaction}"):
        running.trigger()
    assert running.committed() == {P0: 10}
    again = query(server, start=running.start, onSchemaChange=reaction)
    again.cluster.logs[P0] = (0, 20)
    if reaction == "restart":
        assert again.trigger() == {P0: (10, 20)}
    else:
        with pytest.raises(SchemaChangedError):
            again.trigger()


def test_batch_reads_check_their_records_too(server) -> None:
    values = source(server, onSchemaChange="fail")
    # private: the options of a batch read
    values = values._parsed(values._options, "batch").values
    SchemaChanges(values).check_planned()
    server.register("t-value", flight("delay", "gate"))
    with pytest.raises(SchemaChangedError):
        SchemaChanges(values).check_planned()
    assert shared_registry(values.value.registry, "value").latest_version("t-value") == 2
    assert parse_options(BASE | {"value.schema": '"int"'}).values.of_subjects == ()
