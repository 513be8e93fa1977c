"""Spark processes that tests start: daemons and a Connect server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset
from child_processes import start_process, stop_process
from support.spark_homes import SPARK_HOME
from support.startup import python_path
from support.topics import create_topic, produce
from support.waiting import wait_until

PARALLELISM_JOB = Path(__file__).parents[1] / "source" / "parallelism_job.py"


def environment(**settings: str) -> dict[str, str]:
    """Returns the environment of a Spark process of the tests."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        **settings,
    }


class Daemon:
    """A Spark process and its log."""

    def __init__(self, log: Path, *command: object, **settings: str) -> None:
        self.log = log
        words = [str(part) for part in command]
        with open(log, "w") as out:
            self.process = start_process(words, out, subprocess.STDOUT, environment(**settings))

    def wait_for(self, pattern: str, timeout_s: float = 60) -> str:
        """Returns the first group of the pattern once it is in the log."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.log.read_text())
            assert match or self.process.poll() is None, self.log.read_text()[-2000:]
            return match

        match = wait_until(found, f"{pattern} in {self.log.name}", timeout_s, 0.1)
        assert match is not None
        return match[1]


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Yields the URL of a server of Spark Connect with two cores; tables and ``server.log`` are in `directory`."""
    command: list[object] = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in ("connect.grpc.binding.port=0", "connect.grpc.binding.address=127.0.0.1", "ui.enabled=false"):
        command += ["--conf", f"spark.{setting}"]
    for setting in ("shuffle.partitions=2", f"warehouse.dir={directory}/tables"):
        command += ["--conf", f"spark.sql.{setting}"]
    # the memory of a daemon is that of this driver, too
    path = python_path(Path(__file__).parents[2])
    settings = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "1g", "PYTHONPATH": path}
    server = Daemon(directory / "server.log", *command, "spark-internal", **settings)
    try:
        yield f"sc://127.0.0.1:{server.wait_for(r'(?:SparkConnectService. on port |started at: [^ ]*:)([0-9]+)')}"
    finally:
        stop_process(server.process, 20)


def written_rows(directory: Path) -> list[dict[str, Any]]:
    """Returns the rows of the Parquet files that a job has written."""
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(directory / "rows", format="parquet").to_table().to_pylist()
    return rows


def run_parallelism_job(
    directory: Path,
    servers: str,
    topic: str,
    group: str,
    command: Sequence[object],
    *arguments: str,
    **settings: str,
) -> tuple[dict[str, int], str | None]:
    """Returns the numbers of tasks that the job prints, and the reason of the number of members in its log."""
    create_topic(servers, topic, 8)
    produce(servers, topic, [(n % 8, None, b"%d" % n) for n in range(80)])
    words = [str(word) for word in (*command, PARALLELISM_JOB, servers, topic, group, directory, *arguments)]
    job = subprocess.run(words, env=environment(**settings), capture_output=True, text=True, timeout=400)
    assert job.returncode == 0, job.stderr[-3000:]
    (reason,) = re.findall(r"INFO \[group=\S+ driver=\d+\] (\d+ members for 8 partitions: .*)", job.stderr) or [None]
    return json.loads(job.stdout.splitlines()[-1]), reason
