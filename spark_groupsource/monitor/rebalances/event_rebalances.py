"""Rebalances of a group, reduced from the events of all sources.

Members, assignment and ends of phases are those of the coordinator, else of the history. The start, and when each
member stopped reading, are those of the coordinator, else of the members of applications, else of the history. Causes
are compared (`_chosen`). See `observations` for the events of one rebalance.
"""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.monitor.rebalances.observations import (
    ApplicationReport,
    GroupObservation,
    ObservedChange,
    ObservedRebalance,
    Owners,
    Stop,
    add_reports,
    cause_of,
    observed_rebalances,
)
from spark_groupsource.monitor.rebalances.rebalance import (
    Actor,
    Cause,
    MemberMove,
    Origin,
    Phases,
    Rebalance,
    member_name,
)
from spark_groupsource.wire.group_events import EventKind, GroupEvent

# a removed client is notified at its next heartbeat
_RETURN_MS = 10_000
# causes that the history distinguishes no better than a member that took part
_KINDS = (
    frozenset({Cause.LEFT, Cause.SESSION_EXPIRED, Cause.POLL_EXCEEDED, Cause.REMOVED_BY_OPERATOR}),
    frozenset({Cause.PARTITIONS_CHANGED, Cause.LEADER_REJOINED, Cause.COORDINATOR_MOVED}),
)
# cause of the coordinator -> more exact cause that only the history shows
_REFINED = {Cause.LEFT: Cause.POLL_EXCEEDED, Cause.STATIC_REPLACED: Cause.ASSIGNOR_CHANGED}
_UNKNOWN = ObservedChange(origin=Origin.UNKNOWN)


def rebalances_from_events(events: Iterable[GroupEvent], history: Iterable[GroupEvent] = ()) -> list[Rebalance]:
    """Returns the rebalances of one group by time; `origins` has what is INFERRED.

    A rebalance begins with the first change since the group was Stable or Empty. It is known when it has an assignment;
    a generation that only applications report has the fields that they know. A cause of the coordinator is INFERRED for
    a member that rejoined without a reason, if there are other partitions than before (PARTITIONS_CHANGED), for an
    assignor that has changed, and for a member that left without a reason, later than max.poll.interval.ms after its
    JoinGroup, and came back (POLL_EXCEEDED).

    Args:
        events: of the embedded coordinator (`group_events`), and of applications (metadata of commits, a file).
            Those of one reporter are in order.
        history: events that were inferred from `__consumer_offsets`.
    """
    # a sample of the lag is of no rebalance
    listed = [event for event in events if event.kind is not EventKind.LAG_SAMPLED]
    coordinator = [event for event in listed if event.application is None]
    observed = observed_rebalances(coordinator, history)
    add_reports(observed, (event for event in listed if event.application is not None))
    state = _GroupState(_returned_members(coordinator))
    return sorted(map(state.reduce, observed), key=lambda found: (found.completed_ms, found.generation))


def _returned_members(events: Sequence[GroupEvent]) -> dict[str, Cause]:
    """Returns the members that left without a reason and whose client came back, with the probable cause.

    librdkafka and Python's clients leave when they have exceeded max.poll.interval.ms as when they are closed; but a
    closed one does not come back. A client that comes back at once after a LeaveGroup on another connection did not
    send it: an operator whose client has the same client id did.
    """
    joined: dict[str | None, GroupEvent] = {}
    left: dict[tuple[str | None, str | None], tuple[GroupEvent, bool]] = {}
    found = {}
    for event in events:
        client = event.client_id, event.host
        if event.member_id is None:
            continue
        if event.kind is EventKind.MEMBER_JOINING:
            if client in left and event.member_id not in joined:
                ended, has_exceeded = left.pop(client)
                is_removed = "is_other_connection" in ended.detail and event.at_ms - ended.at_ms <= _RETURN_MS
                if is_removed or has_exceeded:
                    found[str(ended.member_id)] = Cause.REMOVED_BY_OPERATOR if is_removed else Cause.POLL_EXCEEDED
            joined[event.member_id] = event
        elif event.kind is EventKind.MEMBER_LEFT and cause_of(event) is Cause.LEFT and "reason" not in event.detail:
            last = joined.get(event.member_id)
            timeout_ms = None if last is None else last.detail.get("rebalance_timeout_ms")
            has_exceeded = last is not None and timeout_ms is not None and event.at_ms - last.at_ms >= timeout_ms
            left[client] = event, has_exceeded
    return found


