"""Fetch requests: reads partitions, delays responses until enough bytes are available.

A fetch completes at once with `min_bytes`, with an error, or without a wait time. Otherwise it waits in the purgatory
for the missing bytes, and its partitions are read again when they are appended or when its wait time has passed. The
session cache of the node decides which partitions are read and which of them the response contains.

Source: Kafka `ReplicaManager.fetchMessages`, `DelayedFetch`; KIP-74 (the first batch may exceed the limits), KIP-227
(sessions), KIP-516 (topic ids), KIP-98 (isolation level read_committed).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from typing import Callable, Collection, Iterable, NamedTuple

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.current_leader import add_current_leaders
from spark_groupsource.broker.fetch.partition_reads import (
    PartitionData,
    PartitionReads,
    error_entry,
    is_cut_off,
    is_unchanged,
    unknown_entry,
)
from spark_groupsource.broker.fetch.purgatory import DelayedFetchPurgatory
from spark_groupsource.broker.fetch.sessions import CachedPartition, FetchContext, FetchSessionCache, PartitionEntries
from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.broker.periodic_work import StartTask
from spark_groupsource.broker.requests import DELAYED, ZERO_UUID, ResponseAction, SendResponse
from spark_groupsource.broker.running_nodes import RunningNodes
from spark_groupsource.broker.state_budget import DELAYED_PARTITION_BYTES, SESSION_PARTITION_BYTES, StateBudget
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.common.clock import Clock
from spark_groupsource.common.coroutines import enter_task, next_turn, pause, run_at_once
from spark_groupsource.common.timers import Timers
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import FetchRequest, FetchResponse

_TopicData = FetchResponse.FetchableTopicResponse
_READ_COMMITTED = 1
_CURRENT_LEADER_SINCE = 16
_MAX_SESSION_ID = 2**31 - 1
_INLINE_PARTITIONS = 500
_MAX_WIDE = 4  # fetches of more partitions at the same time
MAX_DELAYED_PARTITIONS = 60_000
"""Partitions of all delayed fetches, above which a fetch completes without waiting. Kafka has no such limit."""
_PARTITIONS_PER_STEP = 100
_LARGE_READ_BYTES = 1_000_000
_LARGE_READ_PAUSE_MS = 20
_SMALL_READ_BYTES = 64_000


class _ReadResult(NamedTuple):
    """Response entries; `partitions` are the partitions whose appends can complete the fetch."""

    entries: PartitionEntries
    partitions: list[TopicPartition]
    size: int
    has_error: bool


class _PendingFetch(NamedTuple):
    """What is left of a request, without its partitions: those of the context are smaller."""

    node_id: int
    api_version: int
    listener: str
    may_read: Callable[[str], bool]
    max_bytes: int
    reads_committed: bool
    context: FetchContext
    partition_count: int  # the session may change


class FetchManager:
    """Fetch requests of all nodes. Called by the broker's event loop only; `len` is the number of delayed fetches.

    Attributes: `available_bytes`, returns the bytes that the next response may have, few while clients read too slowly;
    `may_exceed`, returns whether the first batch of a response may be larger (KIP-74), which it may not then.
    """

    def __init__(
        self,
        partitions: LogManager,
        leaders: Leaders,
        nodes: RunningNodes,
        timers: Timers,
        clock: Clock,
        config: BrokerConfig,
        send: SendResponse,
        budget: StateBudget,
        start_task: StartTask,
    ) -> None:
        self._partitions = partitions
        self._leaders = leaders
        self._reads = PartitionReads(partitions, leaders)
        self._nodes = nodes
        self._timers = timers.queue(self._expire)
        self._clock = clock
        self._max_bytes = config.fetch_max_bytes
        self.available_bytes: Callable[[], int] = lambda: self._max_bytes
        self.may_exceed: Callable[[], bool] = lambda: True
        self._send = send
        slots = config.max_incremental_fetch_session_cache_slots
        self._sessions: defaultdict[int, FetchSessionCache] = defaultdict(
            lambda: FetchSessionCache(slots, _new_session_id, budget.is_full)
        )
        budget.add_part(self._state_bytes)
        self._uncommitted_purgatory: DelayedFetchPurgatory[int] = DelayedFetchPurgatory()
        self._committed_purgatory: DelayedFetchPurgatory[int] = DelayedFetchPurgatory()
        self._delayed: dict[int, _PendingFetch] = {}
        self._delayed_partitions = 0
        self._appended: dict[int, set[TopicPartition]] = {}  # while the partitions of a request are read
        self._next_large_read_ms = 0
        self._start_task = start_task
        self._wide_places = asyncio.Semaphore(_MAX_WIDE)

    def __len__(self) -> int:
        return len(self._delayed)

    def _state_bytes(self) -> int:
        cached = sum(cache.partition_count for cache in self._sessions.values())
        return cached * SESSION_PARTITION_BYTES + self._delayed_partitions * DELAYED_PARTITION_BYTES

    async def fetch(
        self, token: int, node_id: int, request: FetchRequest, api_version: int, listener: str = "PLAINTEXT",
        may_read: Callable[[str], bool] = lambda topic: True,
    ) -> FetchResponse | ResponseAction:
        """Returns the response of a node, or DELAYED; pauses, because a request may have thousands of partitions.

        `listener` is the one that received the request, `may_read` whether its principal may read a topic.
        """
        now_ms = self._clock.now_ms()
        context = await self._sessions[node_id].new_context(request, api_version, now_ms)
        if context.error_code:
            return FetchResponse(error_code=context.error_code, session_id=0, responses=[])
        pending = _PendingFetch(
            node_id, api_version, listener, may_read, min(request.max_bytes, self._max_bytes),
            request.isolation_level == _READ_COMMITTED, context, len(context.partitions),
        )  # fmt: skip
        if pending.partition_count > _INLINE_PARTITIONS:
            await enter_task()
            async with self._wide_places:
                return await self._read_or_delay(token, request, pending)
        if now_ms < self._next_large_read_ms and self._most_bytes(context.partitions) > _SMALL_READ_BYTES:
            await next_turn()  # a consumer at the end of a log does not wait for those that read all of it
        return await self._read_or_delay(token, request, pending)

    async def _read_or_delay(
        self, token: int, request: FetchRequest, pending: _PendingFetch
    ) -> FetchResponse | ResponseAction:
        appended = self._appended[token] = set()
        try:
            result = await self._read(pending)
            if not appended.isdisjoint(result.partitions):  # appended during a pause, after they were read
                result = await self._read(pending)
        finally:
            del self._appended[token]
        most_bytes = max(min(pending.max_bytes, self.available_bytes()), 1)
        missing_bytes = min(request.min_bytes, most_bytes) - result.size
        is_complete = missing_bytes <= 0 or result.has_error or request.max_wait_ms <= 0 or not result.partitions
        if not is_complete and result.size:
            # whole batches may leave a rest of the limit
            left = most_bytes - result.size
            is_complete = any(is_cut_off(*entry, left, pending.reads_committed) for entry in result.entries)
        if is_complete or not self._may_delay(pending.partition_count):
            return await self._response(pending, result)
        self._delayed[token] = pending
        self._delayed_partitions += pending.partition_count
        purgatory = self._committed_purgatory if pending.reads_committed else self._uncommitted_purgatory
        purgatory.watch(token, result.partitions, missing_bytes)
        self._timers.set(token, self._clock.now_ms() + request.max_wait_ms)
        return DELAYED

    def _may_delay(self, partitions: int) -> bool:
        """Whether another fetch may wait; large ones leave half of the partitions to small ones."""
        limit = MAX_DELAYED_PARTITIONS if partitions <= _INLINE_PARTITIONS else MAX_DELAYED_PARTITIONS // 2
        return self._delayed_partitions + partitions <= limit

    def node_stopped(self, node_id: int) -> None:
        """Drops the sessions of a node."""
        self._sessions.pop(node_id, None)

    def on_append(self, topic_partition: TopicPartition, size: int) -> None:
        """Completes the delayed fetches that have enough bytes after an append of `size` bytes."""
        for appended in self._appended.values():
            appended.add(topic_partition)
        for token in self._uncommitted_purgatory.record_append(topic_partition, size):
            self._complete(token)
        if not len(self._committed_purgatory):
            return
        partition = self._partitions.partition(*topic_partition)
        # records of an ongoing transaction are not readable yet; `transaction_ended` completes the fetches at its end
        if partition.last_stable_offset == partition.log.log_end_offset:
            for token in self._committed_purgatory.record_append(topic_partition, size):
                self._complete(token)

    def transaction_ended(self, topic_partition: TopicPartition) -> None:
        """Completes read_committed fetches of a partition whose last stable offset has moved."""
        for token in self._committed_purgatory.remove_watchers(topic_partition):
            self._complete(token)

    def complete_all(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Completes every delayed fetch of partitions that were deleted or truncated, or have a new leader."""
        for topic_partition in topic_partitions:
            for purgatory in (self._uncommitted_purgatory, self._committed_purgatory):
                for token in purgatory.remove_watchers(topic_partition):
                    self._complete(token)

    def cancel(self, token: int) -> None:
        """Drops a delayed fetch whose client has disconnected."""
        if self._uncommitted_purgatory.remove(token) or self._committed_purgatory.remove(token):
            self._remove(token)

    def _expire(self, token: int) -> None:
        if self._uncommitted_purgatory.remove(token) or self._committed_purgatory.remove(token):
            self._complete(token)

    def _complete(self, token: int) -> None:
        pending = self._remove(token)
        if pending.partition_count > _INLINE_PARTITIONS:
            self._delayed_partitions += pending.partition_count
            self._start_task(self._complete_wide(token, pending))
        else:
            self._send(token, run_at_once(self._read_and_respond(pending)))

    async def _complete_wide(self, token: int, pending: _PendingFetch) -> None:
        try:
            async with self._wide_places:
                response = await self._read_and_respond(pending)
            self._send(token, response)
        finally:
            self._delayed_partitions -= pending.partition_count

    def _remove(self, token: int) -> _PendingFetch:
        self._timers.cancel(token)
        pending = self._delayed.pop(token)
        self._delayed_partitions -= pending.partition_count
        return pending

    async def _read_and_respond(self, pending: _PendingFetch) -> FetchResponse:
        result = await self._read(pending)
        return await self._response(pending, result)

    # --- responses ---

    async def _response(self, pending: _PendingFetch, result: _ReadResult) -> FetchResponse:
        sessions, now_ms = self._sessions[pending.node_id], self._clock.now_ms()
        session_response = await sessions.respond(pending.context, result.entries, now_ms)
        responses: list[_TopicData] = []
        failed: list[tuple[TopicPartition, PartitionData]] = []
        last: object = responses  # equal to no topic
        for number, (partition, entry) in enumerate(session_response.entries, 1):
            if number % _PARTITIONS_PER_STEP == 0:
                await pause()
            topic = partition.key[0]
            if topic != last:  # in reading order, so a topic may occur more than once
                entries: list[PartitionData] = []
                topic_data = _TopicData(topic=partition.topic or "", topic_id=partition.topic_id, partitions=entries)
                responses.append(topic_data)
                last = topic
            entries.append(entry)
            if entry.error_code and partition.topic is not None:
                failed.append((TopicPartition(partition.topic, partition.number), entry))
        response = FetchResponse(
            error_code=session_response.error_code, session_id=session_response.session_id, responses=responses
        )
        if failed and pending.api_version >= _CURRENT_LEADER_SINCE:
            add_current_leaders(response, failed, self._leaders, self._nodes.at(pending.listener))
        return response

    # --- reading ---

    async def _read(self, pending: _PendingFetch) -> _ReadResult:
        node_id, context, committed = pending.node_id, pending.context, pending.reads_committed
        find, read, may_read = self._reads.find, self._reads.read, pending.may_read
        idle_entry = self._reads.idle_entry
        # a session leaves unchanged partitions out, and one partition needs no shortcut
        leader = None if context.is_incremental or len(context.partitions) < 2 else self._leaders.only_leader()
        available = self.available_bytes()
        limit, may_exceed = min(pending.max_bytes, available), self.may_exceed()
        size, has_error = 0, False
        partitions: list[TopicPartition] = []
        entries: list[tuple[CachedPartition, PartitionData]] = []
        # unknown partitions come last in the response and do not complete a delayed fetch
        unknown_ids, unknown_names = [], []
        # copied, because a later request may change the session during a pause
        for number, requested in enumerate(tuple(context.partitions), 1):
            if number % _PARTITIONS_PER_STEP == 0:
                await pause()
            if leader is not None and requested.topic is not None and may_read(requested.topic):
                idle = idle_entry(leader, requested, committed, partitions)
                if idle is not None:
                    entries.append((requested, idle))
                    continue
            try:
                partition = find(node_id, requested, may_read)
                partitions.append(partition.topic_partition)
                if context.is_incremental and is_unchanged(partition, requested):
                    continue
                entry = read(partition, requested, limit - size, may_exceed and not size, committed)
                has_error = has_error or entry.diverging_epoch is not None
                size += len(entry.records or b"")
                entries.append((requested, entry))
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
                    unknown_ids.append((requested, unknown_entry(requested.number, error.code)))
                elif error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    unknown_names.append((requested, unknown_entry(requested.number, error.code)))
                else:
                    has_error = True
                    entries.append((requested, error_entry(requested.number, error.code)))
        if size > _LARGE_READ_BYTES:  # others are first
            self._next_large_read_ms = self._clock.now_ms() + _LARGE_READ_PAUSE_MS
        return _ReadResult(entries + unknown_ids + unknown_names, partitions, size, has_error)

    def _most_bytes(self, requested: Collection[CachedPartition]) -> int:
        """Returns an upper bound of the bytes that the read returns, without reading."""
        total = 0
        for each in requested:
            with suppress(ApiError):  # the read reports it
                topic = each.topic or self._partitions.topic_name(each.topic_id or ZERO_UUID)
                log = self._partitions.partition(topic, each.number).log
                active = log.segments[-1]
                if each.fetch_offset < active.base_offset:
                    total += log.size_bytes
                elif each.fetch_offset < log.log_end_offset:
                    total += active.size - active.position_at_or_before(each.fetch_offset)
        return total


def _new_session_id() -> int:
    return random.randint(1, _MAX_SESSION_ID)
