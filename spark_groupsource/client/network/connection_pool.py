"""Pool of idle broker connections, and addresses that did not respond last.

Thread-safe; nothing blocks under its lock.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Callable, Iterable

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import GroupSourceError

_MAX_IDLE_PER_ADDRESS = 4


class ClientClosedError(GroupSourceError):
    """The `ClusterClient` was closed during a call. A defect of the caller; not retried."""


class ConnectionPool:
    """Idle connections by address. `connect` returns an unopened connection to an address."""

    def __init__(self, connect: Callable[[Address], BrokerConnection], clock: Clock, max_idle_ms: int) -> None:
        self._connect = connect
        self._clock = clock
        self._max_idle_ms = max_idle_ms
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BrokerConnection]] = defaultdict(list)
        # the error of the latest attempt to use the address was a lost connection
        self._unreachable: set[Address] = set()
        self._closed = False

    def close(self) -> None:
        """Closes the idle connections; connections in use are closed when they are released."""
        with self._lock:
            self._closed = True
            idle = [connection for pool in self._idle.values() for connection in pool]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def acquire(self, address: Address) -> BrokerConnection:
        """Returns a pooled or new connection; the caller must pass it to `release`, or close it.

        Raises: ClientClosedError.
        """
        oldest_ms = self._clock.now_ms() - self._max_idle_ms
        stale: list[BrokerConnection] = []
        chosen: BrokerConnection | None = None
        with self._lock:
            if self._closed:
                raise ClientClosedError("Request failed: the cluster client is closed.")
            pool = self._idle[address]
            while pool and chosen is None:
                candidate = pool.pop()
                if candidate.last_used_ms < oldest_ms or candidate.is_expired:
                    stale.append(candidate)
                else:
                    chosen = candidate
        for connection in stale:
            connection.close()
        return chosen or self._connect(address)

    def release(self, connection: BrokerConnection) -> None:
        """Returns a connection to the pool; it must have no request without a response."""
        if connection.is_closed:
            return
        with self._lock:
            pool = self._idle[connection.address]
            if not self._closed and len(pool) < _MAX_IDLE_PER_ADDRESS:
                pool.append(connection)
                return
        connection.close()

    def connection_lost(self, address: Address) -> None:
        """Closes the idle connections to a broker, which are probably broken too, and marks it as unreachable."""
        with self._lock:
            dropped = self._idle.pop(address, [])
            self._unreachable.add(address)
        for connection in dropped:
            connection.close()

    def responded(self, address: Address) -> None:
        """Removes the mark of `connection_lost`."""
        self._unreachable.discard(address)

    def reachable_first(self, addresses: Iterable[Address]) -> list[Address]:
        """Returns each address once, in their order, those without a response last."""
        return sorted(dict.fromkeys(addresses), key=self._unreachable.__contains__)
