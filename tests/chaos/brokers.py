"""Brokers with a constant address that are killed and restarted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from chaos.proxy import Proxy
from child_processes import start_process, stop_process
from real_kafka import RealKafka

from spark_groupsource.common.net import Address, listen

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    # the first retention check, after 30 s, would delete records with old timestamps
    "log.retention.ms": "-1",
}
# a restarted Kafka can register again only after the session of the killed one has expired
KAFKA_CONFIG = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


class Broker(Protocol):
    """Interface of the brokers; call `start` on the main thread."""

    def start(self) -> None:
        """Starts the broker, initially or after a kill; returns once it serves clients."""

    def kill(self) -> None:
        """Sends SIGKILL; the data directory stays."""

    def signal(self, number: int) -> None:
        """Sends a signal, for example SIGSTOP."""

    def stop(self) -> None:
        """Stops the broker."""


class EmbeddedBrokerProcess:
    """The embedded broker in a process of its own; `script` runs the command line instead of ``groupsource``."""

    def __init__(self, directory: Path, proxy: Proxy, script: Sequence[str] = ()) -> None:
        self._proxy = proxy
        # the proxy's address is advertised, so the broker's own port must be known before the start
        with listen(Address("127.0.0.1", 0)) as probe:
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._log = directory / "broker.log"
        self._command = [*(script or [str(Path(sys.executable).parent / "groupsource")]), "broker"]
        self._command += ["--data-dir", str(directory / "broker")]
        config = {**CONFIG, "advertised.listeners": proxy.address}
        self._command += [part for key, value in config.items() for part in ("--config", f"{key}={value}")]

    def start(self) -> None:
        with open(self._log, "a") as log:
            self._process = start_process([*self._command, "--listen", self._address], subprocess.PIPE, log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), f"the broker did not start: {self._log.read_text()[-1000:]}"
        self._proxy.forward_to(self._address)

    def kill(self) -> None:
        self._process.kill()
        stop_process(self._process, 5)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        stop_process(self._process, 20)


class RealKafkaBroker:
    """A real Apache Kafka broker."""

    def __init__(self, directory: Path, proxy: Proxy) -> None:
        self._proxy = proxy
        config = {**CONFIG, **KAFKA_CONFIG, "advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        self._kafka = RealKafka(config)
        self._started = False

    def start(self) -> None:
        if self._started:
            self._kafka.restart()
        else:
            self._kafka.start()
        self._started = True
        self._proxy.forward_to(self._kafka.bootstrap_servers)

    def kill(self) -> None:
        self._kafka.kill()

    def signal(self, number: int) -> None:
        assert self._kafka.process_id is not None, "Kafka is not running"
        os.kill(self._kafka.process_id, number)

    def stop(self) -> None:
        self._kafka.stop()
