"""Every request in every state, from every kind of member.

The expected results are derived from the tables of `states.py`. A rejected request must not change the state.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import pytest
from simulation.invariants import check_counters, check_state, check_timers
from support.group_context import DELAY_MS, GROUP, RANGE, SESSION_MS, GroupContext

from spark_groupsource.broker.group.group_states import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    GROUP_RULES,
    PREPARING_REBALANCE,
    GroupAction,
    GroupOperation,
    GroupState,
)
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

NONE, UNKNOWN, FENCED = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
CHANGED = (("range", b"changed"),)
LONG_MS = 60_000


class Sender(Enum):
    """Sender of a request; in a group without members, former members."""

    LEADER = "leader"
    FOLLOWER = "follower"
    STATIC = "static member with its instance id"
    RETURNED = "instance id without member id"
    FENCED = "instance id with the member id it had before"
    OTHER_INSTANCE = "member with an unknown instance id"
    PENDING = "pending member id"
    UNKNOWN_ID = "unknown member id"
    NEITHER = "neither id"


class Generation(Enum):
    """Generation of the request relative to the current one; NO is -1."""

    RIGHT = 0
    LAST = -1
    NEXT = 1
    NO = None


class Senders(NamedTuple):
    """Returns (member id, group instance id) of each `Sender`."""

    ids: dict[Sender, tuple[str, str | None]]
    generation_id: int

    def generation(self, which: Generation) -> int:
        return -1 if which.value is None else self.generation_id + which.value


def staged(context: GroupContext, state: GroupState) -> Senders:
    """Returns a group in `state` with three members, if it has any, and a pending member id."""
    context.commit(7)
    leader = context.join(rebalance_ms=LONG_MS)
    gone = context.join(instance="i", rebalance_ms=LONG_MS)
    # a second one with the instance id fences the first, still before the round is over
    static = context.join(instance="i", rebalance_ms=LONG_MS)
    follower = context.join(rebalance_ms=LONG_MS)
    while leader.is_delayed:
        context.advance(DELAY_MS)
    assert leader.response.leader == leader.member_id
    generation_id = leader.response.generation_id
    members = [(leader.member_id, None), (follower.member_id, None), (static.member_id, "i")]
    if state is not COMPLETING_REBALANCE:
        for member_id, instance_id in members:
            context.sync(member_id, generation_id, {member_id: b"mine"}, instance=instance_id)
    if state is PREPARING_REBALANCE:
        context.join(leader.member_id, rebalance_ms=LONG_MS)
    if state is EMPTY:
        context.leave(*members)
        generation_id += 1
    pending = context.join(version=9).member_id
    if state is DEAD:
        context.kill()
    ids: dict[Sender, tuple[str, str | None]] = {
        Sender.LEADER: members[0],
        Sender.FOLLOWER: members[1],
        Sender.STATIC: members[2],
        Sender.RETURNED: ("", "i"),
        Sender.FENCED: (gone.member_id, "i"),
        Sender.OTHER_INSTANCE: (follower.member_id, "i-other"),
        Sender.PENDING: (pending, None),
        Sender.UNKNOWN_ID: ("made-up", None),
        Sender.NEITHER: ("", None),
    }
    return Senders(ids, generation_id)


def snapshot(context: GroupContext) -> object:
    """Returns everything that a request could change."""
    group = context.shard.group(GROUP)
    in_memory = group and (
        group.state,
        group.generation_id,
        group.leader_id,
        {member_id: member.copy() for member_id, member in group.members.items()},
        set(group.pending_joins),
        set(group.pending_syncs),
        dict(group.static_members),
    )
    return in_memory, dict(context.timers), list(context.log)


def member_error(state: GroupState, sender: Sender) -> ErrorCode:
    """Returns the result of the member check."""
    if state is EMPTY or sender in (Sender.OTHER_INSTANCE, Sender.PENDING, Sender.UNKNOWN_ID, Sender.NEITHER):
        return UNKNOWN
    return FENCED if sender in (Sender.FENCED, Sender.RETURNED) else NONE


Expected = tuple[ErrorCode | None, bool]
"""The error, None for a delayed request, and whether the session is renewed."""


def expected_of_member(
    state: GroupState, operation: GroupOperation, sender: Sender, generation: Generation
) -> Expected:
    """Checks member, then generation, then state."""
    rule = GROUP_RULES[state][operation]
    if state is DEAD or (state is EMPTY and operation is GroupOperation.SYNC):
        return rule.error, False
    error = member_error(state, sender)
    if error is NONE and generation is not Generation.RIGHT:
        error = ILLEGAL
    if error is not NONE:
        return error, False
    return (None if rule.action is GroupAction.AWAIT_SYNC else rule.error), rule.renews_session


def expected_of_commit(state: GroupState, sender: Sender, generation: Generation) -> Expected:
    if state is EMPTY and generation is Generation.NO:
        return GROUP_RULES[state][GroupOperation.COMMIT_SIMPLE].error, False
    if state is not DEAD and generation is Generation.NO and sender is Sender.NEITHER:
        return GROUP_RULES[state][GroupOperation.COMMIT_SIMPLE].error, False
    return expected_of_member(state, GroupOperation.COMMIT_MEMBER, sender, generation)


def expected_of_transactional_commit(state: GroupState, sender: Sender, generation: Generation) -> Expected:
    if generation is Generation.NO and (state is EMPTY or sender is Sender.NEITHER):
        return GROUP_RULES[state][GroupOperation.COMMIT_TRANSACTIONAL].error, False
    return expected_of_member(state, GroupOperation.COMMIT_TRANSACTIONAL, sender, generation)


def expected_of_join(state: GroupState, sender: Sender, changed: bool) -> Expected:
    cells = GROUP_RULES[state]
    if state is DEAD:
        return cells[GroupOperation.JOIN_KNOWN].error, False
    if sender is Sender.NEITHER or sender is Sender.PENDING or (sender is Sender.RETURNED and state is EMPTY):
        assert cells[GroupOperation.JOIN_NEW].action is GroupAction.ADD_MEMBER
        return None, False
    if sender is Sender.RETURNED:
        # in Stable the selected protocol is kept, so the record is stored and the response sent
        is_stored = cells[GroupOperation.REPLACE_STATIC].action is GroupAction.STORE_IF_PROTOCOL_KEPT
        return (NONE if is_stored else None), False
    error = member_error(state, sender)
    if error is not NONE:
        return error, False
    action = cells[GroupOperation.JOIN_KNOWN].action
    is_immediate = action is GroupAction.RETURN_IF_UNCHANGED or (
        action is GroupAction.RETURN_IF_UNCHANGED_FOLLOWER and sender is not Sender.LEADER
    )
    return (NONE if is_immediate and not changed else None), False


def expected_of_leave(state: GroupState, sender: Sender) -> Expected:
    if state is DEAD:
        return GROUP_RULES[state][GroupOperation.LEAVE].error, False
    if sender is Sender.PENDING or (sender is Sender.RETURNED and state is not EMPTY):
        return NONE, False  # a pending member id leaves; an operator removes a static member by its group.instance.id
    return member_error(state, sender), False


def check(context: GroupContext, before: object, error: ErrorCode | None, expected: Expected, member_id: str) -> None:
    expected_error, renews = expected
    assert error is expected_error
    if renews:
        assert context.session_deadline(member_id) == context.clock.now_ms() + SESSION_MS
    elif error not in (None, NONE):
        assert snapshot(context) == before, "a rejected request has changed the state"
    group = context.shard.group(GROUP)
    if group is not None and group.state is not DEAD:
        check_counters(group)
        check_timers(group, context.timers)
        check_state(group, appends_pending=False)


def send(
    context: GroupContext, api: Any, senders: Senders, sender: Sender, generation: Generation, changed: bool
) -> Any:
    """Returns the error of the response, None if it is delayed."""
    member_id, instance_id = senders.ids[sender]
    generation_id = senders.generation(generation)
    if api is JoinGroupRequest:
        protocols = CHANGED if changed else RANGE
        handle = context.join(member_id, instance=instance_id, protocols=protocols, rebalance_ms=LONG_MS)
        return None if handle.is_delayed else handle.error
    if api is SyncGroupRequest:
        handle = context.sync(member_id, generation_id, instance=instance_id)
        return None if handle.is_delayed else handle.error
    if api is HeartbeatRequest:
        return context.heartbeat(member_id, generation_id, instance=instance_id)
    if api is LeaveGroupRequest:
        handle = context.leave((member_id, instance_id))
        return handle.error or ErrorCode(handle.response.members[0].error_code)
    if api is OffsetCommitRequest:
        return context.commit(8, member_id, generation_id, instance=instance_id)[0]
    assert api is TxnOffsetCommitRequest
    return context.commit_in_transaction(8, member_id, generation_id, instance=instance_id)[0]


def expected_of(api: Any, state: GroupState, sender: Sender, generation: Generation, changed: bool) -> Expected:
    if api is JoinGroupRequest:
        return expected_of_join(state, sender, changed)
    if api is SyncGroupRequest:
        error, renews = expected_of_member(state, GroupOperation.SYNC, sender, generation)
        # the assignment of the leader is stored, and every member gets its response
        return (NONE if error is None and sender is Sender.LEADER else error), renews
    if api is HeartbeatRequest:
        return expected_of_member(state, GroupOperation.HEARTBEAT, sender, generation)
    if api is LeaveGroupRequest:
        return expected_of_leave(state, sender)
    if api is OffsetCommitRequest:
        return expected_of_commit(state, sender, generation)
    return expected_of_transactional_commit(state, sender, generation)


# the expectation for each request
OF_MEMBER = {
    JoinGroupRequest: ((Generation.RIGHT,), (False, True)),
    SyncGroupRequest: (tuple(Generation), (False,)),
    HeartbeatRequest: (tuple(Generation), (False,)),
    LeaveGroupRequest: ((Generation.RIGHT,), (False,)),
    OffsetCommitRequest: (tuple(Generation), (False,)),
    TxnOffsetCommitRequest: (tuple(Generation), (False,)),
}
WITHOUT_MEMBER = {
    OffsetFetchRequest: GroupOperation.FETCH,
    OffsetDeleteRequest: GroupOperation.DELETE_OFFSETS,
    DeleteGroupsRequest: GroupOperation.DELETE_GROUP,
    DescribeGroupsRequest: None,
    ListGroupsRequest: None,
}


@pytest.mark.parametrize("api", OF_MEMBER, ids=lambda api: api.__name__)
@pytest.mark.parametrize("state", GroupState, ids=lambda state: state.value)
def test_every_request_of_a_member_in_every_state(state: GroupState, api: Any) -> None:
    generations, changes = OF_MEMBER[api]
    for sender in Sender:
        for generation in generations:
            for changed in changes:
                context = GroupContext()
                senders = staged(context, state)
                assert context.state() is state
                context.clock.advance_ms(1)
                before = snapshot(context)
                error = send(context, api, senders, sender, generation, changed)
                expected = expected_of(api, state, sender, generation, changed)
                try:
                    check(context, before, error, expected, senders.ids[sender][0])
                except AssertionError as failure:
                    raise AssertionError(f"{sender}, {generation}, changed {changed}: {failure}") from failure


@pytest.mark.parametrize("api", WITHOUT_MEMBER, ids=lambda api: api.__name__)
@pytest.mark.parametrize("state", GroupState, ids=lambda state: state.value)
def test_every_request_without_a_member_in_every_state(state: GroupState, api: Any) -> None:
    context = GroupContext()
    staged(context, state)
    before = snapshot(context)

    if api is OffsetFetchRequest:
        error = ErrorCode(context.fetch_response(GROUP, [("topic", 0)], 8).response.groups[0].error_code)
        assert context.fetch(("topic", 0)) == {("topic", 0): -1 if state is DEAD else 7}
    elif api is OffsetDeleteRequest:
        error = context.delete_offsets(("topic", 0)).error
    elif api is DeleteGroupsRequest:
        error = context.delete_groups(GROUP)[GROUP]
    elif api is DescribeGroupsRequest:
        described = context.describe()
        error = ErrorCode(described.error_code)
        assert described.group_state == state.value
        assert len(described.members) == (0 if state in (EMPTY, DEAD) else 3)
    else:
        error = NONE
        assert context.list()[GROUP].group_state == state.value

    operation = WITHOUT_MEMBER[api]
    assert error is (NONE if operation is None else GROUP_RULES[state][operation].error)
    if api in (OffsetFetchRequest, DescribeGroupsRequest, ListGroupsRequest) or error is not NONE:
        assert snapshot(context) == before
    if api is OffsetDeleteRequest and error is NONE:
        # the subscriptions cannot be decoded, so every topic counts as subscribed if there are members
        assert context.fetch() == ({} if state is EMPTY else {("topic", 0): 7})
    if api is DeleteGroupsRequest and error is NONE:
        assert context.shard.group(GROUP) is None and context.fetch() == {}


def test_every_group_request_is_covered() -> None:
    handled = set(GroupContext().shard.handlers)
    assert handled == {api.API_KEY for api in (*OF_MEMBER, *WITHOUT_MEMBER)}
