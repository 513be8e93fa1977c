"""Responses of the group APIs, with the fix-ups of their versions. Decides nothing.

Version notes: a JoinGroup answer without a protocol name carries "" below version 7 and null from there on; an error
answer carries no protocol type at all. LeaveGroup below version 3 names one member and puts that member's error on
top. OffsetFetch below version 2 has no error of its own, so a group's error stands on every partition.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Sequence

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.classic_group import NO_GENERATION, NO_LEADER, ClassicGroup
from spark_groupsource.wire.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    Message,
    OffsetCommitResponse,
    SyncGroupResponse,
    TxnOffsetCommitResponse,
)


def join_success_response(group: ClassicGroup, member_id: str) -> Message:
    """The answer of the group's present generation; the leader's lists all members. O(members) for the leader."""
    leads = member_id == group.leader_id
    return join_response(group, member_id, group.leader_id or NO_LEADER, with_members=leads)


def join_response(
    group: ClassicGroup, member_id: str, leader_id: str, *, with_members: bool, skip_assignment: bool = False
) -> Message:
    """The answer of the group's present generation as `leader_id` would lead it."""
    protocol_name = group.protocol_name or ""
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name,
        leader=leader_id,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=(
            [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.metadata(protocol_name),
                )
                for member in group.members.values()
            ]
            if with_members
            else []
        ),
    )


def join_error_response(
    error: ErrorCode,
    member_id: str,
    api_version: int,
    *,
    generation_id: int = NO_GENERATION,
    leader_id: str = NO_LEADER,
) -> Message:
    """A refused join; `member_id` is the one asked with, a new one with MEMBER_ID_REQUIRED, else empty."""
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


def sync_success_response(group: ClassicGroup, assignment: bytes) -> Message:
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=assignment,
    )


def sync_error_response(error: ErrorCode) -> Message:
    return SyncGroupResponse(
        throttle_time_ms=0, error_code=error, protocol_type=None, protocol_name=None, assignment=b""
    )


@lru_cache(maxsize=None)
def heartbeat_response(error: ErrorCode) -> Message:
    """One message for everybody: it is only read."""
    return HeartbeatResponse(throttle_time_ms=0, error_code=error)


def leave_response(entries: Sequence[tuple[Message, ErrorCode]], api_version: int) -> Message:
    """`entries`: (identity as asked, its error)."""
    if api_version < 3:
        return LeaveGroupResponse(throttle_time_ms=0, error_code=entries[0][1], members=[])
    return LeaveGroupResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
            )
            for identity, error in entries
        ],
    )


def leave_error_response(error: ErrorCode) -> Message:
    return LeaveGroupResponse(throttle_time_ms=0, error_code=error, members=[])


def commit_response(
    topics: Sequence[tuple[str, Sequence[tuple[int, ErrorCode]]]], *, transactional: bool = False
) -> Message:
    """`topics`: (name, (partition, error) ...); of OffsetCommit or of TxnOffsetCommit."""
    if transactional:
        response_class: Any = TxnOffsetCommitResponse
        topic_class: Any = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        partition_class: Any = topic_class.TxnOffsetCommitResponsePartition
    else:
        response_class = OffsetCommitResponse
        topic_class = OffsetCommitResponse.OffsetCommitResponseTopic
        partition_class = topic_class.OffsetCommitResponsePartition
    return response_class(
        throttle_time_ms=0,
        topics=[
            topic_class(
                name=name,
                partitions=[_committed(partition_class, partition, error) for partition, error in partitions],
            )
            for name, partitions in topics
        ],
    )


@lru_cache(maxsize=4096)
def _committed(partition_class: Any, partition: int, error: ErrorCode) -> Message:
    """An entry of a commit's answer; the same ones come again and again, and are only read."""
    return partition_class(partition_index=partition, error_code=error)
