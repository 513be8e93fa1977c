"""Work at an interval, in tasks beside the requests."""

from __future__ import annotations

from typing import Any, Callable, Coroutine

from spark_groupsource.common.clock import Clock
from spark_groupsource.common.timers import Timers

StartTask = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine in a task of the event loop; reports its error."""


class PeriodicWork:
    """Runs a coroutine at an interval.

    Args: `interval_ms`, from the end of a run to the next one.
    """

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        start_task: StartTask,
        work: Callable[[], Coroutine[Any, Any, object]],
        interval_ms: Callable[[], int],
    ) -> None:
        self._timer = timers.timer(lambda: start_task(self._run()))
        self._clock = clock
        self._work = work
        self._interval_ms = interval_ms

    def start(self) -> None:
        """Schedules the next run."""
        self._timer.set(self._clock.now_ms() + self._interval_ms())

    async def _run(self) -> None:
        try:
            await self._work()
        finally:  # also after an unexpected error
            self.start()
