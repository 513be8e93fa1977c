"""One member of a classic group, as the coordinator keeps it. Knows nothing of timers, states or other members."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import AbstractSet, Iterable, NamedTuple

from spark_groupsource.wire.group_records import MemberValue

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


class DelayedRequest(NamedTuple):
    """A request whose answer waits: the token of the reply, and the version it must be written in."""

    token: object
    api_version: int


@dataclass
class Member:
    """What JoinGroup told of a member, its assignment, and the requests of it that wait.

    `is_new` holds from its first JoinGroup to the answer: the client cannot heartbeat meanwhile. Times are in ms.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: DelayedRequest | None = None
    awaiting_sync: DelayedRequest | None = None
    is_new: bool = False

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """A client whose request is parked cannot heartbeat; a new one is bounded by its own timer instead."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """The metadata this member sent for a protocol.

        Raises: ValueError if it does not support it.
        """
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise ValueError(f"member {self.member_id} does not support protocol {protocol_name}")

    def vote(self, candidate_protocols: AbstractSet[str]) -> str:
        """The first protocol in this member's order that is among `candidate_protocols`.

        Raises: ValueError if there is none.
        """
        for name, _ in self.protocols:
            if name in candidate_protocols:
                return name
        raise ValueError(f"member {self.member_id} supports none of {', '.join(sorted(candidate_protocols))}")

    def copy(self) -> Member:
        return replace(self)

    def to_value(self, protocol_name: str, assignment: bytes) -> MemberValue:
        """The member as it is stored with its group."""
        return MemberValue(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )

    @classmethod
    def from_value(cls, value: MemberValue, protocol_name: str | None) -> Member:
        """A stored member; of its protocols only the chosen one was stored."""
        rebalance_timeout_ms = value.rebalance_timeout_ms
        return cls(
            member_id=value.member_id,
            group_instance_id=value.group_instance_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
            session_timeout_ms=value.session_timeout_ms,
            protocols=((protocol_name or "", value.subscription),),
            assignment=value.assignment,
        )


def new_member_id(client_id: str, group_instance_id: str | None, new_uuid: str) -> str:
    """``<client id>-<uuid>``, or ``<instance id>-<uuid>`` for a static member."""
    return f"{client_id if group_instance_id is None else group_instance_id}-{new_uuid}"


def most_voted(members: Iterable[Member], candidate_protocols: AbstractSet[str]) -> str:
    """The protocol most members vote for; the smallest name among equals, as Kafka leaves ties to a hash map.

    Raises: ValueError without members, or if one of them supports no candidate.
    """
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(candidate_protocols)
        votes[name] = votes.get(name, 0) + 1
    if not votes:
        raise ValueError("cannot choose the protocol of a group without members")
    return min(votes, key=lambda name: (-votes[name], name))
