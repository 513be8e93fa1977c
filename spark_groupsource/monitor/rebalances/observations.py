"""What each source reports of a rebalance.

The embedded coordinator and the history in `__consumer_offsets` (`history_events`, `epoch_history`) report the whole
group, rebalance by rebalance. Members of applications report themselves, with the generation of the rebalance. The
events of one rebalance by one source are a `GroupObservation` or an `ApplicationReport`. Those of the same generation
that are nearest in time are one `ObservedRebalance`: a generation occurs again after its group was deleted, or when a
static member was replaced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, Origin
from spark_groupsource.wire.group_events import EventKind, GroupEvent

Owners = Mapping[TopicPartition, str]
# each starts a rebalance, or is part of one in progress
_CHANGES = frozenset({EventKind.REBALANCE_STARTED, EventKind.MEMBER_JOINING, EventKind.MEMBER_LEFT})
# a member reports them of the generation that it left
_EARLIER = frozenset({EventKind.MEMBER_LEFT, EventKind.REPEATED})
# not part of the rebalance: the lag is read before it
_AROUND = frozenset({EventKind.LAG, EventKind.FIRST_RECORD, EventKind.REPEATED})


class ObservedChange(NamedTuple):
    """A change that starts a rebalance; the history says in words what differs from the previous generation."""

    cause: Cause = Cause.UNKNOWN
    actor: Actor | None = None
    reason: str | None = None
    origin: Origin = Origin.SEEN
    difference: str = ""


class Stop(NamedTuple):
    """Time at which a member stopped reading, and the partitions, None for all that it owned."""

    at_ms: int
    partitions: frozenset[TopicPartition] | None = None


@dataclass
class GroupObservation:
    """A rebalance of the whole group, by the coordinator or the history.

    Attributes:
        started_ms, joined_ms: start and end of the join phase; None if they are not known.
        completed_ms: time of the assignment, while `is_assigned`.
        inferred: names of the fields that the history has inferred.
        triggers: changes that started a join phase; the first one is the cause.
        left: members that were removed, with the cause.
        joins, syncs: member id -> time of its first JoinGroup and SyncGroup of the generation.
        stops: member id -> where and when it stopped reading, empty if it did not; absent if it is not known.
        replaced: (former member id, new member) of static members.
        members: None without a join phase.
        owners: None if the assignment is not known.
    """

    group: str
    started_ms: int | None
    generation: int = 0
    joined_ms: int | None = None
    completed_ms: int = 0
    is_assigned: bool = False
    inferred: frozenset[str] = frozenset()
    triggers: list[ObservedChange] = field(default_factory=list)
    left: list[ObservedChange] = field(default_factory=list)
    joins: dict[str, int] = field(default_factory=dict)
    syncs: dict[str, int] = field(default_factory=dict)
    stops: dict[str, list[Stop]] = field(default_factory=dict)
    replaced: list[tuple[str, Actor]] = field(default_factory=list)
    members: dict[str, Actor] | None = None
    protocol: str | None = None
    owners: Owners | None = None

    @property
    def is_complete(self) -> bool:
        """True if every member has received its assignment."""
        # a static member that returned is in the same generation, without a join phase
        is_synced = self.joined_ms is None or (self.members or {}).keys() <= self.syncs.keys()
        return self.is_assigned and is_synced

    def add(self, event: GroupEvent) -> None:
        """Adds an event."""
        kind, at_ms, member_id, detail = event.kind, event.at_ms, event.member_id, event.detail
        if kind is EventKind.REBALANCE_STARTED:
            self.inferred = frozenset(detail.get("inferred", ()))
            if detail.get("is_late"):
                self.started_ms = None
            self.triggers.append(_trigger(event))
        elif kind is EventKind.MEMBER_LEFT:
            self.left.append(_trigger(event))
            self.stops.setdefault(member_id or "", []).append(Stop(detail.get("last_heartbeat_ms", at_ms)))
        elif kind is EventKind.MEMBER_JOINING and member_id is not None:
            if self.joined_ms is not None:
                # another join phase follows before the assignment
                self.joins, self.joined_ms = {}, None
            self._add_join(member_id, event)
        elif kind is EventKind.JOIN_COMPLETED:
            self.joined_ms, self.syncs = None if detail.get("is_late") else at_ms, {}
            self.generation, self.protocol = event.generation or 0, detail.get("protocol")
            self.members = {each: Actor(each, *names) for each, names in (detail.get("members") or {}).items()}
        elif kind is EventKind.MEMBER_SYNCING and member_id is not None:
            self.syncs.setdefault(member_id, at_ms)
        elif kind is EventKind.ASSIGNED:
            self.generation, self.completed_ms, self.is_assigned = event.generation or 0, at_ms, True
            assignment = detail.get("assignment")
            if assignment is not None:
                self.owners = {p: each for each, topics in assignment.items() for p in _partitions(topics)}

    def _add_join(self, member_id: str, event: GroupEvent) -> None:
        detail = event.detail
        self.joins.setdefault(member_id, event.at_ms)
        if "replaced" in detail:
            self.replaced.append((str(detail["replaced"]), _actor(event)))
        stops = self.stops.setdefault(member_id, [])
        if "revoked" in detail:
            stops.append(Stop(event.at_ms, frozenset(_partitions(detail["revoked"]))))
        elif not detail.get("retained"):
            stops.append(Stop(event.at_ms))


@dataclass
class ApplicationReport:
    """What the members of one query report of a rebalance; times are of their clock.

    Attributes:
        members: those of the query; `size` is the number of all members of the group.
        started_ms: of the first event of a member.
        noticed_ms, batch_ended_ms, joined_ms, completed_ms: of the last member.
        triggers: what a member did that may have started the rebalance.
        joins: member id -> time of its JoinGroup.
        stops: member id -> when it stopped reading, if the assignor is eager.
        assigned, revoked: member id -> number of partitions.
        lags: of its partitions, in the order of the events.
        seen_ms: of the last event.
    """

    members: dict[str, Actor] = field(default_factory=dict)
    size: int | None = None
    started_ms: int | None = None
    noticed_ms: int | None = None
    batch_ended_ms: int | None = None
    joined_ms: int | None = None
    completed_ms: int | None = None
    first_record_ms: int | None = None
    assignment_ms: int | None = None
    triggers: list[ObservedChange] = field(default_factory=list)
    joins: dict[str, int] = field(default_factory=dict)
    stops: dict[str, Stop] = field(default_factory=dict)
    assigned: Counter[str] = field(default_factory=Counter)
    revoked: Counter[str] = field(default_factory=Counter)
    repeated: int | None = None
    lags: list[int] = field(default_factory=list)
    seen_ms: int = 0

    def add(self, event: GroupEvent) -> None:
        """Adds an event, and a MEMBER_LEFT or REPEATED of the generation before."""
        kind, at_ms, member_id, detail = event.kind, event.at_ms, event.member_id, event.detail
        self.seen_ms = max(self.seen_ms, at_ms)
        if member_id is not None:
            self.members[member_id] = _actor(event)
        if kind not in _AROUND:
            self.started_ms = at_ms if self.started_ms is None else min(self.started_ms, at_ms)
        if kind in (EventKind.REBALANCE_STARTED, EventKind.MEMBER_LEFT):
            trigger = _trigger(event)
            self.triggers.append(trigger)
            if kind is EventKind.MEMBER_LEFT and trigger.cause is not Cause.SESSION_EXPIRED:
                self.stops[member_id or ""] = Stop(at_ms)
        elif kind is EventKind.MEMBER_JOINING and member_id is not None:
            self.joins[member_id] = at_ms
            # a member of the eager protocol stops reading then
            self.stops.setdefault(member_id, Stop(at_ms))
        elif kind is EventKind.BATCH_WAIT_STARTED:
            self.noticed_ms = max(self.noticed_ms or 0, at_ms)
        elif kind is EventKind.BATCH_WAIT_ENDED:
            self.batch_ended_ms = max(self.batch_ended_ms or 0, at_ms)
        elif kind is EventKind.JOIN_COMPLETED:
            self.joined_ms = max(self.joined_ms or 0, at_ms)
            if "size" in detail or detail.get("members"):
                self.size = int(detail["size"]) if "size" in detail else len(detail["members"])
        elif kind is EventKind.MEMBER_SYNCING:
            self.assignment_ms = detail.get("assignment_ms", self.assignment_ms)
        elif kind is EventKind.ASSIGNED:
            self.completed_ms = max(self.completed_ms or 0, at_ms)
            for each, topics in detail.get("assignment", {}).items():
                self.assigned[each] = sum(map(len, topics.values()))
        elif kind is EventKind.REVOKED and member_id is not None:
            self.revoked[member_id] = sum(map(len, detail.get("partitions", {}).values()))
        elif kind is EventKind.FIRST_RECORD:
            self.first_record_ms = min(self.first_record_ms or at_ms, at_ms)
        elif kind is EventKind.REPEATED:
            self.repeated = (self.repeated or 0) + int(detail.get("records", 0))
        elif kind is EventKind.LAG:
            self.lags.append(int(detail.get("lag", 0)))


@dataclass
class ObservedRebalance:
    """One rebalance, as all sources observed it; `queries` has the reports by application and query."""

    group: str
    generation: int
    coordinator: GroupObservation | None = None
    history: GroupObservation | None = None
    queries: dict[tuple[str | None, str | None], ApplicationReport] = field(default_factory=dict)

    @property
    def of_group(self) -> list[GroupObservation]:
        """What is known of the whole group, the most exact source first; empty if only applications report."""
        return [each for each in (self.coordinator, self.history) if each is not None]

    @property
    def reports(self) -> list[ApplicationReport]:
        """What applications report."""
        return list(self.queries.values())

    @property
    def reported_size(self) -> int | None:
        """Number of members of the group, if an application reports it."""
        return max((each.size for each in self.reports if each.size is not None), default=None)

    @property
    def owners(self) -> Owners | None:
        """The assignment, None if it is not known."""
        return next((each.owners for each in self.of_group if each.owners is not None), None)

    @property
    def completed_ms(self) -> int:
        """Time of the assignment; without one, of the last event."""
        for each in self.of_group:
            return each.completed_ms
        ends = [each.completed_ms for each in self.reports if each.completed_ms is not None]
        return max(ends, default=max((each.seen_ms for each in self.reports), default=0))


def _observations(events: Iterable[GroupEvent]) -> Iterator[GroupObservation]:
    """Yields the rebalances of one source of the whole group that have an assignment."""
    current: GroupObservation | None = None
    for event in events:
        if event.kind in _CHANGES and current is not None and current.is_assigned:
            yield current
            current = None
        if current is None:
            if event.kind not in _CHANGES | {EventKind.JOIN_COMPLETED, EventKind.ASSIGNED}:
                continue
            current = GroupObservation(event.group, event.at_ms)
        current.add(event)
        if current.is_complete:
            yield current
            current = None
    if current is not None and current.is_assigned:
        yield current


def observed_rebalances(coordinator: Iterable[GroupEvent], history: Iterable[GroupEvent]) -> list[ObservedRebalance]:
    """Returns the rebalances of one group in the order of the logs.

    Each of the coordinator has the nearest one of the history. The clocks of two brokers differ, so times do not order
    the rebalances before and after the coordinator moved.
    """
    inferred = list(_observations(history))
    by_generation: dict[int, list[int]] = {}
    for at, each in enumerate(inferred):
        by_generation.setdefault(each.generation, []).append(at)
    found, done = [], 0
    for each in _observations(coordinator):
        same = [at for at in by_generation.get(each.generation, ()) if at >= done]
        nearest = min(same, key=lambda at: abs(inferred[at].completed_ms - each.completed_ms), default=None)
        if nearest is None:
            found.append(ObservedRebalance(each.group, each.generation, each))
            continue
        found += [ObservedRebalance(other.group, other.generation, None, other) for other in inferred[done:nearest]]
        found.append(ObservedRebalance(each.group, each.generation, each, inferred[nearest]))
        done = nearest + 1
    return found + [ObservedRebalance(other.group, other.generation, None, other) for other in inferred[done:]]


def add_reports(found: list[ObservedRebalance], events: Iterable[GroupEvent]) -> None:
    """Adds each event of an application to the rebalance of its generation that is nearest in time."""
    by_generation: dict[int, list[ObservedRebalance]] = {}
    for each in found:
        by_generation.setdefault(each.generation, []).append(each)
    for event in events:
        if event.generation is None:
            continue
        generation = event.generation + (event.kind in _EARLIER)
        same = by_generation.setdefault(generation, [])
        if not same:
            same.append(ObservedRebalance(event.group, generation))
            found.append(same[0])
        nearest = min(same, key=lambda each: abs(each.completed_ms - event.at_ms))
        nearest.queries.setdefault((event.application, event.query), ApplicationReport()).add(event)


def cause_of(event: GroupEvent) -> Cause:
    """Returns the cause in an event, UNKNOWN if there is none or a newer version wrote it."""
    try:
        return Cause(event.detail.get("cause", "UNKNOWN"))
    except ValueError:
        return Cause.UNKNOWN


def _trigger(event: GroupEvent) -> ObservedChange:
    detail = event.detail
    origin = Origin.INFERRED if "cause" in detail.get("inferred", ()) else Origin.SEEN
    actor = None if event.member_id is None else _actor(event)
    return ObservedChange(cause_of(event), actor, detail.get("reason"), origin, detail.get("difference", ""))


def _actor(event: GroupEvent) -> Actor:
    return Actor(event.member_id, event.client_id, event.host, event.group_instance_id, event.application, event.query)


def _partitions(topics: Mapping[str, Sequence[Any]]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)
