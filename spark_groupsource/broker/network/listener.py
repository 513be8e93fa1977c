"""Listener of one node."""

from __future__ import annotations

import asyncio
import logging
from typing import Callable

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.network.client_connection import Connection
from spark_groupsource.broker.network.limits import ConnectionLimits
from spark_groupsource.broker.network.response_router import ResponseRouter
from spark_groupsource.broker.network.server_tls import ServerTls
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.security_config import ListenerSpec
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.coroutines import next_turn
from spark_groupsource.common.descriptors import descriptor_limit
from spark_groupsource.common.net import Address, Socket, is_loopback, listen
from spark_groupsource.log_text import describe_error
from spark_groupsource.model import Node

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 16
_ITERATIONS_TO_CLOSE = 4
"""Iterations of the event loop until an accepted connection has a transport, is reported, aborted, and closed."""
_RECEIVE_BUFFER_BYTES = 1 << 18
_CHECKED_AT_ONCE = 200


class Listener:
    """The listener of one node: call `bind`, then `serve`.

    Args: `tls`, of the protocols SSL and SASL_SSL.

    Attributes: `protocol`, also the name of the listener; `address`, the bound address; `advertised`, the address in
    metadata if it differs; `receive_buffer`, shared by all connections, because each of them empties it before the
    event loop continues.
    """

    def __init__(
        self,
        broker: Broker,
        dispatcher: RequestDispatcher,
        router: ResponseRouter,
        node_id: int,
        spec: ListenerSpec,
        clock: Clock,
        limits: ConnectionLimits,
        after_requests: Callable[[], None],
        tls: ServerTls | None = None,
    ) -> None:
        self.broker = broker
        self.dispatcher = dispatcher
        self.node_id = node_id
        self.protocol, self.address = spec
        self._tls = tls
        self.advertised: Address | None = None
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BUFFER_BYTES))
        self.after_requests = after_requests
        self.requests, self.responses = limits.requests, limits.responses
        self._handshakes = limits.handshakes
        self._counts = limits.counts
        self._is_rejecting = False
        self.new_token = router.new_token
        self.cancel = router.cancel
        self._clock = clock
        self._connections: set[Connection] = set()
        self._socket: Socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self._socket is not None and is_loopback(self._socket)

    @property
    def node(self) -> Node:
        """This node as in metadata."""
        host, port = self.advertised or self.address
        return Node(self.node_id, host, port or self.address.port)

    def bind(self, option: str) -> None:
        """Binds the port; new connections wait until `serve`. `option` is the name of the address in messages.

        Raises: ConfigurationError when the port is in use.
        """
        self._socket = listen(self.address, option)
        self.address = Address(self.address.host, self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Starts to accept connections."""
        assert self._socket is not None, "bind must be called first"
        # asyncio accepts up to `backlog` connections at once, which must not delay other clients
        self._server = await asyncio.get_running_loop().create_server(
            self._new_protocol, sock=self._socket, backlog=_ACCEPTED_AT_ONCE
        )
        self._socket.listen(_BACKLOG)

    def _new_protocol(self) -> asyncio.BufferedProtocol:
        connection = Connection(self, self._clock.now_ms)
        return connection if self._tls is None else self._tls.new_transport(connection, self, self._handshakes)

    async def close(self) -> None:
        """Closes the port and all connections, also those that the event loop has accepted but not reported yet."""
        server, listening = self._server, self._socket
        self._server = self._socket = None
        if server is not None and listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
        for connection in tuple(self._connections):
            connection.close()
        for _ in range(_ITERATIONS_TO_CLOSE):
            await asyncio.sleep(0)
        # last, because asyncio makes no transport of an accepted connection when its server is closed
        if server is not None:
            server.close()
        elif listening is not None:
            listening.close()

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that clients have not read yet."""
        return sum(connection.unsent_bytes for connection in self._connections)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def close_idle(self) -> None:
        """Closes connections that are idle for too long, or not authenticated in time."""
        now_ms, config = self._clock.now_ms(), self.broker.config
        idle_ms, login_ms = config.connections_max_idle_ms, config.authentication_timeout_ms
        for number, connection in enumerate(tuple(self._connections), 1):
            if number % _CHECKED_AT_ONCE == 0:
                await next_turn()
            if connection.is_unauthenticated and connection.opened_ms <= now_ms - login_ms:
                connection.reject(f"not authenticated within {login_ms:,} ms (authentication.timeout.ms).")
            elif connection.waits_for_client and connection.last_activity_ms < now_ms - idle_ms:
                connection.reject(f"idle for {idle_ms:,} ms (connections.max.idle.ms).")

    # --- called by connections ---

    def on_open(self, connection: Connection) -> None:
        self._connections.add(connection)
        if not self.is_open:
            connection.close()
        config = self.broker.config
        descriptors = descriptor_limit()
        limit = min(config.max_connections, descriptors * 3 // 4)  # the logs need the others
        exceeded = self._counts.add(connection.peer, limit, config.max_connections_per_ip, self._tls is not None)
        if exceeded and not self._is_rejecting:  # reported once, not for each of thousands
            text = f"[client={connection.peer}] Closing new connections: {exceeded} is reached."
            if exceeded.startswith("max.connections") and limit < config.max_connections and "ip" not in exceeded:
                text += f" It is {limit:,}, as the process has {descriptors:,} file descriptors: raise ulimit -n."
            self.broker.report(text, logging.INFO)
        self._is_rejecting = bool(exceeded)
        if exceeded:
            connection.close()

    def on_close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._counts.remove(connection.peer, self._tls is not None)

    def on_error(self, connection: Connection, error: Exception) -> None:
        text = f"Closing the connection: unexpected error in a request: {describe_error(error)}."
        self.broker.report(f"[client={connection.peer}] {text}", logging.ERROR)
