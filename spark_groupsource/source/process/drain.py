"""Graceful stop of a query: `stop_gracefully`.

Spark's ``query.stop()`` interrupts between the checkpoint of a batch and the callback that commits it, so the next
owner of the partitions would repeat the batch. `stop_gracefully` requests a drain from the reader of each source: it
plans no more batches, the batch in flight ends, its offsets are committed, and the members leave the group. Then the
query is stopped.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Iterator, Mapping

from spark_groupsource.common.arguments import check_query, check_seconds
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import ConfigurationError, NetworkError, RequestTimeoutError
from spark_groupsource.source.control_client import ControlClient
from spark_groupsource.source.positions.offset_json import GROUP_KEY, parse_progress_offset
from spark_groupsource.source.process.control_socket import control_sockets

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

_POLL_MS = 50


def stop_gracefully(query: StreamingQuery, timeout_s: float = 60.0) -> None:
    """Drains the ``groupsource`` sources of a running query and stops it.

    The batch in flight is finished and committed first, so nothing is read twice, here or by another member. A query
    that has ended is not changed.

    Args:
        timeout_s: maximum wait for the batch in flight, in seconds; then the query is stopped without a drain.

    Raises: ConfigurationError for another object; TimeoutError when the query was stopped without a drain, so another
        member may repeat its last batch.
        Under Spark Connect, table ``queries`` requests the drain on the server.
    """
    check_query("query", query)
    check_seconds("timeout_s", timeout_s, can_be_zero=True)
    clock = SystemClock()
    deadline_ms = clock.now_ms() + int(timeout_s * 1000)
    drain = _RemoteDrain(query) if is_remote(query) else _Drain(query)
    was_active = query.isActive
    try:
        while query.isActive and not drain.advance():
            if clock.now_ms() > deadline_ms:
                query.stop()
                raise TimeoutError(
                    f"Query {query.name or query.id} did not drain within {timeout_s:g} s and was stopped: another "
                    "member may repeat its last batch. Set timeout_s of stop_gracefully to more than a batch takes."
                )
            clock.sleep_ms(_POLL_MS)
    finally:
        drain.close()
    failure = query.exception() if was_active and not query.isActive else None
    if failure is not None:
        cause = str(failure).strip().partition("\n")[0]
        text = "[query=%s] The query failed during the drain, so another member may repeat its last batch: %s"
        _log.warning(text, query.name or query.id, cause)
    query.stop()


class _Drain:
    """Drain of the sources of one query."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._driver = driver_jvm_pid()
        self._connected: dict[str, ControlClient] = {}
        self._proofs: dict[str, Any] = {}
        self._pending: set[str] = set()
        self._known: set[str] = set()

    def advance(self) -> bool:
        """Sends and receives once; True when every ``groupsource`` source has drained."""
        ends = last_ends(self._query)
        if ends is None:
            # without a planned batch there is nothing to finish
            status = self._query.status
            return not (status["isTriggerActive"] and status["isDataAvailable"])
        for reader in set(ends) - self._known:
            self._known.add(reader)
            self._connect(reader)
        # while no batch runs, the last end offset is checkpointed, so the reader need not wait for the next trigger
        is_idle = not self._query.status["isTriggerActive"]
        for reader in sorted(self._pending):
            if is_idle and self._proofs.get(reader) != ends[reader]:
                self._proofs[reader] = ends[reader]
                self._send(reader, ends[reader])
            if self._has_drained(reader):
                self._pending.discard(reader)
        return not self._pending

    def close(self) -> None:
        for each in self._connected.values():
            each.close()

    def _connect(self, reader: str) -> None:
        for path in control_sockets(self._driver, reader):
            client = ControlClient.connect(path)
            if client is None:
                continue
            if reader in self._connected:
                # a reader that is ending while its successor listens already
                self._connected[reader].close()
            self._connected[reader] = client
            self._pending.add(reader)
            self._send(reader, None)
        if reader not in self._connected:
            _log.warning("[query=%s] Reader has no control socket; another member may repeat its batch.", reader[:8])

    def _send(self, reader: str, proof: Any) -> None:
        try:
            self._connected[reader].request_drain(proof)
        except NetworkError:
            # the reader process has ended, and so does the query
            self._pending.discard(reader)

    def _has_drained(self, reader: str) -> bool:
        try:
            has_replied = self._connected[reader].await_drained(_POLL_MS)
        except RequestTimeoutError:
            return False
        except NetworkError:
            has_replied = False
        if not has_replied:
            _log.info("[query=%s] Reader process ended during the drain.", reader[:8])
        return True


def last_ends(query: StreamingQuery) -> dict[str, Any] | None:
    """Returns reader -> end offset of the last batch, of ``groupsource`` sources; None while no reader is named."""
    for progress in _reports(query):
        ends = [parse_progress_offset(source["endOffset"]) for source in _sources(progress)]
        own = [end for end in ends if isinstance(end, dict) and GROUP_KEY in end]
        # an end offset is null before the first batch, and empty while the group assigns no partition
        if own or (ends and all(ends)):
            return {end[GROUP_KEY]["reader"]: end for end in own}
    return None


def _reports(query: StreamingQuery) -> Iterator[Any]:
    """Yields the reports of batches, the last one first: with 10,000 partitions each is a megabyte."""
    last = query.lastProgress
    if last is not None:
        yield last
        yield from reversed(query.recentProgress)


class _RemoteDrain:
    """Drain of the sources of one query under Spark Connect, whose readers run beside the server."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._table = query._session.read.format("groupsource").option("table", "queries")

    def advance(self) -> bool:
        """Requests the drain once; True when every ``groupsource`` source has drained."""
        status, progress = self._query.status, self._query.lastProgress
        ends = [] if progress is None else [parse_progress_offset(each["endOffset"]) for each in _sources(progress)]
        own = [end for end in ends if isinstance(end, dict) and GROUP_KEY in end]
        names = [str(self._query.id), *(end[GROUP_KEY]["reader"] for end in own)]
        # while no batch runs, the last end offset is checkpointed
        proofs = [] if status["isTriggerActive"] else own
        table = self._table.option("drain", ",".join(names)).option("drainedOffsets", json.dumps(proofs))
        states = [row.state for row in table.load().select("state").collect()]
        if not states:
            # without a batch there is nothing to finish
            return bool(own) or not (status["isTriggerActive"] and status["isDataAvailable"])
        return all(state == "drained" for state in states)

    def close(self) -> None:
        """Holds nothing."""


def _sources(progress: Any) -> list[Mapping[str, Any]]:
    sources: list[Mapping[str, Any]] = progress["sources"]
    return sources


def is_remote(given: Any) -> bool:
    """True if a query or session is of Spark Connect, whose driver is in another process."""
    return type(given).__module__.startswith("pyspark.sql.connect.")


def driver_jvm_pid() -> int:
    """Returns the process id of the driver JVM; tests without a JVM replace this function."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise ConfigurationError(
            "stop_gracefully failed: this process has no Spark driver. Under Spark Connect call it on the server."
        )
    return int(context._jvm.java.lang.ProcessHandle.current().pid())
