"""Limits of connections, and of request and response bytes of all clients.

Pure apart from calls of the connections: the caller passes the time.

Source: Kafka `ConnectionQuotas` (max.connections, max.connections.per.ip) and `SimpleMemoryPool`
(queued.max.request.bytes), which stops reading large requests while the memory is used up.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

_READ_BYTES, _SMALL_BYTES, _TINY_BYTES = 262_144, 16_384, 1_024
# thousands of connections at once would block the event loop for 100 ms
_RESUMED_AT_ONCE = 100
_STALLED_REQUEST_MS = 5_000
_STALLED_RESPONSE_MS = 2_000
_MIN_BYTES_PER_S = 65_536
_LARGEST_RESPONSE_BYTES = 1_966_080
_RESPONSE_BYTES = 16_777_216


class ConnectionCounts:
    """The connections of all listeners, in total and by client address."""

    def __init__(self) -> None:
        self.total = 0
        self._by_host: Counter[str] = Counter()

    def add(self, host: str, limit: int, limit_per_host: int) -> str:
        """Counts a connection; returns the setting whose limit it exceeds, empty if it is accepted.

        `remove` must be called in both cases.
        """
        self.total += 1
        self._by_host[host] += 1
        if self.total > limit:
            return "max.connections"
        return "max.connections.per.ip" if self._by_host[host] > limit_per_host else ""

    def remove(self, host: str) -> None:
        self.total -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class BoundedConnection(Protocol):
    """Interface of a connection. `last_activity_ms`: when bytes were last received or sent."""

    last_activity_ms: int

    @property
    def waits_for_client(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int: ...

    def resume(self) -> None:
        """Is called when the connection may read or handle more."""

    def reject(self, reason: str) -> None:
        """Reports the reason and closes the connection."""


class RequestMemory:
    """The received bytes of incomplete and waiting requests; the announced length of a frame does not count.

    Above the limit, connections with small requests are read, and one connection with a large request is admitted at a
    time, so that large requests make progress. Connections that hold memory and send nothing, or slowly, are closed.
    Above twice the limit, which thousands of connections with small requests can reach, a small request has 1 kB.

    Attributes: `total`, bytes of all connections; `read_bytes`, what a connection may receive at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: dict[BoundedConnection, int] = {}
        self._waiting: dict[BoundedConnection, None] = {}
        self._admitted: BoundedConnection | None = None
        self._admitted_ms = self._admitted_bytes = 0
        self._is_resuming = False
        self.total = 0
        self.read_bytes, self._small_bytes = _READ_BYTES, _SMALL_BYTES

    def set_size(self, connection: BoundedConnection, size: int) -> bool:
        """Records the bytes that a connection has received and not handled; returns whether it may be read."""
        self.total += size - self._held.pop(connection, 0)
        self._small_bytes = _SMALL_BYTES if self.total <= 2 * self._limit else _TINY_BYTES
        self.read_bytes = _READ_BYTES if self.total <= self._limit else self._small_bytes
        if size:
            self._held[connection] = size
        self._waiting.pop(connection, None)
        if connection is self._admitted and size <= self._small_bytes:
            self._admitted = None
        if self.total <= self._limit:
            self._admitted = None
            self._resume_some()
            return True
        if size <= self._small_bytes:
            self._resume_some()
            return True
        if self._admitted is None:
            self._admit(connection)
        if connection is self._admitted:
            return True
        self._waiting[connection] = None
        return False

    def close_stalled(self, now_ms: int) -> None:
        """Closes connections with memory that others wait for. To be called every second."""
        self._resume_some()
        if self.total <= self._limit:
            return
        for connection, size in list(self._held.items()):
            if size <= _TINY_BYTES or connection in self._waiting or not connection.waits_for_client:
                continue
            is_stalled = connection.last_activity_ms <= now_ms - _STALLED_REQUEST_MS
            if connection is self._admitted:
                self._admitted_ms = self._admitted_ms or now_ms
                elapsed_ms = now_ms - self._admitted_ms
                expected = _MIN_BYTES_PER_S * elapsed_ms // 1000
                is_stalled |= elapsed_ms >= _STALLED_REQUEST_MS and size - self._admitted_bytes < expected
            if is_stalled:
                connection.reject(f"an incomplete request holds {size:,} bytes while queued.max.request.bytes is used.")

    def _admit(self, connection: BoundedConnection) -> None:
        self._admitted, self._admitted_ms = connection, 0
        self._admitted_bytes = self._held.get(connection, 0)

    def _resume_some(self) -> None:
        """Resumes waiting connections, at most `_RESUMED_AT_ONCE`; above the limit, large requests one at a time.

        The others follow at the next change of a size, at the latest after a second.
        """
        if self._is_resuming:
            # a connection that is resumed sets its size
            return
        self._is_resuming = True
        try:
            for _ in range(_RESUMED_AT_ONCE):
                is_full = self.total > self._limit
                if not self._waiting or (is_full and self._admitted is not None):
                    return
                connection = next(iter(self._waiting))
                del self._waiting[connection]
                if is_full:
                    self._admit(connection)
                connection.resume()
        finally:
            self._is_resuming = False


