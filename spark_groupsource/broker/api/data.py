"""Handlers of Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Source: Kafka `KafkaApis`, `ReplicaManager`, `ListOffsetsRequest` (special timestamps).
"""

from __future__ import annotations

from collections import Counter

from spark_groupsource.broker.current_leader import add_current_leaders
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import DELAYED, NO_RESPONSE, ZERO_UUID, ApiRequestContext, ResponseAction
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.storage.catalog import INTERNAL_TOPICS
from spark_groupsource.storage.leader_epoch_cache import UNKNOWN_EPOCH_END
from spark_groupsource.storage.log import TimestampAndOffset
from spark_groupsource.storage.log_validator import RejectedBatchError
from spark_groupsource.storage.partition import Partition, TransactionVerifier
from spark_groupsource.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
)

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_SPECIAL_TIMESTAMP_SINCE = {_EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11}
_NOT_FOUND = TimestampAndOffset(-1, -1)
_READ_COMMITTED = 1
_PRODUCE_TOPIC_IDS_SINCE = 13
_ZSTD_SINCE = 7
_MAX_TIMESTAMP_SINCE = 7
_ABORTABLE_SINCE = 11
_VERIFICATION_ERRORS = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    # retriable for a producer
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_ENOUGH_REPLICAS,
}

_ProducedTopic = ProduceResponse.TopicProduceResponse
_ProducedPartition = _ProducedTopic.PartitionProduceResponse
_RecordError = _ProducedPartition.BatchIndexAndErrorMessage
_ListedTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_ListedPartition = _ListedTopic.ListOffsetsPartitionResponse
_RequestedOffset = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_DeletedTopic = DeleteRecordsResponse.DeleteRecordsTopicResult
_DeletedPartition = _DeletedTopic.DeleteRecordsPartitionResult


# --- produce ---


def produce(
    broker: Broker, context: ApiRequestContext, request: ProduceRequest
) -> ProduceResponse | ResponseAction:
    """Appends a batch to each partition; acks=1 and acks=-1 are the same with one copy of the log."""
    responses: list[_ProducedTopic] = []
    appended: list[tuple[TopicPartition, int]] = []
    wrong_leader: list[tuple[TopicPartition, _ProducedPartition]] = []
    for topic in request.topic_data:
        results: list[_ProducedPartition] = []
        for data in topic.partition_data:
            try:
                partition = _produce_partition(broker, context, request, topic, data.index)
                result, size = _append(broker, context, request, partition, data.records or b"")
                if size:
                    appended.append((partition.topic_partition, size))
            except ApiError as error:
                result = _produce_error(data.index, error)
                if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    topic_partition = TopicPartition(_topic_name(broker, context, topic), data.index)
                    wrong_leader.append((topic_partition, result))
            results.append(result)
        responses.append(_ProducedTopic(name=topic.name, topic_id=topic.topic_id, partition_responses=results))
    # delayed fetches complete after all partitions are appended
    for topic_partition, size in appended:
        broker.on_append(topic_partition, size)
    if request.acks == 0:
        return NO_RESPONSE
    response = ProduceResponse(responses=responses, throttle_time_ms=0)
    add_current_leaders(response, wrong_leader, broker.leaders, broker.nodes)
    return response


def _append(
    broker: Broker,
    context: ApiRequestContext,
    request: ProduceRequest,
    partition: Partition,
    records: bytes | bytearray | memoryview,
) -> tuple[_ProducedPartition, int]:
    """Returns the response entry and the number of appended bytes. Raises: ApiError."""
    topic_partition = partition.topic_partition
    zstd = context.api_version >= _ZSTD_SINCE
    verify = _verification(broker, context, request.transactional_id, topic_partition)
    done = partition.append(records, broker.clock.timestamp_ms(), zstd=zstd, verify=verify)
    result = _ProducedPartition(
        index=topic_partition.partition,
        error_code=0,
        base_offset=done.base_offset,
        log_append_time_ms=done.log_append_time_ms,
        log_start_offset=partition.log.log_start_offset,
        record_errors=[],
        error_message=None,
    )
    return result, done.size


def _produce_error(number: int, error: ApiError) -> _ProducedPartition:
    return _ProducedPartition(
        index=number,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=error.log_start_offset if isinstance(error, RejectedBatchError) else -1,
        record_errors=_record_errors(error) if isinstance(error, RejectedBatchError) else [],
        error_message=error.message,
    )


def _record_errors(error: RejectedBatchError) -> list[_RecordError]:
    return [
        _RecordError(batch_index=number, batch_index_error_message=text)
        for number, text in error.record_errors.items()
    ]


def _produce_partition(
    broker: Broker,
    context: ApiRequestContext,
    request: ProduceRequest,
    topic: ProduceRequest.TopicProduceData,
    number: int,
) -> Partition:
    if request.acks not in (-1, 0, 1):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, got {request.acks}.")
    name = _topic_name(broker, context, topic)
    if name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only coordinators write to the internal topic {name}.")
    partition = broker.partitions.partition(name, number)
    broker.leaders.check_leader(context.node_id, partition.topic_partition)
    return partition


def _topic_name(broker: Broker, context: ApiRequestContext, topic: ProduceRequest.TopicProduceData) -> str:
    if context.api_version < _PRODUCE_TOPIC_IDS_SINCE:
        return topic.name
    return broker.partitions.topic_name(topic.topic_id or ZERO_UUID)


