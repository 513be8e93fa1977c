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
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    PREPARING: frozenset({STABLE, COMPLETING, EMPTY}),
    COMPLETING: frozenset({PREPARING}),
    STABLE: frozenset({COMPLETING}),
    EMPTY: frozenset({PREPARING}),
    DEAD: frozenset(GroupState),
}
"""state -> the states it may be entered from."""


class IllegalTransition(RuntimeError):
    """A group was to enter a state that cannot follow its present one: a bug in this package."""


def check_transition(group_id: str, state: GroupState, new_state: GroupState) -> None:
    """Raises IllegalTransition unless `new_state` may be entered from `state`."""
    if state not in TRANSITIONS[new_state]:
        raise IllegalTransition(f"group {group_id} cannot go from {state.value} to {new_state.value}")


def can_rebalance(state: GroupState) -> bool:
    """Whether a join phase may begin: never inside one, so two never run at once."""
    return state in TRANSITIONS[PREPARING]


class Ask(Enum):
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


class Action(Enum):
    """What the coordinator does about it; the handlers have one branch for each."""

    REFUSE = "answer the error"
    ADMIT = "add the member, park the join, begin a join phase unless one runs"
    PARK = "park until the phase ends"
    ANSWER_UNCHANGED = "answer at once if the metadata is the same, else begin a join phase"
    ANSWER_UNCHANGED_FOLLOWER = "answer at once a follower whose metadata is the same, else begin a join phase"
    KEEP_VOTE = "store the new id if the protocol vote stays as it is, else begin a join phase"
    REBALANCE = "begin a join phase"
    BUG = "cannot happen: raise"
    COLLECT = "park; the leader's assignment is stored"
    HAND_OUT = "answer the stored assignment"
    ACCEPT = "do it"


class Answer(NamedTuple):
    """One cell: the action, the error it answers with, and whether it proves the member alive."""

    action: Action
    error: ErrorCode = ErrorCode.NONE
    renews_session: bool = False


_ACCEPT = Answer(Action.ACCEPT)
_ALIVE = Answer(Action.ACCEPT, renews_session=True)
_UNKNOWN = Answer(Action.REFUSE, ErrorCode.UNKNOWN_MEMBER_ID)
_REBALANCING = Answer(Action.REFUSE, ErrorCode.REBALANCE_IN_PROGRESS)
_GONE = Answer(Action.REFUSE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_FOUND = Answer(Action.REFUSE, ErrorCode.GROUP_ID_NOT_FOUND)
_NON_EMPTY = Answer(Action.REFUSE, ErrorCode.NON_EMPTY_GROUP)
_BUG = Answer(Action.BUG)
_ADMIT = Answer(Action.ADMIT)

REPLIES: Mapping[GroupState, Mapping[Ask, Answer]] = {
    EMPTY: {
        Ask.JOIN_NEW: _ADMIT,
        Ask.JOIN_KNOWN: _UNKNOWN,
        Ask.REPLACE_STATIC: _BUG,
        Ask.SYNC: _UNKNOWN,
        Ask.HEARTBEAT: _UNKNOWN,
        Ask.LEAVE: _ACCEPT,  # there are only pending ids to leave
        Ask.COMMIT_MEMBER: _UNKNOWN,
        Ask.COMMIT_SIMPLE: _ACCEPT,
        Ask.COMMIT_TRANSACTIONAL: _ACCEPT,
        Ask.FETCH: _ACCEPT,
        Ask.DELETE_OFFSETS: _ACCEPT,
        Ask.DELETE_OFFSETS_OTHER: _ACCEPT,
        Ask.DELETE_GROUP: _ACCEPT,
    },
    PREPARING: {
        Ask.JOIN_NEW: _ADMIT,
        Ask.JOIN_KNOWN: Answer(Action.PARK),
        Ask.REPLACE_STATIC: Answer(Action.PARK),
        Ask.SYNC: _REBALANCING,
        # the member is alive and has to know that it must rejoin
        Ask.HEARTBEAT: Answer(Action.REFUSE, ErrorCode.REBALANCE_IN_PROGRESS, renews_session=True),
        Ask.LEAVE: _ACCEPT,
        # members commit what they have before they rejoin: the old generation is still good
        Ask.COMMIT_MEMBER: _ALIVE,
        Ask.COMMIT_SIMPLE: _UNKNOWN,
        # its producer is fenced by its epoch, which outlasts a rebalance
        Ask.COMMIT_TRANSACTIONAL: _ACCEPT,
        Ask.FETCH: _ACCEPT,
        Ask.DELETE_OFFSETS: _ACCEPT,
        Ask.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        Ask.DELETE_GROUP: _NON_EMPTY,
    },
    COMPLETING: {
        Ask.JOIN_NEW: _ADMIT,
        # unchanged: its answer was lost and it asks again
        Ask.JOIN_KNOWN: Answer(Action.ANSWER_UNCHANGED),
        # the leader may already be computing with the old id
        Ask.REPLACE_STATIC: Answer(Action.REBALANCE),
        Ask.SYNC: Answer(Action.COLLECT),
        Ask.HEARTBEAT: _ALIVE,
        Ask.LEAVE: _ACCEPT,
        Ask.COMMIT_MEMBER: _REBALANCING,
        Ask.COMMIT_SIMPLE: _UNKNOWN,
        # its producer is fenced by its epoch, which outlasts a rebalance
        Ask.COMMIT_TRANSACTIONAL: _ACCEPT,
        Ask.FETCH: _ACCEPT,
        Ask.DELETE_OFFSETS: _ACCEPT,
        Ask.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        Ask.DELETE_GROUP: _NON_EMPTY,
    },
    STABLE: {
        Ask.JOIN_NEW: _ADMIT,
        # the leader's join is how it asks for a rebalance after a change of topic metadata
        Ask.JOIN_KNOWN: Answer(Action.ANSWER_UNCHANGED_FOLLOWER),
        Ask.REPLACE_STATIC: Answer(Action.KEEP_VOTE),
        Ask.SYNC: Answer(Action.HAND_OUT, renews_session=True),
        Ask.HEARTBEAT: _ALIVE,
        Ask.LEAVE: _ACCEPT,
        Ask.COMMIT_MEMBER: _ALIVE,
        Ask.COMMIT_SIMPLE: _UNKNOWN,
        # its producer is fenced by its epoch, which outlasts a rebalance
        Ask.COMMIT_TRANSACTIONAL: _ACCEPT,
        Ask.FETCH: _ACCEPT,
        Ask.DELETE_OFFSETS: _ACCEPT,
        Ask.DELETE_OFFSETS_OTHER: _NON_EMPTY,
        Ask.DELETE_GROUP: _NON_EMPTY,
    },
    DEAD: {
        Ask.JOIN_NEW: _GONE,
        Ask.JOIN_KNOWN: _GONE,
        Ask.REPLACE_STATIC: _GONE,
        Ask.SYNC: _GONE,
        Ask.HEARTBEAT: _GONE,
        Ask.LEAVE: _GONE,
        Ask.COMMIT_MEMBER: _GONE,
        Ask.COMMIT_SIMPLE: _GONE,
        Ask.COMMIT_TRANSACTIONAL: _GONE,
        Ask.FETCH: _ACCEPT,  # every offset is -1
        Ask.DELETE_OFFSETS: _NOT_FOUND,
        Ask.DELETE_OFFSETS_OTHER: _NOT_FOUND,
        Ask.DELETE_GROUP: _NOT_FOUND,
    },
}
"""state -> ask -> answer; complete."""
