"""State tables of a classic group: transitions and rules of operations.

The tables map the state of a group and an operation to an action; the handlers branch on the tables. Other
modules look at a state only to order checks (Dead before members, Empty before generations), to run the join phase
(`group_rebalance.py`), to expire offsets, and for descriptions and log lines. The tables contain no member, generation
or timer: the handlers check those first.

A generation lasts from one completed join phase to the next:

    Empty ---first member---> PreparingRebalance ---all joined, or join timer----> CompletingRebalance
      ^                        |     ^      ^                                          |        |
      +-------no members-------+     |      +--member joined, left, failed, changed----+        | assignment of the
                                     |                                                          | leader is stored
                                     +---------------------Stable <----------------------------+

A Dead group was removed, or its shard was unloaded, while an operation was in progress.

The first join phase of a group (from Empty) waits for the initial rebalance delay, any other one only for the known
members. A joining member writes no record: the log has the last generation whose assignment was stored, and a
coordinator that is loaded during a rebalance continues from that generation.

Version notes. `CompletingRebalance` was called `AwaitingSync` up to Kafka 1.0. Heartbeat in CompletingRebalance
returned REBALANCE_IN_PROGRESS up to Kafka 2.6. A Dead group returned UNKNOWN_MEMBER_ID up to Kafka 2.2.

Source: Kafka's ClassicGroupState, ClassicGroup and GroupMetadataManager.
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.broker.state_transitions import Transitions
from spark_groupsource.errors import ErrorCode


class GroupState(Enum):
    """State of a classic group; the value is its name in responses."""

    __hash__ = object.__hash__  # that of Enum is a Python function, and each request looks up states and operations
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

GROUP_TRANSITIONS: Transitions[GroupState] = {
    PREPARING_REBALANCE: frozenset({STABLE, COMPLETING_REBALANCE, EMPTY}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
    EMPTY: frozenset({PREPARING_REBALANCE}),
    DEAD: frozenset(GroupState),
}


def can_rebalance(state: GroupState) -> bool:
    """Returns whether a join phase may start; never during another one."""
    return state in GROUP_TRANSITIONS[PREPARING_REBALANCE]


class GroupOperation(Enum):
    """Operations on a group, distinguished as far as their rules differ."""

    __hash__ = object.__hash__
    JOIN_NEW = "JoinGroup of a new member"
    JOIN_KNOWN = "JoinGroup of an existing member"
    REPLACE_STATIC = "JoinGroup of an existing group.instance.id without member id"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT_MEMBER = "OffsetCommit of a member"
    COMMIT_SIMPLE = "OffsetCommit without generation and member id"
    COMMIT_TRANSACTIONAL = "TxnOffsetCommit"
    FETCH = "OffsetFetch"
    DELETE_OFFSETS = "OffsetDelete of a consumer group"
    DELETE_OFFSETS_OTHER = "OffsetDelete of a group with another protocol type"
    DELETE_GROUP = "DeleteGroups"


class GroupAction(Enum):
    """Reaction of the coordinator to an operation."""

    REJECT = "return the error"
    ADD_MEMBER = "add the member, delay the response, start a join phase unless one is running"
    AWAIT_JOIN = "delay the response until the join phase completes"
    RETURN_IF_UNCHANGED = "return the generation if the metadata is unchanged, else start a join phase"
    RETURN_IF_UNCHANGED_FOLLOWER = "return the generation to an unchanged follower, else start a join phase"
    STORE_IF_PROTOCOL_KEPT = "store the new member id if the selected protocol stays the same, else start a join phase"
    REBALANCE = "start a join phase"
    BUG = "raise an error; cannot happen"
    AWAIT_SYNC = "delay the response; store the assignment if the leader sent it"
    RETURN_ASSIGNMENT = "return the stored assignment"
    ACCEPT = "perform the operation"


class GroupRule(NamedTuple):
    """Action for an operation, its error, and whether the operation renews the member's session."""

    action: GroupAction
    error: ErrorCode = ErrorCode.NONE
    renews_session: bool = False


