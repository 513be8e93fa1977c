"""Retries: exponential backoff with jitter, bounded by a deadline.

Source: KIP-580; the delay before attempt n is retry.backoff.ms x 2^n x (0.8 to 1.2), at most retry.backoff.max.ms.
"""

from __future__ import annotations

import logging
from random import Random

from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import BrokerError, GroupSourceError, NetworkError, RequestTimeoutError

_log = logging.getLogger(__name__)


def backoff_ms(attempt: int, base_ms: int, max_ms: int, rng: Random) -> int:
    """Returns the delay before a retry; `attempt` is 0 for the first one."""
    # the exponent is bounded, otherwise a long outage computes huge integers
    return min(int(base_ms * 2 ** min(attempt, 20) * rng.uniform(0.8, 1.2)), max_ms)


def retry_level(error: Exception) -> int:
    """Returns the level of a log line about a retry: `BrokerAvailability` reports unreachable brokers, each once."""
    return logging.DEBUG if isinstance(error, NetworkError) else logging.WARNING


class Retry:
    """Attempts of one call, bounded by `timeout_ms` from now."""

    def __init__(self, *, base_ms: int, max_ms: int, timeout_ms: int, clock: Clock, rng: Random) -> None:
        self._base_ms = base_ms
        self._max_ms = max_ms
        self._clock = clock
        self._rng = rng
        self.started_ms = clock.now_ms()
        self._timeout_ms = timeout_ms
        self._deadline_ms = self.started_ms + timeout_ms
        self.attempt = 0
        self._failure: GroupSourceError | None = None
        # error code -> when an attempt first failed with it
        self._first_ms: dict[int, int] = {}

    @property
    def remaining_ms(self) -> int:
        """Time left, at least 1."""
        return max(self._deadline_ms - self._clock.now_ms(), 1)

    @property
    def is_expired(self) -> bool:
        """True after the deadline."""
        return self._clock.now_ms() >= self._deadline_ms

    @property
    def elapsed_ms(self) -> int:
        return self._clock.now_ms() - self.started_ms

    def repeated_ms(self, error: BrokerError) -> int:
        """Returns for how long attempts have failed with the code of an error, 0 for the first one.

        An outage before the first response does not count.
        """
        now_ms = self._clock.now_ms()
        return now_ms - self._first_ms.setdefault(error.code, now_ms)

    def extend(self, ms: int) -> None:
        """Moves the deadline by a time that does not count, because the peer requires it."""
        self._deadline_ms += ms

    def backoff(self, error: GroupSourceError) -> None:
        """Waits before the next attempt and restarts the timeout: the caller bounds the time in another way."""
        if not isinstance(error, RequestTimeoutError):
            self._failure = error
        delay_ms = backoff_ms(self.attempt, self._base_ms, self._max_ms, self._rng)
        self.attempt += 1
        _log.debug("[attempt=%d] Retrying in %d ms: %s", self.attempt, delay_ms, error)
        self._clock.sleep_ms(delay_ms)
        self._deadline_ms = self._clock.now_ms() + self._timeout_ms

    def visible(self, error: GroupSourceError) -> GroupSourceError:
        """Returns the error to raise: the failure of an earlier attempt where `error` is a timeout, which hides it."""
        is_timeout = isinstance(error, RequestTimeoutError)
        return self._failure if is_timeout and self._failure is not None else error

    def backoff_or_raise(self, error: GroupSourceError) -> None:
        """Waits before the next attempt, or raises `error` if the deadline is before it.

        An attempt that the deadline ended fails with a `RequestTimeoutError`, which hides the failure of the attempt
        before it: that one is raised, with `error` as its cause.
        """
        is_timeout = isinstance(error, RequestTimeoutError)
        if is_timeout and self.is_expired and self._failure is not None:
            raise self._failure from error
        self._failure = None if is_timeout else error
        delay_ms = backoff_ms(self.attempt, self._base_ms, self._max_ms, self._rng)
        self.attempt += 1
        if self._clock.now_ms() + delay_ms >= self._deadline_ms:
            raise error
        _log.debug("[attempt=%d] Retrying in %d ms: %s", self.attempt, delay_ms, error)
        self._clock.sleep_ms(delay_ms)
        # a busy machine sleeps longer: an attempt without time would replace the error by its own
        if self.is_expired:
            raise error
