"""Offsets committed in open transactions.

Pending offsets are not visible until the commit marker of their transaction. The order of the log decides: of two
commits for a partition the later one wins, even if its transaction ends first.

Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager, `pendingTransactionalOffsets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Dict, Iterator

from spark_groupsource.broker.group.members import text_bytes
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue

_OFFSET_BYTES = 600
_NOTHING: Collection[TopicPartition] = frozenset()


@dataclass
class _Pending:
    value: OffsetValue
    order: int = field(compare=False)
    superseded: bool = False  # a later commit has replaced it


Entries = Dict[TopicPartition, _Pending]


@dataclass
class PendingTransactionalOffsets:
    """Pending offsets by the producer id of their transaction; false if there are none.

    A transaction may have thousands of offsets, whose end must be a short step: what is done for each of them is done
    when they are added.
    """

    _open: dict[int, dict[str, Entries]] = field(default_factory=dict)  # and by group id
    _producers: dict[str, set[int]] = field(default_factory=dict)  # those with pending offsets, by group id
    _order: int = field(default=0, compare=False)
    # per transaction, with metadata
    _sizes: dict[int, int] = field(default_factory=dict, compare=False)

    @property
    def size_bytes(self) -> int:
        """The approximate memory. O(open transactions)."""
        return sum(self._sizes.values())

    def __bool__(self) -> bool:
        return bool(self._open)

    def partitions_of(self, group_id: str) -> Collection[TopicPartition]:
        """Returns the partitions for which a group has a pending offset."""
        producers = self._producers.get(group_id)
        if producers is None:
            return _NOTHING
        found = [self._open[producer_id][group_id].keys() for producer_id in producers]
        return found[0] if len(found) == 1 else frozenset().union(*found)

    def group_ids(self) -> Iterator[str]:
        """Iterates over every group with a pending offset, once."""
        return iter(self._producers)

    def put(self, producer_id: int, key: OffsetKey, value: OffsetValue) -> None:
        """Adds an offset; the first offset of a producer opens its transaction."""
        group_id, topic, partition = key
        entries = self._open.setdefault(producer_id, {}).get(group_id)
        if entries is None:
            entries = self._open[producer_id][group_id] = {}
            self._producers.setdefault(group_id, set()).add(producer_id)
        topic_partition = TopicPartition(topic, partition)
        known = entries.get(topic_partition)
        added = _OFFSET_BYTES if known is None else -text_bytes(known.value.metadata)
        self._sizes[producer_id] = self._sizes.get(producer_id, 0) + added + text_bytes(value.metadata)
        self._order += 1
        entries[topic_partition] = _Pending(value, self._order)

    def supersede(self, key: OffsetKey) -> None:
        """Marks the pending offsets of a key as replaced by a later commit."""
        for producer_id in self._producers.get(key.group_id, ()):
            pending = self._open[producer_id][key.group_id].get(TopicPartition(key.topic, key.partition))
            if pending is not None:
                pending.superseded = True

    def remove(self, key: OffsetKey) -> None:
        """Removes the pending offsets of a key, after its tombstone."""
        for producer_id in tuple(self._producers.get(key.group_id, ())):
            groups = self._open[producer_id]
            pending = groups[key.group_id].pop(TopicPartition(key.topic, key.partition), None)
            if pending is None:
                continue
            self._sizes[producer_id] -= _OFFSET_BYTES + text_bytes(pending.value.metadata)
            if not groups[key.group_id]:
                del groups[key.group_id]
                self._remove_producer(key.group_id, producer_id)
                if not groups:
                    del self._open[producer_id], self._sizes[producer_id]

    def end(self, producer_id: int, committed: bool) -> dict[str, dict[TopicPartition, OffsetValue]]:
        """Ends a transaction. Returns the offsets that it commits, by group id; none if it is aborted."""
        ended = self._open.pop(producer_id, {})
        self._sizes.pop(producer_id, None)
        for group_id, entries in ended.items():
            self._remove_producer(group_id, producer_id)
            if not committed:
                continue
            for other in self._producers.get(group_id, ()):
                other_entries = self._open[other][group_id]
                for topic_partition in entries.keys() & other_entries.keys():
                    pending = other_entries[topic_partition]
                    if pending.order < entries[topic_partition].order:
                        pending.superseded = True
        if not committed:
            return {}
        return {
            group_id: {partition: pending.value for partition, pending in entries.items() if not pending.superseded}
            for group_id, entries in ended.items()
        }

    def _remove_producer(self, group_id: str, producer_id: int) -> None:
        producers = self._producers[group_id]
        producers.discard(producer_id)
        if not producers:
            del self._producers[group_id]
