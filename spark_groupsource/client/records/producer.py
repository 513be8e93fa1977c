"""Producer of encoded record batches: pipelined to all leaders, idempotent or transactional.

Source: Kafka `Sender`, `TransactionManager` (KIP-98, KIP-360), `RecordAccumulator`.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.configs import describe_topic_config
from spark_groupsource.client.cluster.error_rules import is_missing
from spark_groupsource.client.network.broker_connection import BrokerConnection, InFlight
from spark_groupsource.client.network.retry import Retry, retry_level
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    UnsupportedVersionError,
    as_sentence,
)
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch, stamped
from spark_groupsource.records.header import first_header
from spark_groupsource.wire.messages import InitProducerIdRequest, ProduceRequest, ProduceResponse

_log = logging.getLogger(__name__)

_SEQUENCE_MODULUS = 2**31
_MAX_EPOCH = 2**15 - 1
# later versions add partitions to the transaction themselves (KIP-890)
_TRANSACTIONAL_VERSION = 11
# the broker has no state of the producer, or not of the batch before this one
_LOST_STATE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
# Kafka's producer splits after the first one alone: its batches are 16 KiB by default, far below segment.bytes
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_ACKNOWLEDGED = frozenset(
    {
        ErrorCode.NONE,
        # the broker has the batch, only its response was lost
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    }
)
MAX_BATCH_BYTES = 900_000
"""Largest batch of several records before compression; below Kafka's default message.max.bytes of 1,048,588."""

_RECORD_OVERHEAD_BYTES = 40


def encoded(tp: TopicPartition, records: Sequence[Record], codec: int = 0) -> Iterator[EncodedBatch]:
    """Encodes records of one partition in batches of about `MAX_BATCH_BYTES`; a larger record forms its own batch."""
    begin = size = 0
    for position, record in enumerate(records):
        needed = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        needed += sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
        if position > begin and size + needed > MAX_BATCH_BYTES:
            yield EncodedBatch(tp, encode_batch(records[begin:position], codec=codec), position - begin)
            begin, size = position, 0
        size += needed
    if begin < len(records):
        yield EncodedBatch(tp, encode_batch(records[begin:], codec=codec), len(records) - begin)


@dataclass(eq=False)
class _Pending:
    """A batch that is not acknowledged; `sequence` is that of its first record.

    `attempts` is the number of requests that were sent with it.
    `is_unknown` is True if the leader has rejected the sequence of a batch that was sent before: it has a later batch,
    or has lost an earlier one.
    """

    batch: EncodedBatch
    sequence: int
    attempts: int = 0
    error: GroupSourceError | None = None
    is_unknown: bool = False

    @property
    def size(self) -> int:
        return len(self.batch.data)


@dataclass
class _Position:
    """Epoch and next sequence of the producer in one partition."""

    epoch: int
    sequence: int = 0


