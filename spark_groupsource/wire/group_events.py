"""Events of consumer groups, as JSON.

The embedded coordinator reports them for all groups, an application for its own members. Times are epoch
milliseconds of the clock of the reporter.
"""

from __future__ import annotations

import json
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Mapping, NamedTuple

from spark_groupsource.errors import CorruptRecordError

GROUP_EVENTS_TOPIC = "__group_events"
"""Internal topic of the embedded broker: one record per event, the group id as key, one partition."""


class Cause(str, Enum):
    """Cause of a rebalance: the first change since the group was Stable or Empty.

    JOIN_TIMED_OUT is the exception: it is the cause of every rebalance that ended with the removal of members that did
    not send JoinGroup (or SyncGroup) within the rebalance timeout, because the others waited for them.
    """

    JOINED = "JOINED"
    LEFT = "LEFT"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    POLL_EXCEEDED = "POLL_EXCEEDED"
    JOIN_TIMED_OUT = "JOIN_TIMED_OUT"
    SUBSCRIPTION_CHANGED = "SUBSCRIPTION_CHANGED"
    PARTITIONS_CHANGED = "PARTITIONS_CHANGED"
    LEADER_REJOINED = "LEADER_REJOINED"
    ASSIGNOR_CHANGED = "ASSIGNOR_CHANGED"
    COORDINATOR_MOVED = "COORDINATOR_MOVED"
    COOPERATIVE_SECOND_ROUND = "COOPERATIVE_SECOND_ROUND"
    STATIC_REPLACED = "STATIC_REPLACED"
    REMOVED_BY_OPERATOR = "REMOVED_BY_OPERATOR"
    UNKNOWN = "UNKNOWN"


class EventKind(str, Enum):
    """What happened; the comment names the fields of `GroupEvent.detail`.

    Events that were inferred from `__consumer_offsets` have the same form. Their fields in addition: `is_late`, true if
    the event was earlier than `at_ms`; of REBALANCE_STARTED `inferred`, the names of the fields of the rebalance that
    were inferred, and `difference` to the previous generation in words.

    "application" means that only applications report the event, with the generation that followed (MEMBER_LEFT and
    REPEATED: with the generation that the member left).
    """

    REBALANCE_STARTED = "rebalance_started"  # cause, reason
    # JoinGroup received (coordinator) or sent (application). reason; rebalance_timeout_ms; retained: number of its
    # partitions that the member still reads (cooperative); revoked: topic -> [partition], the others; replaced: former
    # id of a static member
    MEMBER_JOINING = "member_joining"
    # leader, protocol, members: member id -> [client id, host, group instance id]; size: number of members (commits)
    JOIN_COMPLETED = "join_completed"
    MEMBER_SYNCING = "member_syncing"  # assignment_ms: application, duration of the assignor of the leader
    # the group is Stable, or Empty without members. assignment: member id -> topic -> [partition]; absent if it is
    # unknown or very large
    ASSIGNED = "assigned"
    # cause, reason; is_expired: true if a timeout removed the member; last_heartbeat_ms: of a member whose session
    # expired; operator: client id and host of another client that removed the member; is_other_connection: true if the
    # LeaveGroup came on another connection than the requests of the member before
    MEMBER_LEFT = "member_left"
    BATCH_WAIT_STARTED = "batch_wait_started"  # application: notified of a rebalance while a micro-batch runs
    BATCH_WAIT_ENDED = "batch_wait_ended"  # application: the micro-batch is checkpointed and committed
    REVOKED = "revoked"  # application. partitions: topic -> [partition], no longer read
    FIRST_RECORD = "first_record"  # application: a read task received a record of the generation
    REPEATED = "repeated"  # application. records: delivered but not committed, so the next owner reads them again
    LAG = "lag"  # application. lag: sum of the retained partitions, in offsets; before and after
    LAG_SAMPLED = "lag_sampled"  # application. lag: sum of the owned partitions, in offsets; between rebalances


_NO_DETAIL: Mapping[str, Any] = {}


class GroupEvent(NamedTuple):
    """One event of a group; each rebalance creates several for each member.

    Attributes:
        generation: generation of the group, None before the first.
        member_id, client_id, host, group_instance_id: the member that the event is about; None for the whole group.
        application, query: name of the Spark application and of the query; an event with an application is reported by
            this application, any other one by the coordinator.
    """

    at_ms: int
    group: str
    kind: EventKind
    generation: int | None = None
    member_id: str | None = None
    client_id: str | None = None
    host: str | None = None
    group_instance_id: str | None = None
    application: str | None = None
    query: str | None = None
    detail: Mapping[str, Any] = _NO_DETAIL


_encode_json = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_FIELDS = GroupEvent._fields
_TEXTS = _FIELDS[4:10]  # between the generation and the detail


def event_form(event: GroupEvent) -> dict[str, Any]:
    """Returns an event as JSON values; fields that are None or empty are omitted."""
    return {name: value for name, value in zip(_FIELDS, event) if value is not None and value != {}}


def event_of_form(form: Mapping[str, Any]) -> GroupEvent:
    """Returns the event of `event_form`; fields of a newer version are ignored. Raises: CorruptRecordError."""
    try:
        known = {name: form[name] for name in _FIELDS if name in form}
        return GroupEvent(**{**known, "kind": EventKind(form["kind"])})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecordError(f"Decoding a group event failed: {error}. The writer is another version.") from error


def encode_event(event: GroupEvent) -> bytes:
    """Encodes `event_form`; an encoder of whole forms takes a quarter more time."""
    at_ms, group, kind, generation, *texts, detail = event
    form = f'{{"at_ms":{at_ms},"group":{encode_basestring(group)},"kind":{encode_basestring(kind)}'
    if generation is not None:
        form += f',"generation":{generation}'
    for name, text in zip(_TEXTS, texts):
        if text is not None:
            form += f',"{name}":{encode_basestring(text)}'
    if detail:
        form += f',"detail":{_encode_json(detail)}'
    return f"{form}}}".encode(errors="replace")


def decode_event(data: bytes) -> GroupEvent:
    """Decodes an event. Raises: CorruptRecordError."""
    try:
        form = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"Decoding a group event failed: {error}. The writer is another version.") from error
    return event_of_form(form)
