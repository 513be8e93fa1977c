"""Clock of the simulation: a queue of calls, and both clocks."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Callable

from spark_groupsource.common.clock import Instant

_EPOCH_MS = 1_700_000_000_000
# offsets are kept for a minute at least, so the epoch clock runs ahead of the monotonic one
_EPOCH_SPEED = 40


class SimulationClock:
    """A queue of calls; time does not pass during a call."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._calls = 0

    @property
    def timestamp_ms(self) -> int:
        return _EPOCH_MS + self.now_ms * _EPOCH_SPEED

    def instant(self) -> Instant:
        return Instant(self.now_ms, self.timestamp_ms)

    def call_at(self, at_ms: int, what: Callable[..., None], *args: Any) -> None:
        """Schedules a call; calls of the same time run in order of scheduling."""
        self._calls += 1
        heappush(self._queue, (max(at_ms, self.now_ms), self._calls, what, args))

    def call_in(self, delay_ms: int, what: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now_ms + delay_ms, what, *args)

    def run(self, until_ms: int, done: Callable[[], bool] | None = None) -> None:
        """Runs the calls up to `until_ms`, or until `done` returns true after a call."""
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now_ms, _, what, args = heappop(queue)
            what(*args)
            if done is not None and done():
                return
        self.now_ms = until_ms
