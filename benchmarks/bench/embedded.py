"""The embedded broker in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Mapping


class EmbeddedBroker:
    """A broker on a port that restarts keep.

    Args: `directory`, of its data and working directory; `settings`, by Kafka's names; `environment`, of the process.
    """

    def __init__(
        self, directory: str, settings: Mapping[str, str] = {}, environment: Mapping[str, str] | None = None
    ) -> None:
        # not the installed script: its entry point may not exist in an older checkout
        self._command = [sys.executable, "-c", "from spark_groupsource.cli.main import main; main()", "broker"]
        self._command += ["--data-dir", directory, *(f"--config={key}={value}" for key, value in settings.items())]
        self._directory, self._environment = directory, environment
        self.bootstrap_servers = "127.0.0.1:0"
        self.restart()

    def restart(self) -> None:
        """Starts the process. Raises: RuntimeError if it does not listen."""
        self._process = subprocess.Popen(
            [*self._command, "--listen", self.bootstrap_servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            # python -c imports from the working directory first
            cwd=self._directory,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self.kill()
            raise RuntimeError(f"the embedded broker did not start: {line}")
        self.bootstrap_servers = line.split()[-1]

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)
