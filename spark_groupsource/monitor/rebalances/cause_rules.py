"""Rebalances of a group, inferred from its records in `__consumer_offsets`.

The coordinator stores a group record when a rebalance completes: generation, members with subscription and assignment,
the time of the end of the join phase (Kafka `currentStateTimestamp`), and the timestamp of the record. The cause is
inferred from two records and the commits between them, UNKNOWN if they do not show it.

Source: Kafka `GroupMetadataManager` (when a JoinGroup of a stable group starts a rebalance).
"""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Iterator, Mapping, NamedTuple

from spark_groupsource.model import bounded_names
from spark_groupsource.monitor.rebalances.application_reports import ReportedMembers
from spark_groupsource.monitor.rebalances.departures import NOTICE_MS, departure, return_ms
from spark_groupsource.monitor.rebalances.group_steps import GroupRecord, Step, identity, steps
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, MemberMove, Origin, Phases, Rebalance
from spark_groupsource.wire.group_records import MemberValue

COOPERATIVE_STICKY = "cooperative-sticky"
_NOTHING = ReportedMembers()
# the first of these is the cause where several members are gone
_DEPARTURES = (Cause.POLL_EXCEEDED, Cause.SESSION_EXPIRED, Cause.REMOVED_BY_OPERATOR, Cause.LEFT)
_TOLERANCE = 0.95
# rebalances in which a member that is gone may join again
_RETURN_STEPS = 3


class _Finding(NamedTuple):
    """Cause, difference to the previous generation in words, and the member that caused it."""

    cause: Cause
    difference: str
    actor: MemberValue | None = None


def rebalances(
    group: str, records: Iterable[GroupRecord], reported: ReportedMembers = _NOTHING
) -> Iterator[Rebalance]:
    """Yields the rebalances of one group, given its records in the order of the log, and what members report."""
    for step in steps(records):
        yield _rebalance(group, step, _with_reports(step, _cause(step), reported), reported)


def _rebalance(group: str, step: Step, finding: _Finding, reported: ReportedMembers) -> Rebalance:
    current, previous = step.current, step.previous
    started_ms = _started_ms(step, finding.cause)
    is_synced = bool(current.members) and current.value.state_timestamp_ms > 0
    moves, moved = _moves(step) if step.is_complete else ({}, 0)
    sync_ms = current.completed_ms - current.joined_ms if is_synced else None
    unowned = _unowned_seconds(step, finding.cause, reported.stopped_ms) if step.is_complete else None
    actor = finding.actor
    found = Rebalance(
        group=group,
        generation=current.value.generation_id,
        cause=finding.cause,
        reason=None,
        difference=finding.difference,
        actor=None if actor is None else _actor(actor),
        started_ms=started_ms,
        completed_ms=current.completed_ms,
        phases=Phases(join_ms=None if started_ms is None else current.joined_ms - started_ms, sync_ms=sync_ms),
        slowest_member=actor.member_id if finding.cause is Cause.JOIN_TIMED_OUT and actor is not None else None,
        members=len(current.members),
        moves=moves,
        partitions_moved=moved,
        partitions_unassigned=len(previous.owners.keys() - current.owners.keys()),
        unowned_seconds=unowned,
        repeated_records=None,
        lag_added=None,
        origins={},
    )
    return found._replace(origins=_origins(found))


def _origins(found: Rebalance) -> dict[str, Origin]:
    inferred = {
        "cause": None if found.cause is Cause.UNKNOWN else found.cause,
        "actor": found.actor,
        "started_ms": found.started_ms,
        "join_ms": found.phases.join_ms,
        "slowest_member": found.slowest_member,
        "unowned_seconds": found.unowned_seconds,
    }
    seen = ("completed_ms", "members", "moves", "partitions_moved", "partitions_unassigned")
    origins = {name: Origin.INFERRED for name, value in inferred.items() if value is not None}
    origins |= dict.fromkeys(seen, Origin.SEEN)
    return origins | ({} if found.phases.sync_ms is None else {"sync_ms": Origin.SEEN})


