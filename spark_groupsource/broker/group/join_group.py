"""JoinGroup: adds members and starts rebalances.

A request without a member id is of a new member, or of a static one that returns (`_join_new`). One with a member id
is of a member, or of a client that was given the id (`_join_known`). The cases of each are checked in order; the first
match decides. The shard has found the group and checked the session timeout.

Version notes: from version 4 a new dynamic member first gets its id with MEMBER_ID_REQUIRED, so that a lost response
leaves no unused member; version 5 has static members, version 8 the client's reason; from version 9 the response to a
returning static leader has its own id as the leader and permits it to skip the assignment.

Source: KIP-394, KIP-345, KIP-800, KIP-814; Kafka's GroupMetadataManager, `classicGroupJoin*`.
"""

from __future__ import annotations

from spark_groupsource.broker.group import rebalance_events
from spark_groupsource.broker.group.classic_group import NO_LEADER, UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.broker.group.group_rebalance import (
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    remove_member,
)
from spark_groupsource.broker.group.group_states import (
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    GroupAction,
    GroupOperation,
    can_rebalance,
)
from spark_groupsource.broker.group.group_timers import JoinTimer, SessionTimer
from spark_groupsource.broker.group.members import DelayedRequest, Member, Protocols, new_member_id
from spark_groupsource.broker.group.outcome import OutcomeBuilder, RequestContext, StoreReplacement
from spark_groupsource.broker.group.rebalance_events import Trigger
from spark_groupsource.broker.group.responses import (
    join_error_response,
    join_response,
    join_success,
    sync_error_response,
)
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.decoder import MAX_STRING_BYTES
from spark_groupsource.wire.group_events import Cause
from spark_groupsource.wire.messages import JoinGroupRequest

# from this version on, a dynamic member without id gets one and must send JoinGroup again
_MEMBER_ID_REQUIRED_VERSION = 4
_SKIP_ASSIGNMENT_VERSION = 9


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """Returns the protocols of a JoinGroup, in its order."""
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)


