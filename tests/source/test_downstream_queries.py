"""Queries downstream of the source: joins, windows, pandas, sinks, several loads."""

import pyarrow.dataset
import pytest
from confluent_kafka import Producer
from kafka_jars import spark_connector_jars
from pyspark.sql import functions as F
from support.file_sink import committed_rows
from support.query_harness import PARTITIONS, QueryHarness
from support.spark_features import committed_at_end, needs_admission_control
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource import stop_gracefully

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}
MINUTE_MS = 60_000
NOON_MS = 1_600_000_800_000 // MINUTE_MS * MINUTE_MS


class TableHarness(QueryHarness):
    """Runs queries with any frame; their rows are written to a table in memory."""

    def table(self, frame, *, mode="append", trigger=NOW, **options):
        """Runs a query to its end; returns its rows, sorted."""
        name = f"rows_{len(self.queries)}_{self.group.replace('-', '_')}"
        writer = frame.writeStream.format("memory").queryName(name).outputMode(mode).options(**options)
        query = writer.trigger(**trigger).start()
        self.queries.append(query)
        assert query.awaitTermination(120), query.status
        return sorted(tuple(row) for row in self.spark.table(name).collect())

    def numbers(self, **options):
        return self.stream(**options).select(F.col("value").cast("string").cast("int").alias("n"))


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = TableHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


def produce_at(servers, topic, records):
    """Produces records (minutes after noon, value) to partition 0."""
    producer = Producer({"bootstrap.servers": servers})
    for minute, value in records:
        producer.produce(topic, value.encode(), partition=0, timestamp=NOON_MS + minute * MINUTE_MS)
    assert not producer.flush(30)


