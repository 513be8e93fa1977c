"""What only a group can do, through Spark, on both clusters: listeners, static members, patterns, limits by bytes."""

import json

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from stream_bench import PARTITIONS, Bench
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.datasource import register

pytestmark = pytest.mark.spark

LISTENER = """
import os

PATH = {path!r}

class Told:
    def _tell(self, what, partitions):
        with open(PATH, "a") as out:
            out.write(" ".join([what, str(os.getpid()), *(f"{{topic}}-{{n}}" for topic, n in partitions)]) + chr(10))

    def revoked(self, partitions):
        self._tell("revoked", partitions)

    def assigned(self, partitions):
        self._tell("assigned", partitions)

    def lost(self, partitions):
        self._tell("lost", partitions)

class Failing(Told):
    def assigned(self, partitions):
        raise KeyError("no table for it")

class Half:
    def revoked(self, partitions):
        pass
"""


@pytest.fixture
def bench(spark, cluster, topic, group, tmp_path):
    opened = Bench(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def listeners(tmp_path, monkeypatch):
    """A module of listeners in a place where Spark's processes find it; the name, and the file they write."""
    import sys
    from pathlib import Path

    name, told = f"listeners_{tmp_path.name.replace('-', '_')}", tmp_path / "told"
    # Spark's Python processes get the driver's site directories and what Spark itself adds, so a path file serves
    place = Path(next(path for path in sys.path if path.endswith("site-packages"))) / f"{name}.py"
    place.write_text(LISTENER.format(path=str(told)))
    yield name, told
    place.unlink()


def test_listener_hears_of_every_move_in_the_reader_process(bench, listeners):
    module, told = listeners
    bench.produce(40)
    first = bench.start("a", rebalanceListener=f"{module}:Told", **{"kafka.partition.assignment.strategy": "range"})
    bench.wait_committed()
    every = [f"{bench.topic}-{n}" for n in range(PARTITIONS)]
    # an assignment comes in two calls where the second member has its own a moment later
    assert sorted(p for line in heard(told, "assigned") for p in line) == every
    assert not heard(told, "revoked")
    stop_gracefully(first, 60)
    assert heard(told, "revoked") == [every] and not heard(told, "lost")
    assert len({line.split()[1] for line in told.read_text().splitlines()}) == 1


def heard(told, what):
    lines = [line.split() for line in told.read_text().splitlines()]
    return [line[2:] for line in lines if line[0] == what]


@pytest.mark.parametrize(
    "listener, message",
    [
        ("Failing", r"Failing.assigned\(.*-\d\) raised KeyError: 'no table for it'"),
        ("Half", "has no method assigned, lost"),
        ("Missing", "cannot be created: AttributeError"),
    ],
)
def test_failing_listener_fails_the_query_with_its_name(bench, listeners, listener, message):
    query = bench.start("a", {"availableNow": True}, rebalanceListener=f"{listeners[0]}:{listener}")
    with pytest.raises(Exception, match=message):
        query.awaitTermination(60)
    wait_until(lambda: not bench.members(), "the members have left")


def test_static_members_keep_their_generation_over_a_restart(bench):
    bench.produce(40)
    options = {"kafka.group.instance.id": "worker", "kafka.session.timeout.ms": "30000"}
    query = bench.start("a", **options)
    bench.wait_committed()
    before = {m.group_instance_id: m.assignment for m in bench.members()}
    assert set(before) == {"worker-0", "worker-1"}
    generation = generation_of(query)
    stop_gracefully(query, 60)
    assert {m.group_instance_id for m in bench.members()} == set(before)
    bench.produce(40)
    query = bench.start("a", **options)
    bench.wait_committed()
    assert generation_of(query) == generation
    assert {m.group_instance_id: m.assignment for m in bench.members()} == before
    stop_gracefully(query, 60)
    assert bench.values("a") == list(range(80))


def generation_of(query):
    (source,) = query.lastProgress["sources"]
    return json.loads(source["endOffset"])["@group"]["generation"]


def test_topics_that_match_later_join_and_are_read_from_their_begin(bench):
    servers = bench.cluster.bootstrap_servers
    bench.produce(40)
    options = {"subscribe": None, "subscribePattern": f"{bench.topic}.*", "kafka.metadata.max.age.ms": "500"}
    query = bench.start("a", **options)
    bench.wait_committed()
    create_topic(servers, f"{bench.topic}-more", 2)
    bench.produced += produce(servers, f"{bench.topic}-more", ((n % 2, None, b"%d" % (40 + n)) for n in range(20)))
    bench.wait_committed()
    stop_gracefully(query, 60)
    assert bench.values("a") == list(range(60))


def test_partitions_added_while_streaming_are_read_from_their_begin(bench):
    servers = bench.cluster.bootstrap_servers
    bench.produce(40)
    query = bench.start("a", **{"kafka.metadata.max.age.ms": "500", "startingOffsets": "latest"})
    wait_until(lambda: len(bench.owners()) == 2, "two members")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(bench.topic, PARTITIONS + 1)])[bench.topic].result(30)

    def grown():
        return len(admin.list_topics(bench.topic, timeout=10).topics[bench.topic].partitions) == PARTITIONS + 1

    wait_until(grown, "the new partition")
    produce(servers, bench.topic, ((PARTITIONS, None, b"%d" % n) for n in range(10)))
    wait_until(lambda: bench.committed() == 50, "the new partition is read", 60)
    stop_gracefully(query, 60)
    assert bench.values("a") == list(range(10))


