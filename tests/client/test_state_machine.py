"""Membership state machine on a manual clock: rebalances, timers, leaving."""

from __future__ import annotations

import pytest
from support.memberships import join_response, joining, stable, sync_response

from spark_groupsource.client.membership.membership_values import (
    AssignmentChange,
    Generation,
    Idle,
    Joined,
    MarkCoordinatorUnknown,
    MemberConfig,
    MemberState,
    ReleasedPartitions,
    SendHeartbeat,
    SendJoinGroup,
)
from spark_groupsource.client.membership.response_rules import Reaction
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
U0 = TopicPartition("u", 0)


def run_round(membership: Membership, generation_id: int, *assigned: TopicPartition, now_ms: int = 0) -> None:
    """Runs one rebalance that assigns `assigned`."""
    membership.prepare(("t", "u"))
    assert isinstance(membership.next_action(now_ms), SendJoinGroup)
    membership.join_request([("range", b"")])
    sent = membership.generation
    joined = membership.on_join_response(join_response(generation_id=generation_id), sent, now_ms)
    assert isinstance(joined, Joined)
    membership.sync_request({})
    rule = membership.on_sync_response(sync_response(partitions=tuple(assigned)), joined.generation, now_ms)
    assert rule.reaction is Reaction.CONTINUE


def member(cooperative: bool = False, instance: str | None = None) -> Membership:
    return Membership(MemberConfig("g", ("range",), cooperative=cooperative, group_instance_id=instance), 0)


def test_member_does_not_join_before_prepare() -> None:
    membership = member()
    assert isinstance(membership.next_action(0), Idle) and membership.needs_prepare

    assert membership.prepare(("t",)) == ReleasedPartitions()
    assert membership.next_action(0) == SendJoinGroup()


