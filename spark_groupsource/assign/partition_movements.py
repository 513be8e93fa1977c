"""Partition movements during the balancing of a sticky assignment.

Source: Kafka's AbstractStickyAssignor.PartitionMovements.
"""

from __future__ import annotations

from spark_groupsource.assign.java_order import hash_map_order, partition_hash
from spark_groupsource.model import TopicPartition

_Pair = tuple[str, str]


class PartitionMovements:
    """Tracks the original and the current member of every moved partition."""

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
