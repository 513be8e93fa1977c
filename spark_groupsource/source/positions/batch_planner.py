"""Plans the end offsets of micro-batches within the limits of the query."""

from __future__ import annotations

from dataclasses import dataclass

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.clock import Clock
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.positions.offset_lookup import Offsets
from spark_groupsource.source.positions.planning import Backlog, limit_bytes, limit_ends, should_plan_batch


@dataclass(frozen=True)
class Limits:
    """Limits of one micro-batch; None for no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_bytes: int | None = None


class BatchPlanner:
    """Plans the batches of one query."""

    def __init__(self, cluster: ClusterClient, options: SourceOptions, clock: Clock) -> None:
        self._cluster = cluster
        self._max_trigger_delay_ms = options.max_trigger_delay_ms
        self._clock = clock
        self._planned_ms: int | None = None
        self.is_available_now = False

    def plan(self, backlog: Backlog, limits: Limits) -> Offsets | None:
        """Returns the end offsets of the next batch; None if the backlog is empty or below minOffsetsPerTrigger.

        Raises: BrokerError, NetworkError, CorruptRecordError.
        """
        now_ms = self._clock.now_ms()
        should_plan = should_plan_batch(
            backlog,
            min_offsets=None if self.is_available_now else limits.min_offsets,
            waited_ms=None if self._planned_ms is None else now_ms - self._planned_ms,
            max_trigger_delay_ms=self._max_trigger_delay_ms,
        )
        if not should_plan:
            return None
        ends = self._limited(backlog, limits)
        self._planned_ms = self._clock.now_ms()
        return ends

    def _limited(self, backlog: Backlog, limits: Limits) -> Offsets:
        ends = limit_ends(backlog, limits.max_offsets)
        if limits.max_bytes is None:
            return ends
        # it loads the fetcher, which the reader process needs for maxBytesPerTrigger alone
        from spark_groupsource.source.positions.record_sizes import estimate_sizes, extend_estimates

        allowed = Backlog(backlog.begins, ends)
        sizes = estimate_sizes(self._cluster, {p: begin for p, begin in allowed.begins.items() if allowed.size(p)})
        planned = limit_bytes(allowed, sizes, limits.max_bytes)
        extended = extend_estimates(self._cluster, sizes, planned)
        if extended == sizes:
            return planned
        return limit_bytes(Backlog(backlog.begins, planned), extended, limits.max_bytes)
