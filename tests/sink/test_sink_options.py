"""Options and columns of the sink, without Spark's JVM."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from spark_groupsource.client.records.producer_settings import PRODUCER_SETTINGS, ProducerSettings
from spark_groupsource.client.rejected_settings import PRODUCER_REJECTED_SETTINGS, UNUSED_SETTINGS
from spark_groupsource.common.config_def import config_keys
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.sink_options import SINK_OPTIONS, SinkOptions, parse_sink_options
from spark_groupsource.source.spark import sink_writers
from spark_groupsource.source.spark.datasource import GroupDataSource

ADDRESS = {"kafka.bootstrap.servers": "localhost:9092"}
# of ProducerConfig.configDef() of kafka-clients 4.4.0: the default of each setting, and other values
VALUES = [
    tuple(line.split("\t")) for line in Path(__file__).with_name("producer_config.tsv").read_text().splitlines()
]
REJECTED = {
    ("acks", "0"): "is not supported: a task returns when its records are acknowledged",
    ("client.dns.lookup", "resolve_canonical_bootstrap_servers_only"): "is not supported",
    ("enable.metrics.push", "true"): "is not supported",
    ("interceptor.classes", "x.Y"): "is not supported: Java interceptors cannot run in Python",
    ("key.serializer", "org.apache.kafka.common.serialization.StringSerializer"): "is not supported: the column key",
    ("metadata.recovery.strategy", "none"): "is not supported",
    ("metric.reporters", "org.apache.kafka.common.metrics.JmxReporter"): "is not supported",
    ("metrics.num.samples", "3"): "is not supported",
    ("metrics.recording.level", "DEBUG"): "is not supported",
    ("metrics.sample.window.ms", "1000"): "is not supported",
    ("partitioner.class", "org.apache.kafka.clients.producer.RoundRobinPartitioner"): "is not supported: partitions",
    ("partitioner.rack.aware", "true"): "is not supported: partitions are those of all racks",
    ("partitioner.ignore.keys", "true"): "is not supported: a key decides the partition",
    ("receive.buffer.bytes", "32768"): "is not supported",
    ("reconnect.backoff.max.ms", "2000"): "is not supported",
    ("reconnect.backoff.ms", "50"): "is not supported",
    ("security.providers", "x.Y"): "is not supported",
    ("send.buffer.bytes", "131072"): "is not supported",
    ("socket.connection.setup.timeout.max.ms", "10000"): "is not supported",
    ("transaction.two.phase.commit.enable", "true"): "is not supported",
    ("value.serializer", "org.apache.kafka.common.serialization.StringSerializer"): "is not supported: the column",
}


def parse(kind: Any = "batch", **settings: str) -> SinkOptions:
    return parse_sink_options({**ADDRESS, **{f"kafka.{name}": text for name, text in settings.items()}}, kind)


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_settings_of_kafkas_producer(name: str, value: str) -> None:
    given = {**ADDRESS, f"kafka.{name}": value}
    if (name, value) not in REJECTED:
        parse_sink_options(given, "batch")
        return
    with pytest.raises(ConfigurationError) as raised:
        parse_sink_options(given, "batch")
    assert str(raised.value).startswith(f"Option kafka.{name}")
    assert REJECTED[name, value] in str(raised.value)


def test_every_setting_of_kafkas_producer_is_known() -> None:
    known = {*PRODUCER_SETTINGS, *PRODUCER_REJECTED_SETTINGS, *UNUSED_SETTINGS, "config.providers"}
    assert {name for name, _ in VALUES} <= known


def test_defaults_are_those_of_kafkas_producer() -> None:
    # the first value of each setting is its default
    defaults = dict(reversed(VALUES))
    names = {"codec": "none", "acks": "all"}
    for field, key in config_keys(ProducerSettings).items():
        if key.default is not None and key.kafka_default is None:
            assert defaults[key.name] == names.get(field, str(key.default).lower()), key.name
    assert str(PRODUCER_SETTINGS["batch.size"].kafka_default) == defaults["batch.size"]


@pytest.mark.parametrize(
    ("settings", "idempotence"),
    [
        ({}, True),
        ({"acks": "-1"}, True),
        ({"acks": "1"}, False),
        ({"retries": "0"}, False),
        ({"enable.idempotence": "false"}, False),
        ({"enable.idempotence": "false", "max.in.flight.requests.per.connection": "6"}, False),
    ],
)
def test_idempotence_follows_from_other_settings(settings: dict[str, str], idempotence: bool) -> None:
    assert parse(**settings).producer.idempotence is idempotence


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": "1", "enable.idempotence": "true"}, "enable.idempotence is true, but kafka.acks is 1"),
        ({"retries": "0", "enable.idempotence": "true"}, "enable.idempotence is true, but kafka.retries is 0"),
        ({"max.in.flight.requests.per.connection": "6"}, "must be at most 5 with idempotence, got 6"),
        ({"transactional.id": "t", "enable.idempotence": "false"}, "transactional.id needs idempotence, but kafka.en"),
        ({"transactional.id": "t", "acks": "1"}, "transactional.id needs idempotence, but kafka.acks is 1"),
        ({"transactional.id": ""}, "Option kafka.transactional.id is empty"),
        ({"acks": "ALL"}, "Option kafka.acks must be one of all, -1, 1, got 'ALL'"),
        ({"acks": "2"}, "Option kafka.acks must be one of"),
        ({"compression.type": "LZ4"}, "Option kafka.compression.type must be one of none, gzip, snappy, lz4, zstd"),
        ({"compression.gzip.level": "0"}, "Option kafka.compression.gzip.level must be an integer between 1 and 9, or"),
        ({"compression.lz4.level": "18"}, "Option kafka.compression.lz4.level must be between 1 and 17, got 18"),
        ({"delivery.timeout.ms": "1000"}, "must be at least kafka.linger.ms + kafka.request.timeout.ms (30005 ms)"),
        ({"batch.size": "-1"}, "Option kafka.batch.size must be"),
        ({"fetch.min.bytes": "1"}, "Option kafka.fetch.min.bytes is not allowed when writing: it is a setting of cons"),
        ({"auto.offset.reset": "latest"}, "kafka.auto.offset.reset is not allowed when writing"),
        ({"lingr.ms": "1"}, "Option kafka.lingr.ms is unknown. Did you mean kafka.linger.ms?"),
    ],
)
def test_wrong_settings(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(**settings)
    assert message in str(raised.value)


def test_names_are_case_insensitive_and_spark_adds_some() -> None:
    given = {"KAFKA.Bootstrap.Servers": "h:1", "Topic": "t", "kafka.group.id": "g", "INCLUDEHEADERS": "true"}
    batch = parse_sink_options({**given, "txnappid": "a", "TXNVERSION": "7", "kafka.transactional.id": "x"}, "batch")
    assert (batch.topic, batch.txn_app_id, batch.txn_version) == ("t", "a", 7)
    stream = parse_sink_options({**given, "checkpointlocation": "/c", "queryname": "q"}, "stream")
    assert stream.checkpoint == "/c"
    assert stream.client.bootstrap[0].port == 1


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("batch", {"topc": "t"}, "Option topc is unknown. Did you mean topic?"),
        ("batch", {"linger.ms": "1"}, "Option linger.ms is unknown. Did you mean kafka.linger.ms?"),
        ("stream", {"path": "/x"}, "Option path is not supported. The sink writes to topics"),
        ("stream", {"subscribe": "t"}, "Option subscribe is not allowed when writing: it is an option of reads. Name"),
        ("stream", {"startingOffsets": "latest"}, "Option startingOffsets is not allowed when writing"),
        ("stream", {"txnAppId": "a"}, "Option txnAppId is not allowed in a stream query"),
        ("batch", {"txnAppId": "a"}, "Options txnAppId and txnVersion need each other"),
        ("batch", {"txnAppId": "a", "txnVersion": "1"}, "Option txnAppId needs kafka.transactional.id"),
        ("batch", {"topic": ""}, "Option topic must not be empty"),
        ("batch", {"kafka.bootstrap.servers": ""}, "Option kafka.bootstrap.servers is missing"),
    ],
)
def test_wrong_options(kind: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_sink_options({**ADDRESS, **options}, kind)
    assert message in str(raised.value)


HEADERS = ArrayType(StructType([StructField("key", StringType(), False), StructField("value", BinaryType())]), False)


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        (schema_of(value=IntegerType()), "t", "Column value is int; it must be binary or string. Cast it, or set"),
        (schema_of(value=NullType()), "t", "Column value is void; it must be binary or string. Cast it, or set"),
        (schema_of(key=StringType(), Value=StringType()), "t", "Column value is missing: the columns are key, Value."),
        (schema_of(value=StringType(), key=LongType()), "t", "Column key is bigint; it must be binary or string."),
        (schema_of(value=StringType(), partition=LongType()), "t", "Column partition is bigint; it must be int."),
        (schema_of(value=StringType(), headers=ArrayType(StringType())), "t", "Column headers is array<string>; it"),
        (
            schema_of(value=StringType(), headers=MapType(StringType(), BinaryType())),
            "t",
            "Column headers is map<string,binary>; it must be array<struct<key:string,value:binary>>. Cast it.",
        ),
        (schema_of(value=StringType()), None, "No topic is given. Set option topic, or add a column topic."),
        (schema_of(value=StringType(), topic=IntegerType()), None, "Column topic is int; it must be string. Cast it."),
    ],
)
def test_wrong_columns(schema: StructType, topic: str | None, message: str) -> None:
    source = GroupDataSource(ADDRESS if topic is None else {**ADDRESS, "topic": topic})
    for create in (source.writer, source.streamWriter):
        with pytest.raises(ConfigurationError) as raised:
            create(schema, False)
        assert message in str(raised.value)


AVRO_LONG = {"value.format": "avro", "value.schema": "long"}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"value.format": "json"}, IntegerType(), "Column value is int32; with value.format=json it must be a struct,"),
        ({"value.format": "json"}, schema_of(i=DayTimeIntervalType()), "Column value.i is duration[us], which is not"),
        ({"value.format": "string"}, YearMonthIntervalType(), "which has a type that Spark does not pass to a Python"),
        ({"value.format": "json"}, ArrayType(NullType(), False), "array<void>, which has a type that Spark does not"),
        ({"value.format": "json"}, MapType(NullType(), NullType()), "map<void,void>, which has a type that Spark does"),
        ({"value.format": "long"}, StringType(), "Column value is string; with value.format=long it must be int8 or"),
        ({"value.format": "avro"}, schema_of(**{"a b": LongType()}), "has a field 'a b', which is no name in Avro"),
        (AVRO_LONG, StringType(), "Column value is string, and the Avro schema has long. Cast it."),
        ({**AVRO_LONG, "value.schema": "x"}, LongType(), "Option value.schema is no Avro schema"),
        ({"value.format": "json"}, None, "key is bigint; it must be binary or string. Cast it, or set option key"),
        ({"value.format": "string"}, MapType(StringType(), VariantType()), "value.entries.value is variant, which"),
        ({"value.format": "json"}, schema_of(t=VariantType()), "Column value.t is variant, which is not written."),
    ],
)
def test_columns_that_a_format_does_not_have(options: dict[str, str], kind: DataType | None, message: str) -> None:
    source = GroupDataSource({**ADDRESS, "topic": "t", **options})
    columns = {"value": kind} if kind is not None else {"value": schema_of(a=LongType()), "key": LongType()}
    for create in (source.writer, source.streamWriter):
        with pytest.raises(ConfigurationError) as raised:
            create(schema_of(**columns), False)
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"value.format": "json", "key.format": "long"}, {"key": LongType(), "value": schema_of(a=TimestampType())}),
        ({"value.format": "AVRO"}, {"key": StringType(), "value": ArrayType(MapType(StringType(), LongType()))}),
        ({"value.format": "string"}, {"value": schema_of(a=ArrayType(IntegerType()))}),
        (AVRO_LONG, {"value": IntegerType()}),
        ({"value.format": "json", "key.format": "int"}, {"key": NullType(), "value": NullType()}),
    ],
)
def test_columns_of_other_types_with_a_format(options: dict[str, str], columns: dict[str, DataType]) -> None:
    source = GroupDataSource({**ADDRESS, "topic": "t", **options})
    source.writer(schema_of(**columns), False)
    source.streamWriter(schema_of(**columns), False)


@pytest.mark.parametrize(
    "schema",
    [
        schema_of(value=BinaryType()),
        schema_of(key=NullType(), value=StringType(), partition=NullType(), headers=NullType()),
        schema_of(offset=LongType(), value=StringType(), topic=IntegerType(), timestamp=TimestampType()),
        schema_of(value=StringType(), headers=HEADERS, partition=IntegerType()),
        schema_of(value=StringType(), headers=ArrayType(schema_of(Key=StringType(), VALUE=BinaryType()))),
    ],
)
def test_columns_that_are_written_or_ignored(schema: StructType) -> None:
    source = GroupDataSource({**ADDRESS, "topic": "t"})
    source.writer(schema, False)
    source.streamWriter(schema, False)


def test_a_spark_without_arrow_in_streaming_writers_gives_arrow_to_the_class_of_batch_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as PySpark 4.0, whose worker tests for this class first
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter", raising=False)
    spec = importlib.util.spec_from_file_location("writers_of_spark_4_0", sink_writers.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    writer = module.SinkStreamWriter(parse_sink_options(ADDRESS, "stream"), 1)
    assert isinstance(writer, datasource.DataSourceArrowWriter)
    assert isinstance(writer, datasource.DataSourceStreamWriter)
    writer.commit([None], 7)
    writer.abort([None], 7)


def test_every_option_is_documented() -> None:
    for key in SINK_OPTIONS.values():
        assert key.doc.endswith(".")
