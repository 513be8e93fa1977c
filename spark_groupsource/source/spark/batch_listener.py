"""Streaming query listener that reports finished batches to their readers."""

from __future__ import annotations

import atexit
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_groupsource.errors import NetworkError
from spark_groupsource.source.control_client import ControlClient
from spark_groupsource.source.positions.offset_json import GROUP_KEY, parse_progress_offset
from spark_groupsource.source.process.control_socket import control_sockets
from spark_groupsource.source.process.drain import driver_jvm_pid, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_LAST_EVENTS_MS = 2_000
_added: WeakKeyDictionary[SparkSession, BatchListener] = WeakKeyDictionary()


def report_finished_batches(spark: SparkSession) -> None:
    """Adds the listener to the queries of a session, once; not under Spark Connect, where it would be in the client."""
    if is_remote(spark):
        _log.warning(
            "[session] Under Spark Connect, queries commit a batch at the next trigger: the readers are on the server."
        )
    elif spark not in _added:
        listener = BatchListener()
        spark.streams.addListener(listener)
        _added[spark] = listener
        atexit.register(_remove, spark, listener)


def _remove(spark: SparkSession, listener: BatchListener) -> None:
    """Removes the listener before this process ends: Spark would report that it cannot call it."""
    # the session, its JVM or the connection to it may have ended
    with suppress(Exception):
        spark.streams.removeListener(listener)
        # an event may be on its way
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_LAST_EVENTS_MS)  # type: ignore[union-attr]


class BatchListener(StreamingQueryListener):
    """Passes the end offset of each finished batch to its reader, which commits it at once.

    Spark calls a source at the next trigger only. A reader that knows earlier that a batch is in the commit log of the
    checkpoint commits it, so that a driver that is killed between two triggers repeats nothing, and takes part in
    rebalances until the next trigger. Spark creates the event of a batch after it has written the commit log.
    """

    def onQueryStarted(self, event: Any) -> None:
        """Nothing has finished."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has finished since the last progress."""

    def onQueryTerminated(self, event: Any) -> None:
        """The reader has ended, too."""

    def onQueryProgress(self, event: Any) -> None:
        """Sends the end offset to the reader of each groupsource source."""
        for source in event.progress.sources:
            if GROUP_KEY in (source.endOffset or ""):
                end = parse_progress_offset(source.endOffset)
                _send(end)


def _send(end: Any) -> None:
    for path in control_sockets(driver_jvm_pid(), end[GROUP_KEY]["reader"]):
        reader = ControlClient.connect(path)
        if reader is None:
            continue
        with reader:
            try:
                reader.batch_finished(end)
            except NetworkError as error:
                # the next trigger commits
                _log.debug("[socket=%s] A finished batch was not reported: %s", path, error)
