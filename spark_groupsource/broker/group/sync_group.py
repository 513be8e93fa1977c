"""SyncGroup: stores the leader's assignment and returns it to the members.

The request of the leader adds a record, and the group becomes Stable when the record is durable. If the group changed
in between (a member joined, left or failed), the stored assignment is that of an earlier generation and has no effect.

Version notes: version 3 has the group instance id; from version 5 the protocol type and name are required.

Source: Kafka's GroupMetadataManager, `classicGroupSync`.
"""

from __future__ import annotations

from spark_groupsource.broker.group import rebalance_events
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_rebalance import prepare_rebalance, remove_pending_sync, reset_assignments
from spark_groupsource.broker.group.group_states import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    STABLE,
    GroupAction,
    GroupOperation,
)
from spark_groupsource.broker.group.group_timers import SessionTimer
from spark_groupsource.broker.group.members import DelayedRequest, Member
from spark_groupsource.broker.group.outcome import OutcomeBuilder, RequestContext, StoreAssignment
from spark_groupsource.broker.group.rebalance_events import UNKNOWN_TRIGGER
from spark_groupsource.broker.group.responses import sync_error_response, sync_success_response
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.group_records import GroupValue
from spark_groupsource.wire.messages import SyncGroupRequest


def sync_group(
    builder: OutcomeBuilder, group: ClassicGroup, request: SyncGroupRequest, context: RequestContext
) -> None:
    """Handles a SyncGroup; that of the leader adds the record of the group."""
    error = _check(group, request)
    if error is not ErrorCode.NONE:
        builder.reply(context.token, sync_error_response(error))
        return
    rule = group.rule(GroupOperation.SYNC)
    member = group.members[request.member_id]
    if rule.action is GroupAction.REJECT:
        builder.reply(context.token, sync_error_response(rule.error))
        return
    if member.member_id in group.pending_syncs:
        rebalance_events.add_syncing(builder, group, member)
    remove_pending_sync(builder, group, member.member_id)
    if rule.action is GroupAction.RETURN_ASSIGNMENT:
        # the assignments of a leader that retries are ignored
        builder.reply(context.token, sync_success_response(group, member.assignment))
        return
    _await_sync(builder, member, context)
    if group.leader_id == member.member_id:
        _store_assignment(builder, group, request)


def _check(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
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


def _await_sync(builder: OutcomeBuilder, member: Member, context: RequestContext) -> None:
    if member.awaiting_sync is not None:
        # the client has retried and no longer waits for this response; it is sent so that the caller releases the token
        builder.reply(member.awaiting_sync.token, sync_error_response(ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = DelayedRequest(context.token, context.api_version)


def _store_assignment(builder: OutcomeBuilder, group: ClassicGroup, request: SyncGroupRequest) -> None:
    assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
    builder.log(
        "assignment_received",
        group.group_id,
        f"Assignment received from leader {group.leader_id} for group {group.group_id} for generation "
        f"{group.generation_id}. The group has {len(group.members)} members, {len(group.static_members)} of which "
        "are static.",
    )
    value = group.to_value(lambda member: assignments.get(member.member_id, b""))
    builder.store_group(group.group_id, value)
    builder.after_append = StoreAssignment(group.group_id, group.generation_id)


def _is_current(group: ClassicGroup, stored: StoreAssignment) -> bool:
    return group.state is COMPLETING_REBALANCE and group.generation_id == stored.generation_id


def assignment_stored(builder: OutcomeBuilder, group: ClassicGroup, stored: StoreAssignment, value: GroupValue) -> None:
    """Makes the group Stable with the assignments of the stored `value`; responds to every delayed SyncGroup."""
    if not _is_current(group, stored):
        return
    assignments = {member.member_id: member.assignment for member in value.members}
    group.transition(STABLE, value.state_timestamp_ms)
    group.is_loaded = False
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        if member.awaiting_sync is not None:
            builder.reply(member.awaiting_sync.token, sync_success_response(group, member.assignment))
            member.awaiting_sync = None
            builder.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)
    rebalance_events.add_assigned(builder, group)


def assignment_failed(builder: OutcomeBuilder, group: ClassicGroup, stored: StoreAssignment, error: ErrorCode) -> None:
    """Returns the error to every delayed SyncGroup and starts a join phase."""
    if not _is_current(group, stored):
        return
    reset_assignments(builder, group, error)
    prepare_rebalance(builder, group, f"error {error.name} when storing group assignment", UNKNOWN_TRIGGER)
