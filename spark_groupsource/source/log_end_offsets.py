"""How far the partitions of a query may be read: their log ends as last heard, and what is lost on the way there."""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple

from spark_groupsource.clock import Clock
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.data_loss import DataLossPolicy
from spark_groupsource.source.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.planning import Backlog


class Readable(NamedTuple):
    """Where each partition may be read to; `cut` holds those that were read beyond their log's end, which is there."""

    ends: Offsets
    cut: Offsets


class LogEnds:
    """Log ends of one query. The brokers are asked at most once in `refresh_ms`, unless there is nothing to read."""

    def __init__(
        self, lookup: OffsetLookup, losses: DataLossPolicy, clock: Clock, *, read_committed: bool, refresh_ms: int
    ) -> None:
        self._lookup = lookup
        self._losses = losses
        self._clock = clock
        self._read_committed = read_committed
        self._refresh_ms = refresh_ms
        self._heard: Offsets = {}
        self._heard_ms: int | None = None
        self._gone: set[TopicPartition] = set()
        self._target: Offsets | None = None

    @property
    def heard(self) -> Mapping[TopicPartition, int]:
        """The log ends as last heard; empty before the first."""
        return self._heard

    def forget(self) -> None:
        """The next look asks the brokers, however soon it comes."""
        self._heard_ms = None

    def restart(self) -> None:
        """Forgets which partitions are gone too: what is owned has changed."""
        self.forget()
        self._gone = set()

    def leave_out(self, gone: Iterable[TopicPartition]) -> None:
        """Asks no more about partitions that do not exist: they end where they were read to."""
        self._gone.update(gone)

    def readable(self, begins: Offsets, *, is_available_now: bool) -> Readable:
        """How far each partition may be read: its log end, or the end that availableNow has found at its start.

        Raises: DataLossError, where failOnDataLoss does not let it go on: a log ends before its begin, a partition is
            gone. BrokerError, NetworkError.
        """
        ends = self._log_ends(begins)
        cut = self._cut(begins, ends)
        if not is_available_now:
            return Readable(ends, cut)
        if self._target is None:
            self._target = {**self._lookup.latest(self._lookup.partitions()), **ends}
        # a partition that came later has no end here: it is left to the next run
        target = self._target
        return Readable({p: min(end, target.get(p, cut.get(p, begins[p]))) for p, end in ends.items()}, cut)

    def _cut(self, begins: Offsets, ends: Offsets) -> Offsets:
        shrunk = [p for p in begins if ends[p] < begins[p]]
        if shrunk and self._read_committed:
            # an open transaction may hold the stable end before a position another reader has reached
            tops = self._lookup.tops(shrunk)
            shrunk = [p for p in shrunk if tops[p] < begins[p]]
        if shrunk:
            self._losses.cut({p: begins[p] for p in shrunk}, ends)
        # as Spark's own source: what comes after the end that is there now is new
        return {p: ends[p] for p in shrunk}

    def _log_ends(self, begins: Offsets) -> Offsets:
        if self._heard_ms is not None:
            left_ms = self._heard_ms + self._refresh_ms - self._clock.now_ms()
            if left_ms > 0 and Backlog(begins, self._heard).total:
                return self._heard
            self._clock.sleep_ms(left_ms)
        self._heard = self._existing_ends(begins)
        self._heard_ms = self._clock.now_ms()
        return self._heard

    def _existing_ends(self, begins: Offsets) -> Offsets:
        """Log ends; a partition that was deleted ends where it was read to, if failOnDataLoss lets it."""
        asked = [p for p in begins if p not in self._gone]
        try:
            return {**begins, **self._lookup.latest(asked)}
        except BrokerError as error:
            gone = self._lookup.missing(asked) if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else []
            if not gone:
                raise
        self._losses.deleted({p: begins[p] for p in gone})
        self.leave_out(gone)
        return self._existing_ends(begins)
