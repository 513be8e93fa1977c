"""Heartbeat, LeaveGroup and session expiration.

The time of a heartbeat does not depend on the size of the group.

Source: Kafka's GroupMetadataManager, `classicGroupHeartbeat`, `classicGroupLeave`, `expireClassicGroupMember`.
"""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.broker.group import rebalance_events
from spark_groupsource.broker.group.classic_group import UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.broker.group.group_rebalance import maybe_complete_join, rebalance_or_complete, remove_member
from spark_groupsource.broker.group.group_states import DEAD, EMPTY, GroupAction, GroupOperation
from spark_groupsource.broker.group.group_timers import SessionTimer
from spark_groupsource.broker.group.outcome import OutcomeBuilder, RequestContext, SetTimer
from spark_groupsource.broker.group.rebalance_events import Trigger
from spark_groupsource.broker.group.responses import heartbeat_response, leave_error_response, leave_response
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import bounded_names, new_tuple
from spark_groupsource.wire.group_events import Cause
from spark_groupsource.wire.messages import HeartbeatRequest, LeaveGroupRequest


def heartbeat(builder: OutcomeBuilder, group: ClassicGroup, request: HeartbeatRequest, context: RequestContext) -> None:
    """Responds immediately and renews the session of the member."""
    builder.reply(context.token, heartbeat_response(_heartbeat(builder, group, request, context)))


def _heartbeat(
    builder: OutcomeBuilder, group: ClassicGroup, request: HeartbeatRequest, context: RequestContext
) -> ErrorCode:
    rule = group.rule(GroupOperation.HEARTBEAT)
    if group.state is DEAD:
        return rule.error
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    group.members[request.member_id].connection_id = context.connection_id
    if rule.renews_session:
        renew_session(builder, group, request.member_id)
    return rule.error


def renew_session(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> None:
    """Restarts the session timeout of a member."""
    deadline_ms = builder.instant.now_ms + group.members[member_id].session_timeout_ms
    builder.timers.append(new_tuple(SetTimer, (SessionTimer(group.group_id, member_id), deadline_ms)))


def identities(request: LeaveGroupRequest, api_version: int) -> Sequence[LeaveGroupRequest.MemberIdentity]:
    """Returns the members that a LeaveGroup of any version names."""
    if api_version >= 3:
        return list(request.members)
    return [LeaveGroupRequest.MemberIdentity(member_id=request.member_id, group_instance_id=None, reason=None)]


def leave(builder: OutcomeBuilder, group: ClassicGroup, request: LeaveGroupRequest, context: RequestContext) -> None:
    """Removes the named members and pending member ids, then starts one join phase if one of them was removed."""
    rule = group.rule(GroupOperation.LEAVE)
    if rule.action is GroupAction.REJECT:
        builder.reply(context.token, leave_error_response(rule.error))
        return
    entries = []
    left: list[tuple[str, Trigger]] = []
    for identity in identities(request, context.api_version):
        entries.append((identity, _leave_one(builder, group, identity, context, left)))
    builder.reply(context.token, leave_response(entries, context.api_version))
    if left and group.state is not EMPTY:  # a pending member id has left an Empty group
        names = bounded_names(member_id for member_id, _ in left)
        rebalance_or_complete(builder, group, f"removing member {names} on LeaveGroup", left[0][1])


def _leave_one(
    builder: OutcomeBuilder,
    group: ClassicGroup,
    identity: LeaveGroupRequest.MemberIdentity,
    context: RequestContext,
    left: list[tuple[str, Trigger]],
) -> ErrorCode:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if member_id == UNKNOWN_MEMBER and instance_id is not None:
        # an operator removes a static member by its group.instance.id
        member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER)
    if member_id in group.pending_joins:
        group.pending_joins.discard(member_id)
        builder.cancel_timer(SessionTimer(group.group_id, member_id))
        _log_left(builder, group, member_id, identity, "Pending member")
        left.append((member_id, Trigger(Cause.LEFT, reason=identity.reason)))
        return ErrorCode.NONE
    error = group.validate_member(member_id, instance_id)
    if error is ErrorCode.NONE:
        trigger = rebalance_events.leave_trigger(remove_member(builder, group, member_id), identity, context)
        rebalance_events.add_left(builder, group, trigger, sender=context)
        _log_left(builder, group, member_id, identity, "Member")
        left.append((member_id, trigger))
    return error


def _log_left(
    builder: OutcomeBuilder, group: ClassicGroup, member_id: str, identity: LeaveGroupRequest.MemberIdentity, kind: str
) -> None:
    builder.log(
        "member_left",
        group.group_id,
        f"{kind} {member_id} has left group {group.group_id} through explicit LeaveGroup; client reason: "
        f"{identity.reason or 'not provided'}",
    )


def expire_session(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> None:
    """Handles the session timer of a member or of a pending member id."""
    if group.state is DEAD:
        return
    if member_id in group.pending_joins:
        group.pending_joins.discard(member_id)
        builder.log(
            "pending_member_expired",
            group.group_id,
            f"Pending member {member_id} in group {group.group_id} has been removed after session timeout expiration.",
        )
        maybe_complete_join(builder, group)
        return
    member = group.members.get(member_id)
    if member is None or member.has_satisfied_heartbeat:
        return
    remove_member(builder, group, member_id)
    trigger = Trigger(Cause.SESSION_EXPIRED, member)
    last_heartbeat_ms = None if member.is_new else builder.instant.timestamp_ms - member.session_timeout_ms
    rebalance_events.add_left(builder, group, trigger, is_expired=True, last_heartbeat_ms=last_heartbeat_ms)
    builder.log(
        "member_failed",
        group.group_id,
        f"Member {member_id} in group {group.group_id} has failed, removing it from the group",
    )
    rebalance_or_complete(builder, group, f"removing member {member_id} on heartbeat expiration", trigger)
