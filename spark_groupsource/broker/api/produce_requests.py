"""Handler of Produce.

The records of a request are validated with pauses, because a small compressed batch may have millions of them.

Source: Kafka `KafkaApis.handleProduceRequest`, `ReplicaManager.appendRecords`.
"""

from __future__ import annotations

from spark_groupsource.broker.current_leader import add_current_leaders
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import NO_RESPONSE, ZERO_UUID, ApiRequestContext, ResponseAction
from spark_groupsource.broker.storage.catalog import INTERNAL_TOPICS
from spark_groupsource.broker.storage.log_validator import RejectedBatchError, ValidatedBatch, check_format
from spark_groupsource.broker.storage.partition import AppendResult, Partition, TransactionVerifier
from spark_groupsource.broker.storage.producer_state import NO_PRODUCER_ID
from spark_groupsource.common.clock import monotonic_ns
from spark_groupsource.common.coroutines import pause
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, RemoteProtocolError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition, bounded_names
from spark_groupsource.records.header import BatchHeader, Buffer, first_header, has_transactional_flag
from spark_groupsource.wire.messages import ProduceRequest, ProduceResponse

_BYTES_PER_STEP = 1 << 16
_STEP_NS = 2_000_000  # the first record of a partition also creates its files

_ALL_REPLICAS = -1
_TOPIC_IDS_SINCE = 13
_ZSTD_SINCE = 7
_ABORTABLE_SINCE = 11
_ADDS_PARTITIONS_SINCE = 12
_VERIFICATION_ERRORS = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    # retriable for a producer of an earlier version than `_ADDS_PARTITIONS_SINCE`
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_ENOUGH_REPLICAS,
}

_ProducedTopic = ProduceResponse.TopicProduceResponse
_ProducedPartition = _ProducedTopic.PartitionProduceResponse
_RecordError = _ProducedPartition.BatchIndexAndErrorMessage