def _verification(
    broker: Broker, context: ApiRequestContext, transactional_id: str | None, topic_partition: TopicPartition
) -> TransactionVerifier:
    """Returns the check that a transactional batch belongs to an ongoing transaction with this partition (KIP-890)."""

    def verify(header: BatchHeader) -> None:
        if transactional_id is None:
            text = "A transactional batch requires a transactional id in the request."
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        code = broker.transaction_coordinator.verify(transactional_id, producer, topic_partition)
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        code = _VERIFICATION_ERRORS.get(code, code)
        text = f"Partition {topic_partition} is not part of an ongoing transaction of {transactional_id}."
        raise ApiError(code, text)

    return verify


# --- fetch and offsets ---


def fetch(broker: Broker, context: ApiRequestContext, request: FetchRequest) -> FetchResponse | ResponseAction:
    """Returns record batches, at once or when enough bytes are available."""
    response = broker.fetch_manager.fetch(context.token, context.node_id, request, context.api_version)
    return DELAYED if response is None else response


def list_offsets(broker: Broker, context: ApiRequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Returns offsets by timestamp, up to the end that is visible at the isolation level."""
    committed = request.isolation_level == _READ_COMMITTED
    topics: list[_ListedTopic] = []
    named = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    for topic in request.topics:
        results: list[_ListedPartition] = []
        for requested in {each.partition_index: each for each in topic.partitions}.values():
            number = requested.partition_index
            code, found, leader_epoch = ErrorCode.NONE, _NOT_FOUND, -1
            try:
                if named[topic.name, number] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains a partition more than once.")
                if context.api_version < _SPECIAL_TIMESTAMP_SINCE.get(requested.timestamp, 0):
                    text = f"Timestamp {requested.timestamp} requires a later request version."
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
                partition = broker.partitions.partition(topic.name, number)
                leader = broker.leaders.check_leader(
                    context.node_id, partition.topic_partition, requested.current_leader_epoch
                )
                found = _look_up(partition, requested, context.api_version, committed)
                leader_epoch = leader.epoch if found.offset >= 0 else -1
            except ApiError as error:
                code = error.code
            entry = _ListedPartition(
                partition_index=number,
                error_code=code,
                timestamp=found.timestamp_ms,
                offset=found.offset,
                leader_epoch=leader_epoch,
            )
            results.append(entry)
        topics.append(_ListedTopic(name=topic.name, partitions=results))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _look_up(
    partition: Partition, requested: _RequestedOffset, api_version: int, committed: bool
) -> TimestampAndOffset:
    log, timestamp = partition.log, requested.timestamp
    end = partition.last_stable_offset if committed else log.high_watermark
    if timestamp == _LATEST:
        return TimestampAndOffset(-1, end)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return TimestampAndOffset(-1, log.log_start_offset)
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND  # this broker has no tiered storage
    try:
        if timestamp == _MAX_TIMESTAMP and api_version >= _MAX_TIMESTAMP_SINCE:
            found = log.latest_timestamp()
        elif timestamp < 0:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Timestamp {timestamp} is not defined.")
        else:
            found = log.offset_for_timestamp(timestamp)
        return found if found is not None and found.offset < end else _NOT_FOUND
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def offset_for_leader_epoch(
    broker: Broker, context: ApiRequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Returns the end offset of each requested leader epoch."""
    topics: list[_EpochTopic] = []
    for topic in request.topics:
        results: list[_EpochTopic.EpochEndOffset] = []
        for requested in topic.partitions:
            code, end = ErrorCode.NONE, UNKNOWN_EPOCH_END
            try:
                partition = broker.partitions.partition(topic.topic, requested.partition)
                topic_partition = partition.topic_partition
                broker.leaders.check_leader(context.node_id, topic_partition, requested.current_leader_epoch)
                end = partition.end_offset_for_epoch(requested.leader_epoch)
            except ApiError as error:
                code = error.code
            except StorageError as error:
                broker.report(f"[partition={topic.topic}-{requested.partition}] Reading leader epochs failed: {error}")
                code = ErrorCode.KAFKA_STORAGE_ERROR
            entry = _EpochTopic.EpochEndOffset(
                error_code=code, partition=requested.partition, leader_epoch=end.epoch, end_offset=end.end_offset
            )
            results.append(entry)
        topics.append(_EpochTopic(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def delete_records(
    broker: Broker, context: ApiRequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Moves log start offsets forward; offset -1 is the high watermark."""
    topics: list[_DeletedTopic] = []
    for topic in request.topics:
        results: list[_DeletedPartition] = []
        for requested in topic.partitions:
            topic_partition = TopicPartition(topic.name, requested.partition_index)
            code, low_watermark = ErrorCode.NONE, -1
            try:
                broker.partitions.partition(*topic_partition)  # an unknown partition has no leader
                broker.leaders.check_leader(context.node_id, topic_partition)
                low_watermark = broker.delete_records(topic_partition, requested.offset)
            except ApiError as error:
                code = error.code
            entry = _DeletedPartition(
                partition_index=requested.partition_index, low_watermark=low_watermark, error_code=code
            )
            results.append(entry)
        topics.append(_DeletedTopic(name=topic.name, partitions=results))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)
