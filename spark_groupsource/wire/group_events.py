"""Events of consumer groups, as JSON.

The embedded coordinator reports them for all groups, an application for its own members. Times are epoch
milliseconds of the clock of the reporter.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Mapping

from spark_groupsource.errors import CorruptRecordError


class EventKind(str, Enum):
    """What happened; the comment names the fields of `GroupEvent.detail`."""

    REBALANCE_STARTED = "rebalance_started"  # cause, reason
    MEMBER_JOINING = "member_joining"  # reason: JoinGroup received (coordinator) or sent (application)
    JOIN_COMPLETED = "join_completed"  # leader, members: member id -> [client id, host, group instance id]
    MEMBER_SYNCING = "member_syncing"
    ASSIGNED = "assigned"  # assignment: member id -> topic -> [partition]; the group is Stable
    MEMBER_LEFT = "member_left"  # reason; is_expired: true if a timeout removed the member
    BATCH_WAIT_STARTED = "batch_wait_started"  # application: notified of a rebalance while a micro-batch runs
    BATCH_WAIT_ENDED = "batch_wait_ended"  # application: the micro-batch is checkpointed and committed
    REVOKED = "revoked"  # application: partitions: topic -> [partition], not read any more
    FIRST_RECORD = "first_record"  # application: a read task received a record of the generation
    LAG = "lag"  # lag: sum of the owned partitions, in offsets


@dataclass(frozen=True)
class GroupEvent:
    """One event of a group.

    Attributes:
        generation: generation of the group, None before the first.
        member_id, client_id, host, group_instance_id: the member that the event is about; None for the whole group.
        application, query: name of the Spark application and of the query, where the reporter knows them.
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
    detail: Mapping[str, Any] = field(default_factory=dict)


def encode_event(event: GroupEvent) -> bytes:
    """Encodes an event; fields that are None or empty are omitted."""
    form = {name: value for name, value in asdict(event).items() if value is not None and value != {}}
    return json.dumps(form, ensure_ascii=False, separators=(",", ":")).encode()


def decode_event(data: bytes) -> GroupEvent:
    """Decodes an event. Raises: CorruptRecordError."""
    try:
        form = json.loads(data)
        return GroupEvent(**{**form, "kind": EventKind(form["kind"])})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecordError(f"Decoding a group event failed: {error}. The writer is another version.") from error
