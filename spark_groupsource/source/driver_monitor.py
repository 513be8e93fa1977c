"""Whether the Spark application a reader serves goes on: its driver's process, and the SparkContext in it.

Spark tells a reader of neither end. ``SparkContext.stop`` means to end readers and does not (`PythonWorkerFactory`
maps over the processes lazily), and a query that has nothing to read never notices. What a stopped context does do,
wherever it ran, is to delete its directories: that of its files, and those of its blocks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.source.driver_process import is_process_alive

# cleaners of /tmp take what nobody has touched for some days
_TOUCH_MS = 3_600_000


class DriverMonitor:
    """The application as one of its readers sees it.

    Args:
        driver: process id of the driver.
        directories: what the SparkContext deletes when it stops; it has stopped once all that were there are gone.
    """

    def __init__(self, driver: int, directories: Iterable[Path] = (), clock: Clock | None = None) -> None:
        self._driver = driver
        self._directories = [directory for directory in directories if directory.is_dir()]
        self._clock = clock or SystemClock()
        self._touched_ms: int | None = None

    @property
    def is_driver_alive(self) -> bool:
        """False once the driver's process is gone."""
        return is_process_alive(self._driver)

    @property
    def is_context_stopped(self) -> bool:
        """True once the SparkContext has stopped, though the driver's process may live on."""
        left = [directory for directory in self._directories if directory.is_dir()]
        if left:
            self._touch(left)
        return bool(self._directories) and not left

    def _touch(self, directories: Iterable[Path]) -> None:
        now_ms = self._clock.now_ms()
        if self._touched_ms is not None and now_ms - self._touched_ms < _TOUCH_MS:
            return
        self._touched_ms = now_ms
        for directory in directories:
            try:
                os.utime(directory)
            except OSError:
                # stopped at this moment, or another user's: then a cleaner has to take all of them to mislead us
                continue


def context_directories() -> list[Path]:
    """The directories of the SparkContext that has started this Python worker; some may not exist.

    Spark tells them to each worker: that of files when it starts, those of blocks in SPARK_LOCAL_DIRS.
    """
    from pyspark import SparkFiles

    found = [Path(path) for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
    if SparkFiles._is_running_on_worker:
        # the reader of a stream is told a directory in it, which Spark does not make
        files = Path(SparkFiles.getRootDirectory())
        found.append(files if files.is_dir() else files.parent)
    # anything else is not the context's to delete
    return [path for path in found if path.name.startswith(("userFiles-", "blockmgr-"))]
