"""What the processes of one driver application share on this machine: its name and a private directory.

The user's Python, the reader of each query and the planner of each batch read are separate processes; the driver JVM is
their common relative, so its process id names the application.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from spark_groupsource.errors import ConfigurationError


def driver_pid() -> int:
    """The process id of the driver JVM, asked from a Python process that it started, directly or through a daemon."""
    parent = os.getppid()
    pid = parent
    while pid > 1:
        name, above = _describe(pid)
        if name == "java":
            return pid
        pid = above
    return parent


def _describe(pid: int) -> tuple[str, int]:
    """Command name and parent of a process; ``("", 0)`` when there is none."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return name, int(rest.split()[1])
    except OSError:
        # no /proc here (macOS), or no such process
        told = subprocess.run(["ps", "-o", "ppid=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False)
    parent, _, name = told.stdout.strip().partition(" ")
    return os.path.basename(name.strip()), int(parent or 0)


def is_process_alive(pid: int) -> bool:
    """True while a process of this user, or of another, has the id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def private_directory(name: str) -> Path:
    """A directory of this user alone, made if need be.

    Raises: ConfigurationError when somebody else owns it or may write there.
    """
    path = _place(name)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        raise ConfigurationError(f"{path} is open to other users; remove it and start again")
    return path


def sweep(kind: str) -> None:
    """Removes the directories ``<kind>-<process id>`` of applications that are gone without having cleaned up."""
    for path in Path(tempfile.gettempdir()).glob(f"{_place(kind).name}-*"):
        pid = path.name.rpartition("-")[2]
        if pid.isdigit() and not is_process_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _place(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"groupsource-{os.getuid()}-{name}"
