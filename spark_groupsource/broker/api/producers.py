"""Handlers of DescribeProducers, DescribeTransactions, ListTransactions and WriteTxnMarkers.

The coordinator of this broker writes its markers directly. Operators send WriteTxnMarkers to abort a transaction that
the coordinator no longer has (``kafka-transactions abort``).

Source: KIP-664, KIP-994 (duration filter), KIP-1152 (pattern), KIP-1228 (transaction version of a marker); Kafka
`KafkaApis`, `TransactionStateManager.listTransactionStates`.
"""

from __future__ import annotations

import logging
from typing import Collection, Mapping, Sequence

from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.producer_state import ProducerStateEntry
from spark_groupsource.broker.transactions.transaction_states import TRANSACTION_STATE_NAMES
from spark_groupsource.common.coroutines import in_thread, pause, portions
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from spark_groupsource.wire.transaction_records import TransactionValue

_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse
_Described = DescribeTransactionsResponse.TransactionState
_Listed = ListTransactionsResponse.TransactionState
_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
_MarkedTopic = _MarkerResult.WritableTxnMarkerTopicResult
_PATTERN_SINCE, _TRANSACTION_VERSION_SINCE = 2, 2
# Kafka's names also of the states that a transactional id of this broker never has
_KNOWN_STATES = frozenset(TRANSACTION_STATE_NAMES.values()) | {"Dead", "PrepareEpochFence"}
_ENTRIES_PER_STEP = 200
_MAX_ENTRIES = 40_000
_MAX_PATTERN = 1_000
_MATCHED_PER_STEP = 4_096
"""Characters of the ids that are matched in one step."""


