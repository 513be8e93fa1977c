"""Queries that read what is available and end, on every Spark: `run_available_now`.

Spark 4.0 and 4.1 run one batch for ``trigger(availableNow=True)`` of a Python source, and end it without a call that
commits (SPARK-55304).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from spark_groupsource.common.arguments import check_writer
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import NetworkError
from spark_groupsource.source.control_client import ControlClient
from spark_groupsource.source.process.control_socket import control_sockets
from spark_groupsource.source.process.drain import driver_jvm_pid, is_remote, last_ends, stop_gracefully
from spark_groupsource.source.spark import admission_control

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_MS = 50
# status of a query that has not reached its first trigger, from StreamExecution.runStream and ProgressContext of Spark
_INITIALIZING = "Initializing"


def run_available_now(writer: DataStreamWriter) -> StreamingQuery:
    """Reads all records that are available now, in as many batches as the limits need, and commits them.

    Starts the query of the writer, and returns it when it has ended.

    On a Spark with admission control (4.2) it is ``trigger(availableNow=True)``. Before, the query runs with
    ``trigger(processingTime="0 seconds")`` until everything is processed, batches without data included, and is then
    stopped as by `stop_gracefully`. The end offsets of the topics are fixed when the first batch has ended; under
    Spark Connect they are not, so that a query ends at the first moment without new records.

    Raises: ConfigurationError for another object; StreamingQueryException when the query fails; TimeoutError when it
        did not drain.
    """
    check_writer("writer", writer)
    if admission_control.HAS_ADMISSION_CONTROL:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        if not is_remote(query):
            _fix_ends(query)
        query.processAllAvailable()
    except BaseException:
        query.stop()
        raise
    stop_gracefully(query)
    return query


def _fix_ends(query: StreamingQuery) -> None:
    """Limits the query to the records of now, once its readers are known; a query without records has none."""
    clock = SystemClock()
    while (ends := last_ends(query)) is None:
        status = query.status
        is_busy = status["isTriggerActive"] or status["isDataAvailable"]
        # Spark returns from the start of a query before it has created the sources
        if not query.isActive or not (is_busy or status["message"].startswith(_INITIALIZING)):
            return
        clock.sleep_ms(_POLL_MS)
    for name in ends:
        for path in control_sockets(driver_jvm_pid(), name):
            reader = ControlClient.connect(path)
            if reader is not None:
                # a reader that has ended belongs to a query that has failed, which raises its error
                with reader, suppress(NetworkError):
                    reader.prepare_available_now()
