"""Waits for brokers that cannot be reached."""

from __future__ import annotations

import logging

from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import GroupSourceError

_log = logging.getLogger(__name__)


class Outage:
    """Time in which calls fail because of the cluster; one for each caller that waits.

    Args:
        entity: begin of log lines, without brackets.
        limit_ms: how long to wait after `begin`, or the first failure; None for no bound.
        report_after_ms: an outage that lasts as long is reported: one WARN, and one INFO at its end.
    """

    def __init__(self, entity: str, clock: Clock, *, limit_ms: int | None, report_after_ms: int) -> None:
        self._entity = entity
        self._clock = clock
        self.limit_ms = limit_ms
        self._report_after_ms = report_after_ms
        self._began_ms: int | None = None
        self._is_reported = False

    @classmethod
    def bounded(cls, clock: Clock, limit_ms: int) -> Outage:
        """Returns one of a caller that waits no longer than any other call, which is not reported."""
        return cls("cluster", clock, limit_ms=limit_ms, report_after_ms=limit_ms)

    def begin(self) -> None:
        """Counts the time from now on, if it does not yet: the first failure may take long."""
        if self._began_ms is None:
            self._began_ms = self._clock.now_ms()

    def left_ms(self, longest_ms: int) -> int:
        """Returns the time for the next attempt, at least 1 and at most `longest_ms`."""
        if self.limit_ms is None or self._began_ms is None:
            return longest_ms
        return max(min(self._began_ms + self.limit_ms - self._clock.now_ms(), longest_ms), 1)

    def is_over_limit(self, error: GroupSourceError) -> bool:
        """Records a failure; returns True if the caller must raise it now instead of trying again."""
        self.begin()
        waited_ms = self._clock.now_ms() - (self._began_ms or 0)
        if self.limit_ms is not None and waited_ms >= self.limit_ms:
            return True
        if waited_ms >= self._report_after_ms and not self._is_reported:
            self._is_reported = True
            bound = "without bound (maxOutage)" if self.limit_ms is None else f"up to maxOutage={self.limit_ms} ms"
            _log.warning("[%s] Waiting for the cluster %s, %d ms so far: %s", self._entity, bound, waited_ms, error)
        return False

    def ended(self) -> None:
        """Records a success."""
        if self._began_ms is None:
            return
        if self._is_reported:
            lasted_ms = self._clock.now_ms() - self._began_ms
            _log.info("[%s] The cluster responds again after %d ms.", self._entity, lasted_ms)
        self._began_ms, self._is_reported = None, False
