"""Driver process id and private directories shared by an application's processes.

The user's Python, the reader process of each query and the planner of each batch read are separate processes. All of
them descend from the driver JVM, so its process id identifies the application on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from spark_groupsource.errors import ConfigurationError


def driver_pid() -> int:
    """Returns the process id of the driver JVM that started this process, directly or through a daemon."""
    parent = os.getppid()
    pid = parent
    while pid > 1:
        name, grandparent = _name_and_parent(pid)
        if name == "java":
            return pid
        pid = grandparent
    return parent


def _name_and_parent(pid: int) -> tuple[str, int]:
    """Command name and parent of a process; ``("", 0)`` if it does not exist."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return name, int(rest.split()[1])
    except OSError:
        # no /proc (macOS), or no such process
        output = subprocess.run(
            ["ps", "-o", "ppid=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    parent, _, name = output.strip().partition(" ")
    return os.path.basename(name.strip()), int(parent or 0)


def is_process_alive(pid: int) -> bool:
    """True while a process of any user has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def private_directory(name: str) -> Path:
    """Returns a directory that only this user can access; creates it if needed.

    Raises: ConfigurationError when another user owns it or has access.
    """
    path = _path(name)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        raise ConfigurationError(f"Directory {path} is accessible to other users. Remove it and restart the query.")
    return path


def remove_stale_directories(kind: str) -> None:
    """Removes the directories ``<kind>-<process id>`` of processes that no longer exist."""
    for path in Path(tempfile.gettempdir()).glob(f"{_path(kind).name}-*"):
        pid = path.name.rpartition("-")[2]
        if pid.isdigit() and not is_process_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _path(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"groupsource-{os.getuid()}-{name}"
