"""Fetch: what is read for a request, and which requests wait for more.

A request is answered when it finds `min_bytes`, an error, or its deadline; else it is parked with the bytes it lacks
and read again when they have been appended. Which partitions it is about, and which of them need not be told again,
say the sessions of its node.

Source: Kafka `ReplicaManager.fetchMessages`, `DelayedFetch`; KIP-74 (a first batch above the limits is sent whole),
KIP-227 (sessions), KIP-516 (topic ids), KIP-98 (readers of committed records).
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Callable, Hashable, Iterable, NamedTuple

from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.fetch.purgatory import ParkedFetches
from spark_groupsource.broker.fetch.sessions import Fetch, FetchedPartition, FetchSessions, Found
from spark_groupsource.broker.leader_hints import name_leaders
from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.clock import Clock
from spark_groupsource.deadlines import DeadlineHeap
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.records.header import last_batch
from spark_groupsource.storage.partition import Partition
from spark_groupsource.storage.partitions import Partitions
from spark_groupsource.wire.messages import FetchResponse, Message

if TYPE_CHECKING:
    from spark_groupsource.broker.node import Send

_TopicData = FetchResponse.FetchableTopicResponse
_PartitionData = _TopicData.PartitionData
_AbortedTransaction = _PartitionData.AbortedTransaction
_READ_COMMITTED = 1
_LEADERS_SINCE = 16
_LARGEST_SESSION_ID = 2**31 - 1


class _Reading(NamedTuple):
    """What was read: `partitions` are those that can be waited for."""

    found: Found
    partitions: list[TopicPartition]
    size: int
    has_error: bool


class _Parked(NamedTuple):
    node_id: int
    request: Message
    api_version: int
    fetch: Fetch


class Fetches:
    """Answers fetch requests now or when there is enough."""

    def __init__(
        self,
        partitions: Partitions,
        leaders: Leaders,
        timers: DeadlineHeap[Hashable],
        clock: Clock,
        config: BrokerConfig,
        nodes: Callable[[], Iterable[Node]],
        send: Send,
    ) -> None:
        self._partitions = partitions
        self._leaders = leaders
        self._timers = timers
        self._clock = clock
        self._max_bytes = config.fetch_max_bytes
        self._nodes = nodes
        self._send = send
        slots = config.max_incremental_fetch_session_cache_slots
        self._sessions: defaultdict[int, FetchSessions] = defaultdict(lambda: FetchSessions(slots, _new_session_id))
        self._waiting: ParkedFetches[int] = ParkedFetches()
        self._waiting_committed: ParkedFetches[int] = ParkedFetches()
        self._parked: dict[int, _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def fetch(self, token: int, node_id: int, request: Message, api_version: int) -> Message | None:
        """The answer of one node, or None when the request is parked."""
        now_ms = self._clock.now_ms()
        fetch = self._sessions[node_id].request(request, api_version, now_ms)
        if fetch.error_code:
            return FetchResponse(error_code=fetch.error_code, session_id=0, responses=[])
        parked = _Parked(node_id, request, api_version, fetch)
        reading = self._read(parked)
        missing = min(request.min_bytes, self._limit(request)) - reading.size
        if missing <= 0 or reading.has_error or request.max_wait_ms <= 0 or not reading.partitions:
            return self._response(parked, reading)
        self._parked[token] = parked
        waiting = self._waiting_committed if _reads_committed(request) else self._waiting
        waiting.park(token, reading.partitions, missing)
        self._timers.set(("fetch", token), now_ms + request.max_wait_ms)
        return None

    def node_stopped(self, node_id: int) -> None:
        """Drops the sessions of a node, which live in its memory."""
        self._sessions.pop(node_id, None)

    def appended(self, topic_partition: TopicPartition, size: int) -> None:
        """Credits an append to the waiting requests and answers those that have enough."""
        for token in self._waiting.credit(topic_partition, size):
            self._answer(token)
        if not len(self._waiting_committed):
            return
        partition = self._partitions.partition(*topic_partition)
        # behind an open transaction nothing can be read yet; its end brings records of any age, see `transaction_ended`
        if partition.last_stable_offset == partition.log.log_end_offset:
            for token in self._waiting_committed.credit(topic_partition, size):
                self._answer(token)

    def transaction_ended(self, topic_partition: TopicPartition) -> None:
        """Answers the readers of committed records who wait for this partition: there may be more than they know."""
        for token in self._waiting_committed.wake(topic_partition):
            self._answer(token)

    def wake(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Answers every request that waits for one of these: they are gone, begin elsewhere or are led elsewhere."""
        for topic_partition in topic_partitions:
            for token in (*self._waiting.wake(topic_partition), *self._waiting_committed.wake(topic_partition)):
                self._answer(token)

    def expire(self, token: int) -> None:
        """Answers a request whose time is up with what there is."""
        if self._waiting.remove(token) or self._waiting_committed.remove(token):
            self._answer(token)

    def forget(self, token: int) -> None:
        """Drops a request whose client is gone."""
        if self._waiting.remove(token) or self._waiting_committed.remove(token):
            del self._parked[token]
            self._timers.cancel(("fetch", token))

    def _answer(self, token: int) -> None:
        parked = self._parked.pop(token)
        self._timers.cancel(("fetch", token))
        self._send(token, self._response(parked, self._read(parked)))

    def _response(self, parked: _Parked, reading: _Reading) -> Message:
        told = self._sessions[parked.node_id].answer(parked.fetch, reading.found, self._clock.now_ms())
        responses: list[Message] = []
        refused: list[tuple[TopicPartition, Message]] = []
        last: object = responses  # which is no topic
        for partition, entry in told.found:
            topic = partition.key[0]
            if topic != last:  # in the order of reading, so a topic may come more than once
                entries: list[Message] = []
                responses.append(
                    _TopicData(topic=partition.topic or "", topic_id=partition.topic_id, partitions=entries)
                )
                last = topic
            entries.append(entry)
            if entry.error_code and partition.topic is not None:
                refused.append((TopicPartition(partition.topic, partition.number), entry))
        response = FetchResponse(
            throttle_time_ms=0, error_code=told.error_code, session_id=told.session_id, responses=responses
        )
        if refused and parked.api_version >= _LEADERS_SINCE:
            name_leaders(response, refused, self._leaders, self._nodes())
        return response

    def _limit(self, request: Message) -> int:
        return min(int(request.max_bytes), self._max_bytes)

    def _read(self, parked: _Parked) -> _Reading:
        node_id, request, _, fetch = parked
        limit = self._limit(request)
        size, has_error = 0, False
        committed = _reads_committed(request)
        partitions: list[TopicPartition] = []
        found: list[tuple[FetchedPartition, Message]] = []
        nameless, unknown = [], []  # what is not there is told last, and answers nobody who waits for something else
        for wanted in fetch.partitions:
            try:
                partition = self._find(node_id, wanted)
                partitions.append(partition.topic_partition)
                if fetch.is_incremental and _has_nothing_new(partition, wanted):
                    continue
                entry = self._read_partition(partition, wanted, limit - size, size == 0, committed)
                has_error = has_error or entry.diverging_epoch is not None
                size += len(entry.records)
                found.append((wanted, entry))
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
                    nameless.append((wanted, _error_entry(wanted.number, error.code, looked_for=True)))
                elif error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    unknown.append((wanted, _error_entry(wanted.number, error.code, looked_for=True)))
                else:
                    has_error = True
                    found.append((wanted, _error_entry(wanted.number, error.code, looked_for=False)))
        return _Reading(found + nameless + unknown, partitions, size, has_error)

    def _find(self, node_id: int, wanted: FetchedPartition) -> Partition:
        if wanted.topic is None:
            wanted.topic = self._partitions.topic_name(wanted.topic_id)
        partition = self._partitions.partition(wanted.topic, wanted.number)
        if wanted.topic_id is not None and wanted.topic_id != partition.topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {wanted.topic} was made anew with another id")
        self._leaders.check(node_id, partition.topic_partition, wanted.current_leader_epoch)
        return partition

    def _read_partition(
        self, partition: Partition, wanted: FetchedPartition, left: int, first: bool, committed: bool
    ) -> Message:
        log = partition.log
        stable = partition.last_stable_offset
        before = stable if committed and stable < log.log_end_offset else None
        diverging = self._diverging(partition, wanted)
        if diverging is None and not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        limit = min(wanted.max_bytes, left)
        wanted_now = diverging is None and (first or limit > 0)
        try:
            records = log.read(wanted.fetch_offset, limit, before) if wanted_now else memoryview(b"")
        except CorruptRecordError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if len(records) > limit and not first:
            records = memoryview(b"")
        return _PartitionData(
            partition_index=wanted.number,
            error_code=0,
            high_watermark=log.high_watermark,
            last_stable_offset=stable,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
            # null says that no transaction was looked for, which is what read_uncommitted asks
            aborted_transactions=_aborted(partition, wanted.fetch_offset, records) if committed else None,
            preferred_read_replica=-1,
            records=records,
        )

    def _diverging(self, partition: Partition, wanted: FetchedPartition) -> Message | None:
        """Where the reader's log and this one part, None where it has read nothing that is not here (KIP-595)."""
        epoch = wanted.last_fetched_epoch
        if epoch < 0:
            return None
        try:
            end = partition.end_offset_for_epoch(epoch)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if end.end_offset < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if end.epoch >= epoch and end.end_offset >= wanted.fetch_offset:
            return None
        return _PartitionData.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def _new_session_id() -> int:
    return random.randint(1, _LARGEST_SESSION_ID)


def _has_nothing_new(partition: Partition, wanted: FetchedPartition) -> bool:
    """Whether a client who keeps a session knows all there is: the short way, for most of many partitions."""
    log = partition.log
    return (
        wanted.fetch_offset == log.log_end_offset
        and wanted.last_fetched_epoch < 0
        and not wanted.has_moved(log.high_watermark, log.log_start_offset)
        and not log.damages
    )


def _reads_committed(request: Message) -> bool:
    return bool(request.isolation_level == _READ_COMMITTED)


def _aborted(partition: Partition, start: int, records: memoryview) -> list[Message]:
    """The aborted transactions among `records`, which begin at offset `start`."""
    if not len(partition.aborted) or not records:
        return []
    last = last_batch(records)
    assert last is not None  # a read gives whole batches
    found = partition.aborted.overlapping(start, last.next_offset)
    return [_AbortedTransaction(producer_id=row.producer_id, first_offset=row.first_offset) for row in found]


def _error_entry(partition: int, code: ErrorCode, *, looked_for: bool) -> Message:
    return _PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=[] if looked_for else None,
        preferred_read_replica=-1,
        records=b"",
    )
