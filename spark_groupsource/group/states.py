"""The states of a classic group, who may follow whom, and what each state answers: as data.

Rules of this file:

* What a group answers in a state, and which state may follow, stands in these tables, and the handlers branch on
  them. Elsewhere a state is looked at only to put checks in order (Dead before members, Empty before generations),
  to run the phases (`rebalance.py`), to expire offsets, and to name it in a line or a description.
* The tables know no member, no generation and no timer. Checks on those come first, in the order of the handlers;
  what reaches a table is a request whose member and generation are right, or one that needs neither.

Theory. A generation lasts from one completed join phase to the next. The round:

    Empty ---first member---> PreparingRebalance ---all have joined, or time is up---> CompletingRebalance
      ^                        |     ^      ^                                              |        |
      +-----nobody is left-----+     |      +---member joined, left, failed, changed-------+        | leader's
                                     |                                                              | assignment
                                     +-----------------------Stable <-------------------------------+ is stored

`Dead` is what an operation may still meet when its group was removed or its partition moved away meanwhile.

A group's first join phase (from Empty) waits a fixed delay for company, every other one only for the members that
are known; nothing at all is written when a member joins. What the log knows is the last generation whose assignment
the leader delivered, so a coordinator that moves in the middle of a round resumes from there.

Version notes. `CompletingRebalance` was called `AwaitingSync` up to Kafka 1.0. A heartbeat in CompletingRebalance
answered REBALANCE_IN_PROGRESS up to 2.6. A Dead group answered UNKNOWN_MEMBER_ID up to 2.2.

Source: Kafka's ClassicGroupState, ClassicGroup and GroupMetadataManager.
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.errors import ErrorCode


class GroupState(Enum):
    """State of a classic group; the value is its name on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY = GroupState.EMPTY
PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

GROUP_TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    PREPARING_REBALANCE: frozenset({STABLE, COMPLETING_REBALANCE, EMPTY}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
    EMPTY: frozenset({PREPARING_REBALANCE}),
    DEAD: frozenset(GroupState),
}
"""state -> the states it may be entered from."""


class IllegalTransitionError(RuntimeError):
    """A group was to enter a state that cannot follow its present one: a bug in this package."""


def check_transition(group_id: str, state: GroupState, new_state: GroupState) -> None:
    """Raises IllegalTransition unless `new_state` may be entered from `state`."""
    if state not in GROUP_TRANSITIONS[new_state]:
        raise IllegalTransitionError(f"group {group_id} cannot go from {state.value} to {new_state.value}")


def can_rebalance(state: GroupState) -> bool:
    """Whether a join phase may begin: never inside one, so two never run at once."""
    return state in GROUP_TRANSITIONS[PREPARING_REBALANCE]


class GroupOperation(Enum):
    """What a client asks of a group, as far as the answers differ by state."""

    JOIN_NEW = "JoinGroup of a member the group does not know"
    JOIN_KNOWN = "JoinGroup of a member"
    REPLACE_STATIC = "JoinGroup without member id of a known group.instance.id"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT_MEMBER = "OffsetCommit of a member"
    COMMIT_SIMPLE = "OffsetCommit without generation and member"
    COMMIT_TRANSACTIONAL = "TxnOffsetCommit"
    FETCH = "OffsetFetch"
    DELETE_OFFSETS = "OffsetDelete of a consumer group"
    DELETE_OFFSETS_OTHER = "OffsetDelete of a group with another protocol type"
    DELETE_GROUP = "DeleteGroups"


class GroupAction(Enum):
    """What the coordinator does about it; the handlers have one branch for each."""

    REJECT = "answer the error"
    ADD_MEMBER = "add the member, park the join, begin a join phase unless one runs"
    AWAIT_JOIN = "park until the phase ends"
    RETURN_IF_UNCHANGED = "answer at once if the metadata is the same, else begin a join phase"
    RETURN_IF_UNCHANGED_FOLLOWER = "answer at once a follower whose metadata is the same, else begin a join phase"
    STORE_IF_PROTOCOL_KEPT = "store the new id if the protocol vote stays as it is, else begin a join phase"
    REBALANCE = "begin a join phase"
    BUG = "cannot happen: raise"
    AWAIT_SYNC = "park; the leader's assignment is stored"
    RETURN_ASSIGNMENT = "answer the stored assignment"
    ACCEPT = "do it"


class GroupRule(NamedTuple):
    """One cell: the action, the error it answers with, and whether it proves the member alive."""

    action: GroupAction
    error: ErrorCode = ErrorCode.NONE
    renews_session: bool = False


