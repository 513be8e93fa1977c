"""The embedded broker as a program: one listener, one asyncio loop in one thread, start and stop.

That thread is the single writer of everything the broker keeps. Knows sockets through `net` and asyncio only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import resource
import shutil
import signal
import tempfile
import threading
import traceback
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Callable, Mapping, TypeVar

from spark_groupsource.broker.config import BrokerConfig, broker_config
from spark_groupsource.broker.connection import Connection
from spark_groupsource.broker.handlers import SERVED
from spark_groupsource.broker.log import Report
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.storage import DataDirectory
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import Node
from spark_groupsource.net import Address, listen, parse_addresses
from spark_groupsource.wire.messages import Message

_LOGGER = logging.getLogger(__name__)
_LONGEST_IDLE_CHECK_S = 5.0
_BACKLOG = 1024
_WILDCARDS = frozenset({"0.0.0.0", "::"})
Result = TypeVar("Result")


class BrokerServer:
    """Serves one broker on one listener. Everything runs in the loop that calls `start`."""

    def __init__(self, data_dir: Path, address: Address, config: BrokerConfig, clock: Clock, report: Report) -> None:
        self.config = config
        self.broker = Broker(config, DataDirectory(data_dir), clock, SERVED, self._send, report)
        self._address = address
        self._clock = clock
        self._report = report
        self._connections: set[Connection] = set()
        self._tokens: dict[int, Connection] = {}
        self._last_token = 0
        self._server: asyncio.Server | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms: int | None = None
        self._idle_check: asyncio.TimerHandle | None = None

    async def start(self) -> Address:
        """Opens the data directory and the listener; returns the address that clients are told.

        Raises: ConfigurationError when the port is in use; StorageError when the directory cannot be used.
        """
        listener = listen(self._address, "--listen")
        try:
            advertised = self._advertised(Address(self._address.host, listener.getsockname()[1]))
            self.broker.address = Node(self.config.node_id, advertised.host, advertised.port)
            self.broker.start()
        except BaseException:
            listener.close()
            raise
        loop = asyncio.get_running_loop()
        # asyncio listens again, by itself with room for 100 waiting clients: others would lose a second each
        self._server = await loop.create_server(
            lambda: Connection(self, self._clock.now_ms), sock=listener, backlog=_BACKLOG
        )
        self._check_idle()
        self._set_alarm()
        return advertised

    async def stop(self) -> None:
        """Drops all connections and closes the logs; what was acknowledged is on disk when this returns."""
        for handle in (self._alarm, self._idle_check):
            if handle is not None:
                handle.cancel()
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.sleep(0)  # lets the dropped transports close their sockets
        self.broker.stop()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken yet."""
        return sum(connection.unsent_bytes for connection in self._connections)

    # --- what connections need ---

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def new_token(self, connection: Connection) -> int:
        self._last_token += 1
        self._tokens[self._last_token] = connection
        return self._last_token

    def after_work(self) -> None:
        self._set_alarm()

    def failed(self, connection: Connection, error: Exception) -> None:
        lines = "".join(traceback.format_exception(error))
        self._report(f"a request from {connection.peer} met a bug in the broker and its connection is closed:\n{lines}")

    def _send(self, token: int, response: Message | None) -> None:
        connection = self._tokens.pop(token, None)
        if connection is not None:
            connection.answer(response)

    # --- time ---

    def _set_alarm(self) -> None:
        deadline_ms = self.broker.next_deadline_ms()
        if deadline_ms == self._alarm_ms:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_ms = None, deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self._clock.now_ms(), 0)
            self._alarm = asyncio.get_running_loop().call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = self._alarm_ms = None
        try:
            self.broker.expire()
        except Exception as error:  # a bug: timers of others go on
            self._report(f"a timer met a bug in the broker:\n{''.join(traceback.format_exception(error))}")
        self._set_alarm()

    def _check_idle(self) -> None:
        limit_ms = self.config.connections_max_idle_ms
        oldest_ms = self._clock.now_ms() - limit_ms
        for connection in tuple(self._connections):
            if connection.waits_for_client and connection.last_activity_ms < oldest_ms:
                self._report(f"connection from {connection.peer} is closed: nothing moved for {limit_ms} ms")
                connection.close()
        delay_s = min(limit_ms / 2000, _LONGEST_IDLE_CHECK_S)
        self._idle_check = asyncio.get_running_loop().call_later(delay_s, self._check_idle)

    def _advertised(self, bound: Address) -> Address:
        setting = self.config.advertised_listeners
        if setting:
            (address, *others) = parse_addresses(setting.rpartition("://")[2], "advertised.listeners")
            if others:
                raise ConfigurationError("advertised.listeners: this broker has one listener, give one host:port")
            return Address(address.host, address.port or bound.port)
        if bound.host in _WILDCARDS:
            raise ConfigurationError(
                f"advertised.listeners must say how clients reach this broker, for it listens on {bound.host}"
            )
        return bound


