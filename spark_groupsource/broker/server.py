"""Embedded broker with its listeners in one asyncio event loop.

The thread of the event loop is the only writer of the broker's state.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Collection, TypeVar

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.network.limits import ConnectionLimits
from spark_groupsource.broker.network.listener import Listener, ResponseRouter
from spark_groupsource.broker.network.scheduler import Scheduler
from spark_groupsource.broker.node import Broker
from spark_groupsource.clock import Clock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import describe_error, log_line
from spark_groupsource.net import Address, parse_addresses
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.reporter import Reporter

_LOGGER = logging.getLogger(__name__)
_EMBEDDED_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
_CONNECTION_CHECK_S = 1.0
# a timer that is later than this shows that the process was suspended
_SUSPENDED_MS = 1_000
_RESUME_S = 0.1
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
            self._listeners[node_id] = self._new_listener(dispatcher, router, node_id, own)
        self._limit_fetches(router)
        self._timer_handle: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._timers_run_ms = clock.now_ms()
        self._connection_check: asyncio.TimerHandle | None = None
        self.warning = ""

    def _new_listener(
        self, dispatcher: RequestDispatcher, router: ResponseRouter, node_id: int, address: Address
    ) -> Listener:
        return Listener(
            self.broker,
            dispatcher,
            router,
            node_id,
            address,
            self._clock,
            self._scheduler,
            self._limits,
            self._schedule_timers,
        )

    def _limit_fetches(self, router: ResponseRouter) -> None:
        """Lets the fetch manager read within the limit of all responses, in steps of the scheduler."""
        fetch_manager = self.broker.fetch_manager
        fetch_manager.available_bytes = lambda: self._limits.responses.largest_bytes
        fetch_manager.run_steps = lambda token, steps: router.run_steps(
            token, steps, None, lambda response: router.send(token, response), False
        )

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
        for _ in self.broker.group_coordinator.stop():  # thousands of events take a second
            await asyncio.sleep(0)
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
