"""The group coordinator as a pure state machine: it decides, others append, send and keep the time."""

from spark_groupsource.group.config import GroupConfig
from spark_groupsource.group.failures import error_response, verification_error
from spark_groupsource.group.fanout import group_partition, merge, split
from spark_groupsource.group.outcome import (
    CancelTimer,
    GroupEvent,
    LogRecord,
    Outcome,
    Reply,
    RequestContext,
    SetTimer,
    TransactionProducer,
)
from spark_groupsource.group.shard import GroupShard, Ownership
from spark_groupsource.group.states import GroupState
from spark_groupsource.group.timers import GroupTimer, JoinTimer, SessionTimer, SyncTimer

__all__ = [
    "CancelTimer",
    "GroupConfig",
    "GroupEvent",
    "GroupShard",
    "GroupState",
    "GroupTimer",
    "JoinTimer",
    "LogRecord",
    "Outcome",
    "Ownership",
    "Reply",
    "RequestContext",
    "SessionTimer",
    "SetTimer",
    "SyncTimer",
    "TransactionProducer",
    "error_response",
    "group_partition",
    "merge",
    "split",
    "verification_error",
]
