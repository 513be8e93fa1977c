"""State tables of a group: transitions, and every operation in every state."""

from __future__ import annotations

from itertools import product
from typing import Callable

import pytest
from support.group_context import GROUP, RANGE, SESSION_MS, GroupContext, Joined

from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    GROUP_RULES,
    GROUP_TRANSITIONS,
    PREPARING_REBALANCE,
    STABLE,
    GroupOperation,
    GroupState,
    can_rebalance,
)
from spark_groupsource.broker.state_transitions import IllegalTransitionError
from spark_groupsource.errors import ErrorCode

LEGAL = {
    (STABLE, PREPARING_REBALANCE),
    (STABLE, DEAD),
    (COMPLETING_REBALANCE, PREPARING_REBALANCE),
    (PREPARING_REBALANCE, DEAD),
    (PREPARING_REBALANCE, EMPTY),
    (EMPTY, DEAD),
    (COMPLETING_REBALANCE, STABLE),
    (DEAD, DEAD),
    (EMPTY, PREPARING_REBALANCE),
    (PREPARING_REBALANCE, COMPLETING_REBALANCE),
    (COMPLETING_REBALANCE, DEAD),
}


@pytest.mark.conformance("ST-005", "ST-006", "ST-007", "ST-008", "ST-009", "ST-010", "ST-011", "ST-018")  # legal
@pytest.mark.conformance("ST-012", "ST-013", "ST-014", "ST-015", "ST-016", "ST-017", "ST-019", "ST-020", "ST-021")
@pytest.mark.parametrize("old, new", list(product(GroupState, GroupState)))
def test_only_the_transitions_of_the_table_are_allowed(old: GroupState, new: GroupState) -> None:
    group = ClassicGroup(GROUP)
    group.state = old
    assert (old in GROUP_TRANSITIONS[new]) is ((old, new) in LEGAL)
    if (old, new) in LEGAL:
        group.transition(new, 5)
        assert (group.state, group.state_timestamp_ms) == (new, 5)
    else:
        with pytest.raises(
            IllegalTransitionError, match=f"'{GROUP}' cannot transition from {old.value} to {new.value}"
        ):
            group.transition(new, 5)
        assert group.state is old


@pytest.mark.parametrize(
    "state, allowed",
    [
        pytest.param(STABLE, True, marks=pytest.mark.conformance("ST-001")),
        pytest.param(COMPLETING_REBALANCE, True, marks=pytest.mark.conformance("ST-002")),
        pytest.param(PREPARING_REBALANCE, False, marks=pytest.mark.conformance("ST-003")),
        pytest.param(DEAD, False, marks=pytest.mark.conformance("ST-004")),
        (EMPTY, True),
    ],
)
def test_rebalance_starts_only_outside_of_a_join_phase(state: GroupState, allowed: bool) -> None:
    assert can_rebalance(state) is allowed


# --- every operation in every state


def in_state(context: GroupContext, state: GroupState) -> list[Joined]:
    """Brings the group into a state; two static members where the state has members."""
    if state is EMPTY:
        context.commit(7)
        return []
    members = context.completing(instances=["i-0", "i-1"])
    if state is COMPLETING_REBALANCE:
        return members
    for member in members:
        context.sync(member.member_id, 1, {}, instance=member.instance_id)
    if state is PREPARING_REBALANCE:
        context.join(members[0].member_id, instance="i-0")  # the leader requests a rebalance
    if state is DEAD:
        context.kill()
    assert context.state() is state
    return members


def follower(members: list[Joined]) -> Joined:
    return members[1] if members else Joined("unknown", 0, "")


def join_error(context: GroupContext, member_id: str, instance: str | None) -> ErrorCode | None:
    handle = context.join(member_id, instance=instance)
    return None if handle.is_delayed else handle.error


def sync_error(context: GroupContext, member: Joined) -> ErrorCode | None:
    handle = context.sync(member.member_id, member.generation_id, instance=member.instance_id)
    return None if handle.is_delayed else handle.error


