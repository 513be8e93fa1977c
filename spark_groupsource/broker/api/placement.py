"""Where partitions lie: DescribeTopicPartitions, ElectLeaders, ListPartitionReassignments.

Each node is a replica of every partition and the one that leads is the preferred one, so no election changes anything
and nothing is ever being moved from node to node: `Leaders.move` hands a partition over at once.

Source: KIP-966 (pages of topics), KIP-460 (elections), KIP-455 (reassignments); Kafka
`DescribeTopicPartitionsRequestHandler`, `KRaftMetadataCache`, `ReplicationControlManager`.
"""

from __future__ import annotations

from spark_groupsource.broker.api.topics import TOPIC_OPERATIONS, placement
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.storage.partition import INTERNAL_TOPICS
from spark_groupsource.wire.messages import (
    DescribeTopicPartitionsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    Message,
)

_PAGE = 2000
"""Kafka's default of max.request.partition.size.limit: partitions of one answer."""
_PREFERRED, _UNCLEAN = 0, 1
_ELECTION_TYPES_SINCE = 1
_ALL_OPERATIONS = sum(1 << number for number in TOPIC_OPERATIONS)
_NOT_ASKED = -(2**31)

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Cursor = DescribeTopicPartitionsResponse.Cursor
_Elected = ElectLeadersResponse.ReplicaElectionResult


# --- topics by pages ---


def describe_topic_partitions(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Partitions in the order of topics' names, from the cursor on, as many as the client and a page take.

    An answer that is cut short names where the next one begins.
    """
    cursor, named = request.cursor, {topic.name for topic in request.topics}
    begin = cursor.topic_name if cursor is not None else ""
    if cursor is not None and (cursor.partition_index < 0 or named and begin not in named):
        refused = [_described(topic.name, ErrorCode.INVALID_REQUEST, operations=_NOT_ASKED) for topic in request.topics]
        return _page(refused, None)
    left = max(min(request.response_partition_limit, _PAGE), 1)
    topics: list[Message] = []
    for name in sorted(each for each in named or broker.partitions.topics if each >= begin):
        if left <= 0:
            return _page(topics, _Cursor(topic_name=name, partition_index=0))
        try:
            entry = broker.partitions.topic(name)
        except ApiError:
            topics.append(_described(name, _why_unknown(broker, name)))
            continue
        first = cursor.partition_index if cursor is not None and name == begin else 0
        wanted = entry.partitions[first : first + left]
        described = _described(name, ErrorCode.NONE)
        described.topic_id = entry.topic_id
        described.partitions = [_described_partition(broker, each) for each in wanted]
        topics.append(described)
        left -= len(wanted)
        if first + len(wanted) < entry.partition_count:
            return _page(topics, _Cursor(topic_name=name, partition_index=first + len(wanted)))
    return _page(topics, None)


def _page(topics: list[Message], next_cursor: Message | None) -> Message:
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=next_cursor)


def _why_unknown(broker: Broker, name: str) -> ErrorCode:
    try:
        broker.partitions.check_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _described(name: str, code: ErrorCode, operations: int = _ALL_OPERATIONS) -> Message:
    return _Topic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=operations,
    )


def _described_partition(broker: Broker, topic_partition: TopicPartition) -> Message:
    return _Topic.DescribeTopicPartitionsResponsePartition(
        **placement(broker, topic_partition), eligible_leader_replicas=[], last_known_elr=[]
    )


# --- elections and moves ---


def elect_leaders(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Each partition has the leader an election would give it, or cannot be led at all."""
    typed = context.api_version >= _ELECTION_TYPES_SINCE
    election_type = request.election_type if typed else _PREFERRED
    known = election_type in (_PREFERRED, _UNCLEAN)
    everything = request.topic_partitions is None
    if everything:
        topics = [(name, range(entry.partition_count)) for name, entry in broker.partitions.topics.items()]
    else:
        topics = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    results = []
    for name, numbers in topics if known or not everything else ():
        found = [_election(broker, TopicPartition(name, number), election_type) for number in numbers]
        # of everything only that is told which is not well already
        told = [each for each in found if not everything or each.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(_Elected(topic=name, partition_result=told))
    code = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    return ElectLeadersResponse(throttle_time_ms=0, error_code=code, replica_election_results=results)


def _election(broker: Broker, topic_partition: TopicPartition, election_type: int) -> Message:
    code, text = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    entry = broker.partitions.topics.get(topic_partition.topic)
    if election_type not in (_PREFERRED, _UNCLEAN):
        code, text = ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    elif entry is None:
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic_partition.topic}"
    elif not 0 <= topic_partition.partition < entry.partition_count:
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic_partition}"
    elif reason := broker.partitions.offline_reason(topic_partition):
        preferred = election_type == _PREFERRED
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        text = reason
    return _Elected.PartitionResult(partition_id=topic_partition.partition, error_code=code, error_message=text)


def list_partition_reassignments(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """None is under way."""
    return ListPartitionReassignmentsResponse(throttle_time_ms=0, error_code=0, error_message=None, topics=[])