# -- the rebalance ---------------------------------------------------------------------------------------------------


class _Effect(NamedTuple):
    """The fields of a rebalance that compare two assignments."""

    moves: Mapping[str, MemberMove] = {}
    partitions_moved: int = 0
    partitions_unassigned: int = 0
    unowned_seconds: float | None = None


class _GroupState:
    """Members, owners and released partitions of one group between two rebalances.

    Attributes:
        members, owners: None where they are not known.
        released_ms: partition -> time since which no member reads it.
    """

    def __init__(self, returned: Mapping[str, Cause]) -> None:
        self._returned = returned
        self._generation = self._completed_ms = 0
        self._members: dict[str, Actor] | None = None
        self._owners: Owners | None = None
        self._released_ms: dict[TopicPartition, int] = {}
        self._protocol: str | None = None

    def reduce(self, rebalance: ObservedRebalance) -> Rebalance:
        """Returns the next rebalance; the state is then that after it."""
        if rebalance.of_group:
            trigger, difference, effect = self._change(rebalance)
            size: int | None = len(self._members or ())
        else:
            trigger, difference, effect, size = self._cause(rebalance), "", None, rebalance.reported_size
        started_ms, started_origin = _start(rebalance)
        slowest, slowest_origin = _slowest_member(rebalance, size)
        found = Rebalance(
            group=rebalance.group,
            generation=rebalance.generation,
            cause=trigger.cause,
            reason=trigger.reason,
            difference=difference,
            actor=_known_actor(trigger.actor, rebalance),
            started_ms=started_ms,
            completed_ms=rebalance.completed_ms,
            phases=_phases(rebalance, started_ms),
            slowest_member=slowest,
            members=sum(len(report.members) for report in rebalance.reports) if size is None else size,
            repeated_records=_sum(report.repeated for report in rebalance.reports),
            lag_added=_sum(r.lags[-1] - r.lags[0] if len(r.lags) > 1 else None for r in rebalance.reports),
            origins={},
            **(effect or _Effect({} if rebalance.of_group else _reported_moves(rebalance)))._asdict(),
        )
        origins = {
            "cause": trigger.origin,
            "actor": trigger.origin,
            "started_ms": started_origin,
            "join_ms": started_origin,
            "slowest_member": slowest_origin,
            "unowned_seconds": Origin.INFERRED if rebalance.coordinator is None else Origin.SEEN,
        }
        return found._replace(origins=_known(found, origins, has_effect=effect is not None))

    def _change(self, rebalance: ObservedRebalance) -> tuple[ObservedChange, str, _Effect | None]:
        """Returns cause, difference and effect, and replaces the state."""
        observed = rebalance.of_group[0]
        if rebalance.generation == 1 != self._generation:
            # a new group
            self._members, self._owners, self._released_ms, self._protocol = {}, {}, {}, None
        for former_id, actor in observed.replaced:
            self._replace(former_id, actor)
        members = observed.members if observed.members is not None else self._members or {}
        trigger = self._cause(rebalance)
        difference, effect = self._difference(observed, members, trigger), self._effect(rebalance, members)
        self._members, self._owners, self._protocol = members, rebalance.owners, observed.protocol or self._protocol
        self._generation, self._completed_ms = rebalance.generation, rebalance.completed_ms
        return trigger, difference, effect

    def _replace(self, former_id: str, actor: Actor) -> None:
        new_id = str(actor.member_id)
        if self._members is not None and former_id in self._members:
            self._members = {new_id if key == former_id else key: each for key, each in self._members.items()}
            self._members[new_id] = actor
        if self._owners is not None:
            self._owners = {p: new_id if owner == former_id else owner for p, owner in self._owners.items()}

    # -- cause

    def _cause(self, rebalance: ObservedRebalance) -> ObservedChange:
        coordinator = (
            None if rebalance.coordinator is None else self._recorded_cause(rebalance.coordinator, rebalance.owners)
        )
        first = (trigger for report in rebalance.reports for trigger in report.triggers[:1])
        reported = next((trigger for trigger in first if trigger.cause is not Cause.UNKNOWN), None)
        history = None if rebalance.history is None or not rebalance.history.triggers else rebalance.history.triggers[0]
        chosen = _chosen(coordinator, reported, history)
        for other in (coordinator, reported, history):
            if other is not None and other.cause is chosen.cause and chosen.actor is None:
                chosen = chosen._replace(actor=other.actor)
        # the history has no reasons
        return chosen if coordinator is None else chosen._replace(reason=chosen.reason or coordinator.reason)

    def _recorded_cause(self, observed: GroupObservation, after: Owners | None) -> ObservedChange:
        """Returns the cause in the events of the coordinator, or what these show where the requests had no reason."""
        late = [left for left in observed.left if left.cause is Cause.JOIN_TIMED_OUT]
        if late:
            return late[0]
        if not observed.triggers:
            return _UNKNOWN
        first, before = observed.triggers[0], self._owners
        is_open = first.reason is None and first.cause in (Cause.LEADER_REJOINED, Cause.UNKNOWN)
        if is_open and first.actor is not None and before is not None and after is not None:
            is_eager = "cooperative" not in (observed.protocol or "")
            if after.keys() - before.keys() or (is_eager and before.keys() - after.keys()):
                return first._replace(cause=Cause.PARTITIONS_CHANGED, origin=Origin.INFERRED)
        if first.cause is Cause.LEFT and first.actor is not None and first.actor.member_id in self._returned:
            cause = self._returned[str(first.actor.member_id)]
            return ObservedChange(cause, first.actor, None, Origin.INFERRED)
        names = self._protocol, observed.protocol
        if first.cause is Cause.UNKNOWN and all(names) and names[0] != names[1]:
            return first._replace(cause=Cause.ASSIGNOR_CHANGED, origin=Origin.INFERRED)
        return first

    def _difference(self, observed: GroupObservation, after: Mapping[str, Actor], trigger: ObservedChange) -> str:
        """Returns the changes of the member list, and further causes than the first."""
        before, inferred = self._members, observed.triggers[0].difference if observed.triggers else ""
        if before is None:
            return inferred
        causes = [(left.actor, left.cause) for left in (*observed.left, trigger) if left.cause is not Cause.UNKNOWN]
        removed = {actor.member_id: f" ({cause.value})" for actor, cause in causes if actor is not None}
        joined = sorted(member_name(after[each]) for each in after.keys() - before.keys())
        gone = sorted(member_name(before[each]) + removed.get(each, "") for each in before.keys() - after.keys())
        texts = [f"joined: {bounded_names(joined)}"] * bool(joined)
        texts += [f"no longer a member: {bounded_names(gone)}"] * bool(gone)
        # the history has one cause, which `trigger` may correct
        others = [t for t in observed.triggers if not observed.inferred and t.cause is not trigger.cause]
        also = [f"{t.cause.value} {member_name(t.actor)}" if t.actor else t.cause.value for t in others]
        texts += [f"also: {bounded_names(dict.fromkeys(also))}"] * bool(also)
        text = "; ".join(texts or ["same members"])
        return inferred if inferred and not texts else f"{text[:1].upper()}{text[1:]}."

    # -- effect

    def _effect(self, rebalance: ObservedRebalance, members: Mapping[str, Actor]) -> _Effect | None:
        """Returns what the assignment changed; None unless this assignment and the previous one are known."""
        before, after = self._owners, rebalance.owners
        if before is not None:
            self._release(rebalance)
        effect = None
        if before is not None and after is not None:
            unowned_seconds = self._unowned_seconds(rebalance, before, after)
            # without any JoinGroup, it is not known when members stop reading
            is_known = not before or any(observed.stops for observed in rebalance.of_group)
            effect = _Effect(
                _moves(before, after),
                sum(1 for p, owner in after.items() if before.get(p, owner) != owner),
                len(before.keys() - after.keys()),
                unowned_seconds if is_known else None,
            )
        if after is None or not members:
            # a group without members needs no owners
            self._released_ms = {}
        return effect

    def _release(self, rebalance: ObservedRebalance) -> None:
        """Notes since when no member reads the partitions of members that have stopped."""
        owned: dict[str, list[TopicPartition]] = {}
        for partition, owner in (self._owners or {}).items():
            owned.setdefault(owner, []).append(partition)
        for member_id, partitions in owned.items():
            for stop in _stops(rebalance, member_id):
                for partition in partitions if stop.partitions is None else stop.partitions:
                    self._released_ms.setdefault(partition, max(stop.at_ms, self._completed_ms))

    def _unowned_seconds(self, rebalance: ObservedRebalance, before: Owners, after: Owners) -> float:
        syncs = {} if rebalance.coordinator is None else rebalance.coordinator.syncs
        assigned_ms, total_ms = rebalance.completed_ms, 0
        for partition, owner in after.items():
            released_ms = self._released_ms.pop(partition, None)
            if released_ms is not None:
                total_ms += max(max(assigned_ms, syncs.get(owner, assigned_ms)) - released_ms, 0)
        # only the next rebalance assigns a partition that its owner has revoked; later, no member may have subscribed
        self._released_ms = {p: at_ms for p, at_ms in self._released_ms.items() if p in before}
        for partition, owner in before.items():
            if partition not in after:
                self._released_ms.setdefault(partition, max(assigned_ms, syncs.get(owner, assigned_ms)))
        return total_ms / 1_000