class BatchProducer:
    """Producer of one thread.

    Args:
        transactional_id, identity: of a transaction that has the partitions already; every error is raised then, and
            the identity remains.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ProducerSettings = ProducerSettings(),
        *,
        transactional_id: str | None = None,
        identity: ProducerIdAndEpoch | None = None,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.transactional_id = transactional_id
        self._identity = identity
        self._positions: dict[TopicPartition, _Position] = {}

    def send(self, batches: Iterable[EncodedBatch]) -> dict[TopicPartition, int]:
        """Sends batches as they arrive, and returns when all are acknowledged.

        Returns: the offset of the first record of each partition; -1 if the broker no longer knows it.
        Raises: BrokerError, NetworkError; retriable ones after delivery.timeout.ms without an acknowledgment, unknown
            topics once they are missing (`is_missing`). Batches that were acknowledged before remain in the log.
        """
        delivery = _Delivery(self)
        try:
            for batch in batches:
                delivery.add(batch)
            delivery.finish()
        except BaseException:
            delivery.close()
            if self.transactional_id is None:
                # brokers may have batches that are not acknowledged: their sequences must not be used again
                self._identity = None
                self._positions.clear()
            raise
        return delivery.offsets

    @property
    def is_idempotent(self) -> bool:
        """True if batches carry a producer id and sequences."""
        return self.settings.idempotence or self.transactional_id is not None

    def next_sequence(self, tp: TopicPartition, count: int) -> int:
        """Returns the sequence of the first of `count` records, which are sent after all others of the partition."""
        position = self._position(tp)
        first, position.sequence = position.sequence, (position.sequence + count) % _SEQUENCE_MODULUS
        return first

    def stamp(self, pending: _Pending) -> bytes | bytearray:
        """Returns the data of a batch with producer id, epoch and sequence."""
        batch = pending.batch
        if not self.is_idempotent:
            return batch.data
        identity = self._init_producer_id()
        return stamped(
            batch.data,
            identity.producer_id,
            self._position(batch.topic_partition).epoch,
            pending.sequence,
            is_transactional=self.transactional_id is not None,
        )

    def restart(self, unacknowledged: Sequence[_Pending]) -> bool:
        """Continues a partition in the next epoch, with the given batches; returns False if that is not possible.

        Source: TransactionManager.bumpIdempotentProducerEpoch, per partition.
        """
        position = self._position(unacknowledged[0].batch.topic_partition)
        if self.transactional_id is not None or position.epoch == _MAX_EPOCH:
            return False
        position.epoch, position.sequence = position.epoch + 1, 0
        for pending in unacknowledged:
            pending.sequence = self.next_sequence(pending.batch.topic_partition, pending.batch.record_count)
            pending.is_unknown = False
        return True

    def _position(self, tp: TopicPartition) -> _Position:
        if tp not in self._positions:
            epoch = self._init_producer_id().epoch if self.is_idempotent else -1
            self._positions[tp] = _Position(epoch)
        return self._positions[tp]

    def _init_producer_id(self) -> ProducerIdAndEpoch:
        if self._identity is None:
            retry = self.cluster.retry()
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
            )
            while self._identity is None:
                response = self.cluster.call_any(request, retry.remaining_ms)
                if response.error_code:
                    hint = ""
                    if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                        # since 2.8 a user that may write to any topic needs nothing else (KIP-679)
                        hint = "Grant the user WRITE on the topic, and IDEMPOTENT_WRITE on a cluster before 2.8."
                    error = BrokerError(response.error_code, "InitProducerId", hint)
                    if not error.retriable:
                        raise error
                    retry.backoff_or_raise(error)
                else:
                    self._identity = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        return self._identity


class _Leader:
    """What one broker has to receive, and what it was sent."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.queues: dict[TopicPartition, deque[_Pending]] = {}
        self.queued_bytes = 0
        self.connection: BrokerConnection | None = None
        self.in_flight: deque[tuple[InFlight[ProduceResponse], list[_Pending]]] = deque()

    def add(self, pending: _Pending) -> None:
        self.queues.setdefault(pending.batch.topic_partition, deque()).append(pending)
        self.queued_bytes += pending.size

    def take(self, max_bytes: int, can_send: Callable[[TopicPartition], bool]) -> list[_Pending]:
        """Removes the batches of the next request: one of each partition, as Kafka requires."""
        taken: list[_Pending] = []
        size = 0
        for tp in list(filter(can_send, self.queues)):
            queue = self.queues.pop(tp)
            if not taken or size + queue[0].size <= max_bytes:
                size += queue[0].size
                taken.append(queue.popleft())
            if queue:
                # at the end, so that no partition waits for the others
                self.queues[tp] = queue
        self.queued_bytes -= size
        return taken


