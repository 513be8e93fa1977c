"""Rebalances of consumer, share and streams groups, from their records.

These groups have no generations: each change of the members or partitions increases the epoch of the group, and the
members take over the new assignment one by one. Each epoch is one rebalance here. It begins with the record of the
epoch, and is completed when the last member has stored an assignment of the epoch.

Source: KIP-848, KIP-932, KIP-1071; Kafka `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

from spark_groupsource.model import bounded_names
from spark_groupsource.monitor.rebalances.findings import GroupFacts, MemberFacts
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, member_name
from spark_groupsource.wire.group_events import EventKind, GroupEvent
from spark_groupsource.wire.record_json import key_json, value_json

# record types: the epoch of the group, the members, what each member owns
_EPOCH = frozenset({3, 11, 17})
_MEMBER = frozenset({5, 10, 19})
_CURRENT = frozenset({8, 14, 22})
_TYPE = struct.Struct(">h")
_SEEN = frozenset({Cause.JOINED, Cause.SUBSCRIPTION_CHANGED, Cause.STATIC_REPLACED})


class EpochRecord(NamedTuple):
    """A record of one group; `member_id` is None for an epoch, `value` for a tombstone."""

    timestamp_ms: int
    kind: int
    member_id: str | None
    value: Mapping[str, Any] | None


def epoch_record(key: bytes, value: bytes | None, timestamp_ms: int) -> tuple[str, EpochRecord] | None:
    """Returns group id and record; None for a record of another type.

    Raises: CorruptRecordError.
    """
    kind = _TYPE.unpack_from(key)[0] if len(key) >= _TYPE.size else -1
    if kind not in _EPOCH | _MEMBER | _CURRENT:
        return None
    fields = key_json(key)["data"]
    data = None if value is None else value_json(key, value)["data"]
    return fields["groupId"], EpochRecord(timestamp_ms, kind, fields.get("memberId"), data)


@dataclass
class _Epoch:
    """An epoch and the time of its last record.

    Attributes:
        members: member id -> client id, host, group instance id.
        after: member id -> what it owns at the end of the epoch.
    """

    number: int
    started_ms: int
    completed_ms: int
    cause: Cause
    actor: Actor | None
    difference: str
    members: Mapping[str, list[str | None]]
    after: dict[str, frozenset[tuple[str, int]]]


@dataclass
class _Group:
    """State of a group between two records."""

    members: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    owned: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    changes: list[tuple[Cause, Actor]] = field(default_factory=list)
    number: int = 0


def epoch_events(group: str, records: Iterable[EpochRecord]) -> Iterator[GroupEvent]:
    """Yields the events of one group, given its records in the order of the log; partitions have the id of the topic.

    JOINED, SUBSCRIPTION_CHANGED and STATIC_REPLACED are SEEN. A member that is gone has LEFT (INFERRED): the records
    do not show whether it left or its session expired. PARTITIONS_CHANGED (INFERRED) is an epoch without a change of
    the members.
    """
    for epoch in _epochs(records):
        yield from _events(group, epoch)


def epoch_facts(group: str, records: Iterable[EpochRecord]) -> GroupFacts:
    """Returns the members of a group at the end of its records."""
    state, known = _Group(), {}
    for record in records:
        _apply(state, record)
        known.update(_member_facts(state))
    current = _member_facts(state)
    return GroupFacts(group, None, tuple(current.values()), known, has_epochs=True)


def _member_facts(state: _Group) -> dict[str, MemberFacts]:
    return {
        member_id: MemberFacts(
            member_id,
            value.get("clientId", ""),
            value.get("clientHost", ""),
            value.get("instanceId"),
            None,
            value.get("rebalanceTimeoutMs"),
            len(state.owned.get(member_id, ())),
        )
        for member_id, value in state.members.items()
    }


def _epochs(records: Iterable[EpochRecord]) -> Iterator[_Epoch]:
    state, current = _Group(), None
    for record in records:
        if record.kind in _EPOCH:
            if current is not None:
                yield current
            current = _started(state, record) if record.value is not None else None
        _apply(state, record)
        if current is not None and record.kind in _CURRENT and record.value is not None:
            current.after[record.member_id or ""] = state.owned[record.member_id or ""]
            if record.value["memberEpoch"] == current.number:
                current.completed_ms = record.timestamp_ms
    if current is not None:
        yield current


def _started(state: _Group, record: EpochRecord) -> _Epoch:
    assert record.value is not None
    number = int(record.value["epoch"])
    causes = state.changes
    if causes:
        cause, actor = causes[0]
        others = [f"{each.value} {member_name(member)}" for each, member in causes]
        difference = f"{bounded_names(dict.fromkeys(others))}."
    elif state.number == 0 and number > 1 and not state.members:
        cause, actor, difference = Cause.UNKNOWN, None, "The records before are not in the log."
    else:
        cause, actor, difference = Cause.PARTITIONS_CHANGED, None, "Same members."
    at_ms = record.timestamp_ms
    members = {each: list(_actor(each, value)[1:4]) for each, value in state.members.items()}
    return _Epoch(number, at_ms, at_ms, cause, actor, difference, members, dict(state.owned))


def _apply(state: _Group, record: EpochRecord) -> None:
    member_id, value = record.member_id or "", record.value
    if record.kind in _EPOCH:
        state.changes = []
        if value is None:
            state.members, state.owned, state.number = {}, {}, 0
        else:
            state.number = int(value["epoch"])
    elif record.kind in _CURRENT:
        if value is None:
            state.owned.pop(member_id, None)
        else:
            state.owned[member_id] = _partitions(value)
    elif value is None:
        gone = state.members.pop(member_id, None)
        if gone is not None:
            state.changes.append((Cause.LEFT, _actor(member_id, gone)))
    else:
        cause = _cause_of_member(state, member_id, value)
        state.members[member_id] = value
        if cause is not None:
            state.changes.append((cause, _actor(member_id, value)))


def _cause_of_member(state: _Group, member_id: str, value: Mapping[str, Any]) -> Cause | None:
    before = state.members.get(member_id)
    if before is None:
        instance = value.get("instanceId")
        replaced = instance is not None and any(_instance_left(each, instance) for each in state.changes)
        # the record of the former member id is deleted with the same request
        state.changes = [each for each in state.changes if instance is None or not _instance_left(each, instance)]
        return Cause.STATIC_REPLACED if replaced else Cause.JOINED
    names = ("subscribedTopicNames", "subscribedTopicRegex")
    return Cause.SUBSCRIPTION_CHANGED if any(before.get(n) != value.get(n) for n in names) else None


def _instance_left(change: tuple[Cause, Actor], instance: str) -> bool:
    return change[0] is Cause.LEFT and change[1].group_instance_id == instance


def _events(group: str, epoch: _Epoch) -> Iterator[GroupEvent]:
    actor, is_seen = epoch.actor or Actor(), epoch.cause in _SEEN
    detail = {"cause": epoch.cause.value, "difference": epoch.difference, "inferred": [] if is_seen else ["cause"]}
    kind = EventKind.REBALANCE_STARTED
    yield GroupEvent(epoch.started_ms, group, kind, epoch.number, *actor[:4], detail=detail)
    # there is no join phase
    members = {"members": epoch.members, "is_late": True}
    yield GroupEvent(epoch.started_ms, group, EventKind.JOIN_COMPLETED, epoch.number, detail=members)
    assignment: dict[str, dict[str, list[int]]] = {}
    for member_id, owned in epoch.after.items():
        for topic_id, number in sorted(owned):
            assignment.setdefault(member_id, {}).setdefault(topic_id, []).append(number)
    kind = EventKind.ASSIGNED
    yield GroupEvent(epoch.completed_ms, group, kind, epoch.number, detail={"assignment": assignment})


def _partitions(value: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Returns topic id and partition of what a member owns; empty for the tasks of a streams group."""
    topics = value.get("assignedPartitions") or ()
    return frozenset((topic["topicId"], number) for topic in topics for number in topic["partitions"])


def _actor(member_id: str, value: Mapping[str, Any]) -> Actor:
    return Actor(member_id, value.get("clientId"), value.get("clientHost"), value.get("instanceId"))
