"""SyncGroup: the leader's assignment is stored, then everybody gets its part.

The state machine halts between two calls here: the leader's request leaves a record, and only when that record is
durable does the group become Stable. Meanwhile the group may have moved on (a member joined, left or failed); then
the stored assignment is of a round that is over, and nothing more happens.

Version notes: version 3 brings the instance id; from version 5 the request names protocol type and name, and must.

Source: Kafka's GroupMetadataManager, `classicGroupSync`.
"""

from __future__ import annotations

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.classic_group import ClassicGroup
from spark_groupsource.group.members import DelayedRequest, Member
from spark_groupsource.group.outcome import OutcomeBuilder, RequestContext, StoreAssignment
from spark_groupsource.group.rebalance import prepare_rebalance, remove_pending_sync, reset_assignments
from spark_groupsource.group.responses import sync_error_response, sync_success_response
from spark_groupsource.group.states import COMPLETING_REBALANCE, DEAD, EMPTY, STABLE, GroupAction, GroupOperation
from spark_groupsource.group.timers import SessionTimer
from spark_groupsource.wire.group_records import GroupValue
from spark_groupsource.wire.messages import Message


def sync_group(builder: OutcomeBuilder, group: ClassicGroup, request: Message, context: RequestContext) -> None:
    """Answers or parks a SyncGroup; the leader's adds the group's record."""
    error = _check(group, request)
    if error is not ErrorCode.NONE:
        builder.reply(context.token, sync_error_response(error))
        return
    rule = group.rule(GroupOperation.SYNC)
    member = group.members[request.member_id]
    if rule.action is GroupAction.REJECT:
        builder.reply(context.token, sync_error_response(rule.error))
        return
    remove_pending_sync(builder, group, member.member_id)
    if rule.renews_session:
        builder.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)
    if rule.action is GroupAction.RETURN_ASSIGNMENT:
        # an assignment a leader sends now is of no round: it gets its own back like everybody else
        builder.reply(context.token, sync_success_response(group, member.assignment))
        return
    _park(builder, member, context)
    if group.leader_id == member.member_id:
        _store_assignment(builder, group, request)


def _check(group: ClassicGroup, request: Message) -> ErrorCode:
    if group.state in (DEAD, EMPTY):
        return group.rule(GroupOperation.SYNC).error
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _park(builder: OutcomeBuilder, member: Member, context: RequestContext) -> None:
    if member.awaiting_sync is not None:
        # sent again before it was answered: nobody listens to the first answer, and its token must not be kept
        builder.reply(member.awaiting_sync.token, sync_error_response(ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = DelayedRequest(context.token, context.api_version)


def _store_assignment(builder: OutcomeBuilder, group: ClassicGroup, request: Message) -> None:
    assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
    builder.event(
        "assignment_received",
        group.group_id,
        f"Assignment received from leader {group.leader_id} for group {group.group_id} for generation "
        f"{group.generation_id}. The group has {len(group.members)} members, {len(group.static_members)} of which "
        "are static.",
    )
    value = group.to_value(builder.instant.timestamp_ms, lambda member: assignments.get(member.member_id, b""))
    builder.store_group(group.group_id, value)
    builder.after_append = StoreAssignment(group.group_id, group.generation_id)


def _awaits(group: ClassicGroup, stored: StoreAssignment) -> bool:
    return group.state is COMPLETING_REBALANCE and group.generation_id == stored.generation_id


def assignment_stored(builder: OutcomeBuilder, group: ClassicGroup, stored: StoreAssignment, value: GroupValue) -> None:
    """Makes the group Stable with the assignments of `value`, which the log now holds, and answers the parked."""
    if not _awaits(group, stored):
        return
    assignments = {member.member_id: member.assignment for member in value.members}
    group.transition(STABLE, value.state_timestamp_ms)
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        if member.awaiting_sync is not None:
            builder.reply(member.awaiting_sync.token, sync_success_response(group, member.assignment))
            member.awaiting_sync = None
            builder.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)


def assignment_failed(builder: OutcomeBuilder, group: ClassicGroup, stored: StoreAssignment, error: ErrorCode) -> None:
    """Tells the parked the error and begins a join phase."""
    if not _awaits(group, stored):
        return
    reset_assignments(builder, group, error)
    prepare_rebalance(builder, group, f"error {error.name} when storing group assignment")
