"""Tombstones of committed offsets: expiration, deleted partitions, deleted groups.

Each function adds them to an outcome, which is not atomic: its records may be appended in several batches.

Source: Kafka's OffsetMetadataManager (cleanupExpiredOffsets, onPartitionsDeleted).
"""

from __future__ import annotations

from typing import Iterable, Mapping

from spark_groupsource.broker.group import committed_offsets, group_admin
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import EMPTY
from spark_groupsource.broker.group.outcome import OutcomeBuilder
from spark_groupsource.broker.group.shard_groups import ShardGroups
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue


def expire(builder: OutcomeBuilder, groups: ShardGroups, group_ids: Iterable[str] | None) -> None:
    """Removes the expired offsets of groups, None for all, and the Empty groups that have no other offset."""
    removed = []
    count = 0
    for group_id in groups.group_ids() if group_ids is None else group_ids:
        group = groups.group(group_id)
        if group is None:
            continue
        stored = groups.store.offsets_of(group_id)
        removable = _expired(builder, groups, group, stored)
        count += len(removable)
        unused = group.state is EMPTY and not group.pending_joins and not groups.store.pending.partitions_of(group_id)
        if unused and len(removable) == len(stored):
            group_admin.remove_group(builder, group_id, stored.keys(), group_id in groups.store.groups)
            removed.append(group_id)
        else:
            remove(builder, group_id, removable)
    if count:
        builder.log("offsets_expired", "", f"Removed {count} expired offsets.")
    groups.remove_when_stored(builder, removed)


def expire_some(
    builder: OutcomeBuilder, groups: ShardGroups, group_id: str, topic_partitions: Iterable[TopicPartition]
) -> None:
    """Removes the expired offsets among those of some partitions of one group; the group remains."""
    group, stored = groups.group(group_id), groups.store.offsets_of(group_id)
    if group is not None:
        some = {each: stored[each] for each in topic_partitions if each in stored}
        remove(builder, group_id, _expired(builder, groups, group, some))


def remove_deleted(
    builder: OutcomeBuilder, groups: ShardGroups, deleted: frozenset[TopicPartition], group_ids: Iterable[str] | None
) -> None:
    """Removes the offsets of deleted partitions in groups, None for all. A group remains, also without offsets."""
    for group_id in groups.store.group_ids() if group_ids is None else group_ids:
        known = groups.store.partitions_of(group_id)
        # an intersection with a view takes the time of all deleted partitions for each of thousands of groups
        found = deleted & known if len(known) > len(deleted) else [each for each in known if each in deleted]
        if found:
            groups.group(group_id)  # a simple group exists in memory until its offsets expire
        remove(builder, group_id, found)


def remove(builder: OutcomeBuilder, group_id: str, topic_partitions: Iterable[TopicPartition]) -> None:
    """Adds a tombstone for the offset of each partition."""
    for topic, partition in sorted(topic_partitions):
        builder.store_offset(OffsetKey(group_id, topic, partition), None)


def _expired(
    builder: OutcomeBuilder, groups: ShardGroups, group: ClassicGroup, stored: Mapping[TopicPartition, OffsetValue]
) -> list[TopicPartition]:
    pending = groups.store.pending.partitions_of(group.group_id)
    retention_ms = builder.config.offsets_retention_ms
    expired = committed_offsets.expired_offsets(group, stored, retention_ms, builder.instant.timestamp_ms)
    return [topic_partition for topic_partition in expired if topic_partition not in pending]
