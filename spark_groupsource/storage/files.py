"""File access of the broker: whole reads, whole writes, few open files, atomic replacement. Knows nothing of Kafka."""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Callable

from spark_groupsource.errors import StorageError


class FileCache:
    """Keeps the most recently used files open, at most `limit`, so that many partitions need few descriptors."""

    def __init__(self, limit: int = 256, read_only: bool = False) -> None:
        self._limit = limit
        self._flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._flusher: ThreadPoolExecutor | None = None

    def descriptor(self, path: Path) -> int:
        """A descriptor of `path`, valid until the next call; where files are written, a missing one is created."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        descriptor = os.open(path, self._flags | os.O_CLOEXEC, 0o644)
        self._open[path] = descriptor
        if len(self._open) > self._limit:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor

    def close_file(self, path: Path) -> None:
        """Closes `path` if it is open; to be called before it is removed or renamed."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def flush_in_background(self, path: Path, failed: Callable[[OSError], None]) -> None:
        """Writes `path` to the disk in a thread of its own: a large file would hold up everything else."""
        descriptor = os.dup(self.descriptor(path))
        self.run_in_background(lambda: _flush(descriptor, failed))

    def run_in_background(self, work: Callable[[], None]) -> Future[None]:
        """Does `work`, which waits for the disk, in a thread of its own, one after the other."""
        if self._flusher is None:
            self._flusher = ThreadPoolExecutor(1, thread_name_prefix="groupsource-flush")
        return self._flusher.submit(work)

    def close(self) -> None:
        """Closes every file, after what `flush_in_background` still has to do."""
        if self._flusher is not None:
            self._flusher.shutdown()
            self._flusher = None
        while self._open:
            os.close(self._open.popitem()[1])


def _flush(descriptor: int, failed: Callable[[OSError], None]) -> None:
    try:
        sync_data(descriptor)
    except OSError as error:
        failed(error)
    finally:
        os.close(descriptor)


def read_exactly(descriptor: int, size: int, position: int, path: Path) -> bytes:
    """`size` bytes from `position`.

    Raises: StorageError when the file is shorter or cannot be read.
    """
    try:
        data = os.pread(descriptor, size, position)
        while len(data) < size:
            more = os.pread(descriptor, size - len(data), position + len(data))
            if not more:
                raise StorageError(
                    f"{path} ends at byte {position + len(data)}, {position + size} were written; "
                    "it was cut by something else: restore it from a copy or delete the topic"
                )
            data += more
    except OSError as error:
        raise StorageError(f"{path} cannot be read at byte {position}: {error.strerror}") from error
    return data


def write_exactly(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Writes all of `data` at `position`; raises OSError with an unknown part written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def replace_file(path: Path, data: bytes) -> None:
    """Replaces `path` by `data` so that a crash leaves the old or the new content, on disk when this returns.

    Raises: StorageError when the directory cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; check space and permissions") from error


def sync_data(descriptor: int) -> None:
    """Waits until what was written to a file is on the disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)  # macOS has no other


def sync_directory(path: Path) -> None:
    """Makes created, renamed and removed names of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
