"""Streaming query listener that reports lag and rebalances: `LagListener`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Sequence

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_groupsource.common.arguments import shown
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.log_text import log_line
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.rebalance import Rebalance
from spark_groupsource.source.positions.offset_json import GROUP_KEY, SourceOffset, decode_offset, parse_progress_offset
from spark_groupsource.source.process.drain import driver_jvm_pid
from spark_groupsource.source.process.queries import query_statuses
from spark_groupsource.wire.group_events import GroupEvent

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LagReport:
    """Lag and rebalances of one source of a query after one micro-batch.

    Attributes:
        query: name of the query, its id if it has no name.
        source: position among the sources of the query.
        group: id of the group, None if it is unknown.
        generation: generation of the group when the batch was planned.
        lags: owned partition -> offsets between the end of the batch and the log end offset when it was planned.
        rebalances: rebalances of the members of this query that have completed since the previous report.
        consumer_metrics: metrics of these members with Kafka's names (``join-rate``), see `CoordinatorMetrics.values`;
            empty under Spark Connect, and if no task runs on the driver's machine.
    """

    query: str
    query_id: str
    batch: int
    source: int
    group: str | None
    generation: int
    lags: Mapping[TopicPartition, int]
    rebalances: tuple[Rebalance, ...]
    consumer_metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Sum of `lags`."""
        return sum(self.lags.values())

    @property
    def metrics(self) -> dict[str, Any]:
        """Values in the form of Spark's `observedMetrics`: one flat object, which is JSON."""
        return {
            "group": self.group,
            "generation": self.generation,
            "partitions": len(self.lags),
            "lag": self.lag,
            "max_lag": max(self.lags.values(), default=0),
            "rebalances": len(self.rebalances),
            "rebalance_causes": [rebalance.cause.value for rebalance in self.rebalances],
            **self.consumer_metrics,
        }


class LagListener(StreamingQueryListener):
    """Adds lag and rebalances to the progress events of queries with a groupsource source.

    Spark's listeners cannot change an event, so each event gives a `LagReport`: a log line of level INFO, a call of
    `callback`, and an entry of `last`. Nothing is requested from Kafka: the offsets are those of the event, and the
    reader process reports the metrics.

        spark.streams.addListener(gs.LagListener(lambda report: print(report.metrics)))

    Args:
        callback: is called in Spark's listener thread; its errors are logged.

    Attributes:
        last: id of each running query -> its last reports, one for each groupsource source.
    """

    def __init__(self, callback: Callable[[LagReport], object] | None = None) -> None:
        if callback is not None and not callable(callback):
            raise ConfigurationError(f"Argument callback must be a function, got {shown(callback)}.")
        self.last: dict[str, list[LagReport]] = {}
        self._callback = callback
        # query id -> index of the source -> generation of the last reported rebalance
        self._reported: dict[str, dict[int, int]] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to report."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to report: the event has no offsets."""

    def onQueryProgress(self, event: Any) -> None:
        """Reports each groupsource source of the query."""
        try:
            reports = list(self._reports(event.progress))
            if reports:
                self.last[str(event.progress.id)] = reports
            for report in reports:
                _log.info("%s", log_line(_text(report)))
                if self._callback is not None:
                    self._callback(report)
        except Exception:
            # an error would end the reports of all queries
            _log.exception("[query=%s] Reporting the lag failed.", event.progress.name or event.progress.id)

    def onQueryTerminated(self, event: Any) -> None:
        """Removes the query."""
        self.last.pop(str(event.id), None)
        self._reported.pop(str(event.id), None)

    def _reports(self, progress: Any) -> Iterator[LagReport]:
        query_id = str(progress.id)
        # without those of other sources
        ends = {
            index: _offset(source.endOffset) or SourceOffset()
            for index, source in enumerate(progress.sources)
            if GROUP_KEY in (source.endOffset or "")
        }
        reported = self._reported.setdefault(query_id, {})
        has_new = any(end.generation_id > reported.get(index, -1) for index, end in ends.items())
        readers = _readers(query_id, has_new) if ends else []
        for index, end in ends.items():
            latest = _offset(progress.sources[index].latestOffset) or SourceOffset()
            group = end.group_id or None
            ours = [reader for reader in readers if reader["group"] == group]
            yield LagReport(
                progress.name or query_id,
                query_id,
                int(progress.batchId),
                index,
                group,
                end.generation_id,
                {tp: max(latest.positions[tp] - at, 0) for tp, at in end.positions.items() if tp in latest.positions},
                self._new_rebalances(query_id, index, [event for reader in ours for event in reader.get("events", ())]),
                next((dict(reader.get("metrics", {})) for reader in ours), {}),
            )

    def _new_rebalances(self, query_id: str, index: int, events: Sequence[GroupEvent]) -> tuple[Rebalance, ...]:
        generations = self._reported[query_id]
        reported = generations.get(index, -1)
        found = tuple(r for r in rebalances_from_events(events) if r.generation > reported)
        if found:
            generations[index] = max(r.generation for r in found)
        return found


def _readers(query_id: str, with_events: bool) -> list[dict[str, Any]]:
    """Returns the states of the readers of a query; none under Spark Connect, whose readers are on another machine."""
    try:
        return query_statuses(driver_jvm_pid(), query_id, with_events)
    except GroupSourceError:
        return []


def _offset(text: str | None) -> SourceOffset | None:
    """Returns an offset of a progress event; None before the first batch. The latest offset has positions only."""
    found = parse_progress_offset(text or "null")
    return decode_offset(found) if found else None


def _text(report: LagReport) -> str:
    largest = max(report.lags.items(), key=lambda item: item[1], default=None)
    shown = "" if largest is None else f", largest {largest[0]}: {largest[1]:,}"
    causes = ", ".join(f"{r.cause.value} (generation {r.generation})" for r in report.rebalances)
    return (
        f"[query={report.query} batch={report.batch} group={report.group} generation={report.generation}] "
        f"Lag {report.lag:,} offsets in {len(report.lags):,} partitions{shown}"
        + (f"; rebalances: {causes}." if causes else ".")
    )
