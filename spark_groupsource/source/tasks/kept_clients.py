"""Clients that a Python worker keeps, a bounded number."""

from __future__ import annotations

from typing import Callable, Hashable, TypeVar

MAX_CLIENTS = 16
"""Clients of one process. A worker outlives queries, on a Spark Connect server those of many users and passwords."""

_K = TypeVar("_K", bound=Hashable)
_C = TypeVar("_C")


def kept_client(clients: dict[_K, _C], key: _K, create: Callable[[], _C], close: Callable[[_C], None]) -> _C:
    """Returns the client of `key`, which is created if needed; closes the least recently used one beyond the bound.

    Args:
        clients: those that are kept. A worker runs one task at a time, so none but the returned one is in use.
        create, close: of a client.
    """
    client = clients.pop(key) if key in clients else create()
    clients[key] = client
    while len(clients) > MAX_CLIENTS:
        close(clients.pop(next(iter(clients))))
    return client