def test_member_rejoins_with_the_issued_member_id() -> None:
    membership = member()
    membership.prepare(("t",))
    request = membership.join_request([("range", b"x"), ("sticky", b"y")])
    assert request.member_id == "" and [p.name for p in request.protocols] == ["range", "sticky"]
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (45_000, 300_000)

    membership.on_join_response(join_response(ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1"), Generation(), 0)

    assert membership.next_action(0) == SendJoinGroup()
    again = membership.join_request([("range", b"x")])
    assert again.member_id == "m-1" and again.reason == "need to re-join with the given member-id"


def test_assignment_is_owned_after_complete() -> None:
    membership = member()
    run_round(membership, 1, T0, T1)
    assert membership.needs_complete and membership.owned == () and not membership.is_settled

    assert membership.complete(lambda topic: True) == AssignmentChange(gained=(T0, T1))
    assert membership.is_settled and membership.owned == (T0, T1)


def test_eager_member_revokes_all_partitions_before_it_rejoins() -> None:
    membership, _ = stable()
    membership.request_rejoin("subscription has changed")

    assert membership.released_partitions(("t",)) == ReleasedPartitions(revoked=(T0,)) and membership.owned == (T0,)
    assert membership.prepare(("t",)) == ReleasedPartitions(revoked=(T0,)) and membership.owned == ()
    assert membership.join_request([]).reason == "subscription has changed"


def test_cooperative_member_revokes_and_rejoins() -> None:
    membership = member(cooperative=True)
    run_round(membership, 1, T0, T1)
    membership.complete(lambda topic: True)
    membership.request_rejoin("group is already rebalancing")

    assert membership.prepare(("t",)) == ReleasedPartitions() and membership.owned == (T0, T1)
    run_round(membership, 2, T0)
    assert membership.complete(lambda topic: True) == AssignmentChange(revoked=(T1,))
    assert membership.owned == (T0,)
    assert membership.rejoin_needed and membership.rejoin_reason == "need to revoke partitions and re-join"

    run_round(membership, 3, T0, T2)
    assert membership.complete(lambda topic: True) == AssignmentChange(gained=(T2,))
    assert membership.is_settled and membership.owned == (T0, T2)


def test_cooperative_member_revokes_unsubscribed_topics_before_it_rejoins() -> None:
    membership = member(cooperative=True)
    run_round(membership, 1, T0, U0)
    membership.complete(lambda topic: True)
    membership.request_rejoin("subscription has changed")

    assert membership.prepare(("t",)) == ReleasedPartitions(revoked=(U0,)) and membership.owned == (T0,)


def test_removed_member_loses_its_partitions() -> None:
    membership, sent = stable()
    membership.on_heartbeat_response(ErrorCode.UNKNOWN_MEMBER_ID, sent, 0)

    assert membership.is_fenced and membership.owned_since == sent
    assert membership.needs_prepare and membership.released_partitions(("t",)) == ReleasedPartitions(lost=(T0,))
    membership.prepare(("t",))
    assert membership.owned == () and not membership.is_fenced


def test_reset_during_a_cooperative_rebalance_loses_retained_partitions() -> None:
    membership = member(cooperative=True)
    run_round(membership, 1, T0)
    membership.complete(lambda topic: True)
    membership.request_rejoin("x")
    membership.prepare(("t",))
    membership.join_request([])

    membership.on_join_response(join_response(ErrorCode.UNKNOWN_MEMBER_ID), membership.generation, 0)

    assert membership.needs_prepare and membership.released_partitions(("t",)) == ReleasedPartitions(lost=(T0,))


def test_assignment_outside_the_subscription_is_rejected() -> None:
    membership = member()
    run_round(membership, 1, U0)

    assert membership.complete(lambda topic: topic == "t") is None
    assert membership.owned == () and membership.rejoin_needed
    assert membership.rejoin_reason == "received assignment does not match the current subscription"


def test_lost_connection_resets_nothing() -> None:
    membership, sent = joining()
    membership.on_rebalance_failure("rebalance failed due to NetworkError")
    membership.retry_after(100, 50)

    assert membership.generation == sent
    assert membership.next_action(120) == Idle(150)
    assert membership.next_action(150) == SendJoinGroup()


@pytest.mark.conformance("KC-029")
def test_timers_of_a_stable_member() -> None:
    membership, _ = stable()
    assert membership.next_action(0) == Idle(3_000)
    assert membership.next_action(3_000) == SendHeartbeat()
    membership.heartbeat_request(3_000)
    assert membership.next_action(3_001) == Idle(6_000)
    membership.expedite_heartbeat(3_050, 100)
    assert membership.next_action(3_050) == Idle(3_100)


def test_session_timeout_marks_the_coordinator_unknown() -> None:
    membership, sent = stable()
    assert membership.next_action(45_000) == MarkCoordinatorUnknown()

    membership.restart_session_timer(45_000)

    assert membership.generation == sent and membership.owned == (T0,)
    assert membership.next_action(45_000) == SendHeartbeat()


def test_member_leaves_at_the_request_of_its_owner_only() -> None:
    membership, _ = stable()
    for now_ms in range(3_000, 10_000_000, 3_000):
        assert membership.next_action(now_ms) == SendHeartbeat()
        membership.heartbeat_request(now_ms)
        membership.on_heartbeat_response(0, membership.generation, now_ms)

    request = membership.leave_request("a test")
    membership.on_leave("a test")

    assert request.members[0].member_id == "m"
    assert membership.is_fenced and membership.state is MemberState.UNJOINED and membership.needs_prepare


def test_rebalances_wait_for_the_longest_pause() -> None:
    membership, _ = stable()
    announced = []
    for pause_ms in (299_000, 600_000, 400_000, 2**40):
        membership.expect_pause(pause_ms)
        announced.append(membership.join_request([("range", b"")]).rebalance_timeout_ms)
    assert announced == [300_000, 600_000, 600_000, 2**31 - 1]


def test_static_member_does_not_leave() -> None:
    membership = member(instance="i-0")
    run_round(membership, 1, T0)
    assert membership.join_request([]).group_instance_id == "i-0"
    assert membership.leave_request("closing") is None


def test_member_without_an_id_does_not_leave() -> None:
    assert member().leave_request("closing") is None


def test_reason_is_truncated_to_255_characters() -> None:
    membership, _ = stable()
    membership.request_rejoin("x" * 400)
    membership.prepare(("t",))
    assert len(membership.join_request([]).reason) == 255
    assert len(membership.leave_request("y" * 400).members[0].reason) == 255


def test_leader_is_named_by_the_coordinator() -> None:
    membership, sent = joining()
    rows = [{"member_id": "m", "metadata": b"1"}, {"member_id": "n", "metadata": b"2"}]
    response = join_response(leader="m")
    response.members = [type(response).JoinGroupResponseMember(group_instance_id=None, **row) for row in rows]

    joined = membership.on_join_response(response, sent, 0)

    assert isinstance(joined, Joined) and joined.is_leader and membership.is_leader
    assert joined.members == (("m", None, b"1"), ("n", None, b"2"))
    request = membership.sync_request({"m": b"a", "n": b"b"})
    assert {a.member_id: a.assignment for a in request.assignments} == {"m": b"a", "n": b"b"}
    assert (request.generation_id, request.protocol_name, request.protocol_type) == (5, "range", "consumer")


def test_subscription_change_during_a_rebalance_requests_another_one() -> None:
    membership = member()
    membership.prepare(("t",))
    membership.join_request([("range", b"t")])
    joined = membership.on_join_response(join_response(generation_id=1), membership.generation, 0)
    assert isinstance(joined, Joined)
    membership.subscription_changed("subscription has changed")
    membership.sync_request({})
    membership.on_sync_response(sync_response(partitions=(T0,)), joined.generation, 0)

    assert membership.rejoin_needed and membership.rejoin_reason == "subscription has changed"
    membership.complete(lambda topic: True)
    run_round(membership, 2, T0, U0)
    assert not membership.rejoin_needed
