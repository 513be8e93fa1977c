"""What applications report of the rebalances of their own members."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Iterable, Mapping, NamedTuple

from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, MemberMove, Origin, Phases, Rebalance
from spark_groupsource.wire.group_events import EventKind, GroupEvent

# events that are not part of the rebalance: the lag is read before it
_OTHER = frozenset({EventKind.LAG, EventKind.LAG_SAMPLED, EventKind.FIRST_RECORD, EventKind.REPEATED})
_TIMES = {
    EventKind.BATCH_WAIT_STARTED: "noticed_ms",
    EventKind.BATCH_WAIT_ENDED: "batch_ended_ms",
    EventKind.JOIN_COMPLETED: "joined_ms",
    EventKind.ASSIGNED: "assigned_ms",
}


@dataclass
class ApplicationReport:
    """Events of one query and one generation.

    Attributes:
        members: member id -> actor, of its own members.
        started_ms: epoch milliseconds of the first event of its members; None without one.
        noticed_ms to assigned_ms: epoch milliseconds of the last of its members.
        first_record_ms: epoch milliseconds.
        lags: lag of its partitions, in the order of the events.
        joins: member id -> time of its JoinGroup.
        seen_ms: epoch milliseconds of the last event.
    """

    group: str
    generation: int
    application: str
    query: str | None
    started_ms: int | None = None
    members: dict[str, Actor] = field(default_factory=dict)
    noticed_ms: int | None = None
    batch_ended_ms: int | None = None
    joined_ms: int | None = None
    assigned_ms: int | None = None
    first_record_ms: int | None = None
    assignment_ms: int | None = None
    group_size: int | None = None
    cause: Cause | None = None
    reason: str | None = None
    actor: Actor | None = None
    repeated: int | None = None
    lags: list[int] = field(default_factory=list)
    joins: dict[str, int] = field(default_factory=dict)
    seen_ms: int = 0
    assigned: dict[str, int] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)

    def add(self, event: GroupEvent) -> None:
        """Adds an event of this query and generation, and a MEMBER_LEFT of the previous one."""
        actor = Actor(
            event.member_id, event.client_id, event.host, event.group_instance_id, event.application, event.query
        )
        if event.member_id is not None:
            self.members[event.member_id] = actor
        self.seen_ms = max(self.seen_ms, event.at_ms)
        if event.kind not in _OTHER:
            self.started_ms = event.at_ms if self.started_ms is None else min(self.started_ms, event.at_ms)
        name = _TIMES.get(event.kind)
        if name is not None:
            setattr(self, name, max(getattr(self, name) or 0, event.at_ms))
        detail = event.detail
        if event.kind in (EventKind.REBALANCE_STARTED, EventKind.MEMBER_LEFT) and self.cause is None:
            self.cause, self.actor, self.reason = cause_of(event), actor, detail.get("reason")
        elif event.kind is EventKind.MEMBER_JOINING and event.member_id is not None:
            self.joins[event.member_id] = event.at_ms
        elif event.kind is EventKind.JOIN_COMPLETED and ("size" in detail or detail.get("members")):
            self.group_size = int(detail["size"]) if "size" in detail else len(detail["members"])
        elif event.kind is EventKind.MEMBER_SYNCING and "assignment_ms" in detail:
            self.assignment_ms = detail["assignment_ms"]
        elif event.kind is EventKind.ASSIGNED:
            for member_id, topics in detail.get("assignment", {}).items():
                self.assigned[member_id] = sum(map(len, topics.values()))
        elif event.kind is EventKind.REVOKED and event.member_id is not None:
            self.revoked[event.member_id] = sum(map(len, detail.get("partitions", {}).values()))
        elif event.kind is EventKind.FIRST_RECORD:
            self.first_record_ms = min(self.first_record_ms or event.at_ms, event.at_ms)
        elif event.kind is EventKind.REPEATED:
            self.repeated = (self.repeated or 0) + int(detail.get("records", 0))
        elif event.kind is EventKind.LAG:
            self.lags.append(int(detail.get("lag", 0)))

    def added_to(self, rebalance: Rebalance) -> Rebalance:
        """Returns a rebalance of the same generation with what this application knows in addition.

        What it knows of its own action replaces an inferred or unknown cause. Its clock may differ from that of the
        coordinator: `notice_ms` and `first_record_ms` are at least 0.
        """
        origins = dict(rebalance.origins)
        actor = rebalance.actor
        known = self.members.get(actor.member_id or "") if actor is not None else None
        if actor is not None and known is not None:
            actor = actor._replace(application=known.application, query=known.query)
        cause, reason = rebalance.cause, rebalance.reason
        if self.cause not in (None, Cause.UNKNOWN) and origins.get("cause") is not Origin.SEEN:
            assert self.cause is not None
            cause, reason, actor = self.cause, self.reason, self.actor
            origins |= dict.fromkeys(("cause", "reason", "actor"), Origin.SEEN)
        phases = self._phases(rebalance.phases, rebalance.started_ms, rebalance.completed_ms)
        if phases != Phases():
            origins.setdefault("phases", Origin.SEEN)
        repeated, lag_added = rebalance.repeated_records, rebalance.lag_added
        if self.repeated is not None:
            repeated, origins["repeated_records"] = (repeated or 0) + self.repeated, Origin.SEEN
        if len(self.lags) > 1:
            lag_added, origins["lag_added"] = (lag_added or 0) + self.lags[-1] - self.lags[0], Origin.SEEN
        return rebalance._replace(
            cause=cause,
            reason=reason,
            actor=actor,
            phases=phases,
            repeated_records=repeated,
            lag_added=lag_added,
            origins=origins,
        )

    def _phases(self, phases: Phases, started_ms: int | None, completed_ms: int) -> Phases:
        notice, batch, first = phases.notice_ms, phases.batch_ms, phases.first_record_ms
        if self.noticed_ms is not None:
            if started_ms is not None:
                notice = max(notice or 0, self.noticed_ms - started_ms)
            if self.batch_ended_ms is not None:
                batch = max(batch or 0, self.batch_ended_ms - self.noticed_ms)
        if self.first_record_ms is not None:
            own = max(self.first_record_ms - completed_ms, 0)
            first = own if first is None else min(first, own)
        assignment = phases.assignment_ms if self.assignment_ms is None else self.assignment_ms
        return Phases(notice, batch, phases.join_ms, assignment, phases.sync_ms, first)


def application_reports(events: Iterable[GroupEvent]) -> dict[int, list[ApplicationReport]]:
    """Returns the reports by generation; MEMBER_LEFT and REPEATED belong to the next rebalance."""
    found: dict[tuple[int, str, str | None], ApplicationReport] = {}
    for event in events:
        if event.generation is None or event.application is None:
            continue
        generation = event.generation + (event.kind in (EventKind.MEMBER_LEFT, EventKind.REPEATED))
        key = (generation, event.application, event.query)
        if key not in found:
            found[key] = ApplicationReport(event.group, generation, event.application, event.query)
        found[key].add(event)
    reports: dict[int, list[ApplicationReport]] = {}
    for (generation, _, _), report in found.items():
        reports.setdefault(generation, []).append(report)
    return reports


def reported_rebalance(reports: list[ApplicationReport]) -> Rebalance:
    """Returns a rebalance that only applications report; partitions and members of others are unknown.

    The join phase is that of the members together, from the first event of one of them; None for a rebalance whose
    events the reports do not contain.
    """
    first = reports[0]
    ended = [r.assigned_ms for r in reports if r.assigned_ms is not None]
    joined = [r.joined_ms for r in reports if r.joined_ms is not None]
    started_ms = min((r.started_ms for r in reports if r.started_ms is not None), default=None)
    size = max((r.group_size for r in reports if r.group_size is not None), default=None)
    join_ms = None if not joined or started_ms is None else max(max(joined) - started_ms, 0)
    sync_ms = None if not joined or not ended else max(max(ended) - max(joined), 0)
    origins = dict.fromkeys(("generation", "completed_ms"), Origin.SEEN)
    # without a cause of its own, the first member was notified up to a heartbeat interval after the start
    is_start_seen = any(report.cause is not None for report in reports)
    origins["started_ms"] = Origin.SEEN if is_start_seen else Origin.INFERRED
    if size is not None:
        origins["members"] = Origin.SEEN
    slowest = _slowest_member(reports, size)
    if slowest is not None:
        origins["slowest_member"] = Origin.SEEN
    rebalance = Rebalance(
        group=first.group,
        generation=first.generation,
        cause=Cause.UNKNOWN,
        reason=None,
        difference="",
        actor=None,
        started_ms=started_ms,
        completed_ms=max(ended, default=max(r.seen_ms for r in reports)),
        phases=Phases(join_ms=join_ms, sync_ms=sync_ms),
        slowest_member=slowest,
        members=sum(len(report.members) for report in reports) if size is None else size,
        moves=_moves(reports),
        partitions_moved=0,
        partitions_unassigned=0,
        unowned_seconds=None,
        repeated_records=None,
        lag_added=None,
        origins=origins,
    )
    for report in reports:
        rebalance = report.added_to(rebalance)
    return rebalance


def _moves(reports: list[ApplicationReport]) -> dict[str, MemberMove]:
    return {
        member_id: MemberMove(report.assigned.get(member_id, 0), report.revoked.get(member_id, 0))
        for report in reports
        for member_id in report.assigned.keys() | report.revoked.keys()
    }


def _slowest_member(reports: list[ApplicationReport], size: int | None) -> str | None:
    """Returns the last member that joined; None unless the joins of all members are reported."""
    joins = {member_id: at_ms for report in reports for member_id, at_ms in report.joins.items()}
    return max(joins, key=lambda member_id: joins[member_id]) if joins and len(joins) == size else None


class ReportedMembers(NamedTuple):
    """What applications report of their members, for the history.

    Attributes:
        stopped_ms: generation and member id -> epoch milliseconds of the JoinGroup or LeaveGroup with which the member
            stopped reading; the generation is the one that follows.
        joined: member ids that have sent JoinGroup.
        left: member ids that have left, or learned that they were removed.
        causes: generation and member id of the JoinGroups with a cause.
        first_join_ms: generation -> epoch milliseconds of the first JoinGroup.
    """

    stopped_ms: Mapping[tuple[int, str], int] = {}
    joined: AbstractSet[str] = frozenset()
    left: AbstractSet[str] = frozenset()
    causes: AbstractSet[tuple[int, str]] = frozenset()
    first_join_ms: Mapping[int, int] = {}


def reported_members(events: Iterable[GroupEvent]) -> ReportedMembers:
    """Returns what the events of applications show of single members."""
    stopped_ms: dict[tuple[int, str], int] = {}
    joined, left, causes = set(), set(), set()
    first_join_ms: dict[int, int] = {}
    for event in events:
        if event.generation is None or event.member_id is None:
            continue
        at = event.generation, event.member_id
        if event.kind is EventKind.MEMBER_JOINING:
            # a member of the eager protocol stops reading then
            stopped_ms.setdefault(at, event.at_ms)
            joined.add(event.member_id)
            first_join_ms[event.generation] = min(first_join_ms.get(event.generation, event.at_ms), event.at_ms)
        elif event.kind is EventKind.REBALANCE_STARTED:
            causes.add(at)
        elif event.kind is EventKind.MEMBER_LEFT:
            left.add(event.member_id)
            if cause_of(event) is not Cause.SESSION_EXPIRED:
                stopped_ms[event.generation + 1, event.member_id] = event.at_ms
    return ReportedMembers(stopped_ms, joined, left, causes, first_join_ms)


def cause_of(event: GroupEvent) -> Cause:
    """Returns the cause in an event, UNKNOWN if there is none or a newer version wrote it."""
    try:
        return Cause(event.detail.get("cause", "UNKNOWN"))
    except ValueError:
        return Cause.UNKNOWN