def _chosen(
    coordinator: ObservedChange | None, reported: ObservedChange | None, history: ObservedChange | None
) -> ObservedChange:
    """Returns the cause of a rebalance from what the sources say.

    The coordinator sees every change. What a member reports of its own action replaces a cause that the coordinator
    has inferred. The history is more exact where the requests do not differ: a client that sends no reason leaves alike
    when it is closed and when its poll interval has elapsed. Without a coordinator, a member knows its own action but
    not whether it was the first change; so the history decides, unless it does not distinguish the two causes.
    """
    if coordinator is not None:
        if reported is not None and coordinator.origin is not Origin.SEEN:
            coordinator = reported
        if coordinator.cause is not Cause.UNKNOWN:
            is_refined = history is not None and _REFINED.get(coordinator.cause) is history.cause
            is_stated = coordinator.cause is Cause.LEFT and coordinator.reason is not None
            return history if history is not None and is_refined and not is_stated else coordinator
    if reported is not None:
        if history is None or history.cause in (Cause.UNKNOWN, reported.cause):
            return reported
        if any({reported.cause, history.cause} <= kind for kind in _KINDS):
            return reported
    return history or coordinator or _UNKNOWN


def _stops(rebalance: ObservedRebalance, member_id: str) -> Sequence[Stop]:
    """Returns when a member stopped reading, by the most exact source."""
    if rebalance.coordinator is not None and member_id in rebalance.coordinator.stops:
        return rebalance.coordinator.stops[member_id]
    inferred = [] if rebalance.history is None else rebalance.history.stops.get(member_id, [])
    is_cooperative = any("cooperative" in (observed.protocol or "") for observed in rebalance.of_group)
    is_gone = not any(member_id in (observed.members or {}) for observed in rebalance.of_group)
    # the JoinGroup of a new process of a static member is not the time at which the former one stopped
    is_new = any(actor.member_id == member_id for observed in rebalance.of_group for _, actor in observed.replaced)
    reported = [report.stops[member_id] for report in rebalance.reports if member_id in report.stops]
    if not reported or is_new or (is_cooperative and not is_gone):
        return inferred
    # a member that was removed reports it later
    return [min(reported + inferred, key=lambda stop: stop.at_ms)]


