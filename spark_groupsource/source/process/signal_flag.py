"""Flag that a signal handler may set."""

from __future__ import annotations

import queue


class SignalFlag:
    """An event whose `set` may interrupt itself.

    A handler runs in the main thread between any two instructions. `threading.Event.set` holds a lock, so a second
    signal that arrives within it waits forever for the first; `queue.SimpleQueue.put` is documented as reentrant.
    One thread waits.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._queue.put(None)

    def is_set(self) -> bool:
        return not self._queue.empty()

    def clear(self) -> None:
        while not self._queue.empty():
            self._queue.get()

    def wait(self, timeout_s: float) -> bool:
        """Waits until the flag is set, for at most `timeout_s` seconds; returns whether it is set."""
        try:
            self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return False
        self._queue.put(None)
        return True
