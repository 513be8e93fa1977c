"""Lag of a group in the past, inferred from its commits.

The committed offsets at a time are in `__consumer_offsets`, except those that compaction has removed. The log end
offset at a time is the offset of the first record with a later timestamp (ListOffsets), so the lag is exact if records
have the time of their append.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Iterator, Mapping

from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_events import EventKind, GroupEvent

_SAMPLES = 60
_MAX_LOOKUPS = 30_000
_MAX_COMMITS = 100_000
_MIN_INTERVAL_MS = 100


class CommitHistory:
    """Committed offsets of one group over time, at most `_MAX_COMMITS`.

    Of commits of a partition within `_MIN_INTERVAL_MS` the last one is kept. Above the limit, the oldest half of the
    commits of each partition is thinned out to every other one.
    """

    def __init__(self) -> None:
        self._times: dict[TopicPartition, list[int]] = {}
        self._offsets: dict[TopicPartition, list[int]] = {}
        self._count = 0

    def add(self, partition: TopicPartition, timestamp_ms: int, offset: int) -> None:
        times, offsets = self._times.setdefault(partition, []), self._offsets.setdefault(partition, [])
        if times and timestamp_ms - times[-1] < _MIN_INTERVAL_MS:
            offsets[-1] = offset
            return
        times.append(timestamp_ms)
        offsets.append(offset)
        self._count += 1
        if self._count > _MAX_COMMITS:
            self._thin_out()

    def _thin_out(self) -> None:
        for values in (*self._times.values(), *self._offsets.values()):
            half = len(values) // 2
            del values[1:half:2]
        self._count = sum(map(len, self._times.values()))

    def at(self, timestamp_ms: int) -> dict[TopicPartition, int]:
        """Returns the committed offset of each partition at a time (epoch ms), without those that have none yet."""
        found = {}
        for partition, times in self._times.items():
            number = bisect_right(times, timestamp_ms)
            if number:
                found[partition] = self._offsets[partition][number - 1]
        return found

    @property
    def last_ms(self) -> int | None:
        """The time of the last commit, None without one."""
        return max((times[-1] for times in self._times.values() if times), default=None)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._times)


def lag_events(
    cluster: ClusterClient, group: str, commits: CommitHistory, start_ms: int, end_ms: int
) -> Iterator[GroupEvent]:
    """Yields a sample of the lag for each of `_SAMPLES` times from `start_ms` to `end_ms`, fewer for many partitions.

    Partitions that do not exist any more are left out.

    Raises: BrokerError, NetworkError.
    """
    existing = _existing(cluster, commits.partitions)
    if not existing or end_ms <= start_ms:
        return
    latest = _offsets(cluster, dict.fromkeys(existing, LATEST))
    count = max(2, min(_SAMPLES, _MAX_LOOKUPS // len(existing)))
    for number in range(count):
        at_ms = start_ms + (end_ms - start_ms) * number // (count - 1)
        committed = {each: offset for each, offset in commits.at(at_ms).items() if each in existing}
        if committed:
            lag = _lag(committed, _offsets(cluster, dict.fromkeys(committed, at_ms + 1)), latest)
            yield GroupEvent(at_ms, group, EventKind.LAG_SAMPLED, detail={"lag": lag})


def _offsets(cluster: ClusterClient, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {partition: found.offset for partition, found in cluster.list_offsets(times).items()}


def _existing(cluster: ClusterClient, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
    topics = {each.topic for each in partitions}
    view = cluster.metadata(topics, refresh=True)
    return partitions.intersection(each for topic in topics for each in view.partitions_of(topic))


def _lag(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> int:
    """Returns the sum over the partitions; an end of -1 is that of no later record: the log end offset."""
    total = 0
    for partition, offset in committed.items():
        end = ends.get(partition, -1)
        total += max((latest.get(partition, offset) if end < 0 else end) - offset, 0)
    return total
