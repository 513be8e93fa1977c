"""Records of committed offsets, encoded only where they are needed.

A commit may have hundreds of offsets. The coordinator of the broker writes them as one batch and replays them without
decoding (`replay_commit`), so it needs no key and value of each.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence, Tuple, overload

from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import GroupValue, OffsetKey, OffsetValue, encode_key, encode_offset_value


class LogRecord(NamedTuple):
    """A record for the shard's partition of `__consumer_offsets`; a tombstone has no value.

    `group` is the id and the value of a group's record before their encoding, which is replayed without decoding.
    """

    key: bytes
    value: bytes | None
    group: tuple[str, GroupValue] | None = None


class CommitRecords(Sequence[LogRecord]):
    """The records of offsets without expiration time and topic id, which are committed outside of transactions."""

    __slots__ = ("group_id", "offsets")

    def __init__(self, group_id: str, offsets: Sequence[Tuple[TopicPartition, OffsetValue]]) -> None:
        self.group_id = group_id
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> LogRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LogRecord]: ...

    def __getitem__(self, index: int | slice) -> LogRecord | Sequence[LogRecord]:
        if isinstance(index, slice):
            return CommitRecords(self.group_id, self.offsets[index])
        return self._record(self.offsets[index])

    def _record(self, committed: Tuple[TopicPartition, OffsetValue]) -> LogRecord:
        (topic, partition), value = committed
        return LogRecord(encode_key(OffsetKey(self.group_id, topic, partition)), encode_offset_value(value))

    def __iter__(self) -> Iterator[LogRecord]:
        return map(self._record, self.offsets)
