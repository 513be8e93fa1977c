"""Reading of small metadata files, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import StorageError


def read_bytes(path: Path) -> bytes:
    """Raises: StorageError when the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {describe_os_error(error, 'Restore it from a copy.')}") from error


def read_json(path: Path) -> Any:
    """Raises: StorageError when the file cannot be read or is not JSON."""
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise corrupt_file(path, error) from error


def corrupt_file(path: Path, error: Exception) -> StorageError:
    """Returns the error for a metadata file with invalid content."""
    return StorageError(f"{path} is corrupt: {error!r}. Restore it from a copy.")
