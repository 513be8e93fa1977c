"""Group coordinator shard: the groups of one partition of `__consumer_offsets`.

A request is handled in four steps: decide, append, replay, reply. `handle` and `expire` decide: they change the
in-memory state (delayed requests, sessions, the state of each group) and return an `Outcome`. `replay` alone changes
the stored state, `store`. `outcome.py` describes how the caller applies an outcome.

The shard uses no clock, socket, log or randomness: the caller passes the time and new uuids. Not thread-safe.

Source: Kafka's GroupCoordinatorShard and GroupCoordinatorService.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence, cast

from spark_groupsource.broker.group import (
    committed_offsets,
    group_admin,
    group_rebalance,
    join_group,
    member_sessions,
    removed_offsets,
    sync_group,
)
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.commit_records import CommitRecords, LogRecord
from spark_groupsource.broker.group.coordinator_config import GroupConfig
from spark_groupsource.broker.group.error_responses import append_error, error_response
from spark_groupsource.broker.group.group_calls import GroupRequest
from spark_groupsource.broker.group.group_states import DEAD
from spark_groupsource.broker.group.group_timers import GroupTimer, JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.broker.group.outcome import (
    Outcome,
    OutcomeBuilder,
    Reply,
    RequestContext,
    StoreAssignment,
    StoreNewGroup,
    StoreOffsets,
    StoreRemoval,
    StoreReplacement,
)
from spark_groupsource.broker.group.rebalance_events import Trigger
from spark_groupsource.broker.group.responses import join_error_response, leave_response, sync_error_response
from spark_groupsource.broker.group.shard_groups import ShardGroups
from spark_groupsource.common.clock import Instant
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_events import Cause
from spark_groupsource.wire.group_records import GroupValue
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)


class ShardState(Enum):
    """Whether a shard serves requests, as Kafka's CoordinatorState."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


# APIs that require a group id; the most frequent one first, because isinstance is slow for every class before it
_GROUP_ID_REQUIRED = (
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    LeaveGroupRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
)
# Old clients do not expect COORDINATOR_LOAD_IN_PROGRESS here: Heartbeat succeeds, and after REBALANCE_IN_PROGRESS a
# client sends JoinGroup.
_LOADING_ERRORS: Mapping[int, ErrorCode] = {
    HeartbeatRequest.API_KEY: ErrorCode.NONE,
    SyncGroupRequest.API_KEY: ErrorCode.REBALANCE_IN_PROGRESS,
}
_SYNC_NAMES_VERSION = 5
_NOTHING = Outcome()


