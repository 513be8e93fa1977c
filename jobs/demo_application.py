"""A Spark application of the demo: a ``spark-submit`` process of `flight_delays.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from child_processes import start_process, stop_process

JOBS = Path(__file__).resolve().parent
DRAIN_TIMEOUT_S = 180


class DemoApplication:
    """A running `flight_delays` job; its output is written to a file, or to this terminal if `verbose`.

    `directory` contains its Parquet output, if it has one, its checkpoint, its log and its list of rebalances.

    Args:
        to_topic: topic that it writes to exactly once; None if it writes Parquet files.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        bootstrap_servers: str,
        registry: str,
        topic: str,
        group: str,
        to_topic: str | None,
        verbose: bool,
    ) -> None:
        self.name, self.group = name, group
        self.output = directory / "output"
        self.log_file = directory / "log.txt"
        self._rebalances = directory / "rebalances.txt"
        self._read_bytes = 0
        directory.mkdir(parents=True)
        log: IO[str] | None = None if verbose else self.log_file.open("w")
        # the Spark of this Python environment, not that of SPARK_HOME
        environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
        environment.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        arguments = ["--bootstrap-servers", bootstrap_servers, "--topic", topic, "--group", group, "--members", "2"]
        arguments += ["--checkpoint", str(directory / "checkpoint")]
        if to_topic is None:
            arguments += ["--output", str(self.output)]
        else:
            arguments += ["--to-topic", to_topic, "--transactional-id", f"{group}-{name}"]
        arguments += ["--schema-registry", registry, "--rebalance-log", str(self._rebalances)]
        arguments += ["--log-level", "INFO" if verbose else "WARN"]
        self._process = start_process(
            [
                *(str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"),
                *("--name", f"flight delays {name}", "--conf", "spark.ui.enabled=false"),
                *(str(JOBS / "flight_delays.py"), *arguments),
            ],
            log,
            subprocess.STDOUT if log else None,
            environment,
        )
        if log:
            log.close()

    @property
    def is_running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def new_rebalances(self) -> list[str]:
        """The log lines of rebalances since the last call."""
        if not self._rebalances.exists():
            return []
        with self._rebalances.open() as lines:
            lines.seek(self._read_bytes)
            complete, _, _ = lines.read().rpartition("\n")
        self._read_bytes += len(complete.encode()) + 1 if complete else 0
        return [str(json.loads(line)["text"]) for line in complete.splitlines()]

    def terminate(self) -> None:
        """Sends SIGTERM: the application finishes its batch, commits, leaves the group and exits."""
        self._process.terminate()

    def kill(self) -> None:
        """Stops the application in any state."""
        stop_process(self._process, 5)

    @property
    def exit_status(self) -> int | None:
        """None while it is running; 143 for a JVM that was stopped by SIGTERM and has shut down in order."""
        return self._process.poll()

    @property
    def is_drained(self) -> bool:
        """True after a graceful stop."""
        return self.exit_status in (0, 128 + signal.SIGTERM)

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        if not self.log_file.exists():
            return "(printed above)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
