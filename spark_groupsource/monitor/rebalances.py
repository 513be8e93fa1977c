"""Rebalances of a group, inferred from its records in `__consumer_offsets`.

The coordinator stores a group record when a rebalance completes: generation, members with subscription and assignment,
the time of the end of the join phase (Kafka `currentStateTimestamp`), and the timestamp of the record. The cause is
inferred from two records, UNKNOWN if they do not show it.

Source: Kafka `GroupMetadataManager` (when a JoinGroup of a stable group starts a rebalance).
"""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping, NamedTuple

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription
from spark_groupsource.wire.group_records import GroupValue, MemberValue

COOPERATIVE_STICKY = "cooperative-sticky"


class GroupRecord(NamedTuple):
    """A record of one group; `value` is None for a tombstone."""

    timestamp_ms: int
    value: GroupValue | None


class Rebalance(NamedTuple):
    """One completed rebalance; values that the history does not show are None."""

    generation: int
    cause: str
    reason: str
    actor: MemberValue | None
    completed_ms: int
    sync_ms: int | None
    members: int
    partitions_moved: int
    partitions_unassigned: int


class _Generation(NamedTuple):
    """Members by identity: the group instance id of a static member, else the member id."""

    value: GroupValue
    members: Mapping[str, MemberValue]
    topics: Mapping[str, frozenset[str] | bytes]
    owners: Mapping[TopicPartition, str]


_NO_GENERATION = _Generation(GroupValue("", 0, None, None), {}, {}, {})


def rebalances(records: Iterable[GroupRecord]) -> Iterator[Rebalance]:
    """Yields the rebalances of one group, given its records in the order of the log."""
    previous, before = _NO_GENERATION, _NO_GENERATION
    is_complete = True
    for index, record in enumerate(records):
        if record.value is None:
            previous, before, is_complete = _NO_GENERATION, _NO_GENERATION, True
            continue
        current = _generation(record.value)
        if index == 0 and record.value.generation_id != 1:
            # compaction has removed the records before
            is_complete = False
        if not _is_repeated(previous, current):
            yield _rebalance(record, current, previous, before, is_complete)
        previous, before, is_complete = current, previous, True


def _rebalance(
    record: GroupRecord, current: _Generation, previous: _Generation, before: _Generation, is_complete: bool
) -> Rebalance:
    value = current.value
    if is_complete:
        cause, reason, actor = _cause(current, previous, before)
    else:
        cause, reason, actor = "UNKNOWN", "The records before are not in the log.", None
    moved = [p for p, owner in current.owners.items() if previous.owners.get(p, owner) != owner]
    has_sync = value.members and 0 < value.state_timestamp_ms <= record.timestamp_ms
    return Rebalance(
        value.generation_id,
        cause,
        reason,
        actor,
        record.timestamp_ms,
        record.timestamp_ms - value.state_timestamp_ms if has_sync else None,
        len(value.members),
        len(moved) if is_complete else 0,
        len(previous.owners.keys() - current.owners.keys()),
    )


def _cause(current: _Generation, previous: _Generation, before: _Generation) -> tuple[str, str, MemberValue | None]:
    """Returns the cause, the difference to the previous generation in words, and the member that caused it."""
    joined = [current.members[name] for name in current.members if name not in previous.members]
    gone = [previous.members[name] for name in previous.members if name not in current.members]
    if joined or gone:
        texts = [f"joined: {_names(joined)}"] * bool(joined) + [f"no longer a member: {_names(gone)}"] * bool(gone)
        text = "; ".join(texts)
        return ("JOINED" if joined else "LEFT"), f"{text[:1].upper()}{text[1:]}.", (joined or gone)[0]
    replaced = [m for name, m in current.members.items() if m.member_id != previous.members[name].member_id]
    changed = [current.members[name] for name in current.members if current.topics[name] != previous.topics[name]]
    if changed:
        return "SUBSCRIPTION_CHANGED", f"Other topics subscribed: {_names(changed)}.", changed[0]
    if replaced:
        return "STATIC_REPLACED", f"New member id of static member: {_names(replaced)}.", replaced[0]
    if current.value.protocol_name != previous.value.protocol_name:
        text = f"Assignor {current.value.protocol_name}, before {previous.value.protocol_name}."
        return "ASSIGNOR_CHANGED", text, _leader(current)
    added = current.owners.keys() - previous.owners.keys()
    if added and current.value.protocol_name == COOPERATIVE_STICKY and added <= before.owners.keys():
        return "COOPERATIVE_SECOND_ROUND", f"{len(added)} revoked partitions assigned to their new owners.", None
    if current.owners.keys() != previous.owners.keys():
        text = f"{len(current.owners)} partitions assigned, before {len(previous.owners)}."
        return "PARTITIONS_CHANGED", text, _leader(current)
    if not current.members:
        return "UNKNOWN", "No difference to the previous record.", None
    # any other member that rejoins a stable group with the same subscription starts no rebalance
    return "LEADER_REJOINED", "Same members, subscriptions and partitions.", _leader(current)


def _is_repeated(previous: _Generation, current: _Generation) -> bool:
    """True for a record that only repeats the generation."""
    return previous.value.generation_id == current.value.generation_id and [
        m.member_id for m in previous.value.members
    ] == [m.member_id for m in current.value.members]


def _generation(value: GroupValue) -> _Generation:
    members = {m.group_instance_id or m.member_id: m for m in value.members}
    owners: dict[TopicPartition, str] = {}
    for name, member in members.items():
        try:
            owners.update((p, name) for p in decode_assignment(member.assignment).partitions if member.assignment)
        except RemoteProtocolError:
            # not of the consumer protocol
            continue
    return _Generation(value, members, {name: _topics(m.subscription) for name, m in members.items()}, owners)


def _topics(subscription: bytes) -> frozenset[str] | bytes:
    try:
        return frozenset(decode_subscription(subscription).topics)
    except RemoteProtocolError:
        return subscription


def _leader(generation: _Generation) -> MemberValue | None:
    return next((m for m in generation.value.members if m.member_id == generation.value.leader), None)


def _names(members: Iterable[MemberValue]) -> str:
    return bounded_names(sorted(m.group_instance_id or m.client_id for m in members))
