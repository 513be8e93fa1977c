"""Invariants of a group that hold at every moment.

`test_shard_properties.py` checks them after each step, the simulation after each event.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping

from spark_groupsource.broker.group import GroupTimer, JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE


def check_counters(group: ClassicGroup) -> None:
    """Checks the counters and maps against the members."""
    members = group.members
    assert group.awaiting_join_count == sum(
        m.awaiting_join is not None for m in members.values()
    ), "awaiting_join_count is wrong"
    statics = {m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None}
    assert group.static_members == statics, "static members are not those of the members"
    votes = Counter(name for member in members.values() for name in member.protocol_names)
    assert group.protocol_support == votes, "the protocol support is wrong"
    assert not group.pending_joins & members.keys(), "a pending id is a member"
    assert group.pending_syncs <= members.keys(), "a pending sync is not a member"
    assert (group.leader_id in members) if members else group.leader_id is None, "the leader is not a member"


def check_timers(group: ClassicGroup, timers: Mapping[GroupTimer, int]) -> None:
    """Checks that every wait has a timer."""
    group_id = group.group_id
    for member_id, member in group.members.items():
        assert SessionTimer(
            group_id, member_id
        ) in timers or member.has_satisfied_heartbeat, f"{member_id} has no session"
    for member_id in group.pending_joins:
        assert SessionTimer(group_id, member_id) in timers, f"pending {member_id} has no timer"
    assert (JoinTimer(group_id) in timers) is (
        group.state is PREPARING_REBALANCE
    ), "the join timer and the join phase differ"
    if group.pending_syncs and group.state in (COMPLETING_REBALANCE, STABLE):
        assert SyncTimer(group_id) in timers, "pending syncs have no timer"


def check_state(group: ClassicGroup, *, appends_pending: bool) -> None:
    """Checks the state against the members; `appends_pending`: an outcome waits for its append."""
    if group.state is EMPTY:
        assert not group.members, "an Empty group has members"
    if group.state is not PREPARING_REBALANCE and not appends_pending:
        assert group.awaiting_join_count == 0, "a JoinGroup is delayed outside a join phase"
    if group.state is not COMPLETING_REBALANCE:
        assert not any(
            m.awaiting_sync for m in group.members.values()
        ), "a SyncGroup is delayed outside CompletingRebalance"
    if group.state in (COMPLETING_REBALANCE, STABLE):
        assert group.members and group.protocol_name in group.candidate_protocols(), "a member lacks the protocol"


def persistent_state(group: ClassicGroup) -> object:
    """Returns the state that a restart must restore of an Empty or Stable group."""
    members = {m.member_id: (m.group_instance_id, m.assignment, m.session_timeout_ms) for m in group.members.values()}
    return (
        group.state,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        group.static_members,
        members,
    )
