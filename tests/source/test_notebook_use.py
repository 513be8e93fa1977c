"""Use in notebooks: partial actions, caching, views, streams beside batch reads."""

import pytest
from pyspark.sql import functions as F
from support.query_harness import QueryHarness
from support.spark_features import PLANS_ONCE_PER_LOAD
from support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = QueryHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


def test_batch_read_is_a_pandas_frame(harness):
    pytest.importorskip("pandas")
    harness.produce(40)
    reader = harness.spark.read.format("groupsource")
    reader = reader.option("kafka.bootstrap.servers", harness.cluster.bootstrap_servers)
    frame = reader.option("subscribe", harness.topic).load()
    rows = frame.toPandas()
    assert list(rows.columns) == frame.columns and sorted(map(int, rows["value"])) == list(range(40))


def test_partial_actions_caches_and_views_of_a_batch_read(harness):
    harness.produce(40)
    servers = harness.cluster.bootstrap_servers
    reader = harness.spark.read.format("groupsource").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", harness.topic)
    frame = reader.load()
    assert frame.count() == 40 and not frame.isEmpty()
    assert len(frame.take(3)) == len(frame.limit(3).collect()) == len(frame.head(3)) == 3
    harness.spark.conf.set("spark.sql.repl.eagerEval.enabled", "true")
    try:
        assert harness.topic in frame._repr_html_()
    finally:
        harness.spark.conf.unset("spark.sql.repl.eagerEval.enabled")
    cached = frame.select(F.col("value").cast("string").cast("int").alias("n")).cache()
    try:
        assert cached.count() == 40
        harness.produce(10)
        assert cached.agg(F.max("n")).first()[0] == 39
        assert frame.count() == (40 if PLANS_ONCE_PER_LOAD else 50)
        assert reader.load().count() == 50
    finally:
        cached.unpersist()
    frame.createOrReplaceTempView("flights")
    count = harness.spark.sql("SELECT count(*) FROM flights WHERE partition = 2").first()[0]
    assert count == (10 if PLANS_ONCE_PER_LOAD else 12)


def test_stream_beside_batch_reads(harness):
    harness.produce(40)
    stream = harness.stream()
    assert stream.isStreaming and stream.columns[:2] == ["key", "value"] and "groupsource" not in repr(stream)
    assert stream._repr_html_() is None  # so that a notebook shows the schema
    name = f"rows_{harness.group.replace('-', '_')}"
    query = stream.writeStream.format("memory").queryName(name).start()
    harness.queries.append(query)
    harness.wait_committed()
    servers = harness.cluster.bootstrap_servers
    reader = harness.spark.read.format("groupsource").option("kafka.bootstrap.servers", servers)
    batch = reader.option("subscribe", harness.topic).load()
    harness.produce(20)
    # a batch read does not change the group
    assert batch.count() == 60
    harness.wait_committed()
    assert harness.spark.table(name).count() == 60
    # the cell is run again: a second query of the same group shares the partitions
    again = harness.start("again")
    wait_until(lambda: len(harness.owners()) == 4, "both queries own partitions", 60)
    again.stop()
    wait_until(lambda: len(harness.owners()) == 2, "the stopped query has left", 60)
