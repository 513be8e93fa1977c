"""A librdkafka group member in a separate process that can be killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from child_processes import start_process, stop_process

SCRIPT = Path(__file__).with_name("foreign_process.py")


class ForeignMember:
    """A member process; as a context manager it leaves the group on exit."""

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        topic: str,
        rows: Path,
        session_timeout_ms: int,
        assignor: str = "range",
    ) -> None:
        self.rows = rows
        rows.touch()
        command = [sys.executable, str(SCRIPT), bootstrap_servers, group, topic, str(rows), str(session_timeout_ms)]
        command.append(assignor)
        with open(rows.with_suffix(".log"), "a") as log:
            self.process = start_process(command, log, log)

    def __enter__(self) -> ForeignMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def consumed(self) -> int:
        """Number of records consumed so far."""
        return self.rows.read_bytes().count(b"\n")

    def stop(self) -> None:
        """Sends SIGTERM: the member commits and leaves the group."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
        stop_process(self.process, 30)
