"""Embedded broker with its listeners in one asyncio event loop.

The thread of the event loop is the only writer of the broker's state.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import ctypes
import gc
import logging
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Collection, Coroutine, Iterable, Mapping, TypeVar

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.broker.config import BrokerConfig, broker_config
from spark_groupsource.broker.direct_produce import append, record_batches, topic_partitions
from spark_groupsource.broker.leaders import Leader
from spark_groupsource.broker.network.limits import ConnectionLimits
from spark_groupsource.broker.network.listener import Listener, ResponseRouter
from spark_groupsource.broker.network.scheduler import Scheduler
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.report_writer import ReportWriter
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import describe_error, log_line
from spark_groupsource.model import TopicPartition
from spark_groupsource.net import Address, parse_addresses
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.reporter import Reporter

_LOGGER = logging.getLogger(__name__)
_EMBEDDED_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
_CONNECTION_CHECK_S = 1.0
# a timer that is later than this shows that the process was suspended
_SUSPENDED_MS = 1_000
_RESUME_S = 0.1
_GC_THRESHOLDS = (5_000, 1, 2_500)
_THREAD_SWITCH_S = 0.0005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_THRESHOLD_BYTES, _TRIM_THRESHOLD_BYTES = 2_097_152, 8_388_608
_WILDCARDS = frozenset({"0.0.0.0", "::"})
Result = TypeVar("Result")


def _log(line: str, level: int) -> None:
    _LOGGER.log(level, line)


class BrokerServer:
    """A broker with one listener per node. Everything runs in the event loop that calls `start`.

    Args: `write_line` takes one log line at a time, escaped and bounded; it must not block or raise. `listen_option`
    is the caller's name of `address`, for messages.

    Attributes: `warning`, set by `start` if other machines can connect without authentication, else empty.
    """

    def __init__(
        self,
        data_dir: Path,
        address: Address,
        config: BrokerConfig,
        clock: Clock,
        write_line: Reporter,
        node_count: int = 1,
        adopt: bool = False,
        add_scram: Collection[str] = (),
        listen_option: str = "--listen",
    ) -> None:
        def report(text: str, level: int = logging.WARNING, /) -> None:
            write_line(log_line(text), level)

        self.config = config
        self._listen_option = listen_option
        self._scheduler = Scheduler(self._schedule_timers)
        self._limits = ConnectionLimits(config.queued_max_request_bytes)
        router = ResponseRouter(self._scheduler)
        data = DataDirectory(data_dir, adopt, report)
        self.broker = Broker(config, data, clock, router.send, report, node_count, add_scram)
        dispatcher = RequestDispatcher(self.broker, SERVED, router.send, router.run_steps)
        self._clock = clock
        self._report = report
        self._listeners: dict[int, Listener] = {}
        if address.port + node_count > 65_536:
            raise ConfigurationError(
                f"Option {listen_option} must have a port of at most {65_536 - node_count} for {node_count} nodes, got "
                f"{address.port}."
            )
        for index, node_id in enumerate(self.broker.leaders.node_ids):
            own = Address(address.host, address.port + index if address.port else 0)
            self._listeners[node_id] = Listener(
                self.broker,
                dispatcher,
                router,
                node_id,
                own,
                clock,
                self._scheduler,
                self._limits,
                self._schedule_timers,
            )
        fetch_manager = self.broker.fetch_manager
        fetch_manager.available_bytes = lambda: self._limits.responses.largest_bytes
        fetch_manager.run_steps = lambda token, steps: router.run_steps(
            token, steps, None, lambda response: router.send(token, response), False
        )
        self._timer_handle: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._timers_run_ms = clock.now_ms()
        self._connection_check: asyncio.TimerHandle | None = None
        self.warning = ""

    async def start(self) -> tuple[Address, ...]:
        """Opens the data directory and the listeners; returns the advertised addresses.

        Raises: ConfigurationError when a port is in use; StorageError when the directory cannot be used.
        """
        _import_libraries()
        self._advertise()
        listeners = tuple(self._listeners.values())
        try:
            for listener in listeners:
                listener.bind(self._listen_option)
            self.broker.start()
        except BaseException:
            await self._close_listeners()
            raise
        for listener in listeners:
            self.broker.node_started(listener.node)
        for listener in listeners:
            await listener.serve()
        self._check_connections()
        self._schedule_timers()
        self.warning = self._warning()
        return tuple(Address(node.host, node.port) for node in self.broker.nodes)

    async def stop(self) -> None:
        """Closes all connections and logs; acknowledged records are on disk on return."""
        for handle in (self._timer_handle, self._connection_check):
            if handle is not None:
                handle.cancel()
        await self._close_listeners()
        self._scheduler.close()
        self.broker.stop()

    async def start_node(self, node_id: int) -> None:
        """Starts a stopped node at its previous address.

        Raises: ConfigurationError if the port is in use; ValueError for an unknown node.
        """
        listener = self._listener(node_id)
        if not listener.is_open:
            listener.bind(self._listen_option)
            self.broker.node_started(listener.node)
            await listener.serve()
            self._schedule_timers()

    async def stop_node(self, node_id: int) -> None:
        """Closes a node's listener and connections; other nodes become leaders. Raises: ValueError."""
        await self._listener(node_id).close()
        self.broker.node_stopped(node_id)
        self._schedule_timers()

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that clients have not read yet."""
        return sum(listener.unsent_bytes for listener in self._listeners.values())

    @property
    def connection_count(self) -> int:
        """Number of connected clients."""
        return sum(listener.connection_count for listener in self._listeners.values())

    def _listener(self, node_id: int) -> Listener:
        if node_id not in self._listeners:
            raise ValueError(f"Unknown node {node_id}: the broker has nodes {sorted(self._listeners)}.")
        return self._listeners[node_id]

    async def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            await listener.close()

    # --- timers ---

    def after_call(self) -> None:
        """Must be called after a change outside of a request, because it may have set timers."""
        self._schedule_timers()

    def _schedule_timers(self) -> None:
        # called after every request, so it compares a lower bound only; a call that is too early schedules the next one
        earliest_ms = self.broker.timers.lower_bound_ms()
        if earliest_ms is None or (self._timer_ms is not None and self._timer_ms <= earliest_ms):
            return
        if self._timer_handle is not None:
            self._timer_handle.cancel()
        deadline_ms = self.broker.next_deadline_ms()
        self._timer_handle, self._timer_ms = None, deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self._clock.now_ms(), 0)
            self._timer_handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._run_timers)

    def _run_timers(self) -> None:
        now_ms = self._clock.now_ms()
        due_ms = max(self._timer_ms or 0, self._timers_run_ms)
        self._timers_run_ms = now_ms
        if now_ms - due_ms > _SUSPENDED_MS:
            # the process was suspended: heartbeats that arrived meanwhile are handled before their sessions time out
            self._timer_handle = asyncio.get_running_loop().call_later(_RESUME_S, self._run_timers)
            return
        self._timer_handle = self._timer_ms = None
        try:
            self.broker.run_timers()
        except Exception as error:  # a bug affects one timer only
            self._report(f"[broker] Unexpected error in a timer callback: {describe_error(error)}.", logging.ERROR)
        self._schedule_timers()

    def _check_connections(self) -> None:
        for listener in self._listeners.values():
            listener.close_idle()
        self._limits.close_stalled(self._clock.now_ms())
        shortest_ms = min(self.config.connections_max_idle_ms, self.config.authentication_timeout_ms)
        delay_s = min(shortest_ms / 2000, _CONNECTION_CHECK_S)
        self._connection_check = asyncio.get_running_loop().call_later(delay_s, self._check_connections)

    def _warning(self) -> str:
        listener = next(iter(self._listeners.values()))
        if listener.is_loopback or self.broker.credentials.mechanisms:
            return ""
        return (
            f"[broker] Clients need no authentication, and the broker listens on {listener.address}: any client "
            "that reaches this address can read, write and delete all topics, groups and users. Set "
            "sasl.enabled.mechanisms, or listen on 127.0.0.1."
        )

    def _advertise(self) -> None:
        setting = self.config.advertised_listeners
        if not setting:
            host = next(iter(self._listeners.values())).address.host
            if host in _WILDCARDS:
                raise ConfigurationError(
                    f"Option advertised.listeners is required: the broker listens on {host}. Set it to the host:port "
                    "that clients connect to."
                )
            return
        without_protocol = ",".join(part.rpartition("://")[2] for part in setting)
        addresses = parse_addresses(without_protocol, "advertised.listeners")
        if len(addresses) != len(self._listeners):
            raise ConfigurationError(
                f"Option advertised.listeners must have {len(self._listeners)} addresses, one per node, got "
                f"{len(addresses)}."
            )
        for listener, address in zip(self._listeners.values(), addresses):
            listener.advertised = address


def _import_libraries() -> None:
    """Imports what the first large batch needs: at that time it would stop all clients, also from another thread.

    The import of a library of C code holds the interpreter's lock for 20 to 100 ms.
    """
    with suppress(ImportError):  # reported by the first use
        for module in ("pyarrow", "spark_groupsource.records.parser", "spark_groupsource.records.slices"):
            import_module(module)


def _bound_allocator() -> None:
    """Lets the C library return large buffers to the system when they are freed: without effect where it is not glibc.

    By default glibc raises its threshold for own mappings to 32 MB after the first large buffer that is freed, and then
    keeps buffers in its heaps, of which each thread has one.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        library.mallopt(_M_ARENA_MAX, 1)


