"""`stop_gracefully`: ends a query so that whoever takes its partitions over repeats nothing.

Spark's ``query.stop()`` interrupts between the checkpoint of a batch and the callback that commits it. Here the reader
of each source is asked first to plan nothing more; the batch in flight ends, its offsets are committed, the members
leave the group, and then the query is stopped.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Mapping

from spark_groupsource.clock import SystemClock
from spark_groupsource.errors import ConfigurationError, NetworkError, RequestTimeoutError
from spark_groupsource.net import LocalChannel, dial_local
from spark_groupsource.source.control_socket import control_sockets
from spark_groupsource.source.offset_json import GROUP_KEY

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

_POLL_MS = 50


def stop_gracefully(query: StreamingQuery, timeout_s: float = 60.0) -> None:
    """Drains the ``groupsource`` sources of a running query and stops it.

    A batch in flight is finished and committed first, so nothing is read twice, here or by another member. A query
    that has ended already is left alone.

    Args:
        timeout_s: bound of the wait for the batch in flight, in seconds; then the query is stopped all the same.

    Raises: TimeoutError when it had to be stopped undrained: another member may then repeat its last batch.
        ConfigurationError under Spark Connect, where the driver is out of reach.
    """
    clock = SystemClock()
    deadline_ms = clock.now_ms() + int(timeout_s * 1000)
    drain = _Drain(query)
    try:
        while query.isActive and not drain.advance():
            if clock.now_ms() > deadline_ms:
                query.stop()
                raise TimeoutError(
                    f"query {query.name or query.id} did not drain within {timeout_s:g} s and was stopped; another "
                    "member may repeat its last batch. Give stop_gracefully more time than a batch takes"
                )
            clock.sleep_ms(_POLL_MS)
    finally:
        drain.close()
    query.stop()


class _Drain:
    """How far the sources of one query are drained."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._driver = _driver_jvm_pid()
        self._channels: dict[str, LocalChannel] = {}
        self._proofs: dict[str, Any] = {}
        self._pending: set[str] = set()
        self._known: set[str] = set()

    def advance(self) -> bool:
        """Asks and listens once; True when every source has drained, or none is ours."""
        ends = self._ends()
        if ends is None:
            # the first batch, which tells the sources' names, has not ended
            return False
        for reader in set(ends) - self._known:
            self._known.add(reader)
            self._ask(reader)
        # no batch is running: what has ended is checkpointed, and a long trigger interval need not be waited for
        is_idle = not self._query.status["isTriggerActive"]
        for reader in sorted(self._pending):
            if is_idle and self._proofs.get(reader) != ends[reader]:
                self._proofs[reader] = ends[reader]
                self._send(reader, ends[reader])
            if self._has_drained(reader):
                self._pending.discard(reader)
        return not self._pending

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _ends(self) -> dict[str, Any] | None:
        """Reader -> end offset of the last batch, of our sources alone; None before there was one."""
        for progress in reversed(self._query.recentProgress):
            ends = [_parse(source["endOffset"]) for source in _sources(progress)]
            if ends and all(end is not None for end in ends):
                ours = [end for end in ends if isinstance(end, dict) and GROUP_KEY in end]
                return {end[GROUP_KEY]["reader"]: end for end in ours}
        return None

    def _ask(self, reader: str) -> None:
        for path in control_sockets(self._driver, reader):
            try:
                self._channels[reader] = dial_local(str(path), 1000)
            except NetworkError:
                # left behind by a reader that was killed
                continue
            self._pending.add(reader)
            self._send(reader, None)
        if reader not in self._channels:
            _log.warning("reader %s does not listen; another member may repeat its last batch", reader)

    def _send(self, reader: str, proof: Any) -> None:
        try:
            self._channels[reader].send(json.dumps({"drain": True, "proof": proof}))
        except NetworkError:
            # its process has ended, and with it the query; the caller's loop sees that
            self._pending.discard(reader)

    def _has_drained(self, reader: str) -> bool:
        try:
            line = self._channels[reader].receive(_POLL_MS)
        except RequestTimeoutError:
            return False
        except NetworkError:
            line = None
        if line is None:
            _log.info("reader %s ended before it had drained", reader)
        return True


def _sources(progress: Any) -> list[Mapping[str, Any]]:
    sources: list[Mapping[str, Any]] = progress["sources"]
    return sources


def _parse(offset: Any) -> Any:
    """An offset in a progress report is JSON text or already parsed; ``null`` before the first batch."""
    return json.loads(offset) if isinstance(offset, str) else offset


def _driver_jvm_pid() -> int:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise ConfigurationError(
            "stop_gracefully needs the Spark driver in this application; under Spark Connect call it on the server"
        )
    return int(context._jvm.java.lang.ProcessHandle.current().pid())
