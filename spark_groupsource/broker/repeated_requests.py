"""The last request of each client, prepared for its repetition.

A client often sends a request again with other numbers. What is prepared from its bytes takes longer than a request, so
it is prepared at the second request of the same size, and after requests that did not repeat it twice as late each
time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, Generic, Protocol, Tuple, TypeVar

from spark_groupsource.wire.byte_pattern import BytePattern

_CLIENTS, _ELEMENTS = 1_024, 20_000
_MOST_REPETITIONS, _OFTEN_USED = 1_024, 32
ELEMENT_BYTES, _CLIENT_BYTES = 700, 500
"""Approximate memory of a partition of a prepared request."""

Client = Tuple[int, int]
"""Connection, and version of the API."""


class Prepared(Protocol):
    """What is prepared from a request. `size`: its elements."""

    @property
    def pattern(self) -> BytePattern: ...

    @property
    def size(self) -> int: ...


PreparedT = TypeVar("PreparedT", bound=Prepared)


class _Client(Generic[PreparedT]):
    """The requests of a client: how often the size of the last one was repeated, and how often it has to be."""

    __slots__ = ("body_bytes", "repeated", "needed", "prepared", "used")

    def __init__(self) -> None:
        self.body_bytes, self.repeated, self.needed, self.used = -1, 0, 1, 0
        self.prepared: PreparedT | None = None


class RepeatedRequests(Generic[PreparedT]):
    """Prepared requests of one API, at most one for each client, of those that were used last."""

    def __init__(self) -> None:
        self._clients: OrderedDict[Client, _Client[PreparedT]] = OrderedDict()
        self._elements = 0

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        return self._elements * ELEMENT_BYTES + len(self._clients) * _CLIENT_BYTES

    def find(
        self, client: Client, body: memoryview, prepare: Callable[[], PreparedT | None]
    ) -> tuple[PreparedT, tuple[int, ...]] | None:
        """Returns what was prepared from an earlier request of a client, and the numbers of this one.

        None if `body` does not repeat it. `prepare` is called if it might from now on.
        """
        known = self._clients.get(client)
        if known is None:
            self._add(client).body_bytes = len(body)
            return None
        self._clients.move_to_end(client)
        prepared = known.prepared
        if prepared is not None:
            numbers = prepared.pattern.match(body)
            if numbers is not None:
                known.used += 1
                return prepared, numbers
            self.drop(client)
        elif len(body) == known.body_bytes:
            known.repeated += 1
            return self._prepare(known, body, prepare) if known.repeated >= known.needed else None
        known.body_bytes, known.repeated = len(body), 0
        return None

    def drop(self, client: Client) -> None:
        """Removes what was prepared for a client; it is prepared again, later than before if it was rarely used."""
        known = self._clients[client]
        if known.prepared is None:
            return
        self._elements -= known.prepared.size
        known.needed = 1 if known.used >= _OFTEN_USED else min(2 * known.needed, _MOST_REPETITIONS)
        known.prepared, known.repeated, known.used = None, 0, 0

    def _add(self, client: Client) -> _Client[PreparedT]:
        if len(self._clients) >= _CLIENTS:
            self._remove_oldest()
        added = self._clients[client] = _Client()
        return added

    def _remove_oldest(self) -> None:
        _, oldest = self._clients.popitem(last=False)
        self._elements -= 0 if oldest.prepared is None else oldest.prepared.size

    def _prepare(
        self, known: _Client[PreparedT], body: memoryview, prepare: Callable[[], PreparedT | None]
    ) -> tuple[PreparedT, tuple[int, ...]] | None:
        needed = known.needed
        # unless it succeeds
        known.repeated, known.needed = 0, min(2 * needed, _MOST_REPETITIONS)
        prepared = prepare()
        numbers = None if prepared is None else prepared.pattern.match(body)
        if prepared is None or numbers is None:
            return None
        known.prepared, known.needed = prepared, needed
        self._elements += prepared.size
        while self._elements > _ELEMENTS and len(self._clients) > 1:
            self._remove_oldest()
        return prepared, numbers
