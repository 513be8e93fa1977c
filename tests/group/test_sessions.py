"""Heartbeat, LeaveGroup and session expiration."""

from __future__ import annotations

import pytest
from support.group_context import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, GroupContext

from spark_groupsource.broker.group import JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.errors import ErrorCode

UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


# --- heartbeat


@pytest.mark.conformance("GC-065", "GC-122", "GC-131")
def test_request_after_unloading_gets_not_coordinator(context: GroupContext) -> None:
    context.shard.on_unloaded(context.clock.instant())
    assert context.heartbeat("member", 1) is ErrorCode.NOT_COORDINATOR
    assert context.leave(("member", None)).error is ErrorCode.NOT_COORDINATOR
    assert context.leave(("", "instance"), ("", "other")).error is ErrorCode.NOT_COORDINATOR


@pytest.mark.conformance("GC-066", "JM-090")
def test_heartbeat_of_an_unknown_group(context: GroupContext) -> None:
    assert context.heartbeat("member", 1) is UNKNOWN


@pytest.mark.conformance("GC-067", "JM-091")
def test_heartbeat_of_a_dead_group(context: GroupContext) -> None:
    context.kill()
    assert context.heartbeat("member", 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.conformance("GC-068", "JM-092")
def test_heartbeat_of_an_empty_group(context: GroupContext) -> None:
    context.commit(1)
    assert context.state() is EMPTY
    assert context.heartbeat("member", 0) is UNKNOWN


@pytest.mark.conformance("GC-069", "JM-093")
def test_heartbeat_of_an_unknown_member(context: GroupContext) -> None:
    context.stable()
    assert context.heartbeat("member", 1) is UNKNOWN


@pytest.mark.conformance("GC-070", "JM-095")
def test_heartbeat_while_completing(context: GroupContext) -> None:
    (member,) = context.completing()
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NONE


@pytest.mark.conformance("GC-120", "JM-108", "JM-094")
def test_heartbeat_while_preparing(context: GroupContext) -> None:
    (member,) = context.stable()
    context.join()
    assert context.heartbeat(member.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.conformance("GC-071", "JM-096")
@pytest.mark.parametrize("generation_id", [0, 2])
def test_heartbeat_of_another_generation(context: GroupContext, generation_id: int) -> None:
    (member,) = context.stable()
    assert context.heartbeat(member.member_id, generation_id) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.conformance("GC-072", "JM-097")
def test_heartbeat_in_stable(context: GroupContext) -> None:
    (member,) = context.stable()
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NONE


# --- sessions


@pytest.mark.conformance("GC-073", "JM-098")
def test_member_without_heartbeats_is_removed(context: GroupContext) -> None:
    (member,) = context.stable()
    context.advance(SESSION_MS - 1)
    assert member.member_id in context.group().members
    context.advance(1)
    assert context.heartbeat(member.member_id, 1) is UNKNOWN
    assert "member_failed" in context.kinds()


@pytest.mark.conformance("GC-074", "JM-099")
def test_heartbeats_keep_a_session(context: GroupContext) -> None:
    (member,) = context.stable()
    for _ in range(5):
        context.advance(SESSION_MS - 1)
        assert context.heartbeat(member.member_id, 1) is ErrorCode.NONE


@pytest.mark.conformance("GC-075", "OM-010")
def test_commits_keep_a_session(context: GroupContext) -> None:
    (member,) = context.stable()
    for offset in range(3):
        context.advance(SESSION_MS - 1)
        assert context.commit(offset, member.member_id, 1) == [ErrorCode.NONE]
    context.advance(SESSION_MS)
    assert context.commit(9, member.member_id, 1) == [UNKNOWN]


@pytest.mark.conformance("GC-076", "JM-100")
def test_rebalance_completes_without_a_member_that_sends_no_heartbeats(context: GroupContext) -> None:
    (member,) = context.stable(rebalance_ms=10 * SESSION_MS)
    newcomer = context.join(rebalance_ms=10 * SESSION_MS)
    for _ in range(4):
        context.advance(SESSION_MS - 1)
        assert context.heartbeat(member.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert newcomer.is_delayed
    context.advance(SESSION_MS)
    assert [m.member_id for m in newcomer.response.members] == [newcomer.member_id]


@pytest.mark.conformance("JM-039")
def test_dynamic_member_that_does_not_rejoin_is_removed(context: GroupContext) -> None:
    (member,) = context.stable(session_ms=10 * REBALANCE_MS)
    newcomer = context.join()
    context.advance(REBALANCE_MS)
    assert newcomer.error is ErrorCode.NONE
    assert list(context.group().members) == [newcomer.member_id]
    assert any(member.member_id in e.text for e in context.log_lines if e.kind == "members_not_rejoined")


def test_member_with_a_delayed_request_does_not_expire(context: GroupContext) -> None:
    leader, follower = context.stable(2, rebalance_ms=10 * SESSION_MS)
    delayed = context.join(leader.member_id, rebalance_ms=10 * SESSION_MS)
    for _ in range(5):
        context.heartbeat(follower.member_id, 1)
        context.advance(SESSION_MS - 1)
    assert delayed.is_delayed
    assert leader.member_id in context.group().members


@pytest.mark.conformance("GC-160")
def test_session_timer_of_a_dead_group_has_no_effect(context: GroupContext) -> None:
    (member,) = context.stable()
    context.kill()
    context.advance(SESSION_MS)
    assert member.member_id in context.group().members


@pytest.mark.conformance("GC-161")
def test_timers_of_removed_members_and_groups_have_no_effect(context: GroupContext) -> None:
    context.stable()
    gone = [SessionTimer(GROUP, "gone"), SessionTimer("gone", "gone"), JoinTimer("gone")]
    for key in (*gone, JoinTimer(GROUP), SyncTimer(GROUP)):
        outcome = context.shard.expire(key, context.clock.instant())
        assert not (outcome.records or outcome.replies or outcome.timers)
    assert context.state() is STABLE


# --- leave


@pytest.mark.conformance("GC-123", "GC-132", "JM-115", "JM-116", "JM-123")
def test_leave_of_an_unknown_group(context: GroupContext) -> None:
    assert context.leave_errors(("member", None)) == [UNKNOWN]
    assert context.leave_errors(("", "one"), ("", "two")) == [UNKNOWN, UNKNOWN]


@pytest.mark.conformance("GC-124", "JM-117")
def test_leave_of_an_unknown_member(context: GroupContext) -> None:
    context.stable()
    assert context.leave_errors(("member", None)) == [UNKNOWN]


@pytest.mark.conformance("GC-125", "GC-126", "JM-118")
def test_leave_of_a_dead_group(context: GroupContext) -> None:
    context.kill()
    assert context.leave(("member", None)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.leave(("a", None), ("b", None)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.leave(("member", None), version=1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.conformance("GC-127", "JM-119", "SM-032")
@pytest.mark.parametrize("version", range(6))
def test_leave_starts_a_rebalance(context: GroupContext, version: int) -> None:
    (member,) = context.stable()
    records = len(context.log)
    assert context.leave((member.member_id, None), version=version).error is ErrorCode.NONE
    assert context.state() is EMPTY
    assert context.timers == {}
    assert len(context.log) == records + 1
    stored = context.shard.store.groups[GROUP]
    assert stored.members == ()
    assert (stored.generation_id, stored.protocol_type) == (2, "consumer")
    assert stored.protocol_name is stored.leader is None


@pytest.mark.parametrize("version", range(3))
def test_old_versions_return_the_error_of_the_member_as_top_level_error(context: GroupContext, version: int) -> None:
    context.stable()
    assert context.leave(("made-up", None), version=version).error is UNKNOWN


@pytest.mark.conformance("GC-128", "JM-120")
def test_leave_with_a_fenced_instance(context: GroupContext) -> None:
    context.stable(instances=["one"])
    assert context.leave_errors(("made-up", "one")) == [ErrorCode.FENCED_INSTANCE_ID]


@pytest.mark.conformance("GC-129", "JM-121")
def test_instance_is_removed_without_its_member_id(context: GroupContext) -> None:
    context.stable(instances=["one"])
    assert context.leave_errors(("", "one")) == [ErrorCode.NONE]
    assert context.state() is EMPTY


@pytest.mark.conformance("GC-130", "JM-122")
def test_two_instances_are_removed_at_once(context: GroupContext) -> None:
    context.stable(instances=["one", "two"])
    assert context.leave_errors(("", "one"), ("", "two")) == [ErrorCode.NONE] * 2
    assert context.kinds().count("rebalance_started") == 2  # the first round, and one for the list


@pytest.mark.conformance("GC-133", "JM-124")
def test_one_of_two_is_fenced(context: GroupContext) -> None:
    context.stable(instances=["one", "two"])
    assert context.leave_errors(("", "one"), ("made-up", "two")) == [ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID]


@pytest.mark.conformance("GC-134", "JM-125")
def test_one_of_two_is_unknown(context: GroupContext) -> None:
    context.stable(instances=["one", "two"])
    assert context.leave_errors(("", "unknown"), ("", "two")) == [UNKNOWN, ErrorCode.NONE]


@pytest.mark.conformance("GC-135", "JM-126", "ST-052")
def test_pending_id_leaves_with_an_unknown_instance(context: GroupContext) -> None:
    context.stable(instances=["one"])
    pending = context.join(version=4).member_id
    assert context.leave_errors(("", "unknown"), (pending, None)) == [UNKNOWN, ErrorCode.NONE]
    assert context.group().pending_joins == set()
    assert context.state() is PREPARING_REBALANCE


@pytest.mark.conformance("JM-127", "JM-128")
@pytest.mark.parametrize("with_unknown", [False, True])
def test_leader_follower_and_pending_id_leave_at_once(context: GroupContext, with_unknown: bool) -> None:
    leader, follower = context.stable(2)
    pending = context.join(version=4).member_id
    identities = [(leader.member_id, None), (follower.member_id, None), (pending, None)]
    expected = [ErrorCode.NONE] * 3
    if with_unknown:
        identities.append(("made-up", None))
        expected.append(UNKNOWN)
    assert context.leave_errors(*identities) == expected
    assert context.state() is EMPTY


def test_leaving_member_gets_a_response_to_its_delayed_join(context: GroupContext) -> None:
    _, follower = context.stable(2)
    delayed = context.join(follower.member_id, protocols=[("range", b"new")])
    context.leave((follower.member_id, None))
    assert delayed.error is UNKNOWN
    assert context.state() is PREPARING_REBALANCE


def test_leaving_member_gets_a_response_to_its_delayed_sync(context: GroupContext) -> None:
    _, follower = context.completing(2)
    delayed = context.sync(follower.member_id, 1)
    context.leave((follower.member_id, None))
    assert delayed.error is UNKNOWN
    assert context.state() is PREPARING_REBALANCE


def test_last_missing_member_leaving_completes_the_phase(context: GroupContext) -> None:
    leader, follower = context.stable(2)
    delayed = context.join(leader.member_id)
    context.leave((follower.member_id, None))
    assert delayed.response.generation_id == 2
    assert context.state() is COMPLETING_REBALANCE


def test_group_is_empty_after_all_members_left_during_the_initial_delay(context: GroupContext) -> None:
    handle = context.join(version=3)
    member_id = next(iter(context.group().members))
    context.leave((member_id, None))
    assert handle.error is UNKNOWN
    assert context.state() is PREPARING_REBALANCE
    context.advance(DELAY_MS)
    assert (context.state(), context.group().generation_id) == (EMPTY, 1)


def test_leave_succeeds_if_the_empty_group_cannot_be_stored(context: GroupContext) -> None:
    (member,) = context.stable()
    context.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert context.leave_errors((member.member_id, None)) == [ErrorCode.NONE]
    assert context.state() is EMPTY
    assert "append_failed" in context.kinds()
    assert context.clock.now_ms() < REBALANCE_MS + 1_000 + SESSION_MS
