"""Events of a group that its records in `__consumer_offsets` show.

A record shows the end of the join phase and the assignment. The time at which a member stopped reading is not stored:
the end of the join phase is used, so the time without an owner is a lower bound.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping

from spark_groupsource.monitor.rebalances.cause_rules import COOPERATIVE_STICKY
from spark_groupsource.monitor.rebalances.group_steps import GroupGeneration, GroupRecord, Step, identity, steps
from spark_groupsource.monitor.rebalances.rebalance import Rebalance
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.group_records import MemberValue


def events_of_history(group: str, records: Iterable[GroupRecord], found: Iterable[Rebalance]) -> Iterator[GroupEvent]:
    """Yields the events of one group.

    Args:
        records: of the group, in the order of the log.
        found: the rebalances of the same records, for start and cause.
    """
    by_generation = {rebalance.generation: rebalance for rebalance in found}
    for step in steps(records):
        yield from _events(group, step, by_generation.get(step.current.value.generation_id))


def _events(group: str, step: Step, rebalance: Rebalance | None) -> Iterator[GroupEvent]:
    current, previous = step.current, step.previous
    generation = current.value.generation_id
    started_ms = current.joined_ms if rebalance is None or rebalance.started_ms is None else rebalance.started_ms
    started_ms = min(started_ms, current.joined_ms)
    cause = "UNKNOWN" if rebalance is None else rebalance.cause.value
    yield GroupEvent(started_ms, group, EventKind.REBALANCE_STARTED, generation, detail={"cause": cause})
    for member in step.gone:
        yield _member(group, EventKind.MEMBER_LEFT, started_ms, generation, member, {})
    is_cooperative = current.value.protocol_name == COOPERATIVE_STICKY
    for name, member in current.members.items():
        retained = len(previous.partitions_of(name)) if is_cooperative and name in previous.members else 0
        joining = {"retained": retained} if retained else {}
        yield _member(group, EventKind.MEMBER_JOINING, current.joined_ms, generation, member, joining)
    members = {m.member_id: [m.client_id, m.client_host, m.group_instance_id] for m in current.value.members}
    detail = {"leader": current.value.leader, "protocol": current.value.protocol_name, "members": members}
    yield GroupEvent(current.joined_ms, group, EventKind.JOIN_COMPLETED, generation, detail=detail)
    yield GroupEvent(
        current.completed_ms, group, EventKind.ASSIGNED, generation, detail={"assignment": _assignment(current)}
    )


def _member(
    group: str, kind: EventKind, at_ms: int, generation: int, member: MemberValue, detail: Mapping[str, int]
) -> GroupEvent:
    return GroupEvent(
        at_ms,
        group,
        kind,
        generation,
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        detail=detail,
    )


def _assignment(generation: GroupGeneration) -> dict[str, dict[str, list[int]]]:
    ids = {identity(member): member.member_id for member in generation.value.members}
    found: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in ids.values()}
    for partition, name in generation.owners.items():
        found[ids[name]].setdefault(partition.topic, []).append(partition.partition)
    return found
