"""Which partitions moved between which members while a placement was balanced.

Source: Kafka's AbstractStickyAssignor.PartitionMovements.
"""

from __future__ import annotations

from spark_groupsource.assign.order import hash_map_order, partition_hash
from spark_groupsource.model import TopicPartition

_Pair = tuple[str, str]


class Moves:
    """Keeps, for each partition that is not where it began, its first and its present member."""

    def __init__(self) -> None:
        self._pair_of: dict[TopicPartition, _Pair] = {}
        self._by_topic: dict[str, dict[_Pair, dict[TopicPartition, None]]] = {}

    def to_be_moved(self, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        """The partition to move in place of the one wished for.

        When another partition of the topic went the opposite way before, taking that one back has the same effect on
        the counts and leaves two partitions where they were.
        """
        origin = self._pair_of.get(partition, (source, destination))[0]
        opposite = self._by_topic.get(partition.topic, {}).get((destination, origin))
        return hash_map_order(list(opposite), partition_hash)[0] if opposite else partition

    def record(self, partition: TopicPartition, source: str, destination: str) -> None:
        """Notes a move; a partition that returns to where it began has not moved."""
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
