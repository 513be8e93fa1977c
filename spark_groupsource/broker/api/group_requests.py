"""Handlers of FindCoordinator and the group APIs.

They check the topics of a request and pass it to the group coordinator.

Source: Kafka `KafkaApis`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from typing import Any, Iterable, Mapping, Sequence, TypeVar

from spark_groupsource.broker.api import group_parts
from spark_groupsource.broker.api.group_parts import Checked, CompleteResponse, handle_checked, with_topics
from spark_groupsource.broker.group import SingleGroupRequest
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import DELAYED, ZERO_UUID, ApiRequestContext, HandlerResult
from spark_groupsource.common.coroutines import pause
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
)

_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_BATCHED_SINCE = 4
_TOPIC_ID_VERSION = 10
"""The first version of OffsetCommit and OffsetFetch with topic ids (KIP-848)."""

_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_CommittedTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_DeleteTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic
_DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_FetchTopic = _FetchGroup.OffsetFetchRequestTopics
_FetchedTopic = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
_TxnCommitTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic


RequestTopic = TypeVar("RequestTopic", _CommitTopic, _DeleteTopic, _TxnCommitTopic)


async def find_coordinator(
    broker: Broker, context: ApiRequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Returns the coordinator of each group id or transactional id; share groups have none here."""
    is_batched = context.api_version >= _BATCHED_SINCE
    keys = request.coordinator_keys if is_batched else [request.key]
    found = []
    for key in keys:
        found.append(_coordinator(broker, context.listener, request.key_type, key))
        await pause()
    if is_batched:
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=found)
    (coordinator,) = found
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _coordinator(broker: Broker, listener: str, key_type: int, key: str) -> FindCoordinatorResponse.Coordinator:
    try:
        if key_type not in (_GROUP_KEY, _TRANSACTION_KEY):
            text = f"Coordinator type {key_type} is not supported. Use 0 (group) or 1 (transaction)."
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        runtime = broker.group_coordinator if key_type == _GROUP_KEY else broker.transaction_coordinator
        node_id = runtime.shards.coordinator_node(key)
        node = broker.nodes.get(node_id, listener)
        if node is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Node {node_id} has no listener {listener}.")
    except ApiError as error:
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=0, error_message=None
    )


def group_request(broker: Broker, context: ApiRequestContext, request: SingleGroupRequest) -> HandlerResult:
    """Passes a request about one group to the group coordinator without further checks."""
    broker.group_coordinator.handle(context, request)
    return DELAYED


def leave_group(broker: Broker, context: ApiRequestContext, request: LeaveGroupRequest) -> HandlerResult:
    """Removes members, many of them in parts."""
    if group_parts.has_many_members(request):
        return group_parts.leave_group(broker, context, request)
    return group_request(broker, context, request)


def describe_groups(broker: Broker, context: ApiRequestContext, request: DescribeGroupsRequest) -> HandlerResult:
    """Describes groups, many or large ones in parts."""
    if group_parts.has_many_groups(broker, request):
        return group_parts.describe_groups(broker, context, request)
    return broker.group_coordinator.response_to(context, request)


def delete_groups(broker: Broker, context: ApiRequestContext, request: DeleteGroupsRequest) -> HandlerResult:
    """Deletes groups, many or large ones in parts."""
    if group_parts.has_many_groups(broker, request):
        return group_parts.delete_groups(broker, context, request)
    return broker.group_coordinator.response_to(context, request)


