"""Group coordinator runtime: decide, append, replay, reply.

Each partition of `__consumer_offsets` has one shard. The state machine `GroupShard` decides and performs no I/O. The
runtime appends its records to the log, runs its timers and sends its responses after the records are stored. Appending
is local and synchronous, so no other request runs between the steps of one decision.

A request for a shard that is loading gets COORDINATOR_LOAD_IN_PROGRESS.

Source: Kafka `CoordinatorRuntime`, `GroupCoordinatorService`.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.coordinators.services import CoordinatorServices, report_unexpected
from spark_groupsource.broker.coordinators.shard_registry import CoordinatorShard, CoordinatorTopic, ShardRegistry
from spark_groupsource.broker.coordinators.state_size import GroupStateSize
from spark_groupsource.broker.requests import ApiRequestContext, SendResponse
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.group import (
    GroupEvent,
    GroupRequest,
    GroupShard,
    GroupTimer,
    LogRecord,
    Outcome,
    RequestContext,
    SetTimer,
    error_response,
    merge_responses,
    split_request,
)
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import CONTROL_COMMIT, control_type, decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import HEADER_BYTES
from spark_groupsource.storage.catalog import OFFSETS_TOPIC
from spark_groupsource.storage.segment import StoredBatch
from spark_groupsource.wire.messages import ApiMessage, JoinGroupRequest, ListGroupsRequest

# of the encoded record: length, attributes, timestamp and offset deltas (Kafka `DefaultRecord.MAX_RECORD_OVERHEAD`),
# then the lengths of key and value and the number of headers
_RECORD_OVERHEAD = 21 + 5 + 5 + 1

_Shard = CoordinatorShard[GroupShard, GroupTimer]
_FULL_REPORT_MS = 60_000


class _ShardToken(NamedTuple):
    """Token of one shard's part of a request that was split."""

    fan_out: _FanOut
    partition: int


class _PartToken(NamedTuple):
    """Token of one part of a request that is handled in steps."""

    responses: list[ApiMessage]


