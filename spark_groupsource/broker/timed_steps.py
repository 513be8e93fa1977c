"""Work outside of requests, in time slices that timers start."""

from __future__ import annotations

from collections import deque
from typing import Callable, Iterator

from spark_groupsource.common.clock import Clock
from spark_groupsource.common.timers import Timers

_SLICE_MS, _PAUSE_MS = 4, 1


class PeriodicSteps:
    """Runs steps at an interval, in slices of some milliseconds between which the broker serves other requests.

    Args: `new_steps`, returns the steps of one run, which yield True to wait for another thread; `interval_ms`, from
    the end of a run to the next one.
    """

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        new_steps: Callable[[], Iterator[bool | None]],
        interval_ms: Callable[[], int],
    ) -> None:
        self._timer = timers.timer(self._run_slice)
        self._clock = clock
        self._new_steps = new_steps
        self._interval_ms = interval_ms
        self._steps: Iterator[bool | None] | None = None

    def start(self) -> None:
        """Schedules the next run."""
        self._timer.set(self._clock.now_ms() + self._interval_ms())

    def _run_slice(self) -> None:
        steps, self._steps = self._steps or self._new_steps(), None
        self.start()  # also after an unexpected error
        end_ms = self._clock.now_ms() + _SLICE_MS
        for is_waiting in steps:
            if is_waiting or self._clock.now_ms() >= end_ms:
                self._steps = steps
                self._timer.set(self._clock.now_ms() + _PAUSE_MS)
                return


class BackgroundSteps:
    """Runs steps once, as soon as possible, in slices between which the broker serves requests; in order."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timer = timers.timer(self._run_slice)
        self._clock = clock
        self._queue: deque[Iterator[None]] = deque()

    def add(self, steps: Iterator[None]) -> None:
        self._queue.append(steps)
        if len(self._queue) == 1:
            self._timer.set(self._clock.now_ms())

    def _run_slice(self) -> None:
        end_ms = self._clock.now_ms() + _SLICE_MS
        while self._queue:
            steps = self._queue.popleft()  # an error ends these steps only
            if self._queue:
                self._timer.set(self._clock.now_ms() + _PAUSE_MS)
            for _ in steps:
                if self._clock.now_ms() >= end_ms:
                    self._queue.appendleft(steps)
                    self._timer.set(self._clock.now_ms() + _PAUSE_MS)
                    return
