"""Event loop that handles requests before closed connections.

Closing a connection takes longer than a heartbeat. When thousands of clients disconnect at once, the default selector
returns all of them, and every request waits until they are closed.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
from typing import Any, Coroutine, TypeVar

_CLOSED_AT_ONCE = 32
Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, in an event loop that closes a few connections per iteration."""
    loop = asyncio.SelectorEventLoop(_new_selector())
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


def _new_selector() -> selectors.BaseSelector:
    """Returns the selector of the event loop; that of the platform where closed connections cannot be recognized."""
    return _ClosingLastSelector() if hasattr(select, "EPOLLRDHUP") else selectors.DefaultSelector()


if hasattr(select, "EPOLLRDHUP"):

    class _ClosingLastSelector(selectors.EpollSelector):
        """Returns all ready connections, but only a few of those that their clients have closed.

        A connection that is not returned is ready again in the next iteration.
        """

        _EVENT_READ = select.EPOLLIN | select.EPOLLRDHUP
        _selector: select.epoll

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # epoll waits for whole milliseconds, at least as long as requested
            wait_s = -1 if timeout is None else math.ceil(max(timeout, 0) * 1000) / 1000
            keys = self.get_map()
            try:
                found = self._selector.poll(wait_s, max(len(keys), 1))
            except InterruptedError:
                return []
            ready: list[tuple[selectors.SelectorKey, int]] = []
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
                if key is not None:
                    ready.append((key, events & key.events))
            return ready
