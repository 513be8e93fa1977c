"""Scheduler of long requests: time slices and a worker thread.

Each iteration of the event loop runs at most one slice of all waiting tasks, so that it polls the sockets in between.
The tasks run round robin, one step each: a client that sends many or expensive requests delays its own responses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Callable, Protocol

from spark_groupsource.broker.requests import Steps
from spark_groupsource.common.clock import monotonic_ns

_SLICE_NS = 4_000_000


class ScheduledTask(Protocol):
    """A sequence of steps. `run_step` performs one and returns whether more of them can follow at once."""

    is_cancelled: bool

    def run_step(self) -> bool: ...


class Task:
    """A task whose steps are calls of a function."""

    __slots__ = ("is_cancelled", "run_step")

    def __init__(self, run_step: Callable[[], bool]) -> None:
        self.run_step = run_step
        self.is_cancelled = False

    def cancel(self) -> None:
        """Runs no further step; a running function of the worker thread is not interrupted."""
        self.is_cancelled = True


class Scheduler:
    """Runs tasks in the event loop, in time slices. Called by the event loop only.

    Args: `after_slice` is called after each slice.
    """

    def __init__(self, after_slice: Callable[[], None]) -> None:
        self._after_slice = after_slice
        self._ready: deque[ScheduledTask] = deque()
        self._is_scheduled = False
        self._worker: ThreadPoolExecutor | None = None

    def submit(self, task: ScheduledTask) -> None:
        """Runs the next steps of `task` in later slices. `run_step` must not raise."""
        self._ready.append(task)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_slice)

    def call_in_worker(self, function: Callable[[], Any], on_done: Callable[[Future[Any]], None]) -> None:
        """Calls `function` in the worker thread, then `on_done` in the event loop. Functions run one at a time."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "groupsource-broker-worker")
        loop = asyncio.get_running_loop()

        def done(future: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(on_done, future)

        self._worker.submit(function).add_done_callback(done)

    def close(self) -> None:
        """Drops all tasks and ends the worker thread."""
        self._ready.clear()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._worker = None

    def _run_slice(self) -> None:
        end_ns = monotonic_ns() + _SLICE_NS
        ready = self._ready
        while ready:
            task = ready.popleft()
            if not task.is_cancelled and task.run_step() and not task.is_cancelled:
                ready.append(task)
            if monotonic_ns() >= end_ns:
                break
        self._is_scheduled = bool(ready)
        if ready:
            asyncio.get_running_loop().call_soon(self._run_slice)
        self._after_slice()


class StepsTask:
    """Runs the steps of one request; calls `on_result` with their result, or `on_error`, unless cancelled.

    It does not refer to itself and keeps no error whose traceback does: full collections are rare in the broker's
    process, so a cycle would keep the request for hours.

    Args: `first`, the value that the first step yielded, if the caller has run it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        steps: Steps,
        on_result: Callable[[Any], None],
        on_error: Callable[[Exception], None],
        first: Callable[[], Any] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._steps = steps
        self._on_result = on_result
        self._on_error = on_error
        self._advance: Callable[[], Any] = partial(next, steps)
        self.is_cancelled = False
        if first is None:
            scheduler.submit(self)
        else:
            scheduler.call_in_worker(first, self._resume)

    def cancel(self) -> None:
        """Runs no further step; a running function of the worker thread is not interrupted."""
        self.is_cancelled = True
        self._advance = _nothing
        self._steps.close()

    def run_step(self) -> bool:
        """Runs one step; returns whether the next one can follow at once."""
        advance, self._advance = self._advance, partial(next, self._steps)
        try:
            function = advance()
        except StopIteration as end:
            self._on_result(end.value)
            return False
        except Exception as error:
            self._on_error(error)
            return False
        finally:
            del advance  # it may have the error, whose traceback has this frame
        if function is None:
            return True
        self._scheduler.call_in_worker(function, self._resume)
        return False

    def _resume(self, future: Future[Any]) -> None:
        if self.is_cancelled or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._advance = partial(self._steps.throw, error)
        else:
            self._advance = partial(self._steps.send, future.result())
        self._scheduler.submit(self)


def _nothing() -> None:
    return None
