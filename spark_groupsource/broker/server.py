"""The embedded broker as a program: its listeners, one asyncio loop in one thread, start and stop.

That thread is the single writer of everything the broker keeps. Knows sockets through `net` and asyncio only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
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
from typing import Callable, Collection, Coroutine, Mapping, TypeVar

from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.broker.config import BrokerConfig, broker_config
from spark_groupsource.broker.leaders import Leader
from spark_groupsource.broker.network.listener import Answers, Listener
from spark_groupsource.broker.node import Broker
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.net import Address, parse_addresses
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.log import Report

_LOGGER = logging.getLogger(__name__)
_LONGEST_IDLE_CHECK_S = 5.0
_GC_THRESHOLD = 20_000
_WILDCARDS = frozenset({"0.0.0.0", "::"})
Result = TypeVar("Result")


class BrokerServer:
    """Serves a broker of one or several nodes, each on a listener. Everything runs in the loop that calls `start`."""

    def __init__(
        self,
        data_dir: Path,
        address: Address,
        config: BrokerConfig,
        clock: Clock,
        report: Report,
        node_count: int = 1,
        adopt: bool = False,
        add_scram: Collection[str] = (),
    ) -> None:
        self.config = config
        answers = Answers()
        data = DataDirectory(data_dir, adopt, report)
        self.broker = Broker(config, data, clock, SERVED, answers.send, report, node_count, add_scram)
        self._clock = clock
        self._report = report
        self._listeners: dict[int, Listener] = {}
        if address.port + node_count > 65_536:
            raise ConfigurationError(f"--listen: {node_count} nodes need ports from {address.port} on, there are fewer")
        for at, node_id in enumerate(self.broker.leaders.node_ids):
            own = Address(address.host, address.port + at if address.port else 0)
            self._listeners[node_id] = Listener(self.broker, node_id, own, answers, clock, self._set_alarm)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms: int | None = None
        self._idle_check: asyncio.TimerHandle | None = None

    async def start(self) -> tuple[Address, ...]:
        """Opens the data directory and the listeners; returns the addresses that clients are told.

        Raises: ConfigurationError when a port is in use; StorageError when the directory cannot be used.
        """
        self._advertise()
        listeners = tuple(self._listeners.values())
        try:
            for listener in listeners:
                listener.bind()
            self.broker.start()
        except BaseException:
            await self._close_listeners()
            raise
        for listener in listeners:
            self.broker.node_started(listener.node)
        for listener in listeners:
            await listener.serve()
        self._check_idle()
        self._set_alarm()
        return tuple(Address(node.host, node.port) for node in self.broker.nodes)

    async def stop(self) -> None:
        """Drops all connections and closes the logs; what was acknowledged is on disk when this returns."""
        for handle in (self._alarm, self._idle_check):
            if handle is not None:
                handle.cancel()
        await self._close_listeners()
        self.broker.stop()

    async def start_node(self, node_id: int) -> None:
        """Opens a stopped node at the address it had. Raises: ConfigurationError when that is in use; ValueError."""
        listener = self._listener(node_id)
        if not listener.is_open:
            listener.bind()
            self.broker.node_started(listener.node)
            await listener.serve()
            self._set_alarm()

    async def stop_node(self, node_id: int) -> None:
        """Drops a node's clients and stops listening; other nodes lead on. Raises: ValueError."""
        await self._listener(node_id).close()
        self.broker.node_stopped(node_id)
        self._set_alarm()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken yet."""
        return sum(listener.unsent_bytes for listener in self._listeners.values())

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return sum(listener.connections for listener in self._listeners.values())

    def _listener(self, node_id: int) -> Listener:
        if node_id not in self._listeners:
            raise ValueError(f"there is no node {node_id}; there are {sorted(self._listeners)}")
        return self._listeners[node_id]

    async def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            await listener.close()

    # --- time ---

    def after_call(self) -> None:
        """Looks for what became due by work that no request brought."""
        self._set_alarm()

    def _set_alarm(self) -> None:
        # after every request: an alarm that rings too early finds nothing due and is set again
        earliest_ms = self.broker.timers.lower_bound_ms()
        if earliest_ms is None or (self._alarm_ms is not None and self._alarm_ms <= earliest_ms):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        deadline_ms = self.broker.next_deadline_ms()
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
        for listener in self._listeners.values():
            listener.close_silent(limit_ms)
        delay_s = min(limit_ms / 2000, _LONGEST_IDLE_CHECK_S)
        self._idle_check = asyncio.get_running_loop().call_later(delay_s, self._check_idle)

    def _advertise(self) -> None:
        setting = self.config.advertised_listeners
        if not setting:
            host = next(iter(self._listeners.values())).address.host
            if host in _WILDCARDS:
                text = f"advertised.listeners must say how clients reach this broker, for it listens on {host}"
                raise ConfigurationError(text)
            return
        plain = ",".join(part.rpartition("://")[2] for part in setting)
        addresses = parse_addresses(plain, "advertised.listeners")
        if len(addresses) != len(self._listeners):
            count = len(self._listeners)
            text = f"advertised.listeners: this broker has {count} listener(s), give as many host:port"
            raise ConfigurationError(text)
        for listener, address in zip(self._listeners.values(), addresses):
            listener.advertised = address


def serve_forever(
    data_dir: Path,
    address: Address,
    config: Mapping[str, str],
    *,
    ready: Callable[[str], None],
    report: Report | None = None,
    brokers: int = 1,
    adopt: bool = False,
    add_scram: Collection[str] = (),
) -> None:
    """Runs a broker in this thread until SIGTERM or SIGINT, then stops it cleanly.

    Args: `config` in Kafka's setting names; `ready` is called with ``host:port`` when clients can connect; `report`
    takes one line for the operator at a time, the log by default; `brokers` nodes listen at consecutive ports;
    `adopt` takes over a Kafka broker's directory; `add_scram` are users as `--add-scram` takes them.

    Raises: ConfigurationError, StorageError: the broker cannot start, the message says why and what mends it.
    """
    report = report or _LOGGER.info
    clock = SystemClock()
    server = BrokerServer(
        Path(data_dir), address, broker_config(config), clock, report, brokers, adopt, add_scram
    )
    # each client costs a descriptor, and the usual limit of 1024 is meant for programs that use select
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # groups and offsets live long and form no cycles: by default the collector walks over all of them again and again
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)

    async def run() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        ready(",".join(map(str, await server.start())))
        try:
            await stopped.wait()
        finally:
            await server.stop()

    asyncio.run(run())


class EmbeddedBroker:
    """A broker, or several, in a thread of this process, as a context manager.

    ::

        with EmbeddedBroker() as broker:
            spark.readStream.format("groupsource").option("kafka.bootstrap.servers", broker.bootstrap_servers)

    Args: `data_dir` None stands for a temporary directory that is removed at `stop`; `port` 0 for any free port;
    `config` in Kafka's setting names; `brokers` nodes with consecutive ids, from ``node.id`` on, and consecutive ports,
    which share the data and the work: leaders of partitions and coordinators of groups are spread over them; `adopt`
    takes over a `data_dir` that is a copy of a stopped Apache Kafka broker's log directory, for good; `add_scram` are
    users who may log in, each ``SCRAM-SHA-256=[name=USER,password=PASSWORD]``.

    Raises on `start`: ConfigurationError, StorageError.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, str] | None = None,
        brokers: int = 1,
        adopt: bool = False,
        add_scram: Collection[str] = (),
    ) -> None:
        if brokers < 1:
            raise ConfigurationError(f"brokers must be at least 1, not {brokers}")
        if adopt and data_dir is None:
            raise ConfigurationError("adopt takes over a Kafka broker's directory; name it as data_dir")
        self._adopt = adopt
        self._add_scram = tuple(add_scram)
        self._brokers = brokers
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
        server, broker = self._server, self._server.broker
        result: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(function(broker))
            except BaseException as error:
                result.set_exception(error)
            server.after_call()

        self._loop.call_soon_threadsafe(run)
        return result.result()

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Lets another node lead a partition. Raises: ApiError; ValueError for a node that does not run."""
        self.call(lambda broker: broker.move_leader(TopicPartition(topic, partition), node_id))

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Lets another node coordinate a group and those of the same partition of the group log; as `move_leader`."""
        self.call(lambda broker: broker.move_leader(broker.coordinator.seats.partition_of(group_id), node_id))

    def leader(self, topic: str, partition: int) -> Leader:
        """The node that leads a partition, and since which epoch."""
        return self.call(lambda broker: broker.leaders.leader(TopicPartition(topic, partition)))

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates a group. Raises: ApiError."""
        return self.call(lambda broker: broker.coordinator.seats.node_of(group_id).node_id)

    def hold_loading(self, held: bool = True) -> None:
        """Keeps coordinators from replaying what they are given, so that they answer COORDINATOR_LOAD_IN_PROGRESS."""
        self.call(lambda broker: broker.coordinator.seats.hold_loading(held))

    def stop_node(self, node_id: int) -> None:
        """Lets one node vanish: its clients are dropped, and the others lead what it has led."""
        self._run_in_loop(lambda server: server.stop_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Brings a stopped node back, at the address it had; it leads what it is given from then on."""
        self._run_in_loop(lambda server: server.start_node(node_id))

    def _run_in_loop(self, work: Callable[[BrokerServer], Coroutine[None, None, None]]) -> None:
        assert self._loop is not None and self._server is not None, "the broker does not run"
        asyncio.run_coroutine_threadsafe(work(self._server), self._loop).result()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken yet; to be asked for within `call`."""
        return self._server.unsent_bytes if self._server is not None else 0

    @property
    def connections(self) -> int:
        """How many clients are connected; to be asked for within `call`."""
        return self._server.connections if self._server is not None else 0

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
        clock = SystemClock()
        self._server = BrokerServer(
            self.data_dir, self._address, self._config, clock, self._note, self._brokers, self._adopt, self._add_scram
        )
        self._stopped = asyncio.Event()
        addresses = await self._server.start()
        self._loop = asyncio.get_running_loop()
        ready.set_result(",".join(map(str, addresses)))
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
