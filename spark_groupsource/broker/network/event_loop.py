"""Event loop that handles requests before incomplete ones and before closed connections.

Closing a connection takes longer than a heartbeat, and so does reading a part of a large request. When thousands of
clients disconnect or send at once, the default selector returns all of them, and every request waits for them.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
from bisect import bisect_right
from itertools import chain, islice
from typing import Any, Callable, Coroutine, TypeVar

from spark_groupsource.common.clock import monotonic_ns

_CLOSED_AT_ONCE = 32
# of an iteration; at least one read, which takes up to 5 ms
_DEFERRED_READS_NS = 5_000_000
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
    """`deferred_reads`: descriptors, read after the others and for a limited time of each iteration.

    It uses `_process_events` and `Handle._run`, which asyncio does not document: there is no other way to run callbacks
    after those of an iteration, or to stop between two of them when the time is up. The same holds for `_selector` and
    `_EVENT_READ` of the selector below: `EpollSelector` does not say that a client has closed its connection.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        super().__init__(selector)
        self.deferred_reads: set[int] = getattr(selector, "deferred_reads", set())
        self._deferred: Callable[[], list[int]] = getattr(selector, "deferred", list)
        self._keys = selector.get_map()
        self._last_deferred = -1

    def _process_events(self, event_list: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Is called by asyncio with the result of each `select`."""
        super()._process_events(event_list)  # type: ignore[misc]
        found = self._deferred()
        if found:
            self.call_soon(self._read_deferred, found)

    def _read_deferred(self, found: list[int]) -> None:
        """Reads deferred connections, round robin, until the time is up; the others are ready again afterwards."""
        found.sort()
        first = bisect_right(found, self._last_deferred)
        end_ns = monotonic_ns() + _DEFERRED_READS_NS
        for descriptor in chain(islice(found, first, None), islice(found, first)):
            key = self._keys.get(descriptor)
            if key is None or key.data[0] is None or descriptor not in self.deferred_reads:
                continue  # an earlier callback has closed the connection or stopped reading
            self._last_deferred = descriptor
            key.data[0]._run()
            if monotonic_ns() >= end_ns:
                return


def deferred_reads() -> set[int]:
    """Returns the descriptors that the running event loop reads after the others; without effect in other loops."""
    loop = asyncio.get_running_loop()
    return loop.deferred_reads if isinstance(loop, _EventLoop) else set()


def _new_selector() -> selectors.BaseSelector:
    """Returns the selector of the event loop; that of the platform where closed connections cannot be recognized."""
    return _ClosingLastSelector() if hasattr(select, "EPOLLRDHUP") else selectors.DefaultSelector()


if hasattr(select, "EPOLLRDHUP"):

    class _ClosingLastSelector(selectors.EpollSelector):
        """Returns all ready connections, but only a few of those that their clients have closed, and no deferred ones.

        A connection that is not returned is ready again in the next iteration.

        Attributes: `deferred_reads`, descriptors whose connections `deferred` returns instead.
        """

        def __init__(self) -> None:
            super().__init__()
            self.deferred_reads: set[int] = set()
            self._deferred: list[int] = []

        _EVENT_READ = select.EPOLLIN | select.EPOLLRDHUP
        _selector: select.epoll

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # epoll waits for whole milliseconds, at least as long as requested
            wait_s = -1 if timeout is None else math.ceil(max(timeout, 0) * 1000) / 1000
            keys = self.get_map()
            # thousands of connections may be deferred in each iteration: little is done for each of them
            deferred_reads, readable = self.deferred_reads, select.EPOLLIN
            self._deferred = deferred = []
            try:
                found = self._selector.poll(wait_s, max(len(keys), 1))
            except InterruptedError:
                return []
            ready: list[tuple[selectors.SelectorKey, int]] = []
            closed = 0
            for descriptor, mask in found:
                if mask == readable and descriptor in deferred_reads:
                    deferred.append(descriptor)
                    continue
                if mask & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    closed += 1
                    if closed > _CLOSED_AT_ONCE:
                        continue
                    mask &= ~select.EPOLLRDHUP
                events = selectors.EVENT_WRITE if mask & ~select.EPOLLIN else 0
                events |= selectors.EVENT_READ if mask & ~select.EPOLLOUT else 0
                key = keys.get(descriptor)
                if key is not None:
                    ready.append((key, events & key.events))
            return ready

        def deferred(self) -> list[int]:
            """Returns the descriptors of the deferred connections that the last `select` has found readable."""
            return self._deferred