def consumer_group_heartbeat(
    broker: Broker, context: ApiRequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Returns UNSUPPORTED_VERSION, which ends a member of the consumer protocol (KIP-848) with an error."""
    text = f"Group '{request.group_id}': only the classic group protocol is served. Set group.protocol=classic."
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message=text,
        member_id=None,
        member_epoch=0,
        heartbeat_interval_ms=0,
        assignment=None,
    )


def list_groups(
    broker: Broker, context: ApiRequestContext, request: ListGroupsRequest
) -> HandlerResult:
    """Returns the groups whose coordinator is this node."""
    if not broker.group_coordinator.shards.partition_count:  # the topic could not be created
        return broker.group_coordinator.response_to(context, request)
    return group_parts.list_groups(broker, context, request)


# --- offsets ---


def offset_commit(
    broker: Broker, context: ApiRequestContext, request: OffsetCommitRequest
) -> HandlerResult:
    """Commits offsets; partitions that do not exist get an error each."""
    if group_parts.has_many_partitions(request):
        return group_parts.change_offsets(broker, context, request, _check_commit)
    return handle_checked(broker, context, _check_commit(broker, context, request))


def _check_commit(
    broker: Broker, context: ApiRequestContext, request: OffsetCommitRequest
) -> Checked | OffsetCommitResponse:
    by_id = context.api_version >= _TOPIC_ID_VERSION
    topics, unknown_ids = _resolve_commit_topics(broker, request.topics) if by_id else (request.topics, [])
    existing, missing = split_by_existence(broker, topics, _CommitTopic)
    if not missing and not by_id:
        return Checked(request)
    add_missing = add_topics(missing_topics(missing, _CommittedTopic, _CommittedTopic.OffsetCommitResponsePartition))

    def complete(response: OffsetCommitResponse) -> None:
        add_missing(response)
        if by_id:
            with_ids = _with_topic_ids(broker, response.topics)
            response.topics = [*with_ids, *(_commit_unknown_id(topic) for topic in unknown_ids)]

    if not existing:
        response = OffsetCommitResponse(throttle_time_ms=0, topics=[])
        complete(response)
        return response
    return Checked(with_topics(request, existing), complete)


def _resolve_commit_topics(
    broker: Broker, topics: Iterable[_CommitTopic]
) -> tuple[list[_CommitTopic], list[_CommitTopic]]:
    """Returns the topics with the names of their ids, and those with unknown ids."""
    resolved, unknown = [], []
    for topic in topics:
        name = _topic_name(broker, topic.topic_id)
        if name:
            resolved.append(_CommitTopic(name=name, topic_id=topic.topic_id, partitions=topic.partitions))
        else:
            unknown.append(topic)
    return resolved, unknown


def offset_fetch(
    broker: Broker, context: ApiRequestContext, request: OffsetFetchRequest
) -> HandlerResult:
    """Returns committed offsets; topics have names, and ids from version 10."""
    if group_parts.has_many_offsets(broker, context, request):
        return group_parts.fetch_offsets(broker, context, request, _check_fetch)
    return handle_checked(broker, context, _check_fetch(broker, context, request))


def _check_fetch(broker: Broker, context: ApiRequestContext, request: OffsetFetchRequest) -> Checked:
    if context.api_version < _TOPIC_ID_VERSION:
        return Checked(request)
    resolved: list[_FetchGroup] = []
    # of each entry of a group: a request may name a group twice
    unknown_ids: defaultdict[str, deque[list[_FetchTopic]]] = defaultdict(deque)
    for group in request.groups:
        topics: list[_FetchTopic] = []
        unknown: list[_FetchTopic] = []
        unknown_ids[group.group_id].append(unknown)
        for topic in group.topics or ():
            name = _topic_name(broker, topic.topic_id)
            if name:
                partitions = topic.partition_indexes
                topics.append(_FetchTopic(name=name, topic_id=topic.topic_id, partition_indexes=partitions))
            else:
                unknown.append(topic)
        resolved.append(
            _FetchGroup(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                topics=None if group.topics is None else topics,
            )
        )

    def complete(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            unknown = unknown_ids[group.group_id].popleft()
            group.topics = _with_topic_ids(broker, group.topics)
            if not group.error_code:
                group.topics = [*group.topics, *map(_fetch_unknown_id, unknown)]

    checked = OffsetFetchRequest(groups=resolved, require_stable=request.require_stable)
    return Checked(checked, complete)


def offset_delete(
    broker: Broker, context: ApiRequestContext, request: OffsetDeleteRequest
) -> HandlerResult:
    """Deletes committed offsets; partitions that do not exist get an error each."""
    if group_parts.has_many_partitions(request):
        return group_parts.change_offsets(broker, context, request, _check_delete)
    return handle_checked(broker, context, _check_delete(broker, context, request))


def _check_delete(broker: Broker, context: ApiRequestContext, request: OffsetDeleteRequest) -> Checked:
    existing, missing = split_by_existence(broker, request.topics, _DeleteTopic)
    errors = missing_topics(missing, _DeletedTopic, _DeletedTopic.OffsetDeleteResponsePartition)
    return Checked(with_topics(request, existing), add_topics(errors))


# --- topics of requests and responses ---


def split_by_existence(
    broker: Broker, topics: Iterable[RequestTopic], topic_class: type[RequestTopic]
) -> tuple[list[RequestTopic], list[RequestTopic]]:
    """Returns the topics with their existing partitions, and the topics with their missing partitions."""
    existing, missing = [], []
    contains = broker.partitions.contains_all
    for topic in topics:
        if topic.partitions and contains(topic.name, [each.partition_index for each in topic.partitions]):
            existing.append(topic)
            continue
        present: list[Any] = []
        absent: list[Any] = []
        for partition in topic.partitions:
            exists = TopicPartition(topic.name, partition.partition_index) in broker.partitions
            (present if exists else absent).append(partition)
        if present:
            existing.append(topic_class(name=topic.name, partitions=present))
        if absent:
            missing.append(topic_class(name=topic.name, partitions=absent))
    return existing, missing


def missing_topics(
    topics: Iterable[_CommitTopic | _DeleteTopic | _TxnCommitTopic], topic_class: Any, partition_class: Any
) -> list[Any]:
    """Returns response entries with UNKNOWN_TOPIC_OR_PARTITION for each partition of `topics`."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return [
        topic_class(
            name=topic.name,
            partitions=[
                partition_class(partition_index=each.partition_index, error_code=code)
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def add_topics(entries: Sequence[Any]) -> CompleteResponse:
    """Returns a function that adds `entries` to a response with topics; each topic stays one entry."""

    def complete(response: Any) -> None:
        if isinstance(response, OffsetDeleteResponse) and response.error_code:
            return  # the error concerns the whole request
        remaining = {topic.name: topic for topic in entries}
        for topic in response.topics:
            if topic.name in remaining:
                topic.partitions = [*remaining.pop(topic.name).partitions, *topic.partitions]
        response.topics = [*response.topics, *remaining.values()]

    return complete


def _topic_name(broker: Broker, topic_id: uuid.UUID | None) -> str:
    """Returns the name of a topic id, empty if it is unknown."""
    try:
        return broker.partitions.topic_name(topic_id or ZERO_UUID)
    except ApiError:
        return ""


def _with_topic_ids(broker: Broker, response_topics: Sequence[Any]) -> list[Any]:
    """Sets the ids of response topics; removes topics that were deleted meanwhile, because they have no id."""
    known: Mapping[str, Any] = broker.partitions.topics
    found = [topic for topic in response_topics if topic.name in known]
    for topic in found:
        topic.topic_id = known[topic.name].topic_id
    return found


def _commit_unknown_id(topic: _CommitTopic) -> _CommittedTopic:
    code = ErrorCode.UNKNOWN_TOPIC_ID
    entries = [
        _CommittedTopic.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
        for each in topic.partitions
    ]
    return _CommittedTopic(topic_id=topic.topic_id, partitions=entries)


def _fetch_unknown_id(topic: _FetchTopic) -> _FetchedTopic:
    entries = [
        _FetchedTopic.OffsetFetchResponsePartitions(
            partition_index=number,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
        )
        for number in topic.partition_indexes
    ]
    return _FetchedTopic(topic_id=topic.topic_id, partitions=entries)
