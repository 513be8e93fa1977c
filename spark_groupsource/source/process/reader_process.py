"""Reader process of a stream: session, control socket, signals and driver monitor."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Collection, Mapping

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import CAN_ACKNOWLEDGE_NOW, Socket, find_connection, is_closed_by_peer
from spark_groupsource.errors import (
    ApplicationEndedError,
    BrokerError,
    ConfigurationError,
    GroupSourceError,
    NetworkError,
)
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.source.control_client import PeerReply, TransactionReply, TransactionRequest
from spark_groupsource.source.group.co_readers import NOT_STARTED, CoReaders
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.process.control_socket import (
    ControlServer,
    control_directory,
    control_sockets,
    is_first_reader,
)
from spark_groupsource.source.process.driver_monitor import DriverMonitor, context_directories
from spark_groupsource.source.process.driver_process import application_label
from spark_groupsource.source.process.group_claims import ClaimedGroup, GroupClaim, claim_group, recorded_query
from spark_groupsource.source.process.signal_flag import SignalFlag
from spark_groupsource.source.process.spark_parallelism import (
    Parallelism,
    driver_parallelism,
    with_storable_subscriptions,
)
from spark_groupsource.wire.group_events import event_form

if TYPE_CHECKING:
    from spark_groupsource.client.network.availability import BrokerAvailability
    from spark_groupsource.source.group.rebalance_reports import RebalanceReports
    from spark_groupsource.source.positions.batch_planner import Limits
    from spark_groupsource.source.session import StreamSession

_log = logging.getLogger(__name__)

# Spark does not wait for a reader that it stops; an unreachable coordinator must not delay the end of the process
_STOP_S = 5.0
# one reply of the control socket
_MAX_EVENTS = 2_000
_DRIVER_CHECK_S = 1.0
# Spark closes its connection to a reader directly after the signal that stops it
_CLOSE_MS = 1_000
_CLOSE_POLL_MS = 10
# time for the last call of a query whose SparkContext has stopped
_LAST_CALL_MS = 3_000


UNIX_SOCKET_HINT = (
    "spark.python.unix.domain.socket.enabled is off. Set it to true when the Spark session is created: Spark then "
    "sends tasks without TCP, whose delayed acknowledgments cost 40 ms per micro-batch on this system."
)


def has_unix_socket(environment: Mapping[str, str]) -> bool:
    """Returns True if Spark communicates with this Python process by a Unix domain socket (Spark 4.1)."""
    is_enabled = environment.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true"
    return is_enabled or "PYTHON_WORKER_FACTORY_SOCK_PATH" in environment


def can_use_unix_socket() -> bool:
    """Returns True if this PySpark can communicate by a Unix domain socket; that of Spark 4.0 cannot."""
    from inspect import signature

    from pyspark import util

    return "conn_info" in signature(util.local_connect_and_auth).parameters


class ReaderProcess:
    """State of one reader beside its session; created by the first callback of Spark."""

    def __init__(self, options: SourceOptions, driver: int) -> None:
        self.options = options
        self._is_available_now = False
        self._driver = driver
        self._session: StreamSession | None = None
        self._bootstrap_servers: str | None = None
        # Spark's thread and the control socket's thread may both be the first to need the session
        self._session_lock = threading.Lock()
        self._control: ControlServer | None = None
        self._is_control_lost = False
        self._claim: ClaimedGroup | None = None
        self._reports: RebalanceReports | None = None
        self._availability: BrokerAvailability | None = None
        self._has_started = False
        self._is_terminated = False
        self._is_stopping = False
        # id of the query whose transactions have the offsets of this reader
        self._joined_query: str | None = None
        self._sigterm = SignalFlag()
        self._driver_connection = _connection_to_driver()
        self._driver_monitor = DriverMonitor(driver, context_directories())
        self._is_context_stopped = False
        log_to_stderr()
        install_signal_handlers(self._handle_sigterm)
        threading.Thread(target=self._watch_driver, name="groupsource driver", daemon=True).start()
        if options.assign is None or options.client.transactional_id is not None:
            self._listen(NOT_STARTED, None)

    def session(self) -> StreamSession:
        """Returns the session; the first call connects to the cluster."""
        with self._session_lock:
            if self._session is None:
                self._session = self._open_session()
            return self._session

    @property
    def query_file(self) -> str | None:
        """Path to which a read task writes the name of the query; None without a group."""
        return None if self._claim is None else self._claim.query_file

    def prepare_available_now(self) -> None:
        """See `StreamSession.prepare_available_now`."""
        with self._session_lock:
            self._is_available_now = True
            if self._session is not None:
                self._session.prepare_available_now()

    def warn_trigger_once(self) -> None:
        """Logs that the trigger `once` does not commit its batch, at the only call of such a query.

        The transaction of an output commits it.
        Spark ends the query without another call of the source; its signal does not show whether the batch has failed.
        """
        is_committed_later = self.options.group_id is not None and self.options.client.transactional_id is None
        if is_committed_later and not self._has_started:
            _log.warning(
                "[group=%s] Trigger once does not commit the offsets of its batch: Spark does not call the source "
                "after the batch. The next run commits them. Use trigger(availableNow=True) to commit them now.",
                self.options.group_id,
            )

    def latest_offset(self, start: dict[str, Any] | None, limits: Limits) -> dict[str, Any]:
        """See `StreamSession.latest_offset`.

        Raises: ApplicationEndedError once the SparkContext has stopped and the members have left.
        """
        session = self.session()
        end = session.latest_offset(start, limits)
        if self._is_context_stopped and session.drained.is_set():
            raise ApplicationEndedError(
                f"The SparkContext of this query was stopped; its members have left group {self.options.group_id}. "
                "Stop a query before its SparkSession (query.stop() or stop_gracefully) and start it in the next one."
            )
        if not self._has_started:
            self._has_started = True
            self._listen(session.reader, session)
        return end

    def stop(self) -> None:
        """Leaves the group within a few seconds; exits the process if Spark has stopped it."""
        self._is_stopping = True
        self._release_claim()
        closing = threading.Thread(target=self._close, name="groupsource close", daemon=True)
        closing.start()
        closing.join(_STOP_S)
        if closing.is_alive():
            _log.warning("[group=%s] Leaving the group timed out after %g s.", self.options.group_id, _STOP_S)
        if self._is_terminated or self._is_disconnected():
            # Spark's runner would print that its connection to the JVM is broken
            sys.stderr.flush()
            os._exit(0)

    def _listen(self, name: str, session: StreamSession | None) -> None:
        """Opens the control socket; `session` is None before Spark's first call."""
        previous = self._control
        listen = partial(
            ControlServer,
            self._driver,
            name,
            status=self._status,
            events=self._events,
            transaction=self._join_transaction,
            available_now=self.prepare_available_now,
            transactional_id=self.options.client.transactional_id,
        )
        try:
            if session is None:
                self._control = listen(peer_reply=self._reply_not_started)
            else:
                self._control = listen(
                    session.request_drain,
                    session.peer_reply,
                    batch_finished=session.batch_finished,
                    idle=session.rejoin_if_idle,
                )
        except (NetworkError, OSError) as error:
            if self.options.client.transactional_id is not None:
                raise ConfigurationError(
                    "The control socket of the source cannot be created, over which the sink asks for its offsets "
                    f"(kafka.transactional.id): {str(error).rstrip('.')}. Set TMPDIR to a short local path."
                ) from error
            _log.log(
                logging.DEBUG if self._is_control_lost else logging.WARNING,
                "%s Control socket cannot be created: %s. stop_gracefully stops this query without a drain, and "
                "another source of the query in this group may delay a rebalance. Set TMPDIR to a short local path.",
                self._entity,
                str(error).rstrip("."),
            )
            self._control, self._is_control_lost = None, True
        if previous is not None:
            previous.close()

    def _join_transaction(self, request: TransactionRequest) -> TransactionReply:
        """Adds the offsets of the batch in flight to the transaction of its output."""
        transactional_id = self.options.client.transactional_id
        # tasks on other machines, and of assigned partitions, record nothing
        query_id = self._recorded_query().get("id") or self._joined_query
        if request.transactional_id != transactional_id:
            if query_id != request.query_id or transactional_id is None:
                return TransactionReply()
            return TransactionReply(
                failure=f"The source and the sink of the query have different values of kafka.transactional.id: "
                f"{transactional_id} and {request.transactional_id}. Give both the same."
            )
        if query_id not in (None, request.query_id):
            return TransactionReply(
                failure=f"Another query uses kafka.transactional.id={transactional_id}. Give each query its own."
            )
        session = self._session
        if session is None:
            # the source has no data in this batch
            return TransactionReply(is_joined=True)
        cluster_id = session.cluster_id()
        if cluster_id != request.cluster_id:
            return TransactionReply(
                failure=f"Group {self.options.group_id} is on another cluster ({cluster_id}) than the output "
                f"({request.cluster_id}), so its offsets cannot be in the transaction. Write to the cluster of the "
                "group, or leave out kafka.transactional.id."
            )
        from spark_groupsource.client.records.transactions import can_begin_again

        try:
            producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            partitions = session.join_transaction(producer, request.batch) if request.producer_id >= 0 else []
        except GroupSourceError as error:
            can_retry = can_begin_again(error)
            if can_retry and isinstance(error, BrokerError):
                return TransactionReply(failure=error.operation, can_retry=True, code=error.code)
            return TransactionReply(failure=str(error), can_retry=can_retry)
        self._joined_query = request.query_id
        return TransactionReply(True, session.end_in_flight(), min(partitions, default=None))

    def _recorded_query(self) -> Mapping[str, Any]:
        """Returns what the read tasks recorded of the query, nothing before the first."""
        return {} if self._claim is None else recorded_query(self._claim.query_file)

    def _events(self) -> list[dict[str, Any]]:
        """Returns the last events of the members as JSON values."""
        return [] if self._reports is None else [event_form(event) for event in self._reports.events()[-_MAX_EVENTS:]]

    def _status(self) -> dict[str, Any]:
        session = self._session
        status = {"state": "starting"} if session is None or not self._has_started else session.status()
        names = {
            "group": self.options.group_id,
            "client_id": self.options.client.client_id,
            "bootstrap_servers": self._bootstrap_servers,
            "transactional_id": self.options.client.transactional_id,
        }
        return {**names, "reader_pid": os.getpid(), **status}

    def _reply_not_started(self, group_id: str, min_age_ms: int) -> PeerReply:
        """Replies to a co-reader before Spark's first call: joins the group together with it."""
        if group_id != self.options.group_id:
            return PeerReply.OTHER_GROUP
        try:
            return self.session().peer_reply(group_id, min_age_ms)
        except GroupSourceError as error:
            # Spark's first call raises the same error and fails the query with it
            _log.debug("[group=%s] Joining before the first call failed: %s", group_id, error)
            return PeerReply.BUSY

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._session is not None:
            self._session.close("the query was stopped")

    def _open_session(self) -> StreamSession:
        from spark_groupsource.client.cluster.cluster_client import ClusterClient
        from spark_groupsource.source.group.ownership import AssignedPartitions, GroupPartitions, Ownership
        from spark_groupsource.source.positions.offset_lookup import OffsetLookup
        from spark_groupsource.source.process.embedded_address import create_subscribed, resolve_bootstrap
        from spark_groupsource.source.session import StreamSession

        options = self.options
        bootstrap_servers = self._bootstrap_servers = resolve_bootstrap(options.bootstrap_servers, self._driver)
        settings = options.client_settings(bootstrap_servers)
        cluster = ClusterClient(settings.bootstrap, settings)
        self._availability = cluster.report_availability(f"group={options.group_id}")
        if options.is_embedded:
            _log.info("%s The embedded broker listens at %s.", self._entity, bootstrap_servers)
            create_subscribed(cluster, options)
        is_hint_needed = not (CAN_ACKNOWLEDGE_NOW or has_unix_socket(os.environ)) and can_use_unix_socket()
        if is_hint_needed and is_first_reader(self._driver, "unix_socket"):
            _log.info("%s %s", self._entity, UNIX_SOCKET_HINT)
        ownership: Ownership
        if options.assign is not None:
            ownership = AssignedPartitions(cluster, options)
        else:
            partitions = OffsetLookup(cluster, options).partitions()
            self._claim_group(cluster.metadata(()).cluster_id or bootstrap_servers, {p.topic for p in partitions})
            members = self._member_count(partitions)
            application = application_label(self._driver)
            group = GroupPartitions(cluster, options, SystemClock(), members, application, self._recorded_query)
            ownership, self._reports = group, group.reports
        co_readers = CoReaders(options.group_id or "", lambda: control_sockets(self._driver), SystemClock())
        session = StreamSession(cluster, options, ownership, co_readers=co_readers, reports=self._reports)
        if self._is_available_now:
            session.prepare_available_now()
        return session

    def _member_count(self, partitions: Collection[TopicPartition]) -> int:
        """Returns the number of members, at least 1 and at most that of the partitions."""
        requested = self.options.members
        if requested is not None:
            limit = Parallelism(requested, f"option members={requested}")
        else:
            limit = with_storable_subscriptions(driver_parallelism(self._driver), partitions)
        members = max(1, min(limit.tasks, len(partitions)))
        _log.info("%s %d members for %d partitions: %s.", self._entity, members, len(partitions), limit.reason)
        return members

    def _claim_group(self, cluster_id: str, topics: set[str]) -> None:
        options = self.options
        claim = GroupClaim(
            group_id=options.group_id or "",
            cluster_id=cluster_id,
            topics=tuple(sorted(topics)),
            pattern=options.subscribe_pattern,
            is_split_allowed=options.split_between_queries,
            reader_pid=os.getpid(),
            started_ms=SystemClock().timestamp_ms(),
        )
        try:
            self._claim = self._claim or claim_group(control_directory(self._driver), claim)
        except OSError as error:
            level = logging.DEBUG if self._is_control_lost else logging.WARNING
            _log.log(level, "%s Cannot determine whether another query uses the group: %s.", self._entity, error)

    def _release_claim(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def _handle_sigterm(self, signal_number: int, frame: FrameType | None) -> None:
        if self._is_stopping:
            # leaving the group must not be interrupted
            return
        if self._driver_connection is not None and not self._is_terminated:
            self._sigterm.set()
            return
        # Spark sends SIGTERM twice; the second must not interrupt leaving the group
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_terminated = True
        raise SystemExit(0)

    def _watch_driver(self) -> None:
        """Ends this process after Spark has stopped it, the driver has exited, or its SparkContext has stopped.

        Spark's runner detects an exited driver only when a callback returns, which takes long while it waits for a
        broker. It does not detect a stopped SparkContext.
        """
        while self._driver_monitor.is_driver_alive and not self._driver_monitor.is_context_stopped:
            if self._availability is not None:
                self._availability.check()
            if self._sigterm.wait(_DRIVER_CHECK_S) and self._is_stopped_by_spark():
                break
        else:
            self._leave_without_driver()
        self._is_terminated = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_stopped_by_spark(self) -> bool:
        """Returns True if Spark sent SIGTERM.

        Service managers, ``timeout`` and container runtimes signal every process of an application. The driver then
        drains the query, which needs this process.
        """
        self._sigterm.clear()
        clock = SystemClock()
        deadline_ms = clock.now_ms() + _CLOSE_MS
        while not self._is_disconnected():
            if clock.now_ms() > deadline_ms:
                _log.info("%s SIGTERM received; the driver decides when the query ends.", self._entity)
                return False
            clock.sleep_ms(_CLOSE_POLL_MS)
        return True

    def _is_disconnected(self) -> bool:
        return self._driver_connection is not None and is_closed_by_peer(self._driver_connection)

    def _leave_without_driver(self) -> None:
        if not self._driver_monitor.is_driver_alive:
            _log.warning("%s Spark driver exited; leaving the group.", self._entity)
            return
        self._release_claim()
        _log.warning("%s SparkContext stopped but its query did not; leaving the group.", self._entity)
        self._is_context_stopped = True
        if self._session is not None:
            # the next call commits a batch that has just ended, and ends the query
            self._session.request_drain(None)
            SystemClock().sleep_ms(_LAST_CALL_MS)

    @property
    def _entity(self) -> str:
        """Begin of log lines."""
        return f"[group={self.options.group_id} driver={self._driver}]"


def _connection_to_driver() -> Socket | None:
    """Returns the connection over which Spark calls this reader; None outside a reader process of Spark."""
    path, port = (os.environ.get(f"PYTHON_WORKER_FACTORY_{name}", "") for name in ("SOCK_PATH", "PORT"))
    if not path and not port.isdecimal():
        return None
    return find_connection(path or int(port))


def install_signal_handlers(terminate: Callable[[int, FrameType | None], None]) -> None:
    """Ignores SIGINT and calls `terminate` at SIGTERM.

    Tests and benchmarks that run readers in their own process replace this function.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    # Ctrl-C signals every process of the terminal; the driver decides how the query ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminate)


def log_to_stderr() -> None:
    """Logs to stderr unless the process has handlers, with level INFO for the source: Python's default is WARNING."""
    logger = logging.getLogger("spark_groupsource")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        for name in ("source", "client.network.availability"):
            logging.getLogger(f"spark_groupsource.{name}").setLevel(logging.INFO)