_ACCEPT = GroupRule(GroupAction.ACCEPT)
_RENEW = GroupRule(GroupAction.ACCEPT, renews_session=True)
_UNKNOWN_MEMBER = GroupRule(GroupAction.REJECT, ErrorCode.UNKNOWN_MEMBER_ID)
_REBALANCING = GroupRule(GroupAction.REJECT, ErrorCode.REBALANCE_IN_PROGRESS)
_NOT_AVAILABLE = GroupRule(GroupAction.REJECT, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_FOUND = GroupRule(GroupAction.REJECT, ErrorCode.GROUP_ID_NOT_FOUND)
_NON_EMPTY = GroupRule(GroupAction.REJECT, ErrorCode.NON_EMPTY_GROUP)
_BUG = GroupRule(GroupAction.BUG)
_ADD_MEMBER = GroupRule(GroupAction.ADD_MEMBER)

GROUP_RULES: Mapping[GroupState, Mapping[GroupOperation, GroupRule]] = {
    EMPTY: {
        GroupOperation.JOIN_NEW: _ADD_MEMBER,
        GroupOperation.JOIN_KNOWN: _UNKNOWN_MEMBER,
        GroupOperation.REPLACE_STATIC: _BUG,
        GroupOperation.SYNC: _UNKNOWN_MEMBER,
        GroupOperation.HEARTBEAT: _UNKNOWN_MEMBER,
        GroupOperation.LEAVE: _ACCEPT,  # an Empty group may have pending member ids
        GroupOperation.COMMIT_MEMBER: _UNKNOWN_MEMBER,
        GroupOperation.COMMIT_SIMPLE: _ACCEPT,
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _ACCEPT,
        GroupOperation.DELETE_GROUP: _ACCEPT,
    },
    PREPARING_REBALANCE: {
        GroupOperation.JOIN_NEW: _ADD_MEMBER,
        GroupOperation.JOIN_KNOWN: GroupRule(GroupAction.AWAIT_JOIN),
        GroupOperation.REPLACE_STATIC: GroupRule(GroupAction.AWAIT_JOIN),
        GroupOperation.SYNC: _REBALANCING,
        # the session is renewed, and the error makes the member rejoin
        GroupOperation.HEARTBEAT: GroupRule(GroupAction.REJECT, ErrorCode.REBALANCE_IN_PROGRESS, renews_session=True),
        GroupOperation.LEAVE: _ACCEPT,
        # members commit before they rejoin, with the generation that they have
        GroupOperation.COMMIT_MEMBER: _RENEW,
        GroupOperation.COMMIT_SIMPLE: _UNKNOWN_MEMBER,
        # the producer is fenced by its epoch, which a rebalance does not change
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        GroupOperation.DELETE_GROUP: _NON_EMPTY,
    },
    COMPLETING_REBALANCE: {
        GroupOperation.JOIN_NEW: _ADD_MEMBER,
        # unchanged: a retry after the response was lost
        GroupOperation.JOIN_KNOWN: GroupRule(GroupAction.RETURN_IF_UNCHANGED),
        # the leader may be computing the assignment with the former member id
        GroupOperation.REPLACE_STATIC: GroupRule(GroupAction.REBALANCE),
        GroupOperation.SYNC: GroupRule(GroupAction.AWAIT_SYNC),
        GroupOperation.HEARTBEAT: _RENEW,
        GroupOperation.LEAVE: _ACCEPT,
        GroupOperation.COMMIT_MEMBER: _REBALANCING,
        GroupOperation.COMMIT_SIMPLE: _UNKNOWN_MEMBER,
        # the producer is fenced by its epoch, which a rebalance does not change
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        GroupOperation.DELETE_GROUP: _NON_EMPTY,
    },
    STABLE: {
        GroupOperation.JOIN_NEW: _ADD_MEMBER,
        # the leader rejoins to request a rebalance after a change of topic metadata
        GroupOperation.JOIN_KNOWN: GroupRule(GroupAction.RETURN_IF_UNCHANGED_FOLLOWER),
        GroupOperation.REPLACE_STATIC: GroupRule(GroupAction.STORE_IF_PROTOCOL_KEPT),
        # the session is not renewed, as in GroupMetadataManager of Kafka 4; the coordinator of Kafka 3 renewed it
        GroupOperation.SYNC: GroupRule(GroupAction.RETURN_ASSIGNMENT),
        GroupOperation.HEARTBEAT: _RENEW,
        GroupOperation.LEAVE: _ACCEPT,
        GroupOperation.COMMIT_MEMBER: _RENEW,
        GroupOperation.COMMIT_SIMPLE: _UNKNOWN_MEMBER,
        # the producer is fenced by its epoch, which a rebalance does not change
        GroupOperation.COMMIT_TRANSACTIONAL: _ACCEPT,
        GroupOperation.FETCH: _ACCEPT,
        GroupOperation.DELETE_OFFSETS: _ACCEPT,
        GroupOperation.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        GroupOperation.DELETE_GROUP: _NON_EMPTY,
    },
    DEAD: {
        GroupOperation.JOIN_NEW: _NOT_AVAILABLE,
        GroupOperation.JOIN_KNOWN: _NOT_AVAILABLE,
        GroupOperation.REPLACE_STATIC: _NOT_AVAILABLE,
        GroupOperation.SYNC: _NOT_AVAILABLE,
        GroupOperation.HEARTBEAT: _NOT_AVAILABLE,
        GroupOperation.LEAVE: _NOT_AVAILABLE,
        GroupOperation.COMMIT_MEMBER: _NOT_AVAILABLE,
        GroupOperation.COMMIT_SIMPLE: _NOT_AVAILABLE,
        GroupOperation.COMMIT_TRANSACTIONAL: _NOT_AVAILABLE,
        GroupOperation.FETCH: _ACCEPT,  # returns offset -1 for every partition
        GroupOperation.DELETE_OFFSETS: _NOT_FOUND,
        GroupOperation.DELETE_OFFSETS_OTHER: _NOT_FOUND,
        GroupOperation.DELETE_GROUP: _NOT_FOUND,
    },
}
"""State -> operation -> rule; complete."""
