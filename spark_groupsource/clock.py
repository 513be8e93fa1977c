"""The two clocks, and the only import of `time`.

`now_ms` is monotonic and serves deadlines; `timestamp_ms` is epoch time and serves records. They are never subtracted
from one another.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a clock offers; tests pass a `ManualClock`."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""

    def timestamp_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Returns after `duration_ms`."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def timestamp_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(max(duration_ms, 0) / 1000)


class ManualClock:
    """A clock that moves only when told to; both clocks move together."""

    def __init__(self, now_ms: int = 0, timestamp_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._epoch_ms = timestamp_ms - now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def timestamp_ms(self) -> int:
        return self._epoch_ms + self._now_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self._now_ms += max(duration_ms, 0)

    def advance_ms(self, duration_ms: int) -> None:
        """Moves both clocks forward; time does not run backward."""
        if duration_ms < 0:
            raise ValueError(f"a clock cannot go back by {-duration_ms} ms")
        self._now_ms += duration_ms


def format_timestamp_ms(timestamp_ms: int) -> str:
    """Epoch milliseconds as local ``YYYY-MM-DD HH:MM:SS.mmm``."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{milliseconds:03d}"
