"""Metrics of group members, with the names of Kafka's consumer-coordinator-metrics.

Pure: time is an argument. Source: AbstractCoordinator.GroupCoordinatorMetrics, ConsumerCoordinatorMetrics, SampledStat
and Rate, with the defaults of metrics.sample.window.ms (30 s) and metrics.num.samples (2).
"""

from __future__ import annotations

from collections import deque
from typing import Iterator, Mapping

_WINDOW_MS = 30_000
_SAMPLES = 2
_EXPIRES_MS = _SAMPLES * _WINDOW_MS
_HOUR_S = 3_600

COORDINATOR_METRICS: Mapping[str, str] = {
    "assigned-partitions": "Number of partitions that the members own.",
    "commit-rate": "OffsetCommit responses per second.",
    "commit-total": "Number of OffsetCommit responses.",
    "commit-latency-avg": "Mean time until the response to an OffsetCommit, in ms.",
    "commit-latency-max": "Longest time until the response to an OffsetCommit, in ms.",
    "join-rate": "Completed JoinGroup requests per second.",
    "join-total": "Number of completed JoinGroup requests.",
    "join-time-avg": "Mean time until the response to a JoinGroup, in ms.",
    "join-time-max": "Longest time until the response to a JoinGroup, in ms.",
    "sync-rate": "Completed SyncGroup requests per second.",
    "sync-total": "Number of completed SyncGroup requests.",
    "sync-time-avg": "Mean time until the response to a SyncGroup, in ms.",
    "sync-time-max": "Longest time until the response to a SyncGroup, in ms.",
    "heartbeat-rate": "Heartbeat responses per second, without those of read tasks.",
    "heartbeat-total": "Number of Heartbeat responses, without those of read tasks.",
    "heartbeat-response-time-max": "Longest time until the response to a Heartbeat, in ms.",
    "last-heartbeat-seconds-ago": "Seconds since the last Heartbeat of the member that waits longest; -1 for none.",
    "rebalance-rate-per-hour": "Completed rebalances per hour.",
    "rebalance-total": "Number of completed rebalances.",
    "rebalance-latency-avg": "Mean time from the first JoinGroup to the assignment, in ms.",
    "rebalance-latency-max": "Longest time from the first JoinGroup to the assignment, in ms.",
    "rebalance-latency-total": "Sum of the times from the first JoinGroup to the assignment, in ms.",
    "last-rebalance-seconds-ago": "Seconds since the last completed rebalance; -1 for none.",
    "failed-rebalance-rate-per-hour": "Failed attempts of a member to rejoin, per hour.",
    "failed-rebalance-total": "Number of failed attempts of a member to rejoin.",
}
"""Kafka's name -> meaning."""


class _Sample:
    """Events of one window."""

    __slots__ = ("started_ms", "last_ms", "count", "sum", "largest")

    def __init__(self, now_ms: int) -> None:
        self.started_ms = now_ms
        self.last_ms = now_ms
        self.count = 0
        self.sum = 0
        self.largest = 0


