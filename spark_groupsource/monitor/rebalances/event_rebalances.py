"""Rebalances of a group, from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.monitor.rebalances.application_reports import (
    ApplicationReport,
    application_reports,
    cause_of,
    reported_rebalance,
)
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, MemberMove, Origin, Phases, Rebalance
from spark_groupsource.wire.group_events import EventKind, GroupEvent

_Owners = Mapping[TopicPartition, str]
# a removed client is notified at its next heartbeat
_RETURN_MS = 10_000


def rebalances_from_events(events: Iterable[GroupEvent]) -> Iterator[Rebalance]:
    """Yields the rebalances of one group by generation, fields SEEN unless the events do not show them.

    `events` are those of the embedded coordinator (`group_events`), of applications (metadata of commits, a file), or
    both together: what the applications report is added to the rebalance of its generation. A generation that only
    applications report has the fields that they know. Events of one reporter are in order.

    A rebalance begins with the first change since the group was Stable or Empty, and is yielded when every member has
    received its assignment, or at the next change. `cause` is INFERRED for a member that rejoined without a reason, if
    there are other partitions than before (PARTITIONS_CHANGED), for an assignor that has changed, and for a member that
    left without a reason, later than max.poll.interval.ms after its JoinGroup, and came back (POLL_EXCEEDED).
    """
    # a sample of the lag is of no rebalance
    listed = [event for event in events if event.kind is not EventKind.LAG_SAMPLED]
    reports = application_reports(event for event in listed if event.application is not None)
    history = _GroupHistory(_returned_members(listed))
    for event in listed:
        if event.application is None:
            for rebalance in history.add(event):
                yield from _before(reports, rebalance.generation)
                yield _with_reports(rebalance, reports.pop(rebalance.generation, []))
    for rebalance in history.finish():
        yield from _before(reports, rebalance.generation)
        yield _with_reports(rebalance, reports.pop(rebalance.generation, []))
    for generation in sorted(reports):
        yield reported_rebalance(reports[generation])


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
        if event.application is not None or event.member_id is None:
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


def _before(reports: dict[int, list[ApplicationReport]], generation: int) -> Iterator[Rebalance]:
    for earlier in sorted(number for number in reports if number < generation):
        yield reported_rebalance(reports.pop(earlier))


@dataclass
class _Trigger:
    cause: Cause
    actor: Actor | None
    reason: str | None


@dataclass
class _Open:
    """A rebalance in progress.

    Attributes:
        triggers: changes that started a join phase; the first one is the cause.
        left: members that were removed, with the cause.
        joins, syncs: member id -> time of its first JoinGroup and SyncGroup of the generation.
    """

    started_ms: int
    triggers: list[_Trigger] = field(default_factory=list)
    left: list[_Trigger] = field(default_factory=list)
    joins: dict[str, int] = field(default_factory=dict)
    syncs: dict[str, int] = field(default_factory=dict)
    generation: int | None = None
    joined_ms: int | None = None
    protocol: str | None = None
    members: dict[str, Actor] | None = None
    assigned: GroupEvent | None = None


class _Effect(NamedTuple):
    """The fields of a rebalance that compare two assignments."""

    moves: Mapping[str, MemberMove] = {}
    partitions_moved: int = 0
    partitions_unassigned: int = 0
    unowned_seconds: float | None = None


class _GroupHistory:
    """Members, owners and released partitions of one group, as its coordinator reports them.

    Attributes:
        returned: members that left without a reason and joined again, with the cause.
        owners: partition -> member id; None before the first assignment that is known.
        released_ms: partition -> time since which no member reads it.
    """

    def __init__(self, returned: Mapping[str, Cause]) -> None:
        self.returned = returned
        self.members: dict[str, Actor] = {}
        self.owners: _Owners | None = None
        self._owned: dict[str, list[TopicPartition]] = {}
        self.released_ms: dict[TopicPartition, int] = {}
        self.protocol: str | None = None
        self.open: _Open | None = None

    def add(self, event: GroupEvent) -> Iterator[Rebalance]:
        """Applies an event; yields the rebalance that it ends."""
        if event.kind in (EventKind.REBALANCE_STARTED, EventKind.MEMBER_JOINING, EventKind.MEMBER_LEFT):
            if self.open is not None and self.open.assigned is not None:
                yield from self.finish()
            self.open = self.open or _Open(event.at_ms)
            self._change(self.open, event)
        elif event.kind is EventKind.JOIN_COMPLETED:
            self.open = self.open or _Open(event.at_ms)
            self.open.generation, self.open.joined_ms = event.generation, event.at_ms
            self.open.protocol = event.detail.get("protocol")
            self.open.members = _members(event.detail.get("members"))
            self.open.syncs = {}
        elif event.kind is EventKind.MEMBER_SYNCING and self.open is not None and event.member_id is not None:
            self.open.syncs.setdefault(event.member_id, event.at_ms)
            yield from self._maybe_finish()
        elif event.kind is EventKind.ASSIGNED:
            self.open = self.open or _Open(event.at_ms)
            self.open.assigned = event
            yield from self._maybe_finish()

    def finish(self) -> Iterator[Rebalance]:
        """Yields the rebalance whose assignment is known, if there is one."""
        ended = self.open
        if ended is not None and ended.assigned is not None:
            self.open = None
            yield self._end(ended, ended.assigned)

    def _maybe_finish(self) -> Iterator[Rebalance]:
        current = self.open
        if current is not None and current.assigned is not None:
            # a static member that returned is in the same generation, without a join phase
            if current.joined_ms is None or (current.members or {}).keys() <= current.syncs.keys():
                yield from self.finish()

    def _change(self, current: _Open, event: GroupEvent) -> None:
        actor = _actor(event)
        if event.kind is EventKind.MEMBER_JOINING:
            if current.joined_ms is not None:
                # another join phase follows before the assignment
                current.joins, current.joined_ms = {}, None
            self._joining(current, event)
            return
        trigger = _Trigger(cause_of(event), actor if event.member_id else None, event.detail.get("reason"))
        if event.kind is EventKind.REBALANCE_STARTED:
            current.triggers.append(trigger)
        else:
            current.left.append(trigger)
            self._release(event.member_id, event.detail.get("last_heartbeat_ms", event.at_ms))

    def _joining(self, current: _Open, event: GroupEvent) -> None:
        if event.member_id is None:
            return
        current.joins.setdefault(event.member_id, event.at_ms)
        replaced = event.detail.get("replaced")
        if replaced is not None:
            self._replace(str(replaced), event.member_id, _actor(event))
        revoked = event.detail.get("revoked")
        if revoked is not None:
            for partition in _partitions(revoked):
                self.released_ms.setdefault(partition, event.at_ms)
        elif not event.detail.get("retained"):
            self._release(event.member_id, event.at_ms)

    def _replace(self, old_id: str, new_id: str, actor: Actor) -> None:
        if old_id in self.members:
            self.members = {new_id if key == old_id else key: each for key, each in self.members.items()}
            self.members[new_id] = actor
        if self.owners is not None:
            self._assign({p: new_id if owner == old_id else owner for p, owner in self.owners.items()})

    def _release(self, member_id: str | None, at_ms: int) -> None:
        for partition in self._owned.get(member_id or "", ()):
            self.released_ms.setdefault(partition, at_ms)

    def _assign(self, owners: _Owners | None) -> None:
        self.owners, self._owned = owners, {}
        for partition, owner in (owners or {}).items():
            self._owned.setdefault(owner, []).append(partition)

    def _end(self, ended: _Open, assigned: GroupEvent) -> Rebalance:
        members = self.members if ended.members is None else ended.members
        assignment = assigned.detail.get("assignment")
        after = None if assignment is None else _owners(assignment)
        trigger, cause_origin = self._cause_of(ended, self.owners, after)
        slowest = self._slowest(ended)
        effect = self._effect(ended, assigned.at_ms, after)
        if after is None or not members:
            # a group without members needs no owners
            self.released_ms = {}
        rebalance = Rebalance(
            group=assigned.group,
            generation=assigned.generation or 0,
            cause=trigger.cause,
            reason=trigger.reason,
            difference=_difference(self.members, members, ended, trigger),
            actor=trigger.actor,
            started_ms=ended.started_ms,
            completed_ms=assigned.at_ms,
            phases=_phases(ended, assigned.at_ms),
            slowest_member=slowest,
            members=len(members),
            repeated_records=None,
            lag_added=None,
            origins=_origins(ended, trigger, cause_origin, slowest, effect),
            **(effect or _Effect())._asdict(),
        )
        self.members, self.protocol = members, ended.protocol or self.protocol
        self._assign(after)
        return rebalance

    def _effect(self, ended: _Open, assigned_ms: int, after: _Owners | None) -> _Effect | None:
        """Returns what the assignment changed; None unless this assignment and the previous one are known."""
        before = self.owners
        if before is None or after is None:
            return None
        return _Effect(
            _moves(before, after),
            sum(1 for p, owner in after.items() if before.get(p, owner) != owner),
            len(before.keys() - after.keys()),
            self._unowned_seconds(ended, assigned_ms, before, after),
        )

    def _cause_of(self, ended: _Open, before: _Owners | None, after: _Owners | None) -> tuple[_Trigger, Origin]:
        late = [left for left in ended.left if left.cause is Cause.JOIN_TIMED_OUT]
        if late:
            return late[0], Origin.SEEN
        if not ended.triggers:
            return _Trigger(Cause.UNKNOWN, None, None), Origin.UNKNOWN
        first = ended.triggers[0]
        is_open = first.reason is None and first.cause in (Cause.LEADER_REJOINED, Cause.UNKNOWN)
        if is_open and first.actor is not None and before is not None and after is not None:
            is_eager = "cooperative" not in (ended.protocol or "")
            if after.keys() - before.keys() or (is_eager and before.keys() - after.keys()):
                return _Trigger(Cause.PARTITIONS_CHANGED, first.actor, None), Origin.INFERRED
        if first.cause is Cause.LEFT and first.actor is not None and first.actor.member_id in self.returned:
            return _Trigger(self.returned[str(first.actor.member_id)], first.actor, None), Origin.INFERRED
        if first.cause is Cause.UNKNOWN and self.protocol and ended.protocol and self.protocol != ended.protocol:
            return _Trigger(Cause.ASSIGNOR_CHANGED, first.actor, first.reason), Origin.INFERRED
        return first, Origin.SEEN

    def _slowest(self, ended: _Open) -> str | None:
        late = [left for left in ended.left if left.cause is Cause.JOIN_TIMED_OUT and left.actor is not None]
        if late and late[0].actor is not None:
            return late[0].actor.member_id
        return max(ended.joins, key=lambda member_id: ended.joins[member_id], default=None)

    def _unowned_seconds(self, ended: _Open, assigned_ms: int, before: _Owners, after: _Owners) -> float:
        total_ms = 0
        for partition, owner in after.items():
            released_ms = self.released_ms.pop(partition, None)
            if released_ms is not None:
                total_ms += max(max(assigned_ms, ended.syncs.get(owner, assigned_ms)) - released_ms, 0)
        # only the next rebalance assigns a partition that its owner has revoked; later, no member may have subscribed
        self.released_ms = {p: at_ms for p, at_ms in self.released_ms.items() if p in before}
        for partition, owner in before.items():
            if partition not in after:
                self.released_ms.setdefault(partition, max(assigned_ms, ended.syncs.get(owner, assigned_ms)))
        return total_ms / 1000


def _with_reports(rebalance: Rebalance, reports: Sequence[ApplicationReport]) -> Rebalance:
    for report in reports:
        rebalance = report.added_to(rebalance)
    return rebalance


def _origins(
    ended: _Open, trigger: _Trigger, cause_origin: Origin, slowest: str | None, effect: _Effect | None
) -> dict[str, Origin]:
    names = ["generation", "completed_ms", "members"]
    if ended.triggers or ended.joins:
        names += ["started_ms", "phases", "reason", "difference"]
    names += ["actor"] * (trigger.actor is not None) + ["slowest_member"] * (slowest is not None)
    names += _Effect._fields if effect is not None else ()
    causes = {} if trigger.cause is Cause.UNKNOWN else {"cause": cause_origin}
    return dict.fromkeys(names, Origin.SEEN) | causes


def _phases(ended: _Open, assigned_ms: int) -> Phases:
    if ended.joined_ms is None:
        return Phases(join_ms=0, sync_ms=assigned_ms - ended.started_ms)
    return Phases(join_ms=ended.joined_ms - ended.started_ms, sync_ms=assigned_ms - ended.joined_ms)


def _moves(before: _Owners, after: _Owners) -> dict[str, MemberMove]:
    gained: dict[str, int] = {}
    lost: dict[str, int] = {}
    for partition in before.keys() | after.keys():
        old, new = before.get(partition), after.get(partition)
        if old != new:
            if old is not None:
                lost[old] = lost.get(old, 0) + 1
            if new is not None:
                gained[new] = gained.get(new, 0) + 1
    return {member: MemberMove(gained.get(member, 0), lost.get(member, 0)) for member in sorted(gained.keys() | lost)}


def _difference(
    before: Mapping[str, Actor], after: Mapping[str, Actor], ended: _Open, trigger: _Trigger
) -> str:
    """Returns the changes of the member list, and further causes than the first."""
    removed = {left.actor.member_id: left.cause for left in ended.left if left.actor is not None}
    joined = sorted(member_name(after[member]) for member in after.keys() - before.keys())
    gone = sorted(
        f"{member_name(before[member])} ({removed[member].value})" if member in removed else member_name(before[member])
        for member in before.keys() - after.keys()
    )
    texts = [f"joined: {bounded_names(joined)}"] * bool(joined)
    texts += [f"no longer a member: {bounded_names(gone)}"] * bool(gone)
    others = [each for each in ended.triggers if each is not trigger and each.cause is not trigger.cause]
    also = [f"{each.cause.value} {member_name(each.actor)}" if each.actor else each.cause.value for each in others]
    texts += [f"also: {bounded_names(dict.fromkeys(also))}"] * bool(also)
    text = "; ".join(texts) or "same members"
    return f"{text[:1].upper()}{text[1:]}."


def member_name(actor: Actor) -> str:
    """Returns the group instance id, client id or member id of a member, the first that is known."""
    return actor.group_instance_id or actor.client_id or actor.member_id or "unknown member"


def _actor(event: GroupEvent) -> Actor:
    return Actor(event.member_id, event.client_id, event.host, event.group_instance_id)


def _members(form: Any) -> dict[str, Actor]:
    return {
        member_id: Actor(member_id, client_id, host, instance_id)
        for member_id, (client_id, host, instance_id) in (form or {}).items()
    }


def _owners(assignment: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[TopicPartition, str]:
    return {partition: member_id for member_id, topics in assignment.items() for partition in _partitions(topics)}


def _partitions(topics: Mapping[str, Sequence[int]]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)
