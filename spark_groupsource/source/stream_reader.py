"""The stream reader Spark constructs: inert until the first callback, then the face of a `StreamSession`.

Spark makes it twice: one lives in the reader process and gets every callback, the other is pickled to the executors for
`read`. So the constructor keeps plain values, and what is live hangs on `_live`, which is never pickled.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NoReturn, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_groupsource.clock import SystemClock
from spark_groupsource.errors import ApplicationEndedError, GroupSourceError
from spark_groupsource.source.co_readers import NOT_STARTED, PeerReply
from spark_groupsource.source.driver_monitor import DriverMonitor, context_directories
from spark_groupsource.source.options import SourceOptions, parse_options
from spark_groupsource.source.schema import SelectedColumns
from spark_groupsource.source.task_reader import GroupInputPartition, read_task
from spark_groupsource.source.tracebacks import strip_traceback, without_traceback

if TYPE_CHECKING:
    from spark_groupsource.source.control_socket import ControlServer
    from spark_groupsource.source.session import Limits, StreamSession

_log = logging.getLogger(__name__)

# Spark does not wait for a reader that is told to stop, and a coordinator that is gone must not keep it alive
_STOP_S = 5.0
_APPLICATION_CHECK_MS = 1_000
# what a query whose SparkContext has stopped is given to ask once more
_ENDING_MS = 3_000


class InvalidStreamReader(DataSourceStreamReader):
    """Stands in for a reader whose options are wrong, and says so at the first callback."""

    def __init__(self, error: GroupSourceError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise strip_traceback(self._error) from None


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query as `members` members of its group."""

    def __init__(
        self, options: Mapping[str, str], columns: SelectedColumns, driver: int, parallelism: int | None = None
    ) -> None:
        self._options = dict(options)
        self._columns = columns
        self._driver = driver
        self._parallelism = parallelism
        self._live: _Live | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    @without_traceback
    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._opened().options
        if options["maxOffsetsPerTrigger"]:
            return ReadMaxRows(options["maxOffsetsPerTrigger"])
        if options["minOffsetsPerTrigger"]:
            return ReadMinRows(options["minOffsetsPerTrigger"])
        if options["maxBytesPerTrigger"]:
            return ReadMaxBytes(options["maxBytesPerTrigger"])
        return ReadAllAvailable()

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().prepare_available_now()

    def initialOffset(self) -> dict[str, Any]:
        # owning nothing: each first position is an acquisition, which the end offset holds, so batch 0 can be replayed
        return {}

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from spark_groupsource.source.session import Limits

        live = self._opened()
        # Spark hands back one limit, so the others come from the options; all are off where it wants everything
        low, size = live.options["minOffsetsPerTrigger"], live.options["maxBytesPerTrigger"]
        if isinstance(limit, ReadMaxRows):
            limits = Limits(limit.max_rows, low, size)
        elif isinstance(limit, ReadMinRows):
            limits = Limits(None, limit.min_rows, size)
        elif isinstance(limit, ReadMaxBytes):
            limits = Limits(None, low, limit.max_bytes)
        else:
            limits = Limits()
        return live.latest_offset(start, limits)

    @without_traceback
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._opened().session().report_latest()

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._opened().session().input_partitions(start, end)

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        self._opened().session().commit()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, GroupInputPartition)
        return read_task(partition, self._columns)

    def _opened(self) -> _Live:
        if self._live is None:
            self._live = _Live(parse_options(self._options, "stream"), self._driver, self._parallelism)
        return self._live


