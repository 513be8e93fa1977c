"""Event loop that handles requests before incomplete ones and before closed connections.

Closing a connection takes longer than a heartbeat, and so does reading a part of a large request. When thousands of
clients disconnect or send at once, the default selector returns all of them, and every request waits for them.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
from typing import Any, Coroutine, TypeVar

from spark_groupsource.clock import monotonic_ns

_CLOSED_AT_ONCE = 32
# deferred reads of an iteration: fewer while iterations take longer than this
_MIN_DEFERRED, _MAX_DEFERRED, _ITERATION_NS = 4, 32, 8_000_000
Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, in an event loop that closes a few connections per iteration."""
    loop = _EventLoop(_new_selector())
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class _EventLoop(asyncio.SelectorEventLoop):
    """`deferred_reads`: descriptors, read after the others and a few at a time."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        super().__init__(selector)
        self.deferred_reads: set[int] = getattr(selector, "deferred_reads", set())


def deferred_reads() -> set[int]:
    """Returns the descriptors that the running event loop reads after the others; without effect in other loops."""
    loop = asyncio.get_running_loop()
    return loop.deferred_reads if isinstance(loop, _EventLoop) else set()


def _new_selector() -> selectors.BaseSelector:
    """Returns the selector of the event loop; that of the platform where closed connections cannot be recognized."""
    return _ClosingLastSelector() if hasattr(select, "EPOLLRDHUP") else selectors.DefaultSelector()


if hasattr(select, "EPOLLRDHUP"):

    class _ClosingLastSelector(selectors.EpollSelector):
        """Returns all ready connections, but only a few of those that their clients have closed or that are deferred.

        A connection that is not returned is ready again in the next iteration.
        """

        def __init__(self) -> None:
            super().__init__()
            self.deferred_reads: set[int] = set()
            self._deferred_at_once = _MAX_DEFERRED
            self._last_deferred = -1
            self._returned_ns: int | None = None  # with deferred reads

        _EVENT_READ = select.EPOLLIN | select.EPOLLRDHUP
        _selector: select.epoll

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # epoll waits for whole milliseconds, at least as long as requested
            wait_s = -1 if timeout is None else math.ceil(max(timeout, 0) * 1000) / 1000
            keys = self.get_map()
            self._adapt()
            try:
                found = self._selector.poll(wait_s, max(len(keys), 1))
            except InterruptedError:
                return []
            ready: list[tuple[selectors.SelectorKey, int]] = []
            deferred: list[tuple[int, selectors.SelectorKey]] = []
            closed = 0
            for descriptor, mask in found:
                if mask & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    closed += 1
                    if closed > _CLOSED_AT_ONCE:
                        continue
                    mask &= ~select.EPOLLRDHUP
                events = selectors.EVENT_WRITE if mask & ~select.EPOLLIN else 0
                events |= selectors.EVENT_READ if mask & ~select.EPOLLOUT else 0
                key = keys.get(descriptor)
                if key is None:
                    continue
                if events == selectors.EVENT_READ and descriptor in self.deferred_reads and mask == select.EPOLLIN:
                    deferred.append((descriptor, key))
                else:
                    ready.append((key, events & key.events))
            return ready + self._next_deferred(deferred) if deferred else ready

        def _next_deferred(
            self, found: list[tuple[int, selectors.SelectorKey]]
        ) -> list[tuple[selectors.SelectorKey, int]]:
            """Returns the next deferred connections, round robin."""
            self._returned_ns = monotonic_ns()
            found.sort(key=lambda each: (each[0] <= self._last_deferred, each[0]))
            del found[self._deferred_at_once :]
            self._last_deferred = found[-1][0]
            return [(key, selectors.EVENT_READ & key.events) for _, key in found]

        def _adapt(self) -> None:
            """Adapts the number of deferred reads to the time of the last iteration that had some."""
            if self._returned_ns is not None:
                is_long = monotonic_ns() - self._returned_ns > _ITERATION_NS
                number = self._deferred_at_once // 2 if is_long else self._deferred_at_once * 2
                self._deferred_at_once = min(max(number, _MIN_DEFERRED), _MAX_DEFERRED)
                self._returned_ns = None
