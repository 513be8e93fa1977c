"""Join phase of a rebalance: start, completion, timeouts, removal of members.

Every handler that adds or removes members uses these functions. They send no responses other than those of delayed
requests.

Source: Kafka's GroupMetadataManager, `prepareRebalance` to `completeClassicGroupJoin`; DelayedJoin.
"""

from __future__ import annotations

from spark_groupsource.broker.group import rebalance_events
from spark_groupsource.broker.group.classic_group import UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.broker.group.group_states import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    can_rebalance,
)
from spark_groupsource.broker.group.group_timers import JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.broker.group.members import Member
from spark_groupsource.broker.group.outcome import OutcomeBuilder
from spark_groupsource.broker.group.rebalance_events import Trigger
from spark_groupsource.broker.group.responses import join_error_response, join_success, sync_error_response
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import bounded_names
from spark_groupsource.wire.group_events import Cause


def rebalance_or_complete(builder: OutcomeBuilder, group: ClassicGroup, reason: str, trigger: Trigger) -> None:
    """Starts a join phase if the state allows it, else completes the current one if all members have joined."""
    if can_rebalance(group.state):
        prepare_rebalance(builder, group, reason, trigger)
    else:
        maybe_complete_join(builder, group)


def prepare_rebalance(builder: OutcomeBuilder, group: ClassicGroup, reason: str, trigger: Trigger) -> None:
    """Starts a join phase; from Empty it waits for the initial rebalance delay, else for the known members."""
    if group.state is COMPLETING_REBALANCE:
        reset_assignments(builder, group, ErrorCode.REBALANCE_IN_PROGRESS)
    builder.cancel_timer(SyncTimer(group.group_id))
    builder.log(
        "rebalance_started",
        group.group_id,
        f"Preparing to rebalance group {group.group_id} in state {group.state.value} with old generation "
        f"{group.generation_id} (__consumer_offsets-{builder.partition}) (reason: {reason})",
    )
    rebalance_events.add_started(builder, group, trigger)
    group.is_initial_rebalance = group.state is EMPTY
    group.transition(PREPARING_REBALANCE, builder.instant.timestamp_ms)
    if group.is_initial_rebalance:
        delay_ms = builder.config.group_initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        builder.set_timer(JoinTimer(group.group_id), delay_ms)
    elif group.has_all_members_joined:
        complete_join(builder, group)
    else:
        builder.set_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)


def maybe_complete_join(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    """Completes the join phase if all members have joined; the initial one never ends before its delay."""
    if group.state is PREPARING_REBALANCE and not group.is_initial_rebalance and group.has_all_members_joined:
        complete_join(builder, group)


def expire_join(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    """Handles the join timer: starts another window of the initial rebalance delay, or ends the join phase."""
    if group.state is not PREPARING_REBALANCE:
        return
    if group.is_initial_rebalance and group.new_member_added and group.initial_remaining_ms:
        elapsed_ms = group.initial_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = min(builder.config.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - elapsed_ms, 0)
        builder.set_timer(JoinTimer(group.group_id), group.initial_delay_ms)
        return
    complete_join(builder, group)


def complete_join(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    """Ends the join phase with the members that have joined; extends it if only static members are left."""
    group.is_initial_rebalance = False
    _remove_unjoined(builder, group)
    if group.members and not group.maybe_elect_joined_leader():
        builder.log(
            "rebalance_prolonged",
            group.group_id,
            f"Group {group.group_id} could not complete rebalance because no members rejoined",
        )
        builder.set_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)
        return
    builder.cancel_timer(JoinTimer(group.group_id))
    group.init_next_generation(builder.instant.timestamp_ms)
    rebalance_events.add_join_completed(builder, group)
    generation = f"generation {group.generation_id} (__consumer_offsets-{builder.partition})"
    if not group.members:
        builder.log("group_emptied", group.group_id, f"Group {group.group_id} with {generation} is now empty")
        builder.store_group(group.group_id, group.to_empty_value())
        return
    builder.log(
        "rebalance_stabilized",
        group.group_id,
        f"Stabilized group {group.group_id} {generation} with {len(group.members)} members",
    )
    for member in group.members.values():
        delayed = group.take_awaiting_join(member)
        if delayed is not None:
            builder.reply(delayed.token, join_success(group, member.member_id))
        member.is_new = False
        builder.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)
        group.add_pending_sync(member.member_id)
    builder.set_timer(SyncTimer(group.group_id), group.rebalance_timeout_ms)


def _remove_unjoined(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    # a static member keeps its partitions until its session expires
    absent = [m.member_id for m in group.members.values() if m.awaiting_join is None and not m.is_static]
    if not absent:
        return
    for member_id in absent:
        _remove_late(builder, group, member_id)
    builder.log(
        "members_not_rejoined",
        group.group_id,
        f"Group {group.group_id} removed dynamic members who haven't joined: {bounded_names(absent)}",
    )


def _remove_late(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> Member:
    member = remove_member(builder, group, member_id)
    rebalance_events.add_left(builder, group, Trigger(Cause.JOIN_TIMED_OUT, member), is_expired=True)
    return member


def remove_member(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> Member:
    """Removes a member; its delayed requests get UNKNOWN_MEMBER_ID. The caller starts or completes the join phase."""
    member = group.remove(member_id)
    builder.cancel_timer(SessionTimer(group.group_id, member_id))
    if member.awaiting_join is not None:
        version = member.awaiting_join.api_version
        builder.reply(
            member.awaiting_join.token, join_error_response(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER, version)
        )
    if member.awaiting_sync is not None:
        builder.reply(member.awaiting_sync.token, sync_error_response(ErrorCode.UNKNOWN_MEMBER_ID))
    return member


def reset_assignments(builder: OutcomeBuilder, group: ClassicGroup, error: ErrorCode) -> None:
    """Clears all assignments; every delayed SyncGroup gets `error`. O(members)."""
    for member in group.members.values():
        member.assignment = b""
        if member.awaiting_sync is not None:
            builder.reply(member.awaiting_sync.token, sync_error_response(error))
            member.awaiting_sync = None
            builder.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)


def remove_pending_sync(builder: OutcomeBuilder, group: ClassicGroup, member_id: str) -> None:
    """Records that a member has sent SyncGroup; cancels the sync timer after the last one."""
    if member_id in group.pending_syncs:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            builder.cancel_timer(SyncTimer(group.group_id))


def expire_sync(builder: OutcomeBuilder, group: ClassicGroup) -> None:
    """Removes the members that have not sent SyncGroup since the join phase."""
    if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_syncs:
        return
    late = sorted(group.pending_syncs)
    removed = [_remove_late(builder, group, member_id) for member_id in late]
    builder.log(
        "members_not_synced",
        group.group_id,
        f"Group {group.group_id} removed members who haven't sent their sync request: {bounded_names(late)}",
    )
    reason = f"removing {bounded_names(late)} on pending sync request expiration"
    prepare_rebalance(builder, group, reason, Trigger(Cause.JOIN_TIMED_OUT, removed[0]))
