"""Group coordinator runtime: decide, append, replay, reply.

Each partition of `__consumer_offsets` has one shard. The state machine `GroupShard` decides and performs no I/O. The
runtime appends its records to the log, runs its timers and sends its responses after the records are stored. Appending
is local and synchronous, so no other request runs between the steps of one decision.

A request for a shard that is loading gets COORDINATOR_LOAD_IN_PROGRESS, except for Heartbeat and SyncGroup.

Source: Kafka `CoordinatorRuntime`, `GroupCoordinatorService`.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict, deque
from functools import partial
from itertools import chain
from typing import Any, Callable, Coroutine, Iterable, Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.coordinators.commit_batch import commit_batch
from spark_groupsource.broker.coordinators.group_event_log import GroupEventLog
from spark_groupsource.broker.coordinators.offset_removal import OffsetRemoval
from spark_groupsource.broker.coordinators.services import CoordinatorServices, report_unexpected
from spark_groupsource.broker.coordinators.shard_registry import CoordinatorShard, CoordinatorTopic, ShardRegistry
from spark_groupsource.broker.coordinators.state_size import GroupStateSize
from spark_groupsource.broker.group import (
    CommitRecords,
    GroupLogLine,
    GroupRequest,
    GroupShard,
    GroupTimer,
    LogRecord,
    Outcome,
    Reply,
    RequestContext,
    SetTimer,
    SingleGroupRequest,
    StoreAssignment,
    coordinator_partition,
    error_response,
    merge_responses,
    split_request,
)
from spark_groupsource.broker.periodic_work import PeriodicWork
from spark_groupsource.broker.requests import ApiRequestContext, SendResponse
from spark_groupsource.broker.storage.segment_scan import StoredBatch
from spark_groupsource.common.coroutines import pause, portions
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition, new_tuple
from spark_groupsource.records.decode import CONTROL_COMMIT, control_type
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import HEADER_BYTES
from spark_groupsource.records.key_values import key_value_slices
from spark_groupsource.wire.group_records import OFFSETS_TOPIC, OffsetValue
from spark_groupsource.wire.messages import (
    ApiMessage,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
)

# of the encoded record: length, attributes, timestamp and offset deltas (Kafka `DefaultRecord.MAX_RECORD_OVERHEAD`),
# then the lengths of key and value and the number of headers
_RECORD_OVERHEAD = 21 + 5 + 5 + 1

_Shard = CoordinatorShard[GroupShard, GroupTimer]
_FULL_REPORT_MS = 60_000
_REPLIES_PER_STEP = 50
_LARGE_VALUE_BYTES = 65_536
_GROUPS_PER_STEP = 200


class _ReturnToken(NamedTuple):
    """Token of a request whose response is returned."""

    responses: list[ApiMessage]


def _divide(records: Sequence[LogRecord], max_bytes: int) -> Iterator[Sequence[LogRecord]]:
    """Divides records into batches of at most `max_bytes`, at least one record each."""
    start, size = 0, HEADER_BYTES
    for end, record in enumerate(records):
        record_size = _RECORD_OVERHEAD + len(record.key) + len(record.value or b"")
        if end > start and size + record_size > max_bytes:
            yield records[start:end]
            start, size = end, HEADER_BYTES
        size += record_size
    yield records[start:]


def _value_bytes(outcome: Outcome) -> int:
    return sum(len(record.value or b"") for record in outcome.records)


def _changed_groups(request: GroupRequest) -> Iterable[str]:
    """Returns the groups whose members or offsets a request may change or read."""
    if isinstance(request, DeleteGroupsRequest):
        return request.groups_names
    if isinstance(request, OffsetFetchRequest) and request.groups:
        return [group.group_id for group in request.groups]
    if isinstance(request, (DescribeGroupsRequest, ListGroupsRequest)):
        return ()
    return (request.group_id,)


class GroupRuntime:
    """The group coordinator of all nodes. Called by the broker's event loop only."""

    def __init__(self, services: CoordinatorServices, config: BrokerConfig, send: SendResponse) -> None:
        self._services = services
        self._clock = services.clock
        self._config = config.group
        self._send = send
        topic = CoordinatorTopic(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_segment_bytes,
            "groups",
            {"compression.type": "producer"},
        )
        self.shards: ShardRegistry[GroupShard, GroupTimer] = ShardRegistry(services, topic, self)
        self.event_log = GroupEventLog(services)
        self._background: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()  # one after another
        self.removal = OffsetRemoval(self.shards, self._apply, lambda: self._clock.instant())
        self._expiry = PeriodicWork(
            services.timers,
            services.clock,
            services.start_task,
            self.removal.expire,
            lambda: self._config.offsets_retention_check_interval_ms,
        )
        self._state_size = GroupStateSize(
            config.group.group_coordinator_max_state_bytes,
            lambda: (shard.state_machine for shard in self.shards.loaded_shards()),
            services.budget,
        )
        self._full_reported_ms: int | None = None
        # by the partition of the shard that still has to remove their offsets
        self._deleted: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        self._removing: set[_Shard] = set()  # they remove offsets of partitions that were deleted during loading
        self._deleting: set[str] = set()  # groups whose offsets are being removed before the group

    # --- shard lifecycle ---

    def start(self) -> None:
        """Schedules loading of all shards and the periodic expiration of offsets."""
        self.shards.load_all()
        self._expiry.start()

    async def stop(self) -> None:
        """Writes what is kept in memory."""
        await self.event_log.flush()

    def new_state_machine(self, partition: int) -> GroupShard:
        return GroupShard(partition, self._config)

    def replay(self, state_machine: GroupShard, key: bytes, value: bytes | None) -> None:
        """Replays a record of `__consumer_offsets`. Raises: CorruptRecordError."""
        state_machine.replay(key, value)

    def replay_transactional(self, state_machine: GroupShard, stored: StoredBatch) -> Iterator[None]:
        """Replays a transactional batch, one record at a time, or a control batch of `__consumer_offsets`.

        Raises: CorruptRecordError.
        """
        header = stored.header
        if header.is_control:
            if header.record_count:  # else compaction has removed the transaction
                is_commit = control_type(stored.buffer, header) == CONTROL_COMMIT
                state_machine.end_transaction(header.producer_id, is_commit)
            yield
            return
        for key, value in chain.from_iterable(key_value_slices(stored.buffer, header)):
            if key is not None:
                state_machine.replay(key, value, producer_id=header.producer_id)
            yield

    def on_loaded(self, shard: _Shard) -> None:
        """Starts the timers of loaded groups and removes offsets of partitions that were deleted during loading.

        Until these are removed, requests get COORDINATOR_LOAD_IN_PROGRESS: a topic of the same name may exist again.
        """
        self._apply(shard, shard.state_machine.on_loaded(self._clock.instant()))
        if shard.partition in self._deleted:
            self._removing.add(shard)
            self._start_task(partial(self._remove_after_loading, shard, self._deleted.pop(shard.partition)))

    async def _remove_after_loading(self, shard: _Shard, deleted: Sequence[TopicPartition]) -> None:
        try:
            await self._remove_deleted(shard.partition, deleted)
        finally:
            self._removing.discard(shard)

    async def _remove_deleted(self, partition: int, deleted: Sequence[TopicPartition]) -> None:
        """Removes the offsets of deleted partitions from a shard, now or when it is loaded."""
        while (shard := self.shards.find_loaded(partition)) is not None:
            await self.removal.partitions_deleted(shard, deleted)
            if self.shards.find_loaded(partition) is shard:  # else it was unloaded during a pause
                return
        self._deleted[partition] += deleted

    def on_timer(self, shard: _Shard, key: GroupTimer) -> None:
        self._apply(shard, shard.state_machine.expire(key, self._clock.instant()))

    def unload(self, partition: int) -> None:
        """Unloads the shard of a partition with a new leader; pending requests get NOT_COORDINATOR."""
        shard = self.shards.unload(partition)
        if shard is not None:
            self._apply(shard, shard.state_machine.on_unloaded(self._clock.instant()))

    # --- requests ---

    def handle(self, context: ApiRequestContext, request: SingleGroupRequest) -> None:
        """Passes a request to the shard of its group, which sends the response at once or later."""
        try:
            partition = self.shards.partition_of(request.group_id).partition
        except ApiError:
            error = error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, context.api_version)
            self._send(context.token, error)
            return
        self._pass_to_shard(context, partition, request, context.token)

    def response_to(self, context: ApiRequestContext, request: GroupRequest) -> ApiMessage:
        """Returns the response to a request to which the shards respond at once.

        These are commits, fetches and deletions of offsets, and groups to describe, leave or delete.
        """
        try:
            count = self.shards.existing_partition_count()
        except ApiError:
            return error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, context.api_version)
        responses: list[ApiMessage] = []
        for partition, part in split_request(request, context.api_version, count).items():
            self._pass_to_shard(context, partition, part, _ReturnToken(responses))
        return responses[0] if len(responses) == 1 else merge_responses(request, context.api_version, responses)

    async def list_groups(
        self, context: ApiRequestContext, request: ListGroupsRequest
    ) -> list[ListGroupsResponse]:
        """Returns responses that together have the groups of the shards of a node."""
        responses = []
        for partition in self.led_partitions(context.node_id):
            shard = self.shards.get_or_load(partition)
            if shard is None or not shard.is_loaded:
                code = ErrorCode.NOT_COORDINATOR if shard is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                responses.append(ListGroupsResponse(throttle_time_ms=0, error_code=code, groups=[]))
                continue
            for group_ids in portions(shard.state_machine.group_ids(), _GROUPS_PER_STEP):
                listed = shard.state_machine.list_groups(group_ids, request)
                responses.append(ListGroupsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, groups=listed))
                await pause()
            await pause()
        return responses

    def member_count(self, group_id: str) -> int:
        """Returns the number of members of a group, 0 if its shard is not loaded."""
        shard = self._loaded_shard_of(group_id)
        group = None if shard is None else shard.state_machine.groups.get(group_id)
        return 0 if group is None else len(group.members)

    def committed_offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """Returns the committed offsets of a group, none if its shard is not loaded."""
        shard = self._loaded_shard_of(group_id)
        return {} if shard is None else shard.state_machine.store.offsets_of(group_id)

    async def remove_offsets(self, node_id: int, group_id: str) -> None:
        """Removes most offsets of a group that can be deleted, before its deletion.

        Meanwhile, requests that may change the group or read its offsets get COORDINATOR_LOAD_IN_PROGRESS.
        """
        shard = self._loaded_shard_of(group_id)
        if shard is None or group_id in self._deleting or not self.shards.is_leader(node_id, shard.partition):
            return
        self._deleting.add(group_id)
        try:
            await self.removal.delete_group(shard, group_id)
        finally:
            self._deleting.discard(group_id)

    def _loaded_shard_of(self, group_id: str) -> _Shard | None:
        count = self.shards.partition_count
        return self.shards.find_loaded(coordinator_partition(group_id, count)) if count else None

    def led_partitions(self, node_id: int) -> list[int]:
        """Returns the partitions of `__consumer_offsets` whose leader is a node."""
        return [number for number in range(self.shards.partition_count) if self.shards.is_leader(node_id, number)]

    async def partitions_deleted(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Removes the committed offsets of deleted partitions from every group."""
        for partition in range(self.shards.partition_count):
            self.shards.get_or_load(partition)
            await self._remove_deleted(partition, topic_partitions)

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """Is called after a marker was appended to a partition of `__consumer_offsets`.

        A shard that is loading replays the marker from the log.
        """
        shard = self.shards.find_loaded(partition)
        if shard is not None:
            shard.state_machine.end_transaction(producer_id, committed)

    def _pass_to_shard(
        self, context: ApiRequestContext, partition: int, request: GroupRequest, token: object
    ) -> None:
        is_leader = self.shards.is_leader(context.node_id, partition)
        shard = self.shards.get_or_load(partition) if is_leader else None
        if shard is None:
            self._reply(token, error_response(request, ErrorCode.NOT_COORDINATOR, context.api_version))
            return
        if shard in self._removing or (self._deleting and not self._deleting.isdisjoint(_changed_groups(request))):
            error = error_response(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, context.api_version)
            self._reply(token, error)
            return
        # a random uuid takes as long as a whole heartbeat, and only the join of a new member needs one
        new_uuid = str(uuid.uuid4()) if isinstance(request, JoinGroupRequest) and not request.member_id else ""
        if not self._state_size.may_add(shard.state_machine, request, context.client_id):
            self._report_full()
            self._reply(token, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, context.api_version))
            return
        values = token, context.api_version, context.client_id, f"/{context.client_host}", new_uuid
        shard_context = new_tuple(RequestContext, (*values, context.connection_id))
        try:
            outcome = shard.state_machine.handle(request, shard_context, self._clock.instant())
        except Exception as error:  # an illegal state fails this request only, as in Kafka's CoordinatorRuntime
            report_unexpected(self._services.report, f"partition={OFFSETS_TOPIC}-{partition}", error)
            self._reply(token, error_response(request, ErrorCode.UNKNOWN_SERVER_ERROR, context.api_version))
            return
        self._apply(shard, outcome)

    def _report_full(self) -> None:
        now_ms = self._clock.now_ms()
        if self._full_reported_ms is None or self._full_reported_ms <= now_ms - _FULL_REPORT_MS:
            self._full_reported_ms = now_ms
            self._services.report(
                "[broker] Rejecting new groups and members: the state of all groups exceeds "
                f"group.coordinator.max.state.bytes={self._config.group_coordinator_max_state_bytes}, or all state "
                "exceeds its memory."
            )

    # --- decide, append, replay, reply ---

    def _apply(self, shard: _Shard, outcome: Outcome | None) -> bool:
        """Applies an outcome and those that follow it; returns whether all records were appended."""
        state_machine = shard.state_machine
        is_appended = True
        while outcome is not None:
            self._apply_timers(shard, outcome)
            for line in outcome.log_lines:
                # fifty partitions are loaded at each start, most of them without groups
                if line.kind != "loaded" or state_machine.store.groups or state_machine.store.offsets:
                    self._report_line(shard.partition, line)
            if outcome.events:
                self.event_log.add(outcome.events)
            following = None
            if outcome.records:
                try:
                    self._append_and_replay(shard, outcome)
                except ApiError as error:
                    is_appended = False
                    outcome = state_machine.append_failed(outcome, error.code, self._clock.instant())
                    continue
                if isinstance(outcome.after_append, StoreAssignment) and _value_bytes(outcome) > _LARGE_VALUE_BYTES:
                    self._start_task(partial(self._continue, shard, outcome))
                elif outcome.is_continued:
                    following = state_machine.append_succeeded(outcome, self._clock.instant())
            if len(outcome.replies) > _REPLIES_PER_STEP:  # a rebalance completes for thousands of members
                for reply in outcome.replies:
                    if isinstance(reply.token, _ReturnToken):  # its response is used in this step
                        self._reply(reply.token, reply.response)
                others = [reply for reply in outcome.replies if not isinstance(reply.token, _ReturnToken)]
                self._start_task(partial(self._reply_to_many, others))
            else:
                for reply in outcome.replies:
                    self._reply(reply.token, reply.response)
            outcome = following
        return is_appended

    def _start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts work beside requests, after the work that was started before."""
        self._background.append(work)
        if len(self._background) == 1:
            self._services.start_task(self._run_background())

    async def _run_background(self) -> None:
        try:
            await self._background[0]()
        finally:  # an error ends this work only
            self._background.popleft()
            if self._background:
                self._services.start_task(self._run_background())

    async def _continue(self, shard: _Shard, outcome: Outcome) -> None:
        """Continues after an append, later: a group with thousands of members needs the time of two."""
        if self.shards.find_loaded(shard.partition) is shard:  # else its requests have got NOT_COORDINATOR
            self._apply(shard, shard.state_machine.append_succeeded(outcome, self._clock.instant()))
        await pause()

    async def _reply_to_many(self, replies: Sequence[Reply]) -> None:
        for some in portions(replies, _REPLIES_PER_STEP):
            for reply in some:
                self._reply(reply.token, reply.response)
            await pause()

    def _report_line(self, partition: int, line: GroupLogLine) -> None:
        entity = f"group={line.group_id}" if line.group_id else f"partition={OFFSETS_TOPIC}-{partition}"
        level = logging.WARNING if line.kind == "append_failed" else logging.INFO
        self._services.report(f"[{entity}] {line.text}", level)

    def _apply_timers(self, shard: _Shard, outcome: Outcome) -> None:
        for timer in outcome.timers:
            if isinstance(timer, SetTimer):
                shard.timers.set(timer.key, timer.deadline_ms)
            else:
                shard.timers.cancel(timer.key)

    def _append_and_replay(self, shard: _Shard, outcome: Outcome) -> None:
        """Raises: ApiError; batches that were appended before are replayed."""
        target = self.shards.writable_partition(shard.partition)
        timestamp_ms = self._clock.timestamp_ms()
        producer_id, producer_epoch = outcome.producer or (-1, -1)
        limit = target.log.config.max_message_bytes
        batches = [outcome.records] if outcome.is_atomic else _divide(outcome.records, limit)
        for records in batches:
            if isinstance(records, CommitRecords):
                batch = commit_batch(records, timestamp_ms)
            else:
                batch = encode_batch(
                    [Record(record.key, record.value, timestamp_ms) for record in records],
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transactional=outcome.producer is not None,
                )
            appended = target.append_from_coordinator(batch, timestamp_ms)
            shard.state_machine.replay_appended(outcome, records)
            self._services.on_append(target.topic_partition, appended.size)

    def _reply(self, token: object, response: ApiMessage) -> None:
        if isinstance(token, _ReturnToken):
            token.responses.append(response)
        else:
            assert isinstance(token, int)
            self._send(token, response)
