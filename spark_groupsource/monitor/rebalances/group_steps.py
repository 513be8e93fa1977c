"""Generations of a group in `__consumer_offsets`, with the commits between them.

A commit names no member, but the assignment of the generation shows which member owns the partition. So the commits
show until when a member was alive.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription
from spark_groupsource.wire.group_records import GroupValue, MemberValue

# commits of one request and those of several partitions that follow each other at once are one moment
_MOMENT_MS = 50
_GAPS = 8
NEAR_STEPS = 20


class CommitTimes(NamedTuple):
    """Times of the commits of one member in one generation.

    Attributes:
        moments: number of distinct times.
        last_gap_ms, longest_gap_ms: between the last two moments, and the longest one before these.
        gaps_ms: the gaps before the last one, the newest `_GAPS` of them.
    """

    first_ms: int
    last_ms: int
    moments: int = 1
    last_gap_ms: int = 0
    longest_gap_ms: int = 0
    gaps_ms: tuple[int, ...] = ()

    def add(self, timestamp_ms: int) -> CommitTimes:
        """Returns the times with one more commit."""
        gap_ms = timestamp_ms - self.last_ms
        if gap_ms <= _MOMENT_MS:
            return self._replace(last_ms=max(self.last_ms, timestamp_ms))
        longest_ms = max(self.longest_gap_ms, self.last_gap_ms)
        gaps_ms = (*self.gaps_ms[1 - _GAPS :], self.last_gap_ms) if self.moments > 1 else ()
        return CommitTimes(self.first_ms, timestamp_ms, self.moments + 1, gap_ms, longest_ms, gaps_ms)


class GroupRecord(NamedTuple):
    """A record of one group.

    Attributes:
        value: None for a tombstone.
        leader_epoch: of the partition of `__consumer_offsets`; it changes when the coordinator moves. -1 if unknown.
        commits: identity of a member of the generation before -> times of its commits since the record before.
    """

    timestamp_ms: int
    value: GroupValue | None
    leader_epoch: int = -1
    commits: Mapping[str, CommitTimes] = {}


class GroupGeneration(NamedTuple):
    """One group record, decoded; members by identity: the group instance id of a static member, else the member id.

    Attributes:
        joined_ms: end of the join phase (Kafka `currentStateTimestamp`); the time of the record where it is not stored,
            and where there was no join phase.
    """

    record: GroupRecord
    value: GroupValue
    members: Mapping[str, MemberValue]
    topics: Mapping[str, frozenset[str] | bytes]
    owners: Mapping[TopicPartition, str]
    joined_ms: int = 0

    @property
    def completed_ms(self) -> int:
        """Time of the record."""
        return self.record.timestamp_ms

    def leader(self) -> MemberValue | None:
        """Returns the leader."""
        return next((m for m in self.value.members if m.member_id == self.value.leader), None)

    def partitions_of(self, name: str) -> set[TopicPartition]:
        """Returns the partitions that a member owns."""
        return {tp for tp, owner in self.owners.items() if owner == name}


NO_GENERATION = GroupGeneration(GroupRecord(0, None), GroupValue("", 0, None, None), {}, {}, {})


class Step(NamedTuple):
    """Change from one generation to the next.

    Attributes:
        before: the generation before `previous`.
        created_ms: time at which the coordinator created the group, for its first generation; else None.
        is_complete: false if compaction has removed the record before.
        later, earlier: the next `NEAR_STEPS` steps, and the ones before, which have no neighbors themselves.
    """

    current: GroupGeneration
    previous: GroupGeneration
    before: GroupGeneration
    created_ms: int | None
    is_complete: bool
    later: Sequence[Step] = ()
    earlier: Sequence[Step] = ()

    @property
    def joined(self) -> list[MemberValue]:
        """Members of `current` only."""
        return [m for name, m in self.current.members.items() if name not in self.previous.members]

    @property
    def gone(self) -> list[MemberValue]:
        """Members of `previous` only."""
        return [m for name, m in self.previous.members.items() if name not in self.current.members]

    @property
    def remaining(self) -> list[str]:
        """Identities of the members of both."""
        return [name for name in self.current.members if name in self.previous.members]

    @property
    def has_moved(self) -> bool:
        """True if the coordinator moved or restarted between the two records."""
        epochs = (self.previous.record.leader_epoch, self.current.record.leader_epoch)
        return min(epochs) >= 0 and epochs[0] != epochs[1]


class CommitTracker:
    """Collects the commits of one group by the member that owns the partition."""

    def __init__(self) -> None:
        self._owners: Mapping[TopicPartition, str] = {}
        self._times: dict[str, CommitTimes] = {}

    def commit(self, partition: TopicPartition, timestamp_ms: int) -> None:
        """Adds a commit; ignored for a partition without an owner."""
        name = self._owners.get(partition)
        if name is not None:
            times = self._times.get(name)
            self._times[name] = CommitTimes(timestamp_ms, timestamp_ms) if times is None else times.add(timestamp_ms)

    @property
    def committing(self) -> frozenset[str]:
        """Identities of the members that have committed since the last record."""
        return frozenset(self._times)

    def record(self, timestamp_ms: int, value: GroupValue | None, leader_epoch: int = -1) -> GroupRecord:
        """Returns the group record with the commits before it."""
        record = GroupRecord(timestamp_ms, value, leader_epoch, self._times)
        self._owners, self._times = {} if value is None else decode_generation(record, value).owners, {}
        return record


def steps(records: Iterable[GroupRecord]) -> list[Step]:
    """Returns the changes of one group, given its records in the order of the log."""
    found: list[Step] = []
    previous, before = NO_GENERATION, NO_GENERATION
    created_ms, is_complete = None, True
    for index, record in enumerate(records):
        if record.value is None:
            previous, before, is_complete = NO_GENERATION, NO_GENERATION, True
            continue
        if record.value.generation_id == 0 and not record.value.members:
            # written when the group is created, before its first rebalance
            previous, before, created_ms, is_complete = NO_GENERATION, NO_GENERATION, record.timestamp_ms, True
            continue
        current = decode_generation(record, record.value)
        if current.value.generation_id == previous.value.generation_id:
            # a static member was replaced: the time is that of the join phase before
            current = current._replace(joined_ms=current.completed_ms)
        if index == 0 and record.value.generation_id != 1:
            # compaction has removed the records before
            is_complete = False
        if not _is_repeated(previous, current):
            found.append(Step(current, previous, before, created_ms, is_complete))
            before = previous
        previous, created_ms, is_complete = current, None, True
    return [
        step._replace(later=found[at + 1 : at + 1 + NEAR_STEPS], earlier=found[max(at - NEAR_STEPS, 0) : at])
        for at, step in enumerate(found)
    ]


def decode_generation(record: GroupRecord, value: GroupValue) -> GroupGeneration:
    """Decodes subscriptions and assignments; those of other protocol types have no partitions."""
    members = {identity(m): m for m in value.members}
    state_ms = value.state_timestamp_ms
    return GroupGeneration(
        record,
        value,
        members,
        {name: _topics(m.subscription) for name, m in members.items()},
        {tp: name for name, member in members.items() for tp in _assigned(member.assignment)},
        state_ms if 0 < state_ms <= record.timestamp_ms else record.timestamp_ms,
    )


def identity(member: MemberValue) -> str:
    """Group instance id of a static member, else the member id."""
    return member.group_instance_id or member.member_id


def _assigned(assignment: bytes) -> Iterator[TopicPartition]:
    try:
        if assignment:
            yield from decode_assignment(assignment).partitions
    except RemoteProtocolError:
        # not of the consumer protocol
        return


def _topics(subscription: bytes) -> frozenset[str] | bytes:
    try:
        return frozenset(decode_subscription(subscription).topics)
    except RemoteProtocolError:
        return subscription


def _is_repeated(previous: GroupGeneration, current: GroupGeneration) -> bool:
    """True for a record that only repeats the generation."""
    return previous.value.generation_id == current.value.generation_id and [
        m.member_id for m in previous.value.members
    ] == [m.member_id for m in current.value.members]
