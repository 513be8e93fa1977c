"""Polling of the group until a batch can be planned."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Callable, Mapping

from spark_groupsource.model import TopicPartition
from spark_groupsource.source.group.co_readers import CoReaders
from spark_groupsource.source.group.ownership import Ownership
from spark_groupsource.source.tasks.task_partition import TaskMembership

# time limit of one poll; during a rebalance the partitions that are retained are read between two polls
_POLL_MS = 100


class FollowResult(Enum):
    """Why `GroupFollower.follow` has returned."""

    SETTLED = "the assignment is stable"
    REBALANCING = "a rebalance is in progress and retained partitions may be read"
    YIELDED = "a co-reader cannot continue before this reader returns to Spark"
    DRAINING = "a drain was requested"


@dataclass(frozen=True)
class GroupSnapshot:
    """The assignment at one moment; `members` is empty where there is no membership."""

    generation_id: int = -1
    owners: Mapping[TopicPartition, int] = field(default_factory=dict)
    members: Mapping[int, TaskMembership] = field(default_factory=dict)

    @classmethod
    def of(cls, ownership: Ownership) -> GroupSnapshot:
        return cls(ownership.generation_id, ownership.owners(), ownership.members())


class GroupFollower:
    """Polls the group of one query.

    Args:
        is_draining: True once a drain was requested, possibly by another thread.
    """

    def __init__(self, ownership: Ownership, co_readers: CoReaders, is_draining: Callable[[], bool]) -> None:
        self._ownership = ownership
        self._co_readers = co_readers
        self._is_draining = is_draining

    def follow(self, current: GroupSnapshot | None, *, is_available_now: bool) -> FollowResult:
        """Polls until the assignment is stable or retained partitions may be read.

        Args:
            current: the assignment whose partitions are read now, None before the first.
        """
        if current is None:
            self._co_readers.join_not_started()
        while True:
            is_settled = self._ownership.poll(_POLL_MS)
            is_yielding = self._co_readers.should_yield(is_settled, is_available_now)
            if self._is_draining():
                return FollowResult.DRAINING
            if is_yielding:
                return FollowResult.YIELDED
            if is_settled:
                return FollowResult.SETTLED
            if current is not None and current.owners and self._ownership.retains_partitions:
                return FollowResult.REBALANCING
