"""The last request of each client, prepared for its repetition.

A client often sends a request again with other numbers. What is prepared from its bytes takes longer than a request, so
it is prepared when requests of the same size were repeated a few times, and after requests that did not repeat it twice
as late each time. The memory is bounded; what is used is not replaced by what might be used.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, Generic, Protocol, Tuple, TypeVar

_CLIENTS, _MAX_BYTES = 1_024, 4_194_304
_LARGE_BYTES = 16_384
_CLIENT_BYTES = 500
# requests of the same size until the next one is prepared
_REPETITIONS, _MOST_REPETITIONS, _OFTEN_USED = 8, 1_024, 64
# a client that sent none of the last requests, so many for each client, is replaced by another
_UNUSED_REQUESTS = 16

Client = Tuple[int, int]
"""Connection, and version of the API."""


class Pattern(Protocol):
    """Requests that differ in some numbers: `match` returns them, None if another byte differs."""

    def match(self, body: memoryview, /) -> tuple[int, ...] | None: ...


class Prepared(Protocol):
    """What is prepared from a request. `size_bytes`: its memory."""

    @property
    def pattern(self) -> Pattern: ...

    @property
    def size_bytes(self) -> int: ...


PreparedT = TypeVar("PreparedT", bound=Prepared)


class _Client(Generic[PreparedT]):
    """The requests of a client: how often the size of the last one was repeated, and how often it has to be."""

    __slots__ = ("body_bytes", "last_request", "needed", "prepared", "repeated", "used")

    def __init__(self) -> None:
        self.body_bytes, self.repeated, self.needed, self.used, self.last_request = -1, 0, _REPETITIONS, 0, 0
        self.prepared: PreparedT | None = None


class RepeatedRequests(Generic[PreparedT]):
    """Prepared requests of one API, at most one for each client.

    Args: `is_budget_full`, whether the state of the broker may not grow by so many bytes; `has_any_size`, whether a
    request of another size may be a repetition, and so may a large one.
    """

    def __init__(
        self,
        is_budget_full: Callable[[int], bool] = lambda added_bytes: False,
        has_any_size: bool = False,
    ) -> None:
        self._is_budget_full = is_budget_full
        self._has_any_size = has_any_size
        self._clients: OrderedDict[Client, _Client[PreparedT]] = OrderedDict()  # the one that was used last is last
        self._requests = self._prepared_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        return self._prepared_bytes + len(self._clients) * _CLIENT_BYTES

    def find(
        self, client: Client, body: memoryview, prepare: Callable[[], PreparedT | None]
    ) -> tuple[PreparedT, tuple[int, ...]] | None:
        """Returns what was prepared from an earlier request of a client, and the numbers of this one.

        None if `body` does not repeat it. `prepare` is called if it might from now on.
        """
        size = 0 if self._has_any_size else len(body)
        if size > _LARGE_BYTES:
            return None
        self._requests += 1
        known = self._clients.get(client)
        if known is None:
            self._add(client, size)
            return None
        self._clients.move_to_end(client)
        known.last_request = self._requests
        prepared = known.prepared
        if prepared is not None:
            numbers = prepared.pattern.match(body)
            if numbers is not None:
                known.used += 1
                return prepared, numbers
            self.drop(client)
        elif size == known.body_bytes:
            known.repeated += 1
            return self._prepare(known, body, prepare) if known.repeated >= known.needed else None
        known.body_bytes, known.repeated = size, 0
        return None

    def drop(self, client: Client) -> None:
        """Removes what was prepared for a client; it is prepared again, later than before if it was rarely used."""
        known = self._clients[client]
        if known.prepared is not None:
            self._prepared_bytes -= known.prepared.size_bytes
            known.needed = _REPETITIONS if known.used >= _OFTEN_USED else _twice(known.needed)
            known.prepared, known.repeated, known.used = None, 0, 0

    def _add(self, client: Client, body_bytes: int) -> None:
        if len(self._clients) >= _CLIENTS and not self._remove_unused():
            return
        added = self._clients[client] = _Client()
        added.body_bytes, added.last_request = body_bytes, self._requests

    def _remove_unused(self) -> bool:
        """Removes the client that was not used for the longest time; returns whether there is one."""
        client, oldest = next(iter(self._clients.items()))
        if self._requests - oldest.last_request < _UNUSED_REQUESTS * len(self._clients):
            return False
        del self._clients[client]
        self._prepared_bytes -= 0 if oldest.prepared is None else oldest.prepared.size_bytes
        return True

    def _prepare(
        self, known: _Client[PreparedT], body: memoryview, prepare: Callable[[], PreparedT | None]
    ) -> tuple[PreparedT, tuple[int, ...]] | None:
        needed = known.needed
        # unless it succeeds
        known.repeated, known.needed = 0, _twice(needed)
        while self._prepared_bytes > _MAX_BYTES:
            if not self._remove_unused():
                return None
        prepared = prepare()
        numbers = None if prepared is None else prepared.pattern.match(body)
        if prepared is None or numbers is None or self._is_budget_full(prepared.size_bytes):
            return None
        known.prepared, known.needed = prepared, needed
        self._prepared_bytes += prepared.size_bytes
        return prepared, numbers


def _twice(repetitions: int) -> int:
    return min(2 * repetitions, _MOST_REPETITIONS)
