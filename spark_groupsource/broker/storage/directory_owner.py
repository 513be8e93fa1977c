"""Ownership of a data directory: its lock file and its ``meta.properties``.

Source: Kafka `LogManager.lockLogDirs`, `MetaProperties`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Mapping

from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.broker.storage.metadata_files import read_bytes
from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import StorageError

META_PROPERTIES = "meta.properties"
_FORMAT_KEY = "groupsource.format"
_FORMAT = "1"
_LOCK = ".lock"
# entries that any owner of a directory may have
_NEUTRAL_NAMES = frozenset({_LOCK, f"{META_PROPERTIES}.tmp", "lost+found"})


class DirectoryLock:
    """The lock that a broker holds while it uses a data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises: StorageError when another broker holds the lock."""
        path = self._directory / _LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"{path} cannot be created: {describe_os_error(error, 'Check permissions.')}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind of lock that Kafka uses
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StorageError(
                f"Data directory {self._directory} is in use by another broker (process {holder or 'unknown'}). "
                "Stop that broker or choose another directory."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def prepare_directory(path: Path) -> bool:
    """Creates the directory if it is missing, for this user only; returns whether it has content.

    A directory of another owner is not changed.

    Raises: StorageError when the directory cannot be used or belongs to another owner.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir()} - _NEUTRAL_NAMES
    except OSError as error:
        reason = describe_os_error(error, "Choose another.")
        raise StorageError(f"Data directory {path} cannot be used: {reason}") from error
    if not names:
        return False
    if META_PROPERTIES not in names:
        example = ", ".join(sorted(names)[:3])
        raise StorageError(
            f"Data directory {path} is not empty and not that of a groupsource broker: it contains {example}. "
            "Choose an empty or a new directory."
        )
    properties = read_meta_properties(path)
    if _FORMAT_KEY not in properties:
        raise StorageError(
            f"Data directory {path} belongs to an Apache Kafka broker. Choose an empty or a new directory."
        )
    if properties[_FORMAT_KEY] != _FORMAT:
        raise StorageError(
            f"Data directory {path} belongs to a newer groupsource broker. Choose an empty or a new directory."
        )
    return True


def read_meta_properties(directory: Path) -> dict[str, str]:
    """Raises: StorageError when the file cannot be read."""
    lines = read_bytes(directory / META_PROPERTIES).decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_meta_properties(directory: Path, properties: Mapping[str, str]) -> None:
    """Replaces the file with the properties and the mark of this broker; durable on return.

    Raises: StorageError.
    """
    marked = {**properties, _FORMAT_KEY: _FORMAT}
    replace_file(directory / META_PROPERTIES, "".join(f"{key}={value}\n" for key, value in marked.items()).encode())
