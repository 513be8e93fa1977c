"""What `__consumer_offsets` says: the lasting state of one partition's groups. Only `replay` changes it.

The same `replay` runs when a partition is loaded and after every append, so what a restart would find is what is
here. Knows records and their values; not what they mean to members or clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Mapping

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
class Ledger:
    """Stored groups and committed offsets by group id; `unknown_records` counts those of types not known here.

    A group has an entry in `offsets` only while it has an offset.
    """

    groups: dict[str, GroupValue] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = field(default_factory=dict)
    unknown_records: int = 0

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

    def _replay_offset(self, key: OffsetKey, value: bytes | None) -> None:
        topic_partition = TopicPartition(key.topic, key.partition)
        if value is not None:
            self.offsets.setdefault(key.group_id, {})[topic_partition] = decode_offset_value(value)
            return
        stored = self.offsets.get(key.group_id)
        if stored is not None:
            stored.pop(topic_partition, None)
            if not stored:
                del self.offsets[key.group_id]

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        return self.offsets.get(group_id, _NO_OFFSETS)

    def knows(self, group_id: str) -> bool:
        return group_id in self.groups or group_id in self.offsets

    def group_ids(self) -> Iterator[str]:
        """Every group with a record or an offset, once."""
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield group_id
