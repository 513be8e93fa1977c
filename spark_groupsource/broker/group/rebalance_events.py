"""Events of rebalances: cause, actor, join, sync, assignment.

The cause of a rebalance is what a member did when the group was Stable or Empty, from the requests alone: no event
depends on a clock other than the time of the call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from spark_groupsource.broker.group.classic_group import UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.broker.group.members import Member, Protocols
from spark_groupsource.broker.group.outcome import OutcomeBuilder, RequestContext
from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assigned_topics,
    decode_assignment,
    decode_subscription,
    partitions_by_topic,
)
from spark_groupsource.wire.group_events import Cause, EventKind, GroupEvent
from spark_groupsource.wire.member_reasons import CLOSING, bounded_reason, cause_of_join, cause_of_leave
from spark_groupsource.wire.messages import JoinGroupRequest, LeaveGroupRequest

# decoding takes about 10 ms: what is larger is not part of an event
_MAX_ASSIGNMENT_BYTES, _MAX_ASSIGNED_TOPICS = 131_072, 10_000
_MAX_SUBSCRIPTION_BYTES, _MAX_SUBSCRIBED_TOPICS = 32_768, 4_000
_MAX_MEMBERS = 2_000
_MAX_NAME = 249  # longest name of a topic; client ids and hosts are cut there, too


class Trigger(NamedTuple):
    """Why a join phase starts: the cause, the member that acted, and the reason that it sent."""

    cause: Cause
    member: Member | None = None
    reason: str | None = None


UNKNOWN_TRIGGER = Trigger(Cause.UNKNOWN)


# --- causes


def rejoin_cause(group: ClassicGroup, member: Member, protocols: Protocols, reason: str | None) -> Cause:
    """Returns the cause of a JoinGroup of a known member with `protocols`; `member` is as before the request.

    What the subscription shows precedes the reason, and both precede that the coordinator has loaded the group since
    its last rebalance. A client without reasons is known by its owned partitions: those that it revoked since its last
    JoinGroup show the second round of a cooperative rebalance.
    """
    old, new = _subscription(member.protocols), _subscription(protocols)
    if old is not None and new is not None and set(old.topics) != set(new.topics):
        return Cause.SUBSCRIPTION_CHANGED
    # the record of a loaded group has the selected protocol only
    if not group.is_loaded and [name for name, _ in member.protocols] != [name for name, _ in protocols]:
        return Cause.ASSIGNOR_CHANGED
    named = cause_of_join(reason)
    if named is Cause.COORDINATOR_MOVED and not group.is_loaded:
        named = None
    if named is not None:
        return named
    if group.is_loaded:
        return Cause.COORDINATOR_MOVED
    if old is not None and new is not None and set(old.owned_partitions) - set(new.owned_partitions):
        if new.owned_partitions or _partitions(member) == []:
            return Cause.COOPERATIVE_SECOND_ROUND
    return Cause.LEADER_REJOINED if group.leader_id == member.member_id else Cause.UNKNOWN


def join_cause(group: ClassicGroup, member: Member) -> Cause:
    """Returns the cause of the first JoinGroup of a member.

    COORDINATOR_MOVED for a client that has a dynamic member from which no request came since the group was loaded: it
    did not reach the coordinator within its session timeout, and joins as a new member.
    """
    client = (member.client_id, member.client_host)
    is_back = group.is_loaded and any(
        (each.client_id, each.client_host) == client and not each.connection_id and not each.is_static
        for each in group.members.values()
        if each is not member
    )
    return Cause.COORDINATOR_MOVED if is_back else Cause.JOINED


def leave_trigger(member: Member, identity: LeaveGroupRequest.MemberIdentity, context: RequestContext) -> Trigger:
    """Returns the cause of a LeaveGroup: REMOVED_BY_OPERATOR if another client than the member sent it."""
    cause = cause_of_leave(identity.reason)
    is_own_client = member.client_id == context.client_id or member.client_id.startswith(f"{context.client_id}-")
    # members of this package leave together, by a connection of another client id
    is_own = identity.member_id != UNKNOWN_MEMBER and (is_own_client or (identity.reason or "").startswith(CLOSING))
    if cause is Cause.LEFT and not is_own:
        cause = Cause.REMOVED_BY_OPERATOR
    return Trigger(cause, member, identity.reason)


# --- events


def add_started(builder: OutcomeBuilder, group: ClassicGroup, trigger: Trigger) -> None:
    """Adds the start of a join phase."""
    detail = {"cause": trigger.cause.value, "reason": bounded_reason(trigger.reason)}
    _add(builder, group, EventKind.REBALANCE_STARTED, trigger.member, detail)


def add_joining(
    builder: OutcomeBuilder,
    group: ClassicGroup,
    member: Member,
    request: JoinGroupRequest,
    replaced_id: str | None = None,
) -> None:
    """Adds a JoinGroup; `member` has its new protocols and the assignment of the previous generation."""
    detail: dict[str, Any] = {
        "reason": bounded_reason(request.reason),
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "replaced": replaced_id,
    }
    # an eager member owns nothing in its JoinGroup
    subscription = _subscription(member.protocols) if member.assignment else None
    if subscription is not None and subscription.owned_partitions:
        assigned = _partitions(member) or []
        retained = set(assigned).intersection(subscription.owned_partitions)
        detail["retained"] = len(retained) or None
        if retained and len(retained) < len(assigned):
            detail["revoked"] = partitions_by_topic([p for p in assigned if p not in retained])
    _add(builder, group, EventKind.MEMBER_JOINING, member, detail)


def add_left(
    builder: OutcomeBuilder,
    group: ClassicGroup,
    trigger: Trigger,
    *,
    is_expired: bool = False,
    last_heartbeat_ms: int | None = None,
    sender: RequestContext | None = None,
) -> None:
    """Adds the removal of a member; `sender` is that of the LeaveGroup."""
    is_operator = sender is not None and trigger.cause is Cause.REMOVED_BY_OPERATOR
    connections = (trigger.member.connection_id if trigger.member else 0, sender.connection_id if sender else 0)
    detail = {
        "cause": trigger.cause.value,
        "reason": bounded_reason(trigger.reason),
        "is_expired": is_expired or None,
        "last_heartbeat_ms": last_heartbeat_ms,
        "operator": [_name(sender.client_id), _name(sender.client_host)] if sender and is_operator else None,
        "is_other_connection": True if all(connections) and connections[0] != connections[1] else None,
    }
    _add(builder, group, EventKind.MEMBER_LEFT, trigger.member, detail)


def add_join_completed(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    """Adds the end of a join phase; a group without members is Empty at once. O(members)."""
    members = {
        member.member_id: [_name(member.client_id), _name(member.client_host), member.group_instance_id]
        for member in list(group.members.values())[:_MAX_MEMBERS]
    }
    detail = {"leader": group.leader_id, "protocol": group.protocol_name, "members": members}
    _add(builder, group, EventKind.JOIN_COMPLETED, None, detail)
    if not group.members:
        _add(builder, group, EventKind.ASSIGNED, None, {"assignment": {}})


def add_syncing(builder: OutcomeBuilder, group: ClassicGroup, member: Member) -> None:
    """Adds the first SyncGroup of a member in a generation."""
    _add(builder, group, EventKind.MEMBER_SYNCING, member, {})


def add_assigned(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    """Adds the assignment of a Stable group. O(partitions)."""
    detail: dict[str, Any] = {}
    assignments = [member.assignment for member in group.members.values()]
    is_small = sum(map(len, assignments)) <= _MAX_ASSIGNMENT_BYTES
    if is_small and group.protocol_type == PROTOCOL_TYPE and sum(map(_count, assignments)) <= _MAX_ASSIGNED_TOPICS:
        detail["assignment"] = {member.member_id: _topics(member) for member in group.members.values()}
    _add(builder, group, EventKind.ASSIGNED, None, detail)


def _add(
    builder: OutcomeBuilder, group: ClassicGroup, kind: EventKind, member: Member | None, detail: dict[str, Any]
) -> None:
    known = detail
    if None in detail.values():
        known = {name: value for name, value in detail.items() if value is not None}
    at_ms, group_id, generation_id = builder.instant.timestamp_ms, group.group_id, group.generation_id
    if member is None:
        event = GroupEvent(at_ms, group_id, kind, generation_id, detail=known)
    else:
        member_id, instance_id = member.member_id, member.group_instance_id
        client_id, host = _name(member.client_id), _name(member.client_host)
        event = GroupEvent(at_ms, group_id, kind, generation_id, member_id, client_id, host, instance_id, detail=known)
    builder.events.append(event)


def _name(text: str) -> str:
    return text[:_MAX_NAME]


def _count(data: bytes) -> int:
    """Returns the number of topics of an encoded subscription or assignment."""
    return int.from_bytes(data[2:6], "big")


def _is_large(data: bytes) -> bool:
    """Returns whether decoding the subscription or assignment of one member takes too long."""
    return len(data) > _MAX_SUBSCRIPTION_BYTES or _count(data) > _MAX_SUBSCRIBED_TOPICS


def _partitions(member: Member) -> list[TopicPartition] | None:
    """Returns the assignment of a member, None if it is not of the consumer protocol or is large."""
    data = member.assignment
    if not data:
        return []
    if _is_large(data):
        return None
    try:
        return list(decode_assignment(data).partitions)
    except RemoteProtocolError:
        return None


def _topics(member: Member) -> dict[str, list[int]]:
    try:
        return decode_assigned_topics(member.assignment) if member.assignment else {}
    except RemoteProtocolError:
        return {}


def _subscription(protocols: Protocols) -> Subscription | None:
    """Returns the subscription of a member's preferred protocol, None if it is not of the consumer protocol.

    None for a large one: its members rejoin without a known cause.
    """
    data = protocols[0][1] if protocols else b""
    if not data or _is_large(data):
        return None
    try:
        return _decoded_subscription(data)
    except RemoteProtocolError:
        return None


@lru_cache(maxsize=4)  # the members of a group often have the same one
def _decoded_subscription(data: bytes) -> Subscription:
    return decode_subscription(data)
