"""Standard streams of a command: closed ones, closed pipes, signals."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, NoReturn


def open_standard_streams() -> None:
    """Opens those of the three standard streams that are closed, and lets every character be printed.

    Otherwise a file or a socket would get the descriptor, and messages would be written there. A closed output is
    discarded; a read of the closed input fails. Characters that the encoding of the terminal lacks are escaped.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        with suppress(OSError):
            os.fstat(number)
            continue
        # the lowest free descriptor is this one
        os.open(os.devnull, os.O_RDWR if number else os.O_WRONLY)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Writes what is buffered for the standard output. Raises: OSError; the rest is then discarded."""
    try:
        sys.stdout.flush()
    except OSError:
        # Python flushes once more at its exit
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def wait_while_read(timeout_s: float) -> None:
    """Waits, but not longer than the standard output has a reader.

    Raises: BrokenPipeError if it is a pipe that no process reads any more, as after the end of ``head``.
    """
    descriptor = _descriptor(sys.stdout)
    if descriptor is None:
        time.sleep(timeout_s)
        return
    poller = select.poll()
    # without events: only an error or a hang-up is reported
    poller.register(descriptor, 0)
    if poller.poll(timeout_s * 1_000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _descriptor(stream: IO[Any]) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        # a stream of a test
        return None


class TerminatedError(KeyboardInterrupt):
    """SIGTERM or Ctrl-C during a command that follows.

    A class of its own: after a KeyboardInterrupt in code that ran through `exec`, CPython ends the process by SIGINT,
    also if the exception was handled (`run_eval_code_obj`).
    """


@contextmanager
def terminates_as_ctrl_c(is_enabled: bool = True) -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C raise TerminatedError, a KeyboardInterrupt, in the main thread."""
    if not is_enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM]
    # not in a shell's background process, which ignores it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    previous = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: object) -> NoReturn:
    raise TerminatedError
