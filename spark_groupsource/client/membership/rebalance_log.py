"""Record of the rebalances of a group client: cause, duration, partitions moved."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Iterable, NamedTuple, Sequence

from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.member_reasons import ALREADY_REBALANCING, REJOIN_WITH_MEMBER_ID

# the coordinator builds a member id from the client id (or group instance id), a dash and a UUID
_UUID_SUFFIX = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_MAX_REBALANCES = 10_000


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


class RebalanceLog:
    """Combines the events of members into rebalances. Not thread-safe."""

    def __init__(self) -> None:
        self.rebalances: list[RebalanceEvent] = []
        self._owned: frozenset[TopicPartition] = frozenset()
        # None after a rebalance led by a foreign member: the next one has no member list to compare with
        self._group: frozenset[str] | None = None

    def record(self, events: Iterable[GroupEvent], owned: Iterable[TopicPartition]) -> list[RebalanceEvent]:
        """Returns the rebalances that have ended, from the events of all members since the previous call.

        The last one has the partitions gained and lost since the previous call. A rebalance in which no member of this
        process received an assignment was superseded by the next one and is omitted.
        """
        by_generation: dict[int, list[GroupEvent]] = defaultdict(list)
        for event in events:
            if event.generation is not None:
                by_generation[event.generation].append(event)
        ended = [g for g, own in sorted(by_generation.items()) if any(e.kind is EventKind.ASSIGNED for e in own)]
        recorded: list[RebalanceEvent] = []
        for generation_id in ended:
            is_first = not self.rebalances and not recorded
            recorded.append(self._rebalance(generation_id, by_generation[generation_id], is_first))
        if recorded:
            before, self._owned = self._owned, frozenset(owned)
            gained, lost = tuple(sorted(self._owned - before)), tuple(sorted(before - self._owned))
            recorded[-1] = recorded[-1]._replace(gained=gained, lost=lost)
            self.rebalances += recorded
            del self.rebalances[:-_MAX_REBALANCES]
        return recorded

    def _rebalance(self, generation_id: int, events: Sequence[GroupEvent], is_first: bool) -> RebalanceEvent:
        """Returns a rebalance without its partitions."""
        members = [frozenset(e.detail["members"]) for e in events if "members" in e.detail]
        known, self._group = self._group, members[0] if members else None
        reasons = [e.detail.get("reason", "") for e in events if e.kind is EventKind.MEMBER_JOINING]
        assigned_ms = [e.at_ms for e in events if e.kind is EventKind.ASSIGNED]
        return RebalanceEvent(
            _FIRST if is_first else _cause(dict.fromkeys(reasons), known, self._group),
            min(e.at_ms for e in events if e.kind in (EventKind.MEMBER_JOINING, EventKind.ASSIGNED)),
            max(assigned_ms),
            _longest_ms(events, EventKind.MEMBER_JOINING, EventKind.JOIN_COMPLETED),
            _longest_ms(events, EventKind.MEMBER_SYNCING, EventKind.ASSIGNED),
            generation_id,
            (),
            (),
            len(assigned_ms) if self._group is None else len(self._group),
        )


def _longest_ms(events: Sequence[GroupEvent], sent: EventKind, received: EventKind) -> int:
    """Returns the longest time that one of the members waited for a response."""
    sent_ms: dict[str | None, int] = {}
    longest_ms = 0
    for event in events:
        if event.kind is sent:
            sent_ms[event.client_id] = event.at_ms
        elif event.kind is received:
            longest_ms = max(longest_ms, event.at_ms - sent_ms.get(event.client_id, event.at_ms))
    return longest_ms


def client_name(member_id: str) -> str:
    """Returns the client id or group instance id from which the coordinator built a member id."""
    return _UUID_SUFFIX.sub("", member_id)


def _membership_change(before: frozenset[str], after: frozenset[str]) -> str:
    joined = {client_name(member_id) for member_id in after - before}
    left = {client_name(member_id) for member_id in before - after}
    # the same client with a new member id was removed, or restarted
    changes = ((joined - left, "joined"), (left - joined, "left"), (joined & left, "joined again"))
    return "; ".join(f"{bounded_names(sorted(names))} {verb}" for names, verb in changes if names)


def _cause(reasons: Iterable[str], before: frozenset[str] | None, after: frozenset[str] | None) -> str:
    """Returns the change of the member list where it is known, else the reasons of the joining members."""
    if before is not None and after is not None and before != after:
        return _membership_change(before, after)
    return "; ".join(reason for reason in reasons if reason not in _GENERIC_REASONS) or "group is rebalancing"


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
