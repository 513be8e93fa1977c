"""Streaming queries as members of a group, through Spark, on both clusters."""

import os
import signal

import pytest
from stream_bench import PARTITIONS, Bench
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.client.admin import remove_members
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.control_socket import control_directory
from spark_groupsource.source.driver_process import is_process_alive

pytestmark = pytest.mark.spark


@pytest.fixture
def bench(spark, cluster, topic, group, tmp_path):
    opened = Bench(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


def test_available_now_reads_everything_under_the_limit_and_leaves_no_lag(bench):
    bench.produce(1000)
    query = bench.start("a", {"availableNow": True}, maxOffsetsPerTrigger="400")
    assert query.awaitTermination(120)
    assert bench.values("a") == list(range(1000))
    assert [p["numInputRows"] for p in query.recentProgress] == [400, 400, 200]
    assert bench.committed() == 1000
    wait_until(lambda: not bench.members(), "the members have left")
    bench.produce(100)
    assert bench.start("a", {"availableNow": True}).awaitTermination(120)
    assert bench.values("a") == list(range(1100))
    assert bench.committed() == 1100


def test_idle_stream_commits_and_its_members_are_seen(bench):
    bench.produce(40)
    query = bench.start("a", **{"kafka.client.id": "app"})
    bench.wait_committed()
    assert {member.client_id for member in bench.members()} == {"app-0", "app-1"}
    owned = sorted(p for member in bench.members() for p in member.assignment)
    assert owned == [TopicPartition(bench.topic, n) for n in range(PARTITIONS)]
    stop_gracefully(query, 60)
    assert not query.isActive
    assert not bench.members()


def test_drain_does_not_wait_for_a_long_trigger(bench):
    bench.produce(40)
    query = bench.start("a", {"processingTime": "1 hour"})
    wait_until(lambda: query.lastProgress is not None, "the first batch", 120)
    assert bench.committed() == 0  # Spark has not come back, so nothing proves the checkpoint yet
    stop_gracefully(query, 60)
    assert bench.committed() == 40


def test_two_queries_share_a_group_and_hand_over_gracefully(bench):
    bench.produce(200)
    first = bench.start("a")
    bench.wait_committed()
    second = bench.start("b")
    bench.produce(200)
    wait_until(lambda: len(bench.owners()) == 4, "four members with a partition each", 120)
    bench.produce(400)
    bench.wait_committed(120)
    wait_until(lambda: bench.values("b"), "the second query reads", 120)
    bench.produce(100)
    stop_gracefully(second, 60)
    bench.produce(100)
    bench.wait_committed(120)
    stop_gracefully(first, 60)
    assert bench.values("a", "b") == list(range(bench.produced))


def test_fenced_task_fails_and_the_restart_repeats_and_loses_nothing(bench, tmp_path):
    bench.produce(100)
    fences = []

    def write(frame, batch_id):
        if batch_id == 1 and not fences:
            fences.append(remove_all(bench))
        frame.selectExpr("cast(value as string) as value").write.mode("overwrite").parquet(str(rows / str(batch_id)))

    rows = tmp_path / "rows"

    def start():
        writer = bench.stream().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "cp"))
        query = writer.start()
        bench.queries.append(query)
        return query

    query = start()
    bench.wait_committed()
    bench.produce(100)
    with pytest.raises(Exception, match=r"member .* of group .* in generation \d+, the group's generation is now \d+"):
        query.awaitTermination(120)
    assert bench.committed() == 100
    start()
    bench.wait_committed(120)
    found = sorted(int(row.value) for path in rows.iterdir() for row in bench.spark.read.parquet(str(path)).collect())
    assert found == list(range(200))


def remove_all(bench):
    members = [member.member_id for member in bench.members()]
    assert members
    remove_members(bench.client, bench.group, members)
    return members


def test_restart_after_the_reader_was_killed(bench):
    bench.produce(100)
    query = bench.start("a")
    bench.wait_committed()
    readers = reader_pids(bench.spark)
    assert readers
    for pid in readers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not query.isActive, "the query has failed", 60)
    assert query.exception() is not None
    bench.produce(100)
    query = bench.start("a")
    bench.wait_committed(120)
    stop_gracefully(query, 60)
    assert bench.values("a") == list(range(200))


def reader_pids(spark):
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    pids = [int(path.name.rpartition("-")[2]) for path in control_directory(jvm).iterdir()]
    return [pid for pid in pids if is_process_alive(pid)]


def test_assign_needs_no_group(bench):
    bench.produce(40)
    options = {"kafka.bootstrap.servers": bench.cluster.bootstrap_servers, "startingOffsets": "earliest"}
    stream = bench.spark.readStream.format("groupsource").options(**options, assign=f'{{"{bench.topic}":[1,3]}}').load()
    query = stream.writeStream.format("memory").queryName("assigned").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows = bench.spark.table("assigned").select("partition").distinct().collect()
    assert sorted(row.partition for row in rows) == [1, 3]
    assert bench.members() == ()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "no Kafka broker can be reached, check kafka.bootstrap.servers"),
        ({"kafka.partition.assignment.strategy": "fastest"}, "'fastest'.*range"),
        ({"endingOffsets": "latest"}, "endingOffsets is not allowed in a stream query"),
        ({"startingOffsets": "group"}, "group .* has no committed offset for"),
    ],
)
def test_invalid_option_fails_the_query_with_its_cause(bench, options, message):
    with pytest.raises(Exception, match=message):
        bench.start("a", {"availableNow": True}, **options).awaitTermination(120)
