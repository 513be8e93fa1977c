"""Reports of a query's rebalances: in commits, in a file, on request."""

from __future__ import annotations

import json
import os
from itertools import takewhile
from typing import Any, Callable, Mapping, Sequence

from spark_groupsource.client.membership.group_client import GroupClient, RebalanceEvent
from spark_groupsource.client.membership.rebalance_log import describe_rebalance
from spark_groupsource.common.clock import Clock, format_timestamp_ms
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.group.lag_samples import LagSamples
from spark_groupsource.wire.commit_reports import encode_report
from spark_groupsource.wire.group_events import GroupEvent, event_form

Lags = Mapping[TopicPartition, int]


class Reports:
    """What the session reports of its batches; these methods are of a query without a group, which reports nothing."""

    def lag_before(self, lags: Lags) -> None:
        """Is called before each poll that may revoke partitions; the first call of a rebalance counts."""

    def assigned(self, lags: Lags) -> None:
        """Is called when the first batch of an assignment is planned."""

    def lag_sampled(self, lags: Lags) -> None:
        """Is called when the end offsets of a batch were looked up."""

    def batch_started(self) -> None:
        """Is called when a batch with records starts."""

    def batch_ended(self) -> None:
        """Is called when Spark has checkpointed the last batch."""

    def commit_rejected(self, records: int) -> None:
        """Is called when delivered records cannot be committed, so the next owner reads them again."""

    def pending(self) -> str:
        """Returns the report that the next commit carries, "" without one."""
        return ""

    def committed(self) -> None:
        """Is called when a commit with the pending report has succeeded."""


class RebalanceReports(Reports):
    """Reports of one query.

    Args:
        path: file of option rebalanceLog.
        recorded_query: returns what the read tasks recorded: ``name`` of the query, and ``first_record``, a generation
            and epoch milliseconds.
    """

    def __init__(
        self,
        group: GroupClient,
        group_id: str,
        clock: Clock,
        path: str | None = None,
        application: str = "",
        recorded_query: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._group = group
        self._group_id = group_id
        self._clock = clock
        self._path = path
        self._application = application
        self._recorded_query = recorded_query
        self._last_event: RebalanceEvent | None = None
        self._written_count = self._committed_count = self._pending_count = 0
        self._lags: tuple[int, Lags] | None = None
        self._samples = LagSamples(group_id)
        self._batch_generation = self._read_generation = -1

    # -- calls of the session ----------------------------------------------------------------------------------------

    def lag_before(self, lags: Lags) -> None:
        if self._lags is None:
            self._lags = self._clock.timestamp_ms(), lags

    def assigned(self, lags: Lags) -> None:
        before, self._lags = self._lags, None
        if before is None:
            return
        at_ms, old = before
        retained = old.keys() & lags.keys()
        with self._group.shared.changed:
            events = self._group.shared.events
            events.lag(events.generation, sum(old[p] for p in retained), at_ms)
            events.lag(events.generation, sum(lags[p] for p in retained), self._clock.timestamp_ms())

    def lag_sampled(self, lags: Lags) -> None:
        # without an end offset the lag is unknown
        if lags:
            generation = self._group.shared.events.generation
            self._samples.add(sum(lags.values()), generation, self._clock.timestamp_ms())

    def batch_started(self) -> None:
        self._batch_generation = self._group.shared.events.generation

    def batch_ended(self) -> None:
        generation, self._batch_generation = self._batch_generation, -1
        if generation <= self._read_generation:
            return
        self._read_generation = generation
        recorded, at_ms = self._recorded_query().get("first_record"), self._clock.timestamp_ms()
        if recorded and recorded[0] == generation:
            at_ms = int(recorded[1])
        with self._group.shared.changed:
            self._group.shared.events.first_record(generation, at_ms)

    def commit_rejected(self, records: int) -> None:
        with self._group.shared.changed:
            events = self._group.shared.events
            events.repeated(events.generation, records, self._clock.timestamp_ms())

    def pending(self) -> str:
        count = self._group.shared.events.recorded_count
        if count == self._committed_count:
            return ""
        events, self._pending_count = self._events_since(self._committed_count)
        return encode_report(events, self._application, self._query())

    def committed(self) -> None:
        self._committed_count = max(self._committed_count, self._pending_count)

    # -- other readers -----------------------------------------------------------------------------------------------

    def events(self) -> list[GroupEvent]:
        """Returns the events of this query that are kept, oldest first."""
        return self._named(_ordered(self._events_since(0)[0], self._samples.events))

    def append_to_file(self) -> None:
        """Appends the rebalances since the last call to the file of option rebalanceLog."""
        if not self._path:
            return
        events = self._group.events
        new = list(takewhile(lambda event: event is not self._last_event, reversed(events)))
        if not new:
            return
        written, self._written_count = self._events_since(self._written_count)
        named = self._named(_ordered(written, self._samples.take()))
        for event in reversed(new):
            append_event(self._path, self._group_id, event, named)
            named = []
        self._last_event = events[-1]

    def close(self) -> None:
        """Appends the events since the last rebalance, that the members have left among them, as a last line."""
        if self._path:
            self.append_to_file()
            written, self._written_count = self._events_since(self._written_count)
            written = _ordered(written, self._samples.take())
            if written:
                text = f"[group={self._group_id}] Left the group."
                fields = {"group": self._group_id, "timestamp": format_timestamp_ms(written[-1].at_ms), "text": text}
                _append_line(self._path, fields, self._named(written))

    def _events_since(self, known_count: int) -> tuple[list[GroupEvent], int]:
        with self._group.shared.changed:
            return self._group.shared.events.since(known_count)

    def _query(self) -> str | None:
        return self._recorded_query().get("name") or None

    def _named(self, events: list[GroupEvent]) -> list[GroupEvent]:
        query = self._query() if events else None
        return [event._replace(application=self._application, query=query) for event in events]


def _ordered(events: Sequence[GroupEvent], samples: Sequence[GroupEvent]) -> list[GroupEvent]:
    return sorted([*events, *samples], key=lambda event: event.at_ms)


def append_event(path: str, group_id: str, event: RebalanceEvent, events: list[GroupEvent] | None = None) -> None:
    """Appends one line of JSON to a file by a single write, so lines of several queries do not mix."""
    fields: dict[str, Any] = {
        "group": group_id,
        "timestamp": format_timestamp_ms(event.started_ms),
        "cause": event.cause,
        "duration_ms": event.ended_ms - event.started_ms,
        "join_ms": event.join_ms,
        "sync_ms": event.sync_ms,
        "generation": event.generation_id,
        "gained": [str(p) for p in event.gained],
        "lost": [str(p) for p in event.lost],
        "members": event.members,
        "text": describe_rebalance(group_id, event),
    }
    _append_line(path, fields, events or [])


def _append_line(path: str, fields: dict[str, Any], events: list[GroupEvent]) -> None:
    if events:
        fields["events"] = [event_form(event) for event in events]
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(fields) + "\n").encode())
    finally:
        os.close(handle)
