"""Child processes that end with their parent and are stopped gracefully."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO


def start_process(
    command: Sequence[str],
    out: int | IO[str] | None,
    err: int | IO[str] | None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Starts a process in a session of its own, so that Ctrl-C reaches only the parent, which stops its children.

    If ``setpriv`` is installed, the process receives SIGTERM when the thread that started it ends for any reason: start
    it from a thread that lives as long as the process is needed.
    """
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    return subprocess.Popen(
        [*prefix, *command],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=env,
        pass_fds=tuple(pass_fds),
        text=True,
        start_new_session=True,
    )


def stop_process(process: subprocess.Popen[str], timeout_s: float) -> int:
    """Stops a process with SIGTERM, and with SIGKILL after `timeout_s`; returns its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    if process.stdout is not None:
        process.stdout.close()
    return process.wait()