OPERATIONS: dict[GroupOperation, Callable[[GroupContext, list[Joined]], ErrorCode | None]] = {
    GroupOperation.JOIN_NEW: lambda c, m: join_error(c, "", None),
    GroupOperation.JOIN_KNOWN: lambda c, m: join_error(c, follower(m).member_id, follower(m).instance_id),
    GroupOperation.REPLACE_STATIC: lambda c, m: join_error(c, "", "i-1"),
    GroupOperation.SYNC: lambda c, m: sync_error(c, follower(m)),
    GroupOperation.HEARTBEAT: lambda c, m: c.heartbeat(follower(m).member_id, follower(m).generation_id),
    GroupOperation.LEAVE: lambda c, m: c.leave(("not-a-member", None)).error,
    GroupOperation.COMMIT_MEMBER: lambda c, m: c.commit(1, follower(m).member_id, follower(m).generation_id)[0],
    GroupOperation.COMMIT_SIMPLE: lambda c, m: c.commit(1)[0],
    GroupOperation.COMMIT_TRANSACTIONAL: lambda c, m: c.commit_in_transaction(
        1, follower(m).member_id if m else "", follower(m).generation_id if m else -1, instance=follower(m).instance_id
    )[0],
    GroupOperation.FETCH: lambda c, m: ErrorCode(
        c.fetch_response(GROUP, [("topic", 0)], 8).response.groups[0].error_code
    ),
    GroupOperation.DELETE_OFFSETS: lambda c, m: c.delete_offsets(("other", 0)).error,
    GroupOperation.DELETE_GROUP: lambda c, m: c.delete_groups(GROUP)[GROUP],
}
NONE, UNKNOWN, REBALANCING = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS
NOT_EMPTY, NOT_FOUND, DELAYED = ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND, None
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
# From Kafka's ClassicGroup and GroupMetadataManager, independent of the tables of this package: the errors in the
# states Empty, PreparingRebalance, CompletingRebalance, Stable, Dead. The follower of two members sends the request; in
# PreparingRebalance it is the last one to join. (An empty group has no static members to replace.)
STATES = (EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE, DEAD)
ERRORS = {
    GroupOperation.JOIN_NEW: (DELAYED, DELAYED, DELAYED, DELAYED, UNAVAILABLE),
    GroupOperation.JOIN_KNOWN: (UNKNOWN, NONE, NONE, NONE, UNAVAILABLE),
    GroupOperation.REPLACE_STATIC: (..., NONE, DELAYED, NONE, ...),
    GroupOperation.SYNC: (UNKNOWN, REBALANCING, DELAYED, NONE, UNAVAILABLE),
    GroupOperation.HEARTBEAT: (UNKNOWN, REBALANCING, NONE, NONE, UNAVAILABLE),
    GroupOperation.LEAVE: (NONE, NONE, NONE, NONE, UNAVAILABLE),
    GroupOperation.COMMIT_MEMBER: (UNKNOWN, NONE, REBALANCING, NONE, UNAVAILABLE),
    GroupOperation.COMMIT_SIMPLE: (NONE, UNKNOWN, UNKNOWN, UNKNOWN, UNAVAILABLE),
    GroupOperation.COMMIT_TRANSACTIONAL: (NONE, NONE, NONE, NONE, UNAVAILABLE),
    GroupOperation.FETCH: (NONE, NONE, NONE, NONE, NONE),
    GroupOperation.DELETE_OFFSETS: (NONE, NONE, NONE, NONE, NOT_FOUND),
    GroupOperation.DELETE_GROUP: (NONE, NOT_EMPTY, NOT_EMPTY, NOT_EMPTY, NOT_FOUND),
}
RENEWING = {
    GroupOperation.HEARTBEAT: (PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE),
    GroupOperation.COMMIT_MEMBER: (PREPARING_REBALANCE, STABLE),
}
"""Operation -> states in which it renews the session of the member."""
JOINING = (GroupOperation.JOIN_NEW, GroupOperation.JOIN_KNOWN, GroupOperation.REPLACE_STATIC)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("state", GroupState, ids=lambda state: state.value)
def test_every_operation_in_every_state_has_kafkas_result(state: GroupState, operation: GroupOperation) -> None:
    expected = ERRORS[operation][STATES.index(state)]
    if expected is ...:
        return  # another test covers this rule
    context = GroupContext()
    members = in_state(context, state)
    deadline = context.session_deadline(follower(members).member_id) if members else None
    context.clock.advance_ms(1)

    assert OPERATIONS[operation](context, members) is expected

    if members and operation not in JOINING:
        is_renewed = state in RENEWING.get(operation, ())
        expected_deadline = context.clock.now_ms() + SESSION_MS if is_renewed else deadline
        assert context.session_deadline(follower(members).member_id) == expected_deadline
    assert context.state() is after(state, operation)


def after(state: GroupState, operation: GroupOperation) -> GroupState:
    if operation is GroupOperation.DELETE_GROUP and state is EMPTY:
        return DEAD
    if operation is GroupOperation.JOIN_NEW and state is not DEAD:
        return PREPARING_REBALANCE
    if operation is GroupOperation.REPLACE_STATIC and state is COMPLETING_REBALANCE:
        return PREPARING_REBALANCE
    if state is PREPARING_REBALANCE and operation in (GroupOperation.JOIN_KNOWN, GroupOperation.REPLACE_STATIC):
        return COMPLETING_REBALANCE  # the last member has joined
    return state


@pytest.mark.conformance("GC-054", "JM-070")
def test_replacing_a_static_member_of_an_empty_group_raises() -> None:
    context = GroupContext()
    in_state(context, EMPTY)
    context.group().static_members["i-1"] = "ghost"
    context.group().protocol_type = "consumer"
    with pytest.raises(RuntimeError, match=f"{GROUP}.*i-1"):
        context.join(instance="i-1")


@pytest.mark.conformance("ST-066", "GC-151", "GC-152")
@pytest.mark.parametrize("state", GroupState, ids=lambda state: state.value)
def test_offsets_of_another_protocol_type_are_deleted_from_an_empty_group_only(state: GroupState) -> None:
    context = GroupContext()
    if state is EMPTY:
        (member,) = context.completing(protocol_type="connect", protocols=RANGE)
        context.leave((member.member_id, None))
        context.commit(1)
        context.commit(2, topic="kept")
    elif state is not DEAD:
        (member,) = context.completing(protocol_type="connect")
        if state is STABLE:
            context.sync(member.member_id, 1, protocol_type="connect")
        if state is PREPARING_REBALANCE:
            context.join(protocol_type="connect")
    else:
        context.kill()
    assert context.state() is state

    handle = context.delete_offsets(("topic", 0))

    assert handle.error is {EMPTY: NONE, DEAD: NOT_FOUND}.get(state, NOT_EMPTY)
    if state is EMPTY:
        assert context.fetch() == {("kept", 0): 2}


def test_tables_are_complete() -> None:
    assert set(GROUP_TRANSITIONS) == set(GroupState)
    assert set(GROUP_RULES) == set(GroupState)
    for state in GroupState:
        assert set(GROUP_RULES[state]) == set(GroupOperation), state
