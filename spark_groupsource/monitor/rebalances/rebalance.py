"""A rebalance: cause, actor, phases and effect."""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple

from spark_groupsource.wire.group_events import Cause

__all__ = ["Actor", "Cause", "MemberMove", "Origin", "Phases", "Rebalance", "member_name"]


class Origin(str, Enum):
    """How a field of a rebalance is known."""

    SEEN = "seen"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


class Actor(NamedTuple):
    """The member that caused a rebalance; application and query are known for members of Spark applications."""

    member_id: str | None = None
    client_id: str | None = None
    host: str | None = None
    group_instance_id: str | None = None
    application: str | None = None
    query: str | None = None


def member_name(actor: Actor) -> str:
    """Returns the group instance id, client id or member id of a member, the first that is known."""
    return actor.group_instance_id or actor.client_id or actor.member_id or "unknown member"


class Phases(NamedTuple):
    """Durations in milliseconds; None if unknown.

    Attributes:
        notice_ms: until the last member was notified.
        batch_ms: longest wait for a micro-batch in flight.
        join_ms: until the last member had joined.
        assignment_ms: of the assignor of the leader.
        sync_ms: from the end of the join phase until the assignment was stored, assignor included.
        first_record_ms: until the first record after the rebalance.
    """

    notice_ms: int | None = None
    batch_ms: int | None = None
    join_ms: int | None = None
    assignment_ms: int | None = None
    sync_ms: int | None = None
    first_record_ms: int | None = None


class MemberMove(NamedTuple):
    """Number of partitions that a member gained and lost."""

    gained: int
    lost: int


class Rebalance(NamedTuple):
    """One completed rebalance; values that are unknown are None.

    Attributes:
        reason: the reason that the actor sent (KIP-800), None if it sent none or it is not known.
        difference: difference to the previous generation in words.
        started_ms, completed_ms: epoch milliseconds.
        slowest_member: member id of the last member that joined.
        moves: member id -> its moves, of the members with moves.
        unowned_seconds: sum over the partitions that have an owner after the rebalance, and had one before, of the
            seconds in which no member read them. The time begins when the previous owner stops reading the partition:
            its JoinGroup if the assignor is eager, the assignment that takes the partition from it if it is
            cooperative, its LeaveGroup, its last heartbeat if its session expired. It ends when the new owner receives
            its assignment. Zero for a partition that its owner never stops reading.
        repeated_records: records that a new owner read again.
        lag_added: growth of the lag of the group during the rebalance, in offsets.
        origins: field name -> how it is known, for the fields other than UNKNOWN.
    """

    group: str
    generation: int
    cause: Cause
    reason: str | None
    difference: str
    actor: Actor | None
    started_ms: int | None
    completed_ms: int
    phases: Phases
    slowest_member: str | None
    members: int
    moves: Mapping[str, MemberMove]
    partitions_moved: int
    partitions_unassigned: int
    unowned_seconds: float | None
    repeated_records: int | None
    lag_added: int | None
    origins: Mapping[str, Origin]
