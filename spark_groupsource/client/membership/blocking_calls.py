"""Threads for the blocking calls of an event loop.

Lookups, opening of connections, assignors.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Callable, TypeVar

Result = TypeVar("Result")
# opening a connection waits for several round trips and takes little processor time
_MAX_THREADS = 64


class BlockingCalls:
    """Runs each call in a daemon thread, which never delays the end of the process."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_MAX_THREADS)

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns the result of a call of one of many members; at most `_MAX_THREADS` run at once."""
        async with self._free:
            return await self.run_now(function, *arguments)

    async def run_now(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns the result of a call that all members wait for."""
        return await asyncio.wrap_future(self.start(function, *arguments))

    def start(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Starts a call at once, which may take long."""
        future = Future[Result]()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        name = getattr(function, "__qualname__", "call")
        threading.Thread(target=call, name=f"group members: {name}", daemon=True).start()
        return future
