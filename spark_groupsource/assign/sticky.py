"""Sticky and cooperative-sticky assignors.

This module determines the owned partitions of each member and selects the algorithm: `constrained_assignment` for equal
subscriptions, else `general_assignment`.

Source: KIP-54, KIP-429, KIP-341 (generation in the user data), KIP-792; Kafka's AbstractStickyAssignor.
"""

from __future__ import annotations

from itertools import chain, starmap
from typing import Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.assign.constrained_assignment import ConstrainedAssignmentBuilder, partitions_of
from spark_groupsource.assign.general_assignment import GeneralAssignmentBuilder
from spark_groupsource.assign.java_order import by_member_hash
from spark_groupsource.assign.rack_info import RackInfo
from spark_groupsource.assign.user_data import (
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
)
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, Subscription, TopicPartition

Assigned = dict[str, list[TopicPartition]]


class MemberData(NamedTuple):
    """Partitions that a member owned, and the generation in which it owned them (-1 if unknown)."""

    partitions: tuple[TopicPartition, ...]
    generation_id: int


class Placed(NamedTuple):
    """An assignment: member id -> partitions, and moved partition -> its new member.

    `transfers` is None after the general algorithm, which does not track them.
    """

    assigned: Assigned
    transfers: dict[TopicPartition, str] | None


