"""A relay on loopback between clients and a broker that loses, slows and holds up what passes.

The broker advertises the relay's address, so every connection after the first leads through it too. It runs in a thread
with an event loop of its own; its methods may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from typing import Any

from spark_groupsource.net import Address

_CHUNK_BYTES = 1 << 16


class Proxy:
    """Listens on a free port of 127.0.0.1 from the start; `lead_to` says where to."""

    def __init__(self) -> None:
        self._target: Address | None = None
        self._delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.address = self._call(self._listen())

    def lead_to(self, address: str) -> None:
        """Where connections made from now on are led, as host:port."""
        host, _, port = address.rpartition(":")
        self._target = Address(host, int(port))

    def drop(self, share: float, chance: random.Random) -> int:
        """Cuts each connection with probability `share`, in the middle of whatever it carries; how many were cut."""
        return self._call(self._drop(share, chance))

    def delay(self, seconds: float) -> None:
        """What is read from now on waits this long before it is passed on; 0 ends it."""
        self._delay_s = seconds

    def hold(self) -> None:
        """Nothing passes and nothing is lost until `release`: the peers see silence."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def release(self) -> None:
        """What was held passes, late as it is."""
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
        ours = {writer}
        self._writers.add(writer)
        try:
            if self._target is None:
                return
            there, onward = await asyncio.open_connection(*self._target)
            ours.add(onward)
            self._writers.add(onward)
            await asyncio.gather(self._pass_on(reader, onward), self._pass_on(there, writer))
        except OSError:
            # one of the two is gone, or was cut by `drop`; the other is to see that
            return
        finally:
            self._writers -= ours
            for one in ours:
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await asyncio.sleep(self._delay_s)
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("the peer has closed")

    async def _drop(self, share: float, chance: random.Random) -> int:
        cut = [writer for writer in self._writers if chance.random() < share]
        for writer in cut:
            writer.transport.abort()
        return len(cut)

    async def _end(self) -> None:
        self._server.close()
        relays = list(self._relays)
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        # the transports close in the loop's next turns
        await asyncio.sleep(0.05)
