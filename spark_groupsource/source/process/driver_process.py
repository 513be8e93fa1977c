"""Driver process id and private directories shared by an application's processes.

The user's Python, the reader process of each query and the planner of each batch read are separate processes. All of
them descend from the driver JVM, so its process id identifies the application on this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.process.file_locks import SharedLock, lock_shared, try_lock_exclusive

_LABEL_LENGTH = 60
# name of the process of a JVM
_JAVA = "java"
# variables and directories in which tempfile looks
_TEMPORARY, _DEFAULT_TEMPORARY = ("TMPDIR", "TEMP", "TMP"), ("/tmp", "/var/tmp", "/usr/tmp")


def driver_pid() -> int:
    """Returns the process id of the driver JVM that started this process, directly or through a daemon."""
    parent = os.getppid()
    pid = parent
    # in a container the JVM may be process 1, whose parent is 0
    while pid > 0:
        name, grandparent = _name_and_parent(pid)
        if name == _JAVA:
            return pid
        pid = grandparent
    return parent


def _name_and_parent(pid: int) -> tuple[str, int]:
    """Returns the command name and the parent of a process; ``("", 0)`` if it does not exist."""
    if _HAS_PROC:
        name, fields = _stat(pid)
        return name, int(fields[1]) if fields else 0
    parent, _, name = _ps(pid, "ppid=,comm=").partition(" ")
    return os.path.basename(name.strip()), int(parent or 0)


def process_identity(pid: int) -> str:
    """Returns a text that identifies a running process; empty if it has ended.

    No other process has it, of another container or after a restart of the machine either.
    """
    if not _HAS_PROC:
        return _ps(pid, "lstart=")
    _, fields = _stat(pid)
    if not fields or fields[0] in "ZX":
        # a process whose parent does not wait for it remains a zombie
        return ""
    return f"{_machine()} {pid} {fields[19]}"


def _machine() -> str:
    """Returns a text that identifies this boot of the machine and this container's process ids."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # hidden by a sandbox
        return ""


_HAS_PROC = Path("/proc/self/stat").exists()


def _stat(pid: int) -> tuple[str, list[str]]:
    """Returns the command name and the fields from the state on; no fields if the process does not exist (proc(5))."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return "", []
    return name, rest.split()


def _ps(pid: int, columns: str, *options: str) -> str:
    # macOS
    command = ["ps", *options, "-o", columns, "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def application_name(driver: int) -> str:
    """Returns a name of the application for files; two applications never have the same."""
    return f"{driver}-{hashlib.sha256(process_identity(driver).encode()).hexdigest()[:8]}"


def application_label(driver: int) -> str:
    """Returns the name of the Spark application, as far as commands show it: its driver's, or the one that started it.

    It is empty if they do not.
    """
    arguments = driver_command(driver)
    return label_of_command(arguments, driver_command(_name_and_parent(driver)[1])) if arguments else ""


def driver_command(pid: int) -> list[str]:
    """Returns the words of the command of a process; none if it does not exist.

    On macOS an argument with spaces is several words.
    """
    if not _HAS_PROC:
        return _ps(pid, "args=", "-ww").split()
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def label_of_command(arguments: Sequence[str], parent: Sequence[str] = ()) -> str:
    """Returns ``spark.app.name``, ``--name`` or the Python file of a driver's command, as a client id.

    Args:
        parent: the command that started the driver, as ``python app.py``, whose file is the last choice.
    """
    if not any("org.apache.spark.deploy." in argument for argument in arguments):
        return ""
    names = [a.partition("=")[2] for a in arguments if a.removeprefix("-D").startswith("spark.app.name=")]
    names += [value for option, value in zip(arguments, arguments[1:]) if option == "--name"]
    script = [a for a in parent[1:] if not a.startswith("-")][:1]
    names += [os.path.basename(a).removesuffix(".py") for a in (*arguments, *script) if a.endswith(".py")]
    return re.sub(r"[^\w.-]+", "-", names[0], flags=re.ASCII).strip("-")[:_LABEL_LENGTH] if names else ""


def heap_of_command(arguments: Sequence[str]) -> int | None:
    """Returns spark.driver.memory, in bytes, by the command of a driver; None without option -Xmx."""
    sizes = [found.groups() for each in arguments if (found := re.fullmatch(r"-xmx(\d+)([kmgt]?)", each.lower()))]
    # the last one counts
    return int(sizes[-1][0]) << 10 * " kmgt".index(sizes[-1][1] or " ") if sizes else None


def temporary_directory(driver: int) -> Path:
    """Returns the directory for temporary files of a driver JVM, which the Python processes of Spark inherit.

    That of the user's Python may be another one: a notebook has used its own before a cell sets TMPDIR, and `tempfile`
    keeps it.
    """
    environment = _environment(driver) if _name_and_parent(driver)[0] == _JAVA else {}
    if environment:
        named = filter(None, map(environment.get, _TEMPORARY))
        for path in (*named, *_DEFAULT_TEMPORARY):
            if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
                return Path(os.path.abspath(path))
    return Path(tempfile.gettempdir())


def _environment(pid: int) -> dict[str, str]:
    """Returns the variables with which a process was started; empty if they are not known."""
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    except OSError:
        # macOS, or a process of another user
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def private_directory(name: str, parent: Path | None = None) -> Path:
    """Returns a directory that only this user can access; creates it if needed.

    Args:
        parent: by default the directory for temporary files.
    Raises: ConfigurationError when another user owns it or has access.
    """
    path = _path(name, parent)
    status = None
    while status is None:
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # another process has removed it as a stale one
            status = path.lstat()
    _check_private(path, status)
    return path


def private_directories(kind: str) -> list[Path]:
    """Returns the directories ``<kind>-*`` of all applications of this user.

    Raises: ConfigurationError as `private_directory`.
    """
    found = []
    for path in _directories(kind):
        with suppress(FileNotFoundError):  # another process has removed it as a stale one
            _check_private(path, path.lstat())
            found.append(path)
    return found


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        raise ConfigurationError(f"Directory {path} is accessible to other users. Remove it and restart the query.")


def lock_directory(name: str, parent: Path | None = None) -> tuple[Path, SharedLock]:
    """As `private_directory`; the directory is not removed as a stale one before the lock is released."""
    while True:
        path = private_directory(name, parent)
        try:
            return path, lock_shared(path)
        except FileNotFoundError:
            # another process has removed it as a stale one
            continue


def remove_stale_directories(kind: str, parent: Path | None = None) -> None:
    """Removes the directories ``<kind>-*`` that no running process holds."""
    for path in _directories(kind, parent):
        with try_lock_exclusive(path) as is_stale:
            if is_stale:
                shutil.rmtree(path, ignore_errors=True)


def _directories(kind: str, parent: Path | None = None) -> list[Path]:
    path = _path(kind, parent)
    return sorted(path.parent.glob(f"{path.name}-*"))


def _path(name: str, parent: Path | None = None) -> Path:
    return (parent or Path(tempfile.gettempdir())) / f"groupsource-{os.getuid()}-{name}"
