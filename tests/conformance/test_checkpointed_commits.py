"""Commits of a query that reads partitions it was told, without members: they follow the checkpoint, not a timer.

Cases of Kafka's ConsumerCoordinatorTest for manual assignment; where a Java consumer commits by a timer, a query
commits what Spark has checkpointed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scripted_group import GROUP, T0, Script, ScriptedCluster

from spark_groupsource.client.membership.state_machine import Idle
from spark_groupsource.clock import ManualClock
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.batch_planner import Limits
from spark_groupsource.source.options import SourceOptions, parse_options
from spark_groupsource.source.ownership import AssignedPartitions, GroupPartitions
from spark_groupsource.source.session import StreamSession


class Query:
    """A query with ``assign``, and Spark's part in it; every trigger reads to the log's end."""

    def __init__(self, *, end: int = 10, **client: Any) -> None:
        self.clock = ManualClock()
        self.script = Script(self.clock)
        self.script.topics = {"t": [[0]]}
        self.script.ends["t"] = end
        self.cluster = ScriptedCluster(self.script, self.clock, **client)
        options = parse_options(
            {
                "kafka.bootstrap.servers": "host0:9092",
                "kafka.group.id": GROUP,
                "assign": '{"t":[0]}',
                "startingOffsets": "group-or-earliest",
            },
            "stream",
        )
        self.session = StreamSession(self.cluster, options, AssignedPartitions(self.cluster, options), self.clock)
        self.start: dict[str, Any] = {}

    def trigger(self, end: int | None = None) -> list[tuple[int, int]]:
        """One trigger, after the log has grown to `end`; the ranges read."""
        if end is not None:
            self.script.ends["t"] = end
        self.clock.advance_ms(1_000)
        begin = self.start
        self.start = json.loads(json.dumps(self.session.latest_offset(begin, Limits())))
        tasks = self.session.input_partitions(begin, self.start) if self.start != begin else []
        return [(r.start, r.end) for task in tasks for r in task.ranges]

    def commits(self) -> list[tuple[int, str, int]]:
        """Generation, member id and offset of each OffsetCommit."""
        return [
            (request.generation_id_or_member_epoch, request.member_id, p.committed_offset)
            for request in self.script.of("OffsetCommit")
            for topic in request.topics
            for p in topic.partitions
        ]


def running(**settings: Any) -> Query:
    """A query that has planned its first batch, to offset 10, and of which nothing is checkpointed yet."""
    query = Query(**settings)
    assert query.trigger() == [(0, 10)]
    query.script.sent.clear()
    return query


@pytest.mark.conformance("CC-115")
def test_committed_offset_becomes_the_position() -> None:
    query = Query()
    query.script.committed = {T0: OffsetAndMetadata(4)}
    assert query.trigger() == [(4, 10)]


@pytest.mark.conformance("CC-010", "CC-123", "CC-124")
def test_nothing_is_looked_up_while_positions_are_known_and_nothing_is_due() -> None:
    query = running()
    query.trigger()
    query.cluster._coordinators.clear()
    query.script.sent.clear()
    for _ in range(3):
        assert query.trigger() == []
    assert set(query.script.asked()) == {"ListOffsets"}


@pytest.mark.conformance("CC-011", "CC-085")
def test_commit_is_sent_once_the_batch_is_checkpointed() -> None:
    query = running()
    query.cluster._coordinators.clear()
    assert query.commits() == []
    assert query.trigger(end=20) == [(10, 20)]
    assert query.commits() == [(-1, "", 10)]
    assert query.script.asked().index("FindCoordinator") < query.script.asked().index("OffsetCommit")


@pytest.mark.conformance("CC-086", "CC-139")
def test_commit_that_could_not_be_sent_follows_once_the_coordinator_is_back() -> None:
    query = running(default_api_timeout_ms=1_000)
    query.cluster._coordinators.clear()
    query.script.once("FindCoordinator", *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
    assert query.trigger(end=20) == [(10, 20)] and query.commits() == [], "reading goes on"
    query.script._steps.clear()
    assert query.trigger() == [] and query.commits() == [(-1, "", 20)], "the newest position"


@pytest.mark.conformance("CC-128")
def test_drain_commits_and_does_not_leave_a_group_it_never_joined() -> None:
    query = running()
    assert query.session.request_drain(query.start)
    query.session.close("stopped")
    assert query.commits() == [(-1, "", 10)] and query.script.of("LeaveGroup") == []


class ScriptedMembers(GroupPartitions):
    """Members of a group whose threads take their turns inside `poll`."""

    def __init__(self, cluster: ScriptedCluster, options: SourceOptions, clock: ManualClock) -> None:
        super().__init__(cluster, options, clock, members=1)
        (self.thread,) = self._group.threads
        self.thread.start = lambda: None  # type: ignore[method-assign]
        self._clock = clock

    def poll(self, timeout_ms: int) -> bool:
        for _ in range(10):
            if self._group.poll(0).is_stable:
                return True
            self.pump()
        return False

    def pump(self) -> None:
        """Lets the member's thread do everything it has to do now."""
        while not isinstance(self.thread.membership.next_action(self._clock.now_ms()), Idle):
            self.thread.run_once()


@pytest.mark.conformance("CC-039")
def test_failing_commit_delays_the_rebalance_up_to_its_timeout() -> None:
    query = Query()
    options = parse_options(
        {
            "kafka.bootstrap.servers": "host0:9092",
            "kafka.group.id": GROUP,
            "subscribe": "t",
            "startingOffsets": "earliest",
            "kafka.max.poll.interval.ms": "60000",
        },
        "stream",
    )
    members = ScriptedMembers(query.cluster, options, query.clock)
    query.session = StreamSession(query.cluster, options, members, query.clock)
    assert query.trigger() == [(0, 10)]
    query.script.sent.clear()
    query.script.once("OffsetCommit", *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 10_000)
    query.script.once("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
    query.clock.advance_ms(3_000)
    members.pump()
    until_ms = query.clock.now_ms() + 50_000
    while query.clock.now_ms() < until_ms:
        assert query.trigger() == [] and query.script.of("JoinGroup") == []
        members.pump()
    while not query.script.of("LeaveGroup"):
        query.clock.advance_ms(3_000)
        members.pump()
    # nothing is left to commit for: what was read is checkpointed here, the group decides the rest
    query.script._steps.clear()
    assert query.trigger(end=20) == [(10, 20)]
    assert query.script.of("JoinGroup")[0].member_id == ""
