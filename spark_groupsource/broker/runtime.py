"""Drives the group shards: decide, append, replay, reply; one shard for each partition of `__consumer_offsets`.

A shard decides and never writes; this is where its records go to the log, where its timers run, and where its replies
leave, not before the records they speak of are stored. Appending is local and synchronous, so the steps of one decision
follow one another without anything in between.

A shard is served by the node that leads its partition. It is loaded by replaying that partition, when it is first asked
for or soon after the node has become its leader, whichever is first; a long log is replayed in slices, and whoever asks
meanwhile is answered COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

from spark_groupsource.broker.partitions import OFFSETS_TOPIC, Partition, Refusal
from spark_groupsource.errors import CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.group import (
    GroupShard,
    LogRecord,
    Outcome,
    Ownership,
    RequestContext,
    SetTimer,
    TransactionProducer,
    error_response,
    group_partition,
    merge,
    split,
)
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.records.batch import CONTROL_COMMIT, Record, control_type, decode_records, encode_batch
from spark_groupsource.wire.messages import JoinGroupRequest, ListGroupsRequest, Message

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Broker, Call, Send

# between two slices, so that requests are served meanwhile
_LOAD_PAUSE_MS = 1
_SLICE_RECORDS = 2_000


class _Seat:
    """A shard where it is served; `number` tells its timers from those of the shards that had the partition before."""

    def __init__(self, number: int, shard: GroupShard) -> None:
        self.number = number
        self.shard = shard
        self.next_offset = -1  # where to go on with replaying, -1 at the beginning
        self.deleted: list[TopicPartition] = []  # while it was loading

    @property
    def loaded(self) -> bool:
        return self.shard.ownership is Ownership.OWNED


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
        self._send = send
        self._seats: dict[int, _Seat] = {}
        self._seated = 0
        self._to_load: deque[int] = deque()
        self._held = False
        self._failed: dict[int, str] = {}
        self._finish: dict[int, Callable[[Message], None]] = {}

    # --- life ---

    def start(self) -> None:
        """Begins to load the shards, and to look for expired offsets from time to time."""
        self._load_soon(*range(self.partition_count))
        self._set_expiry_timer()

    @property
    def partition_count(self) -> int:
        """Partitions of the offsets topic, 0 as long as it does not exist."""
        entry = self._broker.partitions.topics.get(OFFSETS_TOPIC)
        return 0 if entry is None else entry.partition_count

    def ensure_topic(self) -> int:
        """Makes the offsets topic if there is none; returns the number of its partitions.

        Raises: Refusal.
        """
        if not self.partition_count:
            config = self._broker.config
            settings = {"cleanup.policy": "compact", "segment.bytes": str(config.offsets_topic_segment_bytes)}
            self._broker.create_topic(OFFSETS_TOPIC, config.offsets_topic_num_partitions, settings)
        return self.partition_count

    def forget_failure(self, partition: int) -> None:
        """Lets a partition whose groups could not be loaded be tried again when it is next asked for."""
        self._failed.pop(partition, None)

    def partition_of(self, group_id: str) -> TopicPartition:
        """The partition whose leader coordinates a group. Raises: Refusal."""
        return TopicPartition(OFFSETS_TOPIC, group_partition(group_id, self.ensure_topic()))

    def node_of(self, group_id: str) -> Node:
        """The node that coordinates a group. Raises: Refusal when its shard cannot be served."""
        topic_partition = self.partition_of(group_id)
        if self._seat(topic_partition.partition) is None:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._failed[topic_partition.partition])
        node_id = self._broker.leaders.leader(topic_partition).node_id
        for node in self._broker.nodes:
            if node.node_id == node_id:
                return node
        raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"node {node_id} does not run")

    def resign(self, partition: int) -> None:
        """Another node leads the partition now: who waits for an answer is sent there, where the shard is loaded."""
        self._failed.pop(partition, None)
        seat = self._seats.pop(partition, None)
        if seat is not None:
            self._apply(seat, seat.shard.unload(self._now_ms, self._timestamp_ms))
        self._load_soon(partition)

    def hold_loading(self, held: bool) -> None:
        """Stops the replaying of shards that are not loaded yet, or lets it go on."""
        self._held = held
        for _ in range(0 if held else len(self._to_load)):
            self._load_next()

    # --- requests and timers ---

    def handle(self, call: Call, request: Message, finish: Callable[[Message], None] | None = None) -> None:
        """Gives a request to the shards it concerns; the answer is sent when all of them have answered.

        `finish` adds to the answer what no shard was asked for or knows.
        """
        if finish is not None:
            self._finish[call.token] = finish
        try:
            count = self.ensure_topic()
        except Refusal:
            self._reply(call.token, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, call.api_version))
            return
        parts = split(request, call.api_version, count)
        if request.API_KEY == ListGroupsRequest.API_KEY:
            parts = {partition: part for partition, part in parts.items() if self._leads(call.node_id, partition)}
        if len(parts) == 1:
            for partition, part in parts.items():
                self._handle_part(call, partition, part, call.token)
            return
        if not parts:
            self._reply(call.token, merge(request, call.api_version, []))
            return
        whole = _Whole(call.token, request, call.api_version, list(parts))
        for partition, part in parts.items():
            self._handle_part(call, partition, part, _Part(whole, partition))

    def expire(self, key: tuple[object, ...]) -> None:
        """Does what one of this room's timers stands for."""
        match key:
            case ("group", int(partition), int(number), tuple(timer)):
                seat = self._seats.get(partition)
                if seat is not None and seat.number == number:
                    self._apply(seat, seat.shard.expire(timer, self._now_ms, self._timestamp_ms))
            case ("load",):
                self._load_next()
            case ("expire-offsets",):
                for seat in [seat for seat in self._seats.values() if seat.loaded]:
                    self._apply(seat, seat.shard.expire_offsets(self._timestamp_ms, self._now_ms))
                self._set_expiry_timer()
            case _:
                raise ValueError(f"no timer is known by {key}")

    def partitions_deleted(self, topic_partitions: tuple[TopicPartition, ...]) -> None:
        """Removes the committed offsets of deleted partitions from every group."""
        for partition in range(self.partition_count):
            seat = self._seat(partition)
            if seat is not None and seat.loaded:
                self._remove_offsets(seat, topic_partitions)
            elif seat is not None:
                seat.deleted += topic_partitions

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker was appended to a partition of the group log; a shard that is being loaded will come to it."""
        seat = self._seats.get(partition)
        if seat is not None and seat.loaded:
            seat.shard.end_transaction(producer_id, committed)

    def _remove_offsets(self, seat: _Seat, topic_partitions: Sequence[TopicPartition]) -> None:
        self._apply(seat, seat.shard.partitions_deleted(topic_partitions, self._timestamp_ms, self._now_ms))

    def _leads(self, node_id: int, partition: int) -> bool:
        return self._broker.leaders.leader(TopicPartition(OFFSETS_TOPIC, partition)).node_id == node_id

    def _handle_part(self, call: Call, partition: int, request: Message, token: object) -> None:
        seat = self._seat(partition) if self._leads(call.node_id, partition) else None
        if seat is None:
            self._reply(token, error_response(request, ErrorCode.NOT_COORDINATOR, call.api_version))
            return
        # the system's chance costs as much as a whole heartbeat, and only who joins needs some
        fresh_id = str(self._broker.new_id()) if request.API_KEY == JoinGroupRequest.API_KEY else ""
        context = RequestContext(
            token, call.api_version, call.client_id, f"/{call.client_host}", fresh_id, self._timestamp_ms
        )
        self._apply(seat, seat.shard.handle(request, context, self._now_ms))

    # --- decide, append, replay, reply ---

    def _apply(self, seat: _Seat, outcome: Outcome | None) -> None:
        shard = seat.shard
        while outcome is not None:
            self._apply_timers(seat, outcome)
            for event in outcome.events:
                # a partition without groups is loaded without a word: there are fifty of them
                if event.kind != "loaded" or shard.ledger.groups or shard.ledger.offsets:
                    self._broker.report(event.text)
            following = None
            if outcome.records:
                try:
                    self._append(shard.partition, outcome.records, outcome.producer)
                except Refusal as error:
                    outcome = shard.append_failed(outcome, error.code, self._now_ms, self._timestamp_ms)
                    continue
                timestamp_ms = self._timestamp_ms
                producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
                for record in outcome.records:
                    shard.replay(record.key, record.value, timestamp_ms=timestamp_ms, producer_id=producer_id)
                following = shard.append_done(outcome, self._now_ms, self._timestamp_ms)
            for reply in outcome.replies:
                self._reply(reply.token, reply.response)
            outcome = following

    def _apply_timers(self, seat: _Seat, outcome: Outcome) -> None:
        for timer in outcome.timers:
            key = ("group", seat.shard.partition, seat.number, timer.key)
            if isinstance(timer, SetTimer):
                self._broker.timers.set(key, timer.deadline_ms)
            else:
                self._broker.timers.cancel(key)

    def _append(
        self, partition: int, records: tuple[LogRecord, ...], producer: TransactionProducer | None
    ) -> None:
        timestamp_ms = self._timestamp_ms
        producer_id, producer_epoch = producer or (-1, -1)
        batch = encode_batch(
            [Record(record.key, record.value, timestamp_ms) for record in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer is not None,
        )
        target = self._partition(partition)
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
            self._reply(whole.token, merge(whole.request, whole.api_version, answers))

    # --- loading ---

    def _seat(self, partition: int) -> _Seat | None:
        """The shard, loaded unless that takes long or is held up; None when its log cannot be replayed."""
        seat = self._seats.get(partition)
        if seat is not None or partition in self._failed:
            return seat
        self._seated += 1
        self._seats[partition] = seat = _Seat(self._seated, GroupShard(partition, self._broker.config.group))
        if not self._held:
            self._load_slice(seat)
        if partition in self._failed:
            return None
        if not seat.loaded:
            self._to_load.appendleft(partition)
            self._load_soon()
        return seat

    def _load_soon(self, *partitions: int) -> None:
        self._to_load.extend(partitions)
        if self._to_load and not self._held:
            self._broker.timers.set(("load",), self._now_ms + _LOAD_PAUSE_MS)

    def _load_next(self) -> None:
        """Replays one slice of one shard."""
        if self._held or not self._to_load:
            return
        partition = self._to_load.popleft()
        known = self._seats.get(partition)
        if known is None:
            self._seat(partition)
        elif not known.loaded:
            self._load_slice(known)
            if partition not in self._failed and not known.loaded:
                self._to_load.appendleft(partition)
        self._load_soon()

    def _load_slice(self, seat: _Seat) -> None:
        shard = seat.shard
        try:
            at_end = self._replay_slice(seat)
        except (Refusal, CorruptRecordError, StorageError) as error:
            del self._seats[shard.partition]
            text = f"the groups of {OFFSETS_TOPIC}-{shard.partition} cannot be loaded: {error}"
            self._failed[shard.partition] = text
            self._broker.report(text)
            return
        if at_end:
            self._apply(seat, shard.loaded(self._now_ms, self._timestamp_ms))
            if seat.deleted:
                self._remove_offsets(seat, seat.deleted)

    def _replay_slice(self, seat: _Seat) -> bool:
        """True when the end of the log is reached."""
        log = self._partition(seat.shard.partition).log
        replayed = 0
        for stored in log.batches(max(seat.next_offset, log.log_start_offset)):
            if replayed >= _SLICE_RECORDS:
                return False
            header = stored.header
            if header.is_control:
                if header.record_count:  # else compaction has removed the transaction
                    committed = control_type(stored.buffer, header) == CONTROL_COMMIT
                    seat.shard.end_transaction(header.producer_id, committed)
            else:
                producer_id = header.producer_id if header.is_transactional else -1
                for record in decode_records(stored.buffer, header):
                    if record.key is not None:
                        seat.shard.replay(
                            record.key, record.value, timestamp_ms=record.timestamp_ms, producer_id=producer_id
                        )
                        replayed += 1
            seat.next_offset = stored.header.next_offset
        return True

    def _partition(self, partition: int) -> Partition:
        return self._broker.partitions.partition(OFFSETS_TOPIC, partition)

    def _set_expiry_timer(self) -> None:
        interval_ms = self._broker.config.group.offsets_retention_check_interval_ms
        self._broker.timers.set(("expire-offsets",), self._now_ms + interval_ms)

    @property
    def _now_ms(self) -> int:
        return self._broker.clock.now_ms()

    @property
    def _timestamp_ms(self) -> int:
        return self._broker.clock.timestamp_ms()
