"""Simulated transaction coordinator, and the topic of the output.

A transaction is completed within EndTxn, as by the embedded broker.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any, Callable, NamedTuple

from simulation.applications.simulated_topic import NODES, OUTPUT
from simulation.applications.virtual_kernel import Kernel

from spark_groupsource.broker.transactions import is_ending
from spark_groupsource.broker.transactions.transaction_shard import Decision, TransactionShard
from spark_groupsource.broker.transactions.transaction_states import PREPARE_COMMIT
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import OffsetRange, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.records.header import first_header
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
)

_OFFSETS = TopicPartition("__consumer_offsets", 0)


class Publishing(NamedTuple):
    """A range that an application has copied to the output."""

    application: str
    range: OffsetRange

    def encoded(self) -> EncodedBatch:
        p, start, end = self.range
        value = json.dumps([self.application, p.topic, p.partition, start, end]).encode()
        data = encode_batch([Record(None, value, 1)])
        return EncodedBatch(TopicPartition(OUTPUT, p.partition % len(NODES)), data, 1)


def _published(value: bytes | None) -> Publishing:
    name, topic, partition, start, end = json.loads(value or b"")
    return Publishing(name, OffsetRange(TopicPartition(topic, partition), start, end))


class SimulatedTransactions:
    """The transaction coordinator, on one node, and the partitions of the output.

    Args:
        on_ended: called with the producer id, whether the transaction is committed, and its output.
    """

    def __init__(self, kernel: Kernel, on_ended: Callable[[int, bool, list[Publishing]], None]) -> None:
        self.node = NODES[0]
        self._kernel = kernel
        self._on_ended = on_ended
        self._shard = TransactionShard()
        self._ids = count(1_000)
        self._open: dict[int, list[Publishing]] = {}
        # partition -> producer and sequence of the last batch
        self._last: dict[TopicPartition, dict[ProducerIdAndEpoch, int]] = {}

    def leave(self, node: int) -> None:
        """The coordinator moves if it is on this node."""
        if node == self.node:
            self.node = NODES[node % len(NODES)]

    def handle(self, node: int, request: Any) -> Any:
        now_ms, shard = self._kernel.timestamp_ms, self._shard
        is_here = node == self.node
        if isinstance(request, InitProducerIdRequest):
            error = ErrorCode.NOT_COORDINATOR
            name = request.transactional_id or ""
            if is_here:
                decided = shard.init_producer_id(
                    name, request.transaction_timeout_ms, None, now_ms, lambda: next(self._ids)
                )
                error = self._store(name, decided)
            known = shard.transactions.get(name)
            ids = (-1, -1) if error or known is None else (known.producer_id, known.producer_epoch)
            return InitProducerIdResponse(error_code=int(error), producer_id=ids[0], producer_epoch=ids[1])
        if isinstance(request, AddPartitionsToTxnRequest):
            name = request.v3_and_below_transactional_id
            producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            topics = request.v3_and_below_topics
            added = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
            error = self._add(name, producer, added) if is_here else ErrorCode.NOT_COORDINATOR
            row = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
            result = row.AddPartitionsToTxnPartitionResult
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    row(
                        name=topic.name,
                        results_by_partition=[
                            result(partition_index=number, partition_error_code=int(error))
                            for number in topic.partitions
                        ],
                    )
                    for topic in topics
                ]
            )
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        if isinstance(request, AddOffsetsToTxnRequest):
            error = ErrorCode.NOT_COORDINATOR
            if is_here:
                error = self._add(request.transactional_id, producer, [_OFFSETS])
            return AddOffsetsToTxnResponse(error_code=int(error))
        assert isinstance(request, EndTxnRequest)
        error = ErrorCode.NOT_COORDINATOR
        if is_here:
            name = request.transactional_id
            error = self._store(name, shard.end_transaction(name, producer, request.committed, now_ms))
        return EndTxnResponse(error_code=int(error))

    def _add(self, name: str, producer: ProducerIdAndEpoch, partitions: list[TopicPartition]) -> ErrorCode:
        error = self._store(name, self._shard.add_partitions(name, producer, partitions, self._kernel.timestamp_ms))
        if not error:
            self._kernel.call_in(self._shard.transactions[name].timeout_ms + 1, self._expire, name)
        return error

    def _expire(self, name: str) -> None:
        self._store(name, self._shard.abort_timed_out(name, self._kernel.timestamp_ms))

    def _store(self, name: str, decision: Decision) -> ErrorCode:
        value = decision.value
        if value is not None:
            self._shard.replay_value(name, value)
            self._shard.on_stored(name, decision)
            if is_ending(value.status):
                published = self._open.pop(value.producer_id, [])
                self._on_ended(value.producer_id, value.status == PREPARE_COMMIT, published)
                self._store(name, self._shard.complete_transaction(name, self._kernel.timestamp_ms))
        return decision.error

    def verify_offsets(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Returns the error of a TxnOffsetCommit of a producer without an open transaction."""
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        error = self._shard.verify(request.transactional_id, producer, _OFFSETS)
        return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error

    def produce(self, request: ProduceRequest) -> ProduceResponse:
        row = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in request.topic_data:
            rows = []
            for p in topic.partition_data:
                error = self._append(request.transactional_id or "", TopicPartition(topic.name, p.index), p.records)
                rows.append(row.PartitionProduceResponse(index=p.index, error_code=int(error), base_offset=0))
            topics.append(row(name=topic.name, partition_responses=rows))
        return ProduceResponse(responses=topics)

    def _append(self, name: str, p: TopicPartition, data: Any) -> ErrorCode:
        header = first_header(data)
        assert header is not None
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        error = self._shard.verify(name, producer, p)
        if error:
            return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
        sequences = self._last.setdefault(p, {})
        last = sequences.get(producer, -1)
        if header.base_sequence <= last:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if header.base_sequence != last + 1:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        records = list(decode_records(data, header))
        sequences[producer] = last + len(records)
        self._open.setdefault(producer.producer_id, []).extend(_published(record.value) for record in records)
        return ErrorCode.NONE
