"""Every table through Spark: DataFrames, SQL, schemas, streams, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from support.topics import create_topic, produce
from support.waiting import wait_until

import spark_groupsource as gs
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.results import Result


@pytest.fixture
def committed(cluster: Any, topic: str, group: str) -> str:
    """A group with an offset of partition 0; returns the address of the cluster."""
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")] * 5)
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as client:
        client.commit(group, {TopicPartition(topic, 0): OffsetAndMetadata(3)})
    return str(cluster.bootstrap_servers)


def test_every_table_as_a_dataframe(spark: Any, committed: str, topic: str, group: str) -> None:
    for name, table in TABLES.items():
        reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", committed).option("table", name)
        for option, value in (("group", group), ("topic", topic)):
            if option in table.filters:
                reader = reader.option(option, value)
        frame = reader.load()
        assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [(c.name, c.type) for c in table.columns]
        assert frame.schema[0].metadata == {"comment": table.columns[0].comment}
        rows = frame.collect()
        expected = {"topics": 1, "partitions": 2, "groups": 1, "offsets": 1, "lag": 1}
        assert len(rows) == expected.get(name, len(rows)), name
        if name == "lag":
            assert (rows[0].topic, rows[0].partition, rows[0].lag) == (topic, 0, 2) and rows[0].lag_ms > 0
            assert frame.rdd.getNumPartitions() == 1


def test_a_result_as_a_dataframe(spark: Any) -> None:
    frame = Result(TABLES["topics"], [{"topic": "orders", "partition_count": 2}]).spark()
    assert frame.columns == [column.name for column in TABLES["topics"].columns]
    assert frame.select("topic", "partition_count").collect() == [("orders", 2)]


def test_tables_and_topics_in_sql(spark: Any, committed: str, topic: str, group: str, tmp_path: Path) -> None:
    options = f"`kafka.bootstrap.servers` '{committed}', table 'lag', group '{group}'"
    spark.sql(f"CREATE TEMP VIEW lag_view USING groupsource OPTIONS ({options})")
    assert spark.sql("SELECT lag FROM lag_view").collect() == [(2,)]
    spark.sql(f"CREATE TEMP VIEW narrow (lag bigint, topic string) USING groupsource OPTIONS ({options})")
    assert spark.sql("SELECT * FROM narrow").collect() == [(2, topic)]
    records = f"`kafka.bootstrap.servers` '{committed}', subscribe '{topic}'"
    for name, given, query, expected in (
        ("lag_table", options, "SELECT lag FROM lag_table", 2),
        ("record_table", records, "SELECT count(*) FROM record_table WHERE partition = 0", 5),
    ):
        # Spark needs a directory for the warehouse although nothing is stored
        spark.sql(f"CREATE TABLE {name} USING groupsource OPTIONS ({given})")
        try:
            assert spark.sql(query).collect() == [(expected,)]
            with pytest.raises(PySparkException, match="there are no options|is not allowed when writing"):
                spark.sql(f"INSERT INTO {name} SELECT * FROM {name}")
        finally:
            spark.sql(f"DROP TABLE {name}")
    login = "`kafka.security.protocol` 'SASL_PLAINTEXT', `kafka.sasl.mechanism` 'PLAIN', `kafka.sasl.username` 'u'"
    create = f"CREATE TABLE secret USING groupsource OPTIONS ({options}, {login}, `kafka.sasl.password` "
    # Spark replaces ${env:...} of a query by the value
    for text in ("p", "${env:PATH}"):
        remedy = r"kafka.sasl.password is not stored in a table of the catalog. Give a reference such as \$\{file:/PATH"
        with pytest.raises(PySparkException, match=remedy):
            spark.sql(f"{create} '{text}')")
    (tmp_path / "login.properties").write_text("password=p\n")
    spark.sql(f"{create} '${{file:{tmp_path}/login.properties:password}}')")
    spark.sql("DROP TABLE secret")
    with pytest.raises(PySparkException, match="CREATE TABLE without columns"):
        spark.sql(f"CREATE TABLE columns (lag bigint) USING groupsource OPTIONS ({options})")
        try:
            spark.sql("SELECT * FROM columns").collect()
        finally:
            spark.sql("DROP TABLE columns")


def test_offsets_log_as_a_stream(spark: Any, committed: str, topic: str, group: str, tmp_path: Path) -> None:
    reader = spark.readStream.format("groupsource").option("kafka.bootstrap.servers", committed)
    stream = reader.option("table", "offsets_log").option("group", group).load()
    name = f"log_{group.replace('-', '_')}"
    writer = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    rows = spark.table(name).where("type = 'offset'").collect()
    assert [(row.group, row.topic, row.committed_offset) for row in rows] == [(group, topic, 3)]
    assert json.loads(rows[0].key)["data"]["topic"] == topic


def test_running_queries(spark: Any, committed: str, topic: str, group: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("groupsource").option("kafka.bootstrap.servers", committed)
    stream = stream.option("subscribe", topic).option("kafka.group.id", group).option("startingOffsets", "earliest")
    writer = stream.load().writeStream.format("noop").queryName(f"q-{group}")
    listener = gs.LagListener()
    spark.streams.addListener(listener)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        reader = spark.read.format("groupsource").option("table", "queries").option("group", group)
        (row,) = reader.load().collect()
        assert (row["query"], row.query_id, row.state, row.last_batch) == (f"q-{group}", str(query.id), "running", 0)
        members = spark.read.format("groupsource").option("kafka.bootstrap.servers", committed)
        members = members.option("table", "members").option("group", group).schema("client_id string").load()
        # the name of the Spark application
        assert members.orderBy("client_id").first() == ("groupsource-tests-0",)
        assert row.assignment == f"{topic}:0,1" and json.loads(row.last_offsets) == {topic: {"0": 5, "1": 0}}
        metrics = json.loads(row.metrics)
        # two rebalances where the second member joined after the initial delay
        assert metrics["assigned-partitions"] == 2 and metrics["rebalance-total"] in (1, 2)
        (report,) = wait_until(lambda: listener.last.get(str(query.id)), "the progress of the batch is reported", 60)
        # Kafka's names beside the values of the report
        assert report.metrics["lag"] == 0 and report.metrics["assigned-partitions"] == 2
        assert report.consumer_metrics.keys() >= {"join-time-max", "heartbeat-total", "last-rebalance-seconds-ago"}
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def test_errors_name_the_fix(spark: Any, committed: str) -> None:
    reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", committed)
    with pytest.raises(PySparkException, match="Option table must be one of .* Did you mean lag?"):
        reader.option("table", "lags").load()
    with pytest.raises(PySparkException, match="Consumer group 'missing' does not exist"):
        reader.option("table", "lag").option("group", "missing").load().collect()
    stream = spark.readStream.format("groupsource").option("kafka.bootstrap.servers", committed)
    with pytest.raises(PySparkException, match="Table lag cannot be read as a stream"):
        query = stream.option("table", "lag").load().writeStream.format("noop").start()
        query.awaitTermination(180)
    with pytest.raises(PySparkException, match="Option table is not allowed when writing"):
        writer = spark.range(1).write.format("groupsource").option("kafka.bootstrap.servers", committed)
        writer.option("table", "lag").mode("append").save()