class ResponseMemory:
    """The bytes of responses that clients have not read yet.

    While the limit is reached, requests with large responses wait, and connections that do not read are closed.
    """

    def __init__(self) -> None:
        self._unsent: dict[BoundedConnection, int] = {}
        self._waiting: dict[BoundedConnection, None] = {}
        self.total = 0

    @property
    def is_full(self) -> bool:
        return self.total >= _RESPONSE_BYTES

    @property
    def largest_bytes(self) -> int:
        """Bytes of records for the next Fetch response, 0 while the limit is reached."""
        return min((_RESPONSE_BYTES - self.total) // 4, _LARGEST_RESPONSE_BYTES) if not self.is_full else 0

    def reserve(self, connection: BoundedConnection) -> None:
        """Counts the largest response of a connection until its size is known."""
        self.set_size(connection, _LARGEST_RESPONSE_BYTES)

    def set_size(self, connection: BoundedConnection, size: int) -> None:
        """Records the unsent bytes of a connection: after a response, and when the client has read."""
        self.total += size - self._unsent.pop(connection, 0)
        if size:
            self._unsent[connection] = size
        else:
            self._waiting.pop(connection, None)
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for each in waiting:
                each.resume()

    def wait(self, connection: BoundedConnection) -> None:
        """Resumes the connection when the memory is below its limit."""
        self._waiting[connection] = None

    def remove(self, connection: BoundedConnection) -> None:
        """Must be called when a connection is closed."""
        self._waiting.pop(connection, None)
        self.set_size(connection, 0)

    def close_stalled(self, now_ms: int) -> None:
        """Closes connections that do not read while others wait for memory. To be called every second."""
        for connection in list(self._unsent):
            if connection.waits_for_client:  # else its response is being encoded
                self.set_size(connection, connection.unsent_bytes)
        if not self.is_full:
            return
        for connection, size in list(self._unsent.items()):
            if size > _SMALL_BYTES and connection.last_activity_ms <= now_ms - _STALLED_RESPONSE_MS:
                connection.reject(f"the client has not read {size:,} bytes of responses while their limit is reached.")


class ConnectionLimits:
    """The bounds of all listeners of a broker."""

    def __init__(self, queued_max_request_bytes: int) -> None:
        self.counts = ConnectionCounts()
        self.requests = RequestMemory(queued_max_request_bytes)
        self.responses = ResponseMemory()

    def close_stalled(self, now_ms: int) -> None:
        """Closes connections without progress that hold memory. To be called every second."""
        self.requests.close_stalled(now_ms)
        self.responses.close_stalled(now_ms)
