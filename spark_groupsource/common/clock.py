"""Monotonic clock and epoch clock.

`now_ms` is monotonic and is used for deadlines; `timestamp_ms` is epoch time and is used in records. One is never
subtracted from the other. Deadlines and records use no other clock, so that tests control them.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

monotonic_ns = time.monotonic_ns
"""Monotonic nanoseconds, to measure how long the caller itself takes."""


class Instant(NamedTuple):
    """One moment on both clocks."""

    now_ms: int
    timestamp_ms: int


class Clock(Protocol):
    """Interface of a clock; tests pass a `ManualClock`."""

    def now_ms(self) -> int:
        """Returns monotonic milliseconds."""

    def timestamp_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def instant(self) -> Instant:
        """Returns both clocks, read one after the other."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Returns after `duration_ms`."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def timestamp_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def instant(self) -> Instant:
        # without calls and the constructor, which take half of the time: each request to a coordinator needs it
        return tuple.__new__(Instant, (time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000))

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(max(duration_ms, 0) / 1000)


class ManualClock:
    """A clock that only `advance_ms` and `sleep_ms` move; both clocks move together."""

    def __init__(self, now_ms: int = 0, timestamp_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._epoch_ms = timestamp_ms - now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def timestamp_ms(self) -> int:
        return self._epoch_ms + self._now_ms

    def instant(self) -> Instant:
        return Instant(self.now_ms(), self.timestamp_ms())

    def sleep_ms(self, duration_ms: int) -> None:
        self._now_ms += max(duration_ms, 0)

    def advance_ms(self, duration_ms: int) -> None:
        """Moves both clocks forward."""
        if duration_ms < 0:
            raise ValueError(f"A clock cannot move back by {-duration_ms} ms.")
        self._now_ms += duration_ms


def format_timestamp_ms(timestamp_ms: int) -> str:
    """Returns epoch milliseconds as local ``YYYY-MM-DD HH:MM:SS.mmm``."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{milliseconds:03d}"
