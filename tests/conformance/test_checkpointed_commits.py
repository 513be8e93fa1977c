"""Kafka's ConsumerCoordinatorTest: commits with manual assignment.

A Java consumer commits periodically (enable.auto.commit); a query commits the offsets of checkpointed batches.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from support.manual_loop import ManualMembers
from support.scripted_group import GROUP, T0, Script, ScriptedCluster

from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.group.ownership import AssignedPartitions, GroupPartitions
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.session import StreamSession


class Query:
    """A query with option ``assign`` and the calls that Spark makes; every trigger reads to the log end offset."""

    def __init__(self, *, end: int = 10, **client: Any) -> None:
        self.clock = ManualClock()
        self.script = Script(self.clock)
        self.script.topics = {"t": [[0]]}
        self.script.log_end_offsets["t"] = end
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
        """Runs a trigger, after setting the log end offset to `end`; returns the offset ranges of the batch."""
        if end is not None:
            self.script.log_end_offsets["t"] = end
        self.clock.advance_ms(1_000)
        begin = self.start
        self.start = json.loads(json.dumps(self.session.latest_offset(begin, Limits())))
        tasks = self.session.input_partitions(begin, self.start) if self.start != begin else []
        return [(r.start, r.end) for task in tasks for r in task.ranges]

    def commits(self) -> list[tuple[int, str, int]]:
        """Returns generation, member id and offset of each OffsetCommit."""
        return [
            (request.generation_id_or_member_epoch, request.member_id, p.committed_offset)
            for request in self.script.requests("OffsetCommit")
            for topic in request.topics
            for p in topic.partitions
        ]


def running(**settings: Any) -> Query:
    """Returns a query whose first batch, up to offset 10, is planned and not checkpointed yet."""
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
def test_coordinator_is_not_looked_up_while_there_is_nothing_to_commit() -> None:
    query = running()
    query.trigger()
    query.cluster.forget_coordinators()
    query.script.sent.clear()
    for _ in range(3):
        assert query.trigger() == []
    assert set(query.script.sent_apis()) == {"ListOffsets"}


@pytest.mark.conformance("CC-011", "CC-085")
def test_commit_is_sent_when_the_batch_is_checkpointed() -> None:
    query = running()
    query.cluster.forget_coordinators()
    assert query.commits() == []
    assert query.trigger(end=20) == [(10, 20)]
    assert query.commits() == [(-1, "", 10)]
    assert query.script.sent_apis().index("FindCoordinator") < query.script.sent_apis().index("OffsetCommit")


@pytest.mark.conformance("CC-086", "CC-139")
def test_failed_commit_is_sent_when_the_coordinator_is_available() -> None:
    query = running(default_api_timeout_ms=1_000)
    query.cluster.forget_coordinators()
    query.script.prepare("FindCoordinator", *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
    assert query.trigger(end=20) == [(10, 20)] and query.commits() == [], "the query continues"
    query.script.clear_prepared()
    assert query.trigger() == [] and query.commits() == [(-1, "", 20)], "the latest offset"


def test_commits_of_assigned_partitions_are_rejected_with_one_warning_while_the_group_has_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = running()
    query.script.prepare("OffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID)
    with caplog.at_level(logging.WARNING):
        assert query.trigger(end=20) == [(10, 20)] and query.trigger(end=30) == [(20, 30)]
    (line,) = [message for message in caplog.messages if "not committed while the group has members" in message]
    assert line.startswith(f"[group={GROUP}] Offsets of option assign")
    assert query.trigger(end=40) == [(30, 40)] and query.commits()[-1] == (-1, "", 30), "the group is empty again"


@pytest.mark.conformance("CC-128")
def test_drain_commits_and_sends_no_leave_request_without_membership() -> None:
    query = running()
    assert query.session.request_drain(query.start)
    query.session.close("stopped")
    assert query.commits() == [(-1, "", 10)] and query.script.requests("LeaveGroup") == []


class ScriptedMembers(GroupPartitions):
    """A group with one member, which runs inside `poll`."""

    def __init__(self, cluster: ScriptedCluster, options: SourceOptions, clock: ManualClock) -> None:
        super().__init__(cluster, options, clock, members=1)
        # protected: the test runs the members itself
        self.members = ManualMembers(self._group, clock)

    def poll(self, timeout_ms: int) -> bool:
        for _ in range(10):
            if self._group.poll(0).is_stable:
                return True
            self.members.run()
        return False


@pytest.mark.conformance("CC-039")
def test_failing_commit_delays_the_rebalance_up_to_its_timeout() -> None:
    query = Query()
    options = parse_options(
        {
            "kafka.bootstrap.servers": "host0:9092",
            "kafka.group.id": GROUP,
            "subscribe": "t",
            "startingOffsets": "earliest",
        },
        "stream",
    )
    members = ScriptedMembers(query.cluster, options, query.clock)
    query.session = StreamSession(query.cluster, options, members, query.clock)
    assert query.trigger() == [(0, 10)]
    query.script.sent.clear()
    query.script.prepare("OffsetCommit", *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 10_000)
    query.script.prepare("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
    query.clock.advance_ms(3_000)
    members.members.run()
    until_ms = query.clock.now_ms() + 50_000
    while query.clock.now_ms() < until_ms:
        assert query.trigger() == [] and query.script.requests("JoinGroup") == []
        members.members.run()
    # the coordinator has removed the member after the rebalance timeout, so the commit is dropped; the query continues
    # from its checkpoint and rejoins
    query.script.clear_prepared()
    query.script.prepare("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
    query.clock.advance_ms(3_000)
    members.members.run()
    assert query.trigger(end=20) == [(10, 20)]
    assert query.script.requests("JoinGroup")[0].member_id == ""
