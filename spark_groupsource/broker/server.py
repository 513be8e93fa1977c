"""Embedded broker with its listeners in one asyncio event loop.

The thread of the event loop is the only writer of the broker's state.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Coroutine, Iterator, TypeVar

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.network.limits import ConnectionLimits
from spark_groupsource.broker.network.listener import Listener
from spark_groupsource.broker.network.response_router import ResponseRouter
from spark_groupsource.broker.network.server_tls import ServerTls
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.periodic_work import PeriodicWork
from spark_groupsource.broker.security_config import ListenerSpec, advertised_addresses, listener_specs
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.common.clock import Clock, monotonic_ns
from spark_groupsource.common.coroutines import Turns, next_turn, set_turns
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import describe_error, log_line

if TYPE_CHECKING:
    from spark_groupsource.broker.request_log import RequestLog

_LOGGER = logging.getLogger(__name__)
_EMBEDDED_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
_CONNECTION_CHECK_MS = 1_000
# a timer that is later than this shows that the process was suspended
_SUSPENDED_MS = 1_000
_RESUME_S = 0.1
_WILDCARDS = frozenset({"0.0.0.0", "::"})
Result = TypeVar("Result")


def _request_log(write_line: Reporter) -> RequestLog:
    # most brokers have none
    from spark_groupsource.broker.request_log import RequestLog

    return RequestLog(monotonic_ns, write_line)


def _log(line: str, level: int) -> None:
    _LOGGER.log(level, line)


class BrokerServer:
    """A broker with one listener per node. Everything runs in the event loop that calls `start`.

    Args: `write_line` takes one log line at a time, escaped and bounded; it must not block or raise. `listen_option`
    is the caller's name of `address`, for messages. `write_request` takes the lines of the request log.

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
        add_scram: Collection[str] = (),
        listen_option: str = "--listen",
        write_request: Reporter | None = None,
    ) -> None:
        def report(text: str, level: int = logging.WARNING, /) -> None:
            write_line(log_line(text), level)

        self.config = config
        self._listen_option = listen_option
        self._worker = ThreadPoolExecutor(1, "groupsource-broker-worker")
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._limits = ConnectionLimits(config.queued_max_request_bytes)
        request_log = None if write_request is None else _request_log(write_request)
        self._router = router = (
            ResponseRouter(self._schedule_timers)
            if request_log is None
            else request_log.new_router(self._schedule_timers)
        )
        data = DataDirectory(data_dir, report)
        self.broker = Broker(config, data, clock, router.send, report, node_count, add_scram, self._start_task)
        handling = self.broker, SERVED, router.respond, router.run, router.complete_with
        dispatcher = (
            RequestDispatcher(*handling) if request_log is None else request_log.new_dispatcher(*handling)
        )
        self._clock = clock
        self._report = report
        self._specs = listener_specs(config.security, address)
        tls = ServerTls(config.security) if any(spec.has_tls for spec in self._specs) else None
        self._listeners: dict[int, tuple[Listener, ...]] = {}
        for index, node_id in enumerate(self.broker.leaders.node_ids):
            self._listeners[node_id] = tuple(
                self._new_listener(dispatcher, router, node_id, self._of_node(spec, index, node_count), tls)
                for spec in self._specs
            )
        self._limit_fetches()
        self._timer_handle: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._timers_run_ms = clock.now_ms()
        self._connection_check = PeriodicWork(
            self.broker.timers, clock, self._start_task, self._check_connections, self._connection_check_interval_ms
        )
        self.warning = ""

    def _of_node(self, spec: ListenerSpec, index: int, node_count: int) -> ListenerSpec:
        """Returns a listener of the node `index`, which follows that of the first node."""
        host, port = spec.address
        if port + node_count > 65_536:
            option = "listeners" if self.config.security.listeners else self._listen_option
            raise ConfigurationError(
                f"Option {option} must have a port of at most {65_536 - node_count} for {node_count} nodes, got {port}."
            )
        return spec._replace(address=Address(host, port + index if port else 0))

    def _new_listener(
        self,
        dispatcher: RequestDispatcher,
        router: ResponseRouter,
        node_id: int,
        spec: ListenerSpec,
        tls: ServerTls | None,
    ) -> Listener:
        return Listener(
            self.broker,
            dispatcher,
            router,
            node_id,
            spec,
            self._clock,
            self._limits,
            self._schedule_timers,
            tls if spec.has_tls else None,
        )

    def _limit_fetches(self) -> None:
        """Lets the fetch manager read within the limit of all responses."""
        fetch_manager = self.broker.fetch_manager
        fetch_manager.available_bytes = lambda: self._limits.responses.largest_bytes
        fetch_manager.may_exceed = lambda: not self._limits.responses.is_full

    async def start(self) -> dict[str, tuple[Address, ...]]:
        """Opens the data directory and the listeners; returns the advertised addresses of the nodes by protocol.

        Raises: ConfigurationError when a port is in use; StorageError when the directory cannot be used.
        """
        _import_libraries()
        asyncio.get_running_loop().set_default_executor(self._worker)
        set_turns(Turns(self._schedule_timers))
        self._advertise()
        option = "listeners" if self.config.security.listeners else self._listen_option
        try:
            for listener in self._all_listeners():
                listener.bind(option)
            self.broker.start()
        except BaseException:
            await self._close_listeners()
            raise
        for node_id in self._listeners:
            self._node_started(node_id)
        for listener in self._all_listeners():
            await listener.serve()
        self._connection_check.start()
        self._schedule_timers()
        self.warning = self._warning()
        return {
            spec.protocol: tuple(Address(node.host, node.port) for node in self.broker.nodes.at(spec.protocol))
            for spec in self._specs
        }

    def _node_started(self, node_id: int) -> None:
        self.broker.node_started(node_id, {each.protocol: each.node for each in self._listeners[node_id]})

    def _all_listeners(self) -> Iterator[Listener]:
        for listeners in self._listeners.values():
            yield from listeners

    async def stop(self) -> None:
        """Closes all connections and logs; acknowledged records are on disk on return."""
        if self._timer_handle is not None:
            self._timer_handle.cancel()
        await self._close_listeners()
        self._is_stopping = True
        await self._router.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.group_coordinator.stop()  # thousands of events take a second
        self._worker.shutdown()
        self.broker.stop()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work beside requests; reports its error."""
        if self._is_stopping:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report(f"[broker] Unexpected error in background work: {describe_error(error)}.", logging.ERROR)
        self._schedule_timers()

    async def start_node(self, node_id: int) -> None:
        """Starts a stopped node at its previous address.

        Raises: ConfigurationError if the port is in use; ValueError for an unknown node.
        """
        listeners = self._of(node_id)
        if not listeners[0].is_open:
            for listener in listeners:
                listener.bind(self._listen_option)
            self._node_started(node_id)
            for listener in listeners:
                await listener.serve()
            self._schedule_timers()

    async def stop_node(self, node_id: int) -> None:
        """Closes a node's listener and connections; other nodes become leaders. Raises: ValueError."""
        for listener in self._of(node_id):
            await listener.close()
        self.broker.node_stopped(node_id)
        self._schedule_timers()

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that clients have not read yet."""
        return sum(listener.unsent_bytes for listener in self._all_listeners())

    @property
    def connection_count(self) -> int:
        """Number of connected clients."""
        return sum(listener.connection_count for listener in self._all_listeners())

    def _of(self, node_id: int) -> tuple[Listener, ...]:
        if node_id not in self._listeners:
            raise ValueError(f"Unknown node {node_id}: the broker has nodes {sorted(self._listeners)}.")
        return self._listeners[node_id]

    async def _close_listeners(self) -> None:
        for listener in self._all_listeners():
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

    async def _check_connections(self) -> None:
        for listener in self._all_listeners():
            await listener.close_idle()
        for _ in self._limits.close_stalled(self._clock.now_ms()):
            await next_turn()

    def _connection_check_interval_ms(self) -> int:
        shortest_ms = min(self.config.connections_max_idle_ms, self.config.authentication_timeout_ms)
        return max(min(shortest_ms // 2, _CONNECTION_CHECK_MS), 1)

    def _warning(self) -> str:
        auth = self.config.security.client_auth
        for listener in self._all_listeners():
            is_open = listener.protocol == "PLAINTEXT" or (listener.protocol == "SSL" and auth != "required")
            if is_open and not listener.is_loopback:
                return (
                    f"[broker] Clients need no authentication, and the broker listens on {listener.address}: any "
                    "client that reaches this address can read, write and delete all topics, groups and users. Set "
                    "sasl.enabled.mechanisms, or listen on 127.0.0.1."
                )
        return ""

    def _advertise(self) -> None:
        protocols = [spec.protocol for spec in self._specs]
        found = advertised_addresses(self.config.advertised_listeners, protocols, len(self._listeners))
        for spec in self._specs:
            if spec.protocol not in found and spec.address.host in _WILDCARDS:
                raise ConfigurationError(
                    f"Option advertised.listeners is required: the broker listens on {spec.address.host}. Set it to "
                    "the host:port that clients connect to."
                )
        for index, listeners in enumerate(self._listeners.values()):
            for listener in listeners:
                if listener.protocol in found:
                    listener.advertised = found[listener.protocol][index]


def _import_libraries() -> None:
    """Imports what the first large batch needs: at that time it would stop all clients, also from another thread.

    The import of a library of C code holds the interpreter's lock for 20 to 100 ms.
    """
    with suppress(ImportError):  # reported by the first use
        for module in ("pyarrow", "spark_groupsource.records.parser", "spark_groupsource.records.slices"):
            import_module(module)
