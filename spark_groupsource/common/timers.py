"""Typed timers of several components in one deadline heap.

Pure: the caller passes the time. A component creates its timers from the shared `Timers` and gives the callback that
runs at the deadline, so no caller has to map keys of other components to actions.

Source: Kafka's `Timer` and `TimerTask`.
"""

from __future__ import annotations

from typing import Any, Callable, Generic, Hashable, TypeVar

from spark_groupsource.common.deadlines import DeadlineHeap

SLICE_MS = 10
"""Longest time that expired timers hold their caller, apart from the last callback."""

Key = TypeVar("Key", bound=Hashable)


class TimerQueue(Generic[Key]):
    """The timers of one component: one deadline per key, one callback for all keys."""

    # a queue is part of each heap key, compared and hashed by identity
    __slots__ = ("_heap", "on_expiry")

    def __init__(self, heap: DeadlineHeap[tuple[TimerQueue[Any], Any]], on_expiry: Callable[[Key], None]) -> None:
        self._heap = heap
        self.on_expiry = on_expiry

    def set(self, key: Key, deadline_ms: int) -> None:
        """Starts or moves the timer of `key` (monotonic ms)."""
        self._heap.set((self, key), deadline_ms)

    def cancel(self, key: Key) -> None:
        """Stops the timer of `key`, if it runs."""
        self._heap.cancel((self, key))

    def is_set(self, key: Key) -> bool:
        return (self, key) in self._heap


class Timer:
    """One timer with one callback."""

    __slots__ = ("_queue",)

    def __init__(self, queue: TimerQueue[None]) -> None:
        self._queue = queue

    def set(self, deadline_ms: int) -> None:
        """Starts or moves the timer (monotonic ms)."""
        self._queue.set(None, deadline_ms)

    def cancel(self) -> None:
        """Stops the timer, if it runs."""
        self._queue.cancel(None)


class Timers:
    """All timers of one broker."""

    def __init__(self) -> None:
        self._heap: DeadlineHeap[tuple[TimerQueue[Any], Any]] = DeadlineHeap()
        # without a call in between: each request needs it
        self.lower_bound_ms = self._heap.lower_bound_ms

    def queue(self, on_expiry: Callable[[Key], None]) -> TimerQueue[Key]:
        """Creates a queue that calls `on_expiry` with each key whose deadline has passed."""
        return TimerQueue(self._heap, on_expiry)

    def timer(self, on_expiry: Callable[[], None]) -> Timer:
        """Creates a single timer."""

        def call(key: None) -> None:
            on_expiry()

        return Timer(TimerQueue(self._heap, call))

    def next_deadline_ms(self) -> int | None:
        """Returns the earliest deadline, None without timers."""
        return self._heap.next_deadline_ms()

    def run_expired(self, now_ms: Callable[[], int], slice_ms: int = SLICE_MS) -> None:
        """Runs the callback of each timer that is due, the earliest first, including timers set by callbacks.

        Returns after `slice_ms`: thousands of sessions can end at once. The next call runs the others.
        """
        started_ms = now_ms()
        while (entry := self._heap.pop_expired(now_ms())) is not None:
            queue, key = entry
            queue.on_expiry(key)
            if now_ms() - started_ms >= slice_ms:
                return
