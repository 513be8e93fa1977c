"""Generates docs/images/rebalance.svg and its dark form: an example of the timeline chart."""

from __future__ import annotations

from spark_groupsource.monitor.rebalances.timeline import timeline
from spark_groupsource.notebook.timeline_chart import TimelineChart
from spark_groupsource.wire.group_events import Cause, EventKind, GroupEvent

_START_MS = 1_795_348_800_000
_GROUP, _TOPIC = "flight-delays", "flights"
_OWNERS = {
    1: {"etl-0": [0, 1, 2, 3, 4, 5]},
    2: {"etl-0": [0, 1, 2], "etl-1": [3, 4, 5]},
    3: {"etl-0": [0, 1], "etl-1": [2, 3], "ml-0": [4, 5]},
    4: {"etl-0": [0, 1, 2], "ml-0": [3, 4, 5]},
}


def rebalance_picture(theme: str = "light") -> str:
    """The text of docs/images/rebalance.svg, or of that of the theme ``dark``."""
    events = [
        *_rebalance(1, 1_000, Cause.JOINED, "etl-0", {"etl-0": 100}),
        *_rebalance(2, 9_000, Cause.JOINED, "etl-1", {"etl-1": 0, "etl-0": 1_900}),
        *_rebalance(3, 20_000, Cause.JOINED, "ml-0", {"ml-0": 0, "etl-1": 600, "etl-0": 2_400}),
        *_expiry("etl-1", 33_000, 39_000),
        *_rebalance(4, 39_000, Cause.SESSION_EXPIRED, "etl-1", {"ml-0": 500, "etl-0": 1_200}),
        *(_event(at, EventKind.LAG, "etl-0", 1, lag=_lag(at)) for at in range(2_000, 52_000, 500)),
    ]
    return TimelineChart(timeline(_GROUP, events)).svg(theme) + "\n"


def _rebalance(generation: int, at_ms: int, cause: Cause, actor: str, joins: dict[str, int]) -> list[GroupEvent]:
    """A rebalance that starts at `at_ms`; `joins` is the time of each member's JoinGroup after the start."""
    owners = _OWNERS[generation]
    joined_ms = at_ms + max(joins.values()) + 50
    members = {member: [member, "/10.0.0.7", None] for member in owners}
    assignment = {member: {_TOPIC: numbers} for member, numbers in owners.items()}
    waits = [
        _event(at_ms + time_ms, kind, member, 0)
        for member, delay_ms in joins.items()
        if delay_ms > 500
        for kind, time_ms in ((EventKind.BATCH_WAIT_STARTED, 300), (EventKind.BATCH_WAIT_ENDED, delay_ms - 50))
    ]
    return [
        _event(at_ms, EventKind.REBALANCE_STARTED, actor, generation - 1, cause=cause.value),
        *waits,
        *(_event(at_ms + delay, EventKind.MEMBER_JOINING, member, generation - 1) for member, delay in joins.items()),
        _event(joined_ms, EventKind.JOIN_COMPLETED, None, generation, leader="etl-0", members=members),
        _event(joined_ms + 250, EventKind.ASSIGNED, None, generation, assignment=assignment),
        _event(joined_ms + 600, EventKind.FIRST_RECORD, "etl-0", generation),
    ]


def _expiry(member: str, last_heartbeat_ms: int, removed_ms: int) -> list[GroupEvent]:
    last_ms = _START_MS + last_heartbeat_ms
    return [_event(removed_ms, EventKind.MEMBER_LEFT, member, 3, is_expired=True, last_heartbeat_ms=last_ms)]


def _lag(at_ms: int) -> int:
    """The lag grows while partitions are not read, and decreases afterwards."""
    pauses = ((9_300, 11_300), (20_300, 22_800), (33_000, 40_500))
    lag = 0.0
    for time_ms in range(2_000, at_ms, 100):
        is_paused = any(start <= time_ms < end for start, end in pauses)
        lag = max(0.0, lag + (180 if is_paused else -120))
    return int(lag)


def _event(at_ms: int, kind: EventKind, member: str | None, generation: int, **detail: object) -> GroupEvent:
    return GroupEvent(
        _START_MS + at_ms, _GROUP, kind, generation or None, member_id=member, client_id=member, detail=detail
    )
