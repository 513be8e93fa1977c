"""Fetch session cache: partitions of incremental fetch requests, changes for their responses.

The first request of a session lists all partitions; later requests list changes only, and their responses contain
changed partitions only. A session belongs to the node that created it and outlives the connection. It is removed when
the client closes it, when it has no partitions left, or by eviction.

Pure: the caller reads the logs and passes times and random ids.

Source: KIP-227; Kafka `FetchSession.scala`, `FetchMetadata`; KIP-516 (topic ids).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, Collection, NamedTuple, Sequence, Tuple, Union

from spark_groupsource.broker.requests import TopicId
from spark_groupsource.broker.state_budget import SESSION_PARTITION_BYTES
from spark_groupsource.common.coroutines import pause
from spark_groupsource.common.deadlines import DeadlineHeap
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import FetchRequest, FetchResponse

_NO_SESSION = 0
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_TOPIC_IDS_SINCE = 13
MIN_EVICTION_MS = 120_000
MAX_PARTITIONS = 50_000
"""Limit of all sessions of a node together, which bounds their memory to about 17 MB. Kafka has no such limit."""
_PARTITIONS_PER_STEP = 1_000

_RequestedPartition = FetchRequest.FetchTopic.FetchPartition
_Entry = FetchResponse.FetchableTopicResponse.PartitionData
_INT32_MAX = 2**31 - 1
_NO_OFFSET = -1

Key = Tuple[Union[str, TopicId, None], int]
"""Topic (id from version 13 on, name before) and partition."""


def next_epoch(epoch: int) -> int:
    """Returns the session epoch after `epoch`; wraps around to 1, never to `_INITIAL_EPOCH`."""
    return 1 if epoch == _INT32_MAX else epoch + 1


class CachedPartition:
    """One partition of a fetch: the client's request, and the offsets of the last response.

    Attributes: `topic`, None until the name of `topic_id` is looked up; `high_watermark` and `log_start_offset`, as in
    the last response, -1 before the first; the others as in the request.
    """

    __slots__ = (
        "key",
        "topic",
        "topic_id",
        "number",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "max_bytes",
        "high_watermark",
        "log_start_offset",
    )

    def __init__(self, key: Key, topic: str | None, topic_id: TopicId | None, requested: _RequestedPartition) -> None:
        self.key = key
        self.topic = topic
        self.topic_id = topic_id
        self.number: int = requested.partition
        self.high_watermark = self.log_start_offset = _NO_OFFSET
        # as `update`, which would be another call for each partition of a full fetch
        self.current_leader_epoch: int = requested.current_leader_epoch
        self.fetch_offset: int = requested.fetch_offset
        self.last_fetched_epoch: int = requested.last_fetched_epoch
        self.max_bytes: int = requested.partition_max_bytes

    def update(self, requested: _RequestedPartition) -> None:
        """Applies the parameters of a later request."""
        self.current_leader_epoch = requested.current_leader_epoch
        self.fetch_offset = requested.fetch_offset
        self.last_fetched_epoch = requested.last_fetched_epoch
        self.max_bytes = requested.partition_max_bytes

    def has_changes(self, high_watermark: int, log_start_offset: int) -> bool:
        """Returns whether the offsets differ from those of the last response."""
        return high_watermark != self.high_watermark or log_start_offset != self.log_start_offset

    def should_include(self, entry: _Entry) -> bool:
        """Returns whether an incremental response must contain `entry`."""
        return (
            entry.error_code != ErrorCode.NONE
            or bool(entry.records)
            or entry.diverging_epoch is not None
            or entry.preferred_read_replica >= 0
            or self.has_changes(entry.high_watermark, entry.log_start_offset)
        )

    def record_response(self, entry: _Entry) -> None:
        """Stores the offsets of `entry` as those of the last response."""
        self.log_start_offset = entry.log_start_offset
        # after an error the next response includes the partition, even without other changes
        self.high_watermark = entry.high_watermark if entry.error_code == ErrorCode.NONE else _NO_OFFSET


PartitionEntries = Sequence[Tuple[CachedPartition, _Entry]]
"""Partitions with their response entries, in response order."""


class FetchSession:
    """The partitions of one client, in the order of the next response."""

    def __init__(
        self, session_id: int, uses_topic_ids: bool, partitions: dict[Key, CachedPartition], now_ms: int
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(_INITIAL_EPOCH)
        self.size = 0  # partitions at the last request, the value that the cache has counted


class FetchContext(NamedTuple):
    """The partitions to read for a request, or `error_code` as the whole response.

    Attributes: `session`, and its `epoch` with this request, None without a session; `can_create_session`, whether
    the response may create one.
    """

    partitions: Collection[CachedPartition] = ()
    session: FetchSession | None = None
    epoch: int = _FINAL_EPOCH
    can_create_session: bool = False
    uses_topic_ids: bool = False
    error_code: ErrorCode = ErrorCode.NONE

    @property
    def is_incremental(self) -> bool:
        """Whether partitions without changes may be left out."""
        return self.session is not None


class SessionResponse(NamedTuple):
    """Session fields and entries of a response."""

    error_code: ErrorCode
    session_id: int
    entries: PartitionEntries


class FetchSessionCache:
    """The sessions of one node, `slots` at most; `new_id` returns a random positive number.

    Without memory for more state (`is_budget_full`), no session is created. `partition_count`: of all sessions.

    Each `new_context` without an error is followed by one `respond`, at once or after a delay.
    """

    def __init__(
        self, slots: int, new_id: Callable[[], int], is_budget_full: Callable[[int], bool] = lambda added_bytes: False
    ) -> None:
        self._is_budget_full = is_budget_full
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        # the number of each key is not a deadline but the size of the session
        self._evictable_by_size: DeadlineHeap[int] = DeadlineHeap()
        self.partition_count = 0

    async def new_context(
        self, request: FetchRequest, api_version: int, now_ms: int
    ) -> FetchContext:
        """Updates the session of a request, if it has one. `now_ms`: monotonic ms."""
        by_id = api_version >= _TOPIC_IDS_SINCE
        session = self._sessions.get(request.session_id)
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            if session is not None:
                self._remove(session)
            requested = await _merge({}, request, by_id)
            can_create_session = request.session_epoch == _INITIAL_EPOCH
            return FetchContext(requested.values(), can_create_session=can_create_session, uses_topic_ids=by_id)
        if session is None:
            return FetchContext(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            return FetchContext(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        await _merge(session.partitions, request, by_id)
        if self._sessions.get(session.session_id) is not session or session.epoch != request.session_epoch:
            return FetchContext(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)  # changed during a pause
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop((topic.topic_id if by_id else topic.topic, number), None)
        if not session.partitions:
            self._remove(session)
            return FetchContext((await _merge({}, request, by_id)).values())
        self._touch(session, now_ms)
        if self.partition_count > MAX_PARTITIONS:
            self._remove(session)
            return FetchContext(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = next_epoch(session.epoch)
        return FetchContext(session.partitions.values(), session, session.epoch)

    async def respond(
        self, context: FetchContext, entries: PartitionEntries, now_ms: int
    ) -> SessionResponse:
        """Returns the session fields and the entries that the response must contain.

        Returns INVALID_FETCH_SESSION_EPOCH if another connection has received a later request of the session.
        """
        session = context.session
        if session is None:
            can_create = context.can_create_session
            session_id = _NO_SESSION
            if can_create:
                session_id = await self._create(context.uses_topic_ids, entries, now_ms)
            return SessionResponse(ErrorCode.NONE, session_id, entries)
        if session.epoch != context.epoch:
            return SessionResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())
        included = []
        for number, (partition, entry) in enumerate(entries, 1):
            if partition.should_include(entry):
                included.append((partition, entry))
            partition.record_response(entry)
            if number % _PARTITIONS_PER_STEP == 0:
                await pause()
                if session.epoch != context.epoch:
                    return SessionResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())
        for partition, entry in included:
            if entry.records and partition.key in session.partitions:
                # move to the end, so that the other partitions are first in the next response
                session.partitions[partition.key] = session.partitions.pop(partition.key)
        return SessionResponse(ErrorCode.NONE, session.session_id, included)

    async def _create(self, uses_topic_ids: bool, entries: PartitionEntries, now_ms: int) -> int:
        partitions: dict[Key, CachedPartition] = {}
        for number, (partition, entry) in enumerate(entries, 1):
            partition.high_watermark, partition.log_start_offset = entry.high_watermark, entry.log_start_offset
            partitions[partition.key] = partition
            if number % _PARTITIONS_PER_STEP == 0:
                await pause()
        if not self._evict_for(len(entries), now_ms):
            return _NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, partitions, now_ms)
        self._touch(session, now_ms)
        return session_id

    def _evict_for(self, size: int, now_ms: int) -> bool:
        """Evicts sessions for a new one of `size` partitions; returns False if the limits do not permit it.

        Evicts sessions that are unused for `MIN_EVICTION_MS`, then smaller ones of that age, as Kafka does.
        """
        if size > MAX_PARTITIONS:
            return False
        while len(self._sessions) >= self._slots or self.partition_count + size > MAX_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None:
                return False
            if now_ms - oldest.last_used_ms > MIN_EVICTION_MS:
                self._remove(oldest)
                continue
            smaller = self._evictable_by_size.pop_expired(size - 1)  # the smallest one, if it is smaller
            if smaller is None:
                return False
            self._remove(self._sessions[smaller])
        return not self._is_budget_full(size * SESSION_PARTITION_BYTES)

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        self._sessions.move_to_end(session.session_id)
        session.last_used_ms = now_ms
        self.partition_count += len(session.partitions) - session.size
        session.size = len(session.partitions)
        # a larger session does not evict a young one, else clients would evict each other in turn
        if now_ms - session.created_ms > MIN_EVICTION_MS:
            self._evictable_by_size.set(session.session_id, session.size)

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self._evictable_by_size.cancel(session.session_id)
        self.partition_count -= session.size


async def _merge(
    partitions: dict[Key, CachedPartition], request: FetchRequest, by_id: bool
) -> dict[Key, CachedPartition]:
    """Adds the partitions of a request; known ones keep their position, the last of duplicates counts."""
    merged = 0
    for topic in request.topics:
        name = None if by_id else topic.topic
        topic_key = topic.topic_id if by_id else topic.topic
        for requested in topic.partitions:
            key: Key = (topic_key, requested.partition)
            known = partitions.get(key)
            if known is None:
                partitions[key] = CachedPartition(key, name, topic.topic_id, requested)
            else:
                known.update(requested)
            merged += 1
            if merged % _PARTITIONS_PER_STEP == 0:
                await pause()
    return partitions
