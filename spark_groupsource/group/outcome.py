"""What goes into the coordinator and what comes out: context, records, replies, timers, events. Decides nothing.

A call of the shard returns an `Outcome`. Its caller, in this order:

1. applies `timers` and logs `events`; they stand whatever happens next, because the soft state has already moved;
2. appends `records`, all or none; without records it sends `replies` and is done;
3. on success replays each record into the shard, then calls `append_done(outcome, ...)` once the records are durable
   and sends `outcome.replies`; on failure it calls `append_failed(outcome, ...)` instead and does **not** send
   `outcome.replies`. Either call returns a further outcome, treated by the same rules.

Steps up to the replay are one step for the shard: no other call may come between. Other calls may come between the
replay and `append_succeeded`.

A reply names an opaque token, never a future or a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spark_groupsource.clock import Instant
from spark_groupsource.group.config import GroupConfig
from spark_groupsource.group.members import Member
from spark_groupsource.group.timers import GroupTimer
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_group_value,
    encode_key,
    encode_offset_value,
)
from spark_groupsource.wire.messages import Message


class RequestContext(NamedTuple):
    """What a request brings besides its message.

    `token` is opaque and names the reply; `client_host` is the address as Java prints it (``/127.0.0.1``);
    `new_uuid` becomes part of the member id if the request creates one.
    """

    token: object
    api_version: int
    client_id: str
    client_host: str
    new_uuid: str


class LogRecord(NamedTuple):
    """One record for the shard's partition of `__consumer_offsets`; value None is a tombstone."""

    key: bytes
    value: bytes | None


class TransactionProducer(NamedTuple):
    """Whose transaction records belong to."""

    producer_id: int
    epoch: int


class Reply(NamedTuple):
    """The answer to the request whose context carried `token`; each token is answered once."""

    token: object
    response: Message


class SetTimer(NamedTuple):
    """Starts the timer `key`, or moves it: call `expire(key, ...)` when the monotonic clock reaches `deadline_ms`."""

    key: GroupTimer
    deadline_ms: int


class CancelTimer(NamedTuple):
    """Stops the timer `key`, if it runs."""

    key: GroupTimer


class GroupEvent(NamedTuple):
    """One line that lets a person follow a rebalance; `kind` is a fixed word for programs."""

    kind: str
    group_id: str
    text: str


@dataclass(frozen=True)
class StoreAssignment:
    """After the leader's SyncGroup is stored: the group becomes Stable."""

    group_id: str
    generation_id: int


@dataclass(frozen=True)
class StoreReplacement:
    """After a static member's new id is stored: answer its join, or undo the replacement.

    `old_member` is the member as it was before; `token` and `api_version` are those of the parked join.
    """

    group_id: str
    generation_id: int
    old_member: Member
    old_leader_id: str
    new_member_id: str
    token: object
    api_version: int


@dataclass(frozen=True)
class StoreNewGroup:
    """After a group made by a JoinGroup is stored; `member_id` and `token` are the first member's."""

    group_id: str
    member_id: str
    token: object
    api_version: int


@dataclass(frozen=True)
class StoreOffsets:
    """After committed offsets are stored; on failure the partitions that were to be stored get the error."""


@dataclass(frozen=True)
class StoreRemoval:
    """After tombstones are stored: these groups are gone if nothing of them is left."""

    group_ids: tuple[str, ...]


AfterAppend = StoreAssignment | StoreReplacement | StoreNewGroup | StoreOffsets | StoreRemoval


class Outcome(NamedTuple):
    """What one call of the shard decided; see the module for what to do with it.

    `replies` leave only once `records` are durable. `after_append` is opaque: `append_succeeded` and `append_failed`
    continue from it. With a `producer` the records are part of its transaction, and are replayed as such.
    """

    records: tuple[LogRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    events: tuple[GroupEvent, ...] = ()
    after_append: AfterAppend | None = None
    producer: TransactionProducer | None = None


@dataclass
class OutcomeBuilder:
    """Collects the outcome of one call of the shard; also carries the settings and the time of the call."""

    config: GroupConfig
    partition: int
    instant: Instant
    records: list[LogRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    events: list[GroupEvent] = field(default_factory=list)
    after_append: AfterAppend | None = None
    producer: TransactionProducer | None = None

    def reply(self, token: object, response: Message) -> None:
        """Answers `token`, once the records of this turn are durable."""
        self.replies.append(Reply(token, response))

    def set_timer(self, key: GroupTimer, delay_ms: int) -> None:
        """Starts or moves a timer to `delay_ms` from now."""
        self.timers.append(SetTimer(key, self.instant.now_ms + delay_ms))

    def cancel_timer(self, key: GroupTimer) -> None:
        self.timers.append(CancelTimer(key))

    def event(self, kind: str, group_id: str, text: str) -> None:
        """Notes a line for the log; `group_id` is empty for events of the whole partition."""
        self.events.append(GroupEvent(kind, group_id, text))

    def store_group(self, group_id: str, value: GroupValue | None) -> None:
        """Adds a group's record; None is its tombstone."""
        encoded = None if value is None else encode_group_value(value)
        self.records.append(LogRecord(encode_key(GroupKey(group_id)), encoded))

    def store_offset(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """Adds an offset's record; None is its tombstone."""
        self.records.append(LogRecord(encode_key(key), None if value is None else encode_offset_value(value)))

    def outcome(self) -> Outcome:
        """What was decided, frozen."""
        return Outcome(
            tuple(self.records), tuple(self.replies), tuple(self.timers), tuple(self.events), self.after_append,
            self.producer,
        )  # fmt: skip
