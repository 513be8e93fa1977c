"""Handlers of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn: transaction protocol 1.

Protocol 2 increments the producer epoch with every transaction. Its request versions are not served, and ApiVersions
advertises ``transaction.version`` up to 1, so every client uses protocol 1.

Source: Kafka `KafkaApis` (checks before the coordinator), KIP-98, KIP-360, KIP-447, KIP-890.
"""

from __future__ import annotations

import logging
from typing import Collection, Iterable, Sequence

from spark_groupsource.broker.api.group_parts import (
    Checked,
    change_offsets,
    handle_checked,
    has_many_partitions,
    with_topics,
)
from spark_groupsource.broker.api.group_requests import add_topics, missing_topics, split_by_existence
from spark_groupsource.broker.group import error_response, verification_error
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, HandlerResult
from spark_groupsource.broker.storage.catalog import INTERNAL_TOPICS
from spark_groupsource.common.coroutines import pause, portions
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

# earlier versions get INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED
_INIT_FENCED_SINCE = 4
_FENCED_SINCE = 2
_PARTITIONS_PER_STEP = 1_000
_AddTopic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_AddedTopic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_AddedPartition = _AddedTopic.AddPartitionsToTxnPartitionResult
_CommitTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_CommittedTopic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


def init_producer_id(
    broker: Broker, context: ApiRequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Assigns a producer id and epoch; for a transactional id the next epoch, which fences earlier producers."""
    has_id, has_epoch = request.producer_id >= 0, request.producer_epoch >= 0
    known = ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if has_id and has_epoch else None
    producer = ProducerIdAndEpoch(-1, -1)
    if has_id != has_epoch:
        code = ErrorCode.INVALID_REQUEST
    elif request.transactional_id is None:
        code, producer = _init_idempotent(broker)
    else:
        try:
            code, producer = broker.transaction_coordinator.init(
                context.node_id, request.transactional_id, request.transaction_timeout_ms, known
            )
        except ApiError as error:
            code = error.code
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=_fencing_error(code, context.api_version, _INIT_FENCED_SINCE),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _init_idempotent(broker: Broker) -> tuple[ErrorCode, ProducerIdAndEpoch]:
    try:
        return ErrorCode.NONE, ProducerIdAndEpoch(broker.data.next_producer_id(), 0)
    except StorageError as error:
        broker.report(f"[broker] Allocating a producer id failed: {error}", logging.ERROR)
        return ErrorCode.KAFKA_STORAGE_ERROR, ProducerIdAndEpoch(-1, -1)


async def add_partitions(
    broker: Broker, context: ApiRequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Adds partitions to a transaction: all, or none if one does not exist or belongs to an internal topic."""
    topics = request.v3_and_below_topics
    requested: set[TopicPartition] = set()
    refused: set[TopicPartition] = set()
    done = 0
    for topic in topics:
        for numbers in portions(topic.partitions, _PARTITIONS_PER_STEP):
            named = [TopicPartition(topic.name, number) for number in numbers]
            requested.update(named)
            is_internal = topic.name in INTERNAL_TOPICS
            refused.update(each for each in named if is_internal or each not in broker.partitions)
            done += len(numbers) + 1
            if done >= _PARTITIONS_PER_STEP:
                done = 0
                await pause()
    if refused:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        try:
            transactional_id = request.v3_and_below_transactional_id
            code = broker.transaction_coordinator.add(context.node_id, transactional_id, producer, requested)
        except ApiError as error:
            code = error.code
    code = _fencing_error(code, context.api_version)
    results = await _results(topics, code, refused)
    return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results)


async def _results(
    topics: Sequence[_AddTopic], code: ErrorCode, refused: Collection[TopicPartition]
) -> list[_AddedTopic]:
    """Returns the topics and partitions as often as they are requested, or once if some are refused, as Kafka does."""
    named: Iterable[tuple[str, Iterable[int]]] = ((topic.name, topic.partitions) for topic in topics)
    if refused:
        merged: dict[str, dict[int, None]] = {}
        for count, topic in enumerate(topics, 1):
            merged.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
            if count % _PARTITIONS_PER_STEP == 0:
                await pause()
        named = merged.items()
    results: list[_AddedTopic] = []
    added = 0
    for name, numbers in named:
        entries: list[_AddedPartition] = []
        for number in numbers:
            is_refused = bool(refused) and TopicPartition(name, number) in refused
            error_code = _refusal(name) if is_refused else code
            entries.append(_AddedPartition(partition_index=number, partition_error_code=error_code))
            added += 1
            if added % _PARTITIONS_PER_STEP == 0:
                await pause()
        added += 1
        if added % _PARTITIONS_PER_STEP == 0:
            await pause()
        results.append(_AddedTopic(name=name, results_by_partition=entries))
    return results


def _refusal(topic: str) -> ErrorCode:
    """Returns the error of a partition that cannot be added to a transaction: only coordinators write to internal
    topics.
    """
    is_internal = topic in INTERNAL_TOPICS
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_internal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def add_offsets(broker: Broker, context: ApiRequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Adds the `__consumer_offsets` partition of a group to a transaction."""
    try:
        partition = broker.group_coordinator.shards.partition_of(request.group_id)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        code = broker.transaction_coordinator.add(context.node_id, request.transactional_id, producer, [partition])
    except ApiError as error:
        code = error.code
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=_fencing_error(code, context.api_version))


def end(broker: Broker, context: ApiRequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commits or aborts a transaction."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        committed = bool(request.committed)
        code = broker.transaction_coordinator.end(context.node_id, request.transactional_id, producer, committed)
    except ApiError as error:
        code = error.code
    return EndTxnResponse(throttle_time_ms=0, error_code=_fencing_error(code, context.api_version))


def commit_offsets(
    broker: Broker, context: ApiRequestContext, request: TxnOffsetCommitRequest
) -> HandlerResult:
    """Commits offsets with a transaction; partitions that do not exist get an error each."""
    if has_many_partitions(request):
        return change_offsets(broker, context, request, _check_commit)
    return handle_checked(broker, context, _check_commit(broker, context, request))


def _check_commit(
    broker: Broker, context: ApiRequestContext, request: TxnOffsetCommitRequest
) -> Checked | TxnOffsetCommitResponse:
    existing, missing = split_by_existence(broker, request.topics, _CommitTopic)
    errors = missing_topics(missing, _CommittedTopic, _CommittedTopic.TxnOffsetCommitResponsePartition)
    if not existing:
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=errors)
    checked = with_topics(request, existing)
    code = ErrorCode.INVALID_GROUP_ID if not request.group_id else _verify(broker, context, request)
    if code is not ErrorCode.NONE:
        response: TxnOffsetCommitResponse = error_response(checked, code, context.api_version)
        response.topics = [*response.topics, *errors]
        return response
    return Checked(checked, add_topics(errors)) if missing else Checked(request)


def _verify(broker: Broker, context: ApiRequestContext, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Checks that AddOffsetsToTxn has added the group to the transaction; after the first commit it is not repeated.

    Source: Kafka `UnifiedLog.maybeStartTransactionVerification`.
    """
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        partition = broker.group_coordinator.shards.partition_of(request.group_id)
        if broker.partitions.partition(*partition).has_open_transaction(*producer):
            return ErrorCode.NONE
        code = broker.transaction_coordinator.verify(request.transactional_id, producer, partition)
    except ApiError as error:
        code = error.code
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return verification_error(code, context.api_version)


def _fencing_error(code: ErrorCode, api_version: int, since: int = _FENCED_SINCE) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
