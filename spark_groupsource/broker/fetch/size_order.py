"""Keys ordered by size, for eviction of the smallest. Pure."""

from __future__ import annotations

from typing import Generic, Hashable, TypeVar

from spark_groupsource.deadlines import DeadlineHeap

Key = TypeVar("Key", bound=Hashable)


class SizeOrder(Generic[Key]):
    """Keys with one size each."""

    def __init__(self) -> None:
        # the same structure as a heap of deadlines: one movable number per key
        self._heap: DeadlineHeap[Key] = DeadlineHeap()

    def set(self, key: Key, size: int) -> None:
        """Adds a key or changes its size. O(log n)."""
        self._heap.set(key, size)

    def discard(self, key: Key) -> None:
        """Removes a key, if it is present."""
        self._heap.cancel(key)

    def pop_smallest(self, *, below: int) -> Key | None:
        """Removes and returns the key with the smallest size, None when no size is less than `below`."""
        return self._heap.pop_expired(below - 1)
