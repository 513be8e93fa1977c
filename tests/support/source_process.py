"""A reader process that a test calls over a socket, as Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_groupsource.common.net import LocalListener

_READER = """
import json, os, sys
from spark_groupsource.common.net import dial_local
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import select_columns, spark_schema
from spark_groupsource.source.spark.stream_reader import GroupStreamReader

spark = dial_local(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"], 10_000)
columns = select_columns(spark_schema(False), False)
reader = GroupStreamReader(parse_options(json.loads(sys.argv[1]), "stream"), columns, int(sys.argv[2]))
try:
    limit = reader.getDefaultReadLimit()
    while (line := spark.receive(600_000)) is not None:
        call = json.loads(line)
        if "end" in call:
            tasks = reader.partitions(call["start"], call["end"])
            rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
            spark.send(json.dumps([[row["partition"], row["offset"], (row["value"] or b"").decode()] for row in rows]))
        else:
            spark.send(json.dumps(reader.latestOffset(call["start"], limit)))
finally:
    reader.stop()
"""


class SourceProcess:
    """The reader of one source, in a separate process session; this process is its driver.

    Args:
        options: options of the source; an empty one is left out.
    """

    def __init__(self, directory: Path, bootstrap_servers: str, topic: str, group: str, **options: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
        given |= {"startingOffsets": "earliest", "members": "1", "kafka.heartbeat.interval.ms": "200", **options}
        given = {name: value for name, value in given.items() if value}
        listener = LocalListener(str(directory / "spark.sock"))
        self._log = directory / "reader.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _READER, json.dumps(given), str(os.getpid())],
                env={**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": listener.path},
                stderr=log,
                start_new_session=True,
            )
        accepted = listener.accept(60_000)
        listener.close()
        if accepted is None:
            raise AssertionError(f"the reader did not start: {self.log}")
        self._spark = accepted

    @property
    def log(self) -> str:
        return self._log.read_text()

    def call(self, start: Mapping[str, Any] | None = None, end: Mapping[str, Any] | None = None) -> None:
        """Calls latestOffset, or reads the batch to `end` if it is given, without waiting for the result."""
        self._spark.send(json.dumps({"start": start or {}} if end is None else {"start": start or {}, "end": end}))

    def result(self, timeout_ms: int = 60_000) -> Any:
        """Returns the result of the call; None after the process has closed the connection.

        Raises: RequestTimeoutError.
        """
        line = self._spark.receive(timeout_ms)
        return None if line is None else json.loads(line)

    def latest_offset(self, start: Mapping[str, Any] | None = None) -> Any:
        self.call(start)
        return self.result()

    def read(self, start: Mapping[str, Any] | None, end: Mapping[str, Any]) -> list[tuple[int, int, str]]:
        """Reads a batch; returns partition, offset and value of each record.

        Raises: AssertionError with the log of a process that has ended.
        """
        self.call(start, end)
        rows = self.result()
        if rows is None:
            raise AssertionError(self.log)
        return [tuple(row) for row in rows]

    def signal_group(self) -> None:
        """Sends SIGTERM to the process group, as ``timeout`` and service managers do."""
        os.killpg(self.process.pid, signal.SIGTERM)

    def stop(self) -> None:
        """Stops the process as Spark does: SIGTERM twice, and the connection is closed."""
        self.process.terminate()
        self.process.terminate()
        self._spark.close()
        assert self.process.wait(30) == 0, self.log

    def kill(self) -> None:
        self._spark.close()
        self.process.kill()
        self.process.wait()
