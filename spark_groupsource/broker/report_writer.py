"""Log lines of the broker, written by a thread of their own."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Callable

_MAX_QUEUED_LINES = 1_000
_CLOSE_TIMEOUT_S = 1.0


class ReportWriter:
    """Passes lines to `write`. A call returns at once and raises nothing, whatever `write` does.

    An output that is full (a pipe without a reader) must not block the event loop, and one that is closed must not fail
    the request that is being handled. Above 1,000 queued lines, further ones are dropped and counted.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="groupsource-reports", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Returns when the queued lines are written, or after two seconds of an output that accepts nothing."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_TIMEOUT_S)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write_line(line)
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write_line(f"[broker] Dropped log lines that the output did not accept: {dropped:,}.")

    def _write_line(self, line: str) -> None:
        # an output that fails has no other place for a report of its failure
        with suppress(Exception):
            self._write(line)
