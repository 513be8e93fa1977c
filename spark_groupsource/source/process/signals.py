"""Runs queries until SIGTERM or SIGINT, then drains them: `run_until_signal`.

The signal may reach the user's Python process, which handles it, or the Spark JVM, for example by ``kill`` of
``spark-submit``. The JVM stops the SparkContext in a shutdown hook; a hook of higher priority, executed here through
py4j, drains the queries first.
"""

from __future__ import annotations

import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Iterator

from spark_groupsource.common.arguments import check_query, check_seconds
from spark_groupsource.source.process.drain import stop_gracefully
from spark_groupsource.source.process.signal_flag import SignalFlag

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

# hooks run in descending priority; Spark stops its context at priority 50
_JVM_HOOK_PRIORITY = 1000
_POLL_S = 0.2
_JVM_EXIT_S = 10.0


def run_until_signal(*queries: StreamingQuery, timeout_s: float = 60.0) -> None:
    """Blocks until every query has ended, or until SIGTERM or SIGINT; then drains them with `stop_gracefully`.

    The signal may be sent to the user's Python process or to the Spark JVM. Call this from the main thread.

    Args:
        queries: running streaming queries of one Spark session.
        timeout_s: maximum duration of the drain, in seconds; the queries are drained at the same time.

    Raises: ConfigurationError for another object; StreamingQueryException when a query failed, also if the JVM exits
        because of it, but not during the drain after a signal to this process; TimeoutError when a query did not drain
        in time, after the drains of the others.
    """
    for query in queries:
        check_query("queries", query)
    check_seconds("timeout_s", timeout_s, can_be_zero=True)
    if not queries:
        return
    requested, received = SignalFlag(), SignalFlag()

    def handle(signal_number: int, frame: FrameType | None) -> None:
        received.set()
        requested.set()

    with jvm_held(requested.set):
        previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            _wait(queries, requested)
            if requested.is_set():
                _drain(queries, timeout_s)
                if not received.is_set():
                    # the JVM may exit without a signal, for example when its memory is exhausted
                    _raise_failure(queries)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def jvm_held(at_signal: Callable[[], None]) -> Iterator[None]:
    """Calls `at_signal` when the Spark JVM exits by a signal, which it does after the block. Call from the main thread.

    `at_signal` runs in another thread.
    """
    ended = threading.Event()
    jvm_exits = threading.Event()

    def hold_jvm() -> None:
        jvm_exits.set()
        at_signal()
        ended.wait()

    remove_hook = _add_jvm_hook(hold_jvm)
    try:
        yield
    finally:
        ended.set()
        if jvm_exits.is_set():
            _wait_for_jvm_exit()
        else:
            # the JVM outlives this process, so its hook must not call it
            remove_hook()


def _wait(queries: tuple[StreamingQuery, ...], requested: SignalFlag) -> None:
    running = list(queries)
    while running and not requested.wait(_POLL_S):
        for query in list(running):
            if not query.isActive:
                query.awaitTermination()  # raises the error of a failed query
                running.remove(query)


def _drain(queries: tuple[StreamingQuery, ...], timeout_s: float) -> None:
    """Drains the queries at the same time. Raises: the first error, after all drains; the others are logged."""
    with ThreadPoolExecutor(len(queries), "groupsource drain") as pool:
        drains = [pool.submit(stop_gracefully, query, timeout_s) for query in queries]
    errors = [error for error in (drain.exception() for drain in drains) if error is not None]
    for error in errors[1:]:
        _log.error("[driver] %s", error)
    if errors:
        raise errors[0]


def _raise_failure(queries: tuple[StreamingQuery, ...]) -> None:
    """Raises: the error of the first of the stopped queries that has failed."""
    for query in queries:
        query.awaitTermination()


class _ScalaFunction:
    """A Scala ``() => Unit`` that calls Python; py4j looks up the mangled method name as an attribute."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.apply = call

    def __getattr__(self, name: str) -> Any:
        if name == "apply$mcV$sp":
            return self.apply
        raise AttributeError(name)

    class Java:
        implements = ["scala.Function0"]


def _add_jvm_hook(call: Callable[[], None]) -> Callable[[], None]:
    """Registers a hook that the JVM calls before Spark's own shutdown; does nothing without a JVM (Spark Connect).

    Returns: a function that removes the hook.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    context = SparkContext._active_spark_context
    if context is None:
        _log.info("[driver] No Spark JVM in this process: only a signal to this process drains the queries.")
        return lambda: None
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = context._jvm
    manager = jvm.org.apache.spark.util.ShutdownHookManager
    hook = manager.addShutdownHook(_JVM_HOOK_PRIORITY, _ScalaFunction(call))

    def remove() -> None:
        try:
            manager.removeShutdownHook(hook)
        except (Py4JError, OSError) as error:
            # the JVM is exiting
            _log.info("[driver] Removing the shutdown hook failed: %s", error)

    return remove


def _wait_for_jvm_exit() -> None:
    # the hook returns through this process: if this process exited first, Spark would log an error
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    deadline = threading.Event()
    for _ in range(int(_JVM_EXIT_S / _POLL_S)):
        try:
            if context is None or context._jvm is None or context._jsc.sc().isStopped():
                return
        except (Py4JError, OSError):
            return
        deadline.wait(_POLL_S)
