"""Wait of a replay for the owners of its partitions.

The caller passes the time. Two queries that wait for each other must not leave the group, or join it, at once: each
decision is after a random time.
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Mapping, Optional

from spark_groupsource.model import OffsetAndMetadata, TopicPartition

Commits = Mapping[TopicPartition, Optional[OffsetAndMetadata]]


class ReplayStep(Enum):
    """What a waiting query does next."""

    BEGIN = "the wait begins"
    WAIT = "nothing"
    STEP_BACK = "leave the group"
    READ_AGAIN = "read what other members own"


class ReplayWait:
    """Decides between waiting as a member and outside of the group, until the commits progress.

    Attributes:
        is_member: whether the query is to be a member of the group.
    """

    def __init__(self, session_timeout_ms: int, limit_ms: int, rng: Random) -> None:
        """`session_timeout_ms`: a member that has failed is removed after it; `limit_ms`: without any progress."""
        self.is_member = True
        self._session_timeout_ms = session_timeout_ms
        self._limit_ms = limit_ms
        self._rng = rng
        self._commits: Commits | None = None
        self._progressed_ms = 0
        self._decide_ms = 0

    def next_step(self, commits: Commits, now_ms: int) -> ReplayStep:
        """Returns the next step; `commits` are those of the logged batch."""
        is_first = self._commits is None
        if commits != self._commits:
            self._commits, self._progressed_ms = dict(commits), now_ms
            self._decide_later(now_ms)
            return ReplayStep.BEGIN if is_first else ReplayStep.WAIT
        if self.is_member and now_ms - self._progressed_ms >= self._limit_ms:
            return ReplayStep.READ_AGAIN
        if now_ms < self._decide_ms:
            return ReplayStep.WAIT
        if self.is_member:
            return ReplayStep.STEP_BACK
        self.is_member = True
        self._decide_later(now_ms)
        return ReplayStep.WAIT

    def stepped_back(self, now_ms: int) -> None:
        """The query has left the group."""
        self.is_member = False
        self._decide_later(now_ms)

    def _decide_later(self, now_ms: int) -> None:
        self._decide_ms = now_ms + int(self._session_timeout_ms * self._rng.uniform(1, 2))
