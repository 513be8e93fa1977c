"""Which members stand in the racks of which partitions, and whether that shall count.

Source: KIP-881; Kafka's AbstractPartitionAssignor.useRackAwareAssignment, AbstractStickyAssignor.RackInfo.
"""

from __future__ import annotations

from collections import Counter
from typing import AbstractSet, Collection, Iterable, Mapping, Sequence

from spark_groupsource.model import GroupMember, PartitionRacks, TopicPartition

_NOWHERE: frozenset[str] = frozenset()


def racks_count(
    member_racks: AbstractSet[str], partition_racks: Collection[AbstractSet[str]], *, prefer: bool = False
) -> bool:
    """True where placing by rack can make a difference.

    That is: some member stands in a rack of a partition, and not every partition is in all of the racks.

    Args:
        member_racks: racks of the members, without those that have none.
        partition_racks: racks of the replicas of each partition.
        prefer: place by rack even where every partition is everywhere.
    """
    everywhere: set[str] = set().union(*partition_racks)
    if member_racks.isdisjoint(everywhere):
        return False
    return prefer or any(racks != everywhere for racks in partition_racks)


def racks_of_topic(topic: str, partition_count: int, racks: PartitionRacks | None) -> list[frozenset[str]]:
    """Racks of each partition of a topic; an empty set where they are unknown."""
    known: Sequence[Sequence[str]] = (racks or {}).get(topic, ())
    return [frozenset(known[number]) if number < len(known) else _NOWHERE for number in range(partition_count)]


class RackMap:
    """Racks of all members and partitions of one assignment.

    Attributes: `active`, False when racks shall not count, and then nothing mismatches.
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
            self.active = racks_count(set(self._members_in), self._of_partition.values(), prefer=prefer)

    def matches(self, member_id: str, partition: TopicPartition) -> bool:
        """True when the member has a rack and a replica of the partition stands there."""
        rack = self._of_member.get(member_id)
        return rack is not None and rack in self._of_partition.get(partition, _NOWHERE)

    def mismatches(self, member_id: str, partition: TopicPartition) -> bool:
        """True when racks count, the member has one, and no replica of the partition stands there."""
        return self.active and member_id in self._of_member and not self.matches(member_id, partition)

    def fewest_members_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Partitions for which few members stand near come first; also where racks do not count otherwise."""
        if not self._of_partition:
            return partitions
        return sorted(partitions, key=self._members_near)

    def _members_near(self, partition: TopicPartition) -> int:
        return sum(self._members_in[rack] for rack in self._of_partition[partition])
