"""TCP proxy that drops, delays and pauses connections to a broker.

The broker advertises the address of the proxy, so every connection uses it. The proxy runs an event loop in a thread of
its own; its methods may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from typing import Any

from spark_groupsource.common.net import Address

_CHUNK_BYTES = 1 << 16


class Proxy:
    """Listens on a free port of 127.0.0.1; `forward_to` sets the target."""

    def __init__(self) -> None:
        self._target: Address | None = None
        self._delay_s = 0.0
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

    def hold(self) -> None:
        """Pauses all connections until `release`, without loss of data."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def release(self) -> None:
        """Resumes all connections."""
        self._loop.call_soon_threadsafe(self._passes.set)

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> str:
        self._passes = asyncio.Event()
        self._passes.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return "127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = self._loop.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = {writer}
        self._writers.add(writer)
        try:
            if self._target is None:
                return
            target_reader, onward = await asyncio.open_connection(*self._target)
            writers.add(onward)
            self._writers.add(onward)
            await asyncio.gather(self._pass_on(reader, onward), self._pass_on(target_reader, writer))
        except OSError:
            # one side has closed, or `drop` aborted it; the other side is closed below
            return
        finally:
            self._writers -= writers
            for each in writers:
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await asyncio.sleep(self._delay_s)
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("the peer has closed")

    async def _drop(self, share: float, randomness: random.Random) -> int:
        cut = [writer for writer in self._writers if randomness.random() < share]
        for writer in cut:
            writer.transport.abort()
        return len(cut)

    async def _end(self) -> None:
        self._server.close()
        relays = list(self._relays)
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        # transports close in the next iterations of the loop
        await asyncio.sleep(0.05)