class StickyAssignor:
    """Balances the assignment with as few moves as possible; members revoke all partitions before they rejoin.

    The owned partitions of a member are in its user data.

    Args:
        prefer_racks: use racks even if every partition is in all racks.
    """

    name = "sticky"
    cooperative = False

    def __init__(self, *, prefer_racks: bool = False) -> None:
        self._prefer_racks = prefer_racks
        self._newest_generation = -1

    def user_data(
        self, topics: Iterable[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """Returns the user data; `owned` is the last assignment of the member, revoked or not."""
        if generation_id < 0 and not owned:
            return None
        return encode_sticky(owned, generation_id)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Keeps no state: the caller passes the assignment to `user_data`."""

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        """Returns member id -> partitions, with an entry for every member.

        Args:
            partitions: topic -> partition count in the leader's metadata.
            members: all members in the order of the JoinGroup response.
            racks: the racks of the replicas, if known.
        """
        return self.place(partitions, members, racks).assigned

    def member_data(self, subscription: Subscription) -> MemberData:
        """Returns the owned partitions from the user data."""
        return MemberData(*decode_sticky(subscription.user_data))

    def place(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Placed:
        """As `assign`, with the partitions that move between members."""
        members = by_member_hash(members)
        if not members:
            return Placed({}, {})
        subscribed = frozenset().union(*(member.subscription.topics for member in members))
        partitions = {topic: count for topic, count in partitions.items() if topic in subscribed}
        data = {member.member_id: self.member_data(member.subscription) for member in members}
        newest = max(member_data.generation_id for member_data in data.values())
        self._newest_generation = max(self._newest_generation, newest)
        owned_partitions = _OwnedPartitions(partitions, members, data)
        rack_map = RackInfo(partitions, members, racks, prefer=self._prefer_racks)
        if _have_equal_subscriptions(members):
            constrained = ConstrainedAssignmentBuilder(
                partitions, owned_partitions.owned, owned_partitions.multiply_claimed, rack_map
            )
            constrained.place()
            return Placed(constrained.assigned, constrained.transfers)
        subscriptions = {member.member_id: member.subscription.topics for member in members}
        general = GeneralAssignmentBuilder(
            partitions, subscriptions, owned_partitions.owned, self._previous_owners(data), rack_map
        )
        general.place()
        return Placed(general.assigned, None)

    def _previous_owners(self, data: Mapping[str, MemberData]) -> dict[TopicPartition, str]:
        """Returns partitions owned in a generation older than the newest -> the member with the newest claim."""
        newest: dict[TopicPartition, tuple[int, str]] = {}
        for member_id, (partitions, generation_id) in data.items():
            if generation_id < self._newest_generation:
                for partition in partitions:
                    if partition not in newest or generation_id > newest[partition][0]:
                        newest[partition] = (generation_id, member_id)
        return {partition: member_id for partition, (_, member_id) in newest.items()}


class CooperativeStickyAssignor(StickyAssignor):
    """As sticky, but members keep the partitions that do not move; the others move in a second rebalance.

    A partition that moves stays unassigned: its owner revokes it and rejoins, and the next rebalance assigns it. The
    owned partitions of a member are in its subscription.
    """

    name = "cooperative-sticky"
    cooperative = True

    def user_data(
        self, topics: Iterable[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """Returns the generation, for leaders that do not decode its field in the subscription (before KIP-792)."""
        return encode_generation(generation_id)

    def member_data(self, subscription: Subscription) -> MemberData:
        """Returns the owned partitions and the generation; the latter from the user data if the field is missing."""
        generation_id = subscription.generation_id
        if generation_id < 0:
            generation_id = decode_generation(subscription.user_data)
        return MemberData(subscription.owned_partitions, generation_id)

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Mapping[str, list[TopicPartition]]:
        """As `StickyAssignor.assign`, without the partitions that another member has to revoke first."""
        assigned, transfers = self.place(partitions, members, racks)
        if transfers is None:
            transfers = _transfers(assigned, members)
        moving: dict[str, set[TopicPartition]] = {}
        for partition, member_id in transfers.items():
            moving.setdefault(member_id, set()).add(partition)
        for member_id, withheld in moving.items():
            assigned[member_id] = [partition for partition in assigned[member_id] if partition not in withheld]
        return assigned


class _OwnedPartitions:
    """The partitions that each member owns, after conflicting claims are resolved.

    A newer generation wins. Of two claims of the same generation neither is valid; such partitions are in
    `multiply_claimed`.
    """

    def __init__(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], data: Mapping[str, MemberData]
    ) -> None:
        self.multiply_claimed: set[TopicPartition] = set()
        all_claimed = set[TopicPartition]().union(*(claimed for claimed, _ in data.values()))
        is_disjoint = len(all_claimed) == sum(len(claimed) for claimed, _ in data.values())
        if is_disjoint and all_claimed.issubset(chain.from_iterable(starmap(partitions_of, partitions.items()))):
            self.owned = {member_id: list(claimed) for member_id, (claimed, _) in data.items()}
        else:
            self.owned = self._resolve(partitions, members, data)

    def _resolve(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], data: Mapping[str, MemberData]
    ) -> dict[str, list[TopicPartition]]:
        generation_fields = {member.member_id: member.subscription.generation_id for member in members}
        claimed_by: dict[TopicPartition, str] = {}
        owned: dict[str, dict[TopicPartition, None]] = {member_id: {} for member_id in data}
        for member_id, (claimed, generation_id) in data.items():
            for partition in claimed:
                if not 0 <= partition.partition < partitions.get(partition.topic, 0):
                    continue
                other = claimed_by.get(partition)
                if other is not None:
                    # as Kafka, compares with the field in the subscription of the other member, not with its user data
                    other_generation = generation_fields[other]
                    if generation_id < other_generation:
                        continue
                    owned[other].pop(partition, None)
                    if generation_id == other_generation:
                        self.multiply_claimed.add(partition)
                if other is None or generation_id > other_generation:
                    owned[member_id][partition] = None
                claimed_by[partition] = member_id
        return {member_id: list(partitions) for member_id, partitions in owned.items()}


def _have_equal_subscriptions(members: Sequence[GroupMember]) -> bool:
    """Returns whether all members subscribe to the topics of the first one.

    Unlike Kafka, does not skip leading members without topics, to which Kafka would assign partitions.
    """
    topics = frozenset(members[0].subscription.topics)
    return all(
        len(member.subscription.topics) == len(topics) and topics.issuperset(member.subscription.topics)
        for member in members[1:]
    )


def _transfers(assigned: Assigned, members: Sequence[GroupMember]) -> dict[TopicPartition, str]:
    """Returns partitions that move from one member to another -> their new member."""
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
