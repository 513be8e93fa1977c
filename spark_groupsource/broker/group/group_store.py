"""Groups and committed offsets as replayed from one partition of `__consumer_offsets`.

`replay` alone changes this state. It runs for every record when the partition is loaded and after every append, so a
restart finds the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Iterable, Iterator, Mapping

from spark_groupsource.broker.group.members import text_bytes
from spark_groupsource.broker.group.pending_transactional_offsets import PendingTransactionalOffsets
from spark_groupsource.model import TopicPartition, new_tuple
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)

# approximate memory without names, metadata and assignments
_GROUP_BYTES, _MEMBER_BYTES, _OFFSET_BYTES = 1_500, 1_000, 400
FIRST_OFFSET_BYTES = 600
"""What the first offset of a group takes in addition."""
_NO_OFFSETS: Mapping[TopicPartition, OffsetValue] = {}


@dataclass
class GroupStore:
    """Stored groups and committed offsets.

    Attributes:
        groups: group id -> stored group.
        offsets: group id -> partition -> committed offset; has no group without offsets.
        unknown_records: number of skipped records with a key of an unknown type.
        pending: offsets committed in open transactions.
        size_bytes: approximate memory of groups and offsets, without pending ones.
    """

    groups: dict[str, GroupValue] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = field(default_factory=dict)
    unknown_records: int = 0
    pending: PendingTransactionalOffsets = field(default_factory=PendingTransactionalOffsets)
    size_bytes: int = 0

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replays one record: the last record of a key wins, a tombstone removes the key.

        Skips and counts keys of unknown types, which newer brokers write.

        Raises: CorruptRecordError if the bytes cannot be decoded or the value has an unknown version.
        """
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey):
            self._replay_offset(decoded, value)
        elif isinstance(decoded, GroupKey):
            self.replay_group(decoded.group_id, None if value is None else decode_group_value(value))
        else:
            self.unknown_records += 1

    def replay_group(self, group_id: str, value: GroupValue | None) -> None:
        """Replays the record of a group before its encoding, as `replay`."""
        known = self.groups.pop(group_id, None)
        if known is not None:
            self.size_bytes -= _group_bytes(group_id, known)
        if value is not None:
            self.groups[group_id] = value
            self.size_bytes += _group_bytes(group_id, value)

    def replay_commit(self, group_id: str, offsets: Iterable[tuple[TopicPartition, OffsetValue]]) -> None:
        """Replays the records of a commit before their encoding, as `replay`."""
        if self.pending:
            for topic_partition, _ in offsets:
                self.pending.supersede(OffsetKey(group_id, *topic_partition))
        self._put_all(group_id, dict(offsets))

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
        for group_id, values in self.pending.end(producer_id, committed).items():
            if values:
                self._put_all(group_id, values)

    def _put_all(self, group_id: str, values: Mapping[TopicPartition, OffsetValue]) -> None:
        stored = self.offsets.get(group_id)
        if stored is None:
            stored = self.offsets[group_id] = {}
            self.size_bytes += FIRST_OFFSET_BYTES
        # column by column for speed: a transaction may have thousands of offsets
        known = list(map(stored.get, values))
        metadata = [value.metadata for value in values.values()]
        replaced = ["" if value is None else value.metadata for value in known]
        if metadata != replaced:
            self.size_bytes += sum(map(text_bytes, metadata)) - sum(map(text_bytes, replaced))
        if None in known:
            added = [partition.topic for partition, value in zip(values, known) if value is None]
            self.size_bytes += _OFFSET_BYTES * len(added) + sum(map(len, added))
        stored.update(values)

    def _replay_offset(self, key: OffsetKey, value: bytes | None) -> None:
        group_id, topic, partition = key
        topic_partition = new_tuple(TopicPartition, (topic, partition))
        if value is not None:
            if self.pending:
                self.pending.supersede(key)
            self._put(group_id, topic_partition, decode_offset_value(value))
            return
        if self.pending:
            self.pending.remove(key)
        stored = self.offsets.get(group_id)
        if stored is not None:
            known = stored.pop(topic_partition, None)
            if known is not None:
                self.size_bytes -= offset_bytes(topic_partition, known.metadata)
            if not stored:
                del self.offsets[group_id]
                self.size_bytes -= FIRST_OFFSET_BYTES

    def _put(self, group_id: str, topic_partition: TopicPartition, value: OffsetValue) -> None:
        stored = self.offsets.get(group_id)
        if stored is None:
            stored = self.offsets[group_id] = {}
            self.size_bytes += FIRST_OFFSET_BYTES
        known = stored.get(topic_partition)
        if known is None:
            self.size_bytes += offset_bytes(topic_partition, value.metadata)
        elif value.metadata != known.metadata:
            self.size_bytes += text_bytes(value.metadata) - text_bytes(known.metadata)
        stored[topic_partition] = value

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """Returns the committed offsets of a group, without pending ones."""
        return self.offsets.get(group_id, _NO_OFFSETS)

    def partitions_of(self, group_id: str) -> AbstractSet[TopicPartition]:
        """Returns the partitions for which a group has a committed or a pending offset."""
        stored = self.offsets_of(group_id).keys()
        pending = self.pending.partitions_of(group_id)
        return stored | set(pending) if pending else stored

    def contains(self, group_id: str) -> bool:
        """Returns whether the group has a record, a committed offset or a pending offset."""
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


def offset_bytes(topic_partition: TopicPartition, metadata: str) -> int:
    """Returns the approximate memory of a committed or pending offset."""
    return _OFFSET_BYTES + len(topic_partition.topic) + text_bytes(metadata)


def _group_bytes(group_id: str, value: GroupValue) -> int:
    size = _GROUP_BYTES + 4 * len(group_id) + text_bytes(value.protocol_type)
    for each in value.members:
        size += _MEMBER_BYTES + text_bytes(each.member_id) + text_bytes(each.client_id)
        size += len(each.subscription) + len(each.assignment)
    return size