def serve_forever(
    data_dir: Path,
    address: Address,
    config: Mapping[str, str],
    *,
    ready: Callable[[str], None],
    report: Report | None = None,
) -> None:
    """Runs a broker in this thread until SIGTERM or SIGINT, then stops it cleanly.

    Args: `config` in Kafka's setting names; `ready` is called with ``host:port`` when clients can connect; `report`
    takes one line for the operator at a time, the log by default.

    Raises: ConfigurationError, StorageError: the broker cannot start, the message says why and what mends it.
    """
    server = BrokerServer(Path(data_dir), address, broker_config(config), SystemClock(), report or _LOGGER.info)
    # each client costs a descriptor, and the usual limit of 1024 is meant for programs that use select
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def run() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        ready(str(await server.start()))
        try:
            await stopped.wait()
        finally:
            await server.stop()

    asyncio.run(run())


class EmbeddedBroker:
    """A broker in a thread of this process, as a context manager.

    ::

        with EmbeddedBroker() as broker:
            spark.readStream.format("groupsource").option("kafka.bootstrap.servers", broker.bootstrap_servers)

    Args: `data_dir` None stands for a temporary directory that is removed at `stop`; `port` 0 for any free port;
    `config` in Kafka's setting names.

    Raises on `start`: ConfigurationError, StorageError.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._address = Address(host, port)
        self._config = broker_config(config or {})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._server: BrokerServer | None = None
        self._failure: BaseException | None = None
        self.data_dir: Path | None = None
        self.bootstrap_servers = ""
        self.reports: deque[str] = deque(maxlen=1000)

    def start(self) -> EmbeddedBroker:
        """Returns when clients can connect."""
        if self._thread is not None:
            raise RuntimeError("this broker runs already")
        self.data_dir = self._given_dir or Path(tempfile.mkdtemp(prefix="groupsource-broker-"))
        ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="groupsource-broker", daemon=True)
        self._thread.start()
        try:
            self.bootstrap_servers = ready.result()
        except BaseException:
            self._join()
            raise
        return self

    def stop(self) -> None:
        """Stops cleanly; a broker that does not run is left as it is.

        Raises: StorageError when the logs cannot be closed.
        """
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, function: Callable[[Broker], Result]) -> Result:
        """Runs `function` with the broker in the broker's thread, for inspection and for tests."""
        assert self._loop is not None and self._server is not None, "the broker does not run"
        broker = self._server.broker
        result: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(function(broker))
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken yet; to be asked for within `call`."""
        return self._server.unsent_bytes if self._server is not None else 0

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, ready: concurrent.futures.Future[str]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            else:
                self._failure = error

    async def _serve(self, ready: concurrent.futures.Future[str]) -> None:
        assert self.data_dir is not None
        self._server = BrokerServer(self.data_dir, self._address, self._config, SystemClock(), self._note)
        self._stopped = asyncio.Event()
        address = await self._server.start()
        self._loop = asyncio.get_running_loop()
        ready.set_result(str(address))
        try:
            await self._stopped.wait()
        finally:
            self._loop = None
            await self._server.stop()

    def _note(self, line: str) -> None:
        self.reports.append(line)
        _LOGGER.info(line)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._given_dir is None and self.data_dir is not None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.data_dir = None
