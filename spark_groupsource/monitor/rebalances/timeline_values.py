"""Values of a timeline: owners of partitions, states of members, rebalances."""

from __future__ import annotations

from enum import Enum
from typing import Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.model import TopicPartition


class MemberActivity(str, Enum):
    """What a member does."""

    READING = "reading"
    IDLE = "idle"  # it owns no partition
    WAITING = "waiting for a batch"
    JOINING = "joining"
    SYNCING = "syncing"
    EXPIRED = "expired"  # from its last heartbeat until the coordinator removed it


class Phase(str, Enum):
    """Phase of a rebalance."""

    BATCH = "batch in flight"
    JOIN = "join"
    SYNC = "assign and sync"
    FIRST_RECORD = "first record"


class OwnerPeriod(NamedTuple):
    """Owner of a partition, None if it has none, from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    owner: str | None


class MemberPeriod(NamedTuple):
    """State of a member from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    state: MemberActivity


class PhaseBand(NamedTuple):
    """One phase of a rebalance."""

    generation: int | None
    phase: Phase
    start_ms: int
    end_ms: int


class RebalanceMarker(NamedTuple):
    """One rebalance.

    Attributes:
        generation: that it produced, None while it is not complete.
        actor, slowest_member: names of members.
        unowned_seconds: sum over the partitions of the seconds without an owner.
    """

    started_ms: int
    completed_ms: int | None
    generation: int | None
    cause: str
    reason: str | None = None
    actor: str | None = None
    slowest_member: str | None = None
    partitions_moved: int | None = None
    repeated_records: int | None = None
    unowned_seconds: float | None = None


class Timeline(NamedTuple):
    """What happened in a group; times are epoch milliseconds.

    Members are named by their group instance id or member id; `names` has a short name of each.

    Attributes:
        lag: (time, lag in offsets): that of the members that report it, else of the committed offsets.
    """

    group: str
    start_ms: int
    end_ms: int
    partitions: Mapping[TopicPartition, Sequence[OwnerPeriod]]
    members: Mapping[str, Sequence[MemberPeriod]]
    names: Mapping[str, str]
    bands: Sequence[PhaseBand]
    markers: Sequence[RebalanceMarker]
    lag: Sequence[tuple[int, int]]

    @property
    def unowned_seconds(self) -> float:
        """Sum over the partitions of the seconds between two owners, and since the start of one in progress.

        One that owns less than 1 ms is no owner.
        """
        if not self.partitions:
            return sum(marker.unowned_seconds or 0.0 for marker in self.markers)
        return sum(wait.end_ms - wait.start_ms for wait in self._waits()) / 1000

    def unowned_seconds_of(self, marker: RebalanceMarker) -> float:
        """Returns the sum over the partitions of the seconds without an owner that the rebalance began or ended."""
        if marker.unowned_seconds is not None:
            return marker.unowned_seconds
        start_ms = marker.started_ms
        end_ms = self.end_ms if marker.completed_ms is None else marker.completed_ms
        waits = (wait for wait in self._waits() if wait.start_ms <= end_ms and wait.end_ms >= start_ms)
        return sum(wait.end_ms - wait.start_ms for wait in waits) / 1000

    def _waits(self) -> Iterator[OwnerPeriod]:
        """Yields the times without an owner, the last one of a partition if a rebalance is in progress.

        A partition without an owner after a rebalance is not assigned: it does not wait.
        """
        is_rebalancing = bool(self.markers) and self.markers[-1].completed_ms is None
        for periods in self.partitions.values():
            yield from (wait for wait in (periods if is_rebalancing else periods[:-1]) if wait.owner is None)

    @property
    def moves(self) -> Mapping[TopicPartition, int]:
        """Partition -> number of changes to another owner."""
        moves = {}
        for partition, periods in self.partitions.items():
            owners = [period.owner for period in periods if period.owner is not None]
            moves[partition] = sum(before != after for before, after in zip(owners, owners[1:]))
        return moves
