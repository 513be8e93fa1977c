"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: transaction protocol 1.

The versions by which clients of protocol 2 would raise the epoch with every transaction are not served, and ApiVersions
tells of no ``transaction.version``, so every client speaks protocol 1.

Source: Kafka `KafkaApis` (what is checked before the coordinator is asked), KIP-98, KIP-360, KIP-447, KIP-890.
"""

from __future__ import annotations

from spark_groupsource.broker.api.groups import adding, group_request, known_topics, refusals
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, ResponseAction
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.group import error_response, verification_error
from spark_groupsource.model import TopicPartition
from spark_groupsource.transactions import ProducerIdAndEpoch
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    Message,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

# older versions know one error for every kind of fencing
_INIT_FENCED_SINCE = 4
_FENCED_SINCE = 2
_AddedTopic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_AddedPartition = _AddedTopic.AddPartitionsToTxnPartitionResult


def init_producer_id(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """A producer id with its epoch: for a transactional id the next epoch, which fences whoever had the one before."""
    has_id, has_epoch = request.producer_id >= 0, request.producer_epoch >= 0
    known = ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if has_id and has_epoch else None
    producer = ProducerIdAndEpoch(-1, -1)
    if has_id != has_epoch:
        code = ErrorCode.INVALID_REQUEST
    elif request.transactional_id is None:
        code, producer = _init_idempotent(broker)  # which counts its epochs itself
    else:
        try:
            code, producer = broker.transaction_coordinator.init(
                context.node_id, request.transactional_id, request.transaction_timeout_ms, known
            )
        except ApiError as error:
            code = error.code
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=_fencing(code, context.api_version, _INIT_FENCED_SINCE),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _init_idempotent(broker: Broker) -> tuple[ErrorCode, ProducerIdAndEpoch]:
    try:
        return ErrorCode.NONE, ProducerIdAndEpoch(broker.data.next_producer_id(), 0)
    except StorageError as error:
        broker.report(str(error))
        return ErrorCode.KAFKA_STORAGE_ERROR, ProducerIdAndEpoch(-1, -1)


def add_partitions(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Takes partitions into a transaction: all, or none where one does not exist."""
    topics = [(topic.name, list(topic.partitions)) for topic in request.v3_and_below_topics]
    wanted = [TopicPartition(name, number) for name, numbers in topics for number in numbers]
    unknown = {topic_partition for topic_partition in wanted if topic_partition not in broker.partitions}
    if unknown:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        try:
            transactional_id = request.v3_and_below_transactional_id
            code = broker.transaction_coordinator.add(context.node_id, transactional_id, producer, wanted)
        except ApiError as error:
            code = error.code
    code = _fencing(code, context.api_version)
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


def add_offsets(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Takes the partition of the group log that holds a group into a transaction."""
    try:
        partition = broker.group_coordinator.shards.partition_of(request.group_id)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        code = broker.transaction_coordinator.add(context.node_id, request.transactional_id, producer, [partition])
    except ApiError as error:
        code = error.code
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=_fencing(code, context.api_version))


def end(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Commits or aborts a transaction."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        committed = bool(request.committed)
        code = broker.transaction_coordinator.end(context.node_id, request.transactional_id, producer, committed)
    except ApiError as error:
        code = error.code
    return EndTxnResponse(throttle_time_ms=0, error_code=_fencing(code, context.api_version))


def commit_offsets(broker: Broker, context: ApiRequestContext, request: Message) -> Message | ResponseAction:
    """Offsets that count when the transaction commits; partitions that do not exist are refused one by one."""
    known, unknown = known_topics(broker, request, TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic)
    refused = refusals(unknown, TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic)
    if not known:
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=refused)
    checked = TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=known,
    )
    code = _vouched(broker, context, request)
    if code is not ErrorCode.NONE:
        answer = error_response(checked, code, context.api_version)
        answer.topics = [*answer.topics, *refused]
        return answer
    if not unknown:
        return group_request(broker, context, request)
    broker.group_coordinator.handle(context, checked, adding(refused))
    return ResponseAction.DELAYED


def _vouched(broker: Broker, context: ApiRequestContext, request: Message) -> ErrorCode:
    """Whether the transaction will end what is committed in it: AddOffsetsToTxn came before."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        partition = broker.group_coordinator.shards.partition_of(request.group_id)
        code = broker.transaction_coordinator.verify(request.transactional_id, producer, partition)
    except ApiError as error:
        code = error.code
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return verification_error(code, context.api_version)


def _fencing(code: ErrorCode, api_version: int, known_since: int = _FENCED_SINCE) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and api_version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
