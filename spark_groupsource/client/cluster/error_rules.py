"""Handling of error codes of leaders and coordinators: tables.

Pure data; the requests of group members have `membership.response_rules`.

Source: OffsetFetcherUtils, OffsetsForLeaderEpochUtils, FetchCollector, ConsumerCoordinator, DeleteRecordsHandler.
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.client.network.retry import Retry
from spark_groupsource.errors import RETRIABLE, BrokerError, ErrorCode, GroupSourceError, NetworkError

UNKNOWN_TOPIC_TIMEOUT_MS = 3_000
"""How long to retry an unknown topic: the metadata of a new topic reach the brokers one after another."""
_UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Action(Enum):
    """What the client does after an error."""

    RETRY = "request metadata, or the coordinator, and retry until the timeout"
    RAISE = "raise the error"
    NO_RESULT = "there is no offset"


class ErrorRules(NamedTuple):
    """Actions of one request; `others` None: retriable codes are retried, the others raised."""

    actions: Mapping[int, Action]
    others: Action | None = None

    def action(self, code: int) -> Action:
        """Returns what to do after an error code; `code` is not NONE."""
        by_code = Action.RETRY if code in RETRIABLE else Action.RAISE
        return self.actions.get(code, self.others or by_code)


LIST_OFFSETS = ErrorRules(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Action.RAISE,
        ErrorCode.UNSUPPORTED_VERSION: Action.RAISE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Action.NO_RESULT,
    },
    others=Action.RETRY,
)
"""Requests to leaders: an error code that the client does not know is retried, as by Kafka's consumer."""

LEADER_EPOCHS = ErrorRules(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED: Action.RAISE, ErrorCode.UNSUPPORTED_VERSION: Action.RAISE},
    others=Action.RETRY,
)
"""OffsetForLeaderEpoch."""

FETCH = ErrorRules({ErrorCode.UNKNOWN_SERVER_ERROR: Action.RETRY, ErrorCode.CORRUPT_MESSAGE: Action.RAISE})
"""OFFSET_OUT_OF_RANGE has a rule of its own: it is compared with the log of the present leader."""

_WITHOUT_LEADER = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


def is_outage(error: GroupSourceError) -> bool:
    """Returns whether a request failed because no broker leads the partition, or none can be reached."""
    return isinstance(error, NetworkError) or (isinstance(error, BrokerError) and error.code in _WITHOUT_LEADER)


def is_missing(error: GroupSourceError, retry: Retry) -> bool:
    """Returns whether a topic has been unknown for so long that it does not exist."""
    if not isinstance(error, BrokerError) or error.code not in _UNKNOWN_TOPIC:
        return False
    return retry.repeated_ms(error) > UNKNOWN_TOPIC_TIMEOUT_MS


DELETE_RECORDS = ErrorRules({})

OFFSET_FETCH = ErrorRules(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Action.RAISE, ErrorCode.UNKNOWN_TOPIC_ID: Action.RAISE}
)
"""Errors of the group and of its partitions, except those of `routing.COORDINATOR_UNAVAILABLE`."""

OFFSET_COMMIT = ErrorRules({})
"""Errors of partitions, except those of `routing.COORDINATOR_UNAVAILABLE`."""

TRANSACTION = ErrorRules({})
"""Errors of the steps of a transaction, except those of `routing.COORDINATOR_UNAVAILABLE`."""
