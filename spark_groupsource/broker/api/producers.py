"""Handlers of DescribeProducers, DescribeTransactions and ListTransactions.

Source: KIP-664, KIP-994 (duration filter); Kafka `KafkaApis`, `TransactionStateManager.listTransactionStates`.
"""

from __future__ import annotations

from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.storage.producer_state import ProducerStateEntry
from spark_groupsource.transactions.states import TRANSACTION_STATE_NAMES
from spark_groupsource.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse
_Described = DescribeTransactionsResponse.TransactionState
_Listed = ListTransactionsResponse.TransactionState


def describe_producers(
    broker: Broker, context: ApiRequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Returns the producer states of each partition."""
    topics = []
    for topic in request.topics:
        results = []
        for number in topic.partition_indexes:
            entry = _Partition(
                partition_index=number, error_code=ErrorCode.NONE, error_message=None, active_producers=[]
            )
            try:
                partition = broker.partitions.partition(topic.name, number)
                broker.leaders.check_leader(context.node_id, partition.topic_partition)
                entry.active_producers = [_producer(*each) for each in partition.producers().items()]
            except ApiError as error:
                entry.error_code, entry.error_message = error.code, error.message
            results.append(entry)
        topics.append(_Topic(name=topic.name, partitions=results))
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


def _producer(producer_id: int, entry: ProducerStateEntry) -> _Partition.ProducerState:
    return _Partition.ProducerState(
        producer_id=producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
        last_timestamp=entry.timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=-1 if entry.first_offset is None else entry.first_offset,
    )


def describe_transactions(
    broker: Broker, context: ApiRequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Returns the state of each transactional id."""
    described = [_describe(broker, context.node_id, transactional_id) for transactional_id in request.transactional_ids]
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=described)


def _describe(broker: Broker, node_id: int, transactional_id: str) -> _Described:
    code, value = ErrorCode.NONE, None
    try:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        value = broker.transaction_coordinator.transaction(node_id, transactional_id)
        if value is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    except ApiError as error:
        code = error.code
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions) if value else ():
        topics.setdefault(topic, []).append(partition)
    return _Described(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state=TRANSACTION_STATE_NAMES[value.status] if value else "",
        transaction_timeout_ms=value.timeout_ms if value else 0,
        transaction_start_time_ms=value.start_ms if value else 0,
        producer_id=value.producer_id if value else 0,
        producer_epoch=value.producer_epoch if value else 0,
        topics=[_Described.TopicData(topic=name, partitions=numbers) for name, numbers in topics.items()],
    )


def list_transactions(
    broker: Broker, context: ApiRequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """Returns the transactional ids that this node coordinates, filtered by state, producer id and duration."""
    shards = broker.transaction_coordinator.state_machines(context.node_id)
    if shards is None:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ListTransactionsResponse(
            throttle_time_ms=0, error_code=code, unknown_state_filters=[], transaction_states=[]
        )
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    timestamp_ms, duration_ms = broker.clock.timestamp_ms(), request.duration_filter
    found = [
        _Listed(
            transactional_id=name,
            producer_id=value.producer_id,
            transaction_state=TRANSACTION_STATE_NAMES[value.status],
        )
        for shard in shards
        for name, value in shard.transactions.items()
        if (not states or TRANSACTION_STATE_NAMES[value.status] in states)
        and (not producer_ids or value.producer_id in producer_ids)
        and (duration_ms < 0 or timestamp_ms - value.start_ms > duration_ms)
    ]
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        unknown_state_filters=sorted(states - set(TRANSACTION_STATE_NAMES.values())),
        transaction_states=found,
    )
