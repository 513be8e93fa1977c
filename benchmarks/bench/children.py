"""Child processes with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from bench.processor_time import process_ids, read_stat


def run_lines(command: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines that a command prints; at the timeout it is killed with its children.

    Raises: TimeoutError after `timeout_s`; RuntimeError if it exits with another status than 0.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=dict(environment), start_new_session=True
    )
    is_late = threading.Event()

    def expire() -> None:
        is_late.set()
        kill_session(process.pid)

    timer = threading.Timer(timeout_s, expire)
    timer.start()
    try:
        assert process.stdout is not None
        yield from (line.rstrip("\n") for line in process.stdout)
        status = process.wait()
    finally:
        timer.cancel()
        kill_session(process.pid)
        # closes the pipe too
        process.communicate()
    if is_late.is_set():
        raise TimeoutError(f"not finished after {timeout_s:.0f} s")
    if status:
        raise RuntimeError(f"exit status {status}")


def exit_at_sigterm() -> None:
    """Lets SIGTERM raise SystemExit, so that the children of this process are ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def kill_session(session_id: int) -> None:
    """Kills the processes of a session that a child of this process leads, and those that they started."""
    for pid in session_processes(session_id):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def session_processes(session_id: int) -> list[int]:
    """Returns the processes of a session and their descendants, in sessions of their own too; none without /proc."""
    every = {pid: stat for pid in process_ids() if (stat := read_stat(pid)) is not None}
    found = {pid for pid, stat in every.items() if stat.session == session_id}
    while more := {pid for pid, stat in every.items() if stat.parent in found} - found:
        found |= more
    return sorted(found)


def checkout_environment(checkout: Path) -> dict[str, str]:
    """Returns the environment of a Python process that imports the package of a checkout."""
    benchmarks = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(checkout.resolve()), str(benchmarks), str(benchmarks.parent / "jobs")])
    return os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
