"""Records and fails file operations below a directory of this process.

Files are changed as usual, so that the process sees what it has written; a flush is only recorded. The records are the
operations of `power_loss.Disk`:

* ``open file_id path``: a file is opened for writing, and created if it does not exist;
* ``write file_id position data``, ``truncate file_id size``, ``flush file_id``;
* ``flush_directory path``, ``mkdir path``, ``remove path``, ``rename source target``;
* ``mark value``: no operation, added by a test.
"""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import os
import threading
from pathlib import Path
from typing import Any, Callable

from support.power_loss import Operation

_PATCHED = (
    "open", "close", "dup", "write", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "replace", "unlink",
    "remove", "mkdir", "rmdir",
)  # fmt: skip


class FileOperations:
    """Context manager that records the operations below `root`.

    Attributes:
        before: called with each operation before it is executed; an OSError that it raises is the result.
        free_bytes: bytes that can be written before the disk is full; None without limit.
    """

    def __init__(self, root: Path, record: Callable[[Operation], None]) -> None:
        self._root = os.path.realpath(root)
        self._record = record
        self.before: Callable[[Operation], None] = lambda operation: None
        self.free_bytes: int | None = None
        self._lock = threading.RLock()
        self._ids = itertools.count()
        self._files: dict[int, int] = {}  # descriptor -> file id
        self._directories: dict[int, str] = {}  # descriptor -> path
        self._original = {name: getattr(os, name) for name in _PATCHED}
        self._original_open = builtins.open

    def __enter__(self) -> FileOperations:
        for name in _PATCHED:
            setattr(os, name, getattr(self, f"_{name}"))
        builtins.open = io.open = self._open_file  # type: ignore[assignment]
        return self

    def __exit__(self, *exc: object) -> None:
        for name, function in self._original.items():
            setattr(os, name, function)
        builtins.open = io.open = self._original_open

    def mark(self, value: object) -> None:
        """Adds a record of the test."""
        with self._lock:
            self._record(("mark", value))

    def _relative(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path below the root, None outside; a descriptor has no path."""
        if isinstance(path, int):
            return None
        text = os.fspath(path)
        if isinstance(text, bytes):
            return None
        if dir_fd is not None:
            parent = self._directories.get(dir_fd)
            return None if parent is None else os.path.join(parent, text)
        if text == self._root:
            return ""
        return text[len(self._root) + 1 :] if text.startswith(self._root + os.sep) else None

    def _do(self, operation: Operation, execute: Callable[[], Any]) -> Any:
        with self._lock:
            self.before(operation)
            result = execute()
            self._record(operation)
            return result

    # --- files ---

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        original = self._original["open"]
        name = self._relative(path, dir_fd)
        if name is None:
            return original(path, flags, mode, dir_fd=dir_fd)
        with self._lock:
            if os.path.isdir(path if dir_fd is None else os.path.join(self._root, name)):
                descriptor = original(path, flags, mode, dir_fd=dir_fd)
                self._directories[descriptor] = name
                return descriptor
            if not flags & (os.O_WRONLY | os.O_RDWR):
                return original(path, flags, mode, dir_fd=dir_fd)
            if flags & os.O_CREAT and not os.path.exists(path):
                self._check_space(1)
            operation = ("open", next(self._ids), name)
            descriptor = self._do(operation, lambda: original(path, flags, mode, dir_fd=dir_fd))
            self._files[descriptor] = operation[1]
            if flags & os.O_TRUNC:
                self._record(("truncate", operation[1], 0))
            return descriptor

    def _close(self, descriptor: int) -> None:
        with self._lock:
            self._files.pop(descriptor, None)
            self._directories.pop(descriptor, None)
            self._original["close"](descriptor)

    def _dup(self, descriptor: int) -> int:
        with self._lock:
            copy = self._original["dup"](descriptor)
            if descriptor in self._files:
                self._files[copy] = self._files[descriptor]
            return copy

    def _check_space(self, size: int) -> int:
        if self.free_bytes is None:
            return size
        if self.free_bytes == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return min(size, self.free_bytes)

    def _pwrite(self, descriptor: int, data: Any, position: int) -> int:
        with self._lock:
            if descriptor not in self._files:
                return self._original["pwrite"](descriptor, data, position)
            stored = bytes(memoryview(data)[: self._check_space(len(data))])
            operation = ("write", self._files[descriptor], position, stored)
            self._do(operation, lambda: self._original["pwrite"](descriptor, stored, position))
            if self.free_bytes is not None:
                self.free_bytes -= len(stored)
            return len(stored)

    def _write(self, descriptor: int, data: Any) -> int:
        with self._lock:
            if descriptor not in self._files:
                return self._original["write"](descriptor, data)
            position = os.lseek(descriptor, 0, os.SEEK_CUR)
            written = self._pwrite(descriptor, data, position)
            os.lseek(descriptor, position + written, os.SEEK_SET)
            return written

    def _ftruncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            if descriptor not in self._files:
                return self._original["ftruncate"](descriptor, size)
            operation = ("truncate", self._files[descriptor], size)
            return self._do(operation, lambda: self._original["ftruncate"](descriptor, size))

    def _fsync(self, descriptor: int) -> None:
        with self._lock:
            if descriptor in self._directories:
                return self._do(("flush_directory", self._directories[descriptor]), lambda: None)
            if descriptor in self._files:
                return self._do(("flush", self._files[descriptor]), lambda: None)
            name = self._relative(os.path.realpath(f"/proc/self/fd/{descriptor}"))
            if name is not None and not os.fstat(descriptor).st_nlink:
                return None  # removed meanwhile: without the record, less of it is certain
            if name is not None:  # opened for reading only
                operation = ("open", next(self._ids), name)
                self._do(operation, lambda: None)
                return self._do(("flush", operation[1]), lambda: None)
            return self._original["fsync"](descriptor)

    _fdatasync = _fsync

    def _open_file(self, path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if self._relative(path) is None or not set(mode) & set("wax+"):
            return self._original_open(path, mode, *arguments, **options)
        flags = {"w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL, "r": 0}[mode[0]]
        opener = options.get("opener") or (lambda name, flags: self._open(name, flags, 0o666))
        descriptor = opener(os.fspath(path), flags | os.O_RDWR | os.O_CLOEXEC)
        if mode[0] == "a":
            os.lseek(descriptor, 0, os.SEEK_END)
        buffered = io.BufferedWriter(_RecordedFile(self, descriptor))
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding=options.get("encoding", "utf-8"))

    # --- directories ---

    def _rename(self, source: Any, target: Any) -> None:
        names = self._relative(source), self._relative(target)
        if None in names:
            return self._original["rename"](source, target)
        return self._do(("rename", *names), lambda: self._original["rename"](source, target))

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove_entry("unlink", path, dir_fd)

    _remove = _unlink

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove_entry("rmdir", path, dir_fd)

    def _remove_entry(self, function: str, path: Any, dir_fd: int | None) -> None:
        name, original = self._relative(path, dir_fd), self._original[function]
        if name is None:
            original(path, dir_fd=dir_fd)
        else:
            self._do(("remove", name), lambda: original(path, dir_fd=dir_fd))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name, original = self._relative(path, dir_fd), self._original["mkdir"]
        if not name:
            original(path, mode, dir_fd=dir_fd)
        else:
            self._check_space(1)
            self._do(("mkdir", name), lambda: original(path, mode, dir_fd=dir_fd))


class _RecordedFile(io.RawIOBase):
    """A file opened for writing, whose writes are recorded."""

    def __init__(self, operations: FileOperations, descriptor: int) -> None:
        self._operations = operations
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        return self._operations._write(self._descriptor, data)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._operations._close(self._descriptor)
