"""Calls under the lock of a session, repeated after short waits."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import Callable, Iterator, TypeVar

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.outage import Outage
from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# time limit of each wait in the first attempt; it doubles with each further one, for slow brokers
_FIRST_WAIT_MS = 5_000
_PAUSE_MS = 100


class LockedCalls:
    """Runs calls that need the brokers and the lock of a session.

    While a broker does not respond, a drain and the co-readers get the lock between two attempts.

    Args:
        entity: begin of log lines, without brackets.
        max_outage_ms: how long a running query waits for its cluster; None for no bound. Until the first call has
            succeeded, it waits for default.api.timeout.ms.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        lock: threading.RLock,
        clock: Clock,
        *,
        entity: str = "session",
        max_outage_ms: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._lock = lock
        self._clock = clock
        self._entity = entity
        self._max_outage_ms = max_outage_ms
        longest_ms = cluster.settings.default_api_timeout_ms
        self._outage = Outage(entity, clock, limit_ms=longest_ms, report_after_ms=longest_ms)

    @contextmanager
    def _limited(self, wait_ms: int) -> Iterator[None]:
        """Holds the lock; each wait for the brokers has the time limit."""
        with self._lock:
            self._cluster.call_timeout_ms = wait_ms
            try:
                yield
            finally:
                self._cluster.call_timeout_ms = None

    def once(self, call: Callable[[], _T]) -> _T:
        """Runs `call` under the lock, with the time limit of a first attempt; a later call does what it fails to do."""
        with self._limited(min(_FIRST_WAIT_MS, self._cluster.settings.default_api_timeout_ms)):
            return call()

    def run(self, call: Callable[[], _T]) -> _T:
        """Runs `call` under the lock; repeats it after a failure while the query waits for its cluster.

        An open transaction with offsets of the group is waited for as long as it lasts, as by Kafka's consumer.

        Raises: the error of the last attempt; at once if a further attempt would not help.
        """
        wait_ms, is_reported = _FIRST_WAIT_MS, False
        longest_ms = self._cluster.settings.default_api_timeout_ms
        while True:
            with self._limited(min(wait_ms, longest_ms)):
                try:
                    result = call()
                    self._outage.ended()
                    # the query runs from now on
                    self._outage.limit_ms = self._max_outage_ms
                    return result
                except (BrokerError, NetworkError) as error:
                    is_unstable = isinstance(error, BrokerError) and error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
                    if is_unstable:
                        self._outage.ended()
                    elif not _is_transient(error) or self._outage.is_over_limit(error):
                        raise
                    _log.debug("[%s] Calls failed, retrying: %s (time limit %d ms)", self._entity, error, wait_ms)
                    if is_unstable and not is_reported:
                        is_reported = True
                        _log.warning(
                            "[%s] Waiting for an open transaction with offsets of the group: %s", self._entity, error
                        )
            self._clock.sleep_ms(_PAUSE_MS)
            # a coordinator that responds is not slow
            wait_ms = _FIRST_WAIT_MS if is_unstable else wait_ms * 2


def _is_transient(error: BrokerError | NetworkError) -> bool:
    if isinstance(error, NetworkError):
        return True
    # the client has waited for unknown topics
    return error.retriable and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
