"""Removal of committed offsets by the runtime, in parts with pauses.

`broker/group/removed_offsets.py` has the tombstones of each part. Some hundred offsets are removed between two pauses,
because ten thousand tombstones take longer than a time slice.
"""

from __future__ import annotations

from typing import Callable, Iterator, Sequence

from spark_groupsource.broker.coordinators.shard_registry import CoordinatorShard, ShardRegistry
from spark_groupsource.broker.group import GroupShard, GroupTimer, Outcome
from spark_groupsource.common.clock import Instant
from spark_groupsource.common.coroutines import pause, portions
from spark_groupsource.model import TopicPartition

_OFFSETS_PER_STEP = 250
_Shard = CoordinatorShard[GroupShard, GroupTimer]


class OffsetRemoval:
    """Removes offsets of the groups of all shards.

    Args: `apply` stores and replays an outcome and returns whether that succeeded; `instant` returns the current time.
    """

    def __init__(
        self,
        shards: ShardRegistry[GroupShard, GroupTimer],
        apply: Callable[[_Shard, Outcome], bool],
        instant: Callable[[], Instant],
    ) -> None:
        self._shards = shards
        self._apply = apply
        self._instant = instant

    async def expire(self) -> None:
        """Removes expired offsets, and groups that have neither offsets nor members."""
        for shard in self._shards.loaded_shards():
            machine = shard.state_machine
            for group_ids in self._group_portions(shard, machine.group_ids()):
                if self._is_large(shard, group_ids[0]):
                    for some in portions(list(machine.store.offsets_of(group_ids[0])), _OFFSETS_PER_STEP):
                        self._apply(shard, machine.expire_offsets_of(group_ids[0], some, self._instant()))
                        await pause()
                        if not self._is_current(shard):
                            break
                if self._is_current(shard) and not self._is_large(shard, group_ids[0]):
                    self._apply(shard, machine.expire_offsets(self._instant(), group_ids))
                await pause()

    async def partitions_deleted(self, shard: _Shard, topic_partitions: Sequence[TopicPartition]) -> None:
        """Removes the offsets of deleted partitions from the groups of a shard."""
        machine, deleted = shard.state_machine, frozenset(topic_partitions)
        for group_ids in self._group_portions(shard, list(machine.store.group_ids())):
            found: Sequence[frozenset[TopicPartition] | Sequence[TopicPartition]] = [deleted]
            if self._is_large(shard, group_ids[0]):
                stored = machine.store.partitions_of(group_ids[0])
                found = list(portions(list(deleted & stored), _OFFSETS_PER_STEP))
            for some in found:
                if not self._is_current(shard):
                    return
                self._apply(shard, machine.on_partitions_deleted(some, self._instant(), group_ids))
                await pause()

    async def delete_group(self, shard: _Shard, group_id: str) -> None:
        """Removes most offsets of a group that can be deleted; DeleteGroups deletes the rest and the group."""
        machine = shard.state_machine
        if not self._is_large(shard, group_id):
            return
        for some in list(portions(list(machine.store.partitions_of(group_id)), _OFFSETS_PER_STEP))[:-1]:
            if not self._is_current(shard):
                return
            outcome = machine.delete_group_offsets(group_id, some, self._instant())
            if not outcome.records or not self._apply(shard, outcome):
                return
            await pause()

    def _group_portions(self, shard: _Shard, group_ids: Sequence[str]) -> Iterator[list[str]]:
        """Divides groups into portions with a bounded number of groups and offsets; a large group is one portion."""
        some: list[str] = []
        size = 0
        for group_id in group_ids:
            store = shard.state_machine.store
            added = 1 + len(store.offsets_of(group_id)) + len(store.pending.partitions_of(group_id))
            if some and size + added > _OFFSETS_PER_STEP:
                yield some
                some, size = [], 0
            some.append(group_id)
            size += added
        if some and self._is_current(shard):
            yield some

    def _is_large(self, shard: _Shard, group_id: str) -> bool:
        return len(shard.state_machine.store.partitions_of(group_id)) >= _OFFSETS_PER_STEP

    def _is_current(self, shard: _Shard) -> bool:
        """Returns whether the shard was not unloaded during a pause."""
        return self._shards.find_loaded(shard.partition) is shard
