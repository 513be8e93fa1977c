"""Typed columns through Spark, beside from_json on the same records."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from schema_registry import SchemaRegistryServer
from support.topics import create_topic, produce

pytestmark = pytest.mark.spark

SCHEMA = (
    "id bigint, name string, price double, small int, day date, at timestamp, tags array<string>, "
    "place struct<lat: double, names: array<struct<code: string>>>, attributes map<string,int>, total decimal(6,2)"
)
GOOD = [
    {"id": 1, "name": "a", "price": 1.5, "small": 2, "day": "2024-01-02", "at": "2024-01-02T03:04:05.678Z",
     "tags": ["x", None], "place": {"lat": 0.1, "names": [{"code": "Z", "other": 1}, None]},
     "attributes": {"k": 1, "l": None}, "total": 12.5, "extra": {"deep": [1, 2]}},
    {"id": None, "name": "", "tags": [], "place": {}, "attributes": {}},
    {},
    {"id": -(2**63), "name": "\u00e9\U0001d11e\n\"", "price": 1e300, "at": "2024-01-02 03:04:05", "total": "1.005"},
    {"name": 12.50, "price": "NaN", "at": 86400, "day": "2024-1-2"},
    {"name": {"a": [1, True]}, "price": 3, "place": None},
]  # fmt: skip
RAW = [b'{"id": 1, "id": 2}', b' {"id":\n3}\t', b'{"price": 1e400}', b""]
BAD = [
    b"not json", b'{"id": 1', b'{"id": "x"}', b'{"id": 1.5}', b'{"id": 9223372036854775808}', b'{"small": 3000000000}',
    b'{"day": "tomorrow"}', b'{"tags": "x"}', b'{"place": []}', b'{"attributes": {"k": "v"}}', b'{"total": 100000}',
    b'{"name": "a\nb"}', b"12",
]  # fmt: skip
VALUES = [json.dumps(each).encode() for each in GOOD] + RAW


@pytest.fixture(scope="module")
def filled(broker_address):
    """Partition 0 has values of the schema, partition 1 malformed ones between them."""
    create_topic(broker_address, "typed-values", 2)
    mixed = [each for pair in zip(BAD, [VALUES[0]] * len(BAD)) for each in pair]
    produce(broker_address, "typed-values", [(0, None, v) for v in VALUES] + [(1, b"\0\0\0\7", v) for v in mixed])
    return "typed-values"


@pytest.fixture(scope="module")
def broker_address():
    from spark_groupsource.broker.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


def read(spark, address, topic, partition, **given):
    options = {name.replace("_", "."): text for name, text in given.items()}
    return (
        spark.read.format("groupsource")
        .option("kafka.bootstrap.servers", address)
        .option("assign", json.dumps({topic: [partition]}))
        .options(**options)
    )


def test_json_equals_from_json(spark, broker_address, filled):
    ours = read(spark, broker_address, filled, 0, value_format="json", value_schema=SCHEMA).load()
    plain = read(spark, broker_address, filled, 0).load()
    theirs = plain.withColumn("value", F.from_json(F.col("value").cast("string"), SCHEMA))
    assert_df_equality(ours.orderBy("offset"), theirs.orderBy("offset"), allow_nan_equality=True)


def test_malformed_values_are_those_of_from_json(spark, broker_address, filled):
    options = {"value_format": "json", "key_format": "int", "mode": "PERMISSIVE"}
    ours = read(spark, broker_address, filled, 1, value_schema=SCHEMA, **options).load().orderBy("offset").collect()
    corrupt = F.from_json(
        F.col("value").cast("string"), f"{SCHEMA}, _corrupt string", {"columnNameOfCorruptRecord": "_corrupt"}
    )
    plain = read(spark, broker_address, filled, 1).load().select("value", corrupt["_corrupt"].alias("corrupt"))
    expected = [(bytes(row.value) if row.corrupt is not None else None) for row in plain.collect()]
    assert [row._error and bytes(row._error.bytes) for row in ours] == expected
    assert [row.value is None for row in ours] == [True, False] * len(BAD) and {row.key for row in ours} == {7}
    assert {row._error.column for row in ours if row._error} == {"value"}

    kept = read(spark, broker_address, filled, 1, value_format="json", mode="DROPMALFORMED", value_flatten="true")
    assert [tuple(row) for row in kept.schema("name string, offset bigint").load().filter("offset < 4").collect()] == [
        ("a", 1), ("a", 3)
    ]  # fmt: skip
    failing = read(spark, broker_address, filled, 1, value_format="json").schema("value struct<id bigint>").load()
    with pytest.raises(PySparkException, match="MALFORMED_RECORD.*typed-values-1 at offset 0 as json failed"):
        failing.collect()


def test_a_stream_has_the_columns_of_a_subject(spark, broker_address, tmp_path):
    create_topic(broker_address, "flights", 1)

    def flight(*names):
        return {"type": "record", "name": "Flight", "fields": [{"name": name, "type": "long"} for name in names]}

    def write(*names):
        schema_id, data = registry.register("flights-value", flight(*names)), io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(flight(*names)), {name: len(name) for name in names})
        produce(broker_address, "flights", [(0, None, b"\0" + schema_id.to_bytes(4, "big") + data.getvalue())])

    def load():
        options = {"value.format": "avro", "value.flatten": "true", "onSchemaChange": "restart"}
        address = {"kafka.bootstrap.servers": broker_address, "value.schema.registry.url": registry.url}
        stream = spark.readStream.format("groupsource").options(**options, **address, startingOffsets="earliest")
        return stream.option("kafka.group.id", "schemas").option("subscribe", "flights").load()

    def run(stream):
        rows = []
        writer = stream.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination()
        return rows

    with SchemaRegistryServer() as registry:
        write("delay")
        loaded = load()
        assert [row.delay for row in run(loaded)] == [5]
        write("delay", "gate")
        # the same DataFrame: no record of the newer version is read as the older one
        with pytest.raises(PySparkException, match="SCHEMA_CHANGED.*flights-value has version 2"):
            run(loaded)
        assert [(row.delay, row.gate) for row in run(load())] == [(5, 4)]


def test_a_stream_has_typed_columns(spark, broker_address, filled, tmp_path):
    stream = (
        spark.readStream.format("groupsource")
        .option("kafka.bootstrap.servers", broker_address)
        .option("assign", json.dumps({filled: [0]}))
        .option("startingOffsets", "earliest")
        .option("value.format", "json")
        .option("value.flatten", "true")
        .schema("id bigint, offset bigint")
        .load()
    )
    query = (
        stream.writeStream.format("memory").queryName("typed_values")
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    rows = spark.table("typed_values").orderBy("offset").collect()
    assert [row.id for row in rows] == [1, None, None, -(2**63), None, None, 2, 3, None, None]


def test_recursive_avro_is_read_to_a_depth(spark, broker_address):
    """Fields that Spark cannot represent are left out, also all fields of a record."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 64}
    amounts = {"type": "record", "name": "Amounts", "fields": [{"name": "amount", "type": decimal}]}
    schema = {
        "type": "record",
        "name": "Person",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "friends", "type": {"type": "array", "items": "Person"}},
            {"name": "amounts", "type": amounts},
        ],
    }
    create_topic(broker_address, "people", 1)
    child = b"\2b" + b"\2" + b"\2c\0\2\1" + b"\0" + b"\2\1"
    produce(broker_address, "people", [(0, None, b"\2a" + b"\2" + child + b"\0" + b"\2\1"), (0, None, child)])
    options = {"value_format": "avro", "value_schema": json.dumps(schema)}
    people = read(spark, broker_address, "people", 0, **options, value_recursive_fields_max_depth="2").load()
    assert people.schema["value"].dataType.simpleString() == (
        "struct<name:string,friends:array<struct<name:string,amounts:struct<>>>,amounts:struct<>>"
    )
    found = people.orderBy("offset").select("value.name", "value.friends.name", "value.amounts").collect()
    assert [tuple(row) for row in found] == [("a", ["b"], ()), ("b", ["c"], ())]
    flat = read(spark, broker_address, "people", 0, **options, value_flatten="true").load()
    assert flat.columns[:3] == ["key", "name", "amounts"]
    assert [row.name for row in flat.orderBy("offset").collect()] == ["a", "b"]
