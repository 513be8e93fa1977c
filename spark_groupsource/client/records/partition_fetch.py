"""Progress of one fetched range; Fetch requests and their responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Sequence
from uuid import UUID

from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow import AbortedTransaction
from spark_groupsource.records.header import OldFormatError, last_batch
from spark_groupsource.records.message_sets import with_record_batches
from spark_groupsource.wire.messages import FetchRequest, FetchResponse

EMPTY = memoryview(b"")
FETCH_BY_NAME = 12
"""Last version of Fetch that names topics; later ones identify them by id (KIP-516)."""

_RESPONSE_BYTES = 8 * 1024 * 1024
_LEAST_RESPONSE_BYTES = 64 * 1024
# parts of request.timeout.ms: a response that takes longer is slow, one that takes less is fast
_SLOW, _FAST = 4, 16

PartitionData = FetchResponse.FetchableTopicResponse.PartitionData


class FetchedBlock(NamedTuple):
    """Encoded record batches of one partition, or the reason why it cannot be read.

    Attributes:
        data: valid until the next block; may contain records before and after the range, which the caller skips.
        next_offset: offset of the next block; the range is complete when it is at or after the end.
        error: such a block has no data and is the partition's last: OFFSET_OUT_OF_RANGE, with the bounds of the log in
            `log_start_offset` and `high_watermark`; UNKNOWN_TOPIC_OR_PARTITION for a deleted partition;
            UNKNOWN_TOPIC_ID for a partition whose topic was recreated.
        diverging_offset: such a block has no data, and the range is read on: the log was truncated to this offset after
            the range was planned, so the records from there on are others (KIP-320). -1 if the offset is unknown, None
            in all other blocks.
    """

    topic_partition: TopicPartition
    data: memoryview
    next_offset: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    error: int = 0
    diverging_offset: int | None = None


@dataclass
class PartitionState:
    """Progress of one range.

    Attributes:
        topic_id: the topic that is read; another topic of the same name is not. None until it is known.
        leader_epoch: current leader epoch in the metadata, sent with each request.
        valid_epoch: leader epoch in which the whole range was in the log; -1 if it is unknown.
        replica: the follower to fetch from until `replica_until_ms`, -1 for the leader (KIP-392).
        empty_responses: number of responses in a row that had no records although the whole range is readable.
        high_watermark, last_stable_offset: of the last response.
        unknown_since_ms: when the partition was first not found; None while it is known.
    """

    topic_partition: TopicPartition
    position: int
    end: int
    topic_id: UUID | None = None
    leader_epoch: int = -1
    valid_epoch: int = -1
    replica: int = -1
    replica_until_ms: int = 0
    empty_responses: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    unknown_since_ms: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.position >= self.end

    def accept(self, data: PartitionData) -> FetchedBlock | None:
        """Advances by the record batches of a response without error; None if it has none at or after the position."""
        self.unknown_since_ms = None
        self.high_watermark, self.last_stable_offset = data.high_watermark, data.last_stable_offset
        records = memoryview(data.records) if data.records else EMPTY
        try:
            next_offset = _next_offset(records, self.position)
        except OldFormatError:
            records = with_record_batches(records)
            next_offset = _next_offset(records, self.position)
        if next_offset == self.position:
            return None
        self.position = next_offset
        self.empty_responses = 0
        return FetchedBlock(
            self.topic_partition,
            records,
            next_offset,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            tuple(AbortedTransaction(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()),
        )

    def failed(self, error: int, *, log_start_offset: int = -1, log_end_offset: int = -1) -> FetchedBlock:
        """Returns the last block of a partition that cannot be read on."""
        return FetchedBlock(
            self.topic_partition,
            EMPTY,
            self.position,
            log_end_offset,
            log_end_offset,
            log_start_offset,
            error=int(error),
        )


def _next_offset(records: memoryview, position: int) -> int:
    """Returns the offset after the last complete batch of `records`, at least `position`."""
    header = last_batch(records)
    return position if header is None else max(header.next_offset, position)


def highest_fetch_version(states: Sequence[PartitionState]) -> int | None:
    """Returns the highest version in which the request can be sent, None for no bound."""
    return None if all(state.topic_id is not None for state in states) else FETCH_BY_NAME


def response_bytes(settings: ClientSettings, leaders: int) -> int:
    """Returns the largest size of one response, except that it has at least one batch.

    Those of all `leaders` together have at most twice fetch.max.bytes. One has at most 8 MiB, or
    max.partition.fetch.bytes if these are more: a larger one takes more time for each byte.
    """
    largest = max(_RESPONSE_BYTES, settings.max_partition_fetch_bytes)
    return min(largest, settings.fetch_max_bytes // max(1, leaders // 2))


class FetchSize:
    """Largest response that is requested from one leader: half after a slow response, twice after a fast one.

    On a slow link the responses stay small enough for the heartbeats and the other leaders, which the task serves
    between two of them; a link that ends requests before they are complete has less to send again.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._slow_ms = settings.request_timeout_ms // _SLOW
        self._fast_ms = settings.request_timeout_ms // _FAST
        self._bytes: int | None = None

    def limit(self, largest: int) -> int:
        """Returns the size to request, at most `largest`."""
        return largest if self._bytes is None else min(self._bytes, largest)

    def received(self, size: int, took_ms: int, largest: int) -> None:
        """Adapts the size to a response of `size` bytes."""
        if took_ms >= self._slow_ms:
            if size >= _LEAST_RESPONSE_BYTES:
                self._bytes = max(min(size, self.limit(largest)) // 2, _LEAST_RESPONSE_BYTES)
        elif took_ms <= self._fast_ms and self._bytes is not None:
            self._bytes = None if 2 * self._bytes >= largest else 2 * self._bytes

    def failed(self, largest: int) -> None:
        """Adapts the size after a response that was not received in time."""
        self._bytes = max(self.limit(largest) // 2, min(_LEAST_RESPONSE_BYTES, largest))


def fetch_request(states: Sequence[PartitionState], settings: ClientSettings, max_bytes: int) -> FetchRequest:
    """Returns a Fetch request without a session; the broker fills partitions in the order of the request."""
    row = FetchRequest.FetchTopic
    # adjacent partitions of a topic share an entry
    topics: list[tuple[str, UUID | None, list[FetchRequest.FetchTopic.FetchPartition]]] = []
    for state in states:
        tp = state.topic_partition
        partition = row.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=state.leader_epoch,
            fetch_offset=state.position,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=settings.max_partition_fetch_bytes,
        )
        if topics and topics[-1][0] == tp.topic:
            topics[-1][2].append(partition)
        else:
            topics.append((tp.topic, state.topic_id, [partition]))
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=settings.fetch_max_wait_ms,
        # the records of the ranges exist: a wait for more bytes brings none of them
        min_bytes=min(settings.fetch_min_bytes, 1),
        max_bytes=max_bytes,
        isolation_level=int(settings.read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[row(topic=topic, topic_id=topic_id, partitions=rows) for topic, topic_id, rows in topics],
        forgotten_topics_data=[],
        rack_id=settings.client_rack,
    )


def record_bytes(response: FetchResponse) -> int:
    """Returns the size of the records in a response."""
    return sum(len(data.records or b"") for topic in response.responses for data in topic.partitions)


def partitions_of(
    response: FetchResponse, version: int, states: Sequence[PartitionState]
) -> Iterator[tuple[PartitionState, PartitionData]]:
    """Yields the partitions of a response with their states; ignores partitions that were not requested."""
    requested: Mapping[tuple[object, int], PartitionState] = {
        (r.topic_id if version > FETCH_BY_NAME else r.topic_partition.topic, r.topic_partition.partition): r
        for r in states
    }
    for topic in response.responses:
        name = topic.topic_id if version > FETCH_BY_NAME else topic.topic
        for data in topic.partitions:
            state = requested.get((name, data.partition_index))
            if state is not None:
                yield state, data
