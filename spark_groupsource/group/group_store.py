"""Groups and committed offsets as replayed from one partition of `__consumer_offsets`.

`replay` alone changes this state. It runs for every record when the partition is loaded and after every append, so a
restart finds the same state.
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
    """Stored groups and committed offsets.

    Attributes:
        groups: group id -> stored group.
        offsets: group id -> partition -> committed offset; has no group without offsets.
        unknown_records: number of skipped records with a key of an unknown type.
        pending: offsets committed in open transactions.
    """

    groups: dict[str, GroupValue] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = field(default_factory=dict)
    unknown_records: int = 0
    pending: PendingTransactionalOffsets = field(default_factory=PendingTransactionalOffsets)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replays one record: the last record of a key wins, a tombstone removes the key.

        Skips and counts keys of unknown types, which newer brokers write.

        Raises: CorruptRecordError if the bytes cannot be decoded or the value has an unknown version.
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
        """Replays one record of a transaction: an offset is pending until `end_transaction`, a tombstone is not.

        Raises: CorruptRecordError as `replay`.
        """
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey) and value is not None:
            self.pending.put(producer_id, decoded, decode_offset_value(value))
        else:
            self.replay(key, value)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Replays the marker of a producer's transaction, which may have no offsets here."""
        for (group_id, topic, partition), value in self.pending.end(producer_id, committed):
            self.offsets.setdefault(group_id, {})[TopicPartition(topic, partition)] = value

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
        """Returns the committed offsets of a group, without pending ones."""
        return self.offsets.get(group_id, _NO_OFFSETS)

    def partitions_of(self, group_id: str) -> AbstractSet[TopicPartition]:
        """Returns the partitions for which a group has a committed or a pending offset."""
        stored = self.offsets_of(group_id).keys()
        pending = self.pending.partitions_of(group_id)
        return stored | set(pending) if pending else stored

    def contains(self, group_id: str) -> bool:
        """Whether the group has a record, a committed offset or a pending offset."""
        return group_id in self.groups or group_id in self.offsets or bool(self.pending.partitions_of(group_id))

    def group_ids(self) -> Iterator[str]:
        """Iterates over every group that `contains` accepts, once."""
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield group_id
        for group_id in self.pending.group_ids():
            if group_id not in self.groups and group_id not in self.offsets:
                yield group_id
