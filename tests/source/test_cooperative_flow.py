"""Queries of one group: cooperative rebalances without loss or duplicates."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter

import pytest
from support.members import JavaMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.spark.stream_reader import GroupStreamReader

PARTITIONS = 6
JAVA_COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
COLUMNS = SelectedColumns(("partition", "offset"))


class QueryThread:
    """A query that a thread runs as Spark does: batches, each followed by a pause, and at the end a drain.

    `seen` counts every (partition, offset) of finished batches; `during_rebalances` is the number of records of batches
    that were planned during a rebalance.
    """

    def __init__(self, options, pause=lambda: 0.0):
        self._reader = GroupStreamReader(parse_options(options, "stream"), COLUMNS, os.getpid())
        self._pause = pause
        self._ending = threading.Event()
        self.seen = Counter()
        self.during_rebalances = 0
        self.batches = 0
        self.failure = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Drains: the batch in flight ends, its offsets are committed, the members leave."""
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and self.failure is None, self.failure

    def _run(self):
        try:
            start = self._reader.initialOffset()
            while not self._ending.is_set():
                end = json.loads(json.dumps(self._reader.latestOffset(start, self._reader.getDefaultReadLimit())))
                if end != start:
                    self._read(start, end)
                    self._reader.commit(end)
                    start = end
                self._ending.wait(self._pause())
            # private: the control socket requests the drain in the reader process
            assert self._reader._process.session().request_drain(start)
        except Exception as error:
            self.failure = error
        finally:
            self._reader.stop()

    def _read(self, start, end):
        parts = self._reader.partitions(start, end)
        # a task sends a heartbeat after its last record, so a rebalance may proceed during the pause
        read = []
        for part in parts:
            for batch in self._reader.read(part):
                read += zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist())
                self._ending.wait(self._pause())
        # replaced, because other threads read it
        self.seen = self.seen + Counter(read)
        self.batches += 1
        if any(part.membership is not None and part.membership.retains_partitions for part in parts):
            self.during_rebalances += len(read)


class GroupScenario:
    """A topic, a group and its queries; `produced` is the number of records in the topic."""

    def __init__(self, cluster, topic, group):
        self.servers, self.topic, self.group = cluster.bootstrap_servers, topic, group
        self.client = ClusterClient(self.servers, ClientSettings.parse({"bootstrap.servers": self.servers}))
        self.produced = 0
        create_topic(self.servers, topic, PARTITIONS)

    def produce(self, count):
        rows = ((n % PARTITIONS, None, b"%d" % n) for n in range(self.produced, self.produced + count))
        self.produced += produce(self.servers, self.topic, rows)

    def start(self, name, pause=lambda: 0.0, **options):
        given = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "kafka.group.id": self.group,
            "splitBetweenQueries": "true",
            "kafka.client.id": name,
            "startingOffsets": "earliest",
            "members": "1",
            "kafka.session.timeout.ms": "60000",
            "kafka.heartbeat.interval.ms": "200",
            "kafka.partition.assignment.strategy": "cooperative-sticky",
            **options,
        }
        return QueryThread(given, pause)

    def described(self):
        return describe_groups(self.client, [self.group])[self.group]

    def assigned(self):
        """Client id -> number of partitions, of a stable group."""
        group = self.described()
        return {m.client_id: len(m.assignment) for m in group.members} if group.state == "Stable" else {}

    def committed(self):
        return sum(c.offset for c in self.client.fetch_committed(self.group).values() if c is not None)


@pytest.fixture
def scenario(cluster, topic, group, in_process):
    opened = GroupScenario(cluster, topic, group)
    yield opened
    opened.client.close()


@pytest.mark.java
def test_retained_partitions_are_read_while_a_java_member_is_slow(scenario):
    scenario.produce(60)
    with scenario.start("a") as a, JavaMember(
        scenario.servers, scenario.group, scenario.topic, assignor=JAVA_COOPERATIVE, session_timeout_ms=120_000
    ) as java:
        java.wait_for_partitions(3)
        wait_until(lambda: scenario.assigned().get("a-0") == 3, "half of the partitions each")
        scenario.produce(60)
        wait_until(lambda: scenario.committed() == len(a.seen) + java.consumed == scenario.produced, "all is committed")
        with java.frozen():
            b = scenario.start("b")
            wait_until(lambda: scenario.described().state == "PreparingRebalance", "a rebalance that waits for Java")
            before = len(a.seen)
            for _ in range(50):
                scenario.produce(60)
                before += 30
                wait_until(lambda: len(a.seen) == before, "query a reads its three partitions")
                if a.during_rebalances >= 60:
                    break
            # committed during the rebalance
            wait_until(lambda: scenario.committed() == before + java.consumed, "what was read is committed")
            assert a.during_rebalances >= 60 and not b.seen and scenario.described().state == "PreparingRebalance"
        wait_until(lambda: list(scenario.assigned().values()) == [2, 2, 2], "two partitions each", 60)
        scenario.produce(60)
        wait_until(lambda: len(a.seen) + len(b.seen) + java.consumed >= scenario.produced, "everything is read")
        b.stop()
    assert set((a.seen + b.seen).values()) == {1}, "nothing is read twice"
    report = f"a {sorted(a.seen)}, b {sorted(b.seen)}, Java {java.events}"
    assert len(a.seen) + len(b.seen) + java.consumed == scenario.produced and len(b.seen) == 20, report


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@pytest.mark.slow
def test_nothing_is_lost_or_read_twice_while_queries_start_and_stop(scenario, assignor):
    rng, running, ended = random.Random(7), [], []

    def start():
        pauses = random.Random(rng.random())
        names = {"members": str(rng.choice([1, 2])), "kafka.partition.assignment.strategy": assignor}
        running.append(scenario.start(f"{len(running) + len(ended)}", lambda: pauses.uniform(0, 0.1), **names))

    def seen():
        return sum((query.seen for query in (*running, *ended)), Counter())

    start()
    for step in range(12):
        scenario.produce(120)
        goal = len(seen()) + 60
        wait_until(lambda: len(seen()) >= min(goal, scenario.produced), f"half of it is read, step {step}", 60)
        if len(running) == 1 or (len(running) < 4 and rng.random() < 0.6):
            start()
        else:
            ended.append(running.pop(rng.randrange(len(running))))
            ended[-1].stop()
    wait_until(lambda: len(seen()) == scenario.produced, "everything is read", 60)
    for query in running:
        query.stop()
    assert set(seen().values()) == {1} and scenario.committed() == scenario.produced
    during_rebalances = sum(query.during_rebalances for query in (*running, *ended))
    assert (during_rebalances > 0) == (assignor == "cooperative-sticky")
