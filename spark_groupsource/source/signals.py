"""Running queries until a signal asks for the end, and then draining them.

Two processes can be told to stop: the user's Python, whose signal handlers are ours to set, and the Spark JVM, which is
what ``kill`` hits when an operator stops ``spark-submit``. The JVM stops the SparkContext in a shutdown hook of its
own; a hook of higher priority, carried out here through py4j, drains the queries first.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable

from spark_groupsource.source.drain import stop_gracefully

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

# Spark stops its context at priority 50 and its shutdown hooks run from the highest priority down
_JVM_HOOK_PRIORITY = 1000
_POLL_S = 0.2
_JVM_EXIT_S = 10.0


def run_until_signal(*queries: StreamingQuery, timeout_s: float = 60.0) -> None:
    """Blocks until every query has ended, or until SIGTERM or SIGINT; then drains them with `stop_gracefully`.

    Serves a signal sent to the user's Python and one sent to the Spark JVM alike. Call it from the main thread.

    Args:
        queries: running streaming queries, all of one Spark session.
        timeout_s: bound of the drain of each query, in seconds.

    Raises: StreamingQueryException when a query failed; TimeoutError when a query did not drain in time.
    """
    if not queries:
        return
    asked = threading.Event()
    drained = threading.Event()
    jvm_ends = threading.Event()

    def hold_jvm() -> None:
        jvm_ends.set()
        asked.set()
        drained.wait()

    def handle(signal_number: int, frame: FrameType | None) -> None:
        asked.set()

    remove_hook = _add_jvm_hook(hold_jvm)
    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _wait(queries, asked)
        if asked.is_set():
            for query in queries:
                stop_gracefully(query, timeout_s)
    finally:
        drained.set()
        for number, handler in previous.items():
            signal.signal(number, handler)
        if jvm_ends.is_set():
            _wait_for_jvm_exit()
        else:
            # the JVM outlives this Python; its hook must not call into what is gone
            remove_hook()


def _wait(queries: tuple[StreamingQuery, ...], asked: threading.Event) -> None:
    running = list(queries)
    while running and not asked.wait(_POLL_S):
        for query in list(running):
            if not query.isActive:
                query.awaitTermination()  # raises what the query failed with
                running.remove(query)


class _ScalaFunction:
    """A Scala ``() => Unit`` that calls Python; py4j finds the mangled name by attribute."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.apply = call

    def __getattr__(self, name: str) -> Any:
        if name == "apply$mcV$sp":
            return self.apply
        raise AttributeError(name)

    class Java:
        implements = ["scala.Function0"]


def _add_jvm_hook(call: Callable[[], None]) -> Callable[[], None]:
    """Has the JVM call `call` before Spark's own shutdown; under Spark Connect there is no JVM here to ask.

    Returns: what undoes it.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    context = SparkContext._active_spark_context
    if context is None:
        _log.info("no Spark JVM in this process: only signals sent to this Python process are drained")
        return lambda: None
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = context._jvm
    manager = jvm.org.apache.spark.util.ShutdownHookManager
    hook = manager.addShutdownHook(_JVM_HOOK_PRIORITY, _ScalaFunction(call))

    def remove() -> None:
        try:
            manager.removeShutdownHook(hook)
        except (Py4JError, OSError) as error:
            # the JVM is ending by itself, and its hooks with it
            _log.info("shutdown hook not removed: %s", error)

    return remove


def _wait_for_jvm_exit() -> None:
    # The hook's answer travels back through this process: ending first would cut it off, and Spark would log an error.
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
