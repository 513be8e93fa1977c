"""Counters of rebalances by cause, and histograms of their phases."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from spark_groupsource.cli.exporter_metrics import Sample
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.monitor.offsets.cluster_reads import selected_groups
from spark_groupsource.monitor.rebalances.event_sources import group_events
from spark_groupsource.monitor.rebalances.group_history import GroupLog, GroupLogReader
from spark_groupsource.monitor.rebalances.rebalance import Rebalance
from spark_groupsource.monitor.rebalances.rebalance_sources import rebalances_of_group
from spark_groupsource.monitor.selection import NameSelection

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets, in seconds."""
# the times of the same rebalance differ by milliseconds between its record and its events
_SAME_MS = 1_000
# generation -> times; a group that was deleted and created again has the same generations at other times
_Completed = dict[int, list[int]]


class RebalanceTotals:
    """Rebalances of one group that have been counted.

    A rebalance is counted when it is seen the second time: events of the coordinator and the members, which are more
    exact than the group record, follow it.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._causes: Counter[str] = Counter()
        self._phases: dict[str, list[int]] = {}
        self._sums_ms: Counter[str] = Counter()
        self._pending: _Completed = {}
        self._counted: _Completed = {}

    @property
    def is_pending(self) -> bool:
        """True while a rebalance was seen once only."""
        return bool(self._pending)

    def update(self, rebalances: Iterable[Rebalance]) -> None:
        """Counts the rebalances that were in the previous call too; the argument is the whole history."""
        previous, self._pending = self._pending, {}
        for r in rebalances:
            if _is_known(r, self._counted):
                continue
            if _is_known(r, previous):
                self._count(r)
            else:
                self._pending.setdefault(r.generation, []).append(r.completed_ms)

    def _count(self, rebalance: Rebalance) -> None:
        self._counted.setdefault(rebalance.generation, []).append(rebalance.completed_ms)
        self._causes[rebalance.cause.value] += 1
        for name, duration_ms in rebalance.phases._asdict().items():
            if duration_ms is not None:
                phase = name.removesuffix("_ms")
                self._sums_ms[phase] += duration_ms
                counts = self._phases.setdefault(phase, [0] * (len(BUCKETS_S) + 1))
                counts[bisect_left(BUCKETS_S, duration_ms / 1e3)] += 1

    def samples(self) -> Iterator[Sample]:
        for cause, count in sorted(self._causes.items()):
            yield Sample("groupsource_rebalances_total", (self._group, cause), count)
        for phase, counts in sorted(self._phases.items()):
            name, labels, total = "groupsource_rebalance_phase_seconds", (self._group, phase), 0
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts):
                total += count
                yield Sample(name, labels, total, "_bucket", bound)
            yield Sample(name, labels, self._sums_ms[phase] / 1e3, "_sum")
            yield Sample(name, labels, total, "_count")


def _is_known(rebalance: Rebalance, known: _Completed) -> bool:
    return any(abs(rebalance.completed_ms - at_ms) <= _SAME_MS for at_ms in known.get(rebalance.generation, ()))


class RebalanceMetrics:
    """Rebalances of the selected groups; reads only what is new."""

    def __init__(self, cluster: ClusterClient, groups: NameSelection | None) -> None:
        self._cluster = cluster
        self._selection = groups
        self._totals: dict[str, RebalanceTotals] = {}
        self._readers: dict[str, GroupLogReader] = {}
        self._sizes: dict[str, int] = {}

    def samples(self) -> list[Sample]:
        """Reads the new rebalances. Raises: BrokerError, NetworkError."""
        groups = selected_groups(self._cluster, self._selection)
        for group in groups:
            if group not in self._readers:
                self._readers[group] = GroupLogReader(self._cluster, NameSelection((group,)))
            log = self._readers[group].read().get(group) or GroupLog()
            size = len(log.records) + len(log.epochs)
            totals = self._totals.setdefault(group, RebalanceTotals(group))
            if totals.is_pending or size != self._sizes.get(group):
                events = group_events(self._cluster, NameSelection((group,))).get(group, ())
                totals.update(rebalances_of_group(group, log, events))
                self._sizes[group] = size
        for group in self._totals.keys() - set(groups):
            del self._totals[group], self._readers[group], self._sizes[group]
        return [sample for group in groups for sample in self._totals[group].samples()]
