"""Outcome of a coordinator call: records, responses, timers, log lines, events.

A call of the shard returns an `Outcome`. The caller, in this order:

1. sets and cancels `timers`, logs `log_lines` and records `events`, even if the append fails: the in-memory state has
   changed;
2. appends `records`, all or none if `is_atomic`; without records it sends `replies` and is done;
3. after a successful append replays each record into the shard, calls `append_succeeded(outcome, ...)` when the records
   are durable, and sends `outcome.replies`; after a failed append calls `append_failed(outcome, ...)` instead and does
   **not** send `outcome.replies`. Either call returns a further outcome, which is treated the same way.

The call, the append and the replay are one step: the caller makes no other call of the shard in between. Other calls
are allowed between the replay and `append_succeeded`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, NamedTuple, Sequence

from spark_groupsource.broker.group.commit_records import CommitRecords, LogRecord
from spark_groupsource.broker.group.coordinator_config import GroupConfig
from spark_groupsource.broker.group.group_timers import GroupTimer
from spark_groupsource.broker.group.members import Member
from spark_groupsource.common.clock import Instant
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition, new_tuple
from spark_groupsource.wire.group_events import GroupEvent
from spark_groupsource.wire.group_records import (
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_key,
    encode_offset_value,
)
from spark_groupsource.wire.messages import ApiMessage


class RequestContext(NamedTuple):
    """Properties of a request outside of its message.

    Attributes:
        token: opaque; identifies the response.
        client_host: address of the client as Java prints it (``/127.0.0.1``).
        new_uuid: becomes part of the member id if the request creates one.
        connection_id: of the client's connection, 0 if unknown.
    """

    token: object
    api_version: int
    client_id: str
    client_host: str
    new_uuid: str
    connection_id: int = 0


class Reply(NamedTuple):
    """The response to the request whose context has `token`; every token gets one response.

    Attributes: `found`, the response, or a function that builds it: the caller divides the replies to a large group
    into steps, and each response is built in its step.
    """

    token: object
    found: ApiMessage | Callable[[], ApiMessage]

    @property
    def response(self) -> ApiMessage:
        return self.found() if callable(self.found) else self.found


class SetTimer(NamedTuple):
    """Sets or moves the timer `key`: the caller calls `expire(key, ...)` when `now_ms` reaches `deadline_ms`."""

    key: GroupTimer
    deadline_ms: int


class CancelTimer(NamedTuple):
    """Cancels the timer `key`, if it is set."""

    key: GroupTimer


class GroupLogLine(NamedTuple):
    """A log line about a group; `kind` is a fixed word for programs."""

    kind: str
    group_id: str
    text: str


class StoreAssignment(NamedTuple):
    """Continuation after the leader's assignment is stored: the group becomes Stable."""

    group_id: str
    generation_id: int


@dataclass(frozen=True)
class StoreReplacement:
    """Continuation after the new id of a static member is stored: respond to its join, or undo the replacement.

    `old_member` is the member before the replacement; `token` and `api_version` are those of the delayed join.
    """

    group_id: str
    generation_id: int
    old_member: Member
    old_leader_id: str
    new_member_id: str
    token: object
    api_version: int


class StoreNewGroup(NamedTuple):
    """Continuation after a new group is stored; `member_id` and `token` are those of its first member."""

    group_id: str
    member_id: str
    token: object
    api_version: int


@dataclass(frozen=True)
class StoreOffsets:
    """Continuation after committed offsets are stored; if the append fails, their partitions get the error."""


@dataclass(frozen=True)
class StoreRemoval:
    """Continuation after tombstones are stored: removes the groups that have neither members nor offsets."""

    group_ids: tuple[str, ...]


AfterAppend = StoreAssignment | StoreReplacement | StoreNewGroup | StoreOffsets | StoreRemoval
_CONTINUED = (StoreAssignment, StoreReplacement, StoreRemoval)


