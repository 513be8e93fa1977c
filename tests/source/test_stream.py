"""Streaming queries as members of a group, through Spark, on both clusters."""

import os
import signal

import pyarrow.dataset
import pytest
from support.query_harness import PARTITIONS, QueryHarness
from support.removed_members import remove_members
from support.spark_features import needs_admission_control
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.process.control_socket import control_sockets
from spark_groupsource.source.process.driver_process import process_identity
from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL

pytestmark = pytest.mark.spark


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = QueryHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


@needs_admission_control
def test_limited_available_now_reads_everything_and_leaves_no_lag(harness):
    harness.produce(1000)
    query = harness.start("a", {"availableNow": True}, maxOffsetsPerTrigger="400")
    assert query.awaitTermination(120)
    assert harness.values("a") == list(range(1000))
    assert [p["numInputRows"] for p in query.recentProgress] == [400, 400, 200]
    assert harness.committed() == 1000
    wait_until(lambda: not harness.members(), "the members have left")
    harness.produce(100)
    assert harness.start("a", {"availableNow": True}).awaitTermination(120)
    assert harness.values("a") == list(range(1100))
    assert harness.committed() == 1100


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="Spark has admission control")
def test_available_now_runs_one_batch_which_the_next_run_commits(harness):
    for produced, committed in ((100, 0), (150, 100)):
        harness.produce(produced - harness.produced)
        assert harness.start("a", {"availableNow": True}).awaitTermination(120)
        assert harness.values("a") == list(range(produced))
        assert harness.committed() == committed
        wait_until(lambda: not harness.members(), "the members have left, before their sessions expire", 20)


def test_idle_stream_commits_and_shows_its_members(harness):
    harness.produce(40)
    query = harness.start("a", **{"kafka.client.id": "app"})
    harness.wait_committed()
    assert {member.client_id for member in harness.members()} == {"app-0", "app-1"}
    owned = sorted(p for member in harness.members() for p in member.assignment)
    assert owned == [TopicPartition(harness.topic, n) for n in range(PARTITIONS)]
    stop_gracefully(query, 60)
    assert not query.isActive
    assert not harness.members()


def test_drain_does_not_wait_for_a_long_trigger(harness):
    harness.produce(40)
    query = harness.start("a", {"processingTime": "1 hour"})
    wait_until(lambda: query.lastProgress is not None, "the first batch", 120)
    assert harness.committed() == 0  # the batch is not known to be checkpointed before the next trigger
    stop_gracefully(query, 60)
    assert harness.committed() == 40


def test_two_queries_share_a_group_without_loss_or_duplicates(harness):
    harness.produce(200)
    first = harness.start("a")
    harness.wait_committed()
    second = harness.start("b")
    harness.produce(200)
    wait_until(lambda: len(harness.owners()) == 4, "four members with a partition each", 120)
    harness.produce(400)
    harness.wait_committed(120)
    wait_until(lambda: harness.values("b"), "the second query reads", 120)
    harness.produce(100)
    stop_gracefully(second, 60)
    harness.produce(100)
    harness.wait_committed(120)
    stop_gracefully(first, 60)
    assert harness.values("a", "b") == list(range(harness.produced))


def test_restart_after_a_fenced_task_has_no_loss_or_duplicates(harness, tmp_path):
    harness.produce(100)
    fences = []

    def write(frame, batch_id):
        if batch_id == 1 and not fences:
            fences.append(remove_all(harness))
        frame.selectExpr("cast(value as string) as value").write.mode("overwrite").parquet(str(rows / str(batch_id)))

    rows = tmp_path / "rows"

    def start():
        writer = harness.stream().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "cp"))
        query = writer.start()
        harness.queries.append(query)
        return query

    query = start()
    harness.wait_committed()
    harness.produce(100)
    with pytest.raises(Exception, match=r"fenced member .* of generation \d+ .the group's generation is now \d+"):
        query.awaitTermination(120)
    assert harness.committed() == 100
    start()
    harness.wait_committed(120)
    found = pyarrow.dataset.dataset([str(path) for path in rows.glob("*/*.parquet")], format="parquet").to_table()
    assert sorted(map(int, found["value"].to_pylist())) == list(range(200))


def remove_all(harness):
    members = [member.member_id for member in harness.members()]
    assert members
    remove_members(harness.client, harness.group, members)
    return members


def test_restart_after_the_reader_process_was_killed(harness):
    harness.produce(100)
    query = harness.start("a")
    harness.wait_committed()
    readers = reader_pids(harness.spark)
    assert readers
    for pid in readers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not query.isActive, "the query has failed", 60)
    assert query.exception() is not None
    harness.produce(100)
    query = harness.start("a")
    harness.wait_committed(120)
    stop_gracefully(query, 60)
    assert harness.values("a") == list(range(200))


def reader_pids(spark):
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    pids = [int(path.name.rpartition("-")[2]) for path in control_sockets(jvm)]
    return [pid for pid in pids if process_identity(pid)]


def test_assign_needs_no_group(harness):
    harness.produce(40)
    options = {"kafka.bootstrap.servers": harness.cluster.bootstrap_servers, "startingOffsets": "earliest"}
    options["assign"] = f'{{"{harness.topic}":[1,3]}}'
    stream = harness.spark.readStream.format("groupsource").options(**options).load()
    query = stream.writeStream.format("memory").queryName("assigned").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows = harness.spark.table("assigned").select("partition").distinct().collect()
    assert sorted(row.partition for row in rows) == [1, 3]
    assert harness.members() == ()