def serve_forever(
    data_dir: Path,
    address: Address,
    config: Mapping[str, str],
    *,
    ready: Callable[[str], None],
    report: Reporter | None = None,
    brokers: int = 1,
    adopt: bool = False,
    add_scram: Collection[str] = (),
) -> None:
    """Runs a broker in this thread until SIGTERM or SIGINT, then stops it cleanly.

    Args: `config`, settings by Kafka's names; `ready`, called with ``host:port`` when clients can connect; `report`,
    called in a separate thread with each log line and its level, by default the logger; `brokers`, number of nodes, at
    consecutive ports; `adopt`, whether to adopt a Kafka broker's directory; `add_scram`, users in the format of
    ``--add-scram``.

    Raises: ConfigurationError, StorageError: the broker cannot start.
    """
    parsed = broker_config(config)
    # each client needs a file descriptor, and the usual soft limit of 1024 exists for programs that use select
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    _bound_allocator()
    # the event loop waits that long for the worker thread, after each system call
    sys.setswitchinterval(_THREAD_SWITCH_S)
    # groups and offsets are long-lived and form no cycles; by default each full collection would traverse all of them
    gc.freeze()
    # a collection blocks all requests, so those of the middle generation must be short
    gc.set_threshold(*_GC_THRESHOLDS)

    async def run(write_line: ReportWriter) -> None:
        server = BrokerServer(Path(data_dir), address, parsed, SystemClock(), write_line, brokers, adopt, add_scram)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        addresses = await server.start()
        gc.collect()
        gc.freeze()  # collections do not traverse modules, topics and partitions
        ready(",".join(map(str, addresses)))
        if server.warning:
            write_line(server.warning)
        try:
            await stopped.wait()
        finally:
            await server.stop()

    write_line = ReportWriter(report or _log)
    try:
        asyncio.run(run(write_line))
    finally:
        write_line.close()


