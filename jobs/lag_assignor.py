"""Partition assignor that gives each member about the same lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_groupsource.assign import Assignor, GroupMember, GroupOffsets, PartitionRacks, TopicPartition


class LagAssignor(Assignor):
    """Assigns the partitions by falling lag, each to the subscribed member with the smallest sum so far.

    Option ``kafka.partition.assignment.strategy`` of every member is ``lag_assignor:LagAssignor``.
    """

    name = "lag"
    # members revoke everything before they join; an assignor that keeps owners in mind can be cooperative
    cooperative = False

    def configure(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> dict[str, list[TopicPartition]]:
        lags = self._lags([TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)])
        assigned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        sums = dict.fromkeys(assigned, 0)
        for partition in sorted(lags, key=lambda each: (-lags[each], each)):
            subscribed = [m.member_id for m in members if partition.topic in m.subscription.topics]
            # without lag the number of partitions decides
            chosen = min(subscribed, key=lambda each: (sums[each], len(assigned[each]), each))
            assigned[chosen].append(partition)
            sums[chosen] += lags[partition]
        return assigned

    def _lags(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """A partition without a committed offset counts from the start of its log."""
        starts = {**self._offsets.beginning_offsets(partitions), **self._offsets.committed(partitions)}
        ends = self._offsets.end_offsets(partitions)
        return {partition: max(ends[partition] - starts[partition], 0) for partition in partitions}
