"""Fetcher of planned offset ranges from several partitions and leaders.

It returns blocks of record batches, which the caller decodes. Each leader has at most one outstanding request, which is
sent before the previous response is returned, so that the broker works while the caller decodes. Memory: one response
(about fetch.max.bytes at most) for each leader.

Source: KIP-74 (bounded responses, an incomplete last batch), KIP-392 (followers), KIP-98 (aborted transactions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Sequence

from spark_groupsource.client.cluster.client import EARLIEST, LATEST, UNKNOWN_TOPIC_TIMEOUT_MS, Cluster
from spark_groupsource.client.network.connection import BrokerConnection, InFlight
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError, NetworkError
from spark_groupsource.model import Node, OffsetRange, TopicPartition, bounded_names
from spark_groupsource.net import Address
from spark_groupsource.records.arrow import AbortedTransaction
from spark_groupsource.records.header import last_batch
from spark_groupsource.wire.messages import FetchRequest, FetchResponse

_HINTS: Mapping[int, str] = {
    ErrorCode.CORRUPT_MESSAGE: (
        "The broker's log is damaged there; the log file of the broker names the position. Start after it."
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Grant the user READ on the topic.",
}
_EMPTY = memoryview(b"")
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# number of responses without records after which the rest of a readable range counts as removed by compaction
_EMPTY_RESPONSES_FOR_GAP = 2


class FetchedBlock(NamedTuple):
    """Encoded record batches of one partition.

    Attributes:
        data: valid until the next block; may contain records before and after the range, which the caller skips.
        next_offset: offset of the next block; the range is complete when it is at or after the end.
        error: OFFSET_OUT_OF_RANGE, with the bounds of the log in `log_start_offset` and `high_watermark`, or
            UNKNOWN_TOPIC_OR_PARTITION for a deleted partition; such a block has no data and is the partition's last.
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
class _PartitionState:
    """Progress of one range."""

    topic_partition: TopicPartition
    position: int
    end: int
    replica: int = -1
    empty_responses: int = 0
    unknown_since_ms: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.position >= self.end


@dataclass
class _Leader:
    """One broker with its pooled connection, outstanding request, and partitions in the order of the next request."""

    address: Address
    readings: list[_PartitionState]
    connection: BrokerConnection | None = None
    sent: InFlight[FetchResponse] | None = None


