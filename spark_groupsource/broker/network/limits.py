"""Limits of connections, and of request and response bytes of all clients.

Pure apart from calls of the connections: the caller passes the time.

Source: Kafka `ConnectionQuotas` (max.connections, max.connections.per.ip) and `SimpleMemoryPool`
(queued.max.request.bytes), which stops reading large requests while the memory is used up.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Iterator, Protocol

from spark_groupsource.broker.network.tls_handshakes import HandshakeQueue
from spark_groupsource.broker.requests import SMALL_RESPONSE_BYTES

# one takes 16 kB, and 30 kB when it has sent and received large records
_TLS_CONNECTIONS = 2_000
_READ_BYTES, _SMALL_BYTES, _TINY_BYTES = 262_144, 16_384, 1_024
# 100 take 2 ms, and 32 connections that are closed in one iteration of the event loop resume as many each
_RESUMED_AT_ONCE = 16
_CLOSED_AT_ONCE = 32
_STALLED_REQUEST_MS = 5_000
# of a request that is read while others wait for that
_STALLED_ADMITTED_MS = 1_000
_WAITING_MS = 10_000
# of a request that is read before older ones
_NEWEST_BYTES, _NEWEST_TRIED = 4_194_304, 100
_STALLED_RESPONSE_MS = 2_000
_MIN_BYTES_PER_S = 65_536
_LARGEST_RESPONSE_BYTES = 1_966_080
_RESPONSE_BYTES = 16_777_216
# for small responses of connections whose previous responses were read
_RESERVED_RESPONSE_BYTES = 4_194_304


class ConnectionCounts:
    """The connections of all listeners, in total, with TLS, and by client address."""

    def __init__(self) -> None:
        self.total = 0
        self.tls = 0
        self._by_host: Counter[str] = Counter()

    def add(self, host: str, limit: int, limit_per_host: int, is_tls: bool = False) -> str:
        """Counts a connection; returns the setting whose limit it exceeds, empty if it is accepted.

        `remove` must be called in both cases.
        """
        self.total += 1
        self.tls += is_tls
        self._by_host[host] += 1
        if self.total > limit:
            return "max.connections"
        tls_limit = max(_TLS_CONNECTIONS, limit * 2 // 5)
        if is_tls and self.tls > tls_limit:
            return f"max.connections (with TLS {tls_limit:,})"
        return "max.connections.per.ip" if self._by_host[host] > limit_per_host else ""

    def remove(self, host: str, is_tls: bool = False) -> None:
        self.total -= 1
        self.tls -= is_tls
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class BoundedConnection(Protocol):
    """Interface of a connection.

    `last_activity_ms`: when bytes were last received or sent; `announced_bytes`: length of the first request.
    """

    last_activity_ms: int

    @property
    def announced_bytes(self) -> int: ...

    @property
    def waits_for_client(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int: ...

    def resume(self) -> None:
        """Is called when the connection may read or handle more."""

    def reject(self, reason: str) -> None:
        """Reports the reason and closes the connection."""


class _Admission:
    """A connection whose large request is read above the limit.

    `is_newest`: admitted before those that wait for a longer time; `since_ms`: the first check after it was admitted.
    """

    def __init__(self, size: int, is_newest: bool) -> None:
        self.size = size
        self.is_newest = is_newest
        self.since_ms: int | None = None


class RequestMemory:
    """The received bytes of incomplete and waiting requests; the announced length of a frame does not count.

    Above the limit, connections with small requests are read, and two with a large request at a time, so that large
    requests make progress: the one that waits for the longest time, and the newest, unless it is very large. So a
    client does not wait until all those that came before it and send nothing are closed. Connections that hold memory
    and send nothing, or slowly, are closed, and those that wait for too long. Above twice the limit, which thousands of
    connections with small requests can reach, a small request has 1 kB.

    Attributes: `total`, bytes of all connections; `read_bytes`, what a connection may receive at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: dict[BoundedConnection, int] = {}
        self._waiting: dict[BoundedConnection, int | None] = {}  # and the first check since then
        self._admitted: dict[BoundedConnection, _Admission] = {}
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
        if size <= self._small_bytes:
            self._admitted.pop(connection, None)
        if self.total <= self._limit:
            self._admitted.clear()
            self._resume_some()
            return True
        if size <= self._small_bytes:
            self._resume_some()
            return True
        if connection in self._admitted:
            return True
        self._waiting[connection] = None
        if self._next_waiting() is not connection:
            return False
        self._admit(connection)
        return True

    def close_stalled(self, now_ms: int) -> Iterator[None]:
        """Resumes connections, and closes those with memory that others wait for, some per step.

        To be called every second.
        """
        for _ in range(0, len(self._waiting), _RESUMED_AT_ONCE):
            if not self._resume_some():
                break
            yield
        if self.total <= self._limit:
            return
        yield from self._close_waiting(now_ms)
        closed = 0
        for connection in list(self._held):
            if closed >= _CLOSED_AT_ONCE:
                closed = 0
                yield
            size = self._held.get(connection, 0)
            if size <= _TINY_BYTES or connection in self._waiting or not connection.waits_for_client:
                continue
            admission = self._admitted.get(connection)
            if admission is None:
                is_stalled = connection.last_activity_ms <= now_ms - _STALLED_REQUEST_MS
            else:
                is_stalled = self._is_stalled(connection, admission, size, now_ms)
            if is_stalled:
                connection.reject(f"an incomplete request holds {size:,} bytes while queued.max.request.bytes is used.")
                closed += 1

    def _close_waiting(self, now_ms: int) -> Iterator[None]:
        """Closes those that wait for the longest time, until the others have the memory.

        It is not known which of them would send the rest of their requests.
        """
        excess = self.total - self._limit
        for number, (connection, since_ms) in enumerate(list(self._waiting.items()), 1):
            if number % _CLOSED_AT_ONCE == 0:
                yield
            if connection not in self._waiting:
                continue
            if since_ms is None:
                self._waiting[connection] = now_ms
            elif now_ms - since_ms >= _WAITING_MS and excess > 0:
                size = self._held[connection]
                excess -= size
                text = f"an incomplete request of {size:,} bytes has waited for {_WAITING_MS // 1000} s for"
                connection.reject(f"{text} queued.max.request.bytes.")

    def _is_stalled(self, connection: BoundedConnection, admission: _Admission, size: int, now_ms: int) -> bool:
        if admission.since_ms is None:
            admission.since_ms = now_ms
        elapsed_ms = now_ms - admission.since_ms
        idle_ms = min(elapsed_ms, now_ms - connection.last_activity_ms)
        if idle_ms >= (_STALLED_ADMITTED_MS if self._waiting else _STALLED_REQUEST_MS):
            return True
        return elapsed_ms >= _STALLED_REQUEST_MS and size - admission.size < _MIN_BYTES_PER_S * elapsed_ms // 1000

    def _next_waiting(self) -> BoundedConnection | None:
        """Returns the connection to admit above the limit."""
        is_newest = {admission.is_newest for admission in self._admitted.values()}
        if False not in is_newest:
            return next(iter(self._waiting), None)
        if True in is_newest:
            return None
        newest = islice(reversed(self._waiting), _NEWEST_TRIED)
        return next((each for each in newest if each.announced_bytes <= _NEWEST_BYTES), None)

    def _admit(self, connection: BoundedConnection) -> None:
        del self._waiting[connection]
        is_newest = any(not admission.is_newest for admission in self._admitted.values())
        self._admitted[connection] = _Admission(self._held.get(connection, 0), is_newest)

    def _resume_some(self) -> bool:
        """Resumes waiting connections, at most `_RESUMED_AT_ONCE`; above the limit, a few large requests at a time.

        Returns whether others may be resumed now.

        The others follow at the next change of a size, at the latest after a second.
        """
        if self._is_resuming:
            # a connection that is resumed sets its size
            return False
        self._is_resuming = True
        try:
            for _ in range(_RESUMED_AT_ONCE):
                is_full = self.total > self._limit
                connection = self._next_waiting() if is_full else next(iter(self._waiting), None)
                if connection is None:
                    return False
                if is_full:
                    self._admit(connection)
                else:
                    del self._waiting[connection]
                connection.resume()
            return True
        finally:
            self._is_resuming = False


