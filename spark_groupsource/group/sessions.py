"""Heartbeat, LeaveGroup and the end of sessions: how members stay and how they go.

Costs: a heartbeat is constant whatever the size of the group.

Source: Kafka's GroupMetadataManager, `classicGroupHeartbeat`, `classicGroupLeave`, `expireClassicGroupMember`.
"""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.answers import heartbeat_answer, leave_answer, leave_error
from spark_groupsource.group.classic import UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.group.outcome import RequestContext, Turn
from spark_groupsource.group.rebalance import maybe_complete_join, rebalance_or_complete, remove_member
from spark_groupsource.group.states import DEAD, Action, Ask
from spark_groupsource.group.timers import SessionTimer
from spark_groupsource.wire.messages import LeaveGroupRequest, Message


def heartbeat(turn: Turn, group: ClassicGroup, request: Message, context: RequestContext) -> None:
    """Answers at once; a member that is alive gets a full session timeout more."""
    turn.reply(context.token, heartbeat_answer(_heartbeat(turn, group, request)))


def _heartbeat(turn: Turn, group: ClassicGroup, request: Message) -> ErrorCode:
    answer = group.answer(Ask.HEARTBEAT)
    if group.state is DEAD:
        return answer.error
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if answer.renews_session:
        renew_session(turn, group, request.member_id)
    return answer.error


def renew_session(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    """Gives a member a full session timeout from now."""
    turn.set_timer(SessionTimer(group.group_id, member_id), group.members[member_id].session_timeout_ms)


def identities(request: Message, api_version: int) -> Sequence[Message]:
    """Who a LeaveGroup names, in any version."""
    if api_version >= 3:
        return list(request.members)
    return [LeaveGroupRequest.MemberIdentity(member_id=request.member_id, group_instance_id=None, reason=None)]


def leave(turn: Turn, group: ClassicGroup, request: Message, context: RequestContext) -> None:
    """Removes every member named, then begins one join phase if any real member went."""
    answer = group.answer(Ask.LEAVE)
    if answer.action is Action.REFUSE:
        turn.reply(context.token, leave_error(answer.error))
        return
    entries = []
    left: list[str] = []
    for identity in identities(request, context.api_version):
        entries.append((identity, _leave_one(turn, group, identity, left)))
    turn.reply(context.token, leave_answer(entries, context.api_version))
    if left:
        rebalance_or_complete(turn, group, f"removing member {', '.join(left)} on LeaveGroup")
    else:
        maybe_complete_join(turn, group)  # a pending id that left may be the last one waited for


def _leave_one(turn: Turn, group: ClassicGroup, identity: Message, left: list[str]) -> ErrorCode:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if member_id == UNKNOWN_MEMBER and instance_id is not None:
        # an operator removes a static member, whose id only the group knows
        member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER)
    if member_id in group.pending_joins:
        group.pending_joins.discard(member_id)
        turn.cancel_timer(SessionTimer(group.group_id, member_id))
        _note_left(turn, group, member_id, identity, "Pending member")
        return ErrorCode.NONE
    error = group.check_member(member_id, instance_id)
    if error is ErrorCode.NONE:
        remove_member(turn, group, member_id)
        _note_left(turn, group, member_id, identity, "Member")
        left.append(member_id)
    return error


def _note_left(turn: Turn, group: ClassicGroup, member_id: str, identity: Message, who: str) -> None:
    turn.event(
        "member_left",
        group.group_id,
        f"{who} {member_id} has left group {group.group_id} through explicit LeaveGroup; client reason: "
        f"{identity.reason or 'not provided'}",
    )


def expire_session(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    """The session timer of a member, or the grace of a pending id, has run out."""
    if group.state is DEAD:
        return
    if member_id in group.pending_joins:
        group.pending_joins.discard(member_id)
        turn.event(
            "pending_member_expired",
            group.group_id,
            f"Pending member {member_id} in group {group.group_id} has been removed after session timeout expiration.",
        )
        maybe_complete_join(turn, group)
        return
    member = group.members.get(member_id)
    if member is None or member.counts_as_alive:
        return
    remove_member(turn, group, member_id)
    turn.event(
        "member_failed",
        group.group_id,
        f"Member {member_id} in group {group.group_id} has failed, removing it from the group",
    )
    rebalance_or_complete(turn, group, f"removing member {member_id} on heartbeat expiration")
