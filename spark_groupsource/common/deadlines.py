"""Deadlines by key in a heap, and of transfers.

Pure: the caller passes the time.

Source: Kafka's `TimingWheel`; a heap is as fast for the timers of one machine.
"""

from __future__ import annotations

import heapq
from typing import Generic, Hashable, TypeVar

Key = TypeVar("Key", bound=Hashable)
_NO_ENTRY = (0, 0)

LEAST_BYTES_PER_S = 4 * 1024
"""Rate of the slowest link on which a transfer progresses."""


class TransferDeadline:
    """When a transfer over a connection has failed (monotonic ms).

    Its bytes are progress: it fails when none have moved for `timeout_ms`. A peer that moves a byte now and then does
    not hold it: after `timeout_ms` the bytes must have moved at `LEAST_BYTES_PER_S` at least.

    Attributes:
        count: number of bytes that have moved.
    """

    __slots__ = ("count", "timeout_ms", "_started_ms", "_moved_ms")

    def __init__(self, timeout_ms: int, now_ms: int) -> None:
        self.count = 0
        self.timeout_ms = timeout_ms
        self._started_ms = self._moved_ms = now_ms

    def moved(self, count: int, now_ms: int) -> None:
        """Adds bytes that have moved."""
        self.count += count
        self._moved_ms = now_ms

    def left_ms(self, now_ms: int) -> int:
        """Returns the time for the next byte, 0 or less after the deadline."""
        slowest_ms = self._started_ms + self.count * 1_000 // LEAST_BYTES_PER_S
        return min(self._moved_ms, slowest_ms) + self.timeout_ms - now_ms

    def elapsed_ms(self, now_ms: int) -> int:
        return now_ms - self._started_ms


class DeadlineHeap(Generic[Key]):
    """Keys with one deadline each (monotonic ms); setting a key again moves it.

    Every key has one entry in the heap, at its deadline or before it. A later deadline does not move the entry until it
    is at the top: a heartbeat, which moves the session deadline, does not change the heap.
    """

    def __init__(self) -> None:
        # [deadline, number of the key's entry]: changed in place, because hashing a key may cost more than all the rest
        self._deadlines: dict[Key, list[int]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline_ms: int) -> None:
        """Sets or moves the deadline of `key`."""
        known = self._deadlines.get(key)
        if known is not None and known[0] <= deadline_ms:
            known[0] = deadline_ms
            return
        self._sequence += 1
        self._deadlines[key] = [deadline_ms, self._sequence]
        heapq.heappush(self._heap, (deadline_ms, self._sequence, key))
        # entries of canceled keys and of later deadlines stay until they are at the top or there are too many
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._rebuild()

    def cancel(self, key: Key) -> None:
        """Removes the deadline of `key`, if it has one."""
        self._deadlines.pop(key, None)

    def lower_bound_ms(self) -> int | None:
        """Returns a time before which no deadline is due, None without deadlines. O(1), may be earlier than the first
        one.
        """
        return self._heap[0][0] if self._heap else None

    def next_deadline_ms(self) -> int | None:
        """Returns the earliest deadline, None without deadlines."""
        heap = self._heap
        while heap:
            entry_ms, number, key = heap[0]
            deadline_ms, live = self._deadlines.get(key, _NO_ENTRY)
            if live != number:
                heapq.heappop(heap)
            elif deadline_ms == entry_ms:
                return deadline_ms
            else:
                heapq.heapreplace(heap, (deadline_ms, number, key))
        return None

    def pop_expired(self, now_ms: int) -> Key | None:
        """Removes and returns the key with the earliest deadline if it is due, else None.

        One key per call, because its action may cancel or move other deadlines.
        """
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._deadlines[key]
        return key

    def _rebuild(self) -> None:
        self._heap = [(deadline_ms, number, key) for key, (deadline_ms, number) in self._deadlines.items()]
        heapq.heapify(self._heap)
