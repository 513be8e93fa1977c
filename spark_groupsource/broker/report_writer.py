"""Writer of the broker's log lines, in a separate thread."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Callable, NamedTuple, Sequence

from spark_groupsource.common.clock import SystemClock

_LOGGER = logging.getLogger(__name__)
_MAX_QUEUED_LINES = 1_000
_CLOSE_TIMEOUT_S = 2.0
# a wake-up of the thread for each line, or a system call for each, would take the interpreter's lock as often
_PAUSE_S = 0.01


class ReportLine(NamedTuple):
    """A log line.

    Attributes:
        level: of `logging`.
        at_ms: when it was reported, epoch ms; it may be written later.
    """

    text: str
    level: int
    at_ms: int


WriteLines = Callable[[Sequence[ReportLine]], object]


def log_report(lines: Sequence[ReportLine]) -> None:
    """Passes log lines to the logger of this module."""
    for text, level, _ in lines:
        with suppress(Exception):  # of a filter or handler; the following lines may be accepted
            _LOGGER.log(level, text)


class ReportWriter:
    """Passes lines to `write` in a separate thread, several at a time; a call neither blocks nor raises.

    A full output (a pipe without a reader) must not block the event loop, and a closed output must not fail a
    request. Above 1,000 lines that are not written, further ones are dropped and counted.
    """

    def __init__(self, write: WriteLines) -> None:
        self._write = write
        self._clock = SystemClock()
        self._lines: SimpleQueue[ReportLine | None] = SimpleQueue()
        self._writing = 0  # lines that `write` has not returned from
        self._dropped = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupsource-reports", daemon=True)
        self._thread.start()

    def __call__(self, line: str, level: int = logging.WARNING, /) -> None:
        if self._lines.qsize() + self._writing < _MAX_QUEUED_LINES:
            self._lines.put(ReportLine(line, level, self._clock.timestamp_ms()))
        else:
            self._dropped += 1

    def close(self) -> None:
        """Returns when the queued lines are written, at the latest after two seconds."""
        self._closing.set()
        self._lines.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        is_open = True
        while is_open:
            found = [self._lines.get()]
            found += [self._lines.get() for _ in range(self._lines.qsize())]
            is_open = None not in found
            self._write_lines([line for line in found if line is not None])
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"[broker] Dropped log lines that the output did not accept: {dropped:,}."
                self._write_lines([ReportLine(text, logging.WARNING, self._clock.timestamp_ms())])
            if self._lines.qsize() < _MAX_QUEUED_LINES // 2:
                self._closing.wait(_PAUSE_S)

    def _write_lines(self, lines: list[ReportLine]) -> None:
        self._writing = len(lines)
        # a failure of the output cannot be reported anywhere else
        with suppress(Exception):
            self._write(lines)
        self._writing = 0
