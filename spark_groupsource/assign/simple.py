"""The assignors that keep no memory: range and roundrobin."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from spark_groupsource.assign.order import static_first
from spark_groupsource.assign.racks import racks_count, racks_of_topic
from spark_groupsource.model import Assignment, GroupMember, PartitionRacks, TopicPartition

Assigned = dict[str, list[TopicPartition]]


class _Stateless:
    """What range and roundrobin have in common: no user data, nothing to remember, no incremental rebalance."""

    cooperative = False

    def user_data(
        self, topics: Iterable[str], owned: Sequence[TopicPartition], generation_id: int
    ) -> bytes | None:
        """None: these assignors need to know nothing of the generation before."""
        return None

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Nothing is remembered."""


class RoundRobinAssignor(_Stateless):
    """All partitions, by topic and number, dealt to the members in a circle.

    A member that does not subscribe to a partition's topic is passed over, so with different subscriptions the counts
    may differ by more than one.
    """

    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Assigned:
        """The partitions of every member; members without one have an empty list."""
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
    """For each topic by itself, consecutive partitions to the members in order, the first ones one more.

    Topics with the same members and the same number of partitions are thereby co-partitioned: a member that has
    partition 3 of one has partition 3 of the other.

    Args:
        prefer_racks: place by rack even where every partition is in all racks.
    """

    name = "range"

    def __init__(self, *, prefer_racks: bool = False) -> None:
        self._prefer_racks = prefer_racks

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> Assigned:
        """The partitions of every member; members without one have an empty list."""
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
            for member_id, numbers in topic_range.given.items():
                ordered = sorted(numbers) if by_rack else numbers
                assigned[member_id].extend(TopicPartition(topic_range.topic, number) for number in ordered)
        return assigned


class _TopicRange:
    """One topic while its partitions are handed out."""

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
        self.given: dict[str, list[int]] = {member_id: [] for member_id in self.racks_of_members}
        self._unassigned = dict.fromkeys(range(partition_count))
        self._quota, self._extras = divmod(partition_count, len(members))
        used = {rack for rack in self.racks_of_members.values() if rack}
        # without a member in a rack the topic takes no part in the rack pass, not even by its size
        self.racks = racks_of_topic(topic, partition_count, racks) if used else []
        self.by_rack = racks_count(used, self.racks, prefer=prefer_racks)

    def room_of(self, member_id: str) -> int:
        """How many partitions the member may still take; one more than its quota while extras are left."""
        return max(0, self._quota + (self._extras > 0) - len(self.given[member_id]))

    def matches(self, member_id: str, number: int) -> bool:
        """True when the member has no rack, or a replica of the partition stands in it."""
        rack = self.racks_of_members[member_id]
        return rack is None or rack in self.racks[number]

    def give(self, member_id: str, numbers: Sequence[int]) -> None:
        given = self.given[member_id]
        given.extend(numbers)
        if numbers and len(given) > self._quota:
            self._extras -= 1
        for number in numbers:
            del self._unassigned[number]

    def place_matching(self) -> None:
        """Gives each member the first partitions in its rack, as many as it has room for."""
        for member_id in self.given:
            near = [number for number in self._unassigned if self.matches(member_id, number)]
            self.give(member_id, near[: self.room_of(member_id)])

    def place_rest(self) -> None:
        """Gives each member the first partitions that are left, as many as it has room for."""
        for member_id in self.given:
            self.give(member_id, list(self._unassigned)[: self.room_of(member_id)])


def _place_by_rack(topics: Sequence[_TopicRange]) -> None:
    """Places what can be placed by rack; topics of the same members and size are kept co-partitioned."""
    groups: dict[tuple[frozenset[str], int], list[_TopicRange]] = {}
    for topic in topics:
        groups.setdefault((frozenset(topic.given), len(topic.racks)), []).append(topic)
    for group in groups.values():
        if len(group) > 1:
            _place_together(group)
        elif group[0].by_rack:
            group[0].place_matching()


def _place_together(topics: Sequence[_TopicRange]) -> None:
    """Gives partition n of all the topics to the first member that is near all of them and has room in all."""
    candidates = list(topics[0].given)
    for number in range(len(topics[0].racks)):
        for member_id in candidates:
            if all(topic.room_of(member_id) and topic.matches(member_id, number) for topic in topics):
                for topic in topics:
                    topic.give(member_id, [number])
                break
        candidates = [member_id for member_id in candidates if any(topic.room_of(member_id) for topic in topics)]
