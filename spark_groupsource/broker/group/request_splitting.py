"""Splits requests by coordinator shard and merges the responses of the shards.

A request about a single group is passed to its shard unchanged; no request is modified.
"""

from __future__ import annotations

from typing import Mapping, Sequence, cast

from spark_groupsource.broker.group.committed_offsets import offset_fetch_response
from spark_groupsource.broker.group.group_admin import bounded_descriptions
from spark_groupsource.broker.group.group_calls import GroupRequest, GroupResponse
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import coordinator_partition
from spark_groupsource.wire.messages import (
    ApiMessage,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_OFFSET_FETCH_GROUPS_VERSION = 8


def split_request(request: GroupRequest, api_version: int, partition_count: int) -> dict[int, GroupRequest]:
    """Returns partition -> the part of the request for its shard.

    The result is empty for a request without groups; `merge_responses` of no responses is its response.
    """
    assert not isinstance(request, ListGroupsRequest), "every shard has its own groups"
    if isinstance(request, DescribeGroupsRequest):
        return {
            partition: DescribeGroupsRequest(
                groups=group_ids, include_authorized_operations=request.include_authorized_operations
            )
            for partition, group_ids in _by_partition(request.groups, partition_count).items()
        }
    if isinstance(request, DeleteGroupsRequest):
        by_partition = _by_partition(list(dict.fromkeys(request.groups_names)), partition_count)
        return {partition: DeleteGroupsRequest(groups_names=ids) for partition, ids in by_partition.items()}
    if isinstance(request, OffsetFetchRequest) and api_version >= _OFFSET_FETCH_GROUPS_VERSION:
        parts: dict[int, list[OffsetFetchRequest.OffsetFetchRequestGroup]] = {}
        for group in request.groups:
            parts.setdefault(coordinator_partition(group.group_id, partition_count), []).append(group)
        return {
            partition: OffsetFetchRequest(groups=groups, require_stable=request.require_stable)
            for partition, groups in parts.items()
        }
    return {coordinator_partition(request.group_id, partition_count): request}


def _by_partition(group_ids: Sequence[str], partition_count: int) -> Mapping[int, list[str]]:
    parts: dict[int, list[str]] = {}
    for group_id in group_ids:
        parts.setdefault(coordinator_partition(group_id, partition_count), []).append(group_id)
    return parts


def merge_responses(request: GroupRequest, api_version: int, responses: Sequence[ApiMessage]) -> GroupResponse:
    """Returns one response from those of the shards, with the groups in the order of the request.

    While a shard is loading, a ListGroups response has the groups of the other shards and the error.
    """
    if isinstance(request, ListGroupsRequest):
        lists = cast(Sequence[ListGroupsResponse], responses)
        errors = [response.error_code for response in lists if response.error_code]
        listed = [group for response in lists for group in response.groups]
        return ListGroupsResponse(
            throttle_time_ms=0, error_code=errors[0] if errors else ErrorCode.NONE, groups=listed
        )
    if isinstance(request, DescribeGroupsRequest):
        descriptions = cast(Sequence[DescribeGroupsResponse], responses)
        described = {group.group_id: group for response in descriptions for group in response.groups}
        groups = bounded_descriptions(request.groups, described.__getitem__)
        return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)
    if isinstance(request, DeleteGroupsRequest):
        deletions = cast(Sequence[DeleteGroupsResponse], responses)
        results = {result.group_id: result for response in deletions for result in response.results}
        ordered = [results[group_id] for group_id in dict.fromkeys(request.groups_names)]
        return DeleteGroupsResponse(throttle_time_ms=0, results=ordered)
    if isinstance(request, OffsetFetchRequest) and api_version >= _OFFSET_FETCH_GROUPS_VERSION:
        fetches = cast(Sequence[OffsetFetchResponse], responses)
        fetched = {group.group_id: group for response in fetches for group in response.groups}
        return offset_fetch_response([fetched[group.group_id] for group in request.groups], api_version)
    (response,) = responses
    return cast(GroupResponse, response)
