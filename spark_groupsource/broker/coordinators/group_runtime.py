"""Drives the group shards: decide, append, replay, reply; one shard for each partition of `__consumer_offsets`.

A shard decides and never writes; this is where its records go to the log, where its timers run, and where its replies
leave, not before the records they speak of are stored. Appending is local and synchronous, so the steps of one decision
follow one another without anything in between.

Whoever asks a shard that is being loaded is answered COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

from spark_groupsource.broker.coordinators.shard_registry import CoordinatorTopic, Seat, Seats
from spark_groupsource.broker.coordinators.timers import GroupRuntimeTimer, GroupShardTimer, OffsetExpirationTimer
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.group import (
    GroupShard,
    LogRecord,
    Outcome,
    RequestContext,
    SetTimer,
    TransactionProducer,
    error_response,
    merge_responses,
    split_request,
)
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import CONTROL_COMMIT, control_type, decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.storage.partition import OFFSETS_TOPIC
from spark_groupsource.storage.segment import StoredBatch
from spark_groupsource.wire.messages import JoinGroupRequest, ListGroupsRequest, Message

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Broker, Call, Send


class _Part(NamedTuple):
    """Token of one shard's part of a request that several shards answer."""

    whole: _Whole
    partition: int


class _Whole:
    """A request that was split, and the answers so far."""

    def __init__(self, token: int, request: Message, api_version: int, partitions: list[int]) -> None:
        self.token = token
        self.request = request
        self.api_version = api_version
        self.responses: dict[int, Message | None] = dict.fromkeys(partitions)