# -- cause -----------------------------------------------------------------------------------------------------------


def _cause(step: Step) -> _Finding:
    """Infers the cause; the first rule that applies decides."""
    if not step.is_complete:
        return _Finding(Cause.UNKNOWN, "The records before are not in the log.")
    for rule in _RULES:
        finding = rule(step)
        if finding is not None:
            return finding
    return _Finding(Cause.UNKNOWN, "No difference to the previous record.")


def _with_reports(step: Step, finding: _Finding, reported: ReportedMembers) -> _Finding:
    """Returns the finding, unless members that report contradict it."""
    actor, generation = finding.actor, step.current.value.generation_id
    first_ms = reported.first_join_ms.get(generation)
    timeout_ms = max((m.rebalance_timeout_ms for m in step.previous.members.values()), default=0)
    # members are notified by a heartbeat
    tolerance_ms = min(NOTICE_MS, timeout_ms // 10)
    join_ms = 0 if first_ms is None or step.has_moved else step.current.joined_ms - first_ms
    if step.gone and 0 < timeout_ms <= join_ms + tolerance_ms:
        return _timed_out(step, timeout_ms)
    if finding.cause is Cause.REMOVED_BY_OPERATOR and actor is not None and actor.group_instance_id is None:
        # a member that another client has removed reports it after its return: this one was started again
        client = actor.client_id, actor.client_host
        back = {
            m.member_id
            for s in (step, *step.later[:_RETURN_STEPS])
            for m in s.joined
            if (m.client_id, m.client_host) == client
        }
        if back & reported.joined and actor.member_id not in reported.left:
            return finding._replace(cause=Cause.LEFT)
    if finding.cause is Cause.LEADER_REJOINED and actor is not None:
        at = generation, actor.member_id
        if at in reported.stopped_ms and at not in reported.causes:
            # the leader has joined because the group was already rebalancing
            return _Finding(Cause.JOINED, "Same members: another one joined and left before the assignment.")
    return finding


def _join_timed_out(step: Step) -> _Finding | None:
    """A member is gone after a join phase that lasted the rebalance timeout: the others had stopped committing.

    While the coordinator moves, no member can commit.
    """
    previous = step.previous
    if not step.gone or not step.current.members or step.has_moved:
        return None
    timeout_ms = max(m.rebalance_timeout_ms for m in previous.members.values())
    commits = [times for name in step.remaining if (times := step.current.record.commits.get(name)) is not None]
    # in the eager protocol a member does not commit between its JoinGroup and the end of the join phase
    silences_ms = [step.current.joined_ms - max(times.last_ms, previous.completed_ms) for times in commits]
    gaps_ms = [max(times.longest_gap_ms, times.last_gap_ms) for times in commits]
    if not commits or min(silences_ms) < timeout_ms * _TOLERANCE or timeout_ms <= 0:
        return None
    if max(gaps_ms) * 2 > timeout_ms or min(silences_ms) > timeout_ms + NOTICE_MS + max(gaps_ms):
        return None
    return _timed_out(step, timeout_ms)


def _timed_out(step: Step, timeout_ms: int) -> _Finding:
    text = f"Did not join in {timeout_ms} ms: {_names(step.gone)}."
    return _Finding(Cause.JOIN_TIMED_OUT, text, step.gone[0])


def _replaced_static(step: Step) -> _Finding | None:
    """A static member has a new member id, and no other member joined or is gone."""
    previous, current = step.previous, step.current
    replaced = [m for name, m in current.members.items() if name in previous.members]
    replaced = [m for m in replaced if m.member_id != previous.members[identity(m)].member_id]
    if step.joined or step.gone or not replaced:
        return None
    if current.value.protocol_name != previous.value.protocol_name:
        return _Finding(Cause.ASSIGNOR_CHANGED, _protocols(step), replaced[0])
    if any(current.topics[identity(m)] != previous.topics[identity(m)] for m in replaced):
        return _Finding(Cause.SUBSCRIPTION_CHANGED, f"Other topics subscribed: {_names(replaced)}.", replaced[0])
    return _Finding(Cause.STATIC_REPLACED, f"New member id of static member: {_names(replaced)}.", replaced[0])


def _second_round(step: Step) -> _Finding | None:
    """The partitions that the previous rebalance revoked are assigned.

    The members that revoked them have rejoined at once, so another change than this came later.
    """
    added = step.current.owners.keys() - step.previous.owners.keys()
    if not added or step.current.value.protocol_name != COOPERATIVE_STICKY or not added <= step.before.owners.keys():
        return None
    revoked = {step.before.owners[tp] for tp in added}
    if not revoked & step.previous.members.keys():
        return None
    actor = next((m for name, m in step.current.members.items() if name in revoked), None)
    text = f"{len(added)} revoked partitions assigned to their new owners."
    return _Finding(Cause.COOPERATIVE_SECOND_ROUND, text, actor)


def _membership(step: Step) -> _Finding | None:
    joined, gone = step.joined, step.gone
    if not joined and not gone:
        return None
    clients = {(m.client_id, m.client_host) for m in step.previous.members.values()}
    new = [m for m in joined if (m.client_id, m.client_host) not in clients]
    back = [m for m in gone if return_ms(step, m) == 0]
    returned = Counter((m.client_id, m.client_host) for m in joined)
    if joined and step.has_moved and returned <= Counter((m.client_id, m.client_host) for m in gone):
        return _Finding(Cause.COORDINATOR_MOVED, f"Joined again at another coordinator: {_names(joined)}.")
    if gone and _is_changed_protocol(step) and joined and not new:
        return _Finding(Cause.ASSIGNOR_CHANGED, _protocols(step), joined[0])
    text = _difference(joined, gone)
    if joined and (new or not back):
        # of members that joined at the same time, a returning one has not caused the rebalance
        return _Finding(Cause.JOINED, text, (new or joined)[0])
    found = {identity(m): departure(step, m).cause for m in (back or gone)}
    cause = min(found.values(), key=_DEPARTURES.index)
    actor = next(m for m in gone if found.get(identity(m)) is cause)
    return _Finding(cause, text, actor)


def _changed_subscription(step: Step) -> _Finding | None:
    changed = [m for name, m in step.current.members.items() if step.current.topics[name] != step.previous.topics[name]]
    if not changed:
        return None
    return _Finding(Cause.SUBSCRIPTION_CHANGED, f"Other topics subscribed: {_names(changed)}.", changed[0])


def _changed_assignor(step: Step) -> _Finding | None:
    return (
        _Finding(Cause.ASSIGNOR_CHANGED, _protocols(step), step.current.leader())
        if _is_changed_protocol(step)
        else None
    )


def _moved_coordinator(step: Step) -> _Finding | None:
    """After a restart of brokers, the leader may assign the partitions that have a leader already."""
    if not step.has_moved or not step.current.members:
        return None
    return _Finding(Cause.COORDINATOR_MOVED, "Same members at another coordinator.")


def _changed_partitions(step: Step) -> _Finding | None:
    now, then = step.current.owners, step.previous.owners
    if now.keys() == then.keys():
        return None
    return _Finding(
        Cause.PARTITIONS_CHANGED, f"{len(now)} partitions assigned, before {len(then)}.", step.current.leader()
    )


def _rejoined_leader(step: Step) -> _Finding | None:
    """Any other member that rejoins a stable group with the same subscription starts no rebalance."""
    if not step.current.members:
        return None
    return _Finding(Cause.LEADER_REJOINED, "Same members, subscriptions and partitions.", step.current.leader())


_RULES = (
    _join_timed_out,
    _replaced_static,
    _second_round,
    _membership,
    _changed_subscription,
    _changed_assignor,
    _moved_coordinator,
    _changed_partitions,
    _rejoined_leader,
)


def _is_changed_protocol(step: Step) -> bool:
    names = (step.previous.value.protocol_name, step.current.value.protocol_name)
    return None not in names and names[0] != names[1]


def _protocols(step: Step) -> str:
    return f"Assignor {step.current.value.protocol_name}, before {step.previous.value.protocol_name}."


def _difference(joined: list[MemberValue], gone: list[MemberValue]) -> str:
    texts = [f"joined: {_names(joined)}"] * bool(joined) + [f"no longer a member: {_names(gone)}"] * bool(gone)
    text = "; ".join(texts)
    return f"{text[:1].upper()}{text[1:]}."


def _names(members: Iterable[MemberValue]) -> str:
    return bounded_names(sorted(m.group_instance_id or m.client_id for m in members))


def _actor(member: MemberValue) -> Actor:
    return Actor(member.member_id, member.client_id, member.client_host, member.group_instance_id)


# -- times and effect ------------------------------------------------------------------------------------------------


def _started_ms(step: Step, cause: Cause) -> int | None:
    """Returns the start of the rebalance where the history shows it."""
    current, previous = step.current, step.previous
    if not step.is_complete:
        return None
    if not current.members:
        # without members, the join phase ends at once
        return current.joined_ms
    if step.created_ms is not None:
        return step.created_ms
    if cause is Cause.COOPERATIVE_SECOND_ROUND:
        # members that have revoked partitions rejoin at once
        return previous.completed_ms
    if cause is Cause.JOIN_TIMED_OUT:
        return current.joined_ms - max(m.rebalance_timeout_ms for m in previous.members.values())
    return None


def _moves(step: Step) -> tuple[dict[str, MemberMove], int]:
    """Returns the moves by member id, and the number of partitions whose owner changed."""
    now, then = step.current.owners, step.previous.owners
    members = {**step.previous.members, **step.current.members}
    gained = Counter(owner for tp, owner in now.items() if then.get(tp) != owner)
    lost = Counter(owner for tp, owner in then.items() if now.get(tp) != owner)
    moves = {members[name].member_id: MemberMove(gained[name], lost[name]) for name in (gained | lost)}
    return moves, sum(1 for tp, owner in now.items() if then.get(tp, owner) != owner)


def _unowned_seconds(step: Step, cause: Cause, stopped_ms: Mapping[tuple[int, str], int]) -> float | None:
    """Returns a lower bound of the partition-seconds without an owner; None if the group is empty afterwards."""
    current, previous = step.current, step.previous
    if not current.members:
        return None
    is_cooperative = current.value.protocol_name == COOPERATIVE_STICKY
    if current.value.generation_id == previous.value.generation_id:
        # a static member was replaced: its reports are of the join phase before
        stopped_ms = {}
    gone = {identity(m) for m in step.gone}
    owned = Counter(owner for tp, owner in previous.owners.items() if tp in current.owners)
    seconds = 0.0
    for name, count in owned.items():
        if is_cooperative and name not in gone:
            continue
        # in the eager protocol no member reads from the end of the join phase until the assignment
        member = previous.members[name]
        start_ms = stopped_ms.get((current.value.generation_id, member.member_id), current.joined_ms)
        if name in gone and cause is Cause.SESSION_EXPIRED:
            start_ms -= member.session_timeout_ms
        start_ms = max(start_ms, previous.completed_ms)
        seconds += count * max(current.completed_ms - start_ms, 0) / 1_000
    if previous.members:
        # without an owner since the rebalance before: revoked, or of the only member that subscribed to them
        for tp in (current.owners.keys() - previous.owners.keys()) & step.before.owners.keys():
            is_removed = step.before.owners[tp] not in previous.members
            start_ms = previous.joined_ms if is_removed else previous.completed_ms
            seconds += (current.completed_ms - start_ms) / 1_000
    return round(seconds, 3)
