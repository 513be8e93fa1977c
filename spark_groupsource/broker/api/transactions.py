"""Handlers of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn: transaction protocol 1.

Protocol 2 increments the producer epoch with every transaction. Its request versions are not served, and ApiVersions
advertises ``transaction.version`` up to 1, so every client uses protocol 1.

Source: Kafka `KafkaApis` (checks before the coordinator), KIP-98, KIP-360, KIP-447, KIP-890.
"""

from __future__ import annotations

import logging

from spark_groupsource.broker.api.groups import add_topics, group_request, missing_topics, split_by_existence
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import DELAYED, ApiRequestContext, ResponseAction, Steps
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.group import error_response, verification_error
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


def add_partitions(
    broker: Broker, context: ApiRequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Adds partitions to a transaction: all, or none if one does not exist."""
    topics = [(topic.name, list(topic.partitions)) for topic in request.v3_and_below_topics]
    requested = [TopicPartition(name, number) for name, numbers in topics for number in numbers]
    unknown = {topic_partition for topic_partition in requested if topic_partition not in broker.partitions}
    if unknown:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        try:
            transactional_id = request.v3_and_below_transactional_id
            code = broker.transaction_coordinator.add(context.node_id, transactional_id, producer, requested)
        except ApiError as error:
            code = error.code
    code = _fencing_error(code, context.api_version)
    results = [
        _AddedTopic(
            name=name,
            results_by_partition=[
                _AddedPartition(
                    partition_index=number,
                    partition_error_code=(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if TopicPartition(name, number) in unknown else code
                    ),
                )
                for number in numbers
            ],
        )
        for name, numbers in topics
    ]
    return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results)


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
) -> TxnOffsetCommitResponse | ResponseAction | Steps:
    """Commits offsets with a transaction; partitions that do not exist get an error each."""
    existing, missing = split_by_existence(broker, request.topics, _CommitTopic)
    errors = missing_topics(missing, _CommittedTopic, _CommittedTopic.TxnOffsetCommitResponsePartition)
    if not existing:
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=errors)
    checked = TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=existing,
    )
    code = _verify(broker, context, request)
    if code is not ErrorCode.NONE:
        response: TxnOffsetCommitResponse = error_response(checked, code, context.api_version)
        response.topics = [*response.topics, *errors]
        return response
    if not missing:
        return group_request(broker, context, request)
    broker.group_coordinator.handle(context, checked, add_topics(errors))
    return DELAYED


def _verify(broker: Broker, context: ApiRequestContext, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Checks that AddOffsetsToTxn has added the group to the transaction."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        partition = broker.group_coordinator.shards.partition_of(request.group_id)
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
