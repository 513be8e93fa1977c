"""The join phase: how it begins, when it is complete, and what a removed member and a failed store do to it.

Used by every handler that adds or removes a member. Knows the group, its members and the turn; sends no reply other
than those of parked requests.

Source: Kafka's GroupMetadataManager, `prepareRebalance` to `completeClassicGroupJoin`; DelayedJoin.
"""

from __future__ import annotations

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.answers import join_error, join_success, sync_error
from spark_groupsource.group.classic import UNKNOWN_MEMBER, ClassicGroup
from spark_groupsource.group.members import Member
from spark_groupsource.group.outcome import Turn
from spark_groupsource.group.states import COMPLETING, EMPTY, PREPARING, STABLE, can_rebalance
from spark_groupsource.group.timers import JoinTimer, SessionTimer, SyncTimer


def rebalance_or_complete(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Begins a join phase if the state allows it, else sees whether the running one is complete."""
    if can_rebalance(group.state):
        prepare_rebalance(turn, group, reason)
    else:
        maybe_complete_join(turn, group)


def prepare_rebalance(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Begins a join phase; from Empty it waits the initial delay, else for the members that are known."""
    if group.state is COMPLETING:
        reset_assignments(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
    turn.cancel_timer(SyncTimer(group.group_id))
    turn.event(
        "rebalance_started",
        group.group_id,
        f"Preparing to rebalance group {group.group_id} in state {group.state.value} with old generation "
        f"{group.generation_id} (__consumer_offsets-{turn.partition}) (reason: {reason})",
    )
    group.initial_phase = group.state is EMPTY
    group.transition(PREPARING, turn.timestamp_ms)
    if group.initial_phase:
        delay_ms = turn.config.group_initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        turn.set_timer(JoinTimer(group.group_id), delay_ms)
    elif group.all_have_joined:
        complete_join(turn, group)
    else:
        turn.set_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)


def maybe_complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Completes the join phase if everybody has joined; an initial one never ends before its delay."""
    if group.state is PREPARING and not group.initial_phase and group.all_have_joined:
        complete_join(turn, group)


def expire_join(turn: Turn, group: ClassicGroup) -> None:
    """The join timer has run out: one more window of the initial delay, or the end of the phase."""
    if group.state is not PREPARING:
        return
    if group.initial_phase and group.new_member_added and group.initial_remaining_ms:
        elapsed_ms = group.initial_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = min(turn.config.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - elapsed_ms, 0)
        turn.set_timer(JoinTimer(group.group_id), group.initial_delay_ms)
        return
    complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Ends the join phase with whoever has joined, or prolongs it if only silent static members are left."""
    group.initial_phase = False
    _remove_unjoined(turn, group)
    if group.members and not group.elect_joined_leader():
        turn.event(
            "rebalance_prolonged",
            group.group_id,
            f"Group {group.group_id} could not complete rebalance because no members rejoined",
        )
        turn.set_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)
        return
    turn.cancel_timer(JoinTimer(group.group_id))
    group.next_generation(turn.timestamp_ms)
    where = f"generation {group.generation_id} (__consumer_offsets-{turn.partition})"
    if not group.members:
        turn.event("group_emptied", group.group_id, f"Group {group.group_id} with {where} is now empty")
        turn.store_group(group.group_id, group.to_empty_value())
        return
    turn.event(
        "rebalance_stabilized",
        group.group_id,
        f"Stabilized group {group.group_id} {where} with {len(group.members)} members",
    )
    for member in group.members.values():
        parked = group.take_join(member)
        if parked is not None:
            turn.reply(parked.token, join_success(group, member.member_id))
        member.is_new = False
        turn.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)
        group.add_pending_sync(member.member_id)
    turn.set_timer(SyncTimer(group.group_id), group.rebalance_timeout_ms)


def _remove_unjoined(turn: Turn, group: ClassicGroup) -> None:
    # a static member keeps its place and its partitions until its session ends: that is what makes it static
    silent = [m.member_id for m in group.members.values() if m.parked_join is None and not m.is_static]
    if not silent:
        return
    for member_id in silent:
        remove_member(turn, group, member_id)
    turn.event(
        "members_not_rejoined",
        group.group_id,
        f"Group {group.group_id} removed dynamic members who haven't joined: {', '.join(silent)}",
    )


def remove_member(turn: Turn, group: ClassicGroup, member_id: str) -> Member:
    """Takes a member out and answers what it had parked with UNKNOWN_MEMBER_ID; the caller sees to the phase."""
    member = group.remove(member_id)
    turn.cancel_timer(SessionTimer(group.group_id, member_id))
    if member.parked_join is not None:
        version = member.parked_join.api_version
        turn.reply(member.parked_join.token, join_error(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER, version))
    if member.parked_sync is not None:
        turn.reply(member.parked_sync.token, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
    return member


def reset_assignments(turn: Turn, group: ClassicGroup, error: ErrorCode) -> None:
    """Empties every assignment and answers every parked SyncGroup with `error`. O(members)."""
    for member in group.members.values():
        member.assignment = b""
        if member.parked_sync is not None:
            turn.reply(member.parked_sync.token, sync_error(error))
            member.parked_sync = None
            turn.set_timer(SessionTimer(group.group_id, member.member_id), member.session_timeout_ms)


def settle_sync(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    """Notes that a member has sent its SyncGroup; after the last one nobody is waited for."""
    if member_id in group.pending_syncs:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            turn.cancel_timer(SyncTimer(group.group_id))


def expire_sync(turn: Turn, group: ClassicGroup) -> None:
    """Removes the members that got a JoinGroup answer and never sent SyncGroup."""
    if group.state not in (COMPLETING, STABLE) or not group.pending_syncs:
        return
    late = sorted(group.pending_syncs)
    for member_id in late:
        remove_member(turn, group, member_id)
    turn.event(
        "members_not_synced",
        group.group_id,
        f"Group {group.group_id} removed members who haven't sent their sync request: {', '.join(late)}",
    )
    prepare_rebalance(turn, group, f"removing {', '.join(late)} on pending sync request expiration")
