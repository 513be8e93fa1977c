"""Log lines about brokers that become unreachable or reachable, one each."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import Callable, Collection, Iterator

from spark_groupsource.common.clock import Clock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import NetworkError, RequestTimeoutError

_log = logging.getLogger(__name__)

# a broker that restarts or is busy for a moment is not reported
_REPORT_AFTER_MS = 2_000


class BrokerAvailability:
    """Whether the brokers of a cluster can be reached; thread-safe.

    A broker is unreachable when nothing has succeeded since a connection failed, or a request began to wait, two
    seconds ago. `check` must be called every second.

    Args:
        entity: begin of log lines, without brackets.
        known_brokers: returns the addresses in the metadata. While there are any, no other address is reported:
            bootstrap addresses are other names of the same brokers.
    """

    def __init__(self, entity: str, clock: Clock, known_brokers: Callable[[], Collection[Address]]) -> None:
        self._entity = entity
        self._clock = clock
        self._known_brokers = known_brokers
        self._lock = threading.Lock()
        self._waits: dict[object, tuple[Address, int]] = {}
        # address -> start and error of the first attempt since the last success
        self._failures: dict[Address, tuple[int, str]] = {}
        self._reported: set[Address] = set()

    @contextmanager
    def watch(self, address: Address, *, is_connected: bool) -> Iterator[None]:
        """Counts the block as an attempt to reach a broker; it fails with NetworkError.

        Args:
            is_connected: True during a request. A connection that is lost then is no failure; the next attempt is.
        """
        token, started_ms = object(), self._clock.now_ms()
        with self._lock:
            self._waits[token] = address, started_ms
        try:
            yield
        except NetworkError as error:
            if not is_connected or isinstance(error, RequestTimeoutError):
                with self._lock:
                    self._failures.setdefault(address, (started_ms, str(error)))
            raise
        else:
            self._reached(address)
        finally:
            with self._lock:
                del self._waits[token]

    def check(self) -> None:
        """Reports the brokers that have become unreachable."""
        now_ms = self._clock.now_ms()
        known = self._known_brokers()
        with self._lock:
            failures = dict(self._failures)
            for address, started_ms in self._waits.values():
                waited = started_ms, f"No response for {now_ms - started_ms} ms."
                failures[address] = min(failures.get(address, waited), waited)
            due = {
                address: failure
                for address, failure in failures.items()
                if now_ms - failure[0] >= _REPORT_AFTER_MS
                and address not in self._reported
                and (not known or address in known)
            }
            self._failures.update(due)
            self._reported |= set(due)
        for address, (_, error) in sorted(due.items()):
            _log.warning("[%s broker=%s] Broker is unreachable, retrying: %s", self._entity, address, error)

    def _reached(self, address: Address) -> None:
        with self._lock:
            since_ms, _ = self._failures.pop(address, (0, ""))
            is_reported = address in self._reported
            self._reported.discard(address)
        if is_reported:
            lasted_ms = self._clock.now_ms() - since_ms
            _log.info("[%s broker=%s] Broker is reachable again after %d ms.", self._entity, address, lasted_ms)
