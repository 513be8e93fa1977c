"""Heartbeat, LeaveGroup and the end of sessions: how members stay and how they go.

Costs: a heartbeat is constant whatever the size of the group.

Source: Kafka's GroupMetadataManager, `classicGroupHeartbeat`, `classicGroupLeave`, `expireClassicGroupMember`.
"""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.classic_group import UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.group.outcome import OutcomeBuilder, RequestContext
from spark_groupsource.group.rebalance import maybe_complete_join, rebalance_or_complete, remove_member
from spark_groupsource.group.responses import heartbeat_response, leave_error_response, leave_response
from spark_groupsource.group.states import DEAD, GroupAction, GroupOperation
from spark_groupsource.group.timers import SessionTimer
from spark_groupsource.wire.messages import LeaveGroupRequest, Message


def heartbeat(builder: OutcomeBuilder, group: ClassicGroup, request: Message, context: RequestContext) -> None:
    """Answers at once; a member that is alive gets a full session timeout more."""
    builder.reply(context.token, heartbeat_response(_heartbeat(builder, group, request)))


def _heartbeat(builder: OutcomeBuilder, group: ClassicGroup, request: Message) -> ErrorCode:
    rule = group.rule(GroupOperation.HEARTBEAT)
    if group.state is DEAD:
        return rule.error
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if rule.renews_session:
        renew_session(builder, group, request.member_id)
    return rule.error


def renew_session(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> None:
    """Gives a member a full session timeout from now."""
    builder.set_timer(SessionTimer(group.group_id, member_id), group.members[member_id].session_timeout_ms)


def identities(request: Message, api_version: int) -> Sequence[Message]:
    """Who a LeaveGroup names, in any version."""
    if api_version >= 3:
        return list(request.members)
    return [LeaveGroupRequest.MemberIdentity(member_id=request.member_id, group_instance_id=None, reason=None)]


def leave(builder: OutcomeBuilder, group: ClassicGroup, request: Message, context: RequestContext) -> None:
    """Removes every member named, then begins one join phase if any real member went."""
    rule = group.rule(GroupOperation.LEAVE)
    if rule.action is GroupAction.REJECT:
        builder.reply(context.token, leave_error_response(rule.error))
        return
    entries = []
    left: list[str] = []
    for identity in identities(request, context.api_version):
        entries.append((identity, _leave_one(builder, group, identity, left)))
    builder.reply(context.token, leave_response(entries, context.api_version))
    if left:
        rebalance_or_complete(builder, group, f"removing member {', '.join(left)} on LeaveGroup")
    else:
        maybe_complete_join(builder, group)  # a pending id that left may be the last one waited for


def _leave_one(builder: OutcomeBuilder, group: ClassicGroup, identity: Message, left: list[str]) -> ErrorCode:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if member_id == UNKNOWN_MEMBER and instance_id is not None:
        # an operator removes a static member, whose id only the group knows
        member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER)
    if member_id in group.pending_joins:
        group.pending_joins.discard(member_id)
        builder.cancel_timer(SessionTimer(group.group_id, member_id))
        _note_left(builder, group, member_id, identity, "Pending member")
        return ErrorCode.NONE
    error = group.validate_member(member_id, instance_id)
    if error is ErrorCode.NONE:
        remove_member(builder, group, member_id)
        _note_left(builder, group, member_id, identity, "Member")
        left.append(member_id)
    return error


def _note_left(builder: OutcomeBuilder, group: ClassicGroup, member_id: str, identity: Message, who: str) -> None:
    builder.event(
        "member_left",
        group.group_id,
        f"{who} {member_id} has left group {group.group_id} through explicit LeaveGroup; client reason: "
        f"{identity.reason or 'not provided'}",
    )


def expire_session(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> None:
    """The session timer of a member, or the grace of a pending id, has run out."""
    if group.state is DEAD:
        return
    if member_id in group.pending_joins:
        group.pending_joins.discard(member_id)
        builder.event(
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
    builder.event(
        "member_failed",
        group.group_id,
        f"Member {member_id} in group {group.group_id} has failed, removing it from the group",
    )
    rebalance_or_complete(builder, group, f"removing member {member_id} on heartbeat expiration")
