"""Idempotent producer of whole batches, for tools and tests.

It has no linger, no partitioner and no transactions: the caller gives records by partition and waits for acks=all.

Source: KIP-98 (idempotent producer).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Iterator, Mapping, Protocol, Sequence, Union

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError, NetworkError, as_sentence
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import InitProducerIdRequest, ProduceRequest, ProduceResponse

MAX_BATCH_BYTES = 900_000
"""Largest batch before compression; below Kafka's default message.max.bytes of 1,048,588."""

_RECORD_OVERHEAD_BYTES = 40
_SEQUENCE_MODULUS = 2**31


class EncodableRecords(Protocol):
    """Records of one partition that encode themselves, as `records.columns.record_columns.RecordColumns`."""

    def __len__(self) -> int: ...

    def chunks(self, max_bytes: int) -> Iterator[EncodableRecords]:
        """Yields parts in order, each for one batch."""

    def encode(self, *, codec: int, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
        """Encodes one batch."""


_Records = Union[Sequence[Record], EncodableRecords]


class BatchProducer:
    """Idempotent producer of one thread; `codec` is a number of `records.compression` (0: none)."""

    def __init__(self, cluster: ClusterClient, *, codec: int = 0) -> None:
        self._cluster = cluster
        self._codec = codec
        self._producer_id_and_epoch: ProducerIdAndEpoch | None = None
        self._sequences: dict[TopicPartition, int] = defaultdict(int)

    def send_batches(self, topic: str, partition: int, records: Sequence[Record], timeout_ms: int | None = None) -> int:
        """Appends `records` to one partition and returns the offset of the first, -1 when there are none."""
        tp = TopicPartition(topic, partition)
        return self.send({tp: records}, timeout_ms).get(tp, -1)

    def send(
        self, records: Mapping[TopicPartition, _Records], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Appends records, waits for acks=all, and returns the offset of the first record of each partition.

        Raises: BrokerError, NetworkError; retriable ones after `timeout_ms` (default: default.api.timeout.ms). Batches
            that were acknowledged before remain in the log.
        """
        first: dict[TopicPartition, int] = {}
        chunks = {tp: _chunks(chosen) for tp, chosen in records.items()}
        while chunks:
            batches: dict[TopicPartition, _Records] = {}
            for tp, rest in list(chunks.items()):
                batch = next(rest, None)
                if batch is None:
                    del chunks[tp]
                else:
                    batches[tp] = batch
            for tp, offset in self._send_once_each(batches, timeout_ms).items():
                first.setdefault(tp, offset)
        return first

    def _send_once_each(
        self, batches: Mapping[TopicPartition, _Records], timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        pending = {tp: self._encode(tp, records) for tp, records in batches.items()}
        try:
            written = self._deliver(pending, timeout_ms)
        except GroupSourceError:
            # the broker may have the batch, so its sequence numbers must not be reused for other records
            self._producer_id_and_epoch = None
            self._sequences.clear()
            raise
        for tp, records in batches.items():
            self._sequences[tp] = (self._sequences[tp] + len(records)) % _SEQUENCE_MODULUS
        return written

    def _deliver(self, pending: dict[TopicPartition, bytes], timeout_ms: int | None) -> dict[TopicPartition, int]:
        """Sends encoded batches until all are acknowledged; empties `pending`."""
        written: dict[TopicPartition, int] = {}
        retry = self._cluster.retry(timeout_ms)
        while pending:
            failure: GroupSourceError | None = None
            view = self._cluster.metadata({tp.topic for tp in pending}, refresh=retry.attempt > 0)
            by_leader: dict[int, dict[TopicPartition, bytes]] = defaultdict(dict)
            for tp, data in pending.items():
                try:
                    by_leader[view.leader(tp).node_id][tp] = data
                except BrokerError as error:
                    failure = error
            for node_id, chosen in by_leader.items():
                try:
                    response = self._cluster.call_node(node_id, self._request(chosen))
                    failure = self._take(response, pending, written) or failure
                except NetworkError as error:
                    failure = error
            if failure is not None:
                if isinstance(failure, BrokerError) and not failure.retriable:
                    raise failure
                retry.backoff_or_raise(failure)
        return written

    def _encode(self, tp: TopicPartition, records: _Records) -> bytes:
        identity = self._init_producer_id()
        encode = partial(encode_batch, records) if isinstance(records, Sequence) else records.encode
        return encode(
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self._sequences[tp],
        )

    def _init_producer_id(self) -> ProducerIdAndEpoch:
        if self._producer_id_and_epoch is None:
            retry = self._cluster.retry()
            while True:
                response = self._cluster.call_any(
                    InitProducerIdRequest(
                        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
                    ),
                    # version 6 is for two-phase commit (KIP-939)
                    max_version=5,
                )
                if not response.error_code:
                    self._producer_id_and_epoch = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
                    break
                error = BrokerError(response.error_code, "InitProducerId")
                if not error.retriable:
                    raise error
                retry.backoff_or_raise(error)
        return self._producer_id_and_epoch

    def _request(self, batches: Mapping[TopicPartition, bytes]) -> ProduceRequest:
        row = ProduceRequest.TopicProduceData
        topics: dict[str, list[ProduceRequest.TopicProduceData.PartitionProduceData]] = defaultdict(list)
        for (topic, partition), data in batches.items():
            topics[topic].append(row.PartitionProduceData(index=partition, records=data))
        return ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=[row(name=topic, partition_data=partitions) for topic, partitions in topics.items()],
        )

    @staticmethod
    def _take(
        response: ProduceResponse, pending: dict[TopicPartition, bytes], written: dict[TopicPartition, int]
    ) -> BrokerError | None:
        failure: BrokerError | None = None
        for topic in response.responses:
            for p in topic.partition_responses:
                tp = TopicPartition(topic.name, p.index)
                # DUPLICATE_SEQUENCE_NUMBER: the broker has the batch, only its response was lost
                if p.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    pending.pop(tp, None)
                    written[tp] = p.base_offset
                else:
                    failure = BrokerError(p.error_code, f"Produce to {tp}", as_sentence(p.error_message))
        return failure


def _chunks(records: _Records) -> Iterator[_Records]:
    """Splits records into batches of about `MAX_BATCH_BYTES`; a larger record forms its own batch."""
    if not isinstance(records, Sequence):
        yield from records.chunks(MAX_BATCH_BYTES)
        return
    begin = size = 0
    for position, record in enumerate(records):
        needed = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        needed += sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
        if position > begin and size + needed > MAX_BATCH_BYTES:
            yield records[begin:position]
            begin, size = position, 0
        size += needed
    if begin < len(records):
        yield records[begin:]
