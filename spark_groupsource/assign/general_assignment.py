"""Sticky assignment for members with different subscriptions.

Assigns the unassigned partitions, then moves single partitions while a move improves the balance.

Source: KIP-54, KIP-881; Kafka's AbstractStickyAssignor.GeneralAssignmentBuilder.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Iterable, Mapping, Sequence

from spark_groupsource.assign.java_order import hash_map_order, partition_hash, text_order
from spark_groupsource.assign.rack_info import RackInfo
from spark_groupsource.model import TopicPartition

Owned = dict[TopicPartition, None]
"""Partitions of one member in the order of assignment; a dict for removal in constant time."""


class GeneralAssignmentBuilder:
    """One assignment, computed by `place`.

    Args:
        partitions: topic -> partition count of every subscribed topic.
        subscriptions: topics of each member, in the order in which members are processed.
        owned: the partitions that each member owned.
        previous_owner: partition -> the member that owned it in an older generation.
        racks: the racks of members and partitions.

    Attributes: `assigned` (member id -> partitions).
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        subscriptions: Mapping[str, Sequence[str]],
        owned: Mapping[str, list[TopicPartition]],
        previous_owner: Mapping[TopicPartition, str],
        racks: RackInfo,
    ) -> None:
        self._partitions = partitions
        self._topics_of = {
            member_id: [topic for topic in topics if topic in partitions] for member_id, topics in subscriptions.items()
        }
        self._subscribed = {member_id: frozenset(topics) for member_id, topics in self._topics_of.items()}
        self._members_of: dict[str, list[str]] = {topic: [] for topic in partitions}
        for member_id, topics in self._topics_of.items():
            for topic in topics:
                self._members_of[topic].append(member_id)
        self._previous_owner = previous_owner
        self._racks = racks
        self._capacity = {
            member_id: sum(partitions[topic] for topic in topics) for member_id, topics in self._topics_of.items()
        }
        self._movements = PartitionMovements()
        self._revocation_required = False
        self._has: dict[str, Owned] = {}
        self._owner: dict[TopicPartition, str] = {}
        self._keep(owned)
        # rank of each member in the order of ids; members by number of partitions, then by rank
        self._ids = sorted(self._has, key=text_order)
        self._rank = {member_id: rank for rank, member_id in enumerate(self._ids)}
        self._by_load = sorted((len(self._has[member_id]), rank) for member_id, rank in self._rank.items())
        self._holders: dict[str, dict[str, int]] | None = None
        self._imbalance: tuple[str, str, str] | None = None
        self._balanced: bool | None = None

    @property
    def assigned(self) -> dict[str, list[TopicPartition]]:
        return {member_id: list(has) for member_id, has in self._has.items()}

    def place(self) -> None:
        """Assigns the unassigned partitions, then balances; discards the balanced result unless it is better."""
        everything = [
            TopicPartition(topic, number)
            for topic in sorted(self._partitions, key=lambda topic: (len(self._members_of[topic]), topic))
            for number in range(self._partitions[topic])
        ]
        unassigned = [partition for partition in everything if partition not in self._owner]
        initial = self._by_load[-1][0] == 0
        self._fill(unassigned)
        movable = {topic for topic, members in self._members_of.items() if len(members) >= 2}
        self._exclude_fixed_members(movable)
        before = {member_id: self._has[member_id].copy() for member_id in self._participants()}
        score = self._score()
        if not self._revocation_required:
            self._balance([partition for partition in unassigned if partition.topic in movable])
        moved = self._balance([partition for partition in everything if partition.topic in movable])
        if not initial and moved and self._score() >= score:
            self._has.update(before)

    def _keep(self, owned: Mapping[str, list[TopicPartition]]) -> None:
        for member_id, partitions in owned.items():
            kept = {
                partition: None
                for partition in partitions
                if partition.topic in self._subscribed[member_id] and not self._racks.mismatches(member_id, partition)
            }
            if len(kept) < len(partitions):
                self._revocation_required = True
            self._has[member_id] = kept
            self._owner.update(dict.fromkeys(kept, member_id))

    def _fill(self, unassigned: Iterable[TopicPartition]) -> None:
        """Assigns each partition to the subscribed member with the fewest partitions, first by rack if used."""
        if self._racks.active:
            unassigned = [partition for partition in unassigned if not self._give_to_least(partition, near=True)]
        for partition in unassigned:
            self._give_to_least(partition, near=False)

    def _give_to_least(self, partition: TopicPartition, *, near: bool) -> bool:
        for _, rank in self._by_load:
            member_id = self._ids[rank]
            if partition.topic in self._subscribed[member_id]:
                if not (near and self._racks.mismatches(member_id, partition)):
                    self._put(partition, None, member_id)
                    return True
        return False

    def _put(self, partition: TopicPartition, source: str | None, destination: str) -> None:
        for member_id in filter(None, (source, destination)):
            del self._by_load[bisect_left(self._by_load, (len(self._has[member_id]), self._rank[member_id]))]
        if source is not None:
            del self._has[source][partition]
        self._has[destination][partition] = None
        self._owner[partition] = destination
        for member_id in filter(None, (source, destination)):
            insort(self._by_load, (len(self._has[member_id]), self._rank[member_id]))

    def _exclude_fixed_members(self, movable: set[str]) -> None:
        """Excludes members that can neither get nor give partitions."""
        self._by_load = [
            (count, rank)
            for count, rank in self._by_load
            if count < self._capacity[self._ids[rank]]
            or any(partition.topic in movable for partition in self._has[self._ids[rank]])
        ]

    def _participants(self) -> list[str]:
        return [self._ids[rank] for _, rank in self._by_load]

    def _score(self) -> int:
        """Returns the sum of the differences of counts over all pairs of members; 0 is perfect balance."""
        last = len(self._by_load) - 1
        return sum(count * (2 * place - last) for place, (count, _) in enumerate(self._by_load))

    def _balance(self, partitions: Sequence[TopicPartition]) -> bool:
        """Moves partitions until no move improves the balance; True if any moved."""
        moved = False
        modified = True
        while modified:
            modified = False
            for partition in partitions:
                if self._is_balanced():
                    break
                destination = self._better_member(partition)
                if destination is not None:
                    self._move(partition, destination)
                    modified = moved = True
        return moved

    def _better_member(self, partition: TopicPartition) -> str | None:
        """Returns the member to which the partition should move: one with at least two fewer, None if there is none."""
        owner = self._owner[partition]
        bound = len(self._has[owner]) - 1
        previous = self._previous_owner.get(partition)
        if previous is not None and len(self._has[previous]) < bound:
            # unlike Kafka, checks that the member still subscribes to the topic
            if partition.topic in self._subscribed[previous]:
                return previous
        for count, rank in self._by_load:
            if count >= bound:
                return None
            member_id = self._ids[rank]
            if partition.topic in self._subscribed[member_id]:
                return member_id
        return None

    def _move(self, partition: TopicPartition, destination: str) -> None:
        """Moves the partition, or moves back one of the same topic that moved in the opposite direction before."""
        partition = self._movements.partition_to_move(partition, self._owner[partition], destination)
        source = self._owner[partition]
        self._movements.record(partition, source, destination)
        self._put(partition, source, destination)
        self._balanced = None
        if self._holders is not None:
            holders = self._holders[partition.topic]
            holders[source] -= 1
            holders[destination] = holders.get(destination, 0) + 1

    def _is_balanced(self) -> bool:
        """Returns whether counts differ by at most one, or no member can take a partition from one with two more."""
        if self._balanced is None:
            self._balanced = self._by_load[0][0] >= self._by_load[-1][0] - 1 or not self._find_imbalance()
        return self._balanced

    def _find_imbalance(self) -> bool:
        """Returns whether a member could take a partition from one with at least two more.

        The result is cached: these members are usually still out of balance after the next move, and checking them
        first saves an iteration over all members and topics.
        """
        if self._imbalance is not None and self._out_of_balance(*self._imbalance):
            return True
        if self._holders is None:
            self._holders = {topic: {} for topic in self._partitions}
            for partition, member_id in self._owner.items():
                holders = self._holders[partition.topic]
                holders[member_id] = holders.get(member_id, 0) + 1
        most = {
            topic: max(
                (member_id for member_id, count in holders.items() if count),
                key=lambda member_id: len(self._has[member_id]),
                default=None,
            )
            for topic, holders in self._holders.items()
        }
        for _, rank in self._by_load:
            member_id = self._ids[rank]
            for topic in self._topics_of[member_id]:
                holder = most[topic]
                if holder is not None and self._out_of_balance(member_id, topic, holder):
                    self._imbalance = (member_id, topic, holder)
                    return True
        return False

    def _out_of_balance(self, member_id: str, topic: str, holder: str) -> bool:
        assert self._holders is not None
        count = len(self._has[member_id])
        return (
            count < self._capacity[member_id]
            and len(self._has[holder]) > count + 1
            and self._holders[topic].get(holder, 0) > 0
        )


