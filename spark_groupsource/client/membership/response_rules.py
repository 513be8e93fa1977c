"""Handling of coordinator error codes by a member: one table per request.

Pure data for `state_machine` and `member_task`. Heartbeats of read tasks have rules of their own (`task_heartbeat`): a
task neither rejoins nor resets a member.

Source: the response handlers of Kafka's AbstractCoordinator.
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.errors import BrokerError, ErrorCode


class Reaction(Enum):
    """The next step of the member."""

    CONTINUE = "continue"
    REJOIN = "rejoin at once"
    REJOIN_AFTER_BACKOFF = "rejoin after the backoff"
    FAIL = "raise the error from poll"
    RETRY_HEARTBEAT = "send the heartbeat again after the backoff"
    FENCED = "raise GenerationMismatchError from poll"
    REBALANCE = "request a rejoin from the owner"


class Reset(Enum):
    """Fields that the member resets, if its generation is still that of the request."""

    NOTHING = "nothing"
    GENERATION = "generation"
    ALL = "generation and member id"


class ResponseRule(NamedTuple):
    """Handling of one error code; `code` replaces the code of a response that this client rejects."""

    reaction: Reaction
    reset: Reset = Reset.NOTHING
    mark_coordinator_unknown: bool = False
    code: int = ErrorCode.NONE


_REJOIN_AT_NEW_COORDINATOR = ResponseRule(Reaction.REJOIN_AFTER_BACKOFF, mark_coordinator_unknown=True)
_HEARTBEAT_AT_NEW_COORDINATOR = ResponseRule(Reaction.RETRY_HEARTBEAT, mark_coordinator_unknown=True)

JOIN_RULES: Mapping[int, ResponseRule] = {
    ErrorCode.NONE: ResponseRule(Reaction.CONTINUE),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ResponseRule(Reaction.REJOIN_AFTER_BACKOFF),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _REJOIN_AT_NEW_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _REJOIN_AT_NEW_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID: ResponseRule(Reaction.REJOIN, Reset.ALL),
    ErrorCode.FENCED_INSTANCE_ID: ResponseRule(Reaction.FENCED),
    ErrorCode.REBALANCE_IN_PROGRESS: ResponseRule(Reaction.REJOIN),
    ErrorCode.MEMBER_ID_REQUIRED: ResponseRule(Reaction.REJOIN),
}
"""JoinGroup; every other code is `Reaction.FAIL`."""

SYNC_RULES: Mapping[int, ResponseRule] = {
    ErrorCode.NONE: ResponseRule(Reaction.CONTINUE),
    # Kafka's consumer raises here and the application polls again; a streaming query would fail
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ResponseRule(Reaction.REJOIN_AFTER_BACKOFF),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _REJOIN_AT_NEW_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _REJOIN_AT_NEW_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID: ResponseRule(Reaction.REJOIN, Reset.ALL),
    # the member id may still be valid; with a new one the group would wait until the session of the old one expires
    ErrorCode.ILLEGAL_GENERATION: ResponseRule(Reaction.REJOIN, Reset.GENERATION),
    ErrorCode.FENCED_INSTANCE_ID: ResponseRule(Reaction.FENCED),
    ErrorCode.REBALANCE_IN_PROGRESS: ResponseRule(Reaction.REJOIN),
}
"""SyncGroup; every other code is `Reaction.FAIL`."""

HEARTBEAT_RULES: Mapping[int, ResponseRule] = {
    ErrorCode.NONE: ResponseRule(Reaction.CONTINUE),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _HEARTBEAT_AT_NEW_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _HEARTBEAT_AT_NEW_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID: ResponseRule(Reaction.CONTINUE, Reset.ALL),
    ErrorCode.ILLEGAL_GENERATION: ResponseRule(Reaction.CONTINUE, Reset.GENERATION),
    ErrorCode.FENCED_INSTANCE_ID: ResponseRule(Reaction.FENCED, Reset.ALL),
    ErrorCode.REBALANCE_IN_PROGRESS: ResponseRule(Reaction.REBALANCE),
}
"""Heartbeat; every other code is `Reaction.RETRY_HEARTBEAT`."""

PROTOCOL_MISMATCH = ResponseRule(Reaction.FAIL, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
"""A response with another protocol type or assignor than the request."""

HINTS: Mapping[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "No assignor is common to all members. Set kafka.partition.assignment.strategy to one of the other members'."
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "Set kafka.session.timeout.ms between the broker's group.min.session.timeout.ms and "
        "group.max.session.timeout.ms."
    ),
    ErrorCode.INVALID_GROUP_ID: "Set kafka.group.id to a valid name.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "The group has the broker's group.max.size of members. Use fewer members.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Grant the user READ on the group.",
    # Kafka replaces the codes of a record that is too large, and does not say why (GroupMetadataManager)
    ErrorCode.UNKNOWN_SERVER_ERROR: (
        "The log of the coordinator has the cause. If it is a record that is too large, the group, which has the names "
        "of its topics for each member, exceeds max.message.bytes of __consumer_offsets. Use fewer members (option "
        "members) or topics, or raise that limit."
    ),
    ErrorCode.UNSUPPORTED_VERSION: "The broker does not support kafka.group.instance.id. Remove it.",
}
"""Error code -> remedy."""


def fatal_error(group_id: str, request: str, code: int) -> BrokerError:
    """Returns the error to raise for a code whose reaction is `Reaction.FAIL`."""
    return BrokerError(code, f"{request} of group '{group_id}'", HINTS.get(code, ""))