def values_in_time(frame):
    minute = (F.col("timestamp").cast("long") - NOON_MS // 1000) / 60
    return frame.select(F.col("value").cast("string").alias("value"), "timestamp", minute.cast("int").alias("minute"))


def test_stream_joins_a_batch_read_of_another_topic(harness, topic):
    names = f"{topic}-names"
    create_topic(harness.cluster.bootstrap_servers, names)
    produce_at(harness.cluster.bootstrap_servers, names, [(0, f"{n},name {n}") for n in range(0, 40, 10)])
    harness.produce(40)
    read = harness.spark.read.format("groupsource").option("kafka.bootstrap.servers", harness.cluster.bootstrap_servers)
    pair = F.split(F.col("value").cast("string"), ",")
    static = read.option("subscribe", names).load().select(pair[0].cast("int").alias("n"), pair[1].alias("name"))
    joined = harness.numbers().join(static, "n").select("n", "name")
    assert harness.table(joined) == [(n, f"name {n}") for n in range(0, 40, 10)]
    assert harness.committed() == committed_at_end(40)


def test_join_of_two_streams_of_one_group_within_their_watermarks(harness, topic):
    """Two sources of one query in one group, each subscribed to another topic."""
    servers = harness.cluster.bootstrap_servers
    for name, values in (("clicks", [(1, "a"), (2, "b"), (50, "c")]), ("views", [(0, "a"), (30, "b"), (49, "c")])):
        create_topic(servers, f"{topic}-{name}")
        produce_at(servers, f"{topic}-{name}", values)

    def side(name):
        frame = values_in_time(harness.stream(subscribe=f"{topic}-{name}", members="1", splitBetweenQueries=None))
        return frame.withWatermark("timestamp", "5 minutes").select(
            F.col("value").alias(f"{name}_value"), F.col("timestamp").alias(f"{name}_at")
        )

    near = F.expr(
        "clicks_value = views_value"
        " AND clicks_at BETWEEN views_at - INTERVAL 5 MINUTES AND views_at + INTERVAL 5 MINUTES"
    )
    joined = side("clicks").join(side("views"), near).select("clicks_value")
    assert harness.table(joined) == [("a",), ("c",)]
    assert harness.committed() == committed_at_end(6)


@needs_admission_control
def test_watermark_closes_windows_and_drops_late_records(harness, topic):
    servers = harness.cluster.bootstrap_servers
    create_topic(servers, f"{topic}-late")
    # two records per batch; the batch of minutes 31 and 32 still has the watermark of minute 30, which is minute 25
    produce_at(servers, f"{topic}-late", [(m, "x") for m in (1, 9, 12, 30, 31, 32, 2, 22, 26, 41, 3, 60)])
    stream = values_in_time(harness.stream(subscribe=f"{topic}-late", members="1", maxOffsetsPerTrigger="2"))
    windows = stream.withWatermark("timestamp", "5 minutes").groupBy(F.window("timestamp", "10 minutes")).count()
    minutes = ((F.col("window.start").cast("long") - NOON_MS // 1000) / 60).cast("int")
    # windows that end by minute 60 - 5 are closed; minutes 2 and 3 are late
    assert harness.table(windows.select(minutes, "count")) == [(0, 2), (10, 1), (20, 2), (30, 3), (40, 1)]


@needs_admission_control
def test_repeated_batch_has_the_same_rows(harness, tmp_path):
    harness.produce(80)
    written = []

    def write(frame, batch_id):
        rows = sorted(row.n for row in frame.collect())
        written.append((batch_id, rows))
        frame.write.mode("overwrite").parquet(str(tmp_path / "sink" / f"batch={batch_id}"))
        if batch_id == 1 and len(written) == 2:
            raise OSError("the sink's acknowledgement was lost")

    def run():
        writer = harness.numbers(maxOffsetsPerTrigger="30").writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(**NOW).start()
        harness.queries.append(query)
        return query.awaitTermination(120)

    with pytest.raises(Exception, match="acknowledgement was lost"):
        run()
    # these records must not become part of the repeated batch
    harness.produce(40)
    assert run()
    repeated = [rows for batch_id, rows in written if batch_id == 1]
    assert len(repeated) == 2 and repeated[0] == repeated[1]
    found = pyarrow.dataset.dataset(tmp_path / "sink", format="parquet").to_table()
    assert sorted(found["n"].to_pylist()) == list(range(120))
    assert harness.committed() == 120


# state of Spark, as that of the windows above
@pytest.mark.soak
@needs_admission_control
@pytest.mark.parametrize("within", [False, True])
def test_drop_duplicates(harness, topic, within):
    servers = harness.cluster.bootstrap_servers
    create_topic(servers, f"{topic}-twice")
    produce_at(servers, f"{topic}-twice", [(0, "a"), (1, "a"), (1, "b"), (2, "b"), (3, "a"), (3, "c")])
    stream = values_in_time(harness.stream(subscribe=f"{topic}-twice", members="1", maxOffsetsPerTrigger="2"))
    stream = stream.withWatermark("timestamp", "1 hour")
    distinct = stream.dropDuplicatesWithinWatermark(["value"]) if within else stream.dropDuplicates(["value"])
    assert harness.table(distinct.select("value")) == [("a",), ("b",), ("c",)]


def test_stream_used_twice_returns_every_record_to_each_branch(harness):
    """Spark creates one reader, so there is one set of members."""
    harness.produce(40)
    numbers = harness.numbers()
    even, odd = numbers.where("n % 2 = 0"), numbers.where("n % 2 = 1")
    assert harness.table(even.union(odd).union(numbers)) == sorted([(n,) for n in range(40)] * 2)
    assert harness.committed() == committed_at_end(40)
    assert len(harness.queries[-1].lastProgress["sources"]) == 1


# one reader, as a stream that is used twice
@pytest.mark.soak
def test_self_join_of_a_stream_reads_every_record(harness):
    harness.produce(40)
    timed = harness.stream().select(F.col("value").cast("string").cast("int").alias("n"), "timestamp")
    left = timed.withWatermark("timestamp", "1 minute")
    right = left.select((F.col("n") + 1).alias("n"), F.col("n").alias("before"), F.col("timestamp").alias("at"))
    joined = left.join(right, "n").select("n", "before")
    assert harness.table(joined) == [(n, n - 1) for n in range(1, 40)]
    assert harness.committed() == committed_at_end(40)


def test_two_loads_of_one_topic_in_one_group_share_its_partitions(harness):
    """Each load has its own members, and a group reads a record once, unlike a stream that is used twice."""
    harness.produce(40)
    both = harness.stream(members="1").union(harness.stream(members="1"))
    name = f"shared_{harness.group.replace('-', '_')}"
    rows = both.select(F.col("value").cast("string").cast("int").alias("n"))
    query = rows.writeStream.format("memory").queryName(name).start()
    harness.queries.append(query)
    wait_until(lambda: len(harness.owners()) == 2, "both loads own partitions", 60)
    harness.produce(40)
    harness.wait_committed()
    stop_gracefully(query, 60)
    assert sorted(row.n for row in harness.spark.table(name).collect()) == list(range(80))


def test_second_query_or_load_of_a_topic_in_one_group_is_refused(harness):
    harness.produce(40)
    stream = harness.stream(splitBetweenQueries=None)
    name = f"rows_{harness.group.replace('-', '_')}"
    first = stream.writeStream.format("memory").queryName(name).start()
    harness.queries.append(first)
    harness.wait_committed()
    second = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match=f"query '{name}' of this application .id {first.id}, .* splitBetweenQueries"):
        second.awaitTermination(120)
    # the first one is not affected, and another can take its place when it has been stopped
    harness.produce(40)
    harness.wait_committed()
    first.stop()
    again = stream.writeStream.format("noop").start()
    harness.queries.append(again)
    harness.produce(40)
    harness.wait_committed()
    stop_gracefully(again)
    joined = harness.stream(splitBetweenQueries=None).union(harness.stream(splitBetweenQueries=None))
    with pytest.raises(Exception, match=r"another query, load\(\) or side of a self-join of this application"):
        joined.writeStream.format("noop").start().awaitTermination(120)


@needs_admission_control
def test_only_one_of_two_loads_in_one_group_has_new_records(harness, topic):
    """The other one has no batch in flight and rejoins although Spark does not call it while the first one waits."""
    servers = harness.cluster.bootstrap_servers
    for name in ("first", "second"):
        create_topic(servers, f"{topic}-{name}")
        produce_at(servers, f"{topic}-{name}", [(0, f"{name} 0")])

    def run():
        options = {"members": "1", "splitBetweenQueries": None}
        sides = [harness.stream(subscribe=f"{topic}-{name}", **options) for name in ("first", "second")]
        rows = sides[0].union(sides[1]).select(F.col("value").cast("string"))
        writer = rows.writeStream.format("parquet").option("path", str(harness.directory / "rows"))
        query = writer.option("checkpointLocation", str(harness.directory / "cp")).trigger(**NOW).start()
        harness.queries.append(query)
        assert query.awaitTermination(120), query.status
        return sorted(committed_rows(harness.directory / "rows")["value"].to_pylist())

    assert run() == ["first 0", "second 0"]
    for number, name in enumerate(("second", "first"), 1):
        produce_at(servers, f"{topic}-{name}", [(0, f"{name} {number}")])
        assert f"{name} {number}" in run()
    assert harness.committed() == 4


# each with a group of its own, as the queries of all other tests
@pytest.mark.soak
def test_queries_of_two_groups_each_read_everything(harness):
    harness.produce(40)
    queries = [harness.start(name, **{"kafka.group.id": f"{harness.group}-{name}"}) for name in "ab"]
    for name in "ab":
        wait_until(lambda name=name: harness.values(name) == list(range(40)), f"query {name} has read all", 60)
    for query in queries:
        stop_gracefully(query, 60)
    assert harness.values("a", "b") == sorted([*range(40)] * 2)


# Python code of a user runs in test_exactly_once_queries.py, too
@pytest.mark.soak
def test_pandas_udf_and_map_in_pandas(harness):
    pandas = pytest.importorskip("pandas")
    harness.produce(40)

    @F.pandas_udf("long")
    def doubled(numbers: pandas.Series) -> pandas.Series:
        return numbers * 2

    def summed(frames):
        for frame in frames:
            yield frame.assign(n=frame["n"] + 1)

    frame = harness.numbers().select(doubled("n").alias("n")).mapInPandas(summed, "n long")
    assert harness.table(frame) == [(2 * n + 1,) for n in range(40)]


@pytest.mark.soak
@needs_admission_control
def test_apply_in_pandas_with_state(harness):
    pandas = pytest.importorskip("pandas")
    harness.produce(40)

    def count(key, frames, state):
        seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((seen,))
        yield pandas.DataFrame({"partition": [key[0]], "seen": [seen]})

    counted = (
        harness.stream(maxOffsetsPerTrigger="20")
        .groupBy("partition")
        .applyInPandasWithState(count, "partition int, seen long", "seen long", "update", "NoTimeout")
    )
    assert harness.table(counted, mode="update") == [(p, seen) for p in range(PARTITIONS) for seen in (5, 10)]


def test_batch_read_twice_by_foreach_batch(harness):
    pandas = pytest.importorskip("pandas")
    harness.produce(40)
    written = []

    def write(frame, batch_id):
        sums = frame.groupBy("partition").applyInPandas(
            lambda part: pandas.DataFrame({"partition": [part["partition"][0]], "total": [part["n"].sum()]}),
            "partition int, total long",
        )
        # two actions, so each read task runs twice
        written.append((frame.count(), {row.partition: row.total for row in sums.collect()}))

    number = F.col("value").cast("string").cast("int").alias("n")
    query = harness.stream().select("partition", number).writeStream.foreachBatch(write).trigger(**NOW).start()
    harness.queries.append(query)
    assert query.awaitTermination(120)
    assert written == [(40, {p: sum(range(p, 40, PARTITIONS)) for p in range(PARTITIONS)})]


def test_filter_and_selection(harness):
    harness.produce(40)
    stream = harness.stream()
    assert harness.table(stream.where("partition = 1 AND offset >= 7").select("offset")) == [(7,), (8,), (9,)]
    assert harness.committed() == committed_at_end(40)  # filtered records are committed as well


# test_sink_through_spark.py writes by the sink of this package
@pytest.mark.soak
def test_rows_are_written_by_sparks_kafka_sink(harness, topic, tmp_path):
    servers = harness.cluster.bootstrap_servers
    create_topic(servers, f"{topic}-out", 2)
    for jar in spark_connector_jars():
        harness.spark.sql(f"ADD JAR '{jar}'").collect()
    harness.produce(40)
    out = harness.numbers().selectExpr("cast(n AS string) AS key", "cast(n * n AS string) AS value")
    writer = out.writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
    query = writer.options(topic=f"{topic}-out", checkpointLocation=str(tmp_path / "cp")).trigger(**NOW).start()
    harness.queries.append(query)
    assert query.awaitTermination(120)
    read = harness.spark.read.format("groupsource").option("kafka.bootstrap.servers", servers)
    rows = read.option("subscribe", f"{topic}-out").load().select("key", "value").collect()
    assert sorted((int(row.key), int(row.value)) for row in rows) == [(n, n * n) for n in range(40)]
