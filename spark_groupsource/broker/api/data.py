"""Handlers of Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords; Produce: `produce_requests`.

Source: Kafka `KafkaApis`, `ReplicaManager`, `ListOffsetsRequest` (special timestamps).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Sequence

from spark_groupsource.broker.api.authorization import readable_topics
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, ResponseAction
from spark_groupsource.broker.storage.leader_epoch_cache import UNKNOWN_EPOCH_END
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.segment_index import TimestampAndOffset
from spark_groupsource.common.coroutines import pause, portions
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_COUNTED_PER_STEP = 2_000
_PARTITIONS_PER_CHECKPOINT = 500
_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_SPECIAL_TIMESTAMP_SINCE = {
    _LATEST: 1, _EARLIEST: 1, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
_UNDEFINED_SINCE = 2**15
_NOT_FOUND = TimestampAndOffset(-1, -1)
_READ_COMMITTED = 1

_ListedTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_ListedPartition = _ListedTopic.ListOffsetsPartitionResponse
_RequestedOffset = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_RequestedDeletion = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
_DeletedTopic = DeleteRecordsResponse.DeleteRecordsTopicResult
_DeletedPartition = _DeletedTopic.DeleteRecordsPartitionResult


# --- fetch and offsets ---


async def fetch(
    broker: Broker, context: ApiRequestContext, request: FetchRequest
) -> FetchResponse | ResponseAction:
    """Returns record batches, at once or when enough bytes are available."""
    return await broker.fetch_manager.fetch(
        context.token, context.node_id, request, context.api_version, context.listener, readable_topics(broker, context)
    )


async def list_offsets(broker: Broker, context: ApiRequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Returns offsets by timestamp, up to the end that is visible at the isolation level.

    The leader epoch is that of the record found, which a client compares with later ones (KIP-320).
    """
    committed = request.isolation_level == _READ_COMMITTED
    topics: list[_ListedTopic] = []
    named: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        for some in portions(topic.partitions, _COUNTED_PER_STEP):
            named.update((topic.name, each.partition_index) for each in some)
            await pause()
    for topic in request.topics:
        results: list[_ListedPartition] = []
        for requested in {each.partition_index: each for each in topic.partitions}.values():
            number = requested.partition_index
            code, found, leader_epoch = ErrorCode.NONE, _NOT_FOUND, -1
            try:
                if named[topic.name, number] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains a partition more than once.")
                since = _SPECIAL_TIMESTAMP_SINCE.get(requested.timestamp, _UNDEFINED_SINCE)
                if requested.timestamp < 0 and context.api_version < since:
                    text = f"Timestamp {requested.timestamp} is not defined in request version {context.api_version}."
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
                partition = broker.partitions.partition(topic.name, number)
                leader = broker.leaders.check_leader(
                    context.node_id, partition.topic_partition, requested.current_leader_epoch
                )
                found = await _look_up(partition, requested, committed)
                if found.offset >= 0:
                    is_latest = requested.timestamp == _LATEST
                    leader_epoch = leader.epoch if is_latest else partition.epoch_for_offset(found.offset)
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
            await pause()
        topics.append(_ListedTopic(name=topic.name, partitions=results))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


async def _look_up(
    partition: Partition, requested: _RequestedOffset, committed: bool
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
        if timestamp == _MAX_TIMESTAMP:
            found = await log.find_latest_timestamp()
        else:
            found = await log.find_timestamp(timestamp)
        return found if found is not None and found.offset < end else _NOT_FOUND
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


async def offset_for_leader_epoch(
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
                text = f"[partition={topic.topic}-{requested.partition}] Reading leader epochs failed: {error}"
                broker.report(text, logging.ERROR)
                code = ErrorCode.KAFKA_STORAGE_ERROR
            entry = _EpochTopic.EpochEndOffset(
                error_code=code, partition=requested.partition, leader_epoch=end.epoch, end_offset=end.end_offset
            )
            results.append(entry)
            await pause()
        topics.append(_EpochTopic(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


async def delete_records(
    broker: Broker, context: ApiRequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Moves log start offsets forward; offset -1 is the high watermark. Stores them for some partitions at a time."""
    topics: list[_DeletedTopic] = []
    named: dict[str, dict[int, _RequestedDeletion]] = {}  # the last of duplicates counts
    for topic in request.topics:
        for some in portions(topic.partitions, _COUNTED_PER_STEP):
            named.setdefault(topic.name, {}).update((each.partition_index, each) for each in some)
            await pause()
    for name, wanted in named.items():
        results: list[_DeletedPartition] = []
        partitions = list(wanted.values())
        for start in range(0, len(partitions), _PARTITIONS_PER_CHECKPOINT):
            requested = partitions[start : start + _PARTITIONS_PER_CHECKPOINT]
            results += await _delete_some_records(broker, context, name, requested)
        topics.append(_DeletedTopic(name=name, partitions=results))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


async def _delete_some_records(
    broker: Broker, context: ApiRequestContext, name: str, requested: Sequence[_RequestedDeletion]
) -> list[_DeletedPartition]:
    results: dict[int, _DeletedPartition] = {}
    offsets: dict[TopicPartition, int] = {}
    for each in requested:
        topic_partition = TopicPartition(name, each.partition_index)
        code, low_watermark = ErrorCode.NONE, -1
        try:
            broker.partitions.partition(*topic_partition)  # an unknown partition has no leader
            broker.leaders.check_leader(context.node_id, topic_partition)
            low_watermark = offsets[topic_partition] = broker.check_deletion(topic_partition, each.offset)
        except ApiError as error:
            code = error.code
        results[each.partition_index] = _DeletedPartition(
            partition_index=each.partition_index, low_watermark=low_watermark, error_code=code
        )
        await pause()
    failures = await broker.delete_records(offsets)
    for topic_partition, failure in failures.items():
        result = results[topic_partition.partition]
        result.low_watermark, result.error_code = -1, failure.code
    await pause()
    return list(results.values())
