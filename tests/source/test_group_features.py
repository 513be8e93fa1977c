"""Group features through Spark: listeners, static members, patterns, byte limits."""

import json

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from support.query_harness import PARTITIONS, QueryHarness
from support.spark_features import committed_at_end, needs_admission_control
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.positions.offset_json import parse_progress_offset
from spark_groupsource.source.spark.datasource import register

pytestmark = pytest.mark.spark

LISTENER = """
import os

PATH = {path!r}

class Recording:
    def _record(self, what, partitions):
        with open(PATH, "a") as out:
            out.write(" ".join([what, str(os.getpid()), *(f"{{topic}}-{{n}}" for topic, n in partitions)]) + chr(10))

    def on_partitions_revoked(self, partitions):
        self._record("revoked", partitions)

    def on_partitions_assigned(self, partitions):
        self._record("assigned", partitions)

    def on_partitions_lost(self, partitions):
        self._record("lost", partitions)

class Failing(Recording):
    def on_partitions_assigned(self, partitions):
        raise KeyError("no table for it")

class Half:
    def on_partitions_revoked(self, partitions):
        pass
"""


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = QueryHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def listeners(tmp_path):
    """A module of listeners that Spark's processes can import; its name and the file the listeners write."""
    import sys
    from pathlib import Path

    name, calls = f"listeners_{tmp_path.name.replace('-', '_')}", tmp_path / "calls"
    # Spark's Python processes have the driver's site directories
    module = Path(next(path for path in sys.path if path.endswith("site-packages"))) / f"{name}.py"
    module.write_text(LISTENER.format(path=str(calls)))
    yield name, calls
    module.unlink()


def test_listener_is_called_in_the_reader_process(harness, listeners):
    module, calls = listeners
    harness.produce(40)
    options = {"rebalanceListener": f"{module}:Recording", "kafka.partition.assignment.strategy": "range"}
    first = harness.start("a", **options)
    harness.wait_committed()
    every = [f"{harness.topic}-{n}" for n in range(PARTITIONS)]
    # two calls if the second member gets its assignment a moment later
    assert sorted(p for line in calls_of(calls, "assigned") for p in line) == every
    assert not calls_of(calls, "revoked")
    stop_gracefully(first, 60)
    assert calls_of(calls, "revoked") == [every] and not calls_of(calls, "lost")
    assert len({line.split()[1] for line in calls.read_text().splitlines()}) == 1


def calls_of(calls, method):
    lines = [line.split() for line in calls.read_text().splitlines()]
    return [line[2:] for line in lines if line[0] == method]


@pytest.mark.parametrize(
    "listener, message",
    [
        ("Failing", r"Failing.on_partitions_assigned\(.*-\d\) raised KeyError: 'no table for it'"),
        ("Half", "has no method on_partitions_assigned"),
        ("Missing", "cannot be created: AttributeError"),
    ],
)
def test_failing_listener_fails_the_query_with_its_name(harness, listeners, listener, message):
    query = harness.start("a", {"availableNow": True}, rebalanceListener=f"{listeners[0]}:{listener}")
    with pytest.raises(Exception, match=message):
        query.awaitTermination(60)
    wait_until(lambda: not harness.members(), "the members have left")


def test_static_members_keep_their_generation_over_a_restart(harness):
    harness.produce(40)
    options = {"kafka.group.instance.id": "worker", "kafka.session.timeout.ms": "30000"}
    query = harness.start("a", **options)
    harness.wait_committed()
    before = {m.group_instance_id: m.assignment for m in harness.members()}
    assert set(before) == {"worker-0", "worker-1"}
    generation = generation_of(query)
    stop_gracefully(query, 60)
    assert {m.group_instance_id for m in harness.members()} == set(before)
    harness.produce(40)
    query = harness.start("a", **options)
    harness.wait_committed()
    assert generation_of(query) == generation
    assert {m.group_instance_id: m.assignment for m in harness.members()} == before
    stop_gracefully(query, 60)
    assert harness.values("a") == list(range(80))


def generation_of(query):
    (source,) = query.lastProgress["sources"]
    return parse_progress_offset(source["endOffset"])["@group"]["generation"]


# parity/test_feature_rows.py has a new topic, too
@pytest.mark.soak
def test_new_topics_that_match_the_pattern_are_read_from_the_start(harness):
    servers = harness.cluster.bootstrap_servers
    harness.produce(40)
    options = {"subscribe": None, "subscribePattern": f"{harness.topic}.*", "kafka.metadata.max.age.ms": "500"}
    query = harness.start("a", **options)
    harness.wait_committed()
    create_topic(servers, f"{harness.topic}-more", 2)
    harness.produced += produce(servers, f"{harness.topic}-more", ((n % 2, None, b"%d" % (40 + n)) for n in range(20)))
    harness.wait_committed()
    stop_gracefully(query, 60)
    assert harness.values("a") == list(range(60))


