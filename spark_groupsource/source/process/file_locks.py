"""File and directory locks that end with their process.

A lock shows whether its holder is running where a process id does not: ids are assigned again, and containers that
share a directory have separate process ids.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator


class SharedLock:
    """A shared lock of this process; released by `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def lock_shared(path: Path) -> SharedLock:
    """Locks an existing file or directory; waits while another process removes it.

    Raises: FileNotFoundError if it was removed; OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_ino != path.stat().st_ino:
            raise FileNotFoundError(f"{path} was replaced")
    except BaseException:
        os.close(descriptor)
        raise
    return SharedLock(descriptor)


@contextmanager
def try_lock_exclusive(path: Path) -> Iterator[bool]:
    """Yields True if no process holds a lock on `path`; none can lock it before the end of the block."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Returns True if `path` exists and a running process holds a lock on it."""
    with try_lock_exclusive(path) as is_free:
        return path.exists() and not is_free


@contextmanager
def lock_exclusive(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Waits for and holds the exclusive lock of a file, which is created if needed.

    `on_wait` is called before the wait for another process that holds it.
    """
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
