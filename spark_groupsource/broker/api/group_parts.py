"""Handles large requests of the group APIs in parts.

The broker serves other requests between the parts. The parts of a commit are stored separately, so that some of them
may fail. Kafka stores them together, but its clients retry a commit with any failed partition as a whole.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, Steps
from spark_groupsource.group import GroupRequest, merge_responses
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_GROUPS_PER_PART = 100
_PARTITIONS_PER_PART = 500
_FETCH_GROUPS_SINCE = 8

_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic
_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_FetchGroupTopic = _FetchGroup.OffsetFetchRequestTopics


def parts_of(request: GroupRequest, api_version: int) -> list[GroupRequest]:
    """The parts of a request for many groups or partitions; of any other request, the request alone."""
    if isinstance(request, DescribeGroupsRequest) and len(request.groups) > _GROUPS_PER_PART:
        include = request.include_authorized_operations
        return [
            DescribeGroupsRequest(groups=groups, include_authorized_operations=include)
            for groups in _slices(request.groups, _GROUPS_PER_PART)
        ]
    if isinstance(request, DeleteGroupsRequest) and len(request.groups_names) > _GROUPS_PER_PART:
        names = list(dict.fromkeys(request.groups_names))
        return [DeleteGroupsRequest(groups_names=part) for part in _slices(names, _GROUPS_PER_PART)]
    if isinstance(request, OffsetCommitRequest) and _has_many(request.topics, "partitions"):
        return [
            OffsetCommitRequest(
                group_id=request.group_id,
                generation_id_or_member_epoch=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                retention_time_ms=request.retention_time_ms,
                topics=topics,
            )
            for topics in _topic_parts(request.topics, "partitions", _CommitTopic)
        ]
    if isinstance(request, OffsetFetchRequest) and api_version < _FETCH_GROUPS_SINCE:
        if request.topics is not None and _has_many(request.topics, "partition_indexes"):
            return [
                OffsetFetchRequest(group_id=request.group_id, topics=topics, require_stable=request.require_stable)
                for topics in _topic_parts(request.topics, "partition_indexes", _FetchTopic)
            ]
    elif isinstance(request, OffsetFetchRequest):
        if any(group.topics and _has_many(group.topics, "partition_indexes") for group in request.groups):
            return [
                OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
                for group in _group_parts(request.groups)
            ]
    return [request]


def in_parts(
    broker: Broker,
    context: ApiRequestContext,
    request: GroupRequest,
    parts: Sequence[GroupRequest],
    complete: Callable[[Any], None] | None,
) -> Steps:
    """Handles the parts of `request` one after another; returns their response, to which `complete` is applied."""
    responses: list[Any] = []
    for part in parts:
        responses.append(broker.group_coordinator.handle_part(context, part))
        yield None
    if isinstance(request, (DescribeGroupsRequest, DeleteGroupsRequest)):
        merged: Any = merge_responses(request, context.api_version, responses)
    else:
        merged = responses[0]
        for response in responses[1:]:
            _add_offsets(merged, response)
    yield None
    if complete is not None:
        complete(merged)
    return merged  # type: ignore[no-any-return]


def list_groups(broker: Broker, context: ApiRequestContext, request: GroupRequest) -> Steps:
    """Lists the groups of one shard after another."""
    responses = []
    for partition in broker.group_coordinator.led_partitions(context.node_id):
        responses.append(broker.group_coordinator.handle_part(context, request, partition))
        yield None
    return merge_responses(request, context.api_version, responses)


def _add_offsets(merged: Any, response: Any) -> None:
    """Adds the topics of the next OffsetCommit or OffsetFetch response."""
    if isinstance(merged, OffsetCommitResponse) or not merged.groups:
        merged.topics = _joined(merged.topics, response.topics)
        if isinstance(merged, OffsetFetchResponse):
            merged.error_code = merged.error_code or response.error_code
        return
    for group in response.groups:
        last = merged.groups[-1]
        if group.group_id == last.group_id:
            last.topics = _joined(last.topics, group.topics)
            last.error_code = last.error_code or group.error_code
        else:
            merged.groups.append(group)


def _joined(topics: list[Any], following: list[Any]) -> list[Any]:
    """Returns the topics of two responses; one that was divided becomes one entry again."""
    if topics and following and topics[-1].name == following[0].name:
        topics[-1].partitions += following[0].partitions
        following = following[1:]
    topics += following
    return topics


def _group_parts(groups: Sequence[_FetchGroup]) -> Iterator[_FetchGroup]:
    for group in groups:
        parts = (
            [group.topics] if not group.topics else _topic_parts(group.topics, "partition_indexes", _FetchGroupTopic)
        )
        for topics in parts:
            yield _FetchGroup(
                group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=topics
            )


def _has_many(topics: Sequence[Any], field: str) -> bool:
    return sum(len(getattr(topic, field)) for topic in topics) > _PARTITIONS_PER_PART


def _topic_parts(topics: Sequence[Any], field: str, topic_class: Any) -> Iterator[list[Any]]:
    """Divides topics into lists with a bounded number of partitions."""
    part: list[Any] = []
    size = 0
    for topic in topics:
        for partitions in _slices(getattr(topic, field), _PARTITIONS_PER_PART):
            if part and size + len(partitions) > _PARTITIONS_PER_PART:
                yield part
                part, size = [], 0
            divided = topic_class(name=topic.name, **{field: partitions})
            if hasattr(topic, "topic_id"):
                divided.topic_id = topic.topic_id
            part.append(divided)
            size += len(partitions)
    if part:
        yield part


def _slices(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    return (list(values[start : start + size]) for start in range(0, len(values), size))
