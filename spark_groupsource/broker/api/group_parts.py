"""Handles large requests of the group APIs in parts.

The broker serves other requests between the parts. A commit of up to 1,000 topics and partitions is one part and one
batch, as in Kafka. The parts of a larger one, of a commit in a transaction and of a deletion of offsets are stored
separately, so that some of them may fail. Kafka stores them together, but its clients retry a commit with any failed
partition as a whole, and offsets of a transaction become visible with its end.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence, TypeVar

from spark_groupsource.broker.group import GroupRequest, group_fetch_error, merge_responses
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.common.coroutines import pause, portions
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    ApiMessage,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
)

_PER_PART, _MEMBERS_PER_PART = 250, 100
_COMMITTED_PER_PART = 1_000  # an offset takes a fifth of the time of others
_FETCH_GROUPS_SINCE, _FETCH_IDS_SINCE = 8, 10
_MAX_FETCHED_BYTES = 8_388_608
_FETCHED_BYTES = 60  # of the response and, roughly, a tenth of the memory, of an offset

CompleteResponse = Callable[[Any], None]
OffsetsRequest = TypeVar("OffsetsRequest", OffsetCommitRequest, TxnOffsetCommitRequest, OffsetDeleteRequest)

_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic
_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_FetchGroupTopic = _FetchGroup.OffsetFetchRequestTopics


class Checked(NamedTuple):
    """A request that was checked. `complete` adds partitions to the response that the coordinator does not get."""

    request: GroupRequest
    complete: CompleteResponse | None = None


Check = Callable[[Broker, ApiRequestContext, Any], "Checked | ApiMessage"]
"""Checks the topics of a request; returns the response if the coordinator gets nothing of it."""


def handle_checked(broker: Broker, context: ApiRequestContext, checked: Checked | ApiMessage) -> ApiMessage:
    """Passes a checked request, or a part of one, to the group coordinator; returns the complete response."""
    if not isinstance(checked, Checked):
        return checked
    response = broker.group_coordinator.response_to(context, checked.request)
    if checked.complete is not None:
        checked.complete(response)
    return response


# --- commits and deletions of offsets ---


def has_many_partitions(request: OffsetCommitRequest | TxnOffsetCommitRequest | OffsetDeleteRequest) -> bool:
    return sum(1 + len(topic.partitions) for topic in request.topics) > _part_size(request)


def _part_size(request: OffsetCommitRequest | TxnOffsetCommitRequest | OffsetDeleteRequest) -> int:
    return _COMMITTED_PER_PART if isinstance(request, OffsetCommitRequest) else _PER_PART


async def change_offsets(
    broker: Broker, context: ApiRequestContext, request: OffsetsRequest, check: Check
) -> ApiMessage:
    """Commits or deletes the offsets of many partitions; `check` is applied to each part."""
    topics: dict[Any, Any] = {}
    for part in _topic_parts(request.topics, "partitions", _part_size(request)):
        response: Any = handle_checked(broker, context, check(broker, context, with_topics(request, part)))
        if isinstance(response, OffsetDeleteResponse) and response.error_code:
            return response  # the error concerns the whole request
        for topic in response.topics:
            known = topics.setdefault((topic.name, getattr(topic, "topic_id", None)), topic)
            if known is not topic:
                known.partitions += topic.partitions
        await pause()
    response.topics = list(topics.values())
    return response  # type: ignore[no-any-return]


def with_topics(request: OffsetsRequest, topics: list[Any]) -> OffsetsRequest:
    """Returns a request with other topics."""
    if isinstance(request, OffsetCommitRequest):
        return OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=topics,
        )
    if isinstance(request, OffsetDeleteRequest):
        return OffsetDeleteRequest(group_id=request.group_id, topics=topics)
    return TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )


# --- OffsetFetch ---


def has_many_offsets(broker: Broker, context: ApiRequestContext, request: OffsetFetchRequest) -> bool:
    """Returns whether a request is for more offsets than one part has."""
    groups: Sequence[Any] = request.groups if context.api_version >= _FETCH_GROUPS_SINCE else [request]
    if len(groups) > _PER_PART:
        return True
    return sum(_fetched(broker, group.group_id, group.topics) for group in groups) > _PER_PART


def _fetched(broker: Broker, group_id: str, topics: Sequence[Any] | None) -> int:
    """Returns the number of offsets that are requested of a group, at least 1."""
    if topics is None:
        return 1 + len(broker.group_coordinator.committed_offsets(group_id))
    return 1 + sum(1 + len(topic.partition_indexes) for topic in topics)


async def fetch_offsets(
    broker: Broker, context: ApiRequestContext, request: OffsetFetchRequest, check: Check
) -> ApiMessage:
    """Returns the offsets of many partitions or groups.

    Groups beyond the largest size of a response get COORDINATOR_LOAD_IN_PROGRESS, so that a client requests them again.
    """
    version = context.api_version
    if version < _FETCH_GROUPS_SINCE:
        return await _fetch_group(broker, context, request, request, check)
    groups: list[Any] = []
    left = _MAX_FETCHED_BYTES
    small: list[_FetchGroup] = []
    size = 0
    for group in [*request.groups, None]:
        count = 0 if group is None else _fetched(broker, group.group_id, group.topics)
        if small and (group is None or size + count > _PER_PART):
            part = OffsetFetchRequest(groups=small, require_stable=request.require_stable)
            response: Any = handle_checked(broker, context, check(broker, context, part))
            groups += response.groups
            small, size = [], 0
            await pause()
        if group is None:
            break
        if left <= 0:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            groups.append(group_fetch_error(group.group_id, [], code, version))
            continue
        if group.topics is None:
            stored = broker.group_coordinator.committed_offsets(group.group_id)
            left -= _FETCHED_BYTES * count + sum(len(value.metadata) for value in stored.values())
        if count <= _PER_PART:
            small.append(group)
            size += count
        else:
            response = await _fetch_group(broker, context, request, group, check)
            groups += response.groups
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


async def _fetch_group(
    broker: Broker, context: ApiRequestContext, request: OffsetFetchRequest, group: Any, check: Check
) -> OffsetFetchResponse:
    """Returns many offsets of one group, which is the request itself below version 8."""
    is_single, fetches_all = group is request, group.topics is None
    topics: dict[Any, Any] = {}
    error_code: int = ErrorCode.NONE
    if fetches_all:
        parts = _stored_topics(broker, context, group)
    else:
        parts = _topic_parts(group.topics, "partition_indexes", _PER_PART)
    for part in parts:
        if is_single:
            piece = OffsetFetchRequest(group_id=group.group_id, topics=part, require_stable=request.require_stable)
        else:
            member = {"member_id": group.member_id, "member_epoch": group.member_epoch}
            only = _FetchGroup(group_id=group.group_id, topics=part, **member)
            piece = OffsetFetchRequest(groups=[only], require_stable=request.require_stable)
        response: Any = handle_checked(broker, context, check(broker, context, piece))
        found = response if is_single else response.groups[0]
        error_code = error_code or found.error_code
        for topic in found.topics:
            if fetches_all:  # without the offsets that were removed since the previous part
                topic.partitions = [each for each in topic.partitions if each.committed_offset >= 0 or each.error_code]
            known = topics.setdefault((topic.name, getattr(topic, "topic_id", None)), topic)
            if known is not topic:
                known.partitions += topic.partitions
        await pause()
    found.error_code = error_code
    found.topics = list(topics.values())
    return response  # type: ignore[no-any-return]


def _stored_topics(broker: Broker, context: ApiRequestContext, group: Any) -> Iterator[list[Any]]:
    """Yields the partitions with committed offsets of a group, in parts; at least one, which may be empty."""
    stored = list(broker.group_coordinator.committed_offsets(group.group_id))
    for some in portions(stored, _PER_PART) if stored else [[]]:
        by_name: dict[str, list[int]] = {}
        for topic, partition in some:
            by_name.setdefault(topic, []).append(partition)
        yield [each for name, numbers in by_name.items() for each in _topic_of(broker, context, name, sorted(numbers))]


def _topic_of(broker: Broker, context: ApiRequestContext, name: str, numbers: list[int]) -> Iterable[Any]:
    if context.api_version < _FETCH_GROUPS_SINCE:
        return [_FetchTopic(name=name, partition_indexes=numbers)]
    if context.api_version < _FETCH_IDS_SINCE:
        return [_FetchGroupTopic(name=name, partition_indexes=numbers)]
    entry = broker.partitions.topics.get(name)
    if entry is None:
        return []  # the topic was deleted and has no id
    return [_FetchGroupTopic(name=name, topic_id=entry.topic_id, partition_indexes=numbers)]


# --- groups ---


def has_many_groups(broker: Broker, request: DescribeGroupsRequest | DeleteGroupsRequest) -> bool:
    """Returns whether a request is for many groups, or for large ones."""
    if isinstance(request, DescribeGroupsRequest):
        return len(list(_described_parts(broker, request.groups[: _PER_PART + 1]))) > 1
    names = request.groups_names
    return len(names) > _PER_PART or sum(_fetched(broker, name, None) for name in names) > _PER_PART


async def describe_groups(
    broker: Broker, context: ApiRequestContext, request: DescribeGroupsRequest
) -> ApiMessage:
    """Describes many groups, or groups with many members."""
    include = request.include_authorized_operations
    responses = []
    for some in _described_parts(broker, request.groups):
        part = DescribeGroupsRequest(groups=some, include_authorized_operations=include)
        responses.append(broker.group_coordinator.response_to(context, part))
        await pause()
    return merge_responses(request, context.api_version, responses)


def _described_parts(broker: Broker, group_ids: Sequence[str]) -> Iterator[list[str]]:
    some: list[str] = []
    size = 0
    for group_id in group_ids:
        added = 2 + broker.group_coordinator.member_count(group_id)
        if some and size + added > _PER_PART:
            yield some
            some, size = [], 0
        some.append(group_id)
        size += added
    if some:
        yield some


def has_many_members(request: LeaveGroupRequest) -> bool:
    return len(request.members) > _MEMBERS_PER_PART


async def leave_group(broker: Broker, context: ApiRequestContext, request: LeaveGroupRequest) -> ApiMessage:
    """Removes many members; the first part starts the rebalance, which cannot complete before the last one."""
    response: Any = None
    for some in portions(request.members, _MEMBERS_PER_PART):
        part = LeaveGroupRequest(group_id=request.group_id, member_id=request.member_id, members=list(some))
        following: Any = broker.group_coordinator.response_to(context, part)
        if response is None:
            response = following
        else:
            response.members += following.members
        if following.error_code:
            response.error_code = following.error_code
            return response  # type: ignore[no-any-return]
        await pause()
    return response  # type: ignore[no-any-return]


async def delete_groups(broker: Broker, context: ApiRequestContext, request: DeleteGroupsRequest) -> ApiMessage:
    """Deletes many groups, or groups with many offsets."""
    responses: list[ApiMessage] = []
    some: list[str] = []
    size = 0
    names = list(dict.fromkeys(request.groups_names))
    for number, group_id in enumerate(names, 1):
        size += _fetched(broker, group_id, None)
        await broker.group_coordinator.remove_offsets(context.node_id, group_id)
        some.append(group_id)  # of a large group, the rest is deleted before another request runs
        if size >= _PER_PART or number == len(names):
            responses.append(broker.group_coordinator.response_to(context, DeleteGroupsRequest(groups_names=some)))
            some, size = [], 0
            await pause()
    return merge_responses(request, context.api_version, responses)


async def list_groups(broker: Broker, context: ApiRequestContext, request: ListGroupsRequest) -> ApiMessage:
    """Lists the groups of one shard after another."""
    responses = await broker.group_coordinator.list_groups(context, request)
    return merge_responses(request, context.api_version, responses)


# --- parts ---


def _topic_parts(topics: Sequence[Any], field: str, most: int) -> Iterator[list[Any]]:
    """Divides topics into lists with a bounded number of topics and partitions."""
    part: list[Any] = []
    size = 0
    for topic in topics:
        for partitions in portions(getattr(topic, field), most) if getattr(topic, field) else [[]]:
            if part and size + len(partitions) >= most:
                yield part
                part, size = [], 0
            divided = type(topic)(name=topic.name, **{field: list(partitions)})
            if hasattr(topic, "topic_id"):
                divided.topic_id = topic.topic_id
            part.append(divided)
            size += 1 + len(partitions)
    if part:
        yield part
