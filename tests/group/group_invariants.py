"""What holds of every group at every moment, whatever clients do and whatever the log refuses.

Used after each step of the state machine in `test_shard_properties.py` and after each event of the simulation.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping

from spark_groupsource.group import GroupTimer, JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.group.classic_group import ClassicGroup
from spark_groupsource.group.states import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE


def check_books(group: ClassicGroup) -> None:
    """The counters and maps say what the members say."""
    members = group.members
    assert group.awaiting_join_count == sum(
        m.awaiting_join is not None for m in members.values()
    ), "joined_count is wrong"
    statics = {m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None}
    assert group.static_members == statics, "static members are not those of the members"
    votes = Counter(name for member in members.values() for name in member.protocol_names)
    assert group._protocol_support == votes, "the support of the protocols is wrong"
    assert not group.pending_joins & members.keys(), "a pending id is a member"
    assert group.pending_syncs <= members.keys(), "somebody owes a SyncGroup who is no member"
    assert (group.leader_id in members) if members else group.leader_id is None, "the leader is no member"


def check_timers(group: ClassicGroup, timers: Mapping[GroupTimer, int]) -> None:
    """Nobody waits without an end."""
    group_id = group.group_id
    for member_id, member in group.members.items():
        assert SessionTimer(
            group_id, member_id
        ) in timers or member.has_satisfied_heartbeat, f"{member_id} has no session"
    for member_id in group.pending_joins:
        assert SessionTimer(group_id, member_id) in timers, f"pending {member_id} may stay for ever"
    assert (JoinTimer(group_id) in timers) is (
        group.state is PREPARING_REBALANCE
    ), "the join timer is not of the join phase"
    if group.pending_syncs and group.state in (COMPLETING_REBALANCE, STABLE):
        assert SyncTimer(group_id) in timers, "nobody waits for the SyncGroups that are owed"


def check_state(group: ClassicGroup, *, appends_pending: bool) -> None:
    """The state is what the members are doing; `appends_pending`: some decision waits for its records."""
    if group.state is EMPTY:
        assert not group.members, "an Empty group has members"
    if group.state is not PREPARING_REBALANCE and not appends_pending:
        assert group.awaiting_join_count == 0, "a JoinGroup is parked outside a join phase"
    if group.state is not COMPLETING_REBALANCE:
        assert not any(m.awaiting_sync for m in group.members.values()), "a SyncGroup is parked outside its phase"
    if group.state in (COMPLETING_REBALANCE, STABLE):
        assert group.members and group.protocol_name in group.candidate_protocols(), "the protocol is not everybody's"


def promised(group: ClassicGroup) -> object:
    """What a restart must find of a group that is Empty or Stable."""
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
