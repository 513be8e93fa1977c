"""Reasons of JoinGroup and LeaveGroup (KIP-800), and their causes.

Members of this package send the texts of Kafka's clients.

Source: AbstractCoordinator, ConsumerCoordinator, KafkaAdminClient.
"""

from __future__ import annotations

import re
from typing import Mapping

from spark_groupsource.log_text import escaped
from spark_groupsource.wire.group_events import Cause

MAX_REASON = 255
"""Kafka's clients send at most this number of characters (`JoinGroupRequest.MAX_REASON`)."""

REMOVED_BY_ADMIN = "member was removed by an admin"
METADATA_CHANGED = "cached metadata has changed"
SUBSCRIPTION_CHANGED = "subscription has changed"
SUBSCRIPTION_MISMATCH = "received assignment does not match the current subscription"
REVOKE_AND_REJOIN = "need to revoke partitions and re-join"
UNASSIGNED_PARTITIONS = "unassigned partitions"
"""Of this package only: a returning static member completes a cooperative hand-over that it had interrupted."""
REJOIN_WITH_MEMBER_ID = "need to re-join with the given member-id"
ALREADY_REBALANCING = "group is already rebalancing"
COMMIT_WHILE_REBALANCING = "offset commit failed since group is already rebalancing"

CLOSING = ("the consumer ", "the query ")
"""Starts of the reasons of a client that leaves itself: Java's "the consumer is being closed", and those of queries."""

_JOIN_CAUSES: Mapping[str, Cause] = {
    METADATA_CHANGED: Cause.PARTITIONS_CHANGED,
    SUBSCRIPTION_CHANGED: Cause.SUBSCRIPTION_CHANGED,
    SUBSCRIPTION_MISMATCH: Cause.SUBSCRIPTION_CHANGED,
    "need to revoke partitions": Cause.COOPERATIVE_SECOND_ROUND,
    UNASSIGNED_PARTITIONS: Cause.COOPERATIVE_SECOND_ROUND,
    "rebalance enforced by user": Cause.LEADER_REJOINED,
}
# Java's names of the exceptions, and the error codes that members of this package send
_COORDINATOR_LOST = re.compile(
    r"rebalance failed due to '?(NotCoordinator|CoordinatorNotAvailable|CoordinatorLoadInProgress|Disconnect|"
    r"NOT_COORDINATOR|COORDINATOR_NOT_AVAILABLE|COORDINATOR_LOAD_IN_PROGRESS|NetworkError)"
)


def bounded_reason(reason: str | None) -> str | None:
    """Returns a reason as one printable line of bounded length, None without a reason."""
    return escaped(reason[:MAX_REASON]) if reason else None


def cause_of_join(reason: str | None) -> Cause | None:
    """Returns the cause that the reason of a member's further JoinGroup names, None if it names none."""
    text = reason or ""
    for start, cause in _JOIN_CAUSES.items():
        if text.startswith(start):
            return cause
    return Cause.COORDINATOR_MOVED if _COORDINATOR_LOST.match(text) else None


def cause_of_leave(reason: str | None) -> Cause:
    """Returns the cause that the reason of a LeaveGroup names; LEFT if it names no other."""
    text = (reason or "").lower()
    if text.startswith("consumer poll timeout has expired") or "max.poll.interval" in text:
        return Cause.POLL_EXCEEDED
    return Cause.REMOVED_BY_OPERATOR if text.startswith(REMOVED_BY_ADMIN) else Cause.LEFT
