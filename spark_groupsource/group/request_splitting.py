"""Requests that name groups of several partitions: split by shard, and the answers put together again.

Knows where a group lives; not who serves it. A request of one group goes to one shard as it is.

Source: Kafka's `Utils.abs(groupId.hashCode()) % numPartitions`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Mapping, Sequence

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.committed_offsets import offset_fetch_response
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    Message,
    OffsetFetchRequest,
)

_OFFSET_FETCH_GROUPS_VERSION = 8


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: 31-polynomial over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=100_000)  # every request of a group asks
def coordinator_partition(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` a group lives in; its leader is the group's coordinator."""
    value = java_string_hash(group_id)
    # Java's abs has no positive counterpart of the smallest int, which Kafka takes for 0
    return 0 if value == -(1 << 31) else abs(value) % partition_count


def split_request(request: Message, api_version: int, partition_count: int) -> dict[int, Message]:
    """Partition -> the part of the request its shard is to handle; a ListGroups goes to every shard.

    One that names no group goes nowhere: the result is empty and `merge_responses` of nothing is its answer.
    """
    if request.API_KEY == ListGroupsRequest.API_KEY:
        return {partition: request for partition in range(partition_count)}
    if request.API_KEY == DescribeGroupsRequest.API_KEY:
        return {
            partition: DescribeGroupsRequest(
                groups=group_ids, include_authorized_operations=request.include_authorized_operations
            )
            for partition, group_ids in _by_partition(request.groups, partition_count).items()
        }
    if request.API_KEY == DeleteGroupsRequest.API_KEY:
        by_partition = _by_partition(list(dict.fromkeys(request.groups_names)), partition_count)
        return {partition: DeleteGroupsRequest(groups_names=ids) for partition, ids in by_partition.items()}
    if request.API_KEY == OffsetFetchRequest.API_KEY and api_version >= _OFFSET_FETCH_GROUPS_VERSION:
        parts: dict[int, list[Message]] = {}
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


def merge_responses(request: Message, api_version: int, responses: Sequence[Message]) -> Message:
    """One answer from those of the shards; groups come in the order of the request.

    A ListGroups whose shards are not all loaded carries what is known, and the error that says so.
    """
    if request.API_KEY == ListGroupsRequest.API_KEY:
        errors = [response.error_code for response in responses if response.error_code]
        listed = [group for response in responses for group in response.groups]
        return ListGroupsResponse(
            throttle_time_ms=0, error_code=errors[0] if errors else ErrorCode.NONE, groups=listed
        )
    if request.API_KEY == DescribeGroupsRequest.API_KEY:
        described = {group.group_id: group for response in responses for group in response.groups}
        return DescribeGroupsResponse(throttle_time_ms=0, groups=[described[g] for g in request.groups])
    if request.API_KEY == DeleteGroupsRequest.API_KEY:
        results = {result.group_id: result for response in responses for result in response.results}
        ordered = [results[group_id] for group_id in dict.fromkeys(request.groups_names)]
        return DeleteGroupsResponse(throttle_time_ms=0, results=ordered)
    if request.API_KEY == OffsetFetchRequest.API_KEY and api_version >= _OFFSET_FETCH_GROUPS_VERSION:
        fetched = {group.group_id: group for response in responses for group in response.groups}
        return offset_fetch_response([fetched[group.group_id] for group in request.groups], api_version)
    (response,) = responses
    return response
