"""Offsets committed in transactions that are still open: nobody sees them until the transaction's marker comes.

Pure bookkeeping of what the log says, in the log's order: whichever commit of a partition comes later in the log wins,
also when its transaction ends earlier. Knows no request and no group.

Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager, `pendingTransactionalOffsets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Iterator

from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue

_NOTHING: Collection[TopicPartition] = frozenset()


@dataclass
class _Pending:
    value: OffsetValue
    order: int = field(compare=False)
    superseded: bool = False  # a commit that came later is in force already


@dataclass
class PendingTransactionalOffsets:
    """Pending offsets by the producer id of their transaction; false when there is none."""

    _open: dict[int, dict[OffsetKey, _Pending]] = field(default_factory=dict)
    # group id -> partition -> in how many transactions it is pending
    _groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    _order: int = field(default=0, compare=False)

    def __bool__(self) -> bool:
        return bool(self._open)

    def of(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions of a group that have a pending offset."""
        found = self._groups.get(group_id)
        return _NOTHING if found is None else found.keys()

    def group_ids(self) -> Iterator[str]:
        """Every group with a pending offset, once."""
        return iter(self._groups)

    def put(self, producer_id: int, key: OffsetKey, value: OffsetValue) -> None:
        """Takes in an offset of an open transaction; the first one of a producer opens it."""
        entries = self._open.setdefault(producer_id, {})
        if key not in entries:
            counts = self._groups.setdefault(key.group_id, {})
            topic_partition = TopicPartition(key.topic, key.partition)
            counts[topic_partition] = counts.get(topic_partition, 0) + 1
        self._order += 1
        entries[key] = _Pending(value, self._order)

    def supersede(self, key: OffsetKey, order: int | None = None) -> None:
        """A later commit is in force: those pending now, or those before `order`, will change nothing."""
        for entries in self._open.values():
            pending = entries.get(key)
            if pending is not None and (order is None or pending.order < order):
                pending.superseded = True

    def remove(self, key: OffsetKey) -> None:
        """A tombstone takes the pending offsets of its key along."""
        for producer_id, entries in list(self._open.items()):
            if entries.pop(key, None) is not None:
                self._discount(key)
                if not entries:
                    del self._open[producer_id]

    def end(self, producer_id: int, committed: bool) -> list[tuple[OffsetKey, OffsetValue]]:
        """Closes a transaction; returns the offsets that are in force from now on, none of an aborted one."""
        entries = self._open.pop(producer_id, {})
        for key in entries:
            self._discount(key)
        if not committed:
            return []
        for key, pending in entries.items():
            self.supersede(key, pending.order)
        return [(key, pending.value) for key, pending in entries.items() if not pending.superseded]

    def _discount(self, key: OffsetKey) -> None:
        counts = self._groups[key.group_id]
        topic_partition = TopicPartition(key.topic, key.partition)
        counts[topic_partition] -= 1
        if not counts[topic_partition]:
            del counts[topic_partition]
            if not counts:
                del self._groups[key.group_id]