class _Sensor:
    """Duration of events: rate, mean and maximum of the last minute, and totals since the start."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0
        # one more than is measured: the oldest may overlap the begin of the measured time
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES + 1)

    def record(self, duration_ms: int, now_ms: int) -> None:
        self.count += 1
        self.sum_ms += duration_ms
        if not self._samples or now_ms - self._samples[-1].started_ms >= _WINDOW_MS:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[-1]
        sample.last_ms = now_ms
        sample.count += 1
        sample.sum += duration_ms
        sample.largest = max(sample.largest, duration_ms)

    def rate(self, now_ms: int) -> float:
        """Events per second; the measured time is at least one window, so that a first event is no high rate."""
        live = self._live(now_ms)
        if not live:
            return 0.0
        elapsed_ms = now_ms - min(sample.started_ms for sample in live)
        missing = max(_SAMPLES - 1 - elapsed_ms // _WINDOW_MS, 0)
        return sum(sample.count for sample in live) / ((elapsed_ms + missing * _WINDOW_MS) / 1000)

    def mean(self, now_ms: int) -> float | None:
        live = self._live(now_ms)
        return sum(sample.sum for sample in live) / sum(sample.count for sample in live) if live else None

    def largest(self, now_ms: int) -> float | None:
        return max((float(sample.largest) for sample in self._live(now_ms)), default=None)

    def _live(self, now_ms: int) -> list[_Sample]:
        return [sample for sample in self._samples if now_ms - sample.last_ms < _EXPIRES_MS]


class CoordinatorMetrics:
    """Counts the requests and rebalances of the members of one process. Not thread-safe.

    Requests and durations are those of all members. A rebalance counts once for all members of the generation. A failed
    one counts for each attempt of each member, without the JoinGroup that is rejected with a member id (KIP-394).
    """

    def __init__(self) -> None:
        self._joins, self._syncs, self._heartbeats, self._commits = _Sensor(), _Sensor(), _Sensor(), _Sensor()
        self._rebalances, self._failures = _Sensor(), _Sensor()
        # client id -> time of its last heartbeat, and of the first JoinGroup of the rebalance it is in
        self._heartbeat_ms: dict[str, int] = {}
        self._started_ms: dict[str, int] = {}
        self._generation_id = -1
        self._rebalanced_ms: int | None = None

    def rebalance_started(self, client_id: str, now_ms: int) -> None:
        """A member sends JoinGroup; after a failure, the rebalance goes on."""
        self._started_ms.setdefault(client_id, now_ms)

    def joined(self, latency_ms: int, now_ms: int) -> None:
        self._joins.record(latency_ms, now_ms)

    def synced(self, client_id: str, generation_id: int, latency_ms: int, now_ms: int) -> None:
        """A member has received its assignment, which ends its rebalance."""
        self._syncs.record(latency_ms, now_ms)
        duration_ms = now_ms - self._started_ms.pop(client_id, now_ms)
        if generation_id != self._generation_id:
            self._generation_id = generation_id
            self._rebalances.record(duration_ms, now_ms)
        self._rebalanced_ms = now_ms

    def rebalance_failed(self, now_ms: int) -> None:
        self._failures.record(0, now_ms)

    def heartbeat_sent(self, client_id: str, now_ms: int) -> None:
        self._heartbeat_ms[client_id] = now_ms

    def heartbeat_received(self, latency_ms: int, now_ms: int) -> None:
        self._heartbeats.record(latency_ms, now_ms)

    def committed(self, latency_ms: int, now_ms: int) -> None:
        """A coordinator has responded to one OffsetCommit, also with an error."""
        self._commits.record(latency_ms, now_ms)

    def values(self, now_ms: int, assigned_partitions: int) -> dict[str, float]:
        """Returns Kafka's name -> value; means and maxima without an event in the last minute are absent.

        Units are Kafka's: milliseconds, events per second, seconds ago (-1 for never, the longest of the members).
        """
        return {name: value for name, value in self._measure(now_ms, assigned_partitions) if value is not None}

    def _measure(self, now_ms: int, assigned_partitions: int) -> Iterator[tuple[str, float | None]]:
        yield "assigned-partitions", assigned_partitions
        for name, label, sensor in (
            ("commit", "commit-latency", self._commits),
            ("join", "join-time", self._joins),
            ("sync", "sync-time", self._syncs),
        ):
            yield f"{name}-rate", sensor.rate(now_ms)
            yield f"{name}-total", sensor.count
            yield f"{label}-avg", sensor.mean(now_ms)
            yield f"{label}-max", sensor.largest(now_ms)
        yield "heartbeat-rate", self._heartbeats.rate(now_ms)
        yield "heartbeat-total", self._heartbeats.count
        yield "heartbeat-response-time-max", self._heartbeats.largest(now_ms)
        yield "last-heartbeat-seconds-ago", _seconds_ago(min(self._heartbeat_ms.values(), default=None), now_ms)
        yield "rebalance-rate-per-hour", self._rebalances.rate(now_ms) * _HOUR_S
        yield "rebalance-total", self._rebalances.count
        yield "rebalance-latency-avg", self._rebalances.mean(now_ms)
        yield "rebalance-latency-max", self._rebalances.largest(now_ms)
        yield "rebalance-latency-total", self._rebalances.sum_ms
        yield "last-rebalance-seconds-ago", _seconds_ago(self._rebalanced_ms, now_ms)
        yield "failed-rebalance-rate-per-hour", self._failures.rate(now_ms) * _HOUR_S
        yield "failed-rebalance-total", self._failures.count


def _seconds_ago(at_ms: int | None, now_ms: int) -> int:
    return -1 if at_ms is None else (now_ms - at_ms) // 1000