class _Live:
    """What the reader process holds beside the session: signals, logging and the control socket."""

    def __init__(self, options: SourceOptions, driver: int, parallelism: int | None) -> None:
        self.options = options
        self._is_available_now = False
        self._driver = driver
        self._parallelism = parallelism
        self._session: StreamSession | None = None
        # Spark's thread and one that answers siblings may both be the first to need the session
        self._opening = threading.Lock()
        self._control: ControlServer | None = None
        self._is_newborn = True
        self._terminated = False
        self._driver_monitor = DriverMonitor(driver, context_directories())
        self._has_ended = False
        _log_to_stderr()
        self._handle_signals()
        threading.Thread(target=self._end_with_driver_monitor, name="groupsource driver", daemon=True).start()
        if options["assign"] is None:
            self._listen(NOT_STARTED, lambda proof: False, self._tell_newborn)

    def session(self) -> StreamSession:
        """The session, opened at first use: it reaches for the cluster."""
        with self._opening:
            if self._session is None:
                self._session = self._open()
            return self._session

    def prepare_available_now(self) -> None:
        """From now on nothing is read that is not there at the next call."""
        with self._opening:
            self._is_available_now = True
            if self._session is not None:
                self._session.prepare_available_now()

    def latest_offset(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        session = self.session()
        end = session.latest_offset(start, limits)
        if self._has_ended and session.drained.is_set():
            raise ApplicationEndedError(
                f"the SparkContext of this query was stopped; its members have left group {self.options.group_id}. "
                "Stop a query before its SparkSession (query.stop() or stop_gracefully), and start it in the next one"
            )
        if self._is_newborn:
            self._is_newborn = False
            self._listen(session.reader, session.request_drain, session.peer_reply)
        return end

    def stop(self) -> None:
        """Leaves the group, in a few seconds at most; ends the process where a signal has asked for that."""
        closing = threading.Thread(target=self._close, name="groupsource close", daemon=True)
        closing.start()
        closing.join(_STOP_S)
        if closing.is_alive():
            _log.warning("the group could not be left within %g s; its members time out", _STOP_S)
        if self._terminated:
            # going back to Spark's runner would only print how its connection to the JVM broke
            sys.stderr.flush()
            os._exit(0)

    def _listen(
        self,
        name: str,
        request_drain: Callable[[dict[str, Any] | None], bool],
        peer_reply: Callable[[str, int], PeerReply],
    ) -> None:
        from spark_groupsource.source.control_socket import ControlServer

        former, self._control = self._control, ControlServer(self._driver, name, request_drain, peer_reply)
        if former is not None:
            former.close()

    def _tell_newborn(self, group_id: str, least_ms: int) -> PeerReply:
        """A sibling that joins the group has this one join as well, although Spark has not asked it yet."""
        if group_id != self.options.group_id:
            return PeerReply.ELSEWHERE
        try:
            return self.session().peer_reply(group_id, least_ms)
        except GroupSourceError as error:
            # Spark's first call meets it again, and fails the query with it
            _log.debug("joining early failed: %s", error)
            return PeerReply.BUSY

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._session is not None:
            self._session.close("the query was stopped")

    def _open(self) -> StreamSession:
        from spark_groupsource.client.cluster.client import Cluster
        from spark_groupsource.source.co_readers import CoReaders
        from spark_groupsource.source.control_socket import control_sockets
        from spark_groupsource.source.embedded import resolve_bootstrap
        from spark_groupsource.source.offset_lookup import OffsetLookup
        from spark_groupsource.source.ownership import AssignedPartitions, GroupPartitions, Ownership
        from spark_groupsource.source.session import StreamSession

        options = self.options
        settings = options.client_settings(resolve_bootstrap(options.bootstrap_servers, self._driver))
        cluster = Cluster(settings.bootstrap, settings)
        ownership: Ownership
        if options["assign"] is not None:
            ownership = AssignedPartitions(cluster, options)
        else:
            readable = len(OffsetLookup(cluster, options).partitions())
            wanted = options["members"] or self._parallelism or os.cpu_count() or 1
            ownership = GroupPartitions(cluster, options, SystemClock(), max(1, min(wanted, readable)))
        siblings = CoReaders(options.group_id or "", lambda: control_sockets(self._driver), SystemClock())
        session = StreamSession(cluster, options, ownership, siblings=siblings)
        if self._is_available_now:
            session.prepare_available_now()
        return session

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # Ctrl-C reaches every process of the terminal; how the query ends is the driver's to say
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, signal_number: int, frame: FrameType | None) -> None:
        # Spark sends it twice; the second must not interrupt the leaving
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._terminated = True
        raise SystemExit(0)

    def _end_with_driver_monitor(self) -> None:
        """Has this process leave and end when the driver was killed, or its SparkContext stopped without the query.

        Spark's runner sees the first only when a callback has returned. One that waits for a broker that is down never
        does, and its members would join for nobody once the broker is back. The second it does not see at all.
        """
        clock = SystemClock()
        while self._driver_monitor.is_driver_alive and not self._driver_monitor.is_context_stopped:
            clock.sleep_ms(_APPLICATION_CHECK_MS)
        if self._driver_monitor.is_driver_alive:
            _log.warning("the SparkContext was stopped and its query was not; its reader leaves the group and ends")
            self._has_ended = True
            if self._session is not None:
                # a batch that has just ended is committed by the next call, which then ends the query
                self._session.request_drain(None)
                clock.sleep_ms(_ENDING_MS)
        else:
            _log.warning("the Spark driver is gone; its reader leaves the group and ends")
        os.kill(os.getpid(), signal.SIGTERM)


def _log_to_stderr() -> None:
    """Rebalances are told at level INFO, which Python shows nobody unless asked."""
    logger = logging.getLogger("spark_groupsource")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logging.getLogger("spark_groupsource.source").setLevel(logging.INFO)
