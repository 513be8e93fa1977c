"""Approximate memory of the groups of one coordinator, for a limit.

The state of a shard is measured after requests have added a part of the limit, so a request costs nothing else.
"""

from __future__ import annotations

from spark_groupsource.group import GroupShard
from spark_groupsource.wire.messages import JoinGroupRequest, OffsetCommitRequest, TxnOffsetCommitRequest

_GROUP_BYTES = 1_500
_MEMBER_BYTES = 2_000
_OFFSET_BYTES = 250
_REJECTIONS_PER_MEASURE = 16  # measuring takes time in proportion to the shard
_MEASURED_AFTER = 64  # a shard is measured when 1/64 of the limit was added


class GroupStateSize:
    """The memory of all shards; `limit_bytes` is the setting group.coordinator.max.state.bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._measured: dict[int, int] = {}
        self._added: dict[int, int] = {}
        self.total = self._rejected = 0

    def may_add(self, shard: GroupShard, request: object) -> bool:
        """Returns whether a request may add a group or member; counts it if it does."""
        if isinstance(request, JoinGroupRequest):
            is_new = not request.member_id
            size = _MEMBER_BYTES + 2 * sum(len(each.metadata) for each in request.protocols)
        elif isinstance(request, (OffsetCommitRequest, TxnOffsetCommitRequest)):
            is_new = shard.group(request.group_id) is None
            size = sum(
                _OFFSET_BYTES + len(partition.committed_metadata or "")
                for topic in request.topics
                for partition in topic.partitions
            ) if is_new else 0
        else:
            return True
        if not is_new:
            return True
        if self.total >= self._limit:
            self._rejected += 1
            if self._rejected % _REJECTIONS_PER_MEASURE == 1:
                self._measure(shard)  # members may have left
            if self.total >= self._limit:
                return False
        self._added[shard.partition] = self._added.get(shard.partition, 0) + _GROUP_BYTES + size
        self.total += _GROUP_BYTES + size
        if self._added[shard.partition] > self._limit // _MEASURED_AFTER:
            self._measure(shard)
        return True

    def remove(self, partition: int) -> None:
        """Must be called when a shard is unloaded."""
        self.total -= self._measured.pop(partition, 0) + self._added.pop(partition, 0)

    def _measure(self, shard: GroupShard) -> None:
        self.remove(shard.partition)
        size = len(shard.store.groups) * _GROUP_BYTES
        for group in shard.groups.values():
            size += _GROUP_BYTES
            for member in group.members.values():
                # the record of the group repeats metadata and assignment
                data = len(member.assignment) + sum(len(metadata) for _, metadata in member.protocols)
                size += _MEMBER_BYTES + 2 * data
        for offsets in shard.store.offsets.values():
            size += sum(_OFFSET_BYTES + len(value.metadata) for value in offsets.values())
        self._measured[shard.partition] = size
        self.total += size
