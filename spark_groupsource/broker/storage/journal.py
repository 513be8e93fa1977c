"""Append-only file of JSON values, each durable when `append` returns.

A line has the CRC-32 of a value and the value. A crash or a power loss can leave a part of the last line, which was not
acknowledged and is ignored.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any, Iterator

from spark_groupsource.broker.storage.files import replace_file, sync_data, write_exactly
from spark_groupsource.broker.storage.metadata_files import corrupt_file, read_bytes
from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import StorageError


class Journal:
    """The journal `path`. Attributes: `size`, bytes of the values; `has_failed`, whether only `clear` can follow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0
        self.has_failed = False

    def read(self) -> Iterator[Any]:
        """Yields the values in their order; must be followed by `clear` before the next `append`.

        Raises: StorageError when the file cannot be read, or a line before the last one is corrupt.
        """
        self.has_failed = True
        data = read_bytes(self._path) if self._path.exists() else b""
        self.size = len(data)
        *lines, incomplete = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            checksum, _, text = line.partition(b" ")
            if checksum == _checksum(text):
                yield json.loads(text)
            elif number < len(lines) or incomplete:
                raise corrupt_file(self._path, ValueError(f"line {number} has a wrong checksum"))

    def append(self, value: Any) -> None:
        """Adds a value; durable on return.

        Raises: StorageError; the value may be stored, and only `clear` removes it with certainty.
        """
        text = json.dumps(value, ensure_ascii=True).encode()
        line = _checksum(text) + b" " + text + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_exactly(descriptor, line, self.size)
                sync_data(descriptor)
            except OSError:
                self.has_failed = True
                os.ftruncate(descriptor, self.size)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            self.has_failed = True
            raise StorageError(
                f"{self._path} cannot be written: {describe_os_error(error, 'Check space and permissions.')}"
            ) from error
        self.size += len(line)

    def clear(self) -> None:
        """Removes every value; durable on return. Raises: StorageError."""
        replace_file(self._path, b"")
        self.size, self.has_failed = 0, False


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
