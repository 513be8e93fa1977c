"""Racks of members and partitions, and whether assignors use them.

Source: KIP-881; Kafka's AbstractPartitionAssignor.useRackAwareAssignment, AbstractStickyAssignor.RackInfo.
"""

from __future__ import annotations

from collections import Counter
from typing import AbstractSet, Collection, Iterable, Mapping, Sequence

from spark_groupsource.model import GroupMember, PartitionRacks, TopicPartition

_NO_RACKS: frozenset[str] = frozenset()


def use_rack_aware_assignment(
    member_racks: AbstractSet[str], partition_racks: Collection[AbstractSet[str]], *, prefer: bool = False
) -> bool:
    """Returns whether an assignment by rack can make a difference.

    It can if a member is in a rack of a partition, and not every partition is in all of these racks.

    Args:
        member_racks: racks of the members that have one.
        partition_racks: racks of the replicas of each partition.
        prefer: use racks even if every partition is in all racks.
    """
    everywhere: set[str] = set().union(*partition_racks)
    if member_racks.isdisjoint(everywhere):
        return False
    return prefer or any(racks != everywhere for racks in partition_racks)


def racks_of_topic(topic: str, partition_count: int, racks: PartitionRacks | None) -> list[frozenset[str]]:
    """Returns the racks of each partition of a topic; an empty set if unknown."""
    known: Sequence[Sequence[str]] = (racks or {}).get(topic, ())
    return [frozenset(known[number]) if number < len(known) else _NO_RACKS for number in range(partition_count)]


class RackInfo:
    """Racks of all members and partitions of one assignment.

    Attributes: `active`, whether racks are used; if not, no member and partition mismatch.
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        members: Iterable[GroupMember],
        racks: PartitionRacks | None,
        *,
        prefer: bool = False,
    ) -> None:
        self._of_member = {
            member.member_id: member.subscription.rack_id for member in members if member.subscription.rack_id
        }
        self._members_in = Counter(self._of_member.values())
        self._of_partition: dict[TopicPartition, frozenset[str]] = {}
        self.active = False
        if self._of_member and racks:
            for topic, count in partitions.items():
                for number, where in enumerate(racks_of_topic(topic, count, racks)):
                    self._of_partition[TopicPartition(topic, number)] = where
            self.active = use_rack_aware_assignment(set(self._members_in), self._of_partition.values(), prefer=prefer)

    def matches(self, member_id: str, partition: TopicPartition) -> bool:
        """Returns whether the member has a rack and a replica of the partition is in it."""
        rack = self._of_member.get(member_id)
        return rack is not None and rack in self._of_partition.get(partition, _NO_RACKS)

    def mismatches(self, member_id: str, partition: TopicPartition) -> bool:
        """Returns whether racks are used, the member has a rack, and no replica of the partition is in it."""
        return self.active and member_id in self._of_member and not self.matches(member_id, partition)

    def fewest_members_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Sorts partitions by the number of members in their racks, even if racks are not used otherwise."""
        if not self._of_partition:
            return partitions
        return sorted(partitions, key=self._members_in_racks)

    def _members_in_racks(self, partition: TopicPartition) -> int:
        return sum(self._members_in[rack] for rack in self._of_partition[partition])
