"""Reading planned ranges: blocks of raw record batches, from several partitions and leaders, one request ahead.

Knows Fetch answers and where a batch ends; decoding records is the caller's. At any time each leader has at most one
request outstanding, sent before the answer before it is handed out, so that the broker works while the caller decodes.
Memory is one answer (at most about fetch.max.bytes) for each leader.

Source: KIP-74 (answers are bounded, a batch may be cut at the end), KIP-392 (followers), KIP-98 (aborted transactions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.client.cluster.client import EARLIEST, LATEST, UNKNOWN_TOPIC_PATIENCE_MS, Cluster
from spark_groupsource.client.network.connection import BrokerConnection, InFlight
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError, NetworkError
from spark_groupsource.model import Node, OffsetRange, TopicPartition
from spark_groupsource.net import Address
from spark_groupsource.records.arrow import AbortedTransaction
from spark_groupsource.records.header import last_batch
from spark_groupsource.wire.messages import FetchRequest, Message

_HINTS: Mapping[int, str] = {
    ErrorCode.CORRUPT_MESSAGE: " (the broker finds its log damaged there; its own log tells where, start behind it)",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: " (the user may not READ this topic; grant it)",
}
_EMPTY = memoryview(b"")
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# answers without any record after which a readable rest is taken for a gap that compaction left at the log's end
_EMPTY_ANSWERS_FOR_GAP = 2


class FetchedBlock(NamedTuple):
    """Raw record batches of one partition; `data` is valid until the next block is asked for.

    `data` begins at or before the asked offset and may hold records at or after the range's end: the caller cuts both.
    `next_offset` is where the next block of this partition begins; the range is finished when it is at its end or past
    it. With `error` set there is no data and no further block of this partition: OFFSET_OUT_OF_RANGE (then
    `log_start_offset` and `high_watermark` say what the log holds) or UNKNOWN_TOPIC_OR_PARTITION (it was deleted).
    """

    topic_partition: TopicPartition
    data: memoryview
    next_offset: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    error: int = 0


@dataclass
class _Reading:
    """How far one range is read."""

    topic_partition: TopicPartition
    position: int
    end: int
    replica: int = -1
    empty_answers: int = 0
    unknown_since_ms: int | None = None

    @property
    def finished(self) -> bool:
        return self.position >= self.end


@dataclass
class _Leader:
    """One broker, the connection lent for it, its partitions in the order of asking, and the request outstanding."""

    address: Address
    readings: list[_Reading]
    connection: BrokerConnection | None = None
    sent: InFlight | None = None


class PartitionFetcher:
    """Fetches ranges over the connections of one `Cluster`; one call of `fetch_blocks` at a time."""

    def __init__(self, cluster: Cluster, settings: ClientSettings | None = None) -> None:
        self._cluster = cluster
        self._settings = settings or cluster.settings
        self._leaders: dict[Address, _Leader] = {}
        self._homeless: list[_Reading] = []
        self._refresh = False

    def fetch_blocks(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedBlock]:
        """Yields blocks until every range is read to its end; partitions come mixed, each in order of offsets.

        Leaders that move and connections that break are followed and replaced without the caller noticing.

        Raises: BrokerError and NetworkError when no record has come for default.api.timeout.ms, or at once when
            the broker's error is none that passes; CorruptRecordError on bytes that are no record batches.
        """
        self._homeless = [_Reading(r.topic_partition, r.start, r.end) for r in ranges if r.start < r.end]
        self._leaders = {}
        self._refresh = False
        retry = self._cluster.retry()
        try:
            while self._homeless or self._leaders:
                blocks, failure = self._ask()
                yield from blocks
                moved = bool(blocks)
                for leader in list(self._leaders.values()):
                    blocks, problem = self._take(leader)
                    failure = problem or failure
                    moved = moved or bool(blocks)
                    # sent before the blocks are handed out: the broker prepares the next answer meanwhile
                    failure = self._send(leader) or failure
                    yield from blocks
                if moved:
                    retry = self._cluster.retry()
                elif failure is not None:
                    self._refresh = True
                    retry.again(failure)
                elif retry.elapsed_ms > self._settings.default_api_timeout_ms:
                    raise self._stalled()
        finally:
            for leader in self._leaders.values():
                self._release(leader)
            self._leaders = {}

    def _ask(self) -> tuple[list[FetchedBlock], GroupSourceError | None]:
        """Finds a leader for those that have none, or reports them deleted; every leader gets its first request."""
        failure: GroupSourceError | None = None
        blocks: list[FetchedBlock] = []
        homeless, self._homeless = self._homeless, []
        if homeless:
            try:
                topics = {reading.topic_partition.topic for reading in homeless}
                view = self._cluster.metadata(topics, refresh=self._refresh)
                self._refresh = False
            except NetworkError as error:
                self._homeless = homeless
                return [], error
            for reading in homeless:
                try:
                    node = view.nodes.get(reading.replica) or view.leader(reading.topic_partition)
                    self._home(node).readings.append(reading)
                except BrokerError as error:
                    if error.code in _UNKNOWN and self._is_deleted(reading):
                        blocks.append(
                            FetchedBlock(reading.topic_partition, _EMPTY, reading.position, error=error.code)
                        )
                    else:
                        failure = error
                        self._lost(reading, error)
        for leader in list(self._leaders.values()):
            failure = self._send(leader) or failure
        return blocks, failure

    def _home(self, node: Node) -> _Leader:
        address = self._cluster.node_address(node)
        return self._leaders.setdefault(address, _Leader(address, []))

    def _lost(self, reading: _Reading, error: BrokerError) -> None:
        """Keeps a partition whose leader must be found again."""
        if not error.retriable:
            raise error
        reading.replica = -1
        self._homeless.append(reading)

    def _send(self, leader: _Leader) -> GroupSourceError | None:
        """Sends the next request unless one is outstanding; a leader with nothing left to read is let go."""
        if leader.sent is not None:
            return None
        leader.readings = [reading for reading in leader.readings if not reading.finished]
        if not leader.readings:
            self._leaders.pop(leader.address, None)
            self._release(leader)
            return None
        try:
            if leader.connection is None:
                leader.connection = self._cluster.borrow(leader.address)
            timeout_ms = self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms
            leader.sent = leader.connection.send(self._request(leader.readings), timeout_ms)
        except NetworkError as error:
            self._abandon(leader)
            return error
        return None

    def _take(self, leader: _Leader) -> tuple[list[FetchedBlock], GroupSourceError | None]:
        """The blocks of the outstanding answer, and what went wrong with the rest of it."""
        sent, leader.sent = leader.sent, None
        if sent is None or leader.connection is None:
            return [], None
        try:
            answer = leader.connection.receive(sent)
        except NetworkError as error:
            self._abandon(leader)
            return [], error
        if answer.error_code:
            raise BrokerError(answer.error_code, f"fetch from {leader.address}")
        readings = {reading.topic_partition: reading for reading in leader.readings}
        blocks: list[FetchedBlock] = []
        failure: GroupSourceError | None = None
        for topic in answer.responses:
            for data in topic.partitions:
                reading = readings[TopicPartition(topic.topic, data.partition_index)]
                block, problem = self._read(leader, reading, data)
                failure = problem or failure
                if block is not None:
                    blocks.append(block)
        if not blocks and failure is None:
            blocks = self._gaps(answer, readings)
        # those that were given records queue behind those that were not: fetch.max.bytes is shared in turn
        served = {block.topic_partition for block in blocks}
        leader.readings.sort(key=lambda reading: reading.topic_partition in served)
        return blocks, failure

    def _read(
        self, leader: _Leader, reading: _Reading, data: Message
    ) -> tuple[FetchedBlock | None, GroupSourceError | None]:
        tp = reading.topic_partition
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            leader.readings.remove(reading)
            if reading.replica >= 0:
                # a follower may lag behind; only the leader knows the log's ends
                reading.replica = -1
                self._homeless.append(reading)
                return None, None
            return self._out_of_range(reading), None
        if data.error_code:
            hint = _HINTS.get(data.error_code, "")
            error = BrokerError(
                data.error_code, f"fetch of {tp} at offset {reading.position} from {leader.address}{hint}"
            )
            leader.readings.remove(reading)
            self._lost(reading, error)
            return None, error
        reading.unknown_since_ms = None
        if data.preferred_read_replica >= 0:
            leader.readings.remove(reading)
            reading.replica = data.preferred_read_replica
            self._homeless.append(reading)
            return None, None
        records = memoryview(data.records) if data.records else _EMPTY
        next_offset = _next_offset(records, reading.position)
        if next_offset == reading.position:
            return None, None
        reading.position = next_offset
        reading.empty_answers = 0
        aborted = tuple(AbortedTransaction(a.producer_id, a.first_offset) for a in data.aborted_transactions or ())
        return (
            FetchedBlock(
                tp,
                records,
                next_offset,
                data.high_watermark,
                data.last_stable_offset,
                data.log_start_offset,
                aborted,
            ),
            None,
        )

    def _gaps(self, answer: Message, readings: Mapping[TopicPartition, _Reading]) -> list[FetchedBlock]:
        """Finishes ranges whose rest is readable and yet holds nothing: compaction removed the last records."""
        blocks = []
        for topic in answer.responses:
            for data in topic.partitions:
                reading = readings[TopicPartition(topic.topic, data.partition_index)]
                readable = data.last_stable_offset if self._settings.read_committed else data.high_watermark
                if data.error_code or readable < reading.end:
                    continue
                reading.empty_answers += 1
                if reading.empty_answers >= _EMPTY_ANSWERS_FOR_GAP:
                    reading.position = reading.end
                    blocks.append(
                        FetchedBlock(reading.topic_partition, _EMPTY, reading.end, data.high_watermark, readable)
                    )
        return blocks

    def _out_of_range(self, reading: _Reading) -> FetchedBlock:
        tp = reading.topic_partition
        start = self._cluster.list_offsets({tp: EARLIEST})[tp].offset
        end = self._cluster.list_offsets({tp: LATEST}, read_committed=False)[tp].offset
        return FetchedBlock(
            tp, _EMPTY, reading.position, end, end, start, error=int(ErrorCode.OFFSET_OUT_OF_RANGE)
        )

    def _is_deleted(self, reading: _Reading) -> bool:
        """True once nobody has known the partition for `UNKNOWN_TOPIC_PATIENCE_MS`."""
        now_ms = self._cluster.clock.now_ms()
        if reading.unknown_since_ms is None:
            reading.unknown_since_ms = now_ms
        return now_ms - reading.unknown_since_ms > UNKNOWN_TOPIC_PATIENCE_MS

    def _abandon(self, leader: _Leader) -> None:
        """After a lost connection: its partitions look for their leader anew."""
        self._leaders.pop(leader.address, None)
        self._release(leader)
        for reading in leader.readings:
            reading.replica = -1
        self._homeless.extend(reading for reading in leader.readings if not reading.finished)

    def _release(self, leader: _Leader) -> None:
        connection, leader.connection = leader.connection, None
        if connection is None:
            return
        if leader.sent is None:
            self._cluster.give_back(connection)
        else:
            # an answer nobody will take is on its way
            connection.close()

    def _request(self, readings: Sequence[_Reading]) -> Message:
        settings = self._settings
        row = FetchRequest.FetchTopic
        topics: list[Message] = []
        for reading in readings:
            tp = reading.topic_partition
            partition = row.FetchPartition(
                partition=tp.partition,
                fetch_offset=reading.position,
                partition_max_bytes=settings.max_partition_fetch_bytes,
            )
            # neighbours of one topic share a row; the order of partitions is the order of serving
            if topics and topics[-1].topic == tp.topic:
                topics[-1].partitions.append(partition)
            else:
                topics.append(row(topic=tp.topic, partitions=[partition]))
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=int(settings.read_committed),
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id=settings.client_rack,
        )

    def _stalled(self) -> BrokerError:
        waiting = [r for leader in self._leaders.values() for r in leader.readings]
        listed = ", ".join(f"{r.topic_partition} at {r.position} of {r.end}" for r in waiting[:5])
        return BrokerError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"no record has come for {self._settings.default_api_timeout_ms} ms (kafka.default.api.timeout.ms), "
            f"the log ends before the planned range or an open transaction holds it back: {listed}",
        )


def _next_offset(records: memoryview, position: int) -> int:
    """The offset after the last whole batch of `records`, at least `position`."""
    header = last_batch(records)
    return position if header is None else max(header.next_offset, position)
