"""As notebooks use it: frames looked at piece by piece, streams beside batch reads."""

import pytest
from pyspark.sql import functions as F
from stream_bench import Bench
from support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def bench(spark, cluster, topic, group, tmp_path):
    opened = Bench(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


def test_frames_are_looked_at_piece_by_piece(bench):
    bench.produce(40)
    reader = bench.spark.read.format("groupsource").option("kafka.bootstrap.servers", bench.cluster.bootstrap_servers)
    reader = reader.option("subscribe", bench.topic)
    frame = reader.load()
    assert frame.count() == 40 and not frame.isEmpty()
    assert len(frame.take(3)) == len(frame.limit(3).collect()) == len(frame.head(3)) == 3
    bench.spark.conf.set("spark.sql.repl.eagerEval.enabled", "true")
    try:
        assert bench.topic in frame._repr_html_()
    finally:
        bench.spark.conf.unset("spark.sql.repl.eagerEval.enabled")
    pandas = frame.toPandas()
    assert list(pandas.columns) == frame.columns and sorted(map(int, pandas["value"])) == list(range(40))
    cached = frame.select(F.col("value").cast("string").cast("int").alias("n")).cache()
    try:
        assert cached.count() == 40
        bench.produce(10)
        # Spark plans a Python source once for each load()
        assert cached.agg(F.max("n")).first()[0] == 39 and frame.count() == 40
        assert reader.load().count() == 50
    finally:
        cached.unpersist()
    frame.createOrReplaceTempView("flights")
    assert bench.spark.sql("SELECT count(*) FROM flights WHERE partition = 2").first()[0] == 10


def test_a_stream_is_looked_at_beside_batch_reads(bench):
    bench.produce(40)
    stream = bench.stream()
    assert stream.isStreaming and stream.columns[:2] == ["key", "value"] and "groupsource" not in repr(stream)
    assert stream._repr_html_() is None  # a notebook then shows the schema
    name = f"looked_at_{bench.group.replace('-', '_')}"
    query = stream.writeStream.format("memory").queryName(name).start()
    bench.queries.append(query)
    bench.wait_committed()
    reader = bench.spark.read.format("groupsource").option("kafka.bootstrap.servers", bench.cluster.bootstrap_servers)
    batch = reader.option("subscribe", bench.topic).load()
    bench.produce(20)
    # reading beside the group moves nothing in it
    assert batch.count() == 60
    bench.wait_committed()
    assert bench.spark.table(name).count() == 60
    # the same cell run again: another query of the same group, which shares what comes
    again = bench.start("again")
    wait_until(lambda: len(bench.owners()) == 4, "both queries own partitions", 60)
    again.stop()
    wait_until(lambda: len(bench.owners()) == 2, "the stopped query has left", 60)
