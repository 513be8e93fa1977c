"""Cached end offsets; detection of truncated logs and deleted partitions."""

from __future__ import annotations

import logging
from typing import Iterable, Mapping, NamedTuple

from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import BrokerError
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.source.positions.data_loss import DataLossPolicy
from spark_groupsource.source.positions.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.positions.position_epochs import PositionEpochs

_log = logging.getLogger(__name__)

RECHECK_MS = 1_000
"""Interval of the metadata requests for partitions that did not exist: they may have been created since."""
# after the first response without anything to read
_FIRST_PAUSE_MS = 5


class ReadableOffsets(NamedTuple):
    """`ends`: the offset each partition may be read to. `truncated`: new positions where a log ends before them."""

    ends: Offsets
    truncated: Offsets


class LogEndOffsets:
    """End offsets of one query's partitions.

    After a response with something to read, the next call queries the brokers at once. An idle query calls about 90
    times a second: it waits between two requests, twice as long after each response without anything to read, up to
    `refresh_ms`. Offsets that leave something to read are used again within `refresh_ms`.
    """

    def __init__(
        self,
        lookup: OffsetLookup,
        epochs: PositionEpochs,
        data_loss: DataLossPolicy,
        clock: Clock,
        *,
        read_committed: bool,
        refresh_ms: int,
        retries: int,
        retry_interval_ms: int,
    ) -> None:
        self._lookup = lookup
        self._epochs = epochs
        self._data_loss = data_loss
        self._clock = clock
        self._read_committed = read_committed
        self._refresh_ms = refresh_ms
        self._retries = retries
        self._retry_interval_ms = retry_interval_ms
        self._cached: Offsets = {}
        self._fetched_ms: int | None = None
        self._pause_ms = 0
        # partition -> whether its deletion was reported
        self._deleted: dict[TopicPartition, bool] = {}
        self._rechecked_ms = 0
        self._available_now_ends: Offsets | None = None

    @property
    def cached(self) -> Mapping[TopicPartition, int]:
        """End offsets of the last query; empty before the first."""
        return self._cached

    def expire(self) -> None:
        """The next call queries the brokers."""
        self._fetched_ms = None

    def reset(self) -> None:
        """Expires the cache and removes the deleted partitions from it, because the assignment has changed."""
        self.expire()
        self._deleted = {}

    @property
    def deleted(self) -> frozenset[TopicPartition]:
        """Partitions that did not exist when they were last looked up."""
        return frozenset(self._deleted)

    def add_deleted(self, partitions: Iterable[TopicPartition], *, is_reported: bool) -> None:
        """Stops querying partitions that do not exist; their end is the offset they were read to.

        Args:
            is_reported: False if `readable` has to report them to the data loss policy.
        """
        self._deleted = {**dict.fromkeys(partitions, is_reported), **self._deleted}
        self._rechecked_ms = self._clock.now_ms()

    def recheck_deleted(self) -> None:
        """Queries partitions again that exist again; requests metadata once per `RECHECK_MS`."""
        if not self._deleted or self._clock.now_ms() < self._rechecked_ms + RECHECK_MS:
            return
        missing = set(self._lookup.missing(self._deleted))
        self._rechecked_ms = self._clock.now_ms()
        found = [p for p in self._deleted if p not in missing]
        if found:
            names = bounded_names(sorted(found))
            _log.info("[partition=%s] Reading partitions that exist again: %d.", names, len(found))
            self._deleted = {p: is_reported for p, is_reported in self._deleted.items() if p in missing}
            self.expire()

    def readable(
        self, begins: Offsets, topic_ids: Mapping[str, str], *, is_available_now: bool
    ) -> ReadableOffsets | None:
        """Returns the offset each partition may be read to; with availableNow at most the end at the query's start.

        Args:
            topic_ids: ids of the topics that `begins` refer to.

        Returns: None if a log ends before its begin because its topic is another one now, which the cached metadata
            show.
        Raises: DataLossError (failOnDataLoss) when a log ends before its begin or a partition was deleted. BrokerError,
            NetworkError.
        """
        is_cached = self._is_cached(begins)
        ends = self._cached if is_cached else self._fetch(begins)
        shorter = self._shorter(begins, ends)
        if shorter and self._is_other_topic({p.topic for p in shorter}, topic_ids):
            self.expire()
            return None
        truncated = self._truncated(begins, ends, shorter)
        if not is_cached:
            truncated = {**truncated, **self._diverged(begins, ends)}
        if not is_available_now:
            return ReadableOffsets(ends, truncated)
        if self._available_now_ends is None:
            self._available_now_ends = {**self._lookup.latest(self._lookup.partitions()), **ends}
        # a partition added later is left to the next run
        bounds = self._available_now_ends
        limited = {p: min(end, bounds.get(p, truncated.get(p, begins[p]))) for p, end in ends.items()}
        return ReadableOffsets(limited, truncated)

    def _is_other_topic(self, topics: set[str], topic_ids: Mapping[str, str]) -> bool:
        """Returns whether one of the topics was deleted, or created again; ListOffsets names topics without ids."""
        found = self._lookup.topic_ids(topics, refresh=True)
        return any(found.get(topic) != topic_ids.get(topic) for topic in topics)

    def _truncated(self, begins: Offsets, ends: Offsets, shorter: list[TopicPartition]) -> Offsets:
        if shorter:
            self._data_loss.truncated({p: begins[p] for p in shorter}, ends)
        # as in Spark's Kafka source, what follows the present end is new
        return {p: ends[p] for p in shorter}

    def _shorter(self, begins: Offsets, ends: Offsets) -> list[TopicPartition]:
        shorter = [p for p in begins if ends[p] < begins[p]]
        if shorter and self._read_committed:
            # an open transaction may keep the last stable offset below a position that another reader has reached
            log_ends = self._lookup.log_end_offsets(shorter)
            shorter = [p for p in shorter if log_ends[p] < begins[p]]
        return shorter

    def _confirmed(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Looks up again the ends of logs that end before the offsets read, as Spark's Kafka source does.

        A new leader may not know the high watermark yet; brokers before Kafka 2.2 do not report this (KIP-207).
        A broker that is cut off from its controller does not know that it no longer leads.
        """
        for attempt in range(max(self._retries, 1)):
            shorter = self._shorter(begins, ends)
            if not shorter:
                break
            if not attempt:
                listed = bounded_names(f"{p} ({ends[p]} < {begins[p]})" for p in shorter)
                names = bounded_names(shorter)
                _log.warning("[partition=%s] End offsets are before the offsets read, retrying: %s.", names, listed)
                self._lookup.confirm_leaders({p.topic for p in shorter})
            self._clock.sleep_ms(self._retry_interval_ms)
            ends = {**ends, **self._fetch_existing({p: begins[p] for p in shorter})}
        return ends

    def _diverged(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Returns the positions in logs that a new leader has truncated and appended to since."""
        diverged = self._epochs.diverged(begins, ends)
        # the others were reported as truncated
        self._data_loss.replaced({p: begins[p] for p in diverged if ends[p] >= begins[p]}, diverged)
        return {p: at for p, at in diverged.items() if at >= 0}

    def _is_cached(self, begins: Offsets) -> bool:
        is_recent = self._fetched_ms is not None and self._fetched_ms + self._refresh_ms > self._clock.now_ms()
        return is_recent and _has_records(begins, self._cached)

    def _fetch(self, begins: Offsets) -> Offsets:
        if self._fetched_ms is not None:
            self._clock.sleep_ms(self._fetched_ms + self._pause_ms - self._clock.now_ms())
        started_ms = self._clock.now_ms()
        self._cached = self._confirmed(begins, self._fetch_existing(begins))
        self._fetched_ms = self._clock.now_ms()
        if _has_records(begins, self._cached):
            self._pause_ms = 0
        else:
            # the request for many partitions takes long: half of the time is left to the brokers
            shortest_ms = max(_FIRST_PAUSE_MS, self._fetched_ms - started_ms)
            self._pause_ms = min(max(2 * self._pause_ms, shortest_ms), self._refresh_ms)
        return self._cached

    def _fetch_existing(self, begins: Offsets) -> Offsets:
        """Queries end offsets; a deleted partition ends at its begin if failOnDataLoss is false."""
        unreported = [p for p in begins if not self._deleted.get(p, True)]
        self._data_loss.deleted({p: begins[p] for p in unreported})
        self._deleted.update(dict.fromkeys(unreported, True))
        existing = [p for p in begins if p not in self._deleted]
        try:
            return {**begins, **self._lookup.latest(existing)}
        except BrokerError as error:
            deleted = self._lookup.missing_after(error, existing)
        self.add_deleted(deleted, is_reported=False)
        return self._fetch_existing(begins)


def _has_records(begins: Offsets, ends: Offsets) -> bool:
    return any(ends.get(p, begin) > begin for p, begin in begins.items())
