"""Faults longer than timeouts end no query that makes progress.

The numbers of `docs/concepts.md` are scaled down. Other rows are in `source/test_offset_decisions.py` (a replay with
members), `source/test_restart_positions.py` (a restored checkpoint) and `client/test_slow_links.py`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from support.clients import ConnectionLostError, group_client, open_cluster
from support.clusters import Cluster
from support.direct_readers import StreamQuery
from support.proxied_cluster import ProxiedCluster, proxied_cluster
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.group import error_response
from spark_groupsource.client.membership import commit_repetition
from spark_groupsource.errors import ConfigurationError, ErrorCode, GroupSourceError
from spark_groupsource.model import TopicPartition

pytestmark = [pytest.mark.usefixtures("in_process"), pytest.mark.slow, pytest.mark.one_cluster]

# group.min.session.timeout.ms of Kafka is 6 s
MEMBER = {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
SHORT_CALLS = {"kafka.default.api.timeout.ms": "1200", "kafka.request.timeout.ms": "1200"}
PAUSE_S = 2.0


class Queries:
    """Queries of one group that read one topic of `count` partitions."""

    def __init__(self, cluster: Cluster, topic: str, group: str, opened: ExitStack, count: int = 1) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        self._opened = opened
        create_topic(cluster.bootstrap_servers, topic, count)

    def produce(self, count: int, partition: int = 0) -> None:
        produce(self.cluster.bootstrap_servers, self.topic, [(partition, None, b"v")] * count)

    def start(self, proxy: ProxiedCluster | None = None, **options: str) -> StreamQuery:
        servers = self.cluster.bootstrap_servers if proxy is None else proxy.bootstrap_servers
        given = {"subscribe": self.topic, "kafka.group.id": self.group, "startingOffsets": "earliest", **MEMBER}
        query = StreamQuery(Cluster(self.cluster.name, servers), {**given, **options})
        self._opened.callback(query.reader.stop)
        return query

    def committed(self) -> dict[int, int]:
        with open_cluster(self.cluster.bootstrap_servers) as client:
            found = client.fetch_committed(self.group).items()
        return {p.partition: commit.offset for p, commit in found if commit is not None}


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def queries(cluster: Cluster, topic: str, group: str, opened: ExitStack) -> Queries:
    return Queries(cluster, topic, group, opened)


@pytest.fixture
def proxy(queries: Queries, opened: ExitStack) -> ProxiedCluster:
    return opened.enter_context(proxied_cluster(queries.cluster.bootstrap_servers))


def rows(*queries: StreamQuery) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for query in queries for row in query.rows)


def generation(query: StreamQuery) -> int:
    found: int = query.start["@group"]["generation"]
    return found


@pytest.mark.parametrize("when", ["between two triggers", "in a batch"])
def test_pause_longer_than_max_poll_interval_repeats_nothing(
    cluster: Cluster, topic: str, group: str, opened: ExitStack, when: str
) -> None:
    """A trigger, a backlog or a foreachBatch; the other query continues meanwhile."""
    queries = Queries(cluster, topic, group, opened, 2)
    first, second = (queries.start(**{"kafka.max.poll.interval.ms": "1000"}) for _ in range(2))

    settled = threading.Event()

    def run(query: StreamQuery) -> None:
        while not settled.is_set():
            query.trigger()

    def both_own() -> bool:
        for number in range(2):
            queries.produce(1, number)
        return all(len(query.start.get(topic, ())) == 1 for query in (first, second))

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, query) for query in (first, second)]
        try:
            wait_until(both_own, "each query owns a partition", 60)
        finally:
            settled.set()
    for each in running:
        each.result()
    generations = [generation(query) for query in (first, second)]
    for number in range(2):
        queries.produce(5, number)
    end = tasks = None
    if when == "in a batch":
        end = first.latest_offset()
        tasks = first.reader.partitions(first.start, end)
    until = time.monotonic() + PAUSE_S
    while time.monotonic() < until:
        second.trigger()
    if tasks is not None:
        first.rows += [row for task in tasks for batch in first.reader.read(task) for row in batch.to_pylist()]
        first.start = end
    first.run()
    second.run()
    assert [generation(query) for query in (first, second)] == generations
    ends = queries.committed()
    assert rows(first, second) == [(p, offset) for p in sorted(ends) for offset in range(ends[p])]


@pytest.mark.parametrize("repaired_by", ["repetition", "drain", "revocation"])
def test_commit_that_arrives_late_is_corrected(
    queries: Queries, proxy: ProxiedCluster, repaired_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Any] = []
    is_late = False

    def respond(node: int, api: str, request: Any, forward: Any) -> Any:
        nonlocal is_late
        if api == "OffsetCommit" and is_late:
            is_late = False
            late.append(forward)
            raise ConnectionLostError
        return forward()

    proxy.respond = respond
    if repaired_by == "repetition":
        monkeypatch.setattr(commit_repetition, "REPEAT_INTERVAL_MS", 200)
    queries.produce(10)
    query = queries.start(proxy)
    assert len(query.trigger()) == 10
    is_late = True
    queries.produce(5)
    # commits 10, which is late, and again
    assert len(query.trigger()) == 5
    assert query.trigger() == [] and queries.committed() == {0: 15}
    late[0]()
    if repaired_by == "drain":
        # private: a drain is requested over the control socket
        session = query.reader._process.session()
        assert session.request_drain(query.start)
    elif repaired_by == "revocation":
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(queries.start().trigger)
            wait_until(lambda: not query.trigger() and other.done(), "the other query has joined", 60)
            assert other.result() == [], "nothing is repeated"
    wait_until(lambda: queries.committed() == {0: 15}, "the last offset is committed again", 10)


@pytest.mark.parametrize("bound", [None, "2s"])
def test_outage_longer_than_the_timeouts(
    queries: Queries, proxy: ProxiedCluster, caplog: pytest.LogCaptureFixture, bound: str | None
) -> None:
    queries.produce(3)
    query = queries.start(proxy, **SHORT_CALLS, **({} if bound is None else {"maxOutage": bound}))
    assert len(query.run().rows) == 3
    caplog.set_level(logging.INFO)
    proxy.is_cut = True
    if bound is not None:
        with pytest.raises(GroupSourceError, match="No Kafka broker is reachable"):
            query.trigger()
        return
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(query.trigger)
        wait_until(lambda: "Waiting for the cluster" in caplog.text, "the warning, after the timeout", 60)
        queries.produce(2)
        proxy.is_cut = False
        read = len(calling.result(60)) + len(query.run().rows) - 3
    assert rows(query) == [(0, offset) for offset in range(5)] and read >= 2
    names = ("Waiting for the cluster", "responds again")
    lines = [r.levelname for r in caplog.records if any(name in r.message for name in names)]
    assert lines == ["WARNING", "INFO"]


@pytest.mark.parametrize("reaction", ["follow", "ignore", "fail"])
def test_checkpoint_restored_from_a_backup(
    queries: Queries, reaction: str, caplog: pytest.LogCaptureFixture
) -> None:
    queries.produce(10)
    with queries.start() as former:
        former.trigger()
        backup = json.loads(json.dumps(former.start))
        queries.produce(5)
        former.run()
    assert queries.committed() == {0: 15}
    restored = queries.start(onGroupAhead=reaction)
    restored.start = backup
    if reaction == "fail":
        with pytest.raises(ConfigurationError, match=r"\(onGroupAhead=fail\): .*-0 \(15 > 10\)"):
            restored.trigger()
        return
    read = {"follow": [], "ignore": [(0, offset) for offset in range(10, 15)]}[reaction]
    assert rows(restored.run()) == read
    assert f"(onGroupAhead={reaction})" in caplog.text and "-0 (15 > 10)" in caplog.text


def test_member_is_not_fenced_by_a_coordinator_that_is_cut_off(queries: Queries, opened: ExitStack) -> None:
    proxy = opened.enter_context(proxied_cluster(queries.cluster.bootstrap_servers, 3))
    is_cut_off = False

    def respond(node: int, api: str, request: Any, forward: Any) -> Any:
        if is_cut_off and node == 0 and api in ("Heartbeat", "OffsetCommit"):
            return error_response(request, ErrorCode.UNKNOWN_MEMBER_ID, 0)
        return forward()

    proxy.respond = respond
    queries.produce(5)
    query = queries.start(proxy)
    assert len(query.run().rows) == 5
    before = generation(query)
    proxy.coordinators, is_cut_off = [0, 1, 1], True
    queries.produce(5)
    wait_until(lambda: len(proxy.sent(1, "Heartbeat")) >= 2, "heartbeats are sent to the new coordinator")
    query.run()
    assert rows(query) == [(0, offset) for offset in range(10)] and generation(query) == before
    assert queries.committed() == {0: 10} and proxy.sent(1, "OffsetCommit")


def test_node_with_older_metadata_deletes_no_partition(queries: Queries, opened: ExitStack) -> None:
    """Partitions were added; the restarted query asks that node first."""
    servers = queries.cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(queries.topic, 3)])[queries.topic].result(30)
    for number in range(3):
        queries.produce(2, number)
    with queries.start() as former:
        wait_until(lambda: not former.trigger() and len(former.rows) == 6, "all partitions are read", 30)
        start = former.start
    proxy = opened.enter_context(proxied_cluster(servers, 3))

    def respond(node: int, api: str, request: Any, forward: Any) -> Any:
        response = forward()
        if api == "Metadata" and node == 0:
            for topic in response.topics:
                topic.partitions = [p for p in topic.partitions if p.partition_index == 0]
        return response

    proxy.respond = respond
    queries.produce(1, 2)
    restarted = queries.start(proxy)
    restarted.start = start
    wait_until(lambda: bool(restarted.trigger()), "the new record is read", 30)
    assert rows(restarted) == [(2, 2)] and proxy.sent(0, "Metadata")


class BeyondTheTopic:
    """An assignor of a foreign leader, which assigns to the query a partition that does not exist yet."""

    def __init__(self, assignor: Any, partition: TopicPartition, leader: str) -> None:
        self._assignor, self._partition, self._leader = assignor, partition, leader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._assignor, name)

    def assign(self, counts: Any, members: Any, racks: Any = None) -> Any:
        assigned = dict(self._assignor.assign(counts, members, racks))
        for member in members:
            if not member.member_id.startswith(self._leader):
                assigned[member.member_id] = [*assigned.get(member.member_id, ()), self._partition]
        return assigned


def test_partition_that_does_not_exist_is_skipped_and_read_once_it_does(
    queries: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    servers = queries.cluster.bootstrap_servers
    absent = TopicPartition(queries.topic, 1)
    with ExitStack() as leading:
        client = leading.enter_context(open_cluster(servers))
        leader = leading.enter_context(group_client(client, queries.group, queries.topic, client_id="lead"))
        (member,) = leader.shared.members
        member.assignors = {name: BeyondTheTopic(each, absent, "lead") for name, each in member.assignors.items()}
        assert leader.poll(30_000).is_stable
        query = queries.start(**{"kafka.partition.assignment.strategy": ",".join(member.assignors)})
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(query.trigger)
            wait_until(lambda: leader.poll(100).is_stable and joining.done(), "the query has joined", 60)
            assert joining.result() == []
        wait_until(lambda: "do not exist, and are read once they do" in caplog.text, "the warning", 30)
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_partitions([NewPartitions(queries.topic, 2)])[queries.topic].result(30)
        queries.produce(3, 1)

        def has_read() -> bool:
            leader.poll(0)
            query.trigger()
            return len(rows(query)) >= 3

        wait_until(has_read, "the partition is read", 60)
    assert [row for row in rows(query) if row[0] == 1] == [(1, offset) for offset in range(3)]
