"""Memory budget of client state: groups, transactions, producers, sessions, partitions.

Each part has a bound of its own. All of them together need more memory than the broker may use, so they share a budget:
above it, none of them grows.
"""

from __future__ import annotations

from typing import Callable

PARTITION_BYTES, SESSION_PARTITION_BYTES, DELAYED_PARTITION_BYTES = 2_600, 350, 250
"""Approximate memory of a partition, of one of a fetch session, of one of a delayed fetch."""


class StateBudget:
    """The approximate memory of all parts of the state, up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._parts: list[Callable[[], int]] = []

    def add_part(self, used_bytes: Callable[[], int]) -> None:
        """Adds a part of the state, which knows its memory."""
        self._parts.append(used_bytes)

    @property
    def used_bytes(self) -> int:
        return sum(used_bytes() for used_bytes in self._parts)

    @property
    def left_bytes(self) -> int:
        """What the state may grow by, negative above its limit."""
        return self._limit - self.used_bytes

    def is_full(self, added_bytes: int = 0) -> bool:
        """Returns whether the state would exceed its limit with more bytes."""
        return self.left_bytes < added_bytes
