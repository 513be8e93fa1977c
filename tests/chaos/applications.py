"""The applications under fire, their processes, and which of their micro-batches are in flight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from chaos.application import PATIENCE_S, last_batch
from child_processes import start_process, stop_process
from support.waiting import wait_until

from spark_groupsource.source.control_socket import control_directory
from spark_groupsource.source.driver_process import is_process_alive

APPLICATION = Path(__file__).with_name("application.py")


class Application:
    """One run after the other of the application, with an output and a checkpoint that stay.

    Args:
        attempts: how often Spark tries a task; with more than one a killed worker does not fail the query.
        arguments: of `script`, which gets ``--directory`` too.
        java: options of the driver JVM.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        attempts: int,
        arguments: Iterable[object],
        script: Path = APPLICATION,
        java: str = "",
    ) -> None:
        self.name, self.directory = name, directory / name
        self.log = directory / f"{name}.log"
        self._master = f"local[2,{attempts}]"
        self._script = script
        self._submit = ["--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
        self._submit += ["--driver-java-options", java] if java else []
        self._arguments = ["--directory", str(self.directory), *map(str, arguments)]
        self.directory.mkdir()
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", self._master]
        command += [*self._submit, str(self._script), *self._arguments]
        with open(self.log, "a") as log:
            self.process = start_process(command, log, subprocess.STDOUT, environment)

    @property
    def is_ready(self) -> bool:
        """True once the reader of its query listens."""
        return self.process.poll() is None and bool(self.readers())

    def readers(self) -> list[int]:
        """Process ids of the query's readers: one, but for a moment around a restart."""
        pids = [int(path.name.rpartition("-")[2]) for path in control_directory(self.process.pid).iterdir()]
        return [pid for pid in pids if is_process_alive(pid)]

    def workers(self) -> list[int]:
        """Process ids of the Python workers that read."""
        table = process_table()
        daemons = {pid for pid, (above, args) in table.items() if "daemon" in args and above == self.process.pid}
        return [pid for pid, (above, _) in table.items() if above in daemons and pid not in self.readers()]

    def python(self) -> list[int]:
        """The process id of the user's Python."""
        table = process_table()
        return [p for p, (above, args) in table.items() if above == self.process.pid and self._script.name in args]

    def everything(self) -> list[int]:
        """All its processes, the driver JVM first."""
        table = process_table()
        found = [self.process.pid]
        for pid in found:
            found += [child for child, (above, _) in table.items() if above == pid]
        return found

    def last_batch(self) -> int:
        """The number of the last micro-batch in the checkpoint's log of plans; -1 when there is none."""
        return last_batch(str(self.directory))

    def failures(self) -> list[str]:
        """Why its query failed, each time, with the batch that was planned last."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if " failed in batch " in line]

    def end(self, timeout_s: float = PATIENCE_S) -> None:
        """Waits for the end of a run that was told to stop."""
        wait_until(lambda: self.process.poll() is not None, f"the end of application {self.name}", timeout_s, 0.1)
        # children of a killed driver end by themselves; until then they may hold the output
        wait_until(lambda: not self.readers(), f"the end of the readers of {self.name}", timeout_s, 0.1)

    def close(self) -> None:
        """Ends it whatever state it is in."""
        signal_all(self.everything() if self.process.poll() is None else [], signal.SIGCONT)
        stop_process(self.process, 10)


def signal_all(pids: Iterable[int], number: signal.Signals) -> int:
    """Sends a signal to each process that is still there; to how many."""
    reached = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            reached += 1
        except ProcessLookupError:
            # ended by itself since it was looked up
            continue
    return reached


def process_table() -> dict[int, tuple[int, str]]:
    """Process id -> its parent and its command line."""
    told = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in told.stdout.splitlines())
    return {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}
