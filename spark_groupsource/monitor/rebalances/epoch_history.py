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
from spark_groupsource.monitor.rebalances.rebalance import Actor, Cause, MemberMove, Origin, Phases, Rebalance
from spark_groupsource.wire.record_json import key_json, value_json

# record types: the epoch of the group, the members, what each member owns
_EPOCH = frozenset({3, 11, 17})
_MEMBER = frozenset({5, 10, 19})
_CURRENT = frozenset({8, 14, 22})
_TYPE = struct.Struct(">h")
_Owned = Mapping[str, "frozenset[tuple[str, int]]"]


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
        before, after: member id -> what it owns, at the end of the epoch before and of this one. The records that
            remove a member precede the epoch which they cause.
    """

    number: int
    started_ms: int
    completed_ms: int
    cause: Cause
    actor: Actor | None
    difference: str
    members: int
    before: _Owned
    after: dict[str, frozenset[tuple[str, int]]]


@dataclass
class _Group:
    """State of a group between two records."""

    members: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    owned: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    changes: list[tuple[Cause, Actor]] = field(default_factory=list)
    number: int = 0


def epoch_rebalances(group: str, records: Iterable[EpochRecord]) -> list[Rebalance]:
    """Returns the rebalances of one group, given its records in the order of the log.

    JOINED, SUBSCRIPTION_CHANGED and STATIC_REPLACED are SEEN. A member that is gone has LEFT (INFERRED): the records
    do not show whether it left or its session expired. PARTITIONS_CHANGED (INFERRED) is an epoch without a change of
    the members.
    """
    return [_rebalance(group, epoch) for epoch in _epochs(records)]


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
            current = _started(state, record, current) if record.value is not None else None
        _apply(state, record)
        if current is not None and record.kind in _CURRENT and record.value is not None:
            current.after[record.member_id or ""] = state.owned[record.member_id or ""]
            if record.value["memberEpoch"] == current.number:
                current.completed_ms = record.timestamp_ms
    if current is not None:
        yield current


def _started(state: _Group, record: EpochRecord, last: _Epoch | None) -> _Epoch:
    assert record.value is not None
    number = int(record.value["epoch"])
    causes = state.changes
    if causes:
        cause, actor = causes[0]
        others = [f"{each.value} {_name(member)}" for each, member in causes]
        difference = f"{bounded_names(dict.fromkeys(others))}."
    elif state.number == 0 and number > 1 and not state.members:
        cause, actor, difference = Cause.UNKNOWN, None, "The records before are not in the log."
    else:
        cause, actor, difference = Cause.PARTITIONS_CHANGED, None, "Same members."
    at_ms = record.timestamp_ms
    before, after = {} if last is None else last.after, dict(state.owned)
    return _Epoch(number, at_ms, at_ms, cause, actor, difference, len(state.members), before, after)


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


def _rebalance(group: str, epoch: _Epoch) -> Rebalance:
    moves, moved = _moves(epoch.before, epoch.after)
    is_seen = epoch.cause in (Cause.JOINED, Cause.SUBSCRIPTION_CHANGED, Cause.STATIC_REPLACED)
    origins = dict.fromkeys(("started_ms", "completed_ms", "members", "moves", "partitions_moved"), Origin.SEEN)
    if epoch.cause is not Cause.UNKNOWN:
        origins["cause"] = Origin.SEEN if is_seen else Origin.INFERRED
    if epoch.actor is not None:
        origins["actor"] = origins["cause"]
    return Rebalance(
        group=group,
        generation=epoch.number,
        cause=epoch.cause,
        reason=None,
        difference=epoch.difference,
        actor=epoch.actor,
        started_ms=epoch.started_ms,
        completed_ms=epoch.completed_ms,
        phases=Phases(),
        slowest_member=None,
        members=epoch.members,
        moves=moves,
        partitions_moved=moved,
        partitions_unassigned=0,
        unowned_seconds=None,
        repeated_records=None,
        lag_added=None,
        origins=origins,
    )


def _moves(
    before: Mapping[str, frozenset[tuple[str, int]]], after: Mapping[str, frozenset[tuple[str, int]]]
) -> tuple[dict[str, MemberMove], int]:
    """Returns the moves by member id, and the number of partitions that changed from one owner to another."""
    empty: frozenset[tuple[str, int]] = frozenset()
    pairs = {name: (before.get(name, empty), after.get(name, empty)) for name in before.keys() | after.keys()}
    moves = {name: MemberMove(len(new - old), len(old - new)) for name, (old, new) in pairs.items() if new != old}
    owners = {partition: name for name, owned in before.items() for partition in owned}
    moved = sum(owners.get(partition, name) != name for name, owned in after.items() for partition in owned)
    return dict(sorted(moves.items())), moved


def _partitions(value: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Returns topic id and partition of what a member owns; empty for the tasks of a streams group."""
    topics = value.get("assignedPartitions") or ()
    return frozenset((topic["topicId"], number) for topic in topics for number in topic["partitions"])


def _actor(member_id: str, value: Mapping[str, Any]) -> Actor:
    return Actor(member_id, value.get("clientId"), value.get("clientHost"), value.get("instanceId"))


def _name(actor: Actor) -> str:
    return actor.group_instance_id or actor.client_id or actor.member_id or "unknown member"
