"""Calls under the lock of a session, repeated after short waits."""

from __future__ import annotations

import logging
import threading
from typing import Callable, TypeVar

from spark_groupsource.client.cluster.client import ClusterClient
from spark_groupsource.clock import Clock
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# time limit of each wait in the first attempt; it doubles with each further one, for slow brokers
_FIRST_WAIT_MS = 5_000
_PAUSE_MS = 100


class LockedCalls:
    """Runs calls that need the brokers and the lock of a session.

    While a broker does not respond, a drain and the co-readers get the lock between two attempts.
    """

    def __init__(self, cluster: ClusterClient, lock: threading.RLock, clock: Clock) -> None:
        self._cluster = cluster
        self._lock = lock
        self._clock = clock

    def run(self, call: Callable[[], _T]) -> _T:
        """Runs `call` under the lock; repeats it for default.api.timeout.ms after the first failure.

        An open transaction with offsets of the group is waited for as long as it lasts, as by Kafka's consumer.

        Raises: the error of the last attempt; at once if a further attempt would not help.
        """
        wait_ms, deadline_ms, is_reported = _FIRST_WAIT_MS, None, False
        longest_ms = self._cluster.settings.default_api_timeout_ms
        while True:
            with self._lock:
                self._cluster.call_timeout_ms = min(wait_ms, longest_ms)
                try:
                    return call()
                except (BrokerError, NetworkError) as error:
                    now_ms = self._clock.now_ms()
                    is_unstable = isinstance(error, BrokerError) and error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
                    deadline_ms = now_ms + longest_ms if deadline_ms is None or is_unstable else deadline_ms
                    if now_ms >= deadline_ms or not _is_transient(error):
                        raise
                    _log.debug("[session] Calls failed, retrying: %s (time limit %d ms)", error, wait_ms)
                    if is_unstable and not is_reported:
                        is_reported = True
                        _log.warning("[session] Waiting for an open transaction with offsets of the group: %s", error)
                finally:
                    self._cluster.call_timeout_ms = None
            self._clock.sleep_ms(_PAUSE_MS)
            # a coordinator that responds is not slow
            wait_ms = _FIRST_WAIT_MS if is_unstable else wait_ms * 2


def _is_transient(error: BrokerError | NetworkError) -> bool:
    if isinstance(error, NetworkError):
        return True
    # the client has waited for unknown topics
    return error.retriable and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
