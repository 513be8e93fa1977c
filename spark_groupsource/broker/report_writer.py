"""Writer of the broker's log lines, in a separate thread."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Callable, NamedTuple, Sequence

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import timed_line

_LOGGER = logging.getLogger(__name__)
_REQUEST_LOGGER = logging.getLogger("kafka.request.logger")
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


_ATOMIC_WRITE_BYTES = 4_096  # to a pipe (PIPE_BUF of Linux): no other process writes within these lines

WriteLines = Callable[[Sequence[ReportLine]], object]


def log_report(lines: Sequence[ReportLine]) -> None:
    """Passes log lines to the logger of this module."""
    for text, level, _ in lines:
        with suppress(Exception):  # of a filter or handler; the following lines may be accepted
            _LOGGER.log(level, text)


def log_request(lines: Sequence[ReportLine]) -> None:
    """Passes lines of the request log to the logger with Kafka's name."""
    for text, level, _ in lines:
        with suppress(Exception):
            _REQUEST_LOGGER.log(level, text)


class DescriptorWriter:
    """Writes log lines with their local times to a file or pipe, several with one system call."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, lines: Sequence[ReportLine]) -> None:
        block = b""
        for text, level, at_ms in lines:
            line = f"{timed_line(text, logging.getLevelName(level), at_ms)}\n".encode()
            if block and len(block) + len(line) > _ATOMIC_WRITE_BYTES:
                self._write(block)
                block = b""
            block += line
        self._write(block)

    def _write(self, block: bytes) -> None:
        # without Python's buffer: its lock would be held while a full pipe blocks, and the exit of the process waits
        with suppress(OSError):  # the following lines may be accepted again
            while block:
                block = block[os.write(self._descriptor, block) :]


def open_log(path: str | Path, option: str) -> int:
    """Opens a file of log lines, to append to it; returns its descriptor. Raises: ConfigurationError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(
            f"Option {option}: {path} cannot be written: {reason}. Name a file in a directory that exists."
        ) from error


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