class GroupShard(ShardGroups):
    """Decides on the requests and timers of its groups.

    A new shard is LOADING: `replay` the log, then call `on_loaded`.
    """

    def __init__(self, partition: int, config: GroupConfig | None = None) -> None:
        super().__init__()
        self.partition = partition
        self.config = config or GroupConfig()
        self.state = ShardState.LOADING
        self.handlers: Mapping[int, Callable[[OutcomeBuilder, Any, RequestContext], None]] = {
            JoinGroupRequest.API_KEY: self._join,
            SyncGroupRequest.API_KEY: self._sync,
            HeartbeatRequest.API_KEY: self._heartbeat,
            LeaveGroupRequest.API_KEY: self._leave,
            OffsetCommitRequest.API_KEY: self._commit,
            TxnOffsetCommitRequest.API_KEY: self._commit_transactional,
            OffsetFetchRequest.API_KEY: self._fetch,
            OffsetDeleteRequest.API_KEY: self._delete_offsets,
            DescribeGroupsRequest.API_KEY: self._describe,
            ListGroupsRequest.API_KEY: self._list,
            DeleteGroupsRequest.API_KEY: self._delete_groups,
        }

    # --- decisions

    def handle(self, request: GroupRequest, context: RequestContext, instant: Instant) -> Outcome:
        """Handles a request of a group API; its response is in this outcome or in a later one.

        Every group in the request belongs to this shard (see `request_splitting`).

        Raises: KeyError for a request of another API.
        """
        builder = self._builder(instant)
        error = self._check(request, context)
        if error is not None:
            builder.reply(context.token, error_response(request, error, context.api_version))
        else:
            self.handlers[request.API_KEY](builder, request, context)
        return builder.outcome()

    def expire(self, timer: GroupTimer, instant: Instant) -> Outcome:
        """Handles an expired timer; a timer of a removed group or member has no effect."""
        builder = self._builder(instant)
        group = self.groups.get(timer.group_id)
        if group is None or self.state is not ShardState.ACTIVE:
            return builder.outcome()
        if isinstance(timer, JoinTimer):
            group_rebalance.expire_join(builder, group)
        elif isinstance(timer, SyncTimer):
            group_rebalance.expire_sync(builder, group)
        else:
            member_sessions.expire_session(builder, group, timer.member_id)
        return builder.outcome()

    def append_succeeded(self, outcome: Outcome, instant: Instant) -> Outcome:
        """Continues after the records of `outcome` were replayed and are durable; the caller sends its replies."""
        if not outcome.is_continued:
            return _NOTHING
        stored = outcome.after_append
        builder = self._builder(instant)
        if isinstance(stored, StoreRemoval):
            for group_id in stored.group_ids:
                self.remove_if_unused(builder, group_id)
        elif isinstance(stored, (StoreAssignment, StoreReplacement)):
            group = self.groups.get(stored.group_id)
            if group is None:
                return builder.outcome()
            if isinstance(stored, StoreReplacement):
                join_group.replacement_stored(builder, group, stored)
            elif stored.group_id in self.store.groups:  # else the group became Empty and was deleted since
                sync_group.assignment_stored(builder, group, stored, self.store.groups[stored.group_id])
        return builder.outcome()

    def append_failed(self, outcome: Outcome, error_code: int, instant: Instant) -> Outcome:
        """Continues after the append of the records of `outcome` failed.

        The returned outcome replaces the replies of `outcome`, which must not be sent.
        """
        builder = self._builder(instant)
        error = append_error(error_code)
        stored = outcome.after_append
        builder.log("append_failed", "", f"Appending to __consumer_offsets-{self.partition} failed: {error.name}")
        if isinstance(stored, StoreOffsets):
            for reply in outcome.replies:
                response = cast("OffsetCommitResponse | TxnOffsetCommitResponse", reply.response)
                builder.reply(reply.token, committed_offsets.failed_commit_response(response, error))
            return builder.outcome()
        if isinstance(stored, StoreNewGroup):
            self._new_group_failed(builder, stored, error)
            return builder.outcome()
        for reply in outcome.replies:
            builder.reply(reply.token, _failed(reply, error) if isinstance(stored, StoreRemoval) else reply.response)
        if isinstance(stored, (StoreAssignment, StoreReplacement)):
            group = self.groups.get(stored.group_id)
            if group is not None and isinstance(stored, StoreAssignment):
                sync_group.assignment_failed(builder, group, stored, error)
            elif group is not None and isinstance(stored, StoreReplacement):
                join_group.replacement_failed(builder, group, stored, error)
        return builder.outcome()

    # --- replay, load, unload

    def replay(self, key: bytes, value: bytes | None, *, producer_id: int = -1) -> None:
        """Replays one record, while loading and after each append.

        `producer_id` is that of the record's transaction, -1 outside of transactions.

        Raises: CorruptRecordError if the bytes cannot be decoded; the partition must not be served then.
        """
        if producer_id < 0:
            self.store.replay(key, value)
        else:
            self.store.replay_transactional(producer_id, key, value)

    def replay_appended(self, outcome: Outcome, records: Sequence[LogRecord]) -> None:
        """Replays `records` of `outcome` after their append."""
        if isinstance(records, CommitRecords):
            self.store.replay_commit(records.group_id, records.offsets)
            return
        producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
        for record in records:
            if record.group is not None:
                self.store.replay_group(*record.group)
            else:
                self.replay(record.key, record.value, producer_id=producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Replays the marker of a transaction, while loading and after each append."""
        self.store.end_transaction(producer_id, committed)

    def on_loaded(self, instant: Instant) -> Outcome:
        """Activates the shard after the log was replayed; the session of every member starts now."""
        self.state = ShardState.ACTIVE
        builder = self._builder(instant)
        for group_id, value in self.store.groups.items():
            if not value.members:
                continue
            group = self.group(group_id)
            assert group is not None
            for member in group.members.values():
                builder.set_timer(SessionTimer(group_id, member.member_id), member.session_timeout_ms)
            if len(group.members) > self.config.group_max_size:
                trigger = Trigger(Cause.COORDINATOR_MOVED)
                group_rebalance.prepare_rebalance(builder, group, "freshly-loaded group is over capacity", trigger)
        skipped = self.store.unknown_records
        builder.log(
            "loaded",
            "",
            f"Finished loading offsets and group metadata from __consumer_offsets-{self.partition}"
            + (f", skipping {skipped} records of unknown types" if skipped else ""),
        )
        return builder.outcome()

    def on_unloaded(self, instant: Instant) -> Outcome:
        """Closes the shard: every delayed request gets NOT_COORDINATOR. The caller ignores its timers from now on."""
        builder = self._builder(instant)
        for group in self.groups.values():
            for member in group.members.values():
                delayed = group.take_awaiting_join(member)
                if delayed is not None:
                    error = join_error_response(ErrorCode.NOT_COORDINATOR, member.member_id, delayed.api_version)
                    builder.reply(delayed.token, error)
                if member.awaiting_sync is not None:
                    builder.reply(member.awaiting_sync.token, sync_error_response(ErrorCode.NOT_COORDINATOR))
                    member.awaiting_sync = None
            group.transition(DEAD, instant.timestamp_ms)
        self.clear()
        self.state = ShardState.CLOSED
        builder.log("unloaded", "", f"Finished unloading __consumer_offsets-{self.partition}")
        return builder.outcome()

    # --- removal of offsets

    def on_partitions_deleted(
        self, topic_partitions: Collection[TopicPartition], instant: Instant, group_ids: Iterable[str] | None = None
    ) -> Outcome:
        """Adds tombstones for the offsets of deleted partitions in groups, by default in every group; not atomic."""
        builder = self._builder(instant, is_atomic=False)
        removed_offsets.remove_deleted(builder, self, frozenset(topic_partitions), group_ids)
        return builder.outcome()

    def expire_offsets(self, instant: Instant, group_ids: Iterable[str] | None = None) -> Outcome:
        """Adds tombstones for expired offsets, and for Empty groups without remaining offsets. O(offsets).

        They are not atomic. The caller calls this every offsets.retention.check.interval.ms, for all groups or for some
        of them after another.
        """
        builder = self._builder(instant, is_atomic=False)
        removed_offsets.expire(builder, self, group_ids)
        return builder.outcome()

    def expire_offsets_of(self, group_id: str, topic_partitions: Iterable[TopicPartition], instant: Instant) -> Outcome:
        """As `expire_offsets`, for some partitions of one group, which remains."""
        builder = self._builder(instant, is_atomic=False)
        removed_offsets.expire_some(builder, self, group_id, topic_partitions)
        return builder.outcome()

    def delete_group_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition], instant: Instant
    ) -> Outcome:
        """Adds tombstones for some offsets of a group that DeleteGroups would delete; of any other group, none."""
        builder = self._builder(instant, is_atomic=False)
        if group_admin.is_deletable(self.group(group_id)):
            known = self.store.partitions_of(group_id)
            removed_offsets.remove(builder, group_id, known & frozenset(topic_partitions))
        return builder.outcome()

    # --- requests

    def _builder(self, instant: Instant, is_atomic: bool = True) -> OutcomeBuilder:
        return OutcomeBuilder(self.config, self.partition, instant, is_atomic)

    def _check(self, request: GroupRequest, context: RequestContext) -> ErrorCode | None:
        """Checks every request in Kafka's order; returns None if it passes."""
        if context.api_version >= _SYNC_NAMES_VERSION and isinstance(request, SyncGroupRequest):
            if request.protocol_type is None or request.protocol_name is None:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if isinstance(request, _GROUP_ID_REQUIRED):
            if not request.group_id:
                return ErrorCode.INVALID_GROUP_ID
        elif isinstance(request, OffsetCommitRequest) and request.group_id is None:
            return ErrorCode.INVALID_GROUP_ID
        if self.state is ShardState.LOADING:
            return _LOADING_ERRORS.get(request.API_KEY, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            return ErrorCode.NOT_COORDINATOR
        return None

    def _join(self, builder: OutcomeBuilder, request: JoinGroupRequest, context: RequestContext) -> None:
        config = self.config
        low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return self._reject(builder, request, context, ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self.group(request.group_id)
        if group is not None:
            return join_group.join_group(builder, group, request, context)
        if request.member_id:
            return self._reject(builder, request, context, ErrorCode.UNKNOWN_MEMBER_ID)
        group = ClassicGroup(request.group_id, builder.instant.timestamp_ms)
        join_group.join_group(builder, group, request, context)
        if not group.members and not group.pending_joins:
            return  # rejected: the group is not created
        self.groups[request.group_id] = group
        builder.store_group(request.group_id, GroupValue("", 0, None, None, builder.instant.timestamp_ms))
        first = next(iter(group.pending_joins or group.members))
        builder.after_append = StoreNewGroup(request.group_id, first, context.token, context.api_version)

    def _new_group_failed(self, builder: OutcomeBuilder, stored: StoreNewGroup, error: ErrorCode) -> None:
        group = self.groups.get(stored.group_id)
        builder.reply(stored.token, join_error_response(error, "", stored.api_version))
        if group is None:
            return
        join_group.new_group_failed(builder, group, stored.member_id)
        if group.state is DEAD:
            del self.groups[stored.group_id]

    def _sync(self, builder: OutcomeBuilder, request: SyncGroupRequest, context: RequestContext) -> None:
        group = self.group(request.group_id)
        if group is None:
            return self._reject(builder, request, context, ErrorCode.UNKNOWN_MEMBER_ID)
        sync_group.sync_group(builder, group, request, context)

    def _heartbeat(self, builder: OutcomeBuilder, request: HeartbeatRequest, context: RequestContext) -> None:
        group = self.group(request.group_id)
        if group is None:
            return self._reject(builder, request, context, ErrorCode.UNKNOWN_MEMBER_ID)
        member_sessions.heartbeat(builder, group, request, context)

    def _leave(self, builder: OutcomeBuilder, request: LeaveGroupRequest, context: RequestContext) -> None:
        group = self.group(request.group_id)
        if group is not None:
            return member_sessions.leave(builder, group, request, context)
        identities = member_sessions.identities(request, context.api_version)
        unknown = [(identity, ErrorCode.UNKNOWN_MEMBER_ID) for identity in identities]
        builder.reply(context.token, leave_response(unknown, context.api_version))

    def _commit(self, builder: OutcomeBuilder, request: OffsetCommitRequest, context: RequestContext) -> None:
        committed_offsets.commit_offsets(builder, self.group(request.group_id), request, context)

    def _commit_transactional(
        self, builder: OutcomeBuilder, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> None:
        committed_offsets.commit_transactional_offsets(builder, self.group(request.group_id), request, context)

    def _fetch(self, builder: OutcomeBuilder, request: OffsetFetchRequest, context: RequestContext) -> None:
        store = self.store
        unstable_of = store.pending.partitions_of if request.require_stable else lambda group_id: ()
        groups = [
            committed_offsets.fetch_offsets(
                self.group(group_id), group_id, store.offsets_of(group_id), topics, unstable_of(group_id)
            )
            for group_id, topics in committed_offsets.requested_groups(request, context.api_version)
        ]
        builder.reply(context.token, committed_offsets.offset_fetch_response(groups, context.api_version))

    def _delete_offsets(self, builder: OutcomeBuilder, request: OffsetDeleteRequest, context: RequestContext) -> None:
        stored = self.store.partitions_of(request.group_id)
        committed_offsets.delete_offsets(builder, self.group(request.group_id), stored, request, context)

    def _describe(self, builder: OutcomeBuilder, request: DescribeGroupsRequest, context: RequestContext) -> None:
        include = bool(context.api_version >= 3 and request.include_authorized_operations)

        def describe(group_id: str) -> DescribeGroupsResponse.DescribedGroup:
            return group_admin.describe(self.group(group_id), group_id, context.api_version, include)

        groups = group_admin.bounded_descriptions(request.groups, describe)
        builder.reply(context.token, DescribeGroupsResponse(throttle_time_ms=0, groups=groups))

    def _list(self, builder: OutcomeBuilder, request: ListGroupsRequest, context: RequestContext) -> None:
        listed = self.list_groups(self.group_ids(), request)
        builder.reply(context.token, ListGroupsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, groups=listed))

    def _delete_groups(self, builder: OutcomeBuilder, request: DeleteGroupsRequest, context: RequestContext) -> None:
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            error = ErrorCode.INVALID_GROUP_ID
            if group_id is not None:
                stored = self.store.partitions_of(group_id)
                error = group_admin.delete_group(
                    builder, self.group(group_id), stored, group_id in self.store.groups
                )
            results.append((group_id, error))
        builder.reply(context.token, group_admin.delete_groups_response(results))
        self.remove_when_stored(builder, [group_id for group_id, error in results if error is ErrorCode.NONE])

    def _reject(
        self, builder: OutcomeBuilder, request: GroupRequest, context: RequestContext, error: ErrorCode
    ) -> None:
        builder.reply(context.token, error_response(request, error, context.api_version))


def _failed(reply: Reply, error: ErrorCode) -> DeleteGroupsResponse:
    """Returns the DeleteGroups response after the append of its tombstones failed."""
    response = cast(DeleteGroupsResponse, reply.response)
    return group_admin.delete_groups_response(
        (result.group_id, ErrorCode(result.error_code) or error) for result in response.results
    )
