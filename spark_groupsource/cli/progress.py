"""Progress of a long command, shown on a terminal only."""

from __future__ import annotations

import sys

from spark_groupsource.common.clock import SystemClock

_INTERVAL_MS = 500


class Progress:
    """Shows a growing number; a context manager that removes the line at its end.

    Nothing is shown in the first interval, nor if standard error is not a terminal.

    Args:
        is_shown: False for a command whose output is on the same terminal.
    """

    def __init__(self, text: str, is_shown: bool = True) -> None:
        self._text = text
        self._clock = SystemClock()
        self._shown_ms = self._clock.now_ms()
        self._is_enabled = is_shown and sys.stderr.isatty()
        self._is_shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def update(self, count: int) -> None:
        """Shows the number if the last one is old enough."""
        now_ms = self._clock.now_ms()
        if now_ms - self._shown_ms >= _INTERVAL_MS and self._is_enabled:
            self._shown_ms, self._is_shown = now_ms, True
            sys.stderr.write(f"\r\x1b[K{count:,} {self._text}")
            sys.stderr.flush()
