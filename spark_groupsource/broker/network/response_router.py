"""Requests in progress: their connections, and the tasks of long ones.

Most requests end in their first time slice, without a task. The others run in time slices, a few at a time, which
bounds their memory: a client that sends many or expensive requests delays its own responses.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Callable, Coroutine, Protocol

from spark_groupsource.broker.requests import DELAYED, NO_RESPONSE
from spark_groupsource.common.coroutines import begin, in_thread, rest_of
from spark_groupsource.wire.messages import ApiMessage

_MAX_RUNNING = 4
"""Requests with tasks at the same time, at most one of them large."""


class RequestConnection(Protocol):
    """The connection of a request."""

    def send_response(self, response: ApiMessage | None) -> None: ...

    def fail(self, error: Exception) -> None: ...


class ResponseRouter:
    """The connection of each request in progress, for all listeners of a broker.

    Args: `after_task` is called when the task of a request has ended.
    """

    def __init__(self, after_task: Callable[[], None] = lambda: None) -> None:
        self._after_task = after_task
        self._connections: dict[int, RequestConnection] = {}
        self._completions: dict[int, Callable[[Any], Any]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._updating: set[int] = set()
        self._places = asyncio.Semaphore(_MAX_RUNNING)
        self._large_place = asyncio.Lock()
        self._last_token = 0

    def new_token(self, connection: RequestConnection) -> int:
        """Assigns a token to a request of `connection`."""
        self._last_token += 1
        self._connections[self._last_token] = connection
        return self._last_token

    def send(self, token: int, response: ApiMessage | None) -> None:
        """Sends the response of a request, once. Ignores closed connections."""
        connection = self._connections.pop(token, None)
        complete = self._completions.pop(token, None) if self._completions else None
        if connection is not None:
            if complete is not None and response is not None:
                try:
                    response = complete(response)
                except Exception as error:
                    connection.fail(error)
                    return
            connection.send_response(response)

    def respond(self, token: int, response: Any) -> None:
        """Sends the result of a handler, unless it is delayed."""
        if response is NO_RESPONSE:
            self.send(token, None)
        elif response is not DELAYED:
            self.send(token, response)

    def complete_with(self, token: int, complete: Callable[[Any], Any]) -> None:
        """Changes the response of a request by `complete` before it is sent."""
        self._completions[token] = complete

    def run(
        self,
        token: int,
        work: Coroutine[Any, Any, Any],
        slice_ns: int,
        *,
        is_update: bool,
        is_large: bool = False,
        is_small: bool = False,
    ) -> None:
        """Runs a handler and sends its response; implements `RunHandler`. Raises: the error of its first slice."""
        try:
            begin(work, slice_ns)
        except StopIteration as end:
            self.respond(token, end.value)
            return
        places: list[Any] = [] if is_small else [self._places]
        if is_large:
            places.insert(0, self._large_place)
        self._tasks[token] = asyncio.get_running_loop().create_task(self._run(token, work, is_update, places))

    async def _run(self, token: int, work: Coroutine[Any, Any, Any], is_update: bool, places: list[Any]) -> None:
        try:
            async with AsyncExitStack() as held:
                for place in places:
                    await held.enter_async_context(place)
                if is_update:
                    self._updating.add(token)
                response = await rest_of(work)
                if isinstance(response, ApiMessage) and token in self._completions:
                    response = await in_thread(self._completions.pop(token), response)
            self.respond(token, response)
        except Exception as error:  # a bug affects this connection only
            connection = self._connections.pop(token, None)
            if connection is not None:
                connection.fail(error)
        finally:
            work.close()  # it was cancelled before its turn
            self._updating.discard(token)
            self._tasks.pop(token, None)
            self._after_task()

    async def close(self) -> None:
        """Ends all tasks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cancel(self, token: int) -> None:
        """Removes a request whose client has disconnected; ends its task unless it is an update that has begun."""
        self._connections.pop(token, None)
        self._completions.pop(token, None)
        if token in self._tasks and token not in self._updating:
            self._tasks.pop(token).cancel()
