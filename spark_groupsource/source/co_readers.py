"""Several sources of one query in one group: how they do not wait for each other for ever.

Spark asks the sources of a query one after another on one thread. So while one of them waits in `latestOffset` for the
group to settle, the others are not asked and cannot rejoin: the group waits for them, and they for Spark. The reader
that waits therefore asks the other readers of its application, over their control sockets, how they stand:

* one that has nothing in flight rejoins there and then, and the group settles;
* one whose planned batch Spark has not taken up is held up by whoever asks: that one gives way, its turn comes with the
  next trigger. A source of another query looks like that only for the moment in which Spark writes its offset log.

With ``once`` there is no next trigger. So the one that Spark asks first has the others join before it plans anything:
until Spark asks them too, they listen as newborn.
"""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Callable, Iterable

from spark_groupsource.clock import Clock
from spark_groupsource.errors import GroupSourceError, NetworkError
from spark_groupsource.net import dial_local

_log = logging.getLogger(__name__)

NOT_STARTED = "newborn"
"""Stands for a reader's name until Spark has asked it for the first time."""

# a group of other applications alone settles without our asking around
_PATIENCE_MS = 1_000
# but not one with newborn readers of ours
_FIRST_PATIENCE_MS = 100
# what a batch may wait between its planning and its tasks without anybody being in the way
_WRITING_MS = 500
# the same where giving way in vain would end the query: availableNow ends with the first trigger that brings nothing
_LONG_WRITING_MS = 5_000
_ANSWER_MS = 3_000
# how long one that is asked to rejoin stays with it
_REJOIN_SLICE_MS = 1_000


class PeerReply(Enum):
    """How a reader stands when another asks; the value travels."""

    ELSEWHERE = "elsewhere"
    BUSY = "busy"
    REJOINED = "rejoined"
    PLANNED = "planned"


class ReaderState:
    """What a reader is doing between two calls of Spark; whoever uses it holds the reader's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._planned_ms: int | None = None
        # also before Spark has asked: nothing is in flight
        self._is_idle = True
        self._failure: GroupSourceError | None = None

    def called(self) -> None:
        """Spark asks for the next end. Raises: what a rejoining in between has met."""
        self._planned_ms, self._is_idle = None, False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def answered(self, has_planned: bool, is_committed: bool) -> None:
        """Spark has its end; `is_committed` tells that nobody would repeat anything of what went before."""
        self._planned_ms = self._clock.now_ms() if has_planned else None
        self._is_idle = not has_planned and is_committed

    def taken_up(self) -> None:
        """Spark runs what was planned."""
        self._planned_ms = None

    def tell(self, least_ms: int, rejoin: Callable[[int], bool]) -> PeerReply:
        """How it stands; with nothing in flight it calls `rejoin` with the time that may take."""
        if self._planned_ms is not None:
            has_waited = self._clock.now_ms() - self._planned_ms >= least_ms
            return PeerReply.PLANNED if has_waited else PeerReply.BUSY
        if not self._is_idle:
            return PeerReply.BUSY
        try:
            rejoin(_REJOIN_SLICE_MS)
        except GroupSourceError as error:
            # it is this reader's query that has failed, not the one that asks
            self._failure = error
        return PeerReply.REJOINED


class CoReaders:
    """The other readers of this application, seen from one that waits for the group.

    Args:
        paths: where they listen now, the asking one's own socket among them.
    """

    def __init__(self, group_id: str, paths: Callable[[], Iterable[Path]], clock: Clock) -> None:
        self._group_id = group_id
        self._paths = paths
        self._clock = clock
        self._since_ms: int | None = None
        self._patience_ms = _PATIENCE_MS

    def gather(self) -> None:
        """Has the newborn ones join the group; told before the caller joins."""
        newborn = [path for path in self._others() if path.name.startswith(NOT_STARTED)]
        if PeerReply.REJOINED in self._ask_all(newborn, 0):
            self._patience_ms = _FIRST_PATIENCE_MS

    def are_waiting(self, settled: bool, is_available_now: bool) -> bool:
        """Told after each look at the group; True when one of them cannot go on before the caller returns to Spark."""
        if settled:
            self._since_ms, self._patience_ms = None, _PATIENCE_MS
            return False
        now_ms = self._clock.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms < self._patience_ms:
            return False
        least_ms = _LONG_WRITING_MS if is_available_now else _WRITING_MS
        waiting = self._ask_all(self._others(), least_ms)
        self._since_ms = now_ms
        return PeerReply.PLANNED in waiting

    def _others(self) -> list[Path]:
        return [path for path in self._paths() if path.name.rpartition("-")[2] != str(os.getpid())]

    def _ask_all(self, paths: list[Path], least_ms: int) -> list[PeerReply]:
        # the group may wait for more than one of them, and then each waits for the others
        if not paths:
            return []
        with ThreadPoolExecutor(len(paths), "groupsource siblings") as pool:
            return list(pool.map(lambda path: self._ask(path, least_ms), paths))

    def _ask(self, path: Path, least_ms: int) -> PeerReply:
        try:
            channel = dial_local(str(path), 1000)
        except NetworkError:
            # left behind by a reader that was killed
            return PeerReply.ELSEWHERE
        try:
            channel.send(json.dumps({"group": self._group_id, "least_ms": least_ms}))
            return PeerReply(json.loads(channel.receive(_ANSWER_MS) or "{}").get("standing"))
        except (NetworkError, ValueError) as error:
            _log.debug("%s does not tell how it stands: %s", path, error)
            return PeerReply.BUSY
        finally:
            channel.close()
