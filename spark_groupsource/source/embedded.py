"""The addresses ``embedded`` and ``embedded:DIR``: one embedded broker per driver application, found through a file.

The broker is a process of its own, because every process of the application must reach it and none of them lives as
long as the application does: whoever needs it first starts it, and it ends when no application that uses it is left.
Without DIR its data lie in a temporary directory and go with it. This module alone of the source knows the broker.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Iterator

from spark_groupsource.clock import SystemClock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.driver_process import is_process_alive, private_directory
from spark_groupsource.source.options import is_embedded

_START_TIMEOUT_MS = 30_000
_START_POLL_MS = 20
_WATCH_S = 1.0

# brokers this process has started: they outlive it, and Python would warn of each that it forgets
_started: list[subprocess.Popen[bytes]] = []


def resolve_bootstrap(bootstrap_servers: str, driver: int) -> str:
    """``host:port`` for an address as the user gave it; starts the embedded broker where it names one.

    Args:
        driver: process id of the driver JVM; the broker lives at least as long.

    Raises: ConfigurationError when the broker cannot be started, with the end of what it said.
    """
    if not is_embedded(bootstrap_servers):
        return bootstrap_servers
    data_dir = bootstrap_servers.strip().partition(":")[2]
    run_dir = _run_dir(data_dir, driver)
    with _locked(run_dir):
        (run_dir / "users" / str(driver)).touch()
        return _running(run_dir) or _start(run_dir, data_dir)


def _run_dir(data_dir: str, driver: int) -> Path:
    if data_dir:
        place = os.path.realpath(os.path.expanduser(data_dir))
        run_dir = private_directory("broker-" + hashlib.sha256(place.encode()).hexdigest()[:16])
    else:
        run_dir = private_directory(f"broker-{driver}")
    (run_dir / "users").mkdir(exist_ok=True)
    return run_dir


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    with open(run_dir / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _running(run_dir: Path) -> str | None:
    try:
        pid, _, address = (run_dir / "address").read_text().partition(" ")
    except FileNotFoundError:
        return None
    return address if address and is_process_alive(int(pid)) else None


def _start(run_dir: Path, data_dir: str) -> str:
    (run_dir / "address").unlink(missing_ok=True)
    command = [sys.executable, "-m", "spark_groupsource.source.embedded", str(run_dir), data_dir]
    with open(run_dir / "log", "wb") as log:
        # a session of its own: Ctrl-C ends the application, and the broker with its last user
        broker = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
        )
    _started.append(broker)
    clock = SystemClock()
    deadline_ms = clock.now_ms() + _START_TIMEOUT_MS
    while clock.now_ms() < deadline_ms:
        address = _running(run_dir)
        if address:
            return address
        if broker.poll() is not None:
            break
        clock.sleep_ms(_START_POLL_MS)
    else:
        broker.kill()
    said = (run_dir / "log").read_text(errors="replace").strip().splitlines()
    raise ConfigurationError(
        f"kafka.bootstrap.servers: the embedded broker did not start: {said[-1] if said else 'no message'} "
        f"(all it said: {run_dir / 'log'})"
    )


def _environment() -> dict[str, str]:
    # workers of Spark find packages by a path that a plain Python does not have
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def main(run_dir: Path, data_dir: str | None) -> None:
    """Runs the broker until SIGTERM, or until no process in ``users`` is alive."""
    from spark_groupsource.broker.server import EmbeddedBroker

    ended = threading.Event()

    def end(signal_number: int, frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    with EmbeddedBroker(data_dir or None) as broker:
        ready = run_dir / "address.new"
        ready.write_text(f"{os.getpid()} {broker.bootstrap_servers}")
        ready.rename(run_dir / "address")
        while not ended.wait(_WATCH_S):
            with _locked(run_dir):
                if not any(is_process_alive(int(user.name)) for user in (run_dir / "users").iterdir()):
                    (run_dir / "address").unlink()
                    break
    if not data_dir:
        # named by an application that is gone, so nobody comes back to it
        shutil.rmtree(run_dir)
        return
    with _locked(run_dir):
        for user in (run_dir / "users").iterdir():
            if not is_process_alive(int(user.name)):
                user.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] or None)
