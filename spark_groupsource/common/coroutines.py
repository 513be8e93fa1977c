"""Long work on an event loop: coroutines that run in time slices.

A coroutine whose work grows with a request or with stored state awaits `pause` between parts of at most a few
milliseconds. After its time slice, it continues when all others that have paused before have had a slice. Each
iteration of the loop has one slice, so that it polls its sockets in between. State that a coroutine has read may change
at each `await`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future, wait
from functools import partial
from math import inf
from types import coroutine
from typing import Any, Callable, Coroutine, Generator, Iterator, Sequence, TypeVar

from spark_groupsource.common.clock import monotonic_ns

Result = TypeVar("Result")
Value = TypeVar("Value")

SLICE_NS = 4_000_000
FIRST_SLICE_NS = 1_000_000
"""Length of the slice that `begin` runs at once."""


class Turns:
    """The work of one event loop that waits for a time slice, first come, first served.

    Args: `after_slice` is called after each slice.
    """

    def __init__(self, after_slice: Callable[[], None] = lambda: None) -> None:
        self._after_slice = after_slice
        self._waiting: deque[asyncio.Future[None] | Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # while `_run` is scheduled

    def wait(self) -> asyncio.Future[None]:
        """Returns a future that is done when the next slice begins."""
        turn = asyncio.get_running_loop().create_future()
        self.call(turn)
        return turn

    def call(self, waiting: asyncio.Future[None] | Callable[[], None]) -> None:
        """Calls a short function in a later slice."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # an earlier one may have ended before
            self._waiting.clear()
            self._loop = loop
            loop.call_soon(self._run)
        self._waiting.append(waiting)

    def _run(self) -> None:
        end_ns = monotonic_ns() + SLICE_NS
        try:
            while self._waiting:
                first = self._waiting.popleft()
                if not isinstance(first, asyncio.Future):
                    first()
                elif not first.done():  # else it was cancelled
                    first.set_result(None)
                    break  # the slice of its task
                if monotonic_ns() >= end_ns:
                    break
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run)
            else:
                self._loop = None
            self._after_slice()


class _Thread(threading.local):
    """What runs in this thread.

    Attributes: `end_ns`, of the time slice, infinite while a coroutine runs at once; `is_task`, False in `begin`.
    """

    end_ns: float = 0
    is_task = True

    def __init__(self) -> None:
        self.turns = Turns()


_thread = _Thread()


def set_turns(turns: Turns) -> None:
    """Sets the turns of the event loop that runs in this thread."""
    _thread.turns = turns


def call_in_turn(function: Callable[[], None]) -> None:
    """Calls a short function in a later time slice, after the work that waits for one."""
    _thread.turns.call(function)


async def pause() -> bool:
    """Lets others run if the time slice is over; returns whether it was."""
    is_over = monotonic_ns() >= _thread.end_ns
    if is_over:
        await next_turn()
    return is_over


async def next_turn() -> None:
    """Lets others run first."""
    if not _thread.is_task:
        await _leave()
    elif _thread.end_ns != inf:
        await _thread.turns.wait()
        _thread.end_ns = monotonic_ns() + SLICE_NS


async def enter_task() -> None:
    """Continues in a task, which can wait for a lock or a thread; `begin` runs the first slice without one."""
    if not _thread.is_task:
        await _leave()


@coroutine
def _leave() -> Generator[None, None, None]:
    yield


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Returns the result of a function that the worker thread of the event loop calls.

    The function must not access state that others change.
    """
    if _thread.end_ns == inf:
        return function(*arguments)
    await enter_task()
    return await asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))


async def run_parts(parts: Generator[Future[Any] | None, None, Result]) -> Result:
    """Returns the result of synchronous work that yields between its parts; pauses there, or waits for the future."""
    try:
        while True:
            waits_for = next(parts)
            if waits_for is None:
                await pause()
            elif _thread.end_ns == inf:
                wait([waits_for])
            else:
                await enter_task()
                await asyncio.wait([asyncio.wrap_future(waits_for)])
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        parts.close()


def begin(work: Coroutine[Any, Any, Any], slice_ns: int = FIRST_SLICE_NS) -> None:
    """Runs the first time slice of a coroutine at once, without a task. `rest_of` continues it in one.

    Raises: StopIteration with the result if the coroutine has ended.
    """
    before = _thread.end_ns, _thread.is_task
    _thread.end_ns, _thread.is_task = monotonic_ns() + slice_ns, False
    try:
        work.send(None)
    finally:
        _thread.end_ns, _thread.is_task = before


async def rest_of(work: Coroutine[Any, Any, Result]) -> Result:
    """Continues a coroutine that `begin` has started, when it has its turn."""
    await next_turn()
    return await _continue(work)


@coroutine
def _continue(work: Coroutine[Any, Any, Result]) -> Generator[Any, Any, Result]:
    result: Result = yield from work  # type: ignore[misc]
    return result


def run_at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine without pauses and other threads: at the start and at the end of the broker."""
    before = _thread.end_ns, _thread.is_task
    _thread.end_ns, _thread.is_task = inf, True
    try:
        work.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        _thread.end_ns, _thread.is_task = before
    raise RuntimeError("A coroutine that runs at once waits for another one.")


def portions(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    """Divides values into portions of at most `size`."""
    return (values[start : start + size] for start in range(0, len(values), size))
