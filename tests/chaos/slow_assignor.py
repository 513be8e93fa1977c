"""Assignor `range` that takes seconds, so that its group stays in CompletingRebalance."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from spark_groupsource.assign import RangeAssignor
from spark_groupsource.model import GroupMember, PartitionRacks, TopicPartition

_DELAY_S = 2.0


class SlowRange(RangeAssignor):
    name = "slow-range"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[GroupMember], racks: PartitionRacks | None = None
    ) -> dict[str, list[TopicPartition]]:
        time.sleep(_DELAY_S)
        return super().assign(partitions, members, racks)