class ResponseMemory:
    """The bytes of responses that clients have not read yet.

    While the limit is reached, requests with large responses wait, Fetch responses are small, and connections that do
    not read are closed. A client that reads its responses therefore does not wait for those that do not.
    """

    def __init__(self) -> None:
        self._unsent: dict[BoundedConnection, int] = {}
        self._waiting: dict[BoundedConnection, None] = {}
        self.total = 0

    @property
    def is_full(self) -> bool:
        return self.total >= _RESPONSE_BYTES

    @property
    def has_reserve(self) -> bool:
        """Whether small responses can be sent, also while the limit is reached."""
        return self.total < _RESPONSE_BYTES + _RESERVED_RESPONSE_BYTES

    @property
    def largest_bytes(self) -> int:
        """Bytes of records for the next Fetch response, 0 while the reserve is used too."""
        if not self.total:
            return _LARGEST_RESPONSE_BYTES  # usually
        if not self.has_reserve:
            return 0
        return max(min((_RESPONSE_BYTES - self.total) // 4, _LARGEST_RESPONSE_BYTES), SMALL_RESPONSE_BYTES)

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
        self.handshakes = HandshakeQueue()

    def close_stalled(self, now_ms: int) -> Iterator[None]:
        """Closes connections without progress that hold memory, some per step. To be called every second."""
        yield from self.requests.close_stalled(now_ms)
        yield from self.handshakes.close_stalled(now_ms)
        self.responses.close_stalled(now_ms)