@pytest.mark.parametrize("members, expected", [("9", PARTITIONS), ("auto", 2), (None, 2), ("1", 1)])
def test_members_are_never_more_than_partitions_and_auto_is_the_parallelism(bench, members, expected):
    register(bench.spark)
    query = bench.start("a", members=members)
    wait_until(lambda: len(bench.owners()) == expected, f"{expected} members that own something")
    assert len(bench.members()) == expected
    stop_gracefully(query, 60)


def test_member_that_polls_too_late_leaves_and_comes_back(bench, tmp_path):
    bench.produce(40)
    slow = []

    def write(frame, batch_id):
        values = [int(row.value) for row in frame.selectExpr("cast(value as string) as value").collect()]
        (tmp_path / f"batch-{batch_id}").write_text(json.dumps(values))
        if values and not slow:
            slow.append(wait_until(lambda: not bench.members(), "the members have left for lateness", 30))

    options = {"kafka.max.poll.interval.ms": "9000"}
    writer = bench.stream(**options).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    bench.queries.append(query)
    bench.wait_committed()
    bench.produce(40)
    bench.wait_committed()
    assert slow and len(bench.members()) == 2
    stop_gracefully(query, 60)
    found = sorted(n for path in tmp_path.glob("batch-*") for n in json.loads(path.read_text()))
    assert found == list(range(80))


def test_start_per_topic(bench, topic):
    servers = bench.cluster.bootstrap_servers
    bench.produce(40)
    create_topic(servers, f"{topic}-new", 1)
    produce(servers, f"{topic}-new", [(0, None, b"1000")])
    starts = json.dumps({topic: "latest", f"{topic}-new": "earliest"})
    query = bench.start(
        "a", {"availableNow": True}, subscribe=f"{topic},{topic}-new", startingOffsets=starts, members="2"
    )
    assert query.awaitTermination(60)
    assert bench.values("a") == [1000]
    positions = {p: c.offset for p, c in bench.client.fetch_committed(bench.group).items()}
    assert positions[TopicPartition(f"{topic}-new", 0)] == 1


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_limit_by_bytes_bounds_each_batch(bench, codec):
    value = bytes(range(250)) * 4
    rows = ((n % PARTITIONS, None, b"%04d" % n + value) for n in range(2000))
    produce(bench.cluster.bootstrap_servers, bench.topic, rows, compression_codec=codec, batch_size=16_384)
    query = bench.start("a", {"availableNow": True}, maxBytesPerTrigger="256k")
    assert query.awaitTermination(120)
    rows = [p["numInputRows"] for p in query.recentProgress]
    assert sum(rows) == 2000
    if codec == "none":
        # 2000 records of a little over 1 kB: 256 kB hold 250 of them
        assert all(count <= 256 for count in rows) and max(rows) >= 200
    else:
        # the limit counts what is stored, which compresses to a small part
        assert rows == [2000] or min(rows) < 2000 and max(rows) > 256


def test_limit_by_bytes_does_not_stop_at_a_larger_record(bench):
    produce(bench.cluster.bootstrap_servers, bench.topic, [(0, None, b"x" * 100_000)] * 3)
    query = bench.start("a", {"availableNow": True}, maxBytesPerTrigger="1k")
    assert query.awaitTermination(120)
    assert [p["numInputRows"] for p in query.recentProgress] == [1, 1, 1]
