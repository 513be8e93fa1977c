"""What each answer of the coordinator means to a member, as tables: one row for an error code.

Pure data; `membership` acts on it, tests walk it.

Source: Kafka's AbstractCoordinator (handlers of JoinGroup, SyncGroup and Heartbeat answers).
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.errors import BrokerError, ErrorCode


class Reaction(Enum):
    """What follows an answer."""

    CONTINUE = "go on"
    REJOIN = "join again at once"
    REJOIN_AFTER_BACKOFF = "join again after the backoff"
    FAIL = "raise to the owner"
    RETRY_HEARTBEAT = "beat again after the backoff"
    FENCED = "raise to the owner, and join afresh if it goes on"
    REBALANCE = "the group rebalances: the owner should let the member join"


class Reset(Enum):
    """What is forgotten; only where the generation is still the one the request was sent with."""

    NOTHING = "nothing"
    GENERATION = "generation"
    ALL = "generation and member id"


class ResponseRule(NamedTuple):
    """Meaning of one error code in the answer to one request; `code` is set where we find fault with an answer."""

    reaction: Reaction
    reset: Reset = Reset.NOTHING
    mark_coordinator_unknown: bool = False
    code: int = ErrorCode.NONE


_MOVED_JOIN = ResponseRule(Reaction.REJOIN_AFTER_BACKOFF, mark_coordinator_unknown=True)
_MOVED_BEAT = ResponseRule(Reaction.RETRY_HEARTBEAT, mark_coordinator_unknown=True)

JOIN_RULES: Mapping[int, ResponseRule] = {
    ErrorCode.NONE: ResponseRule(Reaction.CONTINUE),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ResponseRule(Reaction.REJOIN_AFTER_BACKOFF),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _MOVED_JOIN,
    ErrorCode.NOT_COORDINATOR: _MOVED_JOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: ResponseRule(Reaction.REJOIN, Reset.ALL),
    ErrorCode.FENCED_INSTANCE_ID: ResponseRule(Reaction.FENCED),
    ErrorCode.REBALANCE_IN_PROGRESS: ResponseRule(Reaction.REJOIN),
    ErrorCode.MEMBER_ID_REQUIRED: ResponseRule(Reaction.REJOIN),
}
"""JoinGroup: every other code is `Reaction.FAIL`."""

SYNC_RULES: Mapping[int, ResponseRule] = {
    ErrorCode.NONE: ResponseRule(Reaction.CONTINUE),
    # Kafka's consumer gives up here and leaves polling again to the application; nobody polls again for a query
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ResponseRule(Reaction.REJOIN_AFTER_BACKOFF),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _MOVED_JOIN,
    ErrorCode.NOT_COORDINATOR: _MOVED_JOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: ResponseRule(Reaction.REJOIN, Reset.ALL),
    # the id may still be good, and keeping it saves the group from waiting for the old one to time out
    ErrorCode.ILLEGAL_GENERATION: ResponseRule(Reaction.REJOIN, Reset.GENERATION),
    ErrorCode.FENCED_INSTANCE_ID: ResponseRule(Reaction.FENCED),
    ErrorCode.REBALANCE_IN_PROGRESS: ResponseRule(Reaction.REJOIN),
}
"""SyncGroup: every other code is `Reaction.FAIL`."""

HEARTBEAT_RULES: Mapping[int, ResponseRule] = {
    ErrorCode.NONE: ResponseRule(Reaction.CONTINUE),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _MOVED_BEAT,
    ErrorCode.NOT_COORDINATOR: _MOVED_BEAT,
    ErrorCode.UNKNOWN_MEMBER_ID: ResponseRule(Reaction.CONTINUE, Reset.ALL),
    ErrorCode.ILLEGAL_GENERATION: ResponseRule(Reaction.CONTINUE, Reset.GENERATION),
    ErrorCode.FENCED_INSTANCE_ID: ResponseRule(Reaction.FENCED, Reset.ALL),
    ErrorCode.REBALANCE_IN_PROGRESS: ResponseRule(Reaction.REBALANCE),
}
"""Heartbeat: every other code is `Reaction.RETRY_HEARTBEAT`."""

PROTOCOL_MISMATCH = ResponseRule(Reaction.FAIL, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
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


def fatal_error(group_id: str, request: str, code: int) -> BrokerError:
    """The error to raise for a code whose rule is `Reaction.FAIL`, with its mend where there is one."""
    hint = HINTS.get(code)
    return BrokerError(code, f"group {group_id}, {request}" + (f" ({hint})" if hint else ""))
