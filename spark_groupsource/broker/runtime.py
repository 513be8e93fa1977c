"""Drives the group shards: decide, append, replay, reply; one shard for each partition of `__consumer_offsets`.

A shard decides and never writes; this is where its records go to the log, where its timers run, and where its replies
leave, not before the records they speak of are stored. Appending is local and synchronous, so the steps of one decision
follow one another without anything in between.

A shard is loaded by replaying its partition, when it is first asked for or soon after start, whichever is first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_groupsource.broker.partitions import OFFSETS_TOPIC, Partition, Refusal
from spark_groupsource.errors import CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.group import (
    GroupShard,
    LogRecord,
    Outcome,
    RequestContext,
    SetTimer,
    error_response,
    group_partition,
    merge,
    split,
)
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.batch import Record, decode_records, encode_batch
from spark_groupsource.wire.messages import Message

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Broker, Call, Send

# between two shards loaded after start, so that requests are served meanwhile
_LOAD_PAUSE_MS = 1


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
        self._shards: dict[int, GroupShard] = {}
        self._failed: dict[int, str] = {}
        self._extra_topics: dict[int, list[Message]] = {}

    # --- life ---

    def start(self) -> None:
        """Begins to load the shards, and to look for expired offsets from time to time."""
        if self.partition_count:
            self._broker.timers.set(("load", 0), self._broker.clock.now_ms())
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

    def check_coordinates(self, group_id: str) -> None:
        """Raises: Refusal when the group's shard cannot be served."""
        partition = group_partition(group_id, self.ensure_topic())
        if self._shard(partition) is None:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._failed[partition])

    # --- requests and timers ---

    def handle(self, call: Call, request: Message, extra_topics: list[Message] | None = None) -> None:
        """Gives a request to the shards it concerns; the answer is sent when all of them have answered.

        `extra_topics` are entries for the answer about topics that no shard was asked for.
        """
        if extra_topics:
            self._extra_topics[call.token] = extra_topics
        try:
            count = self.ensure_topic()
        except Refusal:
            self._reply(call.token, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, call.api_version))
            return
        parts = split(request, call.api_version, count)
        if len(parts) == 1:
            for partition, part in parts.items():
                self._handle_part(call, partition, part, call.token)
            return
        if not parts:
            self._send(call.token, merge(request, call.api_version, []))
            return
        whole = _Whole(call.token, request, call.api_version, list(parts))
        for partition, part in parts.items():
            self._handle_part(call, partition, part, _Part(whole, partition))

    def expire(self, key: tuple[object, ...]) -> None:
        """Does what one of this room's timers stands for."""
        match key:
            case ("group", int(partition), tuple(timer)):
                shard = self._shards.get(partition)
                if shard is not None:
                    self._apply(partition, shard, shard.expire(timer, self._now_ms, self._timestamp_ms))
            case ("load", int(partition)):
                self._shard(partition)
                if partition + 1 < self.partition_count:
                    self._broker.timers.set(("load", partition + 1), self._now_ms + _LOAD_PAUSE_MS)
            case ("expire-offsets",):
                for partition, shard in list(self._shards.items()):
                    self._apply(partition, shard, shard.expire_offsets(self._timestamp_ms, self._now_ms))
                self._set_expiry_timer()
            case _:
                raise ValueError(f"no timer is known by {key}")

    def partitions_deleted(self, topic_partitions: tuple[TopicPartition, ...]) -> None:
        """Removes the committed offsets of deleted partitions from every group."""
        for partition in range(self.partition_count):
            shard = self._shard(partition)
            if shard is not None:
                outcome = shard.partitions_deleted(topic_partitions, self._timestamp_ms, self._now_ms)
                self._apply(partition, shard, outcome)

    def _handle_part(self, call: Call, partition: int, request: Message, token: object) -> None:
        shard = self._shard(partition)
        if shard is None:
            self._reply(token, error_response(request, ErrorCode.NOT_COORDINATOR, call.api_version))
            return
        fresh_id = str(self._broker.new_id())
        context = RequestContext(
            token, call.api_version, call.client_id, f"/{call.client_host}", fresh_id, self._timestamp_ms
        )
        self._apply(partition, shard, shard.handle(request, context, self._now_ms))

    # --- decide, append, replay, reply ---

    def _apply(self, partition: int, shard: GroupShard, outcome: Outcome | None) -> None:
        while outcome is not None:
            self._apply_timers(partition, outcome)
            for event in outcome.events:
                # a partition without groups is loaded without a word: there are fifty of them
                if event.kind != "loaded" or shard.ledger.groups or shard.ledger.offsets:
                    self._broker.report(event.text)
            following = None
            if outcome.records:
                try:
                    self._append(partition, outcome.records)
                except Refusal as error:
                    outcome = shard.append_failed(outcome, error.code, self._now_ms, self._timestamp_ms)
                    continue
                for record in outcome.records:
                    shard.replay(record.key, record.value, timestamp_ms=self._timestamp_ms)
                following = shard.append_done(outcome, self._now_ms, self._timestamp_ms)
            for reply in outcome.replies:
                self._reply(reply.token, reply.response)
            outcome = following

    def _apply_timers(self, partition: int, outcome: Outcome) -> None:
        for timer in outcome.timers:
            key = ("group", partition, timer.key)
            if isinstance(timer, SetTimer):
                self._broker.timers.set(key, timer.deadline_ms)
            else:
                self._broker.timers.cancel(key)

    def _append(self, partition: int, records: tuple[LogRecord, ...]) -> None:
        timestamp_ms = self._timestamp_ms
        batch = encode_batch([Record(record.key, record.value, timestamp_ms) for record in records])
        target = self._partition(partition)
        appended = target.append(batch, timestamp_ms)
        self._broker.appended(target.topic_partition, appended.size)

    def _reply(self, token: object, response: Message) -> None:
        if not isinstance(token, _Part):
            assert isinstance(token, int)
            extra_topics = self._extra_topics.pop(token, None)
            if extra_topics:
                response.topics = [*response.topics, *extra_topics]
            self._send(token, response)
            return
        whole = token.whole
        whole.responses[token.partition] = response
        answers = [answer for answer in whole.responses.values() if answer is not None]
        if len(answers) == len(whole.responses):
            self._send(whole.token, merge(whole.request, whole.api_version, answers))

    # --- loading ---

    def _shard(self, partition: int) -> GroupShard | None:
        """The loaded shard, None when its log cannot be replayed."""
        shard = self._shards.get(partition)
        if shard is None and partition not in self._failed:
            shard = GroupShard(partition, self._broker.config.group)
            try:
                self._load(partition, shard)
            except (Refusal, CorruptRecordError, StorageError) as error:
                self._failed[partition] = f"the groups of {OFFSETS_TOPIC}-{partition} cannot be loaded: {error}"
                self._broker.report(self._failed[partition])
                return None
            self._shards[partition] = shard
            self._apply(partition, shard, shard.loaded(self._now_ms, self._timestamp_ms))
        return shard

    def _load(self, partition: int, shard: GroupShard) -> None:
        log = self._partition(partition).log
        for stored in log.batches(log.log_start_offset):
            if stored.header.is_control:
                continue
            for record in decode_records(stored.buffer, stored.header):
                if record.key is not None:
                    shard.replay(record.key, record.value, timestamp_ms=record.timestamp_ms)

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
