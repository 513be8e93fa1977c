"""Events of a group that its records in `__consumer_offsets` show.

A record shows the end of the join phase and the assignment. The time at which a member stopped reading is not stored:
the end of the join phase is used, so the time without an owner is a lower bound.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping

from spark_groupsource.monitor.rebalances.cause_rules import (
    COOPERATIVE_STICKY,
    InferredCause,
    infer_cause,
    reported_members,
)
from spark_groupsource.monitor.rebalances.group_steps import GroupGeneration, GroupRecord, Step, identity, steps
from spark_groupsource.monitor.rebalances.rebalance import Cause
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.group_records import MemberValue


def history_events(
    group: str, records: Iterable[GroupRecord], reports: Iterable[GroupEvent] = ()
) -> Iterator[GroupEvent]:
    """Yields the events of one group, as the coordinator would have reported them.

    Args:
        records: of the group, in the order of the log.
        reports: of the members of applications, which show some causes better.
    """
    reported = reported_members(reports)
    for step in steps(records):
        yield from _events(group, step, infer_cause(step, reported))


def _events(group: str, step: Step, found: InferredCause) -> Iterator[GroupEvent]:
    current, previous = step.current, step.previous
    joined_ms, completed_ms, generation = current.joined_ms, current.completed_ms, current.value.generation_id
    started_ms = _started_ms(step, found.cause)

    def event(kind: EventKind, at_ms: int, member: MemberValue | None = None, **detail: Any) -> GroupEvent:
        known = {name: value for name, value in detail.items() if value is not None}
        if member is None:
            return GroupEvent(at_ms, group, kind, generation, detail=known)
        names = member.member_id, member.client_id, member.client_host, member.group_instance_id
        return GroupEvent(at_ms, group, kind, generation, *names, detail=known)

    yield event(
        EventKind.REBALANCE_STARTED,
        joined_ms if started_ms is None else min(started_ms, joined_ms),
        found.actor,
        cause=found.cause.value,
        difference=found.difference,
        inferred=["cause", "started_ms"],
        is_late=True if started_ms is None else None,
    )
    for member in step.gone:
        cause = found.cause.value if member is found.actor else None
        has_expired = found.cause is Cause.SESSION_EXPIRED
        last_ms = max(joined_ms - member.session_timeout_ms, previous.completed_ms) if has_expired else None
        yield event(
            EventKind.MEMBER_LEFT,
            joined_ms,
            member,
            cause=cause,
            inferred=["cause"],
            is_expired=has_expired or None,
            last_heartbeat_ms=last_ms,
        )
    is_cooperative = current.value.protocol_name == COOPERATIVE_STICKY
    for name, member in current.members.items():
        former = previous.members.get(name, member)
        retained = len(previous.partitions_of(name)) if is_cooperative else 0
        replaced = None if former.member_id == member.member_id else former.member_id
        yield event(EventKind.MEMBER_JOINING, joined_ms, member, retained=retained or None, replaced=replaced)
    members = {m.member_id: [m.client_id, m.client_host, m.group_instance_id] for m in current.value.members}
    yield event(
        EventKind.JOIN_COMPLETED,
        joined_ms,
        leader=current.value.leader,
        protocol=current.value.protocol_name,
        members=members,
        is_late=None if current.members and current.value.state_timestamp_ms > 0 else True,
    )
    yield event(EventKind.ASSIGNED, completed_ms, assignment=_assignment(current))


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


def _assignment(generation: GroupGeneration) -> Mapping[str, Mapping[str, list[int]]]:
    ids = {identity(member): member.member_id for member in generation.value.members}
    found: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in ids.values()}
    for partition, name in generation.owners.items():
        found[ids[name]].setdefault(partition.topic, []).append(partition.partition)
    return found