async def describe_producers(
    broker: Broker, context: ApiRequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Returns the producer states of each partition.

    Partitions beyond the largest size of a response get LEADER_NOT_AVAILABLE, so that a client requests them again.
    """
    topics, left = [], _MAX_ENTRIES
    for topic in request.topics:
        results = []
        for number in topic.partition_indexes:
            entry = _Partition(
                partition_index=number, error_code=ErrorCode.NONE, error_message=None, active_producers=[]
            )
            try:
                if left <= 0:
                    raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "The response has too many producers.")
                broker.partitions.check_name(topic.name)
                partition = broker.partitions.partition(topic.name, number)
                broker.leaders.check_leader(context.node_id, partition.topic_partition)
                producers = []
                for some in portions(list(partition.producers().items()), _ENTRIES_PER_STEP):
                    producers += [_producer(*each) for each in some]
                    await pause()
                entry.active_producers = producers
            except ApiError as error:
                entry.error_code, entry.error_message = error.code, error.message
            results.append(entry)
            left -= 1 + len(entry.active_producers)
            await pause()
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


async def describe_transactions(
    broker: Broker, context: ApiRequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Returns the state of each transactional id.

    Those beyond the largest size of a response get COORDINATOR_LOAD_IN_PROGRESS, so that a client requests them again.
    """
    described = []
    known: dict[str, _Described] = {}
    left = _MAX_ENTRIES
    for transactional_id in request.transactional_ids:
        if left <= 0:
            state = _description(transactional_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
        else:
            state = known.get(transactional_id) or _describe(broker, context.node_id, transactional_id)
            known[transactional_id] = state
        described.append(state)
        left -= 1 + sum(len(topic.partitions) for topic in state.topics)
        await pause()
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
    return _description(transactional_id, code, value)


def _description(transactional_id: str, code: ErrorCode, value: TransactionValue | None) -> _Described:
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


async def list_transactions(
    broker: Broker, context: ApiRequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """Returns the transactional ids that this node coordinates and that match the filters of the request."""
    shards = broker.transaction_coordinator.state_machines(context.node_id)
    if shards is None:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ListTransactionsResponse(
            throttle_time_ms=0, error_code=code, unknown_state_filters=[], transaction_states=[]
        )
    pattern = request.transactional_id_pattern if context.api_version >= _PATTERN_SINCE else None
    try:
        matches = {name for shard in shards for name in shard.transactions}
        if pattern:
            matches = await _matching_ids(matches, pattern)
    except ApiError as error:
        return ListTransactionsResponse(
            throttle_time_ms=0, error_code=error.code, unknown_state_filters=[], transaction_states=[]
        )
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    timestamp_ms, duration_ms = broker.clock.timestamp_ms(), request.duration_filter
    found: list[_Listed] = []
    for shard in shards:
        for some in portions(list(shard.transactions.items()), 5 * _ENTRIES_PER_STEP):
            found += [
                _Listed(
                    transactional_id=name,
                    producer_id=value.producer_id,
                    transaction_state=TRANSACTION_STATE_NAMES[value.status],
                )
                for name, value in some
                if (not states or TRANSACTION_STATE_NAMES[value.status] in states)
                and (not producer_ids or value.producer_id in producer_ids)
                and name in matches
                and (duration_ms < 0 or timestamp_ms - value.start_ms > duration_ms)
            ]
            await pause()
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        unknown_state_filters=sorted(states - _KNOWN_STATES),
        transaction_states=found,
    )


async def _matching_ids(transactional_ids: Collection[str], pattern: str) -> set[str]:
    """Returns the ids that match a pattern as a whole.

    Patterns have the syntax of RE2, as in Kafka: the time of a match is linear in the length of an id, and in that of
    the pattern at worst. So a call of the worker thread has a short pattern and few ids.

    Raises: ApiError for an invalid pattern.
    """
    if len(pattern) > _MAX_PATTERN:
        text = f"The pattern has {len(pattern):,} characters, the limit is {_MAX_PATTERN:,}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    matches: set[str] = set()
    some: list[str] = []
    length = 0
    for name in transactional_ids:
        some.append(name)
        length += len(name)
        if length >= _MATCHED_PER_STEP:
            matches |= await in_thread(_matching, some, pattern)
            some, length = [], 0
    matches |= await in_thread(_matching, some, pattern)
    return matches


def _matching(transactional_ids: Sequence[str], pattern: str) -> set[str]:
    """Returns the ids that match a pattern as a whole. Pure. Raises: ApiError for an invalid pattern."""
    import pyarrow as pa
    import pyarrow._compute as compute  # a tenth of the time and memory of pyarrow.compute

    from spark_groupsource.records.columns.arrow_arrays import strings

    def matching(ids: pa.StringArray, regex: str) -> pa.BooleanArray:
        return compute.call_function("match_substring_regex", [ids], compute.MatchSubstringOptions(regex))

    ids = strings(transactional_ids)
    try:
        matching(strings([""]), pattern)  # an array without values does not check it, and a group may make it valid
        return set(ids.filter(matching(ids, rf"\A(?:{pattern})\z")).to_pylist())
    except pa.ArrowInvalid as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


async def write_txn_markers(
    broker: Broker, context: ApiRequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Ends transactions in single partitions, independent of the state of their coordinator."""
    results: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in request.markers:
        for topic in marker.topics:
            for number in topic.partition_indexes:
                topic_partition = TopicPartition(topic.name, number)
                codes = results.setdefault(marker.producer_id, {})
                codes[topic_partition] = _write_marker(broker, context, marker, topic_partition)
                await pause()
    markers = []
    for producer_id, by_partition in results.items():
        markers.append(await _marker_result(producer_id, by_partition))
    return WriteTxnMarkersResponse(markers=markers)


def _write_marker(
    broker: Broker, context: ApiRequestContext, marker: _Marker, topic_partition: TopicPartition
) -> ErrorCode:
    producer = ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch)
    version = marker.transaction_version if context.api_version >= _TRANSACTION_VERSION_SINCE else 0
    try:
        broker.partitions.partition(*topic_partition)  # an unknown partition has no leader
        broker.leaders.check_leader(context.node_id, topic_partition)
        if min(producer) < 0:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        broker.transaction_coordinator.write_marker(
            topic_partition, producer, bool(marker.transaction_result), marker.coordinator_epoch, version
        )
    except ApiError as error:
        return error.code
    broker.report(
        f"[partition={topic_partition}] Client {context.client_host} ended the transaction of producer "
        f"{marker.producer_id} (epoch {marker.producer_epoch}): {'commit' if marker.transaction_result else 'abort'}.",
        logging.INFO,
    )
    return ErrorCode.NONE


async def _marker_result(producer_id: int, codes: Mapping[TopicPartition, ErrorCode]) -> _MarkerResult:
    topics: dict[str, list[_MarkedTopic.WritableTxnMarkerPartitionResult]] = {}
    for (topic, number), code in codes.items():
        await pause()
        result = _MarkedTopic.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
        topics.setdefault(topic, []).append(result)
    return _MarkerResult(
        producer_id=producer_id, topics=[_MarkedTopic(name=name, partitions=found) for name, found in topics.items()]
    )
