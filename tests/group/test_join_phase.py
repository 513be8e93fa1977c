"""The join phase: new members, pending member ids, rejoining, the initial delay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.group_context import CONFIG, DELAY_MS, GROUP, SESSION_MS, GroupContext, ResponseHandle

from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.errors import ErrorCode

NEW_MEMBER_MS = CONFIG.group_new_member_join_timeout_ms


@pytest.fixture
def context() -> GroupContext:
    return GroupContext()


# --- new members


@pytest.mark.conformance("GC-018", "JM-048")
def test_session_timeout_applies_after_the_join_phase(context: GroupContext) -> None:
    session_ms = NEW_MEMBER_MS + 5_000
    (member,) = context.completing(session_ms=session_ms, rebalance_ms=2 * session_ms)
    assert not context.group().members[member.member_id].is_new
    context.advance(NEW_MEMBER_MS)
    assert member.member_id in context.group().members
    context.advance(5_000)
    assert context.state() is EMPTY


@pytest.mark.conformance("GC-019", "JM-017")
def test_new_member_is_removed_after_the_join_timeout(context: GroupContext) -> None:
    long_ms = NEW_MEMBER_MS + 5_000
    (member,) = context.stable(rebalance_ms=2 * NEW_MEMBER_MS, session_ms=long_ms)
    newcomer = context.join(rebalance_ms=2 * NEW_MEMBER_MS, session_ms=long_ms)
    context.advance(NEW_MEMBER_MS - 1)
    assert newcomer.is_delayed
    context.advance(1)
    assert (newcomer.error, newcomer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert list(context.group().members) == [member.member_id]


@pytest.mark.conformance("GC-020", "JM-049")
def test_new_members_without_requests_after_join_are_removed(context: GroupContext) -> None:
    context.completing(2, rebalance_ms=10 * SESSION_MS)
    context.advance(SESSION_MS - 1)
    assert context.state() is COMPLETING_REBALANCE
    context.advance(1)
    assert context.state() is EMPTY
    assert context.group().generation_id == 2
    # by their sessions, not by the sync timer
    assert context.kinds().count("member_failed") == 2


@pytest.mark.conformance("GC-021")
def test_new_members_without_requests_after_sync_are_removed(context: GroupContext) -> None:
    context.stable(2)
    context.advance(SESSION_MS - 1)
    assert context.state() is STABLE
    context.advance(1)
    assert context.state() is EMPTY
    assert context.kinds().count("member_failed") == 2


@pytest.mark.conformance("JM-031")
def test_removal_of_the_only_new_member_stores_an_empty_group() -> None:
    context = GroupContext(replace(CONFIG, group_initial_rebalance_delay_ms=NEW_MEMBER_MS + 100))
    newcomer = context.join(session_ms=600_000, rebalance_ms=600_000)
    context.advance(NEW_MEMBER_MS - 1)
    assert newcomer.is_delayed
    context.advance(1)
    assert (newcomer.error, newcomer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert not context.group().members
    context.advance(100)  # the join phase ends without members
    assert (context.state(), context.group().generation_id) == (EMPTY, 1)
    assert context.shard.store.groups[GROUP].members == ()
    assert context.shard.store.groups[GROUP].protocol_type == "consumer"


# --- pending ids


@pytest.mark.conformance("GC-085", "JM-103", "JM-030")
def test_pending_member_id_expires_without_a_rebalance(context: GroupContext) -> None:
    (member,) = context.stable()
    required = context.join(version=4)
    assert required.error is ErrorCode.MEMBER_ID_REQUIRED
    assert required.response.generation_id == -1
    assert context.group().pending_joins == {required.member_id}
    context.advance(SESSION_MS - 1)
    assert context.heartbeat(member.member_id, 1) is ErrorCode.NONE
    assert context.group().pending_joins == {required.member_id}
    context.advance(1)
    assert context.group().pending_joins == set()
    assert context.state() is STABLE
    assert context.group().generation_id == 1
    assert "pending_member_expired" in context.kinds()


def rebalancing_with_a_pending_id(context: GroupContext) -> tuple[list[ResponseHandle], str]:
    first, second = context.stable(2)
    pending = context.join(version=4).member_id
    handles = [context.join(first.member_id), context.join(second.member_id)]
    assert context.state() is PREPARING_REBALANCE
    assert all(handle.is_delayed for handle in handles)
    return handles, pending


@pytest.mark.conformance("GC-086", "JM-086")
def test_join_phase_waits_for_a_pending_member_id(context: GroupContext) -> None:
    handles, pending = rebalancing_with_a_pending_id(context)
    handles.append(context.join(pending, version=4))
    assert {handle.error for handle in handles} == {ErrorCode.NONE}
    assert len(context.group().members) == 3
    assert context.group().pending_joins == set()
    assert context.state() is COMPLETING_REBALANCE


@pytest.mark.conformance("GC-087", "JM-087")
def test_join_phase_completes_when_a_pending_member_id_expires(context: GroupContext) -> None:
    handles, _ = rebalancing_with_a_pending_id(context)
    context.advance(SESSION_MS)
    assert {handle.error for handle in handles} == {ErrorCode.NONE}
    assert len(context.group().members) == 2


@pytest.mark.conformance("GC-088", "JM-114")
def test_join_phase_completes_when_a_pending_member_id_leaves(context: GroupContext) -> None:
    handles, pending = rebalancing_with_a_pending_id(context)
    assert context.leave_errors((pending, None)) == [ErrorCode.NONE]
    assert {handle.error for handle in handles} == {ErrorCode.NONE}
    assert len(context.group().members) == 2


@pytest.mark.conformance("JM-033")
def test_pending_member_id_with_an_instance_id_raises(context: GroupContext) -> None:
    pending = context.join(version=5).member_id
    with pytest.raises(RuntimeError, match=pending):
        context.join(pending, instance="instance", version=5)


# --- rejoining


@pytest.mark.conformance("GC-083", "JM-081", "JM-037")
def test_unchanged_follower_gets_an_immediate_response(context: GroupContext) -> None:
    leader, follower = context.stable(2)
    handle = context.join(follower.member_id)
    assert handle.error is ErrorCode.NONE
    assert handle.response.generation_id == 1
    assert handle.response.leader == leader.member_id
    assert list(handle.response.members) == []
    assert context.state() is STABLE


@pytest.mark.conformance("GC-084", "JM-085", "JM-035", "GC-121", "JM-088")
def test_rejoin_of_the_leader_starts_a_rebalance(context: GroupContext) -> None:
    (member,) = context.stable()
    handle = context.join(member.member_id)
    assert handle.response.generation_id == 2
    assert context.state() is COMPLETING_REBALANCE


@pytest.mark.conformance("JM-036")
def test_follower_with_changed_metadata_starts_a_rebalance(context: GroupContext) -> None:
    _, follower = context.stable(2)
    assert context.join(follower.member_id, protocols=[("range", b"other")]).is_delayed
    assert context.state() is PREPARING_REBALANCE


@pytest.mark.conformance("JM-034")
def test_changed_metadata_in_completing_rebalance_starts_a_rebalance(context: GroupContext) -> None:
    (member,) = context.completing()
    handle = context.join(member.member_id, protocols=[("range", b"other")])
    assert handle.response.generation_id == 2
    assert context.state() is COMPLETING_REBALANCE


@pytest.mark.parametrize("index, listed", [(0, 2), (1, 0)])
def test_retry_of_a_join_returns_the_generation(context: GroupContext, index: int, listed: int) -> None:
    members = context.completing(2)
    handle = context.join(members[index].member_id)
    assert handle.response.generation_id == 1
    assert len(handle.response.members) == listed
    assert context.state() is COMPLETING_REBALANCE


@pytest.mark.parametrize(
    "protocols",
    [[("a", b""), ("range", b"")], [("range", b"x")], [("range", b""), ("a", b"")]],
)
def test_protocol_order_names_and_metadata_are_compared(
    context: GroupContext, protocols: list[tuple[str, bytes]]
) -> None:
    _, follower = context.stable(2)
    assert context.join(follower.member_id, protocols=protocols).is_delayed


# --- the initial delay


@pytest.mark.conformance("GC-157", "JM-026")
def test_first_join_waits_for_the_initial_rebalance_delay(context: GroupContext) -> None:
    handle = context.join()
    context.advance(DELAY_MS - 1)
    assert handle.is_delayed
    context.advance(1)
    assert handle.error is ErrorCode.NONE


@pytest.mark.conformance("GC-158", "JM-027")
def test_new_member_extends_the_initial_rebalance_delay(context: GroupContext) -> None:
    first = context.join()
    context.advance(DELAY_MS // 2)
    second = context.join()
    context.advance(DELAY_MS // 2)
    assert first.is_delayed
    context.advance(DELAY_MS - 1)
    assert first.is_delayed and second.is_delayed
    context.advance(1)
    assert first.error is second.error is ErrorCode.NONE


@pytest.mark.conformance("GC-159", "JM-028")
def test_initial_delay_ends_with_the_rebalance_timeout(context: GroupContext) -> None:
    first = context.join(rebalance_ms=2 * DELAY_MS)
    context.advance(DELAY_MS - 1)
    second = context.join(rebalance_ms=2 * DELAY_MS)
    context.advance(2)
    third = context.join(rebalance_ms=2 * DELAY_MS)
    context.advance(DELAY_MS - 2)
    assert [a.is_delayed for a in (first, second, third)] == [True] * 3
    context.advance(1)
    assert [a.error for a in (first, second, third)] == [ErrorCode.NONE] * 3


def test_initial_rebalance_delay_of_an_emptied_group_is_extended(context: GroupContext) -> None:
    (member,) = context.stable()
    context.leave((member.member_id, None))
    first = context.join()
    context.advance(DELAY_MS // 2)
    context.join()
    context.advance(DELAY_MS)
    assert first.is_delayed
    context.advance(DELAY_MS)
    assert first.response.generation_id == 3


def test_pending_ids_do_not_extend_the_delay(context: GroupContext) -> None:
    first = context.join()
    context.join(version=4)
    context.advance(DELAY_MS)
    assert first.error is ErrorCode.NONE


def test_zero_delay_completes_at_the_next_tick() -> None:
    context = GroupContext(replace(CONFIG, group_initial_rebalance_delay_ms=0))
    handle = context.join()
    assert handle.is_delayed
    context.advance(0)
    assert handle.error is ErrorCode.NONE


@pytest.mark.conformance("JM-040")
def test_join_timer_of_a_dead_group_has_no_effect(context: GroupContext) -> None:
    context.join()
    context.kill()
    context.advance(DELAY_MS)
    assert context.group().generation_id == 0
