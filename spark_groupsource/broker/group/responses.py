"""Responses of the group APIs, in the form of each version.

Version notes. JoinGroup: a response without a protocol name has "" below version 7 and null from version 7 on; an error
response has no protocol type. LeaveGroup below version 3 names one member, whose error is the top-level error.
OffsetFetch below version 2 has no top-level error, so a group's error is the error of every partition.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Callable, Sequence

from spark_groupsource.broker.group.classic_group import NO_GENERATION, NO_LEADER, ClassicGroup
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitResponse,
    SyncGroupResponse,
    TxnOffsetCommitResponse,
)

CommitResults = Sequence[tuple[str, Sequence[tuple[int, ErrorCode]]]]
"""(topic, ((partition, error), ...)) of an OffsetCommit or TxnOffsetCommit."""

_CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_CommitPartition = _CommitTopic.OffsetCommitResponsePartition
_JoinedMember = JoinGroupResponse.JoinGroupResponseMember
_TxnCommitPartition = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic.TxnOffsetCommitResponsePartition


def join_success(group: ClassicGroup, member_id: str) -> Callable[[], JoinGroupResponse]:
    """Returns a function that builds the response with the current generation, also after the group has changed.

    The response to the leader has all members: O(members).
    """
    members = _members(group) if member_id == group.leader_id else ()
    return partial(_joined, *_generation(group), group.leader_id or NO_LEADER, False, member_id, members)


def join_response(
    group: ClassicGroup, member_id: str, leader_id: str, *, with_members: bool, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Returns the current generation, with `leader_id` as its leader."""
    members = _members(group) if with_members else ()
    return _joined(*_generation(group), leader_id, skip_assignment, member_id, members)


def _generation(group: ClassicGroup) -> tuple[int, str | None, str]:
    return group.generation_id, group.protocol_type, group.protocol_name or ""


def _members(group: ClassicGroup) -> list[tuple[str, str | None, bytes]]:
    """Returns member id, group instance id and metadata of each member."""
    name = group.protocol_name or ""
    return [(each.member_id, each.group_instance_id, each.metadata(name)) for each in group.members.values()]


def _joined(
    generation_id: int,
    protocol_type: str | None,
    protocol_name: str,
    leader_id: str,
    skip_assignment: bool,
    member_id: str,
    members: Sequence[tuple[str, str | None, bytes]],
) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        generation_id=generation_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader=leader_id,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=[
            _JoinedMember(member_id=each, group_instance_id=instance, metadata=metadata)
            for each, instance, metadata in members
        ],
    )


def join_error_response(
    error: ErrorCode,
    member_id: str,
    api_version: int,
    *,
    generation_id: int = NO_GENERATION,
    leader_id: str = NO_LEADER,
) -> JoinGroupResponse:
    """`member_id` is that of the request, the new one with MEMBER_ID_REQUIRED, or empty."""
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=error,
        generation_id=generation_id,
        protocol_type=None,
        protocol_name=None if api_version >= 7 else "",
        leader=leader_id,
        skip_assignment=False,
        member_id=member_id,
        members=[],
    )


def sync_success_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=assignment,
    )


def sync_error_response(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time_ms=0, error_code=error, protocol_type=None, protocol_name=None, assignment=b""
    )


@lru_cache(maxsize=None)
def heartbeat_response(error: ErrorCode) -> HeartbeatResponse:
    """Returns one shared message per error; nothing modifies it."""
    return HeartbeatResponse(throttle_time_ms=0, error_code=error)


def leave_response(
    results: Sequence[tuple[LeaveGroupRequest.MemberIdentity, ErrorCode]], api_version: int
) -> LeaveGroupResponse:
    """`results`: (identity in the request, its error)."""
    if api_version < 3:
        return LeaveGroupResponse(throttle_time_ms=0, error_code=results[0][1], members=[])
    return LeaveGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
            for identity, error in results
        ],
    )


def leave_error_response(error: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(throttle_time_ms=0, error_code=error, members=[])


def commit_response(results: CommitResults) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            _CommitTopic(name=name, partitions=[_commit_partition(*each) for each in partitions])
            for name, partitions in results
        ],
    )


def transactional_commit_response(results: CommitResults) -> TxnOffsetCommitResponse:
    topic_class = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=[
            topic_class(
                name=name, partitions=[_txn_commit_partition(partition, error) for partition, error in partitions]
            )
            for name, partitions in results
        ],
    )


# commits have the same few entries again and again; nothing modifies them
@lru_cache(maxsize=4096)
def _commit_partition(partition: int, error: ErrorCode) -> _CommitPartition:
    return _CommitPartition(partition_index=partition, error_code=error)


@lru_cache(maxsize=4096)
def _txn_commit_partition(partition: int, error: ErrorCode) -> _TxnCommitPartition:
    return _TxnCommitPartition(partition_index=partition, error_code=error)