class PartitionFetcher:
    """Fetches ranges over the connections of one `Cluster`; one call of `fetch_blocks` at a time."""

    def __init__(self, cluster: Cluster, settings: ClientSettings | None = None) -> None:
        self._cluster = cluster
        self._settings = settings or cluster.settings
        self._leaders: dict[Address, _Leader] = {}
        self._awaiting_leader: list[_PartitionState] = []
        self._refresh_metadata = False

    def fetch_blocks(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedBlock]:
        """Yields blocks until every range is complete; blocks of a partition are in order of offsets.

        Moved leaders and broken connections are retried.

        Raises: BrokerError and NetworkError without progress for default.api.timeout.ms, or at once if the error is not
            retriable; CorruptRecordError on malformed record batches.
        """
        self._awaiting_leader = [_PartitionState(r.topic_partition, r.start, r.end) for r in ranges if r.start < r.end]
        self._leaders = {}
        self._refresh_metadata = False
        retry = self._cluster.retry()
        try:
            while self._awaiting_leader or self._leaders:
                blocks, failure = self._assign_leaders()
                yield from blocks
                has_progress = bool(blocks)
                for leader in list(self._leaders.values()):
                    blocks, problem = self._receive(leader)
                    failure = problem or failure
                    has_progress = has_progress or bool(blocks)
                    # sent before the blocks are returned: the broker prepares the next response meanwhile
                    failure = self._send(leader) or failure
                    yield from blocks
                if has_progress:
                    retry = self._cluster.retry()
                elif failure is not None:
                    self._refresh_metadata = True
                    retry.backoff_or_raise(failure)
                elif retry.elapsed_ms > self._settings.default_api_timeout_ms:
                    raise self._stalled()
        finally:
            for leader in self._leaders.values():
                self._release(leader)
            self._leaders = {}

    def _assign_leaders(self) -> tuple[list[FetchedBlock], GroupSourceError | None]:
        """Finds the leaders of partitions without one and sends their first requests; returns deleted partitions."""
        failure: GroupSourceError | None = None
        blocks: list[FetchedBlock] = []
        awaiting, self._awaiting_leader = self._awaiting_leader, []
        if awaiting:
            try:
                topics = {reading.topic_partition.topic for reading in awaiting}
                view = self._cluster.metadata(topics, refresh=self._refresh_metadata)
                self._refresh_metadata = False
            except NetworkError as error:
                self._awaiting_leader = awaiting
                return [], error
            for reading in awaiting:
                try:
                    node = view.nodes.get(reading.replica) or view.leader(reading.topic_partition)
                    self._leader(node).readings.append(reading)
                except BrokerError as error:
                    if error.code in _UNKNOWN and self._is_deleted(reading):
                        blocks.append(
                            FetchedBlock(reading.topic_partition, _EMPTY, reading.position, error=error.code)
                        )
                    else:
                        failure = error
                        self._retry_leader(reading, error)
        for leader in list(self._leaders.values()):
            failure = self._send(leader) or failure
        return blocks, failure

    def _leader(self, node: Node) -> _Leader:
        address = self._cluster.node_address(node)
        return self._leaders.setdefault(address, _Leader(address, []))

    def _retry_leader(self, reading: _PartitionState, error: BrokerError) -> None:
        """Looks the leader of a partition up again if the error is retriable."""
        if not error.retriable:
            raise error
        reading.replica = -1
        self._awaiting_leader.append(reading)

    def _send(self, leader: _Leader) -> GroupSourceError | None:
        """Sends the next request unless one is outstanding; releases a leader without incomplete ranges."""
        if leader.sent is not None:
            return None
        leader.readings = [reading for reading in leader.readings if not reading.is_complete]
        if not leader.readings:
            self._leaders.pop(leader.address, None)
            self._release(leader)
            return None
        try:
            if leader.connection is None:
                leader.connection = self._cluster.acquire_connection(leader.address)
            timeout_ms = self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms
            leader.sent = leader.connection.send(self._request(leader.readings), timeout_ms)
        except NetworkError as error:
            self._abandon(leader)
            return error
        return None

    def _receive(self, leader: _Leader) -> tuple[list[FetchedBlock], GroupSourceError | None]:
        """Receives the outstanding response; returns its blocks and the last retriable error."""
        sent, leader.sent = leader.sent, None
        if sent is None or leader.connection is None:
            return [], None
        try:
            response = leader.connection.receive(sent)
        except NetworkError as error:
            self._abandon(leader)
            return [], error
        if response.error_code:
            raise BrokerError(response.error_code, f"Fetch from {leader.address}")
        readings = {reading.topic_partition: reading for reading in leader.readings}
        blocks: list[FetchedBlock] = []
        failure: GroupSourceError | None = None
        for topic in response.responses:
            for data in topic.partitions:
                reading = readings[TopicPartition(topic.topic, data.partition_index)]
                block, problem = self._read_partition(leader, reading, data)
                failure = problem or failure
                if block is not None:
                    blocks.append(block)
        if not blocks and failure is None:
            blocks = self._skip_compacted(response, readings)
        # partitions with records go to the end of the next request, because fetch.max.bytes applies in order
        served = {block.topic_partition for block in blocks}
        leader.readings.sort(key=lambda reading: reading.topic_partition in served)
        return blocks, failure

    def _read_partition(
        self, leader: _Leader, reading: _PartitionState, data: FetchResponse.FetchableTopicResponse.PartitionData
    ) -> tuple[FetchedBlock | None, GroupSourceError | None]:
        tp = reading.topic_partition
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            leader.readings.remove(reading)
            if reading.replica >= 0:
                # a follower may lag behind; the leader knows the bounds of the log
                reading.replica = -1
                self._awaiting_leader.append(reading)
                return None, None
            return self._out_of_range(reading), None
        if data.error_code:
            hint = _HINTS.get(data.error_code, "")
            error = BrokerError(
                data.error_code, f"Fetch of {tp} at offset {reading.position} from {leader.address}", hint
            )
            leader.readings.remove(reading)
            self._retry_leader(reading, error)
            return None, error
        reading.unknown_since_ms = None
        if data.preferred_read_replica >= 0:
            leader.readings.remove(reading)
            reading.replica = data.preferred_read_replica
            self._awaiting_leader.append(reading)
            return None, None
        records = memoryview(data.records) if data.records else _EMPTY
        next_offset = _next_offset(records, reading.position)
        if next_offset == reading.position:
            return None, None
        reading.position = next_offset
        reading.empty_responses = 0
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

    def _skip_compacted(
        self, response: FetchResponse, readings: Mapping[TopicPartition, _PartitionState]
    ) -> list[FetchedBlock]:
        """Completes ranges whose remaining offsets are readable and empty: compaction removed the last records."""
        blocks = []
        for topic in response.responses:
            for data in topic.partitions:
                reading = readings[TopicPartition(topic.topic, data.partition_index)]
                readable = data.last_stable_offset if self._settings.read_committed else data.high_watermark
                if data.error_code or readable < reading.end:
                    continue
                reading.empty_responses += 1
                if reading.empty_responses >= _EMPTY_RESPONSES_FOR_GAP:
                    reading.position = reading.end
                    blocks.append(
                        FetchedBlock(reading.topic_partition, _EMPTY, reading.end, data.high_watermark, readable)
                    )
        return blocks

    def _out_of_range(self, reading: _PartitionState) -> FetchedBlock:
        tp = reading.topic_partition
        start = self._cluster.list_offsets({tp: EARLIEST})[tp].offset
        end = self._cluster.list_offsets({tp: LATEST}, read_committed=False)[tp].offset
        return FetchedBlock(
            tp, _EMPTY, reading.position, end, end, start, error=int(ErrorCode.OFFSET_OUT_OF_RANGE)
        )

    def _is_deleted(self, reading: _PartitionState) -> bool:
        """Returns True if the partition has been unknown for `UNKNOWN_TOPIC_TIMEOUT_MS`."""
        now_ms = self._cluster.clock.now_ms()
        if reading.unknown_since_ms is None:
            reading.unknown_since_ms = now_ms
        return now_ms - reading.unknown_since_ms > UNKNOWN_TOPIC_TIMEOUT_MS

    def _abandon(self, leader: _Leader) -> None:
        """Releases a leader after a lost connection; its partitions look their leaders up again."""
        self._leaders.pop(leader.address, None)
        self._release(leader)
        for reading in leader.readings:
            reading.replica = -1
        self._awaiting_leader.extend(reading for reading in leader.readings if not reading.is_complete)

    def _release(self, leader: _Leader) -> None:
        connection, leader.connection = leader.connection, None
        if connection is None:
            return
        if leader.sent is None:
            self._cluster.release_connection(connection)
        else:
            # the response would be read as that of the next request
            connection.close()

    def _request(self, readings: Sequence[_PartitionState]) -> FetchRequest:
        settings = self._settings
        row = FetchRequest.FetchTopic
        # adjacent partitions of a topic share an entry; the broker fills partitions in the order of the request
        topics: list[tuple[str, list[FetchRequest.FetchTopic.FetchPartition]]] = []
        for reading in readings:
            tp = reading.topic_partition
            partition = row.FetchPartition(
                partition=tp.partition,
                fetch_offset=reading.position,
                partition_max_bytes=settings.max_partition_fetch_bytes,
            )
            if topics and topics[-1][0] == tp.topic:
                topics[-1][1].append(partition)
            else:
                topics.append((tp.topic, [partition]))
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=int(settings.read_committed),
            session_id=0,
            session_epoch=-1,
            topics=[row(topic=topic, partitions=partitions) for topic, partitions in topics],
            forgotten_topics_data=[],
            rack_id=settings.client_rack,
        )

    def _stalled(self) -> BrokerError:
        waiting = [r for leader in self._leaders.values() for r in leader.readings]
        listed = bounded_names(f"{r.topic_partition} at offset {r.position} of {r.end}" for r in waiting)
        return BrokerError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Fetch of {listed}",
            f"No record for kafka.default.api.timeout.ms={self._settings.default_api_timeout_ms}: the log ends before "
            "the planned range, or an open transaction holds back the last stable offset.",
        )


def _next_offset(records: memoryview, position: int) -> int:
    """Returns the offset after the last complete batch of `records`, at least `position`."""
    header = last_batch(records)
    return position if header is None else max(header.next_offset, position)
