"""Causes of rebalances, inferred from group records of `__consumer_offsets`.

The coordinator stores a group record when a rebalance completes: generation, members with subscription and assignment,
the time of the end of the join phase (Kafka `currentStateTimestamp`), and the timestamp of the record. The cause is
inferred from two records and the commits between them, UNKNOWN if they do not show it, and from what members report.

Source: Kafka `GroupMetadataManager` (when a JoinGroup of a stable group starts a rebalance).
"""

from __future__ import annotations

from collections import Counter
from typing import AbstractSet, Callable, Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.model import bounded_names
from spark_groupsource.monitor.rebalances.departures import NOTICE_MS, departure, return_ms
from spark_groupsource.monitor.rebalances.group_steps import Step, identity
from spark_groupsource.monitor.rebalances.rebalance import Cause
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.group_records import MemberValue

COOPERATIVE_STICKY = "cooperative-sticky"
# the first of these is the cause where several members are gone
_DEPARTURES = (Cause.POLL_EXCEEDED, Cause.SESSION_EXPIRED, Cause.REMOVED_BY_OPERATOR, Cause.LEFT)
_TOLERANCE = 0.95
# rebalances in which a member that is gone may join again
_RETURN_STEPS = 3


class InferredCause(NamedTuple):
    """Cause, difference to the previous generation in words, and the member that caused it."""

    cause: Cause
    difference: str
    actor: MemberValue | None = None


class ReportedMembers(NamedTuple):
    """What applications report of their members.

    Attributes:
        joins: generation -> member id -> epoch milliseconds of the JoinGroup.
        joined: member ids that have sent JoinGroup.
        causes: generation and member id of the JoinGroups with a cause.
        left: member ids that have left, or learned that they were removed.
    """

    joins: Mapping[int, Mapping[str, int]] = {}
    joined: AbstractSet[str] = frozenset()
    causes: AbstractSet[tuple[int, str]] = frozenset()
    left: AbstractSet[str] = frozenset()


def reported_members(reports: Iterable[GroupEvent]) -> ReportedMembers:
    """Returns what the events of applications show of single members."""
    joins: dict[int, dict[str, int]] = {}
    joined, causes, left = set(), set(), set()
    for event in reports:
        if event.generation is None or event.member_id is None:
            continue
        if event.kind is EventKind.MEMBER_JOINING:
            joins.setdefault(event.generation, {}).setdefault(event.member_id, event.at_ms)
            joined.add(event.member_id)
        elif event.kind is EventKind.REBALANCE_STARTED:
            causes.add((event.generation, event.member_id))
        elif event.kind is EventKind.MEMBER_LEFT:
            left.add(event.member_id)
    return ReportedMembers(joins, joined, causes, left)


def infer_cause(step: Step, reported: ReportedMembers) -> InferredCause:
    """Infers the cause; the first rule that applies decides, unless members that report contradict it."""
    if not step.is_complete:
        return InferredCause(Cause.UNKNOWN, "The records before are not in the log.")
    found = next((cause for rule in _RULES if (cause := rule(step)) is not None), None)
    return _with_reports(step, found or InferredCause(Cause.UNKNOWN, "No difference to the previous record."), reported)


