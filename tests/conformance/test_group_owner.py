"""Kafka's ConsumerCoordinatorTest: rebalances, callbacks, errors, commits and close."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.clients import is_connected
from support.scripted_group import T0, T1, U0, Bench, follower, joined, sent_assignments, subscriptions, using

from spark_groupsource.assign import RangeAssignor
from spark_groupsource.client.membership.membership_values import Generation
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode, NetworkError, RemoteProtocolError
from spark_groupsource.model import Assignment, OffsetAndMetadata, Subscription
from spark_groupsource.wire.consumer_protocol import encode_assignment

COOPERATIVE = {"assignors": ("cooperative-sticky",)}
BOTH = pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])


class FailingOnAssignment(RangeAssignor):
    """Its `on_assignment` fails."""

    name = "failing"

    def on_assignment(self, assignment: Any, generation_id: int) -> None:
        raise LookupError("assignor")


class FailingOnSecondAssignment(RangeAssignor):
    """Its `on_assignment` fails after the first generation."""

    name = "failing later"
    cooperative = True

    def on_assignment(self, assignment: Any, generation_id: int) -> None:
        if generation_id > 1:
            raise LookupError("assignor")


# -- coordinator lookup ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-008")
def test_lookup_that_is_not_authorized_is_raised() -> None:
    bench = Bench()
    bench.script.prepare("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="Grant") as raised:
        bench.settle()
    assert raised.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.conformance("CC-007")
def test_heartbeat_that_succeeds_changes_nothing() -> None:
    bench = joined()
    before = bench.client.view
    bench.heartbeat()
    assert bench.script.sent_apis() == ["Heartbeat"] and bench.poll() == before
    (request,) = bench.script.requests("Heartbeat")
    assert (request.generation_id, request.member_id) == (before.generation_id, "m1")


@pytest.mark.conformance("CC-013", "CC-017", "CC-028")
@pytest.mark.parametrize(
    "failure", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, NetworkError("peer closed")]
)
def test_coordinator_that_moved_is_looked_up_again_and_the_member_keeps_its_partitions(failure: Any) -> None:
    bench = joined()
    before = bench.client.view
    bench.script.prepare("Heartbeat", failure)
    bench.heartbeat()
    assert not is_connected(bench.client) and not bench.cluster.has_coordinator("g")
    bench.heartbeat()
    assert bench.script.sent_apis() == ["Heartbeat", "FindCoordinator", "Heartbeat"]
    assert bench.poll() == before and bench.callbacks() == []


# -- rebalances -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-030")
@BOTH
@pytest.mark.conformance("KC-109")
def test_leader_assigns_and_owns_the_result(settings: Any) -> None:
    bench = Bench(**settings)
    bench.script.other_members = {"other": Subscription(("t",))}
    assert bench.settle().partitions == (T0,)
    assert sent_assignments(bench) == {"m1": (T0,), "other": (T1,)}
    assert bench.callbacks() == [("assigned", (T0,))]


@pytest.mark.conformance("CC-054")
@BOTH
def test_follower_sends_an_empty_sync_and_gets_its_partitions(settings: Any) -> None:
    bench = Bench(**settings)
    bench.script.is_leader, bench.script.assigned = False, (T1,)
    assert bench.settle().partitions == (T1,)
    assert sent_assignments(bench) == {} and "Metadata" not in bench.script.sent_apis()[1:]
    assert bench.callbacks() == [("assigned", (T1,))]


@pytest.mark.conformance("CC-143")
def test_view_before_and_after_joining() -> None:
    bench = Bench(group_instance_id="i")
    (member,) = bench.client.view.members
    assert (member.generation_id, member.member_id, member.group_instance_id) == (-1, "", "i-0")
    bench.settle()
    (member,) = bench.client.view.members
    assert (member.generation_id, member.member_id, member.group_instance_id) == (1, "m1", "i-0")


@pytest.mark.conformance("CC-144")
def test_generation_is_new_inside_the_callback() -> None:
    bench = follower(T0, T1, **COOPERATIVE)
    seen: list[int] = []
    bench.listener.on = lambda call: seen.append(bench.client.view.generation_id)
    bench.member.request_rejoin("a test")
    bench.script.assigned = (T0,)
    bench.poll()
    bench.run_members()
    bench.poll()
    assert bench.callbacks() == [("revoked", (T1,)), ("assigned", ())] and seen == [2, 2]


@pytest.mark.conformance("CC-060")
def test_unknown_error_of_sync_is_raised() -> None:
    bench = Bench()
    bench.script.prepare("SyncGroup", ErrorCode.UNKNOWN_SERVER_ERROR)
    with pytest.raises(BrokerError, match="SyncGroup.*UNKNOWN_SERVER_ERROR"):
        bench.settle()


@pytest.mark.conformance("CC-061", "CC-062", "CC-063")
@pytest.mark.parametrize(
    "code, expected",
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ["m1", "", "m2"]),
        (ErrorCode.REBALANCE_IN_PROGRESS, ["m1", "m1"]),
        (ErrorCode.ILLEGAL_GENERATION, ["m1", "m1"]),
    ],
)
@pytest.mark.conformance("KC-070")
def test_rejected_sync_leads_to_another_join(code: ErrorCode, expected: list[str]) -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.script.prepare("SyncGroup", code)
    assert bench.settle().is_stable
    assert [request.member_id for request in bench.script.requests("JoinGroup")] == expected


@pytest.mark.conformance("CC-146", "CC-147")
@pytest.mark.parametrize(
    "settings, code, member_id, lost",
    [
        ({}, ErrorCode.UNKNOWN_MEMBER_ID, "", []),
        ({}, ErrorCode.ILLEGAL_GENERATION, "m1", []),
        (COOPERATIVE, ErrorCode.UNKNOWN_MEMBER_ID, "", [("lost", (T0, T1))]),
        # a dynamic member keeps them: test_cooperative_rebalance.py
        ({**COOPERATIVE, "group_instance_id": "i"}, ErrorCode.ILLEGAL_GENERATION, "m1", [("lost", (T0, T1))]),
    ],
)
def test_retained_partitions_are_lost_if_the_member_is_removed_during_the_rebalance(
    settings: Any, code: ErrorCode, member_id: str, lost: Any
) -> None:
    bench = joined(**settings)
    bench.member.request_rejoin("a test")
    bench.script.prepare("SyncGroup", code)
    bench.poll()
    bench.run_members()
    assert bench.member.generation == Generation(-1, member_id, None)
    bench.listener.calls.clear()
    bench.poll()
    assert bench.callbacks() == lost and bench.client.view.partitions == ()
    assert bench.settle().partitions == (T0, T1)


@pytest.mark.conformance("CC-018", "CC-027")
@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
@BOTH
def test_partitions_of_a_removed_member_are_lost(code: ErrorCode, settings: Any) -> None:
    bench = joined(**settings)
    bench.script.prepare("Heartbeat", code)
    bench.heartbeat()
    assert bench.client.rejoin_needed and bench.client.view.partitions == (T0, T1), "they are lost in poll, not before"
    bench.poll()
    assert bench.callbacks() == [("lost", (T0, T1))] and bench.client.view.partitions == ()
    assert bench.settle().is_stable


@pytest.mark.conformance("CC-031")
@BOTH
def test_assignment_that_does_not_match_the_subscription_is_dropped_and_the_member_rejoins(settings: Any) -> None:
    bench = Bench(**settings)
    bench.script.is_leader = False
    outdated = encode_assignment(Assignment((U0,)))
    bench.script.prepare("SyncGroup", lambda request: bench.script.sync_response(request, outdated))
    assert bench.settle().partitions == (T0, T1)
    assert len(bench.script.requests("SyncGroup")) == 2 and bench.callbacks() == [("assigned", (T0, T1))]
    assert [subscription.topics for subscription in subscriptions(bench)[-2:]] == [("t",), ("t",)]
    (*_, rejoin) = bench.script.requests("JoinGroup")
    assert rejoin.reason == "received assignment does not match the current subscription"
    assert not bench.member.rejoin_needed and bench.member.generation.generation_id == 2


def test_assignment_that_cannot_be_decoded_is_raised() -> None:
    bench = Bench()
    bench.script.prepare("SyncGroup", lambda request: bench.script.sync_response(request, b"\0"))
    with pytest.raises(RemoteProtocolError, match="ConsumerProtocolAssignment"):
        bench.settle()
    assert bench.settle().is_stable


# -- exceptions of user code -----------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-020")
def test_exception_of_the_revoked_callback_is_raised_after_the_rebalance() -> None:
    bench = follower(T0, T1, **using(FailingOnSecondAssignment))
    bench.member.request_rejoin("a test")
    bench.script.assigned = (T0,)
    bench.listener.raising = {"revoked": ValueError("revoked"), "assigned": ValueError("assigned")}
    bench.poll()
    bench.run_members()
    with pytest.raises(ValueError, match="revoked"):
        bench.poll()
    assert bench.callbacks() == [("revoked", (T1,)), ("assigned", ())] and bench.client.view.partitions == (T0,)


@pytest.mark.conformance("CC-020", "CC-021")
def test_exception_of_the_assignor_is_raised_before_that_of_the_assigned_callback() -> None:
    bench = Bench(**using(FailingOnAssignment))
    bench.listener.raising = {"assigned": ValueError("assigned")}
    with pytest.raises(ConfigurationError, match="on_assignment raised LookupError: assignor"):
        bench.settle()
    assert bench.callbacks() == [("assigned", (T0, T1))]


@pytest.mark.conformance("CC-022")
@pytest.mark.conformance("KC-083")
def test_exception_of_the_assigned_callback_is_raised() -> None:
    bench = Bench()
    bench.listener.raising = {"assigned": ValueError("assigned")}
    with pytest.raises(ValueError, match="assigned"):
        bench.settle()
    assert bench.client.view.partitions == (T0, T1)


def test_failing_rebalance_callback_is_not_called_again() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.listener.raising = {"revoked": ValueError("revoked")}
    with pytest.raises(ValueError, match="revoked"):
        bench.poll()
    assert bench.settle().is_stable
    assert bench.callbacks() == [("revoked", (T0, T1)), ("assigned", (T0, T1))]


# -- commits and close ------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CC-040")
def test_rebalance_commits_nothing() -> None:
    bench = joined()
    bench.member.request_rejoin("a test")
    bench.settle()
    bench.client.close()
    assert "OffsetCommit" not in bench.script.sent_apis()


@pytest.mark.conformance("CC-138")
def test_closing_ends_the_members_thread() -> None:
    bench = Bench()
    del bench.client.loop.start  # type: ignore[attr-defined]
    bench.client.poll(0)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "members of g"]
    bench.client.close()
    assert not thread.is_alive()


def test_revoke_callback_commits_before_the_rebalance() -> None:
    bench = joined()
    bench.listener.on = lambda call: call == "revoked" and bench.client.commit({T0: OffsetAndMetadata(3)})
    bench.member.request_rejoin("a test")
    bench.settle()
    assert bench.script.sent_apis()[:2] == ["OffsetCommit", "JoinGroup"]
