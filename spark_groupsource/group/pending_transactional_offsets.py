"""Offsets committed in open transactions.

Pending offsets are not visible until the commit marker of their transaction. The order of the log decides: of two
commits for a partition the later one wins, even if its transaction ends first.

Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager, `pendingTransactionalOffsets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Iterator

from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue

_OFFSET_BYTES = 600
_NOTHING: Collection[TopicPartition] = frozenset()


@dataclass
class _Pending:
    value: OffsetValue
    order: int = field(compare=False)
    superseded: bool = False  # a later commit has replaced it


@dataclass
class PendingTransactionalOffsets:
    """Pending offsets by the producer id of their transaction; false if there are none."""

    _open: dict[int, dict[OffsetKey, _Pending]] = field(default_factory=dict)
    # group id -> partition -> number of transactions in which it is pending
    _groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    _order: int = field(default=0, compare=False)
    _metadata_bytes: int = field(default=0, compare=False)

    @property
    def size_bytes(self) -> int:
        """The approximate memory. O(open transactions)."""
        return sum(_OFFSET_BYTES * len(entries) for entries in self._open.values()) + self._metadata_bytes

    def __bool__(self) -> bool:
        return bool(self._open)

    def partitions_of(self, group_id: str) -> Collection[TopicPartition]:
        """Returns the partitions for which a group has a pending offset."""
        found = self._groups.get(group_id)
        return _NOTHING if found is None else found.keys()

    def group_ids(self) -> Iterator[str]:
        """Iterates over every group with a pending offset, once."""
        return iter(self._groups)

    def put(self, producer_id: int, key: OffsetKey, value: OffsetValue) -> None:
        """Adds an offset; the first offset of a producer opens its transaction."""
        entries = self._open.setdefault(producer_id, {})
        if key not in entries:
            counts = self._groups.setdefault(key.group_id, {})
            topic_partition = TopicPartition(key.topic, key.partition)
            counts[topic_partition] = counts.get(topic_partition, 0) + 1
        else:
            self._metadata_bytes -= len(entries[key].value.metadata)
        self._order += 1
        self._metadata_bytes += len(value.metadata)
        entries[key] = _Pending(value, self._order)

    def supersede(self, key: OffsetKey, order: int | None = None) -> None:
        """Marks the pending offsets of a key as replaced by a later commit: all of them, or those before `order`."""
        for entries in self._open.values():
            pending = entries.get(key)
            if pending is not None and (order is None or pending.order < order):
                pending.superseded = True

    def remove(self, key: OffsetKey) -> None:
        """Removes the pending offsets of a key, after its tombstone."""
        for producer_id, entries in list(self._open.items()):
            pending = entries.pop(key, None)
            if pending is not None:
                self._metadata_bytes -= len(pending.value.metadata)
                self._decrement(key)
                if not entries:
                    del self._open[producer_id]

    def end(self, producer_id: int, committed: bool) -> list[tuple[OffsetKey, OffsetValue]]:
        """Ends a transaction. Returns the offsets that it commits; none if it is aborted."""
        entries = self._open.pop(producer_id, {})
        self._metadata_bytes -= sum(len(pending.value.metadata) for pending in entries.values())
        if self._open:
            for key, pending in entries.items():
                # only other transactions in which the partition is pending
                if self._decrement(key) and committed:
                    self.supersede(key, pending.order)
        else:
            self._groups.clear()  # one transaction may have thousands of offsets
        if not committed:
            return []
        return [(key, pending.value) for key, pending in entries.items() if not pending.superseded]

    def _decrement(self, key: OffsetKey) -> int:
        """Returns the number of transactions in which the partition of `key` is still pending."""
        counts = self._groups[key.group_id]
        topic_partition = TopicPartition(key.topic, key.partition)
        left = counts[topic_partition] - 1
        if left:
            counts[topic_partition] = left
            return left
        del counts[topic_partition]
        if not counts:
            del self._groups[key.group_id]
        return 0
