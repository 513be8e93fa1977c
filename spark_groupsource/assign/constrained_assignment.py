"""Sticky assignment for members with equal subscriptions.

Each member keeps its partitions up to its quota.

Source: KIP-54, KIP-881; Kafka's AbstractStickyAssignor.ConstrainedAssignmentBuilder.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import AbstractSet, Mapping

from spark_groupsource.assign.java_order import text_order
from spark_groupsource.assign.rack_info import RackInfo
from spark_groupsource.model import TopicPartition

# of a `TopicPartition`: its number, then its topic
_by_number = itemgetter(1, 0)


@lru_cache(maxsize=16)
def partitions_of(topic: str, count: int) -> tuple[TopicPartition, ...]:
    """Returns the partitions of a topic; a leader needs the same ones in each rebalance."""
    return tuple(map(TopicPartition, repeat(topic), range(count)))


class ConstrainedAssignmentBuilder:
    """One assignment, computed by `place`.

    Args:
        partitions: topic -> partition count, every topic subscribed by every member.
        owned: the partitions that each member owned, in the order in which members are processed.
        multiply_claimed: partitions claimed by two members of the same generation; neither keeps them.
        racks: the racks of members and partitions.

    Attributes: `assigned` (member id -> partitions), `transfers` (moved partition -> its new member).
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        owned: Mapping[str, list[TopicPartition]],
        multiply_claimed: AbstractSet[TopicPartition],
        racks: RackInfo,
    ) -> None:
        self._partitions = partitions
        self._owned = owned
        self._multiply_claimed = multiply_claimed
        self._racks = racks
        total = sum(partitions.values())
        self._minimum, self._extras = divmod(total, len(owned))  # `_extras` members may have one more than `_minimum`
        self._maximum = self._minimum + (self._extras > 0)
        self._below_quota: list[str] = []  # members with fewer than `_minimum`
        self._at_minimum: deque[str] = deque()  # members with `_minimum` that could get one more
        self._revoked_from: dict[TopicPartition, str] = {}
        self.assigned: dict[str, list[TopicPartition]] = {}
        self.transfers: dict[TopicPartition, str] = {}

    def place(self) -> None:
        """Fills `assigned` and `transfers`."""
        for member_id, partitions in self._owned.items():
            self.assigned[member_id] = self._keep(member_id, partitions)
        kept = set[TopicPartition]().union(*self.assigned.values())
        unassigned = [
            partition
            for topic in sorted(self._partitions)
            for partition in partitions_of(topic, self._partitions[topic])
            if partition not in kept
        ]
        self._below_quota.sort(key=text_order)
        self._at_minimum = deque(sorted(self._at_minimum, key=text_order))
        unassigned = self._racks.fewest_members_first(unassigned)
        if self._racks.active:
            unassigned = self._place_by_rack(unassigned)
        self._place_round_robin(unassigned)

    def _keep(self, member_id: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
        own = partitions
        if self._racks.active:
            own = [partition for partition in partitions if not self._racks.mismatches(member_id, partition)]
            self._revoked_from.update(dict.fromkeys(set(partitions).difference(own), member_id))
        if self._multiply_claimed:
            own = [partition for partition in own if partition not in self._multiply_claimed]
        own = sorted(own, key=_by_number)
        quota = self._minimum
        if len(own) < self._minimum:
            self._below_quota.append(member_id)
            return own
        if len(own) >= self._maximum and self._extras > 0:
            quota = self._maximum
            self._take_extra()
        elif self._extras > 0:
            self._at_minimum.append(member_id)
        self._revoked_from.update((partition, member_id) for partition in own[quota:])
        return own[:quota]

    def _take_extra(self) -> None:
        self._extras -= 1
        if self._extras == 0:
            self._at_minimum.clear()

    def _place_by_rack(self, unassigned: list[TopicPartition]) -> list[TopicPartition]:
        """Assigns partitions to members in their racks, members below quota first; returns the remaining partitions."""
        rest = []
        turn = 0
        for partition in unassigned:
            place = self._find_in_rack(partition, self._below_quota, turn)
            if place >= 0:
                member_id = self._below_quota[place]
                count = self._give(partition, member_id)
                if count >= self._minimum:
                    del self._below_quota[place]
                    if count < self._maximum and self._extras > 0:
                        self._at_minimum.append(member_id)
                else:
                    place += 1
                turn = place % len(self._below_quota) if self._below_quota else 0
                continue
            candidates = list(self._at_minimum)
            place = self._find_in_rack(partition, candidates, 0)
            if place < 0:
                rest.append(partition)
            elif self._give(partition, candidates[place]) == self._maximum:
                del self._at_minimum[place]
                self._take_extra()
        return rest

    def _find_in_rack(self, partition: TopicPartition, members: list[str], start: int) -> int:
        """Returns the index of the first member, cyclically from `start`, in a rack of the partition; -1 if none is."""
        for step in range(len(members)):
            place = (start + step) % len(members)
            if self._racks.matches(members[place], partition):
                return place
        return -1

    def _place_round_robin(self, unassigned: list[TopicPartition]) -> None:
        """Assigns partitions round robin to members below quota, then one more each to members at the minimum."""
        unassigned = self._place_evenly(unassigned)
        members_in_order, next_round = deque(self._below_quota), deque[str]()
        for partition in unassigned:
            if not members_in_order:
                members_in_order, next_round = next_round, members_in_order
            if not members_in_order:
                self._give(partition, self._at_minimum.popleft())
                continue
            member_id = members_in_order.popleft()
            if self._give(partition, member_id) < self._minimum:
                next_round.append(member_id)
            else:
                self._at_minimum.append(member_id)

    def _place_evenly(self, unassigned: list[TopicPartition]) -> list[TopicPartition]:
        """Fills the members below quota at once if none of them owns a partition and none moves; returns the rest.

        The result is that of the rounds: a fresh assignment, one member at a time.
        """
        members = self._below_quota
        count = len(members)
        if not count or self._revoked_from or self._multiply_claimed or any(self.assigned[each] for each in members):
            return unassigned
        needed = count * self._minimum
        for turn, member_id in enumerate(members):
            self.assigned[member_id] = unassigned[turn:needed:count]
        self._at_minimum.extend(members)
        self._below_quota = []
        return unassigned[needed:]

    def _give(self, partition: TopicPartition, member_id: str) -> int:
        revoked_from = self._revoked_from.get(partition, member_id)
        if revoked_from != member_id or partition in self._multiply_claimed:
            self.transfers[partition] = member_id
        assigned = self.assigned[member_id]
        assigned.append(partition)
        return len(assigned)
