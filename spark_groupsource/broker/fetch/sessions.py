"""Fetch sessions: which partitions a request is about, and which of them its answer leaves out.

A client with a session has named its partitions once; a further request tells what has changed of them, and so does
its answer. The session belongs to the node that granted it and outlives the connection: it goes when the client ends
it, when it is empty, or when its place is wanted. Knows neither logs nor chance: the caller reads, and brings time and
ids.

Source: KIP-227; Kafka `FetchSession.scala`, `FetchMetadata`; KIP-516 (topic ids).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Collection, NamedTuple, Sequence, Tuple

from spark_groupsource.deadlines import DeadlineHeap
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import Message

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
TOPIC_IDS_SINCE = 13
MIN_EVICTION_MS = 120_000
MAX_PARTITIONS = 500_000
"""Of all sessions of a node together, which is 150 MB: what hostile clients can take. Kafka has no such limit."""

_INT32_MAX = 2**31 - 1
_NOTHING = -1

Key = Tuple[Any, int]
"""A topic, by id from version 13 on and by name before, and a partition's number."""


def next_epoch(epoch: int) -> int:
    """The epoch a session has behind a request of `epoch`; it never comes to `INITIAL_EPOCH` again."""
    return 1 if epoch == _INT32_MAX else epoch + 1


class FetchedPartition:
    """One partition as its client asks for it, and what the client was told of it last.

    Attributes: `topic`, its name, None where the client gave `topic_id` and nobody has looked yet which topic that is;
    `high_watermark` and `log_start_offset`, -1 before the first answer; the others as in the request.
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

    def __init__(self, key: Key, topic: str | None, topic_id: Any, wanted: Message) -> None:
        self.key = key
        self.topic = topic
        self.topic_id = topic_id
        self.number: int = wanted.partition
        self.current_leader_epoch: int = wanted.current_leader_epoch
        self.fetch_offset: int = wanted.fetch_offset
        self.last_fetched_epoch: int = wanted.last_fetched_epoch
        self.max_bytes: int = wanted.partition_max_bytes
        self.high_watermark = self.log_start_offset = _NOTHING

    def ask(self, wanted: Message) -> None:
        """Takes over what a further request says of this partition."""
        self.current_leader_epoch = wanted.current_leader_epoch
        self.fetch_offset = wanted.fetch_offset
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.max_bytes = wanted.partition_max_bytes

    def has_moved(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client has still to be told where this partition begins or ends."""
        return high_watermark != self.high_watermark or log_start_offset != self.log_start_offset

    def tell(self, entry: Message) -> bool:
        """Whether `entry` belongs in an answer that leaves out what has not changed; notes that it was sent."""
        news = (
            entry.error_code != ErrorCode.NONE
            or len(entry.records) > 0
            or entry.diverging_epoch is not None
            or entry.preferred_read_replica >= 0
            or self.has_moved(entry.high_watermark, entry.log_start_offset)
        )
        self.log_start_offset = entry.log_start_offset
        # behind an error the partition is told again, also where nothing else has changed
        self.high_watermark = entry.high_watermark if entry.error_code == ErrorCode.NONE else _NOTHING
        return news


Found = Sequence["tuple[FetchedPartition, Message]"]
"""Partitions and what is to be answered of each, in the order of the answer."""


