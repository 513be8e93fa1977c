"""Starts the embedded broker of addresses ``embedded`` and ``embedded:DIR``.

The broker is a separate process, because every process of the application needs it and none of them runs from the start
to the end of the application. The first process that needs it starts it; its address is in a file. It exits when no
application that uses it is left. Without DIR its data is in a temporary directory that is deleted with it. No other
module of the source imports the broker.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import bounded_names
from spark_groupsource.source.options.cluster_options import is_embedded
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.process.driver_process import application_name, private_directory, process_identity
from spark_groupsource.source.process.file_locks import is_locked, lock_exclusive, lock_shared
from spark_groupsource.source.process.signal_flag import SignalFlag

_log = logging.getLogger(__name__)

_START_TIMEOUT_MS = 30_000
_START_POLL_MS = 20
_WATCH_S = 1.0

# brokers that this process has started: they outlive it, and Python would warn about unreferenced ones
_started: list[subprocess.Popen[bytes]] = []


def resolve_bootstrap(bootstrap_servers: str, driver: int) -> str:
    """Returns ``host:port`` for the option's value; starts the embedded broker if the value names one.

    Args:
        driver: process id of the driver JVM; the broker runs at least as long.

    Raises: ConfigurationError with the last line of the broker's output when it does not start.
    """
    if not is_embedded(bootstrap_servers):
        return bootstrap_servers
    data_dir = bootstrap_servers.strip().partition(":")[2]
    run_dir = run_directory(data_dir, driver)
    with lock_exclusive(run_dir / "lock"):
        (run_dir / "users" / application_name(driver)).write_text(process_identity(driver))
        return _running(run_dir) or _start(run_dir, data_dir)


def create_subscribed(cluster: ClusterClient, options: SourceOptions) -> None:
    """Creates the topics of ``subscribe`` that do not exist, with ``num.partitions`` of the broker.

    As Kafka's consumer, unless ``allow.auto.create.topics`` is false; for ``embedded`` alone.

    Raises: BrokerError for an invalid name.
    """
    _create_missing(cluster, (options.subscribe or ()) if options.creates_topics else ())


def create_missing(settings: ClientSettings, topics: Sequence[str]) -> None:
    """Creates the topics that do not exist, as Kafka's producer does; for ``embedded`` alone.

    Raises: BrokerError for an invalid name.
    """
    with ClusterClient(settings.bootstrap, settings) as cluster:
        _create_missing(cluster, topics)


def _create_missing(cluster: ClusterClient, topics: Sequence[str]) -> None:
    missing = sorted(set(topics) - cluster.metadata(topics, refresh=True).topics.keys())
    if missing:
        from spark_groupsource.client.admin import NewTopic, create_topics

        try:
            create_topics(cluster, [NewTopic(topic) for topic in missing])
        except BrokerError as error:
            # another source of the application has created it meanwhile
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        _log.info("[broker=embedded] Created topics that do not exist: %s.", bounded_names(missing))


def run_directory(data_dir: str, driver: int) -> Path:
    """Returns the directory of a broker's address, lock, log and users; creates it if needed."""
    if data_dir:
        path = os.path.realpath(os.path.expanduser(data_dir))
        run_dir = private_directory("broker-" + hashlib.sha256(path.encode()).hexdigest()[:16])
    else:
        run_dir = private_directory(f"broker-{application_name(driver)}")
    (run_dir / "users").mkdir(exist_ok=True)
    return run_dir


def _running(run_dir: Path) -> str | None:
    """Returns the address of the broker, which holds the lock of its file while it runs."""
    path = run_dir / "address"
    if not is_locked(path):
        return None
    return path.read_text().partition(" ")[2]


def _start(run_dir: Path, data_dir: str) -> str:
    (run_dir / "address").unlink(missing_ok=True)
    command = [sys.executable, "-m", "spark_groupsource.source.process.embedded_address", str(run_dir), data_dir]
    with open(run_dir / "log", "wb") as log:
        # in a new session, so that Ctrl-C does not reach it: it exits after its last application
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
    output = (run_dir / "log").read_text(errors="replace").strip().splitlines()
    raise ConfigurationError(
        f"Option kafka.bootstrap.servers: the embedded broker did not start: {output[-1] if output else 'no message'}. "
        f"See {run_dir / 'log'}."
    )


def _environment() -> dict[str, str]:
    # Spark workers have import paths that a new Python process does not have
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def main(run_dir: Path, data_dir: str | None) -> None:
    """Runs the broker until SIGTERM, or until no process listed in ``users`` is running."""
    from spark_groupsource.broker.embedded import EmbeddedBroker

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    ended = SignalFlag()

    def end(signal_number: int, frame: FrameType | None) -> None:
        ended.set()

    def report_wait() -> None:
        _log.warning("[broker=embedded] Waiting for the previous broker of the directory to stop.")

    signal.signal(signal.SIGTERM, end)
    # the address is free before a broker has written all of its data
    with lock_exclusive(run_dir / "broker", report_wait), EmbeddedBroker(data_dir or None) as broker:
        ready = run_dir / "address.new"
        ready.write_text(f"{os.getpid()} {broker.bootstrap_servers}")
        lock = lock_shared(ready)
        ready.rename(run_dir / "address")
        while not ended.wait(_WATCH_S):
            with lock_exclusive(run_dir / "lock"):
                if not _remove_ended_users(run_dir):
                    (run_dir / "address").unlink()
                    break
        lock.release()
    with lock_exclusive(run_dir / "lock"):
        is_used = _remove_ended_users(run_dir)
        # without DIR it is named after an application, which may start another broker after a signal
        if not data_dir and not is_used:
            shutil.rmtree(run_dir)


def _remove_ended_users(run_dir: Path) -> bool:
    """Removes the applications that have ended; returns True if one is running."""
    is_used = False
    for user in (run_dir / "users").iterdir():
        identity = user.read_text()
        if identity and process_identity(int(user.name.partition("-")[0])) == identity:
            is_used = True
        else:
            user.unlink()
    return is_used


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] or None)
