"""A record of every rebalance this process took part in: why, how long, what moved."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable, NamedTuple

from spark_groupsource.model import TopicPartition

# the coordinator makes member ids of the client id (or instance id), a dash and a UUID
_UUID_TAIL = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_KEPT_EVENTS = 10_000


class RebalanceEvent(NamedTuple):
    """One generation as this process saw it come.

    `started_ms` and `ended_ms` are epoch milliseconds; `join_ms` and `sync_ms` the longest of our members' waits in the
    two phases; `members` the size of the group where one of ours leads, else of what is known, our own members;
    `gained` and `lost` are counted for all our members together.
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


@dataclass
class _Round:
    """What is gathered about one generation until it is recorded."""

    started_ms: int
    ended_ms: int
    join_ms: int = 0
    sync_ms: int = 0
    own_members: int = 0
    group: frozenset[str] | None = None
    reasons: list[str] = field(default_factory=list)


class RebalanceRecorder:
    """Gathers rounds of members into events; the driver holds the lock."""

    def __init__(self) -> None:
        self.events: list[RebalanceEvent] = []
        self._rounds: dict[int, _Round] = {}
        self._owned: frozenset[TopicPartition] = frozenset()
        self._members: frozenset[str] | None = None

    def joined(self, generation_id: int, reason: str, started_ms: int, now_ms: int, join_ms: int) -> None:
        """One of our members passed the join phase; times are epoch ms, `join_ms` a duration."""
        round_ = self._round(generation_id, started_ms, now_ms)
        round_.join_ms = max(round_.join_ms, join_ms)
        if reason and reason not in round_.reasons:
            round_.reasons.append(reason)

    def led(self, generation_id: int, member_ids: Iterable[str], now_ms: int) -> None:
        """One of our members leads and sees who is in the group."""
        self._round(generation_id, now_ms, now_ms).group = frozenset(member_ids)

    def synced(self, generation_id: int, now_ms: int, sync_ms: int) -> None:
        """One of our members has its assignment."""
        round_ = self._round(generation_id, now_ms, now_ms)
        round_.sync_ms = max(round_.sync_ms, sync_ms)
        round_.ended_ms = now_ms
        round_.own_members += 1

    def record(self, up_to_generation: int, owned: Iterable[TopicPartition]) -> None:
        """Ends every round up to a generation: partitions gained and lost since the last go to the newest of them.

        A round in which none of our members got an assignment was cut off by the next and leaves no event.
        """
        now_owned = frozenset(owned)
        ended = sorted(g for g, round_ in self._rounds.items() if g <= up_to_generation and round_.own_members)
        for generation_id in ended:
            round_ = self._rounds[generation_id]
            is_last = generation_id == ended[-1]
            self.events.append(
                RebalanceEvent(
                    _cause(round_, self._members) if self.events else _FIRST,
                    round_.started_ms,
                    round_.ended_ms,
                    round_.join_ms,
                    round_.sync_ms,
                    generation_id,
                    tuple(sorted(now_owned - self._owned)) if is_last else (),
                    tuple(sorted(self._owned - now_owned)) if is_last else (),
                    round_.own_members if round_.group is None else len(round_.group),
                )
            )
            # who is in the group is known of the rounds we lead; after one that we do not, nobody can be compared
            self._members = round_.group
        if ended:
            self._owned = now_owned
        self._rounds = {g: round_ for g, round_ in self._rounds.items() if g > up_to_generation}
        del self.events[:-_KEPT_EVENTS]

    def _round(self, generation_id: int, started_ms: int, now_ms: int) -> _Round:
        round_ = self._rounds.setdefault(generation_id, _Round(started_ms, now_ms))
        round_.started_ms = min(round_.started_ms, started_ms)
        return round_


def client_name(member_id: str) -> str:
    """The client id or instance id a member id was made of."""
    return _UUID_TAIL.sub("", member_id)


def _membership_change(before: frozenset[str], after: frozenset[str]) -> str:
    came = {client_name(member_id) for member_id in after - before}
    went = {client_name(member_id) for member_id in before - after}
    # the same client under a new member id: it was removed, or restarted
    changes = ((came - went, "joined"), (went - came, "left"), (came & went, "joined again"))
    return "; ".join(f"{', '.join(sorted(names))} {word}" for names, word in changes if names)


def _cause(round_: _Round, before: frozenset[str] | None) -> str:
    """Who came or went where that is known, else our members' own reasons, the telling ones first."""
    if before is not None and round_.group is not None and before != round_.group:
        return _membership_change(before, round_.group)
    telling = [reason for reason in round_.reasons if reason not in _UNTELLING]
    if telling:
        return "; ".join(telling)
    return "group is rebalancing"


_FIRST = "joined the group"
_UNTELLING = frozenset(
    {
        "",
        "need to re-join with the given member-id",
        "group is already rebalancing",
        "rebalance failed due to REBALANCE_IN_PROGRESS from JoinGroup response",
        "rebalance failed due to REBALANCE_IN_PROGRESS from SyncGroup response",
    }
)
