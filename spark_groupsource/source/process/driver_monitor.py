"""Detects the end of the driver process and of its SparkContext.

Spark notifies a reader process of neither. ``SparkContext.stop`` intends to end readers but does not
(`PythonWorkerFactory` maps over the processes lazily), and a query without new data never ends. A stopping context
deletes its directories: those of its files and those of its blocks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable

from spark_groupsource.common.clock import Clock, SystemClock
from spark_groupsource.source.process.driver_process import process_identity

# cleaners of /tmp remove what has not been accessed for some days
_TOUCH_MS = 3_600_000


class DriverMonitor:
    """State of the Spark application that a reader process belongs to.

    Args:
        driver: process id of the driver.
        directories: directories that the SparkContext deletes when it stops. The context has stopped once all of those
            that existed at the construction were deleted.
    """

    def __init__(self, driver: int, directories: Iterable[Path] = (), clock: Clock | None = None) -> None:
        self._driver = driver
        self._identity = process_identity(driver)
        self._directories = [directory for directory in directories if directory.is_dir()]
        self._clock = clock or SystemClock()
        self._touched_ms: int | None = None

    @property
    def is_driver_alive(self) -> bool:
        """False once the driver process has ended."""
        return bool(self._identity) and process_identity(self._driver) == self._identity

    @property
    def is_context_stopped(self) -> bool:
        """True once the SparkContext has stopped, even if the driver process continues."""
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
                # deleted meanwhile, or another user's; the result is wrong only if a cleaner removes all directories
                continue


def context_directories() -> list[Path]:
    """Returns the directories of the SparkContext that started this Python worker; some may not exist.

    Spark passes the directory of files when a worker starts, and those of blocks in SPARK_LOCAL_DIRS.
    """
    from pyspark import SparkFiles

    found = [Path(path) for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
    if SparkFiles._is_running_on_worker:
        # for the reader of a stream Spark passes a subdirectory that it does not create
        files = Path(SparkFiles.getRootDirectory())
        found.append(files if files.is_dir() else files.parent)
    # the context deletes only directories with these names
    return [path for path in found if path.name.startswith(("userFiles-", "blockmgr-"))]
