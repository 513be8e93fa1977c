"""Range and round-robin assignors."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from spark_groupsource.assign.java_order import static_first
from spark_groupsource.assign.rack_info import racks_of_topic, use_rack_aware_assignment
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, TopicPartition

Assigned = dict[str, list[TopicPartition]]


class _Stateless:
    """Base of assignors without user data, state and incremental rebalancing."""

    cooperative = False

    def user_data(
        self, topics: Iterable[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """Returns None: the assignment does not depend on the previous generation."""
        return None

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Keeps no state."""


class RoundRobinAssignor(_Stateless):
    """Assigns all partitions, ordered by topic and number, to the members round robin.

    Skips members that do not subscribe to the topic: with different subscriptions the counts may differ by more.
    """

    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Assigned:
        """Returns member id -> partitions, with an entry for every member."""
        assigned: Assigned = {member.member_id: [] for member in members}
        circle = [(member.member_id, frozenset(member.subscription.topics)) for member in static_first(members)]
        subscribed = frozenset().union(*(topics for _, topics in circle))
        place = 0
        for topic in sorted(subscribed & partitions.keys()):
            for number in range(partitions[topic]):
                while topic not in circle[place % len(circle)][1]:
                    place += 1
                assigned[circle[place % len(circle)][0]].append(TopicPartition(topic, number))
                place += 1
        return assigned


class RangeAssignor(_Stateless):
    """Assigns consecutive partitions of each topic to the members in order; the first members may get one more.

    Topics with the same members and the same number of partitions are co-partitioned: the member with partition 3 of
    one has partition 3 of the other.

    Args:
        prefer_racks: use racks even if every partition is in all racks.
    """

    name = "range"

    def __init__(self, *, prefer_racks: bool = False) -> None:
        self._prefer_racks = prefer_racks

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Assigned:
        """Returns member id -> partitions, with an entry for every member."""
        assigned: Assigned = {member.member_id: [] for member in members}
        subscribers: dict[str, list[GroupMember]] = {}
        for member in static_first(members):
            for topic in dict.fromkeys(member.subscription.topics):
                if partitions.get(topic):
                    subscribers.setdefault(topic, []).append(member)
        topics = [
            _TopicRange(topic, partitions[topic], subscribers[topic], racks, prefer_racks=self._prefer_racks)
            for topic in sorted(subscribers)
        ]
        by_rack = any(topic.by_rack for topic in topics)
        if by_rack:
            _place_by_rack(topics)
        for topic_range in topics:
            topic_range.place_rest()
            for member_id, numbers in topic_range.assigned_numbers.items():
                ordered = sorted(numbers) if by_rack else numbers
                assigned[member_id].extend(TopicPartition(topic_range.topic, number) for number in ordered)
        return assigned


class _TopicRange:
    """Assignment of the partitions of one topic."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        members: Sequence[GroupMember],
        racks: PartitionRacks | None,
        *,
        prefer_racks: bool,
    ) -> None:
        self.topic = topic
        self.racks_of_members = {member.member_id: member.subscription.rack_id or None for member in members}
        self.assigned_numbers: dict[str, list[int]] = {member_id: [] for member_id in self.racks_of_members}
        self._unassigned = dict.fromkeys(range(partition_count))
        self._quota, self._extras = divmod(partition_count, len(members))
        used = {rack for rack in self.racks_of_members.values() if rack}
        # a topic without members in a rack is not part of the assignment by rack
        self.racks = racks_of_topic(topic, partition_count, racks) if used else []
        self.by_rack = use_rack_aware_assignment(used, self.racks, prefer=prefer_racks)

    def remaining_capacity(self, member_id: str) -> int:
        """Returns how many more partitions the member may get; one more than its quota while extras remain."""
        return max(0, self._quota + (self._extras > 0) - len(self.assigned_numbers[member_id]))

    def matches(self, member_id: str, number: int) -> bool:
        """Returns whether the member has no rack, or a replica of the partition is in it."""
        rack = self.racks_of_members[member_id]
        return rack is None or rack in self.racks[number]

    def give(self, member_id: str, numbers: Sequence[int]) -> None:
        assigned_numbers = self.assigned_numbers[member_id]
        assigned_numbers.extend(numbers)
        if numbers and len(assigned_numbers) > self._quota:
            self._extras -= 1
        for number in numbers:
            del self._unassigned[number]

    def place_in_rack(self) -> None:
        """Assigns each member the first partitions in its rack, up to its capacity."""
        for member_id in self.assigned_numbers:
            near = [number for number in self._unassigned if self.matches(member_id, number)]
            self.give(member_id, near[: self.remaining_capacity(member_id)])

    def place_rest(self) -> None:
        """Assigns each member the first unassigned partitions, up to its capacity."""
        for member_id in self.assigned_numbers:
            self.give(member_id, list(self._unassigned)[: self.remaining_capacity(member_id)])


def _place_by_rack(topics: Sequence[_TopicRange]) -> None:
    """Assigns partitions by rack; topics with the same members and size stay co-partitioned."""
    groups: dict[tuple[frozenset[str], int], list[_TopicRange]] = {}
    for topic in topics:
        groups.setdefault((frozenset(topic.assigned_numbers), len(topic.racks)), []).append(topic)
    for group in groups.values():
        if len(group) > 1:
            _place_co_partitioned(group)
        elif group[0].by_rack:
            group[0].place_in_rack()


def _place_co_partitioned(topics: Sequence[_TopicRange]) -> None:
    """Assigns partition n of all topics to the first member in a rack of each and with capacity in each."""
    candidates = list(topics[0].assigned_numbers)
    for number in range(len(topics[0].racks)):
        for member_id in candidates:
            if all(topic.remaining_capacity(member_id) and topic.matches(member_id, number) for topic in topics):
                for topic in topics:
                    topic.give(member_id, [number])
                break
        candidates = [
            member_id for member_id in candidates if any(topic.remaining_capacity(member_id) for topic in topics)
        ]
