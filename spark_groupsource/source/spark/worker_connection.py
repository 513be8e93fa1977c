"""Readers and writers in Python workers: version, connection without delayed acknowledgments.

Over TCP, the JVM sends a task in two parts: the function with its reader, and the input partition. By Nagle's algorithm
the second part waits for the acknowledgment of the first, which the kernel of the worker delays by 40 ms, because the
worker responds to neither before it has both. The reader is unpickled between the two parts, so it acknowledges the
first. Later, in `read`, it is too late. A Unix domain socket has no such delay.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Callable, TypeVar

from spark_groupsource.common.net import Socket, acknowledge_now, first_loopback_connection, send_without_delay
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.tracebacks import strip_traceback
from spark_groupsource.version import __version__

_T = TypeVar("_T")


class Pickled:
    """Object that Spark pickles to the executors; its version is unpickled, and compared, before everything else.

    Another version of the package may lack its classes and fields, whose errors would not name the cause.
    """

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...], dict[str, Any]]:
        return _create, (_DriverVersion(), type(self)), self.__getstate__()


class _DriverVersion:
    """The version of this package in the process that pickles it."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _check_version, (__version__,)


def _check_version(driver: str) -> None:
    """Raises: ConfigurationError if the package has another version here than on the driver."""
    if driver != __version__:
        error = ConfigurationError(
            f"Starting a task failed: the driver has spark-groupsource {driver}, the Python worker of this executor "
            f"{__version__}. Install the same version in the Python environments of the driver and the executors."
        )
        raise strip_traceback(error)


def _create(_: None, kind: type[_T]) -> _T:
    return kind.__new__(kind)


class PickledReader(Pickled):
    """Reader of records; Spark pickles it to the executors, where it acknowledges its task."""

    def __init__(self, options: SourceOptions, columns: SelectedColumns, driver: int) -> None:
        self._options = options
        self._columns = columns
        self._driver = driver

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge_task()
        self.__dict__.update(state)


def acknowledge_task() -> None:
    """Acknowledges the part of a task that has been received; to be called when a reader is unpickled.

    Does nothing outside a worker that is connected by TCP.
    """
    # set by Spark for the authentication of TCP connections
    if "PYTHON_WORKER_FACTORY_SECRET" not in os.environ:
        return
    try:
        connection = _connection(os.getpid())
        if connection is not None:
            acknowledge_now(connection)
    except OSError:
        # a delay is no reason to fail
        return


@lru_cache(maxsize=1)
def _connection(process: int) -> Socket | None:
    """Returns the connection to the JVM: it existed when `process` started, before any code of a user could run."""
    connection = first_loopback_connection()
    if connection is not None:
        send_without_delay(connection)
    return connection
