"""Groups of a coordinator shard: replayed state, in-memory state, removal.

Source: Kafka's GroupMetadataManager (getOrMaybeCreateClassicGroup, maybeDeleteGroup).
"""

from __future__ import annotations

from typing import Iterable, Sequence

from spark_groupsource.broker.group import group_admin
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import DEAD, EMPTY
from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.broker.group.group_timers import SessionTimer
from spark_groupsource.broker.group.outcome import OutcomeBuilder, StoreRemoval
from spark_groupsource.wire.messages import ListGroupsRequest, ListGroupsResponse


class ShardGroups:
    """The groups of one partition of `__consumer_offsets`.

    Attributes: `store`, the replayed state, and `groups`, the in-memory state by group id; both are read-only for
    callers. `groups` has a stored group only after its first use.
    """

    def __init__(self) -> None:
        self.store = GroupStore()
        self.groups: dict[str, ClassicGroup] = {}

    def group(self, group_id: str) -> ClassicGroup | None:
        """Returns a group with a record, an offset or a pending member id, None if there is none."""
        group = self.groups.get(group_id)
        if group is None and self.store.contains(group_id):
            group = ClassicGroup.from_value(group_id, self.store.groups.get(group_id))
            self.groups[group_id] = group
        return group

    @property
    def size_bytes(self) -> int:
        """The approximate memory of all groups, members and offsets. O(groups)."""
        groups = sum(group.size_bytes for group in self.groups.values())
        return groups + self.store.size_bytes + self.store.pending.size_bytes

    def group_ids(self) -> list[str]:
        """Returns the ids of all groups, each once."""
        return list(dict.fromkeys((*self.groups, *self.store.group_ids())))

    def remove_when_stored(self, builder: OutcomeBuilder, group_ids: Sequence[str]) -> None:
        if builder.records:
            builder.after_append = StoreRemoval(tuple(group_ids))
            return
        for group_id in group_ids:  # the log has no record of them
            self.remove_if_unused(builder, group_id)

    def remove_if_unused(self, builder: OutcomeBuilder, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None or group_id in self.store.groups or group.state is not EMPTY:
            return
        # if offsets were committed since, `group` creates a new group from them
        for member_id in sorted(group.pending_joins):  # their JoinGroup will get UNKNOWN_MEMBER_ID
            builder.cancel_timer(SessionTimer(group_id, member_id))
        group.transition(DEAD, builder.instant.timestamp_ms)
        del self.groups[group_id]

    def list_groups(
        self, group_ids: Iterable[str], request: ListGroupsRequest
    ) -> list[ListGroupsResponse.ListedGroup]:
        """Returns the groups among `group_ids` that exist and match the filters of the request."""
        groups = (group for group in map(self.group, group_ids) if group is not None)
        return group_admin.list_groups(groups, request.states_filter, request.types_filter)

    def clear(self) -> None:
        """Removes every group from memory, when the shard is unloaded."""
        self.groups.clear()
        self.store = GroupStore()
