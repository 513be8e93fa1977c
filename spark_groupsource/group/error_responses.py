"""Whole-request errors of the group APIs, and what a failed append means to a client.

Source: Kafka's CoordinatorOperationExceptionHelper; KafkaApis for the shape of each API's error.
"""

from __future__ import annotations

from typing import Callable, Mapping

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.committed_offsets import (
    commit_error_response,
    group_fetch_error,
    offset_delete_error_response,
    offset_fetch_response,
    requested_groups,
)
from spark_groupsource.group.group_admin import delete_groups_response, described_group_error
from spark_groupsource.group.responses import (
    heartbeat_response,
    join_error_response,
    leave_error_response,
    sync_error_response,
)
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    Message,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

_APPEND_ERRORS: Mapping[int, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

# producers up to Kafka 2.0 know no loading coordinator of groups
_LOADING_KNOWN_SINCE = 2
_ABORTABLE_KNOWN_SINCE = 4
_UNTIL_2_0 = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def verification_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """What a transactional commit is answered when the transaction's coordinator does not vouch for it."""
    if error is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < _ABORTABLE_KNOWN_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return append_error(error)


def append_error(error: int) -> ErrorCode:
    """The error a group's client is told when its record could not be appended; most are about a log, not a group."""
    mapped = _APPEND_ERRORS.get(error)
    return ErrorCode(error) if mapped is None else mapped


def _describe(request: Message, error: ErrorCode) -> Message:
    return DescribeGroupsResponse(
        throttle_time_ms=0, groups=[described_group_error(group_id, error) for group_id in request.groups]
    )


def _fetch(request: Message, error: ErrorCode, version: int) -> Message:
    groups = [
        group_fetch_error(group_id, topics, error, version) for group_id, topics in requested_groups(request, version)
    ]
    return offset_fetch_response(groups, version)


_REFUSALS: Mapping[int, Callable[[Message, ErrorCode, int], Message]] = {
    JoinGroupRequest.API_KEY: lambda request, error, version: join_error_response(error, request.member_id, version),
    SyncGroupRequest.API_KEY: lambda request, error, version: sync_error_response(error),
    HeartbeatRequest.API_KEY: lambda request, error, version: heartbeat_response(error),
    LeaveGroupRequest.API_KEY: lambda request, error, version: leave_error_response(error),
    OffsetCommitRequest.API_KEY: lambda request, error, version: commit_error_response(request, error),
    TxnOffsetCommitRequest.API_KEY: lambda request, error, version: commit_error_response(
        request, _UNTIL_2_0.get(error, error) if version < _LOADING_KNOWN_SINCE else error
    ),
    OffsetFetchRequest.API_KEY: _fetch,
    OffsetDeleteRequest.API_KEY: lambda request, error, version: offset_delete_error_response(error),
    DescribeGroupsRequest.API_KEY: lambda request, error, version: _describe(request, error),
    ListGroupsRequest.API_KEY: lambda request, error, version: ListGroupsResponse(
        throttle_time_ms=0, error_code=error, groups=[]
    ),
    DeleteGroupsRequest.API_KEY: lambda request, error, version: delete_groups_response(
        (group_id, error) for group_id in request.groups_names
    ),
}


def error_response(request: Message, error: ErrorCode, api_version: int) -> Message:
    """The answer of a group API that says nothing but `error`, in the place its schema has for it.

    Raises: KeyError for a request that is not of the group APIs.
    """
    return _REFUSALS[request.API_KEY](request, error, api_version)
