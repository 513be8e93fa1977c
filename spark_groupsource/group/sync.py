"""SyncGroup: the leader's assignment is stored, then everybody gets its part.

The state machine halts between two calls here: the leader's request leaves a record, and only when that record is
durable does the group become Stable. Meanwhile the group may have moved on (a member joined, left or failed); then
the stored assignment is of a round that is over, and nothing more happens.

Version notes: version 3 brings the instance id; from version 5 the request names protocol type and name, and must.

Source: Kafka's GroupMetadataManager, `classicGroupSync`.
"""

from __future__ import annotations

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.answers import sync_error, sync_success
from spark_groupsource.group.classic import ClassicGroup
from spark_groupsource.group.members import Member, Parked
from spark_groupsource.group.outcome import RequestContext, StoreAssignment, Turn
from spark_groupsource.group.rebalance import prepare_rebalance, reset_assignments, settle_sync
from spark_groupsource.group.states import COMPLETING, DEAD, EMPTY, STABLE, Action, Ask
from spark_groupsource.group.timers import SessionTimer
from spark_groupsource.wire.group_records import GroupValue
from spark_groupsource.wire.messages import Message


def sync(turn: Turn, group: ClassicGroup, request: Message, context: RequestContext) -> None:
    """Answers or parks a SyncGroup; the leader's adds the group's record."""
    error = _check(group, request)
    if error is not ErrorCode.NONE:
        turn.reply(context.token, sync_error(error))
        return
    answer = group.answer(Ask.SYNC)
    member = group.members[request.member_id]
    if answer.action is Action.REFUSE:
        turn.reply(context.token, sync_error(answer.error))
        return
    settle_sync(turn, group, member.member_id)
    if answer.renews_session:
        turn.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)
    if answer.action is Action.HAND_OUT:
        # an assignment a leader sends now is of no round: it gets its own back like everybody else
        turn.reply(context.token, sync_success(group, member.assignment))
        return
    _park(turn, member, context)
    if group.leader_id == member.member_id:
        _store_assignment(turn, group, request)


def _check(group: ClassicGroup, request: Message) -> ErrorCode:
    if group.state in (DEAD, EMPTY):
        return group.answer(Ask.SYNC).error
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _park(turn: Turn, member: Member, context: RequestContext) -> None:
    if member.parked_sync is not None:
        # sent again before it was answered: nobody listens to the first answer, and its token must not be kept
        turn.reply(member.parked_sync.token, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    member.parked_sync = Parked(context.token, context.api_version)


def _store_assignment(turn: Turn, group: ClassicGroup, request: Message) -> None:
    assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
    turn.event(
        "assignment_received",
        group.group_id,
        f"Assignment received from leader {group.leader_id} for group {group.group_id} for generation "
        f"{group.generation_id}. The group has {len(group.members)} members, {len(group.static_members)} of which "
        "are static.",
    )
    value = group.to_value(turn.timestamp_ms, lambda member: assignments.get(member.member_id, b""))
    turn.store_group(group.group_id, value)
    turn.after_append = StoreAssignment(group.group_id, group.generation_id)


def _awaits(group: ClassicGroup, stored: StoreAssignment) -> bool:
    return group.state is COMPLETING and group.generation_id == stored.generation_id


def assignment_stored(turn: Turn, group: ClassicGroup, stored: StoreAssignment, value: GroupValue) -> None:
    """Makes the group Stable with the assignments of `value`, which the log now holds, and answers the parked."""
    if not _awaits(group, stored):
        return
    assignments = {member.member_id: member.assignment for member in value.members}
    group.transition(STABLE, value.state_timestamp_ms)
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        if member.parked_sync is not None:
            turn.reply(member.parked_sync.token, sync_success(group, member.assignment))
            member.parked_sync = None
            turn.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)


def assignment_failed(turn: Turn, group: ClassicGroup, stored: StoreAssignment, error: ErrorCode) -> None:
    """Tells the parked the error and begins a join phase."""
    if not _awaits(group, stored):
        return
    reset_assignments(turn, group, error)
    prepare_rebalance(turn, group, f"error {error.name} when storing group assignment")