class FetchSession:
    """The partitions of one client, in the order in which they are served next."""

    def __init__(
        self, session_id: int, uses_topic_ids: bool, partitions: dict[Key, FetchedPartition], now_ms: int
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.size = 0  # as the cache counts it, which is that of the last request


class Fetch(NamedTuple):
    """What a request asks for: read these, or answer `error_code` and nothing else.

    Attributes: `session`, which has come to `epoch` by this request, None without one; `may_begin`, whether the answer
    may grant one; `is_incremental`, whether a partition that has nothing to tell need not be in what was found.
    """

    partitions: Collection[FetchedPartition] = ()
    session: FetchSession | None = None
    epoch: int = FINAL_EPOCH
    may_begin: bool = False
    uses_topic_ids: bool = False
    error_code: ErrorCode = ErrorCode.NONE

    @property
    def is_incremental(self) -> bool:
        return self.session is not None


class Told(NamedTuple):
    """What is answered: the partitions in `found` alone."""

    error_code: ErrorCode
    session_id: int
    found: Found


class FetchSessions:
    """The sessions of one node, `slots` at most; `new_id` gives a random number above 0.

    Whoever calls `request` and gets no error calls `answer` in the end, at once or when what is waited for has come.
    """

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used first
        # sessions that make room for larger ones; what the heap takes for time is the number of partitions here
        self._by_size: DeadlineHeap[int] = DeadlineHeap()
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def request(self, request: Message, api_version: int, now_ms: int) -> Fetch:
        """Takes a request into its session, where it has one. `now_ms`: monotonic ms."""
        by_id = api_version >= TOPIC_IDS_SINCE
        session = self._sessions.get(request.session_id)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._remove(session)
            asked = _merge({}, request, by_id)
            return Fetch(asked.values(), may_begin=request.session_epoch == INITIAL_EPOCH, uses_topic_ids=by_id)
        if session is None:
            return Fetch(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return Fetch(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            return Fetch(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        _merge(session.partitions, request, by_id)
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop((topic.topic_id if by_id else topic.topic, number), None)
        if not session.partitions:
            self._remove(session)
            return Fetch(_merge({}, request, by_id).values())
        self._touch(session, now_ms)
        if self._partition_count > MAX_PARTITIONS:
            self._remove(session)
            return Fetch(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = next_epoch(session.epoch)
        return Fetch(session.partitions.values(), session, session.epoch)

    def answer(self, fetch: Fetch, found: Found, now_ms: int) -> Told:
        """What of `found` is told, under which session.

        A request that the next one of its session has overtaken, on another connection, gets an error instead.
        """
        session = fetch.session
        if session is None:
            session_id = self._begin(fetch.uses_topic_ids, found, now_ms) if fetch.may_begin else NO_SESSION
            return Told(ErrorCode.NONE, session_id, found)
        if session.epoch != fetch.epoch:
            return Told(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())
        told = [(partition, entry) for partition, entry in found if partition.tell(entry)]
        for partition, entry in told:
            if len(entry.records):
                # who was served goes to the end, so that a limit in bytes starves nobody
                session.partitions[partition.key] = session.partitions.pop(partition.key)
        return Told(ErrorCode.NONE, session.session_id, told)

    def _begin(self, uses_topic_ids: bool, found: Found, now_ms: int) -> int:
        if not self._make_room(len(found), now_ms):
            return NO_SESSION
        partitions: dict[Key, FetchedPartition] = {}
        for partition, entry in found:
            partition.high_watermark, partition.log_start_offset = entry.high_watermark, entry.log_start_offset
            partitions[partition.key] = partition
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, partitions, now_ms)
        self._touch(session, now_ms)
        return session_id

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Room for a session of `size` partitions, False when those that are there have the better claim."""
        if size > MAX_PARTITIONS:
            return False
        while len(self._sessions) >= self._slots or self._partition_count + size > MAX_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None:
                return False
            if now_ms - oldest.last_used_ms > MIN_EVICTION_MS:
                self._remove(oldest)
                continue
            smaller = self._by_size.pop_expired(size - 1)
            if smaller is None:
                return False
            self._remove(self._sessions[smaller])
        return True

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        self._sessions.move_to_end(session.session_id)
        session.last_used_ms = now_ms
        self._partition_count += len(session.partitions) - session.size
        session.size = len(session.partitions)
        # one that was made lately is not pushed out by a larger one, or clients would take turns at that
        if now_ms - session.created_ms > MIN_EVICTION_MS:
            self._by_size.set(session.session_id, session.size)

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self._by_size.cancel(session.session_id)
        self._partition_count -= session.size


def _merge(partitions: dict[Key, FetchedPartition], request: Message, by_id: bool) -> dict[Key, FetchedPartition]:
    """Adds what a request names; what is there keeps its place, and of what is named twice the last holds."""
    for topic in request.topics:
        name, named = (None, topic.topic_id) if by_id else (topic.topic, topic.topic)
        for wanted in topic.partitions:
            key = (named, wanted.partition)
            known = partitions.get(key)
            if known is None:
                partitions[key] = FetchedPartition(key, name, topic.topic_id, wanted)
            else:
                known.ask(wanted)
    return partitions