class Outcome(NamedTuple):
    """Decisions of one call of the shard; the module describes how the caller applies them.

    The caller sends `replies` when `records` are durable. `after_append` is opaque: `append_succeeded` and
    `append_failed` continue from it. With a `producer`, the records belong to its transaction. Records that are not
    atomic may be divided into several batches; after a failure, those of the first batches are stored and replayed.
    """

    records: Sequence[LogRecord] = ()
    replies: tuple[Reply, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    log_lines: tuple[GroupLogLine, ...] = ()
    events: tuple[GroupEvent, ...] = ()
    after_append: AfterAppend | None = None
    producer: ProducerIdAndEpoch | None = None
    is_atomic: bool = True

    @property
    def is_continued(self) -> bool:
        """Whether `append_succeeded` has anything to do; else the caller may omit the call."""
        return isinstance(self.after_append, _CONTINUED)


class OutcomeBuilder:
    """Collects the outcome of one call of the shard; also has the configuration and the time of the call."""

    # no dataclass, whose constructor takes twice as long: each request and each of its continuations has a builder
    __slots__ = (
        "after_append", "committed", "config", "events", "instant", "is_atomic", "log_lines", "partition", "producer",
        "records", "replies", "timers",
    )  # fmt: skip

    def __init__(self, config: GroupConfig, partition: int, instant: Instant, is_atomic: bool = True) -> None:
        self.config = config
        self.partition = partition
        self.instant = instant
        self.records: list[LogRecord] = []
        self.replies: list[Reply] = []
        self.timers: list[SetTimer | CancelTimer] = []
        self.log_lines: list[GroupLogLine] = []
        self.events: list[GroupEvent] = []
        self.after_append: AfterAppend | None = None
        self.producer: ProducerIdAndEpoch | None = None
        self.is_atomic = is_atomic
        self.committed: CommitRecords | None = None

    def reply(self, token: object, response: ApiMessage | Callable[[], ApiMessage]) -> None:
        """Adds a response, or a function that builds it; it is sent when the records of this call are durable."""
        self.replies.append(new_tuple(Reply, (token, response)))

    def set_timer(self, key: GroupTimer, delay_ms: int) -> None:
        """Sets or moves a timer to `delay_ms` from now."""
        self.timers.append(new_tuple(SetTimer, (key, self.instant.now_ms + delay_ms)))

    def cancel_timer(self, key: GroupTimer) -> None:
        self.timers.append(CancelTimer(key))

    def log(self, kind: str, group_id: str, text: str) -> None:
        """Adds a log line; `group_id` is empty for lines about the whole partition."""
        self.log_lines.append(new_tuple(GroupLogLine, (kind, group_id, text)))

    def store_group(self, group_id: str, value: GroupValue | None) -> None:
        """Adds the record of a group, a tombstone for None."""
        key = encode_group_key(group_id)
        if value is None:
            self.records.append(LogRecord(key, None))
        else:
            self.records.append(LogRecord(key, encode_group_value(value), (group_id, value)))

    def store_offset(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """Adds the record of an offset, a tombstone for None."""
        self.records.append(LogRecord(encode_key(key), None if value is None else encode_offset_value(value)))

    def commit(self, group_id: str, offsets: list[tuple[TopicPartition, OffsetValue]]) -> None:
        """Adds the records of committed offsets, the only ones of this call."""
        # a record with an expiration time has no leader epoch, so it is replayed as it is written
        if self.producer is None and all(value.expire_timestamp_ms < 0 for _, value in offsets):
            self.committed = CommitRecords(group_id, offsets)
            return
        for (topic, partition), value in offsets:
            self.store_offset(OffsetKey(group_id, topic, partition), value)

    def outcome(self) -> Outcome:
        return new_tuple(Outcome, (
            self.committed or tuple(self.records), tuple(self.replies), tuple(self.timers), tuple(self.log_lines),
            tuple(self.events), self.after_append, self.producer, self.is_atomic,
        ))  # fmt: skip
