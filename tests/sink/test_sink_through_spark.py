"""Writing through Spark: columns, topics, partitions, options, errors."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from schema_registry import SchemaRegistryServer
from support.read_back import read_back
from support.spark_features import FILLS_COLUMNS
from support.topics import create_topic

from spark_groupsource.source.options.sink_columns import SINK_COLUMNS


def write(frame: Any, bootstrap_servers: str, **options: str) -> None:
    frame.write.format("groupsource").mode("append").options(
        **{"kafka.bootstrap.servers": bootstrap_servers, **options}
    ).save()


def test_columns_of_sparks_sink_are_read_back_by_a_foreign_client(spark: Any, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 3)
    rows = [
        (b"k1", "v1", topic, 2, [("a", b"1"), ("a", None)], 7),
        (None, "v2", topic, 1, [], 8),
        (b"", None, topic, 1, None, 9),
        ("\u00e9".encode(), "\u00e9", topic, 1, [("\u00fc", b"")], 10),
    ]
    schema = (
        "key binary, value string, topic string, partition int, headers array<struct<key: string, value: binary>>, "
        "offset bigint"
    )
    write(spark.createDataFrame(rows, schema).coalesce(1), cluster.bootstrap_servers)
    assert read_back(cluster.bootstrap_servers, topic, 3) == {
        0: [],
        1: [
            (None, b"v2", []),
            (b"", None, []),
            ("\u00e9".encode(), "\u00e9".encode(), [("\u00fc", b"")]),
        ],
        2: [(b"k1", b"v1", [("a", b"1"), ("a", None)])],
    }


def test_partitions_are_those_of_other_producers(spark: Any, cluster: Any, topic: str) -> None:
    theirs = f"{topic}-theirs"
    for name in (topic, theirs):
        create_topic(cluster.bootstrap_servers, name, 7)
    keys = [b"%d" % n * (n % 5 + 1) for n in range(200)]
    # the partitioner of Kafka's Java producer
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, b"x", key)
    producer.flush()
    frame = spark.createDataFrame([(key, b"x") for key in keys], "key binary, value binary")
    write(frame, cluster.bootstrap_servers, topic=topic)
    found, expected = (read_back(cluster.bootstrap_servers, name, 7) for name in (topic, theirs))
    assert {p: sorted(records) for p, records in found.items()} == {
        p: sorted(records) for p, records in expected.items()
    }


def test_option_topic_takes_precedence_over_the_column(spark: Any, cluster: Any, topic: str) -> None:
    names = [topic, f"{topic}-a", f"{topic}-b"]
    for name in names:
        create_topic(cluster.bootstrap_servers, name, 1)
    frame = spark.createDataFrame([(names[n % 2 + 1], str(n)) for n in range(10)], "topic string, value string")
    write(frame, cluster.bootstrap_servers)
    write(frame.selectExpr("1.5 as topic", "value"), cluster.bootstrap_servers, topic=topic)
    counts = [len(read_back(cluster.bootstrap_servers, name, 1)[0]) for name in names]
    assert counts == [10, 5, 5]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_a_foreign_client(spark: Any, cluster: Any, topic: str, codec: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    frame = spark.range(2_000).selectExpr("cast(id as string) as key", "repeat('x', 100) as value").coalesce(1)
    write(frame, cluster.bootstrap_servers, topic=topic, **{"kafka.compression.type": codec})
    found = read_back(cluster.bootstrap_servers, topic, 1)[0]
    assert [key for key, _, _ in found] == [b"%d" % n for n in range(2_000)]
    assert {value for _, value, _ in found} == {b"x" * 100}


def test_a_stream_is_written_and_continues_after_a_restart(
    spark: Any, cluster: Any, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    source = tmp_path / "in"
    source.mkdir()

    def run() -> None:
        lines = spark.readStream.format("text").load(str(source))
        writer = lines.selectExpr("value as key", "value").writeStream.format("groupsource").queryName("written")
        writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap_servers).option("topic", topic)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(120)

    (source / "a").write_text("1\n2\n")
    run()
    (source / "b").write_text("3\n")
    run()
    run()
    found = read_back(cluster.bootstrap_servers, topic, 2)
    assert sorted(value for records in found.values() for _, value, _ in records) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["'x' as value", "cast(null as string) as topic"], {}, "null topic present in the data."),
        (["repeat('x', 2000000) as value"], {"topic": "TOPIC"}, "larger than 1048576, the value of max.request.size"),
        (["'x' as value"], {"topic": "no-such-topic"}, "Topic no-such-topic does not exist. Create it, or correct "
                                                       "option topic."),
        (["1 as value"], {"topic": "TOPIC"}, "Column value is int; it must be binary or string. Cast it, or"),
    ],
)  # fmt: skip
def test_errors_are_shown_without_traceback(
    spark: Any, embedded: Any, topic: str, columns: list[str], options: dict[str, str], message: str
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    given = {name: text.replace("TOPIC", topic) for name, text in options.items()}
    with pytest.raises(PySparkException) as raised:
        write(spark.range(1).selectExpr(*columns), embedded.bootstrap_servers, **given)
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)
    assert read_back(embedded.bootstrap_servers, topic, 1) == {0: []}


def test_modes_that_a_topic_does_not_have(spark: Any, embedded: Any, topic: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "topic": topic}
    frame = spark.range(1).selectExpr("'x' as value")
    with pytest.raises(PySparkException, match=r"A topic cannot be overwritten. Use df.write.mode\('append'\)."):
        frame.write.format("groupsource").mode("overwrite").options(**options).save()
    with pytest.raises(PySparkException, match="The sink writes to topics, not to paths"):
        frame.write.format("groupsource").mode("append").options(**options).save("/x")
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("groupsource").options(**options).save()


def test_complete_results_are_appended(spark: Any, embedded: Any, topic: str, group: str, tmp_path: Path) -> None:
    for name in (topic, f"{topic}-counts"):
        create_topic(embedded.bootstrap_servers, name, 1)
    options = {"kafka.bootstrap.servers": embedded.bootstrap_servers}
    source = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest", "members": "1"}
    for _ in range(2):
        write(spark.range(2).selectExpr("'k' as value"), embedded.bootstrap_servers, topic=topic)
        rows = spark.readStream.format("groupsource").options(**options, **source).load().groupBy("value").count()
        writer = rows.selectExpr("cast(count as string) as value").writeStream.outputMode("complete")
        writer = writer.format("groupsource").options(**options, topic=f"{topic}-counts")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    found = read_back(embedded.bootstrap_servers, f"{topic}-counts", 1)
    assert [value for _, value, _ in found[0]] == [b"2", b"4"]


def test_sql_writes_to_a_view_and_to_a_table(spark: Any, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    name = topic.replace("-", "_")
    options = f"OPTIONS (`kafka.bootstrap.servers` '{cluster.bootstrap_servers}', topic '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW view_{name} (key STRING, value STRING) USING groupsource {options}")
    spark.sql(f"INSERT INTO view_{name} VALUES ('k', 'view')")
    spark.sql(f"CREATE TABLE table_{name} USING groupsource {options}")
    try:
        columns = ["value"] if FILLS_COLUMNS else list(SINK_COLUMNS)
        values = ", ".join("X'61'" if column == "value" else "null" for column in columns)
        spark.sql(f"INSERT INTO table_{name} ({', '.join(columns)}) VALUES ({values})")
        same = "cast('k' as binary) key, cast('with' as binary) value, 't' topic, 0 partition, "
        same += "cast(null as array<struct<key: string, value: binary>>) headers"
        spark.sql(
            f"INSERT INTO table_{name} WITH (`kafka.bootstrap.servers`='{cluster.bootstrap_servers}', "
            f"topic='{topic}') SELECT {same}"
        )
        with pytest.raises(PySparkException, match="Writing failed: there are no options.*INSERT INTO table WITH"):
            spark.sql(f"INSERT INTO table_{name} SELECT {same}")
    finally:
        spark.sql(f"DROP TABLE table_{name}")
        spark.catalog.dropTempView(f"view_{name}")
    found = read_back(cluster.bootstrap_servers, topic, 1)[0]
    assert [(key, value) for key, value, _ in found] == [(b"k", b"view"), (None, b"a"), (b"k", b"with")]


def test_an_embedded_broker_creates_the_topic(spark: Any, topic: str) -> None:
    options = {"kafka.bootstrap.servers": "embedded"}
    spark.range(3).selectExpr("string(id) as value").write.format("groupsource").mode("append").options(
        **options, topic=topic
    ).save()
    assert spark.read.format("groupsource").options(**options, subscribe=topic).load().count() == 3


def test_values_are_encoded_and_read_back_by_the_source(spark: Any, cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    spark_columns = "id as key", "if(id = 1, null, struct(id, 1e7d as d, array('a', null) as l)) as value"
    write(
        spark.range(2).selectExpr(*spark_columns).coalesce(1),
        cluster.bootstrap_servers,
        topic=topic,
        **{"key.format": "long", "value.format": "json"},
    )
    texts = [value for _, value, _ in read_back(cluster.bootstrap_servers, topic, 1)[0]]
    assert texts == [b'{"id":0,"d":1.0E7,"l":["a",null]}', None]
    reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    reader = reader.option("subscribe", topic).option("key.format", "long").option("value.format", "json")
    found = reader.option("value.schema", "id bigint, d double, l array<string>").load().select("key", "value.*")
    assert [tuple(row) for row in found.collect()] == [(0, 0, 1e7, ["a", None]), (1, None, None, None)]


def test_avro_of_a_stream_is_registered_and_read_back(
    spark: Any, embedded: Any, topic: str, tmp_path: Path
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with SchemaRegistryServer() as registry:
        options = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "value.format": "avro"}
        options["value.schema.registry.url"] = registry.url
        source = tmp_path / "in"
        written = "7L as id, timestamp'2024-01-01 00:00:00.000001Z' as t, array(cast(1.5 as decimal(10,2))) as l"
        spark.sql(f"select {written}").write.parquet(str(source))
        rows = spark.readStream.schema("id bigint, t timestamp, l array<decimal(10,2)>").parquet(str(source))
        writer = rows.selectExpr("struct(*) as value").writeStream.format("groupsource").options(**options)
        writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        assert registry.requests[0] == f"POST /subjects/{topic}-value/versions"
        found = spark.read.format("groupsource").options(**options).option("subscribe", topic).load()
        (row,) = found.selectExpr("value.id", "unix_micros(value.t) as t", "value.l").collect()
    assert (row.id, row.t, row.l) == (7, 1704067200000001, [Decimal("1.50")])
