"""Builds the timeline of a group from its events."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Iterable, Mapping, Sequence

from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.rebalance import Cause, Rebalance, member_name
from spark_groupsource.monitor.rebalances.timeline_values import (
    MemberActivity,
    MemberPeriod,
    OwnerPeriod,
    Phase,
    PhaseBand,
    RebalanceMarker,
    Timeline,
)
from spark_groupsource.wire.group_events import EventKind, GroupEvent


def timeline(
    group: str,
    events: Iterable[GroupEvent],
    rebalances: Sequence[Rebalance] | None = None,
    until_ms: int | None = None,
) -> Timeline:
    """Builds the timeline of a group.

    Args:
        events: in any order; those of other groups are ignored. If the coordinator reports assignments, its events
            decide about owners, and those of applications only add what it does not see.
        rebalances: those of the group by time, from all sources; None for those of the events.
        until_ms: time at which the members are still in the group; None for the last event.
    """
    ordered = sorted((event for event in events if event.group == group), key=lambda event: event.at_ms)
    coordinator = {event.kind for event in ordered if event.application is None}
    builder = _Builder(EventKind.ASSIGNED in coordinator, EventKind.MEMBER_SYNCING in coordinator)
    for event in ordered:
        builder.add(event)
    return builder.build(group, rebalances_from_events(ordered) if rebalances is None else rebalances, until_ms)


class _Builder:
    """Applies events in the order of their time."""

    def __init__(self, has_coordinator: bool, has_syncs: bool) -> None:
        self._has_coordinator = has_coordinator
        # the coordinator reports when each member receives its assignment
        self._has_syncs = has_coordinator and has_syncs
        self._synced: set[str] = set()
        # assignments that their members have not received yet, since `_pending_ms`
        self._pending: dict[str, set[TopicPartition]] = {}
        self._pending_ms = 0
        self._identities: dict[str, str] = {}
        self._client_ids: dict[str, str] = {}
        self._owned: dict[str, set[TopicPartition]] = {}
        # partition -> its closed periods, and owner and start of the open one
        self._closed: dict[TopicPartition, list[OwnerPeriod]] = {}
        self._open: dict[TopicPartition, tuple[int, str | None]] = {}
        self._periods: dict[str, list[MemberPeriod]] = {}
        self._states: dict[str, tuple[int, MemberActivity]] = {}
        # start of the rebalance in progress, and generation of the last assignment after that
        self._started: GroupEvent | None = None
        self._assigned_generation: int | None = None
        self._batch_started_ms: int | None = None
        self._batches: list[tuple[int, int]] = []
        # lag by application, query and member
        self._lags: dict[tuple[str | None, ...], int] = {}
        self._is_sampled = False
        self._lag: list[tuple[int, int]] = []
        self._times: list[int] = []

    def add(self, event: GroupEvent) -> None:
        if not self._times:
            self._times = [event.at_ms, event.at_ms]
        self._times[1] = max(self._times[1], event.at_ms)
        _HANDLERS[event.kind](self, event)

    # --- events ---

    def rebalance_started(self, event: GroupEvent) -> None:
        self._apply_pending()
        if event.member_id is not None:
            self._name(event)
        self._started = self._started or event
        self._assigned_generation = None

    def member_joining(self, event: GroupEvent) -> None:
        name = self._name(event)
        self._apply_pending()
        self._set_state(name, event.at_ms, MemberActivity.JOINING)
        if self._is_authority(event):
            kept = event.detail.get("retained", 0)
            revoked = self._owned.get(name, set()) if not kept else _partitions(event.detail.get("revoked", {}))
            self._release(revoked, name, event.at_ms)

    def join_completed(self, event: GroupEvent) -> None:
        self._synced.clear()
        for member_id, (client_id, _, instance_id) in event.detail.get("members", {}).items():
            name = self._identities[member_id] = instance_id or member_id
            self._client_ids[name] = instance_id or client_id or member_id
            self._set_state(name, event.at_ms, MemberActivity.SYNCING)

    def member_syncing(self, event: GroupEvent) -> None:
        name = self._name(event)
        if name in self._pending:
            self._receive(name, self._pending.pop(name), event.at_ms)
            return
        self._synced.add(name)
        if self._assigned_generation is None or event.generation != self._assigned_generation:
            self._set_state(name, event.at_ms, MemberActivity.SYNCING)

    def assigned(self, event: GroupEvent) -> None:
        if not self._is_authority(event):
            return
        self._started, self._assigned_generation = None, event.generation
        form = event.detail.get("assignment")
        if form is None:
            # too large for an event
            return
        assignment = {self._identities.get(m, m): _partitions(topics) for m, topics in form.items()}
        self._apply_pending()
        for name in set(self._owned) - assignment.keys() if event.application is None else ():
            self._release(self._owned.pop(name), name, event.at_ms)
        waits = self._has_syncs and event.application is None
        self._pending_ms = event.at_ms
        self._pending = {n: owned for n, owned in assignment.items() if waits and n not in self._synced}
        received = {n: owned for n, owned in assignment.items() if n not in self._pending}
        for name, owned in received.items():
            self._release(self._owned.get(name, set()) - owned, name, event.at_ms)
        for name, owned in received.items():
            self._receive(name, owned, event.at_ms)

    def _receive(self, name: str, owned: set[TopicPartition], at_ms: int) -> None:
        """Applies the assignment of a member that has received it."""
        self._release(self._owned.get(name, set()) - owned, name, at_ms)
        for partition in owned:
            self._set_owner(partition, name, at_ms)
        self._owned[name] = owned
        self._set_state(name, at_ms, MemberActivity.READING if owned else MemberActivity.IDLE)

    def _apply_pending(self) -> None:
        """Applies the assignments of members whose SyncGroup is not reported."""
        for name, owned in self._pending.items():
            self._receive(name, owned, self._pending_ms)
        self._pending = {}

    def member_left(self, event: GroupEvent) -> None:
        name = self._name(event)
        self._apply_pending()
        ended_ms = event.at_ms
        if event.detail.get("is_expired"):
            ended_ms = min(ended_ms, int(event.detail.get("last_heartbeat_ms", ended_ms)))
            self._set_state(name, ended_ms, MemberActivity.EXPIRED)
        self._set_state(name, event.at_ms, None)
        self._release(self._owned.pop(name, set()), name, ended_ms)
        left = _reporter(event)
        self._lags = {k: lag for k, lag in self._lags.items() if k[2] != left[2] and k != (*left[:2], None)}

    def batch_wait_started(self, event: GroupEvent) -> None:
        self._set_state(self._name(event), event.at_ms, MemberActivity.WAITING)
        if self._batch_started_ms is None:
            self._batch_started_ms = event.at_ms

    def batch_wait_ended(self, event: GroupEvent) -> None:
        name = self._name(event)
        if self._states.get(name, (0, None))[1] is MemberActivity.WAITING:
            self._set_state(name, event.at_ms, MemberActivity.READING if self._owned.get(name) else MemberActivity.IDLE)
        if self._batch_started_ms is not None:
            self._batches.append((self._batch_started_ms, event.at_ms))
            self._batch_started_ms = None

    def revoked(self, event: GroupEvent) -> None:
        name = self._name(event)
        if self._is_authority(event):
            self._release(_partitions(event.detail.get("partitions", {})), name, event.at_ms)

    def name_member(self, event: GroupEvent) -> None:
        self._name(event)

    def lag(self, event: GroupEvent) -> None:
        # that of the retained partitions; a sample is that of all
        if not self._is_sampled:
            self._add_lag(event)

    def lag_sampled(self, event: GroupEvent) -> None:
        if not self._is_sampled:
            self._is_sampled, self._lags, self._lag = True, {}, []
        self._add_lag(event)

    def _add_lag(self, event: GroupEvent) -> None:
        self._lags[_reporter(event)] = int(event.detail.get("lag", 0))
        total = sum(self._lags.values())
        if self._lag and self._lag[-1][0] == event.at_ms:
            self._lag.pop()
        self._lag.append((event.at_ms, total))

    # --- members ---

    def _identity(self, event: GroupEvent) -> str:
        member_id = event.member_id or event.client_id or "?"
        return event.group_instance_id or self._identities.get(member_id, member_id)

    def _name(self, event: GroupEvent) -> str:
        name = self._identity(event)
        if event.member_id is not None:
            self._identities[event.member_id] = name
        self._client_ids.setdefault(name, event.group_instance_id or event.client_id or name)
        return name

    def _set_state(self, name: str, at_ms: int, state: MemberActivity | None) -> None:
        """Closes the period of a member and starts the next one; None: it is no longer a member."""
        before = self._states.pop(name, None)
        if before is not None and before[1] is state:
            self._states[name] = before
            return
        periods = self._periods.setdefault(name, [])
        if before is not None and before[0] < at_ms:
            periods.append(MemberPeriod(before[0], at_ms, before[1]))
        while periods and periods[-1].end_ms > at_ms:  # the last heartbeat was before the period began
            period = periods.pop()
            if period.start_ms < at_ms:
                periods.append(period._replace(end_ms=at_ms))
        if state is not None:
            self._states[name] = at_ms, state

    # --- partitions ---

    def _is_authority(self, event: GroupEvent) -> bool:
        return event.application is None or not self._has_coordinator

    def _release(self, partitions: Iterable[TopicPartition], name: str, at_ms: int) -> None:
        for partition in list(partitions):
            if self._open.get(partition, (0, None))[1] == name:
                self._set_owner(partition, None, at_ms)

    def _set_owner(self, partition: TopicPartition, owner: str | None, at_ms: int) -> None:
        before = self._open.get(partition)
        if before is not None and before[1] == owner:
            return
        closed = self._closed.setdefault(partition, [])
        if before is not None:
            start_ms = max(at_ms, before[0])
            if before[0] < start_ms:
                closed.append(OwnerPeriod(before[0], start_ms, before[1]))
            at_ms = start_ms
            if closed and closed[-1].owner == owner and closed[-1].end_ms == at_ms:
                at_ms = closed.pop().start_ms
        self._open[partition] = at_ms, owner

    # --- result ---

    def build(self, group: str, rebalances: Sequence[Rebalance], until_ms: int | None) -> Timeline:
        self._apply_pending()
        for rebalance in rebalances:
            started_ms = rebalance.completed_ms if rebalance.started_ms is None else rebalance.started_ms
            self._times = self._times or [started_ms, started_ms]
            self._times = [min(self._times[0], started_ms), max(self._times[1], rebalance.completed_ms)]
        start_ms, end_ms = self._times or [0, 0]
        end_ms = max(end_ms, until_ms or 0)
        for name, (since_ms, state) in self._states.items():
            if since_ms < end_ms:
                self._periods[name].append(MemberPeriod(since_ms, end_ms, state))
        for partition, (since_ms, owner) in self._open.items():
            self._closed[partition].append(OwnerPeriod(since_ms, max(since_ms, end_ms), owner))
        return Timeline(
            group,
            start_ms,
            end_ms,
            dict(sorted(self._closed.items())),
            {name: periods for name, periods in self._periods.items() if periods},
            _short_names(self._client_ids),
            self._bands(rebalances),
            self._markers(rebalances),
            self._lag,
        )

    def _bands(self, rebalances: Sequence[Rebalance]) -> list[PhaseBand]:
        bands = []
        for start_ms, end_ms in self._batches:
            # the member did not know the generation that the rebalance would produce
            generation = next((r.generation for r in rebalances if r.completed_ms >= end_ms), None)
            bands.append(PhaseBand(generation, Phase.BATCH, start_ms, end_ms))
        for r in rebalances:
            join_ms, sync_ms, first_ms = r.phases.join_ms or 0, r.phases.sync_ms or 0, r.phases.first_record_ms or 0
            joined_ms = r.completed_ms - sync_ms
            bands.append(PhaseBand(r.generation, Phase.JOIN, joined_ms - join_ms, joined_ms))
            bands.append(PhaseBand(r.generation, Phase.SYNC, joined_ms, r.completed_ms))
            bands.append(PhaseBand(r.generation, Phase.FIRST_RECORD, r.completed_ms, r.completed_ms + first_ms))
        return [band for band in bands if band.start_ms < band.end_ms]

    def _markers(self, rebalances: Sequence[Rebalance]) -> list[RebalanceMarker]:
        """Returns the markers of the rebalances, and of one in progress: its end may be recorded after its record."""
        markers = [self._marker(rebalance) for rebalance in rebalances]
        started = self._started
        if started is not None and all(rebalance.completed_ms < started.at_ms for rebalance in rebalances):
            actor = started.client_id or (self._identity(started) if started.member_id else None)
            cause = str(started.detail.get("cause", Cause.UNKNOWN.value))
            markers.append(RebalanceMarker(started.at_ms, None, None, cause, started.detail.get("reason"), actor))
        return sorted(markers, key=lambda marker: marker.started_ms)

    def _marker(self, rebalance: Rebalance) -> RebalanceMarker:
        slowest = rebalance.slowest_member
        identity = None if slowest is None else self._identities.get(slowest, slowest)
        return RebalanceMarker(
            rebalance.completed_ms if rebalance.started_ms is None else rebalance.started_ms,
            rebalance.completed_ms,
            rebalance.generation,
            rebalance.cause.value,
            rebalance.reason or rebalance.difference or None,
            None if rebalance.actor is None else member_name(rebalance.actor),
            None if identity is None else self._client_ids.get(identity, identity),
            rebalance.partitions_moved,
            rebalance.repeated_records,
            rebalance.unowned_seconds,
        )


_HANDLERS: Mapping[EventKind, Callable[[_Builder, GroupEvent], None]] = {
    EventKind.REBALANCE_STARTED: _Builder.rebalance_started,
    EventKind.MEMBER_JOINING: _Builder.member_joining,
    EventKind.JOIN_COMPLETED: _Builder.join_completed,
    EventKind.MEMBER_SYNCING: _Builder.member_syncing,
    EventKind.ASSIGNED: _Builder.assigned,
    EventKind.MEMBER_LEFT: _Builder.member_left,
    EventKind.BATCH_WAIT_STARTED: _Builder.batch_wait_started,
    EventKind.BATCH_WAIT_ENDED: _Builder.batch_wait_ended,
    EventKind.REVOKED: _Builder.revoked,
    EventKind.FIRST_RECORD: _Builder.name_member,
    EventKind.REPEATED: _Builder.name_member,
    EventKind.LAG: _Builder.lag,
    EventKind.LAG_SAMPLED: _Builder.lag_sampled,
}


def _partitions(topics: Mapping[str, Iterable[Any]]) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}


def _reporter(event: GroupEvent) -> tuple[str | None, ...]:
    return event.application, event.query, event.member_id


def _short_names(client_ids: Mapping[str, str]) -> dict[str, str]:
    """Returns the client id of each member, with the end of the member id where several have the same."""
    counts = Counter(client_ids.values())
    return {name: text if counts[text] == 1 else f"{text} …{name[-4:]}" for name, text in client_ids.items()}