# test_restart_positions.py adds one between two runs
@pytest.mark.soak
def test_partitions_added_while_streaming_are_read_from_the_start(harness):
    servers = harness.cluster.bootstrap_servers
    harness.produce(40)
    query = harness.start("a", **{"kafka.metadata.max.age.ms": "500", "startingOffsets": "latest"})
    wait_until(lambda: len(harness.owners()) == 2, "two members")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(harness.topic, PARTITIONS + 1)])[harness.topic].result(30)

    def grown():
        return len(admin.list_topics(harness.topic, timeout=10).topics[harness.topic].partitions) == PARTITIONS + 1

    wait_until(grown, "the new partition")
    produce(servers, harness.topic, ((PARTITIONS, None, b"%d" % n) for n in range(10)))
    wait_until(lambda: harness.committed() == 50, "the new partition is read", 60)
    stop_gracefully(query, 60)
    assert harness.values("a") == list(range(10))


@pytest.mark.parametrize(
    "members, expected",
    [
        ("9", PARTITIONS),
        # the default is auto; other tests have one member
        ("auto", 2),
        pytest.param(None, 2, marks=pytest.mark.soak),
        pytest.param("1", 1, marks=pytest.mark.soak),
    ],
)
def test_members_are_bounded_by_partitions_and_auto_is_the_parallelism(harness, members, expected):
    register(harness.spark)
    query = harness.start("a", members=members)
    wait_until(lambda: len(harness.owners()) == expected, f"{expected} members that own partitions")
    assert len(harness.members()) == expected
    stop_gracefully(query, 60)


def test_query_that_waits_for_its_trigger_commits_and_shares_its_partitions(harness):
    register(harness.spark)
    harness.produce(40)
    first = harness.start("a", {"processingTime": "1 hour"})
    harness.wait_committed()
    second = harness.start("b", {"processingTime": "1 second"})
    wait_until(lambda: len(harness.owners()) == 4, "each of the four members owns a partition")
    harness.produce(40)
    wait_until(lambda: len(harness.values("b")) == 20, "the second query has read its half", 60, 0.1)
    stop_gracefully(second, 60)
    stop_gracefully(first, 60)
    assert harness.values("a") == list(range(40))


def test_starting_offsets_per_topic(harness, topic):
    servers = harness.cluster.bootstrap_servers
    harness.produce(40)
    create_topic(servers, f"{topic}-new", 1)
    produce(servers, f"{topic}-new", [(0, None, b"1000")])
    starts = json.dumps({topic: "latest", f"{topic}-new": "earliest"})
    query = harness.start(
        "a", {"availableNow": True}, subscribe=f"{topic},{topic}-new", startingOffsets=starts, members="2"
    )
    assert query.awaitTermination(60)
    assert harness.values("a") == [1000]
    positions = {p: c.offset for p, c in harness.client.fetch_committed(harness.group).items()}
    assert positions[TopicPartition(f"{topic}-new", 0)] == committed_at_end(1)


# test_limits.py counts stored bytes without Spark
@needs_admission_control
@pytest.mark.parametrize("codec", ["none", pytest.param("zstd", marks=pytest.mark.soak)])
def test_max_bytes_per_trigger_bounds_each_batch(harness, codec):
    value = bytes(range(250)) * 4
    rows = ((n % PARTITIONS, None, b"%04d" % n + value) for n in range(2000))
    produce(harness.cluster.bootstrap_servers, harness.topic, rows, compression_codec=codec, batch_size=16_384)
    query = harness.start("a", {"availableNow": True}, maxBytesPerTrigger="256k")
    assert query.awaitTermination(120)
    rows = [p["numInputRows"] for p in query.recentProgress]
    assert sum(rows) == 2000
    if codec == "none":
        # 2000 records of a little over 1 kB: about 250 in 256 kB
        assert all(count <= 256 for count in rows) and max(rows) >= 200
    else:
        # the limit counts stored bytes, and these values compress well
        assert rows == [2000] or min(rows) < 2000 and max(rows) > 256


@pytest.mark.soak
@needs_admission_control
def test_record_larger_than_max_bytes_per_trigger_is_read(harness):
    produce(harness.cluster.bootstrap_servers, harness.topic, [(0, None, b"x" * 100_000)] * 3)
    query = harness.start("a", {"availableNow": True}, maxBytesPerTrigger="1k")
    assert query.awaitTermination(120)
    assert [p["numInputRows"] for p in query.recentProgress] == [1, 1, 1]
