"""Group coordinator as a state machine that performs no I/O."""

from spark_groupsource.broker.group.commit_records import CommitRecords, LogRecord
from spark_groupsource.broker.group.committed_offsets import group_fetch_error
from spark_groupsource.broker.group.coordinator_config import GroupConfig
from spark_groupsource.broker.group.error_responses import error_response, verification_error
from spark_groupsource.broker.group.group_calls import GroupRequest
from spark_groupsource.broker.group.group_shard import GroupShard, ShardState
from spark_groupsource.broker.group.group_states import GroupState
from spark_groupsource.broker.group.group_timers import GroupTimer, JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.broker.group.outcome import (
    CancelTimer,
    GroupLogLine,
    Outcome,
    Reply,
    RequestContext,
    SetTimer,
    StoreAssignment,
)
from spark_groupsource.broker.group.request_splitting import merge_responses, split_request
from spark_groupsource.model import coordinator_partition

__all__ = [
    "CancelTimer",
    "CommitRecords",
    "GroupConfig",
    "GroupLogLine",
    "GroupRequest",
    "GroupShard",
    "GroupState",
    "GroupTimer",
    "JoinTimer",
    "LogRecord",
    "Outcome",
    "ShardState",
    "Reply",
    "RequestContext",
    "SessionTimer",
    "SetTimer",
    "StoreAssignment",
    "SyncTimer",
    "error_response",
    "coordinator_partition",
    "group_fetch_error",
    "merge_responses",
    "split_request",
    "verification_error",
]
