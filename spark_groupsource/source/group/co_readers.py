"""Coordination of several readers of one application in the same group.

Spark calls the sources of a query one after another on one thread. While one of them waits in `latestOffset` for a
rebalance, Spark does not call the others, so their members cannot rejoin: the group waits for them, and they wait for
Spark. The waiting reader therefore sends a request to its co-readers over their control sockets:

* a co-reader without a batch in flight rejoins at once, and the rebalance completes;
* if a co-reader has a planned batch that Spark has not started, Spark waits for the requesting reader: it yields
  (returns without a batch) and continues with the next trigger. A source of another query has such a batch only while
  Spark writes its offset log.

With ``once`` there is no next trigger. So the first reader that Spark calls requests the others to join before it
plans. Until Spark calls a reader, its control socket is named `NOT_STARTED`.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterable

from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import GroupSourceError, NetworkError
from spark_groupsource.source.control_client import ControlClient, PeerReply

_log = logging.getLogger(__name__)

NOT_STARTED = "not_started"
"""Name of a control socket until Spark has called the reader for the first time."""

# time before co-readers get a request: a rebalance among other applications completes without them
_REQUEST_AFTER_MS = 1_000
# the same after co-readers that Spark has not called yet have joined: the rebalance needs them
_FIRST_REQUEST_AFTER_MS = 100
# time between the planning of a batch and the start of its tasks while Spark is not blocked
_LOG_WRITE_MS = 500
# the same with availableNow: its query ends with the first trigger without a batch, so a needless yield would end it
_AVAILABLE_NOW_LOG_WRITE_MS = 5_000
# time limit of a rejoin that a co-reader requested
_REJOIN_MS = 1_000


class CoReaders:
    """Coordination of one reader with its co-readers; the session calls it under its lock.

    Contract:
        * `call_started`, `call_ended` and `batch_started` report the calls of Spark;
        * `join_not_started` before the first poll of the group, then `should_yield` after each poll: when it is True,
          return to Spark without a batch;
        * between the calls of Spark, `reply` returns the reply to a co-reader, and `rejoin_if_idle` rejoins.

    Args:
        sockets: returns the control sockets of the application's readers, that of this process among them.
    """

    def __init__(self, group_id: str, sockets: Callable[[], Iterable[Path]], clock: Clock) -> None:
        self._group_id = group_id
        self._sockets = sockets
        self._clock = clock
        self._planned_ms: int | None = None
        # before Spark's first call nothing is in flight
        self._is_idle = True
        self._failure: GroupSourceError | None = None
        self._waiting_since_ms: int | None = None
        self._request_after_ms = _REQUEST_AFTER_MS

    def call_started(self) -> None:
        """Spark requests the next end offset.

        Raises: the error of a rejoin since the last call.
        """
        self._planned_ms, self._is_idle = None, False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call_ended(self, *, has_planned: bool, is_committed: bool) -> None:
        """Spark gets its end offset, or a batch has ended; `is_committed`: all checkpointed positions are committed."""
        self._planned_ms = self._clock.now_ms() if has_planned else None
        self._is_idle = not has_planned and is_committed

    def batch_started(self) -> None:
        """Spark starts the planned batch."""
        self._planned_ms = None

    def reply(self, min_age_ms: int, rejoin: Callable[[int], bool]) -> PeerReply:
        """Returns the reply to a co-reader; with no batch in flight calls `rejoin` with a timeout.

        Args:
            min_age_ms: minimum age of a planned batch to reply BATCH_PLANNED.
        """
        if self._planned_ms is not None:
            age_ms = self._clock.now_ms() - self._planned_ms
            return PeerReply.BATCH_PLANNED if age_ms >= min_age_ms else PeerReply.BUSY
        return PeerReply.REJOINED if self.rejoin_if_idle(rejoin, _REJOIN_MS) else PeerReply.BUSY

    def rejoin_if_idle(self, rejoin: Callable[[int], bool], timeout_ms: int) -> bool:
        """Calls `rejoin` with the timeout if no batch is planned or in flight; returns whether it did."""
        if not self._is_idle:
            return False
        try:
            rejoin(timeout_ms)
        except GroupSourceError as error:
            # fails the query of this reader at its next call, not the query of the co-reader
            self._failure = error
        return True

    def join_not_started(self) -> None:
        """Requests the readers that Spark has not called yet to join the group."""
        not_started = [path for path in self._others() if path.name.startswith(NOT_STARTED)]
        if PeerReply.REJOINED in self._request_all(not_started, 0):
            self._request_after_ms = _FIRST_REQUEST_AFTER_MS

    def should_yield(self, is_settled: bool, is_available_now: bool) -> bool:
        """Returns True if a co-reader cannot continue before the caller returns to Spark; to be called after each poll.
        """
        if is_settled:
            self._waiting_since_ms, self._request_after_ms = None, _REQUEST_AFTER_MS
            return False
        now_ms = self._clock.now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < self._request_after_ms:
            return False
        min_age_ms = _AVAILABLE_NOW_LOG_WRITE_MS if is_available_now else _LOG_WRITE_MS
        replies = self._request_all(self._others(), min_age_ms)
        self._waiting_since_ms = now_ms
        return PeerReply.BATCH_PLANNED in replies

    def _others(self) -> list[Path]:
        return [path for path in self._sockets() if path.name.rpartition("-")[2] != str(os.getpid())]

    def _request_all(self, paths: list[Path], min_age_ms: int) -> list[PeerReply]:
        # in parallel: the rebalance may wait for several co-readers, and each of them waits for the others
        if not paths:
            return []
        with ThreadPoolExecutor(len(paths), "groupsource co-readers") as pool:
            return list(pool.map(lambda path: self._request(path, min_age_ms), paths))

    def _request(self, path: Path, min_age_ms: int) -> PeerReply:
        reader = ControlClient.connect(path)
        if reader is None:
            return PeerReply.OTHER_GROUP
        with reader:
            try:
                return reader.peer_reply(self._group_id, min_age_ms)
            except NetworkError as error:
                _log.debug("[group=%s socket=%s] No reply from co-reader: %s", self._group_id, path, error)
                return PeerReply.BUSY
