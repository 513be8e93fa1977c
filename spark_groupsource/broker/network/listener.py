"""Where clients reach one node: its address, its connections, who of them has gone silent."""

from __future__ import annotations

import asyncio
import traceback
from typing import Callable

from spark_groupsource.broker.network.connection import Connection
from spark_groupsource.broker.node import Broker
from spark_groupsource.clock import Clock
from spark_groupsource.model import Node
from spark_groupsource.net import Address, Socket, listen
from spark_groupsource.wire.messages import Message

_BACKLOG = 1024
_INBOX_BYTES = 1 << 18


class Answers:
    """Which connection each request in progress came from, for all listeners of a broker."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}
        self._last_token = 0

    def new_token(self, connection: Connection) -> int:
        """Names one request."""
        self._last_token += 1
        self._connections[self._last_token] = connection
        return self._last_token

    def send(self, token: int, response: Message | None) -> None:
        """Answers a request, once; a client that is gone is no error."""
        connection = self._connections.pop(token, None)
        if connection is not None:
            connection.answer(response)


class Listener:
    """One node of a broker: first `bind`, then `serve`.

    Attributes: `address`, what is bound, with the real port once it is; `advertised`, what clients are told instead;
    `inbox`, into which every connection receives: one at a time, for each has emptied it before another one's turn.
    """

    def __init__(
        self, broker: Broker, node_id: int, address: Address, answers: Answers, clock: Clock, worked: Callable[[], None]
    ) -> None:
        self.broker = broker
        self.node_id = node_id
        self.address = address
        self.advertised: Address | None = None
        self.inbox = memoryview(bytearray(_INBOX_BYTES))
        self.after_work = worked
        self.new_token = answers.new_token
        self._clock = clock
        self._connections: set[Connection] = set()
        self._socket: Socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def node(self) -> Node:
        """This node as clients are told of it."""
        host, port = self.advertised or self.address
        return Node(self.node_id, host, port or self.address.port)

    def bind(self) -> None:
        """Takes the port; clients that connect wait.

        Raises: ConfigurationError when the port is in use.
        """
        self._socket = listen(self.address, "--listen")
        self.address = Address(self.address.host, self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Begins to serve clients."""
        assert self._socket is not None, "bind comes first"
        # asyncio listens again, by itself with room for 100 waiting clients: others would lose a second each
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self, self._clock.now_ms), sock=self._socket, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Drops all connections, with what they still wait for."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        self._server = self._socket = None
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.sleep(0)  # lets the dropped transports close their sockets

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken yet."""
        return sum(connection.unsent_bytes for connection in self._connections)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def close_silent(self, limit_ms: int) -> None:
        """Drops the connections whose client has moved nothing for that long."""
        oldest_ms = self._clock.now_ms() - limit_ms
        for connection in tuple(self._connections):
            if connection.waits_for_client and connection.last_activity_ms < oldest_ms:
                self.broker.report(f"connection from {connection.peer} is closed: nothing moved for {limit_ms} ms")
                connection.close()

    # --- what connections need ---

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def failed(self, connection: Connection, error: Exception) -> None:
        lines = "".join(traceback.format_exception(error))
        self.broker.report(
            f"a request from {connection.peer} met a bug in the broker and its connection is closed:\n{lines}"
        )