def _with_reports(step: Step, found: InferredCause, reported: ReportedMembers) -> InferredCause:
    actor, generation = found.actor, step.current.value.generation_id
    joins = reported.joins.get(generation, {})
    # a group that was deleted had the same generations, and other members
    ids = (m.member_id for m in (*step.current.members.values(), *step.previous.members.values()))
    joins_ms = [joins[member_id] for member_id in ids if member_id in joins]
    timeout_ms = max((m.rebalance_timeout_ms for m in step.previous.members.values()), default=0)
    # members are notified by a heartbeat
    tolerance_ms = min(NOTICE_MS, timeout_ms // 10)
    join_ms = 0 if not joins_ms or step.has_moved else step.current.joined_ms - min(joins_ms)
    if step.gone and 0 < timeout_ms <= join_ms + tolerance_ms:
        return _timed_out(step, timeout_ms)
    if found.cause is Cause.REMOVED_BY_OPERATOR and actor is not None and actor.group_instance_id is None:
        # a member that another client has removed reports it after its return: this one was started again
        client = actor.client_id, actor.client_host
        back = {
            m.member_id
            for s in (step, *step.later[:_RETURN_STEPS])
            for m in s.joined
            if (m.client_id, m.client_host) == client
        }
        if back & reported.joined and actor.member_id not in reported.left:
            return found._replace(cause=Cause.LEFT)
    if found.cause is Cause.LEADER_REJOINED and actor is not None:
        if actor.member_id in joins and (generation, actor.member_id) not in reported.causes:
            # the leader has joined because the group was already rebalancing
            return InferredCause(Cause.JOINED, "Same members: another one joined and left before the assignment.")
    return found


def _join_timed_out(step: Step) -> InferredCause | None:
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


def _timed_out(step: Step, timeout_ms: int) -> InferredCause:
    text = f"Did not join in {timeout_ms} ms: {_names(step.gone)}."
    return InferredCause(Cause.JOIN_TIMED_OUT, text, step.gone[0])


def _replaced_static(step: Step) -> InferredCause | None:
    """A static member has a new member id, and no other member joined or is gone."""
    previous, current = step.previous, step.current
    replaced = [m for name, m in current.members.items() if name in previous.members]
    replaced = [m for m in replaced if m.member_id != previous.members[identity(m)].member_id]
    if step.joined or step.gone or not replaced:
        return None
    if current.value.protocol_name != previous.value.protocol_name:
        return InferredCause(Cause.ASSIGNOR_CHANGED, _protocols(step), replaced[0])
    if any(current.topics[identity(m)] != previous.topics[identity(m)] for m in replaced):
        return InferredCause(Cause.SUBSCRIPTION_CHANGED, f"Other topics subscribed: {_names(replaced)}.", replaced[0])
    return InferredCause(Cause.STATIC_REPLACED, f"New member id of static member: {_names(replaced)}.", replaced[0])


def _second_round(step: Step) -> InferredCause | None:
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
    return InferredCause(Cause.COOPERATIVE_SECOND_ROUND, text, actor)


def _membership(step: Step) -> InferredCause | None:
    joined, gone = step.joined, step.gone
    if not joined and not gone:
        return None
    clients = {(m.client_id, m.client_host) for m in step.previous.members.values()}
    new = [m for m in joined if (m.client_id, m.client_host) not in clients]
    back = [m for m in gone if return_ms(step, m) == 0]
    returned = Counter((m.client_id, m.client_host) for m in joined)
    if joined and step.has_moved and returned <= Counter((m.client_id, m.client_host) for m in gone):
        return InferredCause(Cause.COORDINATOR_MOVED, f"Joined again at another coordinator: {_names(joined)}.")
    if gone and _is_changed_protocol(step) and joined and not new:
        return InferredCause(Cause.ASSIGNOR_CHANGED, _protocols(step), joined[0])
    text = _difference(joined, gone)
    if joined and (new or not back):
        # of members that joined at the same time, a returning one has not caused the rebalance
        return InferredCause(Cause.JOINED, text, (new or joined)[0])
    found = {identity(m): departure(step, m).cause for m in (back or gone)}
    cause = min(found.values(), key=_DEPARTURES.index)
    actor = next(m for m in gone if found.get(identity(m)) is cause)
    return InferredCause(cause, text, actor)


def _changed_subscription(step: Step) -> InferredCause | None:
    changed = [m for name, m in step.current.members.items() if step.current.topics[name] != step.previous.topics[name]]
    if not changed:
        return None
    return InferredCause(Cause.SUBSCRIPTION_CHANGED, f"Other topics subscribed: {_names(changed)}.", changed[0])


def _changed_assignor(step: Step) -> InferredCause | None:
    return (
        InferredCause(Cause.ASSIGNOR_CHANGED, _protocols(step), step.current.leader())
        if _is_changed_protocol(step)
        else None
    )


def _moved_coordinator(step: Step) -> InferredCause | None:
    """After a restart of brokers, the leader may assign the partitions that have a leader already."""
    if not step.has_moved or not step.current.members:
        return None
    return InferredCause(Cause.COORDINATOR_MOVED, "Same members at another coordinator.")


def _changed_partitions(step: Step) -> InferredCause | None:
    now, then = step.current.owners, step.previous.owners
    if now.keys() == then.keys():
        return None
    return InferredCause(
        Cause.PARTITIONS_CHANGED, f"{len(now)} partitions assigned, before {len(then)}.", step.current.leader()
    )


def _rejoined_leader(step: Step) -> InferredCause | None:
    """Any other member that rejoins a stable group with the same subscription starts no rebalance."""
    if not step.current.members:
        return None
    return InferredCause(Cause.LEADER_REJOINED, "Same members, subscriptions and partitions.", step.current.leader())


_RULES: Sequence[Callable[[Step], InferredCause | None]] = (
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