class _Delivery:
    """One call of `send`.

    A failed request stops the pipeline: all responses that are due are received, and everything that is not
    acknowledged is sent again in order, after a pause and with new metadata.
    """

    def __init__(self, producer: BatchProducer) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self._producer = producer
        self._cluster = producer.cluster
        self._settings = producer.settings
        self._leaders: dict[int, _Leader] = {}
        # leaders of this call's partitions
        self._leader_of: dict[TopicPartition, _Leader] = {}
        # in the order of their sequences
        self._pending: dict[TopicPartition, deque[_Pending]] = defaultdict(deque)
        self._bytes = 0
        # partitions whose leader has the state of this producer: it rejects a batch if the one before it has failed
        self._has_state: set[TopicPartition] = set()
        self._in_flight: Counter[TopicPartition] = Counter()
        self._failure: GroupSourceError | None = None
        self._retry: Retry | None = None

    def add(self, batch: EncodedBatch) -> None:
        """Queues a batch; sends full requests, and waits for responses while half of buffer.memory is exceeded."""
        tp = batch.topic_partition
        sequence = self._producer.next_sequence(tp, batch.record_count) if self._producer.is_idempotent else -1
        pending = _Pending(batch, sequence)
        self._pending[tp].append(pending)
        self._bytes += pending.size
        self._queue(pending)
        leader = self._leader_of.get(tp)
        while leader is not None and self._is_full(leader, tp) and self._failure is None:
            self._send(leader)
        while self._failure is not None or self._bytes > self._settings.half_buffer_bytes:
            self._advance()

    def finish(self) -> None:
        """Returns when all batches are acknowledged."""
        while self._bytes:
            self._advance()
        for leader in self._leaders.values():
            if leader.connection is not None:
                self._cluster.pool.release(leader.connection)
                leader.connection = None

    def close(self) -> None:
        """Closes the connections, which may have requests without a response."""
        for leader in self._leaders.values():
            if leader.connection is not None:
                leader.connection.close()

    def _is_full(self, leader: _Leader, tp: TopicPartition) -> bool:
        return leader.queued_bytes >= self._settings.max_request_bytes or len(leader.queues.get(tp, ())) > 1

    @property
    def _lookup_ms(self) -> int | None:
        """How long a leader may be looked up: at most delivery.timeout.ms after a failure, None for max.block.ms."""
        if self._retry is None:
            return None
        return min(self._retry.remaining_ms, self._cluster.settings.default_api_timeout_ms)

    def _queue(self, pending: _Pending) -> None:
        tp = pending.batch.topic_partition
        leader = self._leader_of.get(tp)
        if leader is None:
            try:
                node_id = self._cluster.metadata([tp.topic], timeout_ms=self._lookup_ms).leader(tp).node_id
            except (BrokerError, NetworkError) as error:
                self._fail(error)
                return
            leader = self._leaders.setdefault(node_id, _Leader(node_id))
            self._leader_of[tp] = leader
        leader.add(pending)

    def _advance(self) -> None:
        """Sends a request or receives a response, or sends again after a failure."""
        if self._failure is not None:
            self._recover(self._failure)
            return
        queued = [leader for leader in self._leaders.values() if leader.queues]
        free = [leader for leader in queued if len(leader.in_flight) < self._settings.max_in_flight]
        if free:
            self._send(max(free, key=lambda leader: leader.queued_bytes))
            return
        busy = [leader for leader in self._leaders.values() if leader.in_flight]
        ready = (leader for leader in busy[1:] if leader.connection and leader.connection.has_response(0))
        self._receive(next(ready, busy[0]))

    def _send(self, leader: _Leader) -> None:
        while len(leader.in_flight) >= self._settings.max_in_flight:
            self._receive(leader)
            if self._failure is not None:
                return
        taken = leader.take(self._settings.max_request_bytes, self._can_send)
        if not taken:
            self._receive(leader)
            return
        for pending in taken:
            self._in_flight[pending.batch.topic_partition] += 1
            pending.error = None
        request = self._request(taken)
        is_transactional = self._producer.transactional_id is not None
        try:
            if leader.connection is None:
                leader.connection = self._connect(leader.node_id)
            # a leader that cannot be reached has not received a batch, as in Kafka's producer
            leader.connection.open()
            for pending in taken:
                pending.attempts += 1
            max_version = _TRANSACTIONAL_VERSION if is_transactional else None
            leader.in_flight.append((leader.connection.send(request, max_version=max_version), taken))
        except NetworkError as error:
            self._lose(leader, error, taken)

    def _can_send(self, tp: TopicPartition) -> bool:
        """Returns False while a partition must acknowledge the batch that it was sent.

        A leader without state accepts any first sequence, also that of a batch after one that has failed. And a leader
        recognizes a repetition among its last five batches, so after a failure there must not be later ones.
        """
        return not self._in_flight[tp] or tp in self._has_state or not self._producer.is_idempotent

    def _connect(self, node_id: int) -> BrokerConnection:
        node = self._cluster.metadata(()).nodes.get(node_id)
        if node is None:
            raise NetworkError(f"Produce request to broker {node_id} failed: the broker is not in the metadata.")
        return self._cluster.pool.acquire(self._cluster.node_address(node))

    def _receive(self, leader: _Leader) -> None:
        """Receives the oldest response of a broker."""
        sent, batches = leader.in_flight.popleft()
        assert leader.connection is not None
        try:
            response = leader.connection.receive(sent)
        except NetworkError as error:
            self._lose(leader, error, batches)
            return
        results = {
            TopicPartition(topic.name, p.index): p for topic in response.responses for p in topic.partition_responses
        }
        for pending in batches:
            tp = pending.batch.topic_partition
            found = results.get(tp)
            if found is None:
                self._fail(NetworkError(f"Produce to {tp} failed: the response of the leader lacks it."), pending)
            elif found.error_code in _ACKNOWLEDGED:
                self._acknowledge(pending, found.base_offset)
            else:
                self._fail(BrokerError(found.error_code, f"Produce to {tp}", as_sentence(found.error_message)), pending)

    def _acknowledge(self, pending: _Pending, offset: int) -> None:
        tp = pending.batch.topic_partition
        queue = self._pending[tp]
        while queue[0].is_unknown:
            # the leader accepts a sequence after all sequences before it
            self._bytes -= queue.popleft().size
            offset = -1
        queue.remove(pending)
        self._bytes -= pending.size
        self._in_flight[tp] -= 1
        self._has_state.add(tp)
        self.offsets.setdefault(tp, offset)
        self._retry = None

    def _lose(self, leader: _Leader, error: NetworkError, batches: Sequence[_Pending]) -> None:
        """Marks the requests of a lost connection as failed; brokers may have their batches."""
        connection, leader.connection = leader.connection, None
        lost = [*batches, *(pending for _, taken in leader.in_flight for pending in taken)]
        leader.in_flight.clear()
        if connection is not None:
            connection.close()
            self._cluster.connection_lost(connection.address)
        for pending in lost:
            self._fail(error, pending)

    def _fail(self, error: GroupSourceError, pending: _Pending | None = None) -> None:
        if pending is not None:
            pending.error = error
            self._in_flight[pending.batch.topic_partition] -= 1
        self._failure = self._failure or error

    def _recover(self, failure: GroupSourceError) -> None:
        """Sends everything again that is not acknowledged, in order.

        Raises: an error that is not retriable; a retriable one after delivery.timeout.ms or `retries`.
        """
        for leader in self._leaders.values():
            while leader.in_flight:
                self._receive(leader)
        self._failure = None
        is_of_batch = any(pending.error for queue in self._pending.values() for pending in queue)
        has_to_wait = self._resolve() if is_of_batch else True
        if has_to_wait:
            if self._retry is None:
                self._retry = self._cluster.retry(self._settings.delivery_timeout_ms)
            _log.log(retry_level(failure), "[producer] Sending again after %s", failure)
            if not is_of_batch:
                self._check_lookup(self._retry, failure)
            self._retry.backoff_or_raise(failure)
        self._leader_of.clear()
        for leader in self._leaders.values():
            leader.queues.clear()
            leader.queued_bytes = 0
        if has_to_wait:
            with suppress(NetworkError):
                # a failure appears at the partitions again
                topics = {tp.topic for tp, pending in self._pending.items() if pending}
                self._cluster.metadata(topics, refresh=True, timeout_ms=self._lookup_ms)
        for pending in [each for queue in self._pending.values() for each in queue if not each.is_unknown]:
            self._queue(pending)
            if isinstance(self._failure, NetworkError):
                # no broker is reachable; each partition would wait for it
                return

    @staticmethod
    def _check_lookup(retry: Retry, failure: GroupSourceError) -> None:
        """Raises the error of a lookup of the leader if it is not retriable, or the topic remains unknown."""
        if isinstance(failure, BrokerError) and (not failure.retriable or is_missing(failure, retry)):
            raise failure

    def _resolve(self) -> bool:
        """Prepares the failed batches of each partition; returns True if they must wait before they are sent again.

        Raises: the first error that is not retriable.
        """
        has_to_wait = False
        for tp, queue in self._pending.items():
            is_first = True
            for pending in [each for each in queue if not each.is_unknown]:
                error, pending.error = pending.error, None
                if error is not None:
                    # also if a later batch was acknowledged
                    self._has_state.discard(tp)
                if isinstance(error, BrokerError):
                    code = error.code
                    if code in _TOO_LARGE and pending.batch.record_count > 1:
                        self._split(queue, pending)
                        is_first = False
                        # the parts have not been sent, whatever `retries` is
                        continue
                    if code == ErrorCode.MESSAGE_TOO_LARGE:
                        raise _too_large(self._cluster, pending)
                    elif code in _LOST_STATE and is_first:
                        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and _mark_unknown(queue, pending):
                            continue
                        if not self._producer.restart(queue):
                            raise error
                        _log.warning("[partition=%s] The broker has lost the state of this producer: %s", tp, error)
                        has_to_wait = True
                    elif code in _LOST_STATE:
                        # the batch before it has failed
                        pass
                    elif not error.retriable:
                        raise error
                    else:
                        has_to_wait = True
                elif error is not None:
                    has_to_wait = True
                if error is not None and pending.attempts > self._settings.retries:
                    raise error
                is_first = False
        return has_to_wait

    def _split(self, queue: deque[_Pending], pending: _Pending) -> None:
        """Replaces a batch that is too large for its topic by two; they have its sequences.

        Source: RecordAccumulator.splitAndReenqueue.
        """
        tp, whole, count = pending.batch
        header = first_header(whole)
        assert header is not None
        records = [
            Record(each.key, each.value, each.timestamp_ms, each.headers) for each in decode_records(whole, header)
        ]
        half = count // 2
        parts = []
        for begin, end in ((0, half), (half, count)):
            data = encode_batch(records[begin:end], codec=header.codec, level=self._settings.level)
            part = EncodedBatch(tp, data, end - begin)
            sequence = (pending.sequence + begin) % _SEQUENCE_MODULUS if pending.sequence >= 0 else -1
            parts.append(_Pending(part, sequence))
        position = queue.index(pending)
        queue.remove(pending)
        for part_pending in reversed(parts):
            queue.insert(position, part_pending)
        self._bytes += sum(each.size for each in parts) - pending.size

    def _request(self, batches: Sequence[_Pending]) -> ProduceRequest:
        row = ProduceRequest.TopicProduceData
        topics: dict[str, list[ProduceRequest.TopicProduceData.PartitionProduceData]] = defaultdict(list)
        for pending in batches:
            topic, partition = pending.batch.topic_partition
            topics[topic].append(row.PartitionProduceData(index=partition, records=self._producer.stamp(pending)))
        return ProduceRequest(
            transactional_id=self._producer.transactional_id,
            acks=self._settings.acks,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=[row(name=topic, partition_data=partitions) for topic, partitions in topics.items()],
        )


def _too_large(cluster: ClusterClient, pending: _Pending) -> BrokerError:
    """Returns the error of a single record that the topic does not accept; a broker does not respond with its limit."""
    tp = pending.batch.topic_partition
    limit = "max.message.bytes"
    # the user may lack DESCRIBE_CONFIGS
    with suppress(BrokerError, NetworkError, UnsupportedVersionError):
        limit = f"max.message.bytes={describe_topic_config(cluster, tp.topic)['max.message.bytes'].value}"
    hint = (
        f"A record of {pending.size} bytes, as it is sent, is larger than {limit} of topic {tp.topic}. Increase "
        "max.message.bytes of the topic (message.max.bytes of the broker), or write smaller or compressed records."
    )
    return BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"Produce to {tp}", hint)


def _mark_unknown(queue: deque[_Pending], pending: _Pending) -> bool:
    """Returns True if a batch may be in the log although its leader rejects its sequence.

    A broker that has restarted recognizes a repetition of the last batch alone. Then the batch after this one, which
    was sent, too, shows whether the leader has both; Kafka's producer would write both again.
    """
    later = queue.index(pending) + 1
    pending.is_unknown = pending.attempts > 1 and later < len(queue) and queue[later].attempts > 0
    return pending.is_unknown
