"""The assignors that leave partitions where they are as far as balance allows: sticky and cooperative-sticky.

Here is what both have in common: what each member had, whose claim counts, and which of two placements fits. The
placements are in `constrained` (all subscribe to the same topics) and `general`.

Source: KIP-54, KIP-429, KIP-341 (generation in the user data), KIP-792; Kafka's AbstractStickyAssignor.
"""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.assign.constrained import ConstrainedPlacement
from spark_groupsource.assign.general import GeneralPlacement
from spark_groupsource.assign.order import by_member_hash
from spark_groupsource.assign.racks import RackMap
from spark_groupsource.assign.user_data import (
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
)
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, Subscription, TopicPartition

Assigned = dict[str, list[TopicPartition]]


class MemberData(NamedTuple):
    """What a member had, and in which generation (-1 when it does not say)."""

    partitions: tuple[TopicPartition, ...]
    generation_id: int


class Placed(NamedTuple):
    """A placement: member id -> partitions, and partition -> new member for those that leave another one.

    `transfers` is None where the general placement ran, which does not keep them.
    """

    assigned: Assigned
    transfers: dict[TopicPartition, str] | None


class StickyAssignor:
    """Balanced first, then with as few moves as possible; members give up everything before they join again.

    What a member had travels in its user data.

    Args:
        prefer_racks: place by rack even where every partition is in all racks.
    """

    name = "sticky"
    cooperative = False

    def __init__(self, *, prefer_racks: bool = False) -> None:
        self._prefer_racks = prefer_racks
        self._newest_generation = -1

    def user_data(
        self, topics: Iterable[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """What goes into the subscription: `owned` is what the member was last assigned, given up or not."""
        if generation_id < 0 and not owned:
            return None
        return encode_sticky(owned, generation_id)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Nothing is remembered: the caller knows what its member was assigned."""

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        """The partitions of every member; members without one have an empty list.

        Args:
            partitions: topic -> partition count, as the leader's metadata has it.
            members: all members in the order of the JoinGroup response.
            racks: where the replicas stand, if known.
        """
        return self.place(partitions, members, racks).assigned

    def member_data(self, subscription: Subscription) -> MemberData:
        """What the member had, from its user data alone."""
        return MemberData(*decode_sticky(subscription.user_data))

    def place(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Placed:
        """As `assign`, with what moves from member to member."""
        members = by_member_hash(members)
        if not members:
            return Placed({}, {})
        subscribed = frozenset().union(*(member.subscription.topics for member in members))
        partitions = {topic: count for topic, count in partitions.items() if topic in subscribed}
        data = {member.member_id: self.member_data(member.subscription) for member in members}
        newest = max(member_data.generation_id for member_data in data.values())
        self._newest_generation = max(self._newest_generation, newest)
        claims = _Claims(partitions, members, data)
        rack_map = RackMap(partitions, members, racks, prefer=self._prefer_racks)
        if _all_alike(members):
            constrained = ConstrainedPlacement(partitions, claims.owned, claims.multiply_claimed, rack_map)
            constrained.place()
            return Placed(constrained.assigned, constrained.transfers)
        subscriptions = {member.member_id: member.subscription.topics for member in members}
        general = GeneralPlacement(partitions, subscriptions, claims.owned, self._previous_owners(data), rack_map)
        general.place()
        return Placed(general.assigned, None)

    def _previous_owners(self, data: Mapping[str, MemberData]) -> dict[TopicPartition, str]:
        """Partitions claimed from a generation older than the newest -> the member with the newest such claim."""
        newest: dict[TopicPartition, tuple[int, str]] = {}
        for member_id, (partitions, generation_id) in data.items():
            if generation_id < self._newest_generation:
                for partition in partitions:
                    if partition not in newest or generation_id > newest[partition][0]:
                        newest[partition] = (generation_id, member_id)
        return {partition: member_id for partition, (_, member_id) in newest.items()}


class CooperativeStickyAssignor(StickyAssignor):
    """As sticky, but members keep what stays theirs while the rest moves in a second round.

    A partition that changes its member is given to nobody in this round: its old member gives it up afterwards and
    joins again, and the next round assigns it. What a member had are the owned partitions of its subscription.
    """

    name = "cooperative-sticky"
    cooperative = True

    def user_data(
        self, topics: Iterable[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """The generation, for leaders that do not know its field in the subscription."""
        return encode_generation(generation_id)

    def member_data(self, subscription: Subscription) -> MemberData:
        """What the member had, and the generation from the subscription's field, else from the user data."""
        generation_id = subscription.generation_id
        if generation_id < 0:
            generation_id = decode_generation(subscription.user_data)
        return MemberData(subscription.owned_partitions, generation_id)

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        """The partitions of every member, without those that their old member has to give up first."""
        assigned, transfers = self.place(partitions, members, racks)
        if transfers is None:
            transfers = _transfers(assigned, members)
        moving: dict[str, set[TopicPartition]] = {}
        for partition, member_id in transfers.items():
            moving.setdefault(member_id, set()).add(partition)
        for member_id, withheld in moving.items():
            assigned[member_id] = [partition for partition in assigned[member_id] if partition not in withheld]
        return assigned


class _Claims:
    """What each member may keep of what it says it had.

    A newer generation wins over an older one. Two claims of the same generation cancel each other; such partitions
    are in `multiply_claimed`.
    """

    def __init__(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], data: Mapping[str, MemberData]
    ) -> None:
        generation_fields = {member.member_id: member.subscription.generation_id for member in members}
        claimed_by: dict[TopicPartition, str] = {}
        owned: dict[str, dict[TopicPartition, None]] = {member_id: {} for member_id in data}
        self.multiply_claimed: set[TopicPartition] = set()
        for member_id, (claimed, generation_id) in data.items():
            for partition in claimed:
                if not 0 <= partition.partition < partitions.get(partition.topic, 0):
                    continue
                other = claimed_by.get(partition)
                if other is not None:
                    # Kafka compares with the field of the other's subscription, whatever its user data says
                    other_generation = generation_fields[other]
                    if generation_id < other_generation:
                        continue
                    owned[other].pop(partition, None)
                    if generation_id == other_generation:
                        self.multiply_claimed.add(partition)
                if other is None or generation_id > other_generation:
                    owned[member_id][partition] = None
                claimed_by[partition] = member_id
        self.owned = {member_id: list(partitions) for member_id, partitions in owned.items()}


def _all_alike(members: Sequence[GroupMember]) -> bool:
    """True when all members subscribe to the topics of the first one.

    Kafka skips members without topics at the head of its walk, and would give them partitions.
    """
    topics = frozenset(members[0].subscription.topics)
    return all(
        len(member.subscription.topics) == len(topics) and topics.issuperset(member.subscription.topics)
        for member in members[1:]
    )


def _transfers(assigned: Assigned, members: Sequence[GroupMember]) -> dict[TopicPartition, str]:
    """Partitions that one member had and has no more -> the member that has them now and had them not."""
    owned = {member.member_id: frozenset(member.subscription.owned_partitions) for member in members}
    given_up = {
        partition for member_id, had in owned.items() for partition in had.difference(assigned[member_id])
    }
    return {
        partition: member_id
        for member_id, partitions in assigned.items()
        for partition in partitions
        if partition in given_up and partition not in owned[member_id]
    }
