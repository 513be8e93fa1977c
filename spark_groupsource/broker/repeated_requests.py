"""The last request of each connection, prepared for its repetition.

A client often sends a request again with other numbers. What is prepared from its bytes takes longer than a request, so
it is prepared at the second request of the same size, and after requests that did not repeat it twice as late each
time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, Generic, Protocol, TypeVar

from spark_groupsource.wire.byte_pattern import BytePattern

_CONNECTIONS, _ELEMENTS = 1_024, 20_000
_MOST_REPETITIONS = 1_024
ELEMENT_BYTES, _CONNECTION_BYTES = 700, 500
"""Approximate memory of a partition of a prepared request."""


class Prepared(Protocol):
    """What is prepared from a request. `size`: its elements."""

    @property
    def pattern(self) -> BytePattern: ...

    @property
    def size(self) -> int: ...


PreparedT = TypeVar("PreparedT", bound=Prepared)


class _Connection(Generic[PreparedT]):
    """The requests of a connection: how often the size of the last one was repeated, and how often it has to be."""

    __slots__ = ("body_bytes", "repeated", "needed", "prepared")

    def __init__(self) -> None:
        self.body_bytes, self.repeated, self.needed = -1, 0, 1
        self.prepared: PreparedT | None = None


class RepeatedRequests(Generic[PreparedT]):
    """Prepared requests of one API, at most one for each connection, of those that were used last."""

    def __init__(self) -> None:
        self._connections: OrderedDict[int, _Connection[PreparedT]] = OrderedDict()
        self._elements = 0

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        return self._elements * ELEMENT_BYTES + len(self._connections) * _CONNECTION_BYTES

    def find(
        self, connection_id: int, body: memoryview, prepare: Callable[[], PreparedT | None]
    ) -> tuple[PreparedT, tuple[int, ...]] | None:
        """Returns what was prepared from an earlier request of a connection, and the numbers of this one.

        None if `body` does not repeat it. `prepare` is called if it might from now on.
        """
        connection = self._connections.get(connection_id)
        if connection is None:
            self._add(connection_id).body_bytes = len(body)
            return None
        self._connections.move_to_end(connection_id)
        prepared = connection.prepared
        if prepared is not None:
            numbers = prepared.pattern.match(body)
            if numbers is not None:
                return prepared, numbers
            self.drop(connection_id)
        elif len(body) == connection.body_bytes:
            connection.repeated += 1
            if connection.repeated >= connection.needed:
                return self._prepare(connection, body, prepare)
            return None
        connection.body_bytes, connection.repeated = len(body), 0
        return None

    def drop(self, connection_id: int) -> None:
        """Removes what was prepared for a connection; it is prepared again, later than before."""
        connection = self._connections[connection_id]
        if connection.prepared is not None:
            self._elements -= connection.prepared.size
            connection.prepared, connection.repeated = None, 0
            connection.needed = min(2 * connection.needed, _MOST_REPETITIONS)

    def _add(self, connection_id: int) -> _Connection[PreparedT]:
        if len(self._connections) >= _CONNECTIONS:
            self._remove_oldest()
        added = self._connections[connection_id] = _Connection()
        return added

    def _remove_oldest(self) -> None:
        _, oldest = self._connections.popitem(last=False)
        self._elements -= 0 if oldest.prepared is None else oldest.prepared.size

    def _prepare(
        self, connection: _Connection[PreparedT], body: memoryview, prepare: Callable[[], PreparedT | None]
    ) -> tuple[PreparedT, tuple[int, ...]] | None:
        connection.repeated, connection.needed = 0, min(2 * connection.needed, _MOST_REPETITIONS)
        prepared = prepare()
        numbers = None if prepared is None else prepared.pattern.match(body)
        if prepared is None or numbers is None:
            return None
        connection.prepared, connection.needed = prepared, max(connection.needed // 2, 1)
        self._elements += prepared.size
        while self._elements > _ELEMENTS and len(self._connections) > 1:
            self._remove_oldest()
        return prepared, numbers