class _FanOut:
    """A request that was split over several shards, and the responses so far."""

    def __init__(self, token: object, request: GroupRequest, api_version: int, partitions: list[int]) -> None:
        self.token = token
        self.request = request
        self.api_version = api_version
        self.responses: dict[int, ApiMessage | None] = dict.fromkeys(partitions)


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
        self._expiry_timer = services.timers.timer(self._expire_offsets)
        self._state_size = GroupStateSize(config.group.group_coordinator_max_state_bytes)
        self._full_reported_ms: int | None = None
        self._complete_response: dict[int, Callable[[Any], None]] = {}
        # by the partition of the shard that still has to remove their offsets
        self._deleted: defaultdict[int, list[TopicPartition]] = defaultdict(list)

    # --- shard lifecycle ---

    def start(self) -> None:
        """Schedules loading of all shards and the periodic expiration of offsets."""
        self.shards.load_all()
        self._set_expiry_timer()

    def new_state_machine(self, partition: int) -> GroupShard:
        return GroupShard(partition, self._config)

    def replay_batch(self, state_machine: GroupShard, stored: StoredBatch) -> int:
        """Replays a batch of `__consumer_offsets`; returns the number of its records.

        Raises: CorruptRecordError.
        """
        header = stored.header
        if header.is_control:
            if header.record_count:  # else compaction has removed the transaction
                is_commit = control_type(stored.buffer, header) == CONTROL_COMMIT
                state_machine.end_transaction(header.producer_id, is_commit)
            return 0
        producer_id = header.producer_id if header.is_transactional else -1
        replayed = 0
        for record in decode_records(stored.buffer, header):
            if record.key is not None:
                state_machine.replay(record.key, record.value, producer_id=producer_id)
                replayed += 1
        return replayed

    def on_loaded(self, shard: _Shard) -> None:
        """Starts the timers of loaded groups and removes offsets of partitions that were deleted during loading."""
        self._apply(shard, shard.state_machine.on_loaded(self._clock.instant()))
        if shard.partition in self._deleted:
            self._remove_offsets(shard, self._deleted.pop(shard.partition))

    def on_timer(self, shard: _Shard, key: GroupTimer) -> None:
        self._apply(shard, shard.state_machine.expire(key, self._clock.instant()))

    def unload(self, partition: int) -> None:
        """Unloads the shard of a partition with a new leader; pending requests get NOT_COORDINATOR."""
        self._state_size.remove(partition)
        shard = self.shards.unload(partition)
        if shard is not None:
            self._apply(shard, shard.state_machine.on_unloaded(self._clock.instant()))

    # --- requests ---

    def handle(
        self,
        context: ApiRequestContext,
        request: GroupRequest,
        complete_response: Callable[[Any], None] | None = None,
    ) -> None:
        """Passes a request to the shards it concerns; the response is sent when all of them have responded.

        `complete_response` adds the partitions to the response that were not passed to a shard.
        """
        if complete_response is not None:
            self._complete_response[context.token] = complete_response
        self._handle(context, request, context.token)

    def handle_part(
        self, context: ApiRequestContext, request: GroupRequest, partition: int | None = None
    ) -> ApiMessage:
        """Returns the response to a part of a request: a commit or fetch of offsets, a description, a deletion, a list.

        The coordinator responds to these at once. With `partition` the part is for the shard of this partition only.
        """
        token = _PartToken([])
        if partition is None:
            self._handle(context, request, token)
        else:
            self._handle_part(context, partition, request, token)
        (response,) = token.responses
        return response

    def led_partitions(self, node_id: int) -> list[int]:
        """The partitions of `__consumer_offsets` whose leader is a node."""
        return [number for number in range(self.shards.partition_count) if self.shards.is_leader(node_id, number)]

    def _handle(self, context: ApiRequestContext, request: GroupRequest, token: object) -> None:
        try:
            count = self.shards.ensure_topic()
        except ApiError:
            error = error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, context.api_version)
            self._reply(token, error)
            return
        parts = split_request(request, context.api_version, count)
        if request.API_KEY == ListGroupsRequest.API_KEY:
            parts = {number: parts[number] for number in self.led_partitions(context.node_id)}
        if len(parts) == 1:
            for partition, part in parts.items():
                self._handle_part(context, partition, part, token)
            return
        if not parts:
            self._reply(token, merge_responses(request, context.api_version, []))
            return
        fan_out = _FanOut(token, request, context.api_version, list(parts))
        for partition, part in parts.items():
            self._handle_part(context, partition, part, _ShardToken(fan_out, partition))

    def partitions_deleted(self, topic_partitions: tuple[TopicPartition, ...]) -> None:
        """Removes the committed offsets of deleted partitions from every group."""
        for partition in range(self.shards.partition_count):
            shard = self.shards.get_or_load(partition)
            if shard is not None and shard.is_loaded:
                self._remove_offsets(shard, topic_partitions)
            else:
                self._deleted[partition] += topic_partitions

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """Is called after a marker was appended to a partition of `__consumer_offsets`.

        A shard that is loading replays the marker from the log.
        """
        shard = self.shards.find_loaded(partition)
        if shard is not None:
            shard.state_machine.end_transaction(producer_id, committed)

    def _remove_offsets(self, shard: _Shard, topic_partitions: Sequence[TopicPartition]) -> None:
        outcome = shard.state_machine.on_partitions_deleted(topic_partitions, self._clock.instant())
        self._apply(shard, outcome)

    def _handle_part(self, context: ApiRequestContext, partition: int, request: GroupRequest, token: object) -> None:
        is_leader = self.shards.is_leader(context.node_id, partition)
        shard = self.shards.get_or_load(partition) if is_leader else None
        if shard is None:
            self._reply(token, error_response(request, ErrorCode.NOT_COORDINATOR, context.api_version))
            return
        # a random uuid takes as long as a whole heartbeat, and only a join may need one
        new_uuid = str(uuid.uuid4()) if request.API_KEY == JoinGroupRequest.API_KEY else ""
        if not self._state_size.may_add(shard.state_machine, request):
            self._report_full()
            self._reply(token, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, context.api_version))
            return
        shard_context = RequestContext(
            token,
            context.api_version,
            context.client_id,
            f"/{context.client_host}",
            new_uuid,
        )
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
                f"group.coordinator.max.state.bytes={self._config.group_coordinator_max_state_bytes}."
            )

    # --- decide, append, replay, reply ---

    def _apply(self, shard: _Shard, outcome: Outcome | None) -> None:
        state_machine = shard.state_machine
        while outcome is not None:
            self._apply_timers(shard, outcome)
            for event in outcome.events:
                # fifty partitions are loaded at each start, most of them without groups
                if event.kind != "loaded" or state_machine.store.groups or state_machine.store.offsets:
                    self._report_event(shard.partition, event)
            following = None
            if outcome.records:
                try:
                    self._append_and_replay(shard, outcome)
                except ApiError as error:
                    outcome = state_machine.append_failed(outcome, error.code, self._clock.instant())
                    continue
                following = state_machine.append_succeeded(outcome, self._clock.instant())
            for reply in outcome.replies:
                self._reply(reply.token, reply.response)
            outcome = following

    def _report_event(self, partition: int, event: GroupEvent) -> None:
        entity = f"group={event.group_id}" if event.group_id else f"partition={OFFSETS_TOPIC}-{partition}"
        level = logging.WARNING if event.kind == "append_failed" else logging.INFO
        self._services.report(f"[{entity}] {event.text}", level)

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
            batch = encode_batch(
                [Record(record.key, record.value, timestamp_ms) for record in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=outcome.producer is not None,
            )
            appended = target.append_from_coordinator(batch, timestamp_ms)
            for record in records:
                shard.state_machine.replay(record.key, record.value, producer_id=producer_id)
            self._services.on_append(target.topic_partition, appended.size)

    def _reply(self, token: object, response: ApiMessage) -> None:
        if isinstance(token, _PartToken):
            token.responses.append(response)
            return
        if not isinstance(token, _ShardToken):
            assert isinstance(token, int)
            complete_response = self._complete_response.pop(token, None)
            if complete_response is not None:
                complete_response(response)
            self._send(token, response)
            return
        fan_out = token.fan_out
        fan_out.responses[token.partition] = response
        responses = [each for each in fan_out.responses.values() if each is not None]
        if len(responses) == len(fan_out.responses):
            self._reply(fan_out.token, merge_responses(fan_out.request, fan_out.api_version, responses))

    # --- offset expiration ---

    def _expire_offsets(self) -> None:
        for shard in self.shards.loaded_shards():
            self._apply(shard, shard.state_machine.expire_offsets(self._clock.instant()))
        self._set_expiry_timer()

    def _set_expiry_timer(self) -> None:
        interval_ms = self._config.offsets_retention_check_interval_ms
        self._expiry_timer.set(self._clock.now_ms() + interval_ms)
