"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Source: Kafka `KafkaApis`, `ReplicaManager`, `ListOffsetsRequest` (special timestamps).
"""

from __future__ import annotations

from collections import Counter

from spark_groupsource.broker.current_leader import add_current_leaders
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, ResponseAction
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.storage.leader_epoch_cache import UNKNOWN_EPOCH_END
from spark_groupsource.storage.log import TimestampAndOffset
from spark_groupsource.storage.partition import INTERNAL_TOPICS, Partition, RejectedBatchError, TransactionVerifier
from spark_groupsource.transactions import ProducerIdAndEpoch
from spark_groupsource.wire.messages import (
    DeleteRecordsResponse,
    ListOffsetsResponse,
    Message,
    OffsetForLeaderEpochResponse,
    ProduceResponse,
)

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_TIMES_SINCE = {_EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11}
_NOTHING = TimestampAndOffset(-1, -1)
_READ_COMMITTED = 1
_PRODUCE_TOPIC_IDS_SINCE = 13
_ZSTD_SINCE = 7
_MAX_TIMESTAMP_SINCE = 7
_ABORTABLE_SINCE = 11
_VERIFICATION_ERRORS = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    # all of these mean: ask again
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_ENOUGH_REPLICAS,
}

_ProducedTopic = ProduceResponse.TopicProduceResponse
_ProducedPartition = _ProducedTopic.PartitionProduceResponse
_ListedTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_ListedPartition = _ListedTopic.ListOffsetsPartitionResponse
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_DeletedTopic = DeleteRecordsResponse.DeleteRecordsTopicResult
_DeletedPartition = _DeletedTopic.DeleteRecordsPartitionResult


# --- produce ---


def produce(broker: Broker, context: ApiRequestContext, request: Message) -> Message | ResponseAction:
    """Stores each partition's batch; acks 1 and -1 are the same with one replica."""
    responses = []
    appended: list[tuple[TopicPartition, int]] = []
    refused: list[tuple[TopicPartition, Message]] = []
    for topic in request.topic_data:
        results = []
        for data in topic.partition_data:
            try:
                partition = _produce_target(broker, context, request, topic, data.index)
                zstd = context.api_version >= _ZSTD_SINCE
                verify = _verification(broker, context, request.transactional_id, partition.topic_partition)
                done = partition.append(data.records or b"", broker.clock.timestamp_ms(), zstd=zstd, verify=verify)
                if done.size:
                    appended.append((partition.topic_partition, done.size))
                result = _ProducedPartition(
                    index=data.index,
                    error_code=0,
                    base_offset=done.base_offset,
                    log_append_time_ms=done.log_append_time_ms,
                    log_start_offset=partition.log.log_start_offset,
                    record_errors=[],
                    error_message=None,
                )
            except ApiError as error:
                result = _not_produced(data.index, error)
                if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    refused.append((TopicPartition(_topic_name(broker, context, topic), data.index), result))
            results.append(result)
        responses.append(_ProducedTopic(name=topic.name, topic_id=topic.topic_id, partition_responses=results))
    # the producer is answered by our caller; fetches that waited for these records are answered in the same turn
    for topic_partition, size in appended:
        broker.on_append(topic_partition, size)
    if request.acks == 0:
        return ResponseAction.NO_RESPONSE
    response = ProduceResponse(responses=responses, throttle_time_ms=0)
    add_current_leaders(response, refused, broker.leaders, broker.nodes)
    return response


def _not_produced(number: int, error: ApiError) -> Message:
    return _ProducedPartition(
        index=number,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=error.log_start_offset if isinstance(error, RejectedBatchError) else -1,
        record_errors=_record_errors(error) if isinstance(error, RejectedBatchError) else [],
        error_message=error.message,
    )


def _record_errors(error: RejectedBatchError) -> list[Message]:
    entry = _ProducedPartition.BatchIndexAndErrorMessage
    return [entry(batch_index=number, batch_index_error_message=text) for number, text in error.record_errors.items()]


def _produce_target(
    broker: Broker, context: ApiRequestContext, request: Message, topic: Message, number: int
) -> Partition:
    if request.acks not in (-1, 0, 1):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    name = _topic_name(broker, context, topic)
    if name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by the coordinators alone")
    partition = broker.partitions.partition(name, number)
    broker.leaders.check_leader(context.node_id, partition.topic_partition)
    return partition


def _topic_name(broker: Broker, context: ApiRequestContext, topic: Message) -> str:
    by_id = context.api_version >= _PRODUCE_TOPIC_IDS_SINCE
    return broker.partitions.topic_name(topic.topic_id) if by_id else str(topic.name)


