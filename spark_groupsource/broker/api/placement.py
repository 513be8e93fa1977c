"""Handlers of DescribeTopicPartitions, ElectLeaders and ListPartitionReassignments.

Every node is a replica of every partition, and the current leader is always the preferred one. So an election never
changes a leader, and no reassignment is ever in progress: `Leaders.move` changes a leader at once.

Source: KIP-966 (pagination of topics), KIP-460 (elections), KIP-455 (reassignments); Kafka
`DescribeTopicPartitionsRequestHandler`, `KRaftMetadataCache`, `ReplicationControlManager`.
"""

from __future__ import annotations

from typing import Collection, Sequence

from spark_groupsource.broker.api.topic_requests import TOPIC_OPERATIONS, partition_fields
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.catalog import INTERNAL_TOPICS, UNLISTED_TOPICS
from spark_groupsource.common.coroutines import in_thread, pause, portions
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_MAX_PARTITIONS = 2000
"""Partitions of one response: Kafka's default of max.request.partition.size.limit."""
_PARTITIONS_PER_STEP = 200
_NAMES_PER_STEP = 1_000
_PREFERRED, _UNCLEAN = 0, 1
_ELECTION_TYPES_SINCE = 1
_ALL_OPERATIONS = sum(1 << number for number in TOPIC_OPERATIONS)
_NO_OPERATIONS = -(2**31)

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor = DescribeTopicPartitionsResponse.Cursor
_Elected = ElectLeadersResponse.ReplicaElectionResult


# --- topics by pages ---


async def describe_topic_partitions(
    broker: Broker, context: ApiRequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Returns partitions in the order of topic names from the cursor, up to the limits of client and broker.

    An incomplete response contains the cursor of the next one.
    """
    cursor, named = request.cursor, {topic.name for topic in request.topics}
    start = cursor.topic_name if cursor is not None else ""
    if cursor is not None and (cursor.partition_index < 0 or named and start not in named):
        code = ErrorCode.INVALID_REQUEST
        return _page([_describe(topic.name, code, operations=_NO_OPERATIONS) for topic in request.topics], None)
    left = max(min(request.response_partition_limit, _MAX_PARTITIONS), 1)
    topics: list[_Topic] = []
    known = named or broker.partitions.topics.keys() - UNLISTED_TOPICS
    if len(known) > _NAMES_PER_STEP:
        names = await in_thread(_sorted_from, start, known)
    else:
        names = _sorted_from(start, known)
    for name in names:
        await pause()
        if left <= 0:
            return _page(topics, _Cursor(topic_name=name, partition_index=0))
        try:
            entry = broker.partitions.topic(name)
        except ApiError:
            topics.append(_describe(name, _unknown_topic_error(broker, name)))
            continue
        first = cursor.partition_index if cursor is not None and name == start else 0
        included = entry.partitions[first : first + left]
        described = _describe(name, ErrorCode.NONE)
        described.topic_id = entry.topic_id
        partitions: list[_Partition] = []
        for some in portions(included, _PARTITIONS_PER_STEP):
            # a topic may have been deleted during a pause
            partitions += [_describe_partition(broker, each) for each in some if each in broker.partitions]
            await pause()
        described.partitions = partitions
        topics.append(described)
        left -= len(included)
        if first + len(included) < entry.partition_count:
            return _page(topics, _Cursor(topic_name=name, partition_index=first + len(included)))
    return _page(topics, None)


def _sorted_from(start: str, names: Collection[str]) -> list[str]:
    return sorted(name for name in names if name >= start)


def _page(topics: Sequence[_Topic], next_cursor: _Cursor | None) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=next_cursor)


def _unknown_topic_error(broker: Broker, name: str) -> ErrorCode:
    try:
        broker.partitions.check_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _describe(name: str, code: ErrorCode, operations: int = _ALL_OPERATIONS) -> _Topic:
    return _Topic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=operations,
    )


def _describe_partition(broker: Broker, topic_partition: TopicPartition) -> _Partition:
    fields = partition_fields(broker, topic_partition)
    return _Partition(**fields._asdict(), eligible_leader_replicas=[], last_known_elr=[])


# --- elections and reassignments ---


async def elect_leaders(
    broker: Broker, context: ApiRequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Responds that no election is needed, or that a partition is offline."""
    has_type = context.api_version >= _ELECTION_TYPES_SINCE
    election_type = request.election_type if has_type else _PREFERRED
    is_known_type = election_type in (_PREFERRED, _UNCLEAN)
    results = []
    if request.topic_partitions is None:
        # only partitions that need an election are reported
        for name, entry in list(broker.partitions.topics.items()) if is_known_type else ():
            offline = await _offline_partitions(broker, name, entry.partition_count)
            elections = [_election(broker, TopicPartition(name, number), election_type) for number in offline]
            results.append(_Elected(topic=name, partition_result=elections))
    else:
        for requested in request.topic_partitions:
            elections = []
            for partition in requested.partitions:
                elections.append(_election(broker, TopicPartition(requested.topic, partition), election_type))
                await pause()
            results.append(_Elected(topic=requested.topic, partition_result=elections))
            await pause()
    code = ErrorCode.NONE if is_known_type else ErrorCode.INVALID_REQUEST
    return ElectLeadersResponse(throttle_time_ms=0, error_code=code, replica_election_results=results)


async def _offline_partitions(broker: Broker, topic: str, count: int) -> list[int]:
    offline = []
    for start in range(0, count, _PARTITIONS_PER_STEP):
        for number in range(start, min(start + _PARTITIONS_PER_STEP, count)):
            topic_partition = TopicPartition(topic, number)
            # not if it was deleted during a pause
            if topic_partition in broker.partitions and broker.partitions.offline_reason(topic_partition):
                offline.append(number)
        await pause()
    return offline


def _election(broker: Broker, topic_partition: TopicPartition, election_type: int) -> _Elected.PartitionResult:
    code, text = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    entry = broker.partitions.topics.get(topic_partition.topic)
    if election_type not in (_PREFERRED, _UNCLEAN):
        code, text = ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    elif entry is None:
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic_partition.topic}"
    elif not 0 <= topic_partition.partition < entry.partition_count:
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic_partition}"
    elif reason := broker.partitions.offline_reason(topic_partition):
        is_preferred = election_type == _PREFERRED
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        text = reason
    return _Elected.PartitionResult(partition_id=topic_partition.partition, error_code=code, error_message=text)


def list_partition_reassignments(
    broker: Broker, context: ApiRequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Responds that no reassignment is in progress."""
    return ListPartitionReassignmentsResponse(throttle_time_ms=0, error_code=0, error_message=None, topics=[])