def _start(rebalance: ObservedRebalance) -> tuple[int | None, Origin]:
    """Returns the start, and how it is known."""
    if rebalance.coordinator is not None:
        return rebalance.coordinator.started_ms, Origin.SEEN
    starts = [report.started_ms for report in rebalance.reports if report.started_ms is not None]
    if starts:
        # without a cause of its own, the first member was notified up to a heartbeat interval after the start
        return min(starts), Origin.SEEN if any(report.triggers for report in rebalance.reports) else Origin.INFERRED
    if rebalance.history is None or rebalance.history.started_ms is None:
        return None, Origin.UNKNOWN
    return rebalance.history.started_ms, Origin.INFERRED if "started_ms" in rebalance.history.inferred else Origin.SEEN


def _slowest_member(rebalance: ObservedRebalance, size: int | None) -> tuple[str | None, Origin]:
    """Returns the last member that joined, and how it is known; None unless the joins of all members are known."""
    for observed in rebalance.of_group:
        for left in observed.left:
            if left.cause is Cause.JOIN_TIMED_OUT and left.actor is not None:
                return left.actor.member_id, left.origin
    joins = {} if rebalance.coordinator is None else rebalance.coordinator.joins
    if not joins:
        joins = {member_id: at_ms for report in rebalance.reports for member_id, at_ms in report.joins.items()}
        if len(joins) != size:
            return None, Origin.UNKNOWN
    return max(joins, key=lambda member_id: joins[member_id], default=None), Origin.SEEN


