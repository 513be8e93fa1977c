"""Sticky placement where all members subscribe to the same topics: each keeps what its quota allows.

Source: KIP-54, KIP-881; Kafka's AbstractStickyAssignor.ConstrainedAssignmentBuilder.
"""

from __future__ import annotations

from collections import deque
from typing import AbstractSet, Mapping

from spark_groupsource.assign.order import text_order
from spark_groupsource.assign.racks import RackMap
from spark_groupsource.model import TopicPartition


class ConstrainedPlacement:
    """One placement; `place` does it.

    Args:
        partitions: topic -> partition count, every topic subscribed by every member.
        owned: what each member had, in the order in which members are walked.
        multiply_claimed: partitions that two members of the same generation claim; nobody keeps them.
        racks: where members and partitions stand.

    Attributes: `assigned` (member id -> partitions), `transfers` (partition that moves -> its new member).
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        owned: Mapping[str, list[TopicPartition]],
        multiply_claimed: AbstractSet[TopicPartition],
        racks: RackMap,
    ) -> None:
        self._partitions = partitions
        self._owned = owned
        self._multiply_claimed = multiply_claimed
        self._racks = racks
        total = sum(partitions.values())
        self._low, self._extras = divmod(total, len(owned))  # `_extras` members may have one more than `_low`
        self._high = self._low + (self._extras > 0)
        self._below: list[str] = []  # members with fewer than `_low`
        self._at_low: deque[str] = deque()  # members with `_low` that could get one more
        self._revoked_from: dict[TopicPartition, str] = {}
        self.assigned: dict[str, list[TopicPartition]] = {}
        self.transfers: dict[TopicPartition, str] = {}

    def place(self) -> None:
        """Fills `assigned` and `transfers`."""
        for member_id, partitions in self._owned.items():
            self.assigned[member_id] = self._keep(member_id, partitions)
        kept = {partition for partitions in self.assigned.values() for partition in partitions}
        unassigned = [
            partition
            for topic in sorted(self._partitions)
            for number in range(self._partitions[topic])
            if (partition := TopicPartition(topic, number)) not in kept
        ]
        self._below.sort(key=text_order)
        self._at_low = deque(sorted(self._at_low, key=text_order))
        unassigned = self._racks.fewest_members_first(unassigned)
        if self._racks.active:
            unassigned = self._place_by_rack(unassigned)
        self._place_in_turn(unassigned)

    def _keep(self, member_id: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
        for partition in partitions:
            if self._racks.mismatches(member_id, partition):
                self._revoked_from[partition] = member_id
        own = sorted(
            (
                partition
                for partition in partitions
                if partition not in self._multiply_claimed and not self._racks.mismatches(member_id, partition)
            ),
            key=lambda partition: (partition.partition, partition.topic),
        )
        quota = self._low
        if len(own) < self._low:
            self._below.append(member_id)
            return own
        if len(own) >= self._high and self._extras > 0:
            quota = self._high
            self._take_extra()
        elif self._extras > 0:
            self._at_low.append(member_id)
        self._revoked_from.update((partition, member_id) for partition in own[quota:])
        return own[:quota]

    def _take_extra(self) -> None:
        self._extras -= 1
        if self._extras == 0:
            self._at_low.clear()

    def _place_by_rack(self, unassigned: list[TopicPartition]) -> list[TopicPartition]:
        """Gives partitions to members that stand near them, those below their quota first; returns what is left."""
        rest = []
        turn = 0
        for partition in unassigned:
            place = self._near(partition, self._below, turn)
            if place >= 0:
                member_id = self._below[place]
                count = self._give(partition, member_id)
                if count >= self._low:
                    del self._below[place]
                    if count < self._high and self._extras > 0:
                        self._at_low.append(member_id)
                else:
                    place += 1
                turn = place % len(self._below) if self._below else 0
                continue
            candidates = list(self._at_low)
            place = self._near(partition, candidates, 0)
            if place < 0:
                rest.append(partition)
            elif self._give(partition, candidates[place]) == self._high:
                del self._at_low[place]
                self._take_extra()
        return rest

    def _near(self, partition: TopicPartition, members: list[str], start: int) -> int:
        """Index of the first member, in a circle from `start`, that stands near the partition; -1 if none does."""
        for step in range(len(members)):
            place = (start + step) % len(members)
            if self._racks.matches(members[place], partition):
                return place
        return -1

    def _place_in_turn(self, unassigned: list[TopicPartition]) -> None:
        """Deals partitions in a circle to the members below their quota, then one more to some of the others."""
        circle, again = deque(self._below), deque[str]()
        for partition in unassigned:
            if not circle:
                circle, again = again, circle
            if not circle:
                self._give(partition, self._at_low.popleft())
                continue
            member_id = circle.popleft()
            if self._give(partition, member_id) < self._low:
                again.append(member_id)
            else:
                self._at_low.append(member_id)

    def _give(self, partition: TopicPartition, member_id: str) -> int:
        revoked_from = self._revoked_from.get(partition, member_id)
        if revoked_from != member_id or partition in self._multiply_claimed:
            self.transfers[partition] = member_id
        assigned = self.assigned[member_id]
        assigned.append(partition)
        return len(assigned)
