"""Spark applications started with spark-submit, their processes and their last micro-batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from chaos.streaming_application import last_batch, wait_s
from child_processes import start_process, stop_process
from support.spark_homes import linked_home
from support.waiting import wait_until

from spark_groupsource.source.process.control_socket import control_directory
from spark_groupsource.source.process.driver_process import process_identity

# the JVM writes the stacks of its threads at SIGQUIT
_STACKS_S = 5.0
_SHOWN_CHARACTERS = 30_000
APPLICATION = Path(__file__).with_name("streaming_application.py")


class SubmittedApplication:
    """A Spark application that can be restarted on the same output and checkpoint.

    Args:
        attempts: attempts of a task; with more than one, a killed worker does not fail the query.
        arguments: arguments of `script`, in addition to ``--directory``.
        java: options of the driver JVM.
        executors: number of executors in processes of their own, with one core each; 0 for those of the driver.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        attempts: int,
        arguments: Iterable[object],
        script: Path = APPLICATION,
        java: str = "",
        executors: int = 0,
    ) -> None:
        self.name, self.directory = name, directory / name
        self.log = directory / f"{name}.log"
        self._home: Path | None = None
        if executors:
            self._master = f"local-cluster[{executors},1,512]"
            # workers write below their SPARK_HOME
            self._home = linked_home(directory / f"{name}-spark")
        else:
            self._master = f"local[2,{attempts}]"
        self._script = script
        self._submit = ["--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
        self._submit += ["--driver-java-options", java] if java else []
        if executors:
            self._submit += ["--conf", f"spark.task.maxFailures={attempts}", "--conf", "spark.executor.memory=512m"]
        self._arguments = ["--directory", str(self.directory), *map(str, arguments)]
        self.directory.mkdir()
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        if self._home is not None:
            environment["SPARK_HOME"] = str(self._home)
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", self._master]
        command += [*self._submit, str(self._script), *self._arguments]
        with open(self.log, "a") as log:
            self.process = start_process(command, log, subprocess.STDOUT, environment)
        # named after the running process; readers of a killed driver are found there, too
        self._sockets = control_directory(self.process.pid)

    @property
    def is_ready(self) -> bool:
        """True once the reader process of the query listens on its control socket."""
        return self.process.poll() is None and bool(self.readers())

    def readers(self) -> list[int]:
        """Returns the process ids of the query's readers; usually one, two for a moment during a restart."""
        pids = [int(path.name.rpartition("-")[2]) for path in self._sockets.glob("*-*")]
        return [pid for pid in pids if process_identity(pid)]

    def workers(self) -> list[int]:
        """Returns the process ids of the Python workers that run read tasks."""
        table = process_table()
        parents = {self.process.pid, *self.executors()}
        daemons = {pid for pid, (parent, args) in table.items() if "daemon" in args and parent in parents}
        return [pid for pid, (parent, _) in table.items() if parent in daemons and pid not in self.readers()]

    def executors(self) -> list[int]:
        """Returns the process ids of the executors that have processes of their own."""
        table = process_table()
        return [p for p in self.all_processes() if "CoarseGrainedExecutorBackend" in table.get(p, (0, ""))[1]]

    def python(self) -> list[int]:
        """Returns the process id of the Python driver program."""
        table = process_table()
        return [p for p, (parent, args) in table.items() if parent == self.process.pid and self._script.name in args]

    def all_processes(self) -> list[int]:
        """Returns the ids of all processes of the application, the driver JVM first."""
        table = process_table()
        found = [self.process.pid]
        for pid in found:
            found += [child for child, (parent, _) in table.items() if parent == pid]
        return found

    def last_batch(self) -> int:
        """Returns the number of the last micro-batch in the checkpoint's offset log; -1 when there is none."""
        return last_batch(str(self.directory))

    def failures(self) -> list[str]:
        """Returns one line per failure of the query: the last planned batch and the error."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if " failed in batch " in line]

    def wait_ready(self) -> None:
        """Waits until the application is ready.

        Raises: AssertionError with the stacks of the driver's threads, which its log has.
        """
        try:
            wait_until(lambda: self.is_ready, f"application {self.name} is ready", wait_s(), 0.2)
        except AssertionError as error:
            signal_all([self.process.pid], signal.SIGQUIT)
            time.sleep(_STACKS_S)
            table = process_table()
            processes = [f"{pid} {table[pid][1][:120]}" for pid in self.all_processes() if pid in table]
            log = self.log.read_text(errors="replace")[-_SHOWN_CHARACTERS:]
            raise AssertionError("\n".join([str(error), *processes, log])) from None

    def end(self, timeout_s: float | None = None) -> None:
        """Waits until the processes have exited after a signal to stop; by default for `wait_s`."""
        if timeout_s is None:
            timeout_s = wait_s()
        wait_until(lambda: self.process.poll() is not None, f"the end of application {self.name}", timeout_s, 0.1)
        # readers of a killed driver exit by themselves; until then they may hold the output open
        wait_until(lambda: not self.readers(), f"the end of the readers of {self.name}", timeout_s, 0.1)

    def close(self) -> None:
        """Stops the application in any state."""
        signal_all(self.all_processes() if self.process.poll() is None else [], signal.SIGCONT)
        stop_process(self.process, 10)


def signal_all(pids: Iterable[int], number: signal.Signals) -> int:
    """Sends a signal to each process that still exists; returns how many received it."""
    reached = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            reached += 1
        except ProcessLookupError:
            # exited since the lookup
            continue
    return reached


def process_table() -> dict[int, tuple[int, str]]:
    """Returns process id -> (parent process id, command line)."""
    listing = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}
