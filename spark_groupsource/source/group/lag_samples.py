"""Samples of the lag of a query between rebalances, for the timeline."""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.wire.group_events import EventKind, GroupEvent

_INTERVAL_MS = 1_000
_MAX_SAMPLES = 300


class LagSamples:
    """Keeps at most `_MAX_SAMPLES` events over the whole time: when they are full, every second one is removed."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._interval_ms = _INTERVAL_MS
        self._events: list[GroupEvent] = []
        # those that `take` has returned
        self._taken_ms = -1

    def add(self, lag: int, generation: int, at_ms: int) -> None:
        """Adds the sum of the lag of the owned partitions, unless the last sample is too recent."""
        if self._events and 0 <= at_ms - self._events[-1].at_ms < self._interval_ms:
            return
        detail = {"lag": lag}
        self._events.append(GroupEvent(at_ms, self._group_id, EventKind.LAG_SAMPLED, generation, detail=detail))
        if len(self._events) == _MAX_SAMPLES:
            self._events = self._events[::2]
            self._interval_ms *= 2

    @property
    def events(self) -> Sequence[GroupEvent]:
        """The samples, oldest first."""
        return self._events

    def take(self) -> list[GroupEvent]:
        """Returns the samples since the last call."""
        found = [event for event in self._events if event.at_ms > self._taken_ms]
        self._taken_ms = self._events[-1].at_ms if self._events else -1
        return found