def _verification(
    broker: Broker, context: ApiRequestContext, transactional_id: str | None, topic_partition: TopicPartition
) -> TransactionVerifier:
    """Asks the transaction's coordinator, once for each transaction in a partition, if it will end it (KIP-890)."""

    def verify(header: BatchHeader) -> None:
        if transactional_id is None:
            text = "records of a transaction came in a request without transactional id"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        code = broker.transaction_coordinator.verify(transactional_id, producer, topic_partition)
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        code = _VERIFICATION_ERRORS.get(code, code)
        raise ApiError(code, f"{topic_partition} is in no open transaction of {transactional_id}")

    return verify


# --- fetch and offsets ---


def fetch(broker: Broker, context: ApiRequestContext, request: Message) -> Message | ResponseAction:
    """Record batches as they stand in the log, now or when there are enough."""
    response = broker.fetch_manager.fetch(context.token, context.node_id, request, context.api_version)
    return ResponseAction.DELAYED if response is None else response


def list_offsets(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Offsets by time; negative timestamps name the ends of the log, as far as the asker may read."""
    committed = request.isolation_level == _READ_COMMITTED
    topics = []
    named = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    for topic in request.topics:
        results = []
        for wanted in {each.partition_index: each for each in topic.partitions}.values():
            code, found, leader_epoch = ErrorCode.NONE, _NOTHING, -1
            try:
                if named[topic.name, wanted.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "a partition is named more than once")
                if context.api_version < _TIMES_SINCE.get(wanted.timestamp, 0):
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {wanted.timestamp} is of a later version")
                partition = broker.partitions.partition(topic.name, wanted.partition_index)
                leader = broker.leaders.check_leader(
                    context.node_id, partition.topic_partition, wanted.current_leader_epoch
                )
                found = _look_up(partition, wanted, context.api_version, committed)
                leader_epoch = leader.epoch if found.offset >= 0 else -1
            except ApiError as error:
                code = error.code
            entry = _ListedPartition(
                partition_index=wanted.partition_index,
                error_code=code,
                timestamp=found.timestamp_ms,
                offset=found.offset,
                leader_epoch=leader_epoch,
            )
            results.append(entry)
        topics.append(_ListedTopic(name=topic.name, partitions=results))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _look_up(partition: Partition, wanted: Message, api_version: int, committed: bool) -> TimestampAndOffset:
    log, timestamp = partition.log, wanted.timestamp
    end = partition.last_stable_offset if committed else log.high_watermark
    if timestamp == _LATEST:
        return TimestampAndOffset(-1, end)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return TimestampAndOffset(-1, log.log_start_offset)
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NOTHING  # there is no tiered storage
    try:
        if timestamp == _MAX_TIMESTAMP and api_version >= _MAX_TIMESTAMP_SINCE:
            found = log.latest_timestamp()
        elif timestamp < 0:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning here")
        else:
            found = log.offset_for_timestamp(timestamp)
        return found if found is not None and found.offset < end else _NOTHING
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def offset_for_leader_epoch(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Where the epochs that clients know have ended."""
    topics = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            code, end = ErrorCode.NONE, UNKNOWN_EPOCH_END
            try:
                partition = broker.partitions.partition(topic.topic, wanted.partition)
                broker.leaders.check_leader(context.node_id, partition.topic_partition, wanted.current_leader_epoch)
                end = partition.end_offset_for_epoch(wanted.leader_epoch)
            except ApiError as error:
                code = error.code
            except StorageError as error:
                broker.report(str(error))
                code = ErrorCode.KAFKA_STORAGE_ERROR
            entry = _EpochTopic.EpochEndOffset(
                error_code=code, partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.end_offset
            )
            results.append(entry)
        topics.append(_EpochTopic(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def delete_records(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Moves log starts forward; -1 stands for the high watermark."""
    topics = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            topic_partition = TopicPartition(topic.name, wanted.partition_index)
            code, low_watermark = ErrorCode.NONE, -1
            try:
                broker.partitions.partition(*topic_partition)  # what is not there has no leader
                broker.leaders.check_leader(context.node_id, topic_partition)
                low_watermark = broker.delete_records(topic_partition, wanted.offset)
            except ApiError as error:
                code = error.code
            entry = _DeletedPartition(
                partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=code
            )
            results.append(entry)
        topics.append(_DeletedTopic(name=topic.name, partitions=results))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)