def join_group(
    builder: OutcomeBuilder, group: ClassicGroup, request: JoinGroupRequest, context: RequestContext
) -> None:
    """Handles a JoinGroup, then completes the join phase if all members have joined."""
    if not _has_capacity(group, request.member_id, builder.config.max_members):
        _reject(builder, context, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
        if request.member_id in group.pending_joins:
            group.pending_joins.discard(request.member_id)
            builder.cancel_timer(SessionTimer(group.group_id, request.member_id))
        elif request.member_id in group.members:
            removed = remove_member(builder, group, request.member_id)
            limit = f"group.max.size={builder.config.max_members}"
            rebalance_events.add_left(builder, group, Trigger(Cause.UNKNOWN, removed, limit))
            builder.log(
                "member_kicked",
                group.group_id,
                f"Member {request.member_id} is removed from group {group.group_id}: group.max.size is "
                f"{builder.config.max_members}",
            )
    elif request.member_id == UNKNOWN_MEMBER:
        _join_new(builder, group, request, context)
    else:
        _join_known(builder, group, request, context)
    maybe_complete_join(builder, group)


def _has_capacity(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    # During a join phase the members that have joined count, so that after the limit was lowered the last ones to
    # rejoin are rejected. Pending member ids never count.
    if group.state in (EMPTY, DEAD):
        return True
    member = group.members.get(member_id)
    if group.state is PREPARING_REBALANCE:
        return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < max_size
    return member is not None or len(group.members) < max_size


def _reject(builder: OutcomeBuilder, context: RequestContext, error: ErrorCode, member_id: str) -> None:
    builder.reply(context.token, join_error_response(error, member_id, context.api_version))


def _join_new(builder: OutcomeBuilder, group: ClassicGroup, request: JoinGroupRequest, context: RequestContext) -> None:
    rule = group.rule(GroupOperation.JOIN_NEW)
    if rule.action is GroupAction.REJECT:  # the group is Dead
        return _reject(builder, context, rule.error, UNKNOWN_MEMBER)
    if not group.supports_protocols(request.protocol_type, [protocol.name for protocol in request.protocols]):
        return _reject(builder, context, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER)
    instance_id = request.group_instance_id
    member_id = new_member_id(context.client_id, instance_id, context.new_uuid)
    if len(member_id.encode()) > MAX_STRING_BYTES:  # no response and no record could contain it
        return _reject(builder, context, ErrorCode.INVALID_REQUEST, UNKNOWN_MEMBER)
    if instance_id is None:
        if context.api_version >= _MEMBER_ID_REQUIRED_VERSION:
            return _require_member_id(builder, group, request, context, member_id)
        return _add_member(builder, group, request, context, member_id)
    if instance_id not in group.static_members:
        builder.log(
            "member_added",
            group.group_id,
            f"Static member with groupInstanceId={instance_id} and unknown member id joins group {group.group_id} "
            f"in {group.state.value} state. Created a new member id {member_id}",
        )
        return _add_member(builder, group, request, context, member_id)
    return _replace_static(builder, group, request, context, instance_id, member_id)


def _require_member_id(
    builder: OutcomeBuilder, group: ClassicGroup, request: JoinGroupRequest, context: RequestContext, member_id: str
) -> None:
    group.add_pending_join(member_id)
    builder.set_timer(SessionTimer(group.group_id, member_id), request.session_timeout_ms)
    builder.log(
        "member_pending",
        group.group_id,
        f"Dynamic member with unknown member id joins group {group.group_id} in {group.state.value} state. "
        f"Created a new member id {member_id} and requesting the member to rejoin with this id",
    )
    _reject(builder, context, ErrorCode.MEMBER_ID_REQUIRED, member_id)


def _join_known(
    builder: OutcomeBuilder, group: ClassicGroup, request: JoinGroupRequest, context: RequestContext
) -> None:
    rule = group.rule(GroupOperation.JOIN_KNOWN)
    member_id, instance_id = request.member_id, request.group_instance_id
    if group.state is DEAD:
        return _reject(builder, context, rule.error, member_id)
    protocols = protocols_of(request)
    if not group.supports_protocols(request.protocol_type, [name for name, _ in protocols]):
        return _reject(builder, context, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
    if member_id in group.pending_joins:  # it was given this id with MEMBER_ID_REQUIRED
        if instance_id is not None:
            raise RuntimeError(
                f"Pending member id '{member_id}' of group '{group.group_id}' has instance id '{instance_id}'."
            )
        return _add_member(builder, group, request, context, member_id)
    error = group.validate_member(member_id, instance_id)
    if error is not ErrorCode.NONE:  # unknown, or fenced by another member with its instance id
        return _reject(builder, context, error, member_id)
    if rule.action is GroupAction.REJECT:  # an Empty group has no members
        return _reject(builder, context, rule.error, member_id)
    member = group.members[member_id]
    unchanged = member.protocols == protocols
    is_retry = unchanged and (
        rule.action is GroupAction.RETURN_IF_UNCHANGED  # CompletingRebalance: the response was lost
        or (rule.action is GroupAction.RETURN_IF_UNCHANGED_FOLLOWER and group.leader_id != member_id)  # Stable
    )
    if is_retry:
        return builder.reply(context.token, join_success(group, member_id))
    if rule.action is GroupAction.AWAIT_JOIN or not unchanged:
        reason = f"updating metadata for member {member_id} during {group.state.value}"
    else:  # the leader of a Stable group requests a rebalance
        reason = f"leader {member_id} re-joining group during {group.state.value}"
    starts = can_rebalance(group.state)
    cause = rebalance_events.rejoin_cause(group, member, protocols, request.reason) if starts else Cause.UNKNOWN
    _update_and_await_join(builder, group, member, request, context)
    rebalance_events.add_joining(builder, group, member, request)
    trigger = Trigger(cause, member, request.reason)
    rebalance_or_complete(builder, group, _with_client_reason(reason, request), trigger)


def _with_client_reason(reason: str, request: JoinGroupRequest) -> str:
    return f"{reason}; client reason: {request.reason or 'not provided'}"


def _update_and_await_join(
    builder: OutcomeBuilder, group: ClassicGroup, member: Member, request: JoinGroupRequest, context: RequestContext
) -> None:
    group.update(member, protocols_of(request), _rebalance_timeout_ms(request, context), request.session_timeout_ms)
    member.connection_id = context.connection_id
    replaced = group.await_join(member, DelayedRequest(context.token, context.api_version))
    if replaced is not None:
        # The client has retried, so it no longer waits for the response of the first request. Kafka drops that
        # request; here it gets a response, so that the caller can release its token.
        error = join_error_response(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id, replaced.api_version)
        builder.reply(replaced.token, error)


def _rebalance_timeout_ms(request: JoinGroupRequest, context: RequestContext) -> int:
    return int(request.session_timeout_ms if context.api_version == 0 else request.rebalance_timeout_ms)


def _add_member(
    builder: OutcomeBuilder, group: ClassicGroup, request: JoinGroupRequest, context: RequestContext, member_id: str
) -> None:
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout_ms=_rebalance_timeout_ms(request, context),
        session_timeout_ms=request.session_timeout_ms,
        protocols=protocols_of(request),
        awaiting_join=DelayedRequest(context.token, context.api_version),
        is_new=True,
        connection_id=context.connection_id,
    )
    if group.is_initial_rebalance:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    # the client sends no heartbeat before its first response, so its session has not started
    builder.set_timer(SessionTimer(group.group_id, member_id), builder.config.group_new_member_join_timeout_ms)
    instance = "" if member.group_instance_id is None else f" with group instance id {member.group_instance_id}"
    rebalance_events.add_joining(builder, group, member, request)
    reason = _with_client_reason(f"adding new member {member_id}{instance}", request)
    cause = rebalance_events.join_cause(group, member)
    rebalance_or_complete(builder, group, reason, Trigger(cause, member, request.reason))


def _replace_static(
    builder: OutcomeBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    context: RequestContext,
    instance_id: str,
    member_id: str,
) -> None:
    """A static member rejoins without its member id, usually after a restart."""
    rule = group.rule(GroupOperation.REPLACE_STATIC)
    if rule.action is GroupAction.BUG:
        raise RuntimeError(
            f"Group '{group.group_id}' in state {group.state.value} has a member with instance id '{instance_id}'."
        )
    old_leader_id = group.leader_id or NO_LEADER
    old_state = group.state.value
    old, new = group.replace_static_member(instance_id, member_id)
    _fence(builder, old)
    builder.cancel_timer(SessionTimer(group.group_id, old.member_id))
    _update_and_await_join(builder, group, new, request, context)
    builder.set_timer(SessionTimer(group.group_id, member_id), new.session_timeout_ms)
    builder.log(
        "static_member_replaced",
        group.group_id,
        f"Static member with groupInstanceId={instance_id} and unknown member id joins group {group.group_id} in "
        f"{old_state} state. Replacing previously mapped member {old.member_id} with this groupInstanceId",
    )
    rebalance_events.add_joining(builder, group, new, request, old.member_id)
    if rule.action is GroupAction.AWAIT_JOIN:
        return
    is_same = [name for name, _ in old.protocols] == [name for name, _ in new.protocols] or group.is_loaded
    trigger = Trigger(Cause.STATIC_REPLACED if is_same else Cause.ASSIGNOR_CHANGED, new, request.reason)
    if rule.action is GroupAction.STORE_IF_PROTOCOL_KEPT and group.select_protocol() == group.protocol_name:
        rebalance_events.add_started(builder, group, trigger)
        return _store_replacement(builder, group, context, old, old_leader_id, member_id)
    if rule.action is GroupAction.STORE_IF_PROTOCOL_KEPT:
        reason = "group's selectedProtocol will change because static member"
    else:
        reason = "updating metadata for static member"
    reason = f"{reason} {member_id} with instance id {instance_id} joined"
    prepare_rebalance(builder, group, _with_client_reason(reason, request), trigger)


def _store_replacement(
    builder: OutcomeBuilder,
    group: ClassicGroup,
    context: RequestContext,
    old: Member,
    old_leader_id: str,
    member_id: str,
) -> None:
    """Stores the group with the new member id, without a rebalance; see `replacement_stored`."""
    builder.store_group(group.group_id, group.to_value(lambda m: m.assignment))
    builder.after_append = StoreReplacement(
        group_id=group.group_id,
        generation_id=group.generation_id,
        old_member=old,
        old_leader_id=old_leader_id,
        new_member_id=member_id,
        token=context.token,
        api_version=context.api_version,
    )


def _fence(builder: OutcomeBuilder, old: Member) -> None:
    # of two processes with one group.instance.id the later one wins; the earlier one gets an error
    if old.awaiting_join is not None:
        error = join_error_response(ErrorCode.FENCED_INSTANCE_ID, old.member_id, old.awaiting_join.api_version)
        builder.reply(old.awaiting_join.token, error)
    if old.awaiting_sync is not None:
        builder.reply(old.awaiting_sync.token, sync_error_response(ErrorCode.FENCED_INSTANCE_ID))


def replacement_stored(builder: OutcomeBuilder, group: ClassicGroup, stored: StoreReplacement) -> None:
    """Responds to the returning static member, unless a join phase has started since, which will respond."""
    member = _delayed_member(group, stored)
    if member is None:
        return
    group.take_awaiting_join(member)
    rebalance_events.add_assigned(builder, group)
    is_leader = group.leader_id == member.member_id
    if stored.api_version >= _SKIP_ASSIGNMENT_VERSION:
        response = join_response(
            group, member.member_id, group.leader_id or NO_LEADER, with_members=is_leader, skip_assignment=is_leader
        )
    else:
        # In older versions the leader would compute an assignment that the group does not use. With its former id as
        # the leader, it acts as a follower, and its SyncGroup returns its assignment.
        response = join_response(group, member.member_id, stored.old_leader_id, with_members=False)
    builder.reply(stored.token, response)


def replacement_failed(
    builder: OutcomeBuilder, group: ClassicGroup, stored: StoreReplacement, error: ErrorCode
) -> None:
    """Restores the former id, protocols and timeouts of a static member; the returning member gets the error."""
    if _delayed_member(group, stored) is None:
        return
    old = stored.old_member
    group.restore_static_member(old, stored.new_member_id, stored.old_leader_id)
    builder.cancel_timer(SessionTimer(group.group_id, stored.new_member_id))
    builder.set_timer(SessionTimer(group.group_id, old.member_id), old.session_timeout_ms)
    builder.reply(
        stored.token,
        join_error_response(
            error,
            UNKNOWN_MEMBER,
            stored.api_version,
            generation_id=group.generation_id,
            leader_id=stored.old_leader_id,
        ),
    )


def _delayed_member(group: ClassicGroup, stored: StoreReplacement) -> Member | None:
    """Returns the returning member if its JoinGroup is still delayed in the same generation."""
    if group.state is not STABLE or group.generation_id != stored.generation_id:
        return None
    member = group.members.get(stored.new_member_id)
    if member is None or member.awaiting_join is None or member.awaiting_join.token != stored.token:
        return None
    return member


def new_group_failed(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> None:
    """Removes the first member or pending member id of a group that could not be stored."""
    group.pending_joins.discard(member_id)
    if member_id in group.members:
        group.remove(member_id)
    builder.cancel_timer(SessionTimer(group.group_id, member_id))
    if not group.members and not group.pending_joins:
        builder.cancel_timer(JoinTimer(group.group_id))
        group.transition(DEAD, builder.instant.timestamp_ms)
