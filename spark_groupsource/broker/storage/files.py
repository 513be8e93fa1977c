"""File access: open-file cache, complete reads and writes, atomic replacement."""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterable

from spark_groupsource.common.descriptors import describe_os_error, descriptor_limit, is_out_of_descriptors
from spark_groupsource.errors import StorageError

_MAX_OPEN_FILES = 256
# connections need the rest of the descriptors of the process
_SHARE_OF_DESCRIPTORS = 4


class FileCache:
    """Keeps the most recently used files open, so that many partitions need few file descriptors.

    Attributes: `segment_count`, number of segments of all logs that use this cache.

    It keeps up to 256 files, and at most a quarter of the descriptors of the process.
    """

    def __init__(self, read_only: bool = False) -> None:
        self._limit = max(min(_MAX_OPEN_FILES, descriptor_limit() // _SHARE_OF_DESCRIPTORS), 1)
        self._flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._open: OrderedDict[str, int] = OrderedDict()
        self.segment_count = 0
        self._flusher: ThreadPoolExecutor | None = None

    def descriptor(self, path: str) -> int:
        """Returns a file descriptor of `path`, valid until the next call; a missing file is created unless read-only.
        """
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        descriptor = self._open_file(path, self._flags)
        self._open[path] = descriptor
        self._close_oldest()
        return descriptor

    def create(self, path: Path) -> None:
        """Creates `path`, or empties it, without keeping it open."""
        os.close(self._open_file(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))

    def _open_file(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if not is_out_of_descriptors(error) or not self._open:
                raise
            self._limit = max(len(self._open) // 2, 1)  # other parts of the process need descriptors, too
            self._close_oldest()
            return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def _close_oldest(self) -> None:
        while len(self._open) > self._limit:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)

    def close_file(self, path: Path) -> None:
        """Closes `path` if it is open; required before it is removed or renamed."""
        descriptor = self._open.pop(str(path), None)
        if descriptor is not None:
            os.close(descriptor)

    def run_in_background(self, work: Callable[[], None]) -> Future[None]:
        """Runs `work` in the flush thread, one after another."""
        if self._flusher is None:
            self._flusher = ThreadPoolExecutor(1, thread_name_prefix="groupsource-flush")
        return self._flusher.submit(work)

    def close(self) -> None:
        """Closes every file after the background work is done."""
        if self._flusher is not None:
            self._flusher.shutdown()
            self._flusher = None
        while self._open:
            os.close(self._open.popitem()[1])


def read_exactly(descriptor: int, size: int, position: int, path: Path | str) -> bytes:
    """Reads `size` bytes from `position`.

    Raises: StorageError when the file is shorter or cannot be read.
    """
    try:
        data = os.pread(descriptor, size, position)
        while len(data) < size:
            more = os.pread(descriptor, size - len(data), position + len(data))
            if not more:
                raise StorageError(
                    f"{path} ends at byte {position + len(data)}, {position + size} bytes were written. "
                    "Restore it from a copy or delete the topic."
                )
            data += more
    except OSError as error:
        reason = describe_os_error(error, "Check the disk.")
        raise StorageError(f"{path} cannot be read at byte {position}: {reason}") from error
    return data


def write_exactly(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Writes all of `data` at `position`; after an OSError an unknown part of it is written."""
    written = os.pwrite(descriptor, data, position)
    while written < len(data):  # rarely
        written += os.pwrite(descriptor, memoryview(data)[written:], position + written)


def replace_file(path: Path, data: bytes, *, private: bool = False, durable: bool = True) -> None:
    """Replaces the content of `path` atomically; durable on return. Only this user can read a `private` file.

    Unless `durable`, the file may have any content after a power loss.

    Raises: StorageError when the directory cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb", opener=_open_private if private else None) as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass  # the next call overwrites it
        reason = describe_os_error(error, "Check space and permissions.")
        raise StorageError(f"{path} cannot be written: {reason}") from error


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)  # of a file that an earlier process left
    return descriptor


def sync_files(paths: Iterable[Path]) -> None:
    """Returns when the content of the files is on the disk; a file that was deleted meanwhile is skipped.

    Raises: StorageError.
    """
    for path in paths:
        try:
            with open(path, "rb") as file:
                sync_data(file.fileno())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{path} cannot be flushed: {describe_os_error(error, 'Check the disk.')}") from error


def sync_data(descriptor: int) -> None:
    """Returns when the content of a file is on the disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)  # macOS has no fdatasync


def sync_directory(path: Path) -> None:
    """Makes created, renamed and removed entries of a directory durable.

    Raises: StorageError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"{path} cannot be flushed: {describe_os_error(error, 'Check the disk.')}") from error
