"""One of the demonstration's Spark applications: ``spark-submit jobs/flight_delays.py`` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from processes import start_process, stop_process

JOBS = Path(__file__).resolve().parent
DRAIN_TIMEOUT_S = 60


class Application:
    """A running `flight_delays` job; what it prints goes to a file, or to this terminal when `verbose`.

    Its Parquet output, its checkpoint, its log and its list of rebalances stand in `directory`.
    """

    def __init__(
        self, name: str, directory: Path, *, bootstrap_servers: str, topic: str, group: str, verbose: bool
    ) -> None:
        self.name = name
        self.output = directory / "output"
        self.log_file = directory / "log.txt"
        self._rebalances = directory / "rebalances.txt"
        self._read = 0
        directory.mkdir(parents=True)
        log: IO[str] | None = None if verbose else self.log_file.open("w")
        # the Spark that was installed beside this program, not one the environment may name
        environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
        environment.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        arguments = ["--bootstrap-servers", bootstrap_servers, "--topic", topic, "--group", group, "--members", "2"]
        arguments += ["--output", str(self.output), "--checkpoint", str(directory / "checkpoint")]
        arguments += ["--schema", str(JOBS.parent / "conf" / "flights.avsc"), "--rebalance-log", str(self._rebalances)]
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
    def running(self) -> bool:
        return self._process.poll() is None

    def new_rebalances(self) -> list[str]:
        """What the application wrote about its rebalances since the last call, a line each."""
        if not self._rebalances.exists():
            return []
        with self._rebalances.open() as lines:
            lines.seek(self._read)
            whole, _, _ = lines.read().rpartition("\n")
        self._read += len(whole.encode()) + 1 if whole else 0
        return [str(json.loads(line)["text"]) for line in whole.splitlines()]

    def terminate(self) -> None:
        """SIGTERM: the application finishes its batch, commits, leaves the group and ends."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends the application whatever state it is in."""
        stop_process(self._process, 5)

    @property
    def exit_status(self) -> int | None:
        """None while it runs. A JVM that was asked to end by SIGTERM reports 143 when all its work is done."""
        return self._process.poll()

    @property
    def drained(self) -> bool:
        """True when it ended as asked."""
        return self.exit_status in (0, 128 + signal.SIGTERM)

    def log_tail(self, lines: int = 25) -> str:
        """The end of what it printed."""
        if not self.log_file.exists():
            return "(printed above)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
