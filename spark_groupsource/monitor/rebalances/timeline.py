"""Builds the timeline of a group from its events."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Iterable, Mapping, Sequence

from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Rebalance
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


def timeline(group: str, events: Iterable[GroupEvent], rebalances: Iterable[Rebalance] = ()) -> Timeline:
    """Builds the timeline of a group.

    Args:
        events: in any order; those of other groups are ignored. If the coordinator reports assignments, its events
            decide about owners, and those of applications only add what it does not see.
        rebalances: records that replace the markers of their generation, and add those without events.
    """
    ordered = sorted((event for event in events if event.group == group), key=lambda event: event.at_ms)
    coordinator = {event.kind for event in ordered if event.application is None}
    builder = _Builder(EventKind.ASSIGNED in coordinator, EventKind.MEMBER_SYNCING in coordinator)
    for event in ordered:
        builder.add(event)
    return builder.build(group, list(rebalances))


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
        self._last_owner: dict[TopicPartition, str] = {}
        self._periods: dict[str, list[MemberPeriod]] = {}
        self._states: dict[str, tuple[int, MemberActivity]] = {}
        self._bands: list[PhaseBand] = []
        self._unnumbered: list[int] = []
        self._markers: list[RebalanceMarker] = []
        self._joined_ms: int | None = None
        self._batch_started_ms: int | None = None
        self._assigned: tuple[int, int | None] | None = None
        self._repeated: Counter[int | None] = Counter()
        # lag by application, query and member
        self._lags: dict[tuple[str | None, ...], int] = {}
        self._is_sampled = False
        self._lag: list[tuple[int, int]] = []
        self._times: list[int] = []

    def add(self, event: GroupEvent) -> None:
        if not self._times:
            self._times = [event.at_ms, event.at_ms]
        self._times[1] = max(self._times[1], event.at_ms)
        handler = _HANDLERS.get(event.kind)
        if handler is not None:
            handler(self, event)

    # --- events ---

    def rebalance_started(self, event: GroupEvent) -> None:
        self._apply_pending()
        if self._markers and self._markers[-1].completed_ms is None:
            return
        detail = event.detail
        if event.member_id is not None:
            self._name(event)
        actor = event.client_id or (self._identity(event) if event.member_id else None)
        cause = str(detail.get("cause", Cause.UNKNOWN.value))
        self._markers.append(RebalanceMarker(event.at_ms, None, None, cause, detail.get("reason"), actor))
        self._joined_ms = None
        self._assigned = None

    def member_joining(self, event: GroupEvent) -> None:
        name = self._name(event)
        self._apply_pending()
        self._set_state(name, event.at_ms, MemberActivity.JOINING)
        if self._markers and self._markers[-1].completed_ms is None and self._joined_ms is None:
            self._markers[-1] = self._markers[-1]._replace(slowest_member=name)
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
        self._complete_join(event.at_ms, event.generation)

    def member_syncing(self, event: GroupEvent) -> None:
        name = self._name(event)
        if name in self._pending:
            self._receive(name, self._pending.pop(name), event.at_ms)
            return
        self._synced.add(name)
        is_assigned = bool(self._markers) and self._markers[-1].completed_ms is not None
        if not is_assigned or event.generation != self._markers[-1].generation:
            self._set_state(name, event.at_ms, MemberActivity.SYNCING)
        if not self._has_coordinator:
            self._complete_join(event.at_ms, event.generation)

    def assigned(self, event: GroupEvent) -> None:
        form = event.detail.get("assignment")
        if not self._is_authority(event) or form is None:
            return
        assignment = {self._identities.get(m, m): _partitions(topics) for m, topics in form.items()}
        self._apply_pending()
        for name in set(self._owned) - assignment.keys() if event.application is None else ():
            self._release(self._owned.pop(name), name, event.at_ms)
        moved = sum(self._last_owner.get(p, name) != name for name, owned in assignment.items() for p in owned)
        waits = self._has_syncs and event.application is None
        self._pending_ms = event.at_ms
        self._pending = {n: owned for n, owned in assignment.items() if waits and n not in self._synced}
        received = {n: owned for n, owned in assignment.items() if n not in self._pending}
        for name, owned in received.items():
            self._release(self._owned.get(name, set()) - owned, name, event.at_ms)
        for name, owned in received.items():
            self._receive(name, owned, event.at_ms)
        self._complete_marker(event, moved)

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
            # the member does not know the generation that the rebalance will produce
            self._unnumbered.append(len(self._bands))
            self._bands.append(PhaseBand(None, Phase.BATCH, self._batch_started_ms, event.at_ms))
            self._batch_started_ms = None

    def revoked(self, event: GroupEvent) -> None:
        name = self._name(event)
        if self._is_authority(event):
            self._release(_partitions(event.detail.get("partitions", {})), name, event.at_ms)

    def first_record(self, event: GroupEvent) -> None:
        self._name(event)
        if self._assigned is not None:
            assigned_ms, generation = self._assigned
            if event.generation is None or generation is None or event.generation == generation:
                self._add_band(generation, Phase.FIRST_RECORD, assigned_ms, event.at_ms)
                self._assigned = None

    def repeated(self, event: GroupEvent) -> None:
        self._name(event)
        self._repeated[event.generation] += int(event.detail.get("records", 0))

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
        if owner is not None:
            self._last_owner[partition] = owner

    # --- rebalances ---

    def _complete_join(self, at_ms: int, generation: int | None) -> None:
        if self._joined_ms is None and self._markers and self._markers[-1].completed_ms is None:
            self._joined_ms = at_ms
            self._add_band(generation, Phase.JOIN, self._markers[-1].started_ms, at_ms)

    def _complete_marker(self, event: GroupEvent, moved: int) -> None:
        if not self._markers or self._markers[-1].completed_ms is not None:
            return
        marker = self._markers[-1]
        if self._joined_ms is not None:
            self._add_band(event.generation, Phase.SYNC, self._joined_ms, event.at_ms)
        for at in self._unnumbered:
            self._bands[at] = self._bands[at]._replace(generation=event.generation)
        self._unnumbered.clear()
        self._markers[-1] = marker._replace(
            completed_ms=event.at_ms, generation=event.generation, partitions_moved=moved
        )
        self._assigned = event.at_ms, event.generation

    def _add_band(self, generation: int | None, phase: Phase, start_ms: int, end_ms: int) -> None:
        if start_ms < end_ms:
            self._bands.append(PhaseBand(generation, phase, start_ms, end_ms))

    # --- result ---

    def build(self, group: str, rebalances: Sequence[Rebalance]) -> Timeline:
        self._apply_pending()
        for rebalance in rebalances:
            started_ms = rebalance.completed_ms if rebalance.started_ms is None else rebalance.started_ms
            self._times = self._times or [started_ms, started_ms]
            self._times = [min(self._times[0], started_ms), max(self._times[1], rebalance.completed_ms)]
        start_ms, end_ms = self._times or [0, 0]
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
            self._bands,
            self._all_markers(rebalances),
            self._lag,
        )

    def _all_markers(self, rebalances: Sequence[Rebalance]) -> list[RebalanceMarker]:
        given: dict[int | None, Rebalance] = {rebalance.generation: rebalance for rebalance in rebalances}
        markers = []
        for marker in self._markers:
            if marker.generation is None:
                marker = _completed(marker, list(given.values()))
                given.pop(marker.generation, None)
                found = None
            else:
                found = given.pop(marker.generation, None)
            if found is None:
                repeated = self._repeated.get(marker.generation)
                slowest = marker.slowest_member and self._client_ids.get(marker.slowest_member, marker.slowest_member)
                markers.append(marker._replace(repeated_records=repeated, slowest_member=slowest))
            else:
                markers.append(self._given_marker(found))
        markers.extend(self._given_marker(rebalance) for rebalance in given.values())
        return sorted(markers, key=lambda marker: marker.started_ms)

    def _given_marker(self, rebalance: Rebalance) -> RebalanceMarker:
        slowest = rebalance.slowest_member
        identity = None if slowest is None else self._identities.get(slowest, slowest)
        return RebalanceMarker(
            rebalance.completed_ms if rebalance.started_ms is None else rebalance.started_ms,
            rebalance.completed_ms,
            rebalance.generation,
            rebalance.cause.value,
            rebalance.reason or rebalance.difference or None,
            _actor_name(rebalance.actor),
            None if identity is None else self._client_ids.get(identity, identity),
            rebalance.partitions_moved,
            rebalance.repeated_records,
            rebalance.unowned_seconds,
        )


_HANDLERS: Mapping[EventKind, Callable[[_Builder, GroupEvent], None]] = {
    kind: getattr(_Builder, kind.value) for kind in EventKind if hasattr(_Builder, kind.value)
}


def _partitions(topics: Mapping[str, Iterable[Any]]) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}


def _completed(marker: RebalanceMarker, rebalances: Sequence[Rebalance]) -> RebalanceMarker:
    """Returns a marker with the record of its end: the events of the end follow the record."""
    later = [each for each in rebalances if (each.started_ms or each.completed_ms) >= marker.started_ms]
    if not later:
        return marker
    record = min(later, key=lambda each: each.completed_ms)
    moved = record.partitions_moved
    return marker._replace(completed_ms=record.completed_ms, generation=record.generation, partitions_moved=moved)


def _reporter(event: GroupEvent) -> tuple[str | None, ...]:
    return event.application, event.query, event.member_id


def _actor_name(actor: Actor | None) -> str | None:
    return None if actor is None else actor.group_instance_id or actor.client_id or actor.member_id


def _short_names(client_ids: Mapping[str, str]) -> dict[str, str]:
    """Returns the client id of each member, with the end of the member id where several have the same."""
    counts = Counter(client_ids.values())
    return {name: text if counts[text] == 1 else f"{text} …{name[-4:]}" for name, text in client_ids.items()}
