"""Record of the rebalances of a group client: cause, duration, partitions moved."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable, NamedTuple

from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.wire.member_reasons import ALREADY_REBALANCING, REJOIN_WITH_MEMBER_ID

# the coordinator builds a member id from the client id (or group instance id), a dash and a UUID
_UUID_SUFFIX = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_MAX_EVENTS = 10_000


class RebalanceEvent(NamedTuple):
    """One rebalance, as the members of this process took part in it.

    Attributes:
        started_ms, ended_ms: epoch milliseconds.
        join_ms, sync_ms: the longest time that one of the members waited for the response.
        gained, lost: partitions of all members of this process together.
        members: size of the group if one of the members leads it, else the number of members of this process.
    """

    cause: str
    started_ms: int
    ended_ms: int
    join_ms: int
    sync_ms: int
    generation_id: int
    gained: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    members: int


def describe_rebalance(group_id: str, event: RebalanceEvent) -> str:
    """Returns the log line of a rebalance."""
    return (
        f"[group={group_id} generation={event.generation_id}] Rebalance ({event.cause}) completed in "
        f"{event.ended_ms - event.started_ms} ms (join {event.join_ms} ms, sync {event.sync_ms} ms): "
        f"+{len(event.gained):,} -{len(event.lost):,} partitions, {event.members:,} members."
    )


@dataclass
class _Rebalance:
    """A rebalance in progress."""

    started_ms: int
    ended_ms: int
    join_ms: int = 0
    sync_ms: int = 0
    own_members: int = 0
    group: frozenset[str] | None = None
    reasons: list[str] = field(default_factory=list)


class RebalanceRecorder:
    """Combines the rebalances of single members into events, by generation. Not thread-safe."""

    def __init__(self) -> None:
        self.events: list[RebalanceEvent] = []
        self._pending: dict[int, _Rebalance] = {}
        self._owned: frozenset[TopicPartition] = frozenset()
        self._members: frozenset[str] | None = None

    def joined(self, generation_id: int, reason: str, started_ms: int, timestamp_ms: int, join_ms: int) -> None:
        """Records the JoinGroup response of one member; times are epoch milliseconds, `join_ms` is a duration."""
        rebalance = self._rebalance(generation_id, started_ms, timestamp_ms)
        rebalance.join_ms = max(rebalance.join_ms, join_ms)
        if reason and reason not in rebalance.reasons:
            rebalance.reasons.append(reason)

    def led(self, generation_id: int, member_ids: Iterable[str], timestamp_ms: int) -> None:
        """Records the members of the group, from the JoinGroup response to the leader."""
        self._rebalance(generation_id, timestamp_ms, timestamp_ms).group = frozenset(member_ids)

    def synced(self, generation_id: int, timestamp_ms: int, sync_ms: int) -> None:
        """Records the SyncGroup response of one member."""
        rebalance = self._rebalance(generation_id, timestamp_ms, timestamp_ms)
        rebalance.sync_ms = max(rebalance.sync_ms, sync_ms)
        rebalance.ended_ms = timestamp_ms
        rebalance.own_members += 1

    def record(self, up_to_generation: int, owned: Iterable[TopicPartition]) -> list[RebalanceEvent]:
        """Ends the rebalances up to a generation and returns their events.

        The last event has the partitions gained and lost since the previous call. A rebalance in which no member of
        this process received an assignment was superseded by the next one and has no event.
        """
        now_owned = frozenset(owned)
        ended = sorted(g for g, pending in self._pending.items() if g <= up_to_generation and pending.own_members)
        recorded = []
        for generation_id in ended:
            rebalance = self._pending[generation_id]
            is_last = generation_id == ended[-1]
            event = RebalanceEvent(
                _cause(rebalance, self._members) if self.events else _FIRST,
                rebalance.started_ms,
                rebalance.ended_ms,
                rebalance.join_ms,
                rebalance.sync_ms,
                generation_id,
                tuple(sorted(now_owned - self._owned)) if is_last else (),
                tuple(sorted(self._owned - now_owned)) if is_last else (),
                rebalance.own_members if rebalance.group is None else len(rebalance.group),
            )
            self.events.append(event)
            recorded.append(event)
            # None after a rebalance led by a foreign member: the next one has no member list to compare with
            self._members = rebalance.group
        if ended:
            self._owned = now_owned
        self._pending = {g: pending for g, pending in self._pending.items() if g > up_to_generation}
        del self.events[:-_MAX_EVENTS]
        return recorded

    def _rebalance(self, generation_id: int, started_ms: int, timestamp_ms: int) -> _Rebalance:
        rebalance = self._pending.setdefault(generation_id, _Rebalance(started_ms, timestamp_ms))
        rebalance.started_ms = min(rebalance.started_ms, started_ms)
        return rebalance


def client_name(member_id: str) -> str:
    """Returns the client id or group instance id from which the coordinator built a member id."""
    return _UUID_SUFFIX.sub("", member_id)


def _membership_change(before: frozenset[str], after: frozenset[str]) -> str:
    joined = {client_name(member_id) for member_id in after - before}
    left = {client_name(member_id) for member_id in before - after}
    # the same client with a new member id was removed, or restarted
    changes = ((joined - left, "joined"), (left - joined, "left"), (joined & left, "joined again"))
    return "; ".join(f"{bounded_names(sorted(names))} {verb}" for names, verb in changes if names)


def _cause(rebalance: _Rebalance, before: frozenset[str] | None) -> str:
    """Returns the change of the member list where it is known, else the reasons of the joining members."""
    if before is not None and rebalance.group is not None and before != rebalance.group:
        return _membership_change(before, rebalance.group)
    reasons = [reason for reason in rebalance.reasons if reason not in _GENERIC_REASONS]
    if reasons:
        return "; ".join(reasons)
    return "group is rebalancing"


_FIRST = "joined the group"
_GENERIC_REASONS = frozenset(
    {
        "",
        REJOIN_WITH_MEMBER_ID,
        ALREADY_REBALANCING,
        "rebalance failed due to REBALANCE_IN_PROGRESS from JoinGroup response",
        "rebalance failed due to REBALANCE_IN_PROGRESS from SyncGroup response",
    }
)