async def produce(
    broker: Broker, context: ApiRequestContext, request: ProduceRequest
) -> ProduceResponse | ResponseAction:
    """Appends a batch to each partition; acks=-1 requires min.insync.replicas running nodes (`Leaders.check_in_sync`).

    Raises: RemoteProtocolError for an error with acks=0: the producer expects no response, so the connection is closed.
    """
    rejection = _rejection(request)
    responses: list[_ProducedTopic] = []
    failed: list[tuple[TopicPartition, _ProducedPartition]] = []
    appended: list[tuple[TopicPartition, int]] = []
    pending_bytes, end_ns = 0, monotonic_ns() + _STEP_NS
    try:
        for topic in request.topic_data:
            results: list[_ProducedPartition] = []
            for data in topic.partition_data:
                try:
                    if rejection is not None:
                        raise rejection
                    done, partition = await _append(broker, context, request, topic, data)
                    if done.size:
                        appended.append((partition.topic_partition, done.size))
                    results.append(_produced(partition, done))
                except ApiError as error:
                    results.append(_produce_error(data.index, error))
                    failed.append((TopicPartition(_response_name(broker, context, topic), data.index), results[-1]))
                pending_bytes += len(data.records or b"")
                if pending_bytes > _BYTES_PER_STEP or monotonic_ns() >= end_ns:
                    await pause()
                    pending_bytes, end_ns = 0, monotonic_ns() + _STEP_NS
            responses.append(
                _ProducedTopic(name=topic.name, topic_id=topic.topic_id, partition_responses=results)
            )
    finally:
        # delayed fetches complete after all partitions are appended, also if the producer disconnects before
        for topic_partition, size in appended:
            broker.on_append(topic_partition, size)
    if request.acks == 0:
        if failed:
            raise RemoteProtocolError(_unacknowledged(failed))
        return NO_RESPONSE
    response = ProduceResponse(responses=responses)
    if failed:
        wrong_leader = [each for each in failed if each[1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER]
        add_current_leaders(response, wrong_leader, broker.leaders, broker.nodes.at(context.listener))
    return response


def _rejection(request: ProduceRequest) -> ApiError | None:
    """Returns the error of all partitions of a request, None if it may be appended."""
    producers = set()
    for topic in request.topic_data:
        for data in topic.partition_data:
            header = _transactional_header(data.records)
            if header is not None:
                producers.add((header.producer_id, header.producer_epoch))
    if producers and request.transactional_id is None:
        text = "A transactional batch requires a transactional id in the request."
        return ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
    if len({producer for producer in producers if producer[0] != NO_PRODUCER_ID}) > 1:
        text = "Transactional batches of a request must have one producer id and epoch."
        return ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
    return None


def _transactional_header(records: Buffer | None) -> BatchHeader | None:
    """Returns the header of a transactional batch; None for other batches and invalid ones, which the log rejects."""
    if records is None or not has_transactional_flag(records):
        return None
    try:
        return first_header(records)
    except CorruptRecordError:
        return None


def _unacknowledged(failed: list[tuple[TopicPartition, _ProducedPartition]]) -> str:
    named = (f"{partition} ({ErrorCode(result.error_code).name})" for partition, result in failed)
    names = bounded_names(named, count=len(failed))
    return f"Produce with acks=0 failed for {names}. Set acks=1 in the producer to see the reason."


async def _append(
    broker: Broker,
    context: ApiRequestContext,
    request: ProduceRequest,
    topic: ProduceRequest.TopicProduceData,
    data: ProduceRequest.TopicProduceData.PartitionProduceData,
) -> tuple[AppendResult, Partition]:
    """Verifies, validates and appends the batch of one partition, with Kafka's order of checks. Raises: ApiError."""
    partition = _partition(broker, context, topic, data.index)
    records = data.records or b""
    header = check_format(records, context.api_version >= _ZSTD_SINCE)
    timestamp_ms = broker.clock.timestamp_ms()
    verifier = None
    if header.is_transactional and header.producer_id != NO_PRODUCER_ID:
        verifier = _verifier(broker, context, request.transactional_id or "", partition.topic_partition)
        broker.leaders.check_leader(context.node_id, partition.topic_partition)
        partition.check_online()
        partition.verify_transaction(header, timestamp_ms, verifier)
    _check_append(broker, context.node_id, request.acks, partition)
    found = partition.validate(records, header, timestamp_ms)
    if isinstance(found, ValidatedBatch):
        batch = found
    else:
        batch = await found
        # the partition may have been deleted or moved during a pause
        if _partition(broker, context, topic, data.index) is not partition:
            text = f"Partition {partition.topic_partition} was recreated."
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        _check_append(broker, context.node_id, request.acks, partition)
    # verified again, because a transaction may have ended during a pause
    return partition.append_validated(batch, broker.clock.timestamp_ms(), verifier), partition


def _produced(partition: Partition, done: AppendResult) -> _ProducedPartition:
    return _ProducedPartition(
        index=partition.topic_partition.partition,
        error_code=0,
        base_offset=done.base_offset,
        log_append_time_ms=done.log_append_time_ms,
        log_start_offset=partition.log.log_start_offset,
    )


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


def _partition(
    broker: Broker, context: ApiRequestContext, topic: ProduceRequest.TopicProduceData, number: int
) -> Partition:
    """Raises: ApiError for an unknown partition."""
    return broker.partitions.partition(_topic_name(broker, context, topic), number)


def _check_append(broker: Broker, node_id: int, acks: int, partition: Partition) -> None:
    """Checks that this node may append to a partition. Raises: ApiError."""
    topic_partition = partition.topic_partition
    if acks not in (-1, 0, 1):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, got {acks}.")
    if topic_partition.topic in INTERNAL_TOPICS:
        text = f"Only coordinators write to the internal topic {topic_partition.topic}."
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    broker.leaders.check_leader(node_id, topic_partition)
    if acks == _ALL_REPLICAS:
        broker.leaders.check_in_sync(topic_partition, partition.log.config.min_insync_replicas)


def _topic_name(broker: Broker, context: ApiRequestContext, topic: ProduceRequest.TopicProduceData) -> str:
    """Returns the name of a requested topic. Raises: ApiError for an unknown topic id."""
    if context.api_version < _TOPIC_IDS_SINCE:
        return topic.name
    return broker.partitions.topic_name(topic.topic_id or ZERO_UUID)


def _response_name(broker: Broker, context: ApiRequestContext, topic: ProduceRequest.TopicProduceData) -> str:
    """Returns the name of a topic that may be unknown."""
    try:
        return _topic_name(broker, context, topic)
    except ApiError:
        return topic.name or str(topic.topic_id)


def _verifier(
    broker: Broker, context: ApiRequestContext, transactional_id: str, topic_partition: TopicPartition
) -> TransactionVerifier:
    """Returns the check that a transactional batch belongs to an ongoing transaction with this partition (KIP-890)."""
    adds_partitions = context.api_version >= _ADDS_PARTITIONS_SINCE

    def verify(header: BatchHeader) -> None:
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        coordinator = broker.transaction_coordinator
        check = coordinator.add_produced if adds_partitions else coordinator.verify
        code = check(transactional_id, producer, topic_partition)
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        if not (adds_partitions and code is ErrorCode.CONCURRENT_TRANSACTIONS):
            code = _VERIFICATION_ERRORS.get(code, code)
        text = f"Partition {topic_partition} is not part of an ongoing transaction of {transactional_id}."
        raise ApiError(code, text)

    return TransactionVerifier(verify, adds_partitions)
