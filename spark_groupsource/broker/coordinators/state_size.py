"""Approximate memory of the groups of one coordinator, for a limit.

The shards know the memory of their state. It is added up after requests have added a part of the limit, so that a
request costs nothing else.
"""

from __future__ import annotations

from typing import Callable, Iterable

from spark_groupsource.broker.group import GroupShard
from spark_groupsource.broker.group.group_store import offset_bytes
from spark_groupsource.broker.group.members import protocols_bytes, text_bytes
from spark_groupsource.broker.state_budget import StateBudget
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

_ADDED_BYTES = 5_000  # of a group with one member, in addition to its protocols
# known members add protocols and assignments until the limit is exceeded by 1/8
_GROWTH_SHARE = 8
_SMALL_PROTOCOLS_BYTES = 1_000  # with these, a known member can always rejoin
_REJECTIONS_PER_MEASURE = 16
# the shards are measured when so much of the limit, and so much of what they had, was added
_MEASURED_AFTER, _MEASURED_AFTER_GROWTH = 64, 4
_CHECKED_AFTER = 1_024  # the memory of all state is added up when 1/1024 of what was left of it was added


class GroupStateSize:
    """The memory of all shards.

    Args: `limit_bytes`, the setting group.coordinator.max.state.bytes; `shards`, returns the loaded shards; `budget`,
    of all state.
    """

    def __init__(self, limit_bytes: int, shards: Callable[[], Iterable[GroupShard]], budget: StateBudget) -> None:
        self._limit = limit_bytes
        self._shards = shards
        self._budget = budget
        budget.add_part(lambda: self._measured + self._added)
        self._measured = self._added = self._rejected = 0
        self._unchecked_bytes = 0  # which may be added before the memory of all state is added up

    def may_add(self, shard: GroupShard, request: object, client_id: str = "") -> bool:
        """Returns whether a request of a client may add a group, a member, an offset or metadata; counts it if it does.

        A request that adds nothing, for example a commit of known partitions, is accepted above the limit too. What
        known members add is accepted until the limit is exceeded by 1/8, so that groups can still rebalance.
        """
        is_known = False
        if isinstance(request, JoinGroupRequest):
            is_known = bool(request.member_id)
            size = protocols_bytes([(each.name, each.metadata) for each in request.protocols])
            if is_known and size <= _SMALL_PROTOCOLS_BYTES:
                return True
            size += -_protocols_bytes(shard, request) if is_known else _new_member_bytes(request, client_id)
        elif isinstance(request, (OffsetCommitRequest, TxnOffsetCommitRequest)):
            size = _added_offsets(shard, request)
        elif isinstance(request, SyncGroupRequest) and request.assignments:
            is_known = True
            size = _added_assignments(shard, request)
        else:
            return True
        return size <= 0 or self._add(size, self._limit // _GROWTH_SHARE if is_known else 0)

    def _add(self, size: int, excess: int) -> bool:
        if self._is_full(excess):
            self._rejected += 1
            if self._rejected % _REJECTIONS_PER_MEASURE == 1:
                self._measure()  # members may have left
            if self._is_full(excess):
                return False
        self._added += size
        self._unchecked_bytes -= size
        if self._added > max(self._limit // _MEASURED_AFTER, self._measured // _MEASURED_AFTER_GROWTH):
            self._measure()
        return True

    def _is_full(self, excess: int) -> bool:
        if self._measured + self._added >= self._limit + excess:
            return True
        if self._unchecked_bytes > 0:
            return False
        left = self._budget.left_bytes
        self._unchecked_bytes = left // _CHECKED_AFTER
        return left < -excess

    def _measure(self) -> None:
        self._measured, self._added = sum(shard.size_bytes for shard in self._shards()), 0


def _new_member_bytes(request: JoinGroupRequest, client_id: str) -> int:
    """Returns the memory of a new group with one member, without its protocols; the member id has the client id."""
    names = 4 * len(request.group_id) + text_bytes(request.protocol_type) + 4 * len(client_id) + text_bytes(client_id)
    return _ADDED_BYTES + names


def _protocols_bytes(shard: GroupShard, request: JoinGroupRequest) -> int:
    """Returns the memory of the protocols that a member has, 0 if it is not known."""
    group = shard.groups.get(request.group_id)
    member = None if group is None else group.members.get(request.member_id)
    return 0 if member is None else protocols_bytes(member.protocols)


def _added_assignments(shard: GroupShard, request: SyncGroupRequest) -> int:
    """Returns the memory by which the assignments of a leader exceed those that are stored."""
    group = shard.groups.get(request.group_id)
    if group is None or request.member_id != group.leader_id:
        return 0  # the assignments of other members are ignored
    stored = shard.store.groups.get(request.group_id)
    known = 0 if stored is None else sum(len(member.assignment) for member in stored.members)
    return sum(len(each.assignment) for each in request.assignments) - known


def _added_offsets(shard: GroupShard, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> int:
    """Returns the memory of the offsets that a commit adds, and by which it makes metadata longer."""
    stored = shard.store.offsets_of(request.group_id)
    size = 0 if stored or shard.store.contains(request.group_id) else _ADDED_BYTES
    for topic in request.topics:
        name = topic.name
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            # a tuple is equal to a TopicPartition
            known = stored.get((name, partition.partition_index))  # type: ignore[call-overload]
            if known is None:
                size += offset_bytes(TopicPartition(name, partition.partition_index), metadata)
            elif metadata != known.metadata:
                size += text_bytes(metadata) - text_bytes(known.metadata)
    return size
