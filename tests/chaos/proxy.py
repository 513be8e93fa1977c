"""Proxy that drops, delays and pauses connections to a broker.

The broker advertises the address of the proxy, so every connection uses it. The proxy runs an event loop in a thread of
its own; its methods may be called from any other thread. It passes on whole requests and responses, so that a fault can
begin within the exchange of one of them.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from spark_groupsource.common.net import Address


class Moment(NamedTuple):
    """The next request of an API: before the broker receives it, or before the client receives the response."""

    api_key: int
    is_answered: bool


class Proxy:
    """Listens on a free port of 127.0.0.1; `forward_to` sets the target."""

    def __init__(self) -> None:
        self._target: Address | None = None
        self._delay_s = 0.0
        self._is_cut = False
        self._awaited: Moment | None = None
        self._fault: Callable[[], object] = int
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.address = self._call(self._listen())

    def forward_to(self, address: str) -> None:
        """Sets the target of new connections, as host:port."""
        host, _, port = address.rpartition(":")
        self._target = Address(host, int(port))

    def drop(self, share: float, randomness: random.Random) -> int:
        """Aborts each connection with probability `share`; returns how many were aborted."""
        return self._call(self._drop(share, randomness))

    def delay(self, seconds: float) -> None:
        """Delays all data from now on; 0 ends the delay."""
        self._delay_s = seconds

    def hold(self, *, only_responses: bool = False) -> None:
        """Pauses all connections until `release`, without loss of data."""
        self._loop.call_soon_threadsafe(self._responses_pass.clear)
        if not only_responses:
            self._loop.call_soon_threadsafe(self._requests_pass.clear)

    def cut(self) -> None:
        """Aborts all connections, and new ones until `release`."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._abort_all)

    def release(self) -> None:
        """Resumes all connections, and accepts new ones."""
        self._is_cut = False
        for passes in (self._requests_pass, self._responses_pass):
            self._loop.call_soon_threadsafe(passes.set)

    def begin_at(self, moment: Moment, fault: Callable[[], object], timeout_s: float) -> bool:
        """Calls `fault` in the event loop at the moment; returns False if it does not come within the timeout."""
        return bool(self._call(self._begin_at(moment, fault, timeout_s), timeout_s + 10))

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any], timeout_s: float = 10) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _listen(self) -> str:
        self._requests_pass, self._responses_pass = asyncio.Event(), asyncio.Event()
        self._requests_pass.set()
        self._responses_pass.set()
        self._began = asyncio.Event()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return "127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = self._loop.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers, passes = {writer}, list[asyncio.Future[None]]()
        self._writers.add(writer)
        try:
            if self._target is None or self._is_cut:
                return
            target_reader, onward = await asyncio.open_connection(*self._target)
            writers.add(onward)
            self._writers.add(onward)
            if self._is_cut:
                return
            # correlation ids of the requests whose response is a moment
            awaited: set[bytes] = set()
            requests: asyncio.Queue[bytes] = asyncio.Queue()
            passes += [
                self._loop.create_task(self._read_requests(reader, requests, awaited)),
                self._loop.create_task(self._pass_requests(requests, onward)),
                self._loop.create_task(self._pass_responses(target_reader, writer, awaited)),
            ]
            await asyncio.gather(*passes)
        except (OSError, asyncio.IncompleteReadError):
            # one side has closed, or a fault has aborted it; the other side is closed below
            return
        finally:
            self._writers -= writers
            for each in writers:
                each.transport.abort()
            for task in passes:
                task.cancel()

    async def _read_requests(
        self, reader: asyncio.StreamReader, requests: asyncio.Queue[bytes], awaited: set[bytes]
    ) -> None:
        """Reads while requests are paused, too: those of a client that closes its connection then are not sent."""
        while True:
            try:
                size, body = await _read_frame(reader)
            except asyncio.IncompleteReadError:
                if self._requests_pass.is_set():
                    await requests.join()
                raise
            moment = self._awaited
            if moment is not None and moment.api_key == int.from_bytes(body[:2], "big"):
                if moment.is_answered:
                    awaited.add(body[4:8])
                else:
                    self._begin()
            requests.put_nowait(size + body)

    async def _pass_requests(self, requests: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        while True:
            await self._pass_on(await requests.get(), self._requests_pass, writer)
            requests.task_done()

    async def _pass_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, awaited: set[bytes]
    ) -> None:
        while True:
            size, body = await _read_frame(reader)
            if body[:4] in awaited:
                awaited.remove(body[:4])
                self._begin()
            await self._pass_on(size + body, self._responses_pass, writer)

    async def _pass_on(self, data: bytes, passes: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._delay_s)
        await passes.wait()
        writer.write(data)
        await writer.drain()

    async def _begin_at(self, moment: Moment, fault: Callable[[], object], timeout_s: float) -> bool:
        self._began.clear()
        self._fault, self._awaited = fault, moment
        try:
            await asyncio.wait_for(self._began.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        finally:
            self._awaited = None
        return True

    def _begin(self) -> None:
        """Begins the fault, once; pauses and aborts take effect before the next byte."""
        if self._awaited is not None:
            self._awaited = None
            self._fault()
            self._began.set()

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _drop(self, share: float, randomness: random.Random) -> int:
        cut = [writer for writer in self._writers if randomness.random() < share]
        for writer in cut:
            writer.transport.abort()
        return len(cut)

    async def _end(self) -> None:
        # a relay that is cancelled while it connects would leave the connection open
        self._is_cut = True
        self._server.close()
        self._abort_all()
        if self._relays:
            await asyncio.wait(self._relays, timeout=5)
        # transports close in the next iterations of the loop
        await asyncio.sleep(0.05)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Reads the size and the body of a request or response."""
    size = await reader.readexactly(4)
    return size, await reader.readexactly(int.from_bytes(size, "big"))
