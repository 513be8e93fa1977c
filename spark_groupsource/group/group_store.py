"""What `__consumer_offsets` says: the lasting state of one partition's groups. Only `replay` changes it.

The same `replay` runs when a partition is loaded and after every append, so what a restart would find is what is
here. Knows records and their values; not what they mean to members or clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Iterator, Mapping

from spark_groupsource.group.pending_transactional_offsets import PendingTransactionalOffsets
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)

_NO_OFFSETS: Mapping[TopicPartition, OffsetValue] = {}


@dataclass
class GroupStore:
    """Stored groups and committed offsets by group id; `unknown_records` counts those of types not known here.

    A group has an entry in `offsets` only while it has an offset. `pending` holds what transactions have committed that
    are still open.
    """

    groups: dict[str, GroupValue] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = field(default_factory=dict)
    unknown_records: int = 0
    pending: PendingTransactionalOffsets = field(default_factory=PendingTransactionalOffsets)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Takes one record over: the last one of a key wins, a null value removes.

        A key of unknown type is skipped and counted, as newer brokers write such.

        Raises: CorruptRecordError on bytes that do not decode and on values of an unknown version.
        """
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey):
            self._replay_offset(decoded, value)
        elif isinstance(decoded, GroupKey):
            if value is None:
                self.groups.pop(decoded.group_id, None)
            else:
                self.groups[decoded.group_id] = decode_group_value(value)
        else:
            self.unknown_records += 1

    def replay_transactional(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Takes over one record of a transaction, which is pending until `end_transaction`; a tombstone counts at once.

        Raises: CorruptRecordError as `replay`.
        """
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey) and value is not None:
            self.pending.put(producer_id, decoded, decode_offset_value(value))
        else:
            self.replay(key, value)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Takes over the marker that ends a producer's transaction; one that has nothing here means nothing."""
        for key, value in self.pending.end(producer_id, committed):
            self.offsets.setdefault(key.group_id, {})[TopicPartition(key.topic, key.partition)] = value

    def _replay_offset(self, key: OffsetKey, value: bytes | None) -> None:
        if self.pending:
            (self.pending.supersede if value is not None else self.pending.remove)(key)
        topic_partition = TopicPartition(key.topic, key.partition)
        stored = self.offsets.get(key.group_id)
        if value is not None:
            decoded = decode_offset_value(value)
            if stored is None:
                self.offsets[key.group_id] = {topic_partition: decoded}
            else:
                stored[topic_partition] = decoded
        elif stored is not None:
            stored.pop(topic_partition, None)
            if not stored:
                del self.offsets[key.group_id]

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        return self.offsets.get(group_id, _NO_OFFSETS)

    def partitions_of(self, group_id: str) -> AbstractSet[TopicPartition]:
        """The partitions of which a group has an offset, in force or pending."""
        stored = self.offsets_of(group_id).keys()
        pending = self.pending.of(group_id)
        return stored | set(pending) if pending else stored

    def contains(self, group_id: str) -> bool:
        return group_id in self.groups or group_id in self.offsets or bool(self.pending.of(group_id))

    def group_ids(self) -> Iterator[str]:
        """Every group with a record or an offset, once."""
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield group_id
        for group_id in self.pending.group_ids():
            if group_id not in self.groups and group_id not in self.offsets:
                yield group_id
