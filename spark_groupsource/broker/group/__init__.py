"""Group coordinator as a state machine that performs no I/O (pure).

It knows members, generations, sessions and committed offsets. It knows no log, clock or connection: time, ids and
connections are arguments, and the caller executes the `Outcome` of each call (`outcome.py`).

A request
=========

1. `GroupShard.handle` (`group_shard.py`) checks what is common to all requests, finds the group, and calls the module
   of the API: `join_group.py`, `sync_group.py`, `member_sessions.py` (Heartbeat, LeaveGroup), `committed_offsets.py`,
   `group_admin.py`. Requests that name several groups are split by shard before (`request_splitting.py`).
2. The module takes the rule of the state and the operation from the table of `group_states.py`, changes the
   `ClassicGroup` and its members (`classic_group.py`, `members.py`), and adds records, timers and responses to the
   `OutcomeBuilder`.
3. Stored state (`group_store.py`) changes in `replay` alone, after the append. What depends on the append continues in
   `append_succeeded` or `append_failed`.

A rebalance
===========

1. A JoinGroup, LeaveGroup or an expired session starts the join phase (`group_rebalance.py`, `prepare_rebalance`). From
   now on each member's JoinGroup is delayed in the member; Heartbeat gets REBALANCE_IN_PROGRESS.
2. The phase ends when all members have joined, or by its timer, which removes the others (`complete_join`). The next
   generation begins, and every delayed JoinGroup gets its response; that of the leader has all members.
3. Each SyncGroup is delayed (`sync_group.py`). That of the leader adds the record of the group with all assignments;
   when it is stored, the group is Stable and every SyncGroup gets its assignment.

`rebalance_events.py` adds an event for each of these steps, by which tables explain the rebalance.
"""

from spark_groupsource.broker.group.commit_records import CommitRecords, LogRecord
from spark_groupsource.broker.group.committed_offsets import group_fetch_error
from spark_groupsource.broker.group.coordinator_config import GroupConfig
from spark_groupsource.broker.group.error_responses import error_response, verification_error
from spark_groupsource.broker.group.group_calls import GroupRequest, SingleGroupRequest
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
    "SingleGroupRequest",
    "StoreAssignment",
    "SyncTimer",
    "error_response",
    "coordinator_partition",
    "group_fetch_error",
    "merge_responses",
    "split_request",
    "verification_error",
]