class CoordinatorRuntime:
    """Every group of this broker. The one caller is the broker's loop."""

    def __init__(self, broker: Broker, send: Send) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._send = send
        config = broker.config
        topic = CoordinatorTopic(
            OFFSETS_TOPIC, config.offsets_topic_num_partitions, config.offsets_topic_segment_bytes, "groups"
        )
        self.seats = Seats(broker, topic, self)
        self._finish: dict[int, Callable[[Message], None]] = {}
        # by the shard that has yet to remove their offsets
        self._deleted: defaultdict[int, list[TopicPartition]] = defaultdict(list)

    # --- the life of a shard ---

    def start(self) -> None:
        """Begins to load the shards, and to look for expired offsets from time to time."""
        self.seats.load_all()
        self._set_expiry_timer()

    def new_shard(self, partition: int) -> GroupShard:
        return GroupShard(partition, self._broker.config.group)

    def replay_batch(self, shard: GroupShard, stored: StoredBatch) -> int:
        """Takes a batch of the group log into a shard; returns the number of its records.

        Raises: CorruptRecordError.
        """
        header = stored.header
        if header.is_control:
            if header.record_count:  # else compaction has removed the transaction
                shard.end_transaction(header.producer_id, control_type(stored.buffer, header) == CONTROL_COMMIT)
            return 0
        producer_id = header.producer_id if header.is_transactional else -1
        replayed = 0
        for record in decode_records(stored.buffer, header):
            if record.key is not None:
                shard.replay(record.key, record.value, producer_id=producer_id)
                replayed += 1
        return replayed

    def loaded(self, seat: Seat[GroupShard]) -> None:
        """Who waited for the shard is answered, and what was deleted meanwhile is removed from it."""
        self._apply(seat, seat.shard.on_loaded(self._clock.instant()))
        if seat.partition in self._deleted:
            self._remove_offsets(seat, self._deleted.pop(seat.partition))

    def resign(self, partition: int) -> None:
        """Another node leads the partition now: who waits for an answer is sent there, where the shard is loaded."""
        seat = self.seats.resign(partition)
        if seat is not None:
            self._apply(seat, seat.shard.on_unloaded(self._clock.instant()))

    # --- requests and timers ---

    def handle(self, call: Call, request: Message, finish: Callable[[Message], None] | None = None) -> None:
        """Gives a request to the shards it concerns; the answer is sent when all of them have answered.

        `finish` adds to the answer what no shard was asked for or knows.
        """
        if finish is not None:
            self._finish[call.token] = finish
        try:
            count = self.seats.ensure_topic()
        except ApiError:
            self._reply(call.token, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, call.api_version))
            return
        parts = split_request(request, call.api_version, count)
        if request.API_KEY == ListGroupsRequest.API_KEY:
            parts = {partition: part for partition, part in parts.items() if self.seats.leads(call.node_id, partition)}
        if len(parts) == 1:
            for partition, part in parts.items():
                self._handle_part(call, partition, part, call.token)
            return
        if not parts:
            self._reply(call.token, merge_responses(request, call.api_version, []))
            return
        whole = _Whole(call.token, request, call.api_version, list(parts))
        for partition, part in parts.items():
            self._handle_part(call, partition, part, _Part(whole, partition))

    def expire(self, timer: GroupRuntimeTimer) -> None:
        """Handles an expired timer of this runtime."""
        match timer:
            case GroupShardTimer(partition, number, shard_timer):
                seat = self.seats.seated(partition, number)
                if seat is not None:
                    self._apply(seat, seat.shard.expire(shard_timer, self._clock.instant()))
            case OffsetExpirationTimer():
                for seat in self.seats.loaded():
                    self._apply(seat, seat.shard.expire_offsets(self._clock.instant()))
                self._set_expiry_timer()

    def partitions_deleted(self, topic_partitions: tuple[TopicPartition, ...]) -> None:
        """Removes the committed offsets of deleted partitions from every group."""
        for partition in range(self.seats.partition_count):
            seat = self.seats.seat(partition)
            if seat is not None and seat.loaded:
                self._remove_offsets(seat, topic_partitions)
            else:
                self._deleted[partition] += topic_partitions

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker was appended to a partition of the group log; a shard that is being loaded will come to it."""
        seat = self.seats.seated(partition)
        if seat is not None and seat.loaded:
            seat.shard.end_transaction(producer_id, committed)

    def _remove_offsets(self, seat: Seat[GroupShard], topic_partitions: Sequence[TopicPartition]) -> None:
        self._apply(seat, seat.shard.on_partitions_deleted(topic_partitions, self._clock.instant()))

    def _handle_part(self, call: Call, partition: int, request: Message, token: object) -> None:
        seat = self.seats.seat(partition) if self.seats.leads(call.node_id, partition) else None
        if seat is None:
            self._reply(token, error_response(request, ErrorCode.NOT_COORDINATOR, call.api_version))
            return
        # the system's chance costs as much as a whole heartbeat, and only who joins needs some
        new_uuid = str(self._broker.new_id()) if request.API_KEY == JoinGroupRequest.API_KEY else ""
        context = RequestContext(
            token, call.api_version, call.client_id, f"/{call.client_host}", new_uuid
        )
        self._apply(seat, seat.shard.handle(request, context, self._clock.instant()))

    # --- decide, append, replay, reply ---

    def _apply(self, seat: Seat[GroupShard], outcome: Outcome | None) -> None:
        shard = seat.shard
        while outcome is not None:
            self._apply_timers(seat, outcome)
            for event in outcome.events:
                # a partition without groups is loaded without a word: there are fifty of them
                if event.kind != "loaded" or shard.store.groups or shard.store.offsets:
                    self._broker.report(event.text)
            following = None
            if outcome.records:
                try:
                    self._append(shard.partition, outcome.records, outcome.producer)
                except ApiError as error:
                    outcome = shard.append_failed(outcome, error.code, self._clock.instant())
                    continue
                producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
                for record in outcome.records:
                    shard.replay(record.key, record.value, producer_id=producer_id)
                following = shard.append_succeeded(outcome, self._clock.instant())
            for reply in outcome.replies:
                self._reply(reply.token, reply.response)
            outcome = following

    def _apply_timers(self, seat: Seat[GroupShard], outcome: Outcome) -> None:
        for timer in outcome.timers:
            key = GroupShardTimer(seat.partition, seat.number, timer.key)
            if isinstance(timer, SetTimer):
                self._broker.timers.set(key, timer.deadline_ms)
            else:
                self._broker.timers.cancel(key)

    def _append(
        self, partition: int, records: tuple[LogRecord, ...], producer: TransactionProducer | None
    ) -> None:
        timestamp_ms = self._clock.timestamp_ms()
        producer_id, producer_epoch = producer or (-1, -1)
        batch = encode_batch(
            [Record(record.key, record.value, timestamp_ms) for record in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer is not None,
        )
        target = self.seats.log_partition(partition)
        appended = target.append_own(batch, timestamp_ms)
        self._broker.appended(target.topic_partition, appended.size)

    def _reply(self, token: object, response: Message) -> None:
        if not isinstance(token, _Part):
            assert isinstance(token, int)
            finish = self._finish.pop(token, None)
            if finish is not None:
                finish(response)
            self._send(token, response)
            return
        whole = token.whole
        whole.responses[token.partition] = response
        answers = [answer for answer in whole.responses.values() if answer is not None]
        if len(answers) == len(whole.responses):
            self._reply(whole.token, merge_responses(whole.request, whole.api_version, answers))

    def _set_expiry_timer(self) -> None:
        interval_ms = self._broker.config.group.offsets_retention_check_interval_ms
        self._broker.timers.set(OffsetExpirationTimer(), self._clock.now_ms() + interval_ms)
