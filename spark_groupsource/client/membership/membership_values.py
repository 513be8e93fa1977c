"""Values of the membership state machine: states, generations, actions, settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Mapping, NamedTuple

from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import Request

NO_GENERATION = -1
STATIC_MEMBERS_SINCE: Mapping[int, int] = {ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3}
"""API -> first version that has the group instance id of a static member (KIP-345)."""


def lowest_version(request: Request[Any]) -> int:
    """Returns the lowest version in which a member can send a request; a static one needs its instance id in it."""
    is_static = getattr(request, "group_instance_id", None) is not None
    return STATIC_MEMBERS_SINCE[request.API_KEY] if is_static else 0


class MemberState(Enum):
    """State of a member; it is UNJOINED after every reset, PREPARING until the JoinGroup response arrives."""

    UNJOINED = "unjoined"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"


class Generation(NamedTuple):
    """Identity of the member at the coordinator. A response belongs to the generation of its request."""

    generation_id: int = NO_GENERATION
    member_id: str = ""
    protocol_name: str | None = None


@dataclass(frozen=True)
class Idle:
    """Send nothing before `until_ms`."""

    until_ms: int


@dataclass(frozen=True)
class SendJoinGroup:
    """Send JoinGroup."""


@dataclass(frozen=True)
class SendHeartbeat:
    """Send Heartbeat."""


@dataclass(frozen=True)
class MarkCoordinatorUnknown:
    """Look the coordinator up again: no response for session.timeout.ms. Only the coordinator removes a member."""


Action = Idle | SendJoinGroup | SendHeartbeat | MarkCoordinatorUnknown


class ReleasedPartitions(NamedTuple):
    """Partitions that a member releases before it joins; it may still commit `revoked`, but not `lost` ones."""

    revoked: tuple[TopicPartition, ...] = ()
    lost: tuple[TopicPartition, ...] = ()


class AssignmentChange(NamedTuple):
    """Effect of an assignment; a cooperative member revokes `revoked` and rejoins."""

    gained: tuple[TopicPartition, ...] = ()
    revoked: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class MemberConfig:
    """Settings of one member; `assignors` in order of preference.

    `heartbeat_offset_ms`: how much before the end of the interval the first heartbeat of a generation is sent, so that
    the members of a process do not send theirs together.
    """

    group_id: str
    assignors: tuple[str, ...]
    cooperative: bool = False
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    heartbeat_offset_ms: int = 0


@dataclass(frozen=True)
class Joined:
    """A successful JoinGroup response; a leader computes the assignment unless `skip_assignment`.

    `members` has member id, group instance id and subscription bytes; it is empty for followers.
    """

    generation: Generation
    is_leader: bool
    skip_assignment: bool
    members: tuple[tuple[str, str | None, bytes], ...]
