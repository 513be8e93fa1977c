"""Kafka's HeartbeatTest, and the cases of AbstractCoordinatorTest about leaving."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.scripted_group import T0, T1, Bench, Script, follower, joined

from spark_groupsource.client.membership.membership_values import (
    Generation,
    Idle,
    MarkCoordinatorUnknown,
    MemberConfig,
    SendHeartbeat,
)
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.errors import ErrorCode, RequestTimeoutError
from spark_groupsource.wire.messages import LeaveGroupResponse


def stable_member() -> Membership:
    """Returns a member with session.timeout.ms=10000, stable since 0."""
    bench = Bench(start_ms=0, session_timeout_ms=10_000)
    bench.settle()
    return bench.member


@pytest.mark.conformance("HB-001", "HB-002", "HB-003")
def test_heartbeat_is_due_after_its_interval() -> None:
    member = stable_member()
    assert member.next_action(0) == Idle(3_000) == member.next_action(2_999)
    # an overdue heartbeat is due immediately
    assert member.next_action(3_000) == SendHeartbeat() == member.next_action(5_000)


@pytest.mark.conformance("HB-004")
def test_session_expires_without_a_response() -> None:
    member = stable_member()
    for now_ms in (3_000, 6_000, 9_000):
        member.heartbeat_request(now_ms)
        member.on_heartbeat_failure(now_ms, 3_000)
    assert member.next_action(9_999) == Idle(10_000)
    assert member.next_action(10_000) == MarkCoordinatorUnknown()


@pytest.mark.conformance("HB-006")
def test_joining_restarts_both_timers() -> None:
    member = Membership(MemberConfig("g", ("range",), rebalance_timeout_ms=60_000, session_timeout_ms=10_000), 0)
    script = Script(joined().clock)
    member.prepare(("t",))
    request = member.join_request([("range", b"")])
    # the join took almost the whole rebalance timeout
    member.on_join_response(script.join_response(request, "m1"), member.generation, 59_000)
    assert member.next_action(59_000) == Idle(62_000)
    assert member.next_action(68_999) == SendHeartbeat() and member.next_action(69_000) == MarkCoordinatorUnknown()


# -- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("AC-028", "AC-029", "CC-057", "CC-058")
@pytest.mark.parametrize("instance_id", [None, "i"])
def test_dynamic_members_leave_on_close_and_static_ones_do_not(instance_id: str | None) -> None:
    bench = joined(group_instance_id=instance_id)
    bench.client.close()
    sent = [row for request in bench.script.requests("LeaveGroup") for row in request.members]
    assert [row.member_id for row in sent] == ([] if instance_id else ["m1"])
    assert bench.member.generation == Generation() and bench.client.view.partitions == ()


@pytest.mark.conformance("AC-030")
def test_leave_reason_is_truncated() -> None:
    bench = joined()
    bench.client.leave("x" * 300)
    (request,) = bench.script.requests("LeaveGroup")
    assert request.members[0].reason == "x" * 255


@pytest.mark.conformance("AC-032")
def test_leave_response_without_members_is_a_success(caplog: pytest.LogCaptureFixture) -> None:
    bench = joined()
    with caplog.at_level(logging.WARNING):
        bench.client.close()
    assert caplog.text == ""


@pytest.mark.conformance("AC-033")
def test_failed_leave_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = joined()

    def reject(request: Any) -> Any:
        row = LeaveGroupResponse.MemberResponse
        members = [row(member_id="m1", group_instance_id=None, error_code=ErrorCode.UNKNOWN_MEMBER_ID)]
        return LeaveGroupResponse(error_code=0, members=members)

    bench.script.prepare("LeaveGroup", reject)
    with caplog.at_level(logging.WARNING):
        bench.client.close()
    assert "m1" in caplog.text and "UNKNOWN_MEMBER_ID" in caplog.text


@pytest.mark.conformance("CC-059")
def test_member_that_has_only_a_member_id_sends_leave() -> None:
    bench = Bench()
    bench.poll()
    bench.members.run_once()
    bench.client.close()
    (request,) = bench.script.requests("LeaveGroup")
    assert request.members[0].member_id == "m1"


@pytest.mark.conformance("CC-130")
def test_close_before_joining_sends_no_request() -> None:
    bench = Bench()
    bench.client.close()
    assert bench.script.sent == [] and bench.clock.now_ms() == 1_000


@pytest.mark.conformance("CC-136")
@pytest.mark.parametrize("api", ["LeaveGroup", "FindCoordinator"])
def test_close_without_responses_ends_at_its_timeout(api: str) -> None:
    bench = joined()
    bench.cluster.forget_coordinators()
    bench.script.prepare(api, *[RequestTimeoutError("no response")] * 10)
    started_ms = bench.clock.now_ms()
    bench.client.close()
    assert bench.clock.now_ms() - started_ms <= 10_000
    assert bench.callbacks() == [("revoked", (T0, T1))]


@pytest.mark.conformance("CC-019", "CC-026")
def test_close_after_removal_calls_lost_once_and_does_not_call_revoked() -> None:
    bench = follower(T0)
    bench.script.prepare("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
    bench.heartbeat()
    bench.client.close()
    bench.client.close()
    assert bench.callbacks() == [("lost", (T0,))]
    assert bench.script.requests("LeaveGroup") == []


def test_close_before_a_rebalance_that_was_announced_revokes() -> None:
    """The coordinator accepts commits until the member joins."""
    bench = follower(T0)
    bench.script.prepare("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
    bench.heartbeat()
    bench.client.close()
    assert bench.callbacks() == [("revoked", (T0,))]


def test_close_during_a_rebalance_calls_lost() -> None:
    bench = follower(T0, assignors=("cooperative-sticky",))
    bench.member.request_rejoin("a test")
    bench.poll()
    bench.member.join_request([])
    bench.client.close()
    assert bench.callbacks() == [("lost", (T0,))]


def test_revoked_callback_of_close_can_commit() -> None:
    from spark_groupsource.model import OffsetAndMetadata

    bench = follower(T0)
    bench.listener.on = lambda call: bench.client.commit({T0: OffsetAndMetadata(4)})
    bench.client.close()
    assert bench.script.sent_apis() == ["OffsetCommit", "LeaveGroup"]
