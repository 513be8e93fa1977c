"""What each answer of the coordinator means to a member, as tables: one row for an error code.

Pure data; `membership` acts on it, tests walk it.

Source: Kafka's AbstractCoordinator (handlers of JoinGroup, SyncGroup and Heartbeat answers).
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.errors import BrokerError, ErrorCode

FENCING: Mapping[int, str] = {
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced since (ILLEGAL_GENERATION)",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "the member was removed: its session or poll time-out passed, it left, or an operator removed it "
        "(UNKNOWN_MEMBER_ID)"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another process joined under the same group.instance.id (FENCED_INSTANCE_ID)",
}
"""Error code -> cause, for every answer that says: stop, your partitions are not yours any more."""


class Then(Enum):
    """What follows an answer."""

    GO_ON = "go on"
    REJOIN_NOW = "join again at once"
    REJOIN_LATER = "join again after the backoff"
    FAIL = "raise to the owner"
    BEAT_LATER = "beat again after the backoff"
    FENCED = "raise to the owner, and join afresh if it goes on"
    REBALANCE = "the group rebalances: the owner should let the member join"


class Reset(Enum):
    """What is forgotten; only where the generation is still the one the request was sent with."""

    NOTHING = "nothing"
    GENERATION = "generation"
    ALL = "generation and member id"


class Rule(NamedTuple):
    """Meaning of one error code in the answer to one request; `code` is set where we find fault with an answer."""

    then: Then
    reset: Reset = Reset.NOTHING
    lose_coordinator: bool = False
    code: int = ErrorCode.NONE


_MOVED_JOIN = Rule(Then.REJOIN_LATER, lose_coordinator=True)
_MOVED_BEAT = Rule(Then.BEAT_LATER, lose_coordinator=True)

JOIN_RULES: Mapping[int, Rule] = {
    ErrorCode.NONE: Rule(Then.GO_ON),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Rule(Then.REJOIN_LATER),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _MOVED_JOIN,
    ErrorCode.NOT_COORDINATOR: _MOVED_JOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: Rule(Then.REJOIN_NOW, Reset.ALL),
    ErrorCode.FENCED_INSTANCE_ID: Rule(Then.FENCED),
    ErrorCode.REBALANCE_IN_PROGRESS: Rule(Then.REJOIN_NOW),
    ErrorCode.MEMBER_ID_REQUIRED: Rule(Then.REJOIN_NOW),
}
"""JoinGroup: every other code is `Then.FAIL`."""

SYNC_RULES: Mapping[int, Rule] = {
    ErrorCode.NONE: Rule(Then.GO_ON),
    # Kafka's consumer gives up here and leaves polling again to the application; nobody polls again for a query
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Rule(Then.REJOIN_LATER),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _MOVED_JOIN,
    ErrorCode.NOT_COORDINATOR: _MOVED_JOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: Rule(Then.REJOIN_NOW, Reset.ALL),
    # the id may still be good, and keeping it saves the group from waiting for the old one to time out
    ErrorCode.ILLEGAL_GENERATION: Rule(Then.REJOIN_NOW, Reset.GENERATION),
    ErrorCode.FENCED_INSTANCE_ID: Rule(Then.FENCED),
    ErrorCode.REBALANCE_IN_PROGRESS: Rule(Then.REJOIN_NOW),
}
"""SyncGroup: every other code is `Then.FAIL`."""

HEARTBEAT_RULES: Mapping[int, Rule] = {
    ErrorCode.NONE: Rule(Then.GO_ON),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _MOVED_BEAT,
    ErrorCode.NOT_COORDINATOR: _MOVED_BEAT,
    ErrorCode.UNKNOWN_MEMBER_ID: Rule(Then.GO_ON, Reset.ALL),
    ErrorCode.ILLEGAL_GENERATION: Rule(Then.GO_ON, Reset.GENERATION),
    ErrorCode.FENCED_INSTANCE_ID: Rule(Then.FENCED, Reset.ALL),
    ErrorCode.REBALANCE_IN_PROGRESS: Rule(Then.REBALANCE),
}
"""Heartbeat: every other code is `Then.BEAT_LATER`."""

OTHER_PROTOCOL = Rule(Then.FAIL, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
"""An answer for another protocol type or assignor than was asked for."""

HINTS: Mapping[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "the other members share no assignor with this one; set kafka.partition.assignment.strategy to one of theirs"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "kafka.session.timeout.ms is outside the broker's group.min.session.timeout.ms to group.max.session.timeout.ms"
    ),
    ErrorCode.INVALID_GROUP_ID: "kafka.group.id is not valid",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as the broker's group.max.size; use fewer members",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the user may not READ this group; grant it",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for kafka.group.instance.id; unset it",
}
"""Error code -> mend, for those that a user can mend."""


def failure_of(group_id: str, request: str, code: int) -> BrokerError:
    """The error to raise for a code whose rule is `Then.FAIL`, with its mend where there is one."""
    hint = HINTS.get(code)
    return BrokerError(code, f"group {group_id}, {request}" + (f" ({hint})" if hint else ""))
