"""Error responses of the group APIs, and errors of failed appends.

Source: Kafka's CoordinatorOperationExceptionHelper; KafkaApis for the form of each API's error.
"""

from __future__ import annotations

from typing import Any, Mapping, TypeVar, overload

from spark_groupsource.broker.group.classic_group import UNKNOWN_MEMBER
from spark_groupsource.broker.group.committed_offsets import (
    commit_error_response,
    group_fetch_error,
    offset_delete_error_response,
    offset_fetch_response,
    requested_groups,
)
from spark_groupsource.broker.group.group_admin import delete_groups_response, described_group_error
from spark_groupsource.broker.group.group_calls import GroupRequest, GroupResponse
from spark_groupsource.broker.group.responses import (
    heartbeat_response,
    join_error_response,
    leave_error_response,
    sync_error_response,
)
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    ApiMessage,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    Request,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

ResponseT = TypeVar("ResponseT", bound="ApiMessage")

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

# raised by Kafka's CoordinatorRuntime, which has no member id
_RUNTIME_ERRORS = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_SERVER_ERROR}
)

# producers up to Kafka 2.0 do not expect COORDINATOR_LOAD_IN_PROGRESS in TxnOffsetCommit
_LOAD_IN_PROGRESS_VERSION = 2
_ABORTABLE_VERSION = 4


def verification_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """Returns the error of a TxnOffsetCommit whose transaction the transaction coordinator could not verify."""
    if error is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < _ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return append_error(error)


def append_error(error: int) -> ErrorCode:
    """Returns the error for a client whose record could not be appended: most append errors are about a log."""
    mapped = _APPEND_ERRORS.get(error)
    return ErrorCode(error) if mapped is None else mapped


@overload
def error_response(request: Request[ResponseT], error: ErrorCode, api_version: int) -> ResponseT: ...


@overload
def error_response(request: GroupRequest, error: ErrorCode, api_version: int) -> GroupResponse: ...


def error_response(request: Any, error: ErrorCode, api_version: int) -> Any:
    """Returns a response that has nothing but `error`, in the field that the API has for it.

    Raises: KeyError for a request of another API.
    """
    match request:
        case JoinGroupRequest():
            member_id = UNKNOWN_MEMBER if error in _RUNTIME_ERRORS else request.member_id
            return join_error_response(error, member_id, api_version)
        case SyncGroupRequest():
            return sync_error_response(error)
        case HeartbeatRequest():
            return heartbeat_response(error)
        case LeaveGroupRequest():
            return leave_error_response(error)
        case OffsetCommitRequest():
            return commit_error_response(request, error)
        case TxnOffsetCommitRequest():
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and api_version < _LOAD_IN_PROGRESS_VERSION:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return commit_error_response(request, error)
        case OffsetFetchRequest():
            groups = [
                group_fetch_error(group_id, topics, error, api_version)
                for group_id, topics in requested_groups(request, api_version)
            ]
            return offset_fetch_response(groups, api_version)
        case OffsetDeleteRequest():
            return offset_delete_error_response(error)
        case DescribeGroupsRequest():
            described = [described_group_error(group_id, error) for group_id in request.groups]
            return DescribeGroupsResponse(throttle_time_ms=0, groups=described)
        case DeleteGroupsRequest():
            return delete_groups_response((group_id, error) for group_id in request.groups_names)
        case ListGroupsRequest():
            return ListGroupsResponse(throttle_time_ms=0, error_code=error, groups=[])
    raise KeyError(request.API_KEY)
