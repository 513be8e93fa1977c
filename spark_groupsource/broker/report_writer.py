"""Writer of the broker's log lines, in a separate thread."""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from typing import Callable

_LOGGER = logging.getLogger(__name__)
_MAX_QUEUED_LINES = 1_000
_CLOSE_TIMEOUT_S = 1.0
# a wake-up of the thread for each line would take the interpreter's lock from the event loop as often
_PAUSE_S = 0.01


def log_report(line: str, level: int) -> None:
    """Passes a log line to the logger of this module."""
    _LOGGER.log(level, line)


class ReportWriter:
    """Passes lines to `write` in a separate thread; a call neither blocks nor raises.

    A full output (a pipe without a reader) must not block the event loop, and a closed output must not fail a
    request. Above 1,000 queued lines, further ones are dropped and counted.
    """

    def __init__(self, write: Callable[[str, int], object]) -> None:
        self._write = write
        self._lines: queue.Queue[tuple[str, int] | None] = queue.Queue(_MAX_QUEUED_LINES)
        self._dropped = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupsource-reports", daemon=True)
        self._thread.start()

    def __call__(self, line: str, level: int = logging.WARNING, /) -> None:
        try:
            self._lines.put_nowait((line, level))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Returns when the queued lines are written, at the latest after two seconds."""
        self._closing.set()
        with suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_TIMEOUT_S)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (entry := self._lines.get()) is not None:
            self._write_line(*entry)
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"[broker] Dropped log lines that the output did not accept: {dropped:,}."
                self._write_line(text, logging.WARNING)
            if self._lines.empty():
                self._closing.wait(_PAUSE_S)

    def _write_line(self, line: str, level: int) -> None:
        # a failure of the output cannot be reported anywhere else
        with suppress(Exception):
            self._write(line, level)