def _phases(rebalance: ObservedRebalance, started_ms: int | None) -> Phases:
    """Returns the durations; the clocks of members differ, so that those are at least 0."""
    reports = rebalance.reports
    joined_ms = None
    if rebalance.of_group:
        joined_ms = rebalance.of_group[0].joined_ms
    elif any(report.completed_ms is not None for report in reports):
        joined_ms = max((r.joined_ms for r in reports if r.joined_ms is not None), default=None)
    join_ms = sync_ms = notice_ms = batch_ms = first_record_ms = None
    if joined_ms is not None:
        join_ms = None if started_ms is None else max(joined_ms - started_ms, 0)
        sync_ms = max(rebalance.completed_ms - joined_ms, 0)
    elif rebalance.coordinator is not None and started_ms is not None:
        # a static member that returned: there was no join phase
        join_ms, sync_ms = 0, rebalance.completed_ms - started_ms
    noticed = [report.noticed_ms for report in reports if report.noticed_ms is not None]
    if noticed and started_ms is not None:
        notice_ms = max(0, max(noticed) - started_ms)
    batches = [(r.noticed_ms, r.batch_ended_ms) for r in reports]
    batch_ms = max((max(end - at, 0) for at, end in batches if at is not None and end is not None), default=None)
    first = [report.first_record_ms for report in reports if report.first_record_ms is not None]
    if first:
        first_record_ms = max(min(first) - rebalance.completed_ms, 0)
    assignment_ms = next((r.assignment_ms for r in reports if r.assignment_ms is not None), None)
    return Phases(notice_ms, batch_ms, join_ms, assignment_ms, sync_ms, first_record_ms)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _reported_moves(rebalance: ObservedRebalance) -> dict[str, MemberMove]:
    """Returns what applications were assigned and revoked, where the rest of the assignment is not known."""
    counts = [(r.assigned, r.revoked) for r in rebalance.reports]
    names = [(name, assigned, revoked) for assigned, revoked in counts for name in assigned.keys() | revoked.keys()]
    return {name: MemberMove(assigned[name], revoked[name]) for name, assigned, revoked in names}


def _known(found: Rebalance, origins: Mapping[str, Origin], has_effect: bool) -> dict[str, Origin]:
    """Returns how each known field is known: SEEN unless `origins` names it."""
    values = {**found._asdict(), **found.phases._asdict(), "origins": None}
    values["cause"] = None if found.cause is Cause.UNKNOWN else found.cause
    values["phases"] = None if found.phases == Phases() else found.phases
    if not has_effect:
        values |= dict.fromkeys(_Effect._fields)
    return {name: origins.get(name, Origin.SEEN) for name, value in values.items() if value is not None}


def _known_actor(actor: Actor | None, rebalance: ObservedRebalance) -> Actor | None:
    """Returns the actor, with what any source knows of the member."""
    if actor is None:
        return None
    sources: Sequence[GroupObservation | ApplicationReport] = (*rebalance.of_group, *rebalance.reports)
    acting = (trigger.actor for source in sources for trigger in source.triggers)
    for other in (*acting, *(source.members.get(actor.member_id or "") for source in sources if source.members)):
        if other is not None and other.member_id == actor.member_id:
            actor = Actor(*(mine if mine is not None else theirs for mine, theirs in zip(actor, other)))
    return actor


def _moves(before: Owners, after: Owners) -> dict[str, MemberMove]:
    gained = Counter(owner for p, owner in after.items() if before.get(p) != owner)
    lost = Counter(owner for p, owner in before.items() if after.get(p) != owner)
    return {member: MemberMove(gained[member], lost[member]) for member in sorted(gained.keys() | lost.keys())}
