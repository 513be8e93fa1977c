"""Brokers under attack: embedded, Apache Kafka, or one that runs already."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Callable

from attacks.client_attacks import Target
from child_processes import start_process, stop_process
from real_kafka import RealKafka, free_address
from support import certificates

_CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}
_STOP_TIMEOUT_S = 20


class AttackedBroker:
    """The broker under attack. `is_replaceable`: whether `replace` can start another one; `limits`: for embedded ones.

    Args: `start` starts a broker; returns its address and process id, and whether the process runs. What it starts is
    closed with the stack.
    """

    def __init__(self, start: Callable[[ExitStack], tuple[Target, Callable[[], bool]]], is_replaceable: bool) -> None:
        self._start = start
        self.is_replaceable = is_replaceable
        self._stack = ExitStack()
        self.target, self.is_running = start(self._stack)

    def replace(self) -> None:
        """Stops the broker and starts another one."""
        self._stack.close()
        self.target, self.is_running = self._start(self._stack)

    def close(self) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        host, port = self.target.address
        return f"{host}:{port}"


def embedded(directory: Path) -> AttackedBroker:
    """The embedded broker in a process of its own, with its log in `directory`."""
    files = directory / "tls"
    files.mkdir()
    certificates.write_files(files)

    def start(stack: ExitStack) -> tuple[Target, Callable[[], bool]]:
        number = len(list(directory.glob("broker-*.log")))
        address, tls_address = free_address(), free_address()
        config = {
            **certificates.listener_config(files),
            **_CONFIG,
            "listeners": f"PLAINTEXT://{address},SSL://{tls_address}",
        }
        command = [str(Path(sys.executable).parent / "groupsource"), "broker"]
        command += ["--data-dir", str(directory / f"data-{number}")]
        command += [part for key, value in config.items() for part in ("--config", f"{key}={value}")]
        log_path = directory / f"broker-{number}.log"
        with open(log_path, "w") as log:
            process = start_process(command, subprocess.PIPE, log)
        stack.callback(stop_process, process, _STOP_TIMEOUT_S)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), log_path.read_text()[-1000:]
        return Target(str(address), process.pid, tls_address), lambda: process.poll() is None

    return AttackedBroker(start, is_replaceable=True)


def kafka(directory: Path) -> AttackedBroker:
    """An Apache Kafka of one node, with a key for its TLS listener in `directory`."""
    files = directory / "tls"
    files.mkdir()
    certificates.write_files(files)

    def start(stack: ExitStack) -> tuple[Target, Callable[[], bool]]:
        address, tls_address, controller = free_address(), free_address(), free_address()
        config = {
            **_CONFIG,
            "listeners": f"PLAINTEXT://{address},SSL://{tls_address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{address},SSL://{tls_address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{controller}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{files}/server.pem",
        }
        broker = stack.enter_context(RealKafka(config, address))
        return Target(broker.bootstrap_servers, broker.process_id, tls_address), lambda: broker.is_running

    return AttackedBroker(start, is_replaceable=True)


def running(address: str, process_id: int | None) -> AttackedBroker:
    """A broker that was started before."""
    return AttackedBroker(lambda stack: (Target(address, process_id), lambda: True), is_replaceable=False)