_Pair = tuple[str, str]


class PartitionMovements:
    """Tracks the original and the current member of every moved partition.

    Source: Kafka's AbstractStickyAssignor.PartitionMovements.
    """

    def __init__(self) -> None:
        self._pair_of: dict[TopicPartition, _Pair] = {}
        self._by_topic: dict[str, dict[_Pair, dict[TopicPartition, None]]] = {}

    def partition_to_move(self, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        """Returns the partition to move instead of `partition`.

        If another partition of the topic moved in the opposite direction before, moving that one back has the same
        effect on the counts, and neither partition has moved.
        """
        origin = self._pair_of.get(partition, (source, destination))[0]
        opposite = self._by_topic.get(partition.topic, {}).get((destination, origin))
        return hash_map_order(list(opposite), partition_hash)[0] if opposite else partition

    def record(self, partition: TopicPartition, source: str, destination: str) -> None:
        """Records a move; a partition that returns to its original member has not moved."""
        before = self._pair_of.pop(partition, None)
        if before is not None:
            source = before[0]
            same_way = self._by_topic[partition.topic][before]
            del same_way[partition]
            if not same_way:
                del self._by_topic[partition.topic][before]
        if source != destination:
            self._pair_of[partition] = (source, destination)
            by_pair = self._by_topic.setdefault(partition.topic, {})
            by_pair.setdefault((source, destination), {})[partition] = None
