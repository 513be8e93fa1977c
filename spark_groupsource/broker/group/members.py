"""Member of a classic group, as the coordinator stores it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import AbstractSet, Iterable, NamedTuple

from spark_groupsource.wire.group_records import MemberValue

Protocols = tuple[tuple[str, bytes], ...]
"""Name and metadata of each protocol, in the member's order of preference."""
_PROTOCOL_BYTES = 250  # of the name, the metadata and the group's count of the members that support it


class DelayedRequest(NamedTuple):
    """A request whose response is delayed: its token and its version."""

    token: object
    api_version: int


@dataclass
class Member:
    """Fields of the member's JoinGroup, its assignment and its delayed requests.

    Attributes:
        awaiting_join: the JoinGroup whose response is delayed until the join phase completes.
        awaiting_sync: the SyncGroup whose response is delayed until the assignment is stored.
        is_new: whether the first JoinGroup has no response yet; until then the client cannot send heartbeats.
        connection_id: connection of its last request, 0 if it has sent none since the group was loaded.
        counted_bytes: its share of the approximate memory of its group.
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
    connection_id: int = field(default=0, compare=False)
    counted_bytes: int = field(default=0, compare=False)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def protocol_names(self) -> AbstractSet[str]:
        """Names of the protocols, each once."""
        return dict(self.protocols).keys()

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether the member counts as alive without a heartbeat: a client with a delayed request sends none.

        A new member does not: the join timeout of new members applies to it.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """Returns the member's metadata for a protocol.

        Raises: ValueError if the member does not support the protocol.
        """
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise ValueError(f"Member '{self.member_id}' does not support protocol '{protocol_name}'.")

    def vote(self, candidate_protocols: AbstractSet[str]) -> str:
        """Returns the first protocol in this member's order that is in `candidate_protocols`.

        Raises: ValueError if the member supports none of them.
        """
        for name, _ in self.protocols:
            if name in candidate_protocols:
                return name
        names = ", ".join(sorted(candidate_protocols))
        raise ValueError(f"Member '{self.member_id}' supports none of the protocols {names}.")

    def copy(self) -> Member:
        return replace(self)

    def to_value(self, protocol_name: str, assignment: bytes) -> MemberValue:
        """Returns the record of the member."""
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
        """Returns the member of a record, which has the metadata of the selected protocol only."""
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
    """Returns ``<client id>-<uuid>``, or ``<group instance id>-<uuid>`` for a static member."""
    return f"{client_id if group_instance_id is None else group_instance_id}-{new_uuid}"


def text_bytes(text: str) -> int:
    """Returns an upper bound of the memory of the characters of a string: one wide character widens all of them."""
    return len(text) if text.isascii() else 4 * len(text)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Returns the approximate memory of the protocols of a member."""
    size = 0
    for name, metadata in protocols:
        size += _PROTOCOL_BYTES + text_bytes(name) + len(metadata)
    return size


def most_voted(members: Iterable[Member], candidate_protocols: AbstractSet[str]) -> str:
    """Returns the protocol with most votes; a tie is decided as in Kafka, by the order of a Java hash map.

    Raises: ValueError without members, or if a member supports none of the candidates.
    """
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(candidate_protocols)
        votes[name] = votes.get(name, 0) + 1
    if not votes:
        raise ValueError("Cannot select the protocol of a group without members.")
    buckets = 16
    while len(votes) > buckets * 3 // 4:
        buckets *= 2
    return min(votes, key=lambda name: (-votes[name], _java_hash(name) % buckets))


def _java_hash(name: str) -> int:
    """Returns the hash of a string in a Java `HashMap`; its lower bits are the number of the bucket."""
    code = 0
    for unit in name.encode("utf-16-be")[1::2] if name.isascii() else memoryview(name.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code ^ code >> 16