_ACCEPT = GroupRule(GroupAction.ACCEPT)
_ALIVE = GroupRule(GroupAction.ACCEPT, renews_session=True)
_UNKNOWN = GroupRule(GroupAction.REJECT, ErrorCode.UNKNOWN_MEMBER_ID)
_REBALANCING = GroupRule(GroupAction.REJECT, ErrorCode.REBALANCE_IN_PROGRESS)
_GONE = GroupRule(GroupAction.REJECT, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_FOUND = GroupRule(GroupAction.REJECT, ErrorCode.GROUP_ID_NOT_FOUND)
_NON_EMPTY = GroupRule(GroupAction.REJECT, ErrorCode.NON_EMPTY_GROUP)
_BUG = GroupRule(GroupAction.BUG)
_ADMIT = GroupRule(GroupAction.ADD_MEMBER)

GROUP_RULES: Mapping[GroupState, Mapping[GroupOperation, GroupRule]] = {
    EMPTY: {
        GroupOperation.JOIN_NEW: _ADMIT,
        GroupOperation.JOIN_KNOWN: _UNKNOWN,
        GroupOperation.REPLACE_STATIC: _BUG,
        GroupOperation.SYNC: _UNKNOWN,
        GroupOperation.HEARTBEAT: _UNKNOWN,
        GroupOperation.LEAVE: _ACCEPT,  # there are only pending ids to leave
        GroupOperation.COMMIT_MEMBER: _UNKNOWN,
        GroupOperation.COMMIT_SIMPLE: _ACCEPT,
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _ACCEPT,
        GroupOperation.DELETE_GROUP: _ACCEPT,
    },
    PREPARING_REBALANCE: {
        GroupOperation.JOIN_NEW: _ADMIT,
        GroupOperation.JOIN_KNOWN: GroupRule(GroupAction.AWAIT_JOIN),
        GroupOperation.REPLACE_STATIC: GroupRule(GroupAction.AWAIT_JOIN),
        GroupOperation.SYNC: _REBALANCING,
        # the member is alive and has to know that it must rejoin
        GroupOperation.HEARTBEAT: GroupRule(GroupAction.REJECT, ErrorCode.REBALANCE_IN_PROGRESS, renews_session=True),
        GroupOperation.LEAVE: _ACCEPT,
        # members commit what they have before they rejoin: the old generation is still good
        GroupOperation.COMMIT_MEMBER: _ALIVE,
        GroupOperation.COMMIT_SIMPLE: _UNKNOWN,
        # its producer is fenced by its epoch, which outlasts a rebalance
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        GroupOperation.DELETE_GROUP: _NON_EMPTY,
    },
    COMPLETING_REBALANCE: {
        GroupOperation.JOIN_NEW: _ADMIT,
        # unchanged: its answer was lost and it asks again
        GroupOperation.JOIN_KNOWN: GroupRule(GroupAction.RETURN_IF_UNCHANGED),
        # the leader may already be computing with the old id
        GroupOperation.REPLACE_STATIC: GroupRule(GroupAction.REBALANCE),
        GroupOperation.SYNC: GroupRule(GroupAction.AWAIT_SYNC),
        GroupOperation.HEARTBEAT: _ALIVE,
        GroupOperation.LEAVE: _ACCEPT,
        GroupOperation.COMMIT_MEMBER: _REBALANCING,
        GroupOperation.COMMIT_SIMPLE: _UNKNOWN,
        # its producer is fenced by its epoch, which outlasts a rebalance
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        GroupOperation.DELETE_GROUP: _NON_EMPTY,
    },
    STABLE: {
        GroupOperation.JOIN_NEW: _ADMIT,
        # the leader's join is how it asks for a rebalance after a change of topic metadata
        GroupOperation.JOIN_KNOWN: GroupRule(GroupAction.RETURN_IF_UNCHANGED_FOLLOWER),
        GroupOperation.REPLACE_STATIC: GroupRule(GroupAction.STORE_IF_PROTOCOL_KEPT),
        GroupOperation.SYNC: GroupRule(GroupAction.RETURN_ASSIGNMENT, renews_session=True),
        GroupOperation.HEARTBEAT: _ALIVE,
        GroupOperation.LEAVE: _ACCEPT,
        GroupOperation.COMMIT_MEMBER: _ALIVE,
        GroupOperation.COMMIT_SIMPLE: _UNKNOWN,
        # its producer is fenced by its epoch, which outlasts a rebalance
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        GroupOperation.DELETE_GROUP: _NON_EMPTY,
    },
    DEAD: {
        GroupOperation.JOIN_NEW: _GONE,
        GroupOperation.JOIN_KNOWN: _GONE,
        GroupOperation.REPLACE_STATIC: _GONE,
        GroupOperation.SYNC: _GONE,
        GroupOperation.HEARTBEAT: _GONE,
        GroupOperation.LEAVE: _GONE,
        GroupOperation.COMMIT_MEMBER: _GONE,
        GroupOperation.COMMIT_SIMPLE: _GONE,
        GroupOperation.COMMIT_TRANSACTIONAL: _GONE,
        GroupOperation.FETCH: _ACCEPT,  # every offset is -1
        GroupOperation.DELETE_OFFSETS: _NOT_FOUND,
        GroupOperation.DELETE_OFFSETS_OTHER: _NOT_FOUND,
        GroupOperation.DELETE_GROUP: _NOT_FOUND,
    },
}
"""state -> ask -> answer; complete."""