class EmbeddedBroker:
    """A broker, or several, in a thread of this process.

    It starts with the first use of its address, with `start`, or as a context manager; it stops with `stop`, at the
    end of the ``with`` block, or when the process exits.

    ::

        broker = EmbeddedBroker(topics={"flights": 4, "airlines": [{"code": "UA"}, {"code": "DL"}]})
        broker.produce("flights", [{"carrier": "UA", "delay": 12}])
        spark.read.format("groupsource").option("kafka.bootstrap.servers", broker.bootstrap_servers)

    Args: `data_dir`, None for a temporary directory that `stop` removes; `port`, 0 for any free port; `config`,
    settings by Kafka's names; `brokers`, number of nodes with consecutive ids, from ``node.id``, and consecutive ports:
    partition leaders and coordinators are distributed over the nodes, which share the data directory; `adopt`, whether
    to adopt `data_dir`, a copy of a stopped Apache Kafka broker's log directory (this cannot be undone); `add_scram`,
    users, each ``SCRAM-SHA-256=[name=USER,password=PASSWORD]``; `topics`, name -> number of partitions, or the
    records of a topic with one partition (see `produce`), for topics that do not exist yet.

    The first rebalance of a group does not wait for further members: ``group.initial.rebalance.delay.ms`` is 0, as in
    Kafka's server.properties for development; Kafka's default of 3 seconds is set by `config`.

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
        topics: Mapping[str, int | Iterable[Any]] | None = None,
    ) -> None:
        if brokers < 1:
            raise ConfigurationError(f"Argument brokers must be at least 1, got {brokers}.")
        if adopt and data_dir is None:
            text = "Argument adopt requires data_dir. Set it to a copy of the Kafka broker's log directory."
            raise ConfigurationError(text)
        self._adopt = adopt
        self._add_scram = tuple(add_scram)
        self._brokers = brokers
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._address = Address(host, port)
        self._config = broker_config({**_EMBEDDED_DEFAULTS, **(config or {})})
        self._topics = dict(topics or {})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._server: BrokerServer | None = None
        self._failure: BaseException | None = None
        self._write_line: ReportWriter | None = None
        self.data_dir: Path | None = None
        self._bootstrap_servers = ""
        self.reports: deque[str] = deque(maxlen=1000)

    def start(self) -> EmbeddedBroker:
        """Returns when clients can connect."""
        if self._thread is not None:
            raise RuntimeError("The broker is already running.")
        self.data_dir = self._given_dir or Path(tempfile.mkdtemp(prefix="groupsource-broker-"))
        self._write_line = ReportWriter(_log)
        ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="groupsource-broker", daemon=True)
        self._thread.start()
        try:
            self._bootstrap_servers = ready.result()
        except BaseException:
            self._join()
            raise
        assert self._server is not None
        if self._server.warning:
            _LOGGER.warning(self._server.warning)
        atexit.register(self.stop)
        try:
            for topic, content in self._topics.items():
                self._create_topic(topic, content)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the nodes, separated by commas; starts a broker that has not been started."""
        if not self._bootstrap_servers:
            self.start()
        return self._bootstrap_servers

    def produce(self, topic: str, records: Iterable[Any], partition: int | None = None) -> int:
        """Appends records made from Python objects and returns their number.

        An object is the value, a tuple is ``(key, value)``. Bytes are used as they are, None is null, text is encoded
        as UTF-8, and everything else as JSON. A missing topic is created with ``num.partitions``.

        Args:
            partition: None for the partition of the key, as Kafka's producer computes it, and round-robin without one.
        Raises: ConfigurationError for an object that cannot be encoded; ApiError for an unknown partition and records
            that the topic rejects.
        """
        self.bootstrap_servers  # noqa: B018
        objects = list(records)
        count = self.call(lambda broker: topic_partitions(broker, topic))
        for batch in record_batches(topic, objects, partition, count, SystemClock().timestamp_ms()):
            self.call(lambda broker, batch=batch: append(broker, [batch]))  # type: ignore[misc]
        return len(objects)

    def _create_topic(self, topic: str, content: int | Iterable[Any]) -> None:
        count = content if isinstance(content, int) else 1
        is_new = self.call(lambda broker: topic not in broker.partitions.topics)
        self.call(lambda broker: topic_partitions(broker, topic, count))
        if is_new and not isinstance(content, int):
            self.produce(topic, content)

    def stop(self) -> None:
        """Stops the broker, if it runs.

        Raises: StorageError when the logs cannot be closed.
        """
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, function: Callable[[Broker], Result]) -> Result:
        """Runs `function` with the broker in the broker's thread. For inspection and tests."""
        assert self._loop is not None and self._server is not None, "the broker is not running"
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
        """Makes another node the leader of a partition. Raises: ApiError; ValueError for a node that does not run."""
        self.call(lambda broker: broker.move_leader(TopicPartition(topic, partition), node_id))

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Makes another node the coordinator of a group, and of all groups in the same `__consumer_offsets` partition.

        Raises: as `move_leader`.
        """
        self.call(lambda broker: broker.move_leader(broker.group_coordinator.shards.partition_of(group_id), node_id))

    def leader(self, topic: str, partition: int) -> Leader:
        """The leader of a partition and its epoch."""
        return self.call(lambda broker: broker.leaders.leader(TopicPartition(topic, partition)))

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates a group. Raises: ApiError."""
        return self.call(lambda broker: broker.group_coordinator.shards.coordinator_node(group_id).node_id)

    def pause_loading(self, paused: bool = True) -> None:
        """Pauses the loading of group coordinators, so that they return COORDINATOR_LOAD_IN_PROGRESS; or resumes it."""
        self.call(lambda broker: broker.group_coordinator.shards.pause_loading(paused))

    def stop_node(self, node_id: int) -> None:
        """Stops one node: closes its connections; other nodes become leaders of its partitions."""
        self._run_in_loop(lambda server: server.stop_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Starts a stopped node at its previous address."""
        self._run_in_loop(lambda server: server.start_node(node_id))

    def _run_in_loop(self, work: Callable[[BrokerServer], Coroutine[None, None, None]]) -> None:
        assert self._loop is not None and self._server is not None, "the broker is not running"
        asyncio.run_coroutine_threadsafe(work(self._server), self._loop).result()

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that clients have not read yet; use within `call`."""
        return self._server.unsent_bytes if self._server is not None else 0

    @property
    def connection_count(self) -> int:
        """Number of connected clients; use within `call`."""
        return self._server.connection_count if self._server is not None else 0

    def __repr__(self) -> str:
        if self._thread is None:
            return "EmbeddedBroker(not running)"
        return f"EmbeddedBroker({self._bootstrap_servers!r})"

    def __enter__(self) -> EmbeddedBroker:
        return self if self._thread is not None else self.start()

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
            self.data_dir,
            self._address,
            self._config,
            clock,
            self._note,
            self._brokers,
            self._adopt,
            self._add_scram,
            listen_option="port",
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

    def _note(self, line: str, level: int = logging.WARNING, /) -> None:
        self.reports.append(line)
        if self._write_line is not None and _LOGGER.isEnabledFor(level):
            self._write_line(line, level)

    def _join(self) -> None:
        atexit.unregister(self.stop)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._write_line is not None:
            self._write_line.close()
            self._write_line = None
        if self._given_dir is None and self.data_dir is not None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.data_dir = None
