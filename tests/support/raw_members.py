"""A classic group member that sends single requests, one function per request."""

from __future__ import annotations

from support.commit_requests import commit_topics

from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)


def join(connection, member_id="", group="g", session_timeout_ms=30_000):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[protocol],
        reason=None,
    )
    response = connection.call(request, 7)
    if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        return response
    return join(connection, response.member_id, group, session_timeout_ms)


def sync(connection, joined, group="g"):
    entry = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[entry],
    )
    return connection.call(request, 5)


def heartbeat(connection, joined, group="g"):
    request = HeartbeatRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, group_instance_id=None
    )
    return connection.call(request, 4).error_code


def commit(connection, joined, offset, topic="t", group="g"):
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
        topics=commit_topics(OffsetCommitRequest, {topic: {0: offset}}, committed_metadata="m"),
    )
    return connection.call(request, 8).topics[0].partitions[0].error_code


def committed(connection, group="g"):
    request = OffsetFetchRequest(group_id=group, topics=None, require_stable=True)
    response = connection.call(request, 7)
    return {
        (topic.name, partition.partition_index): (partition.committed_offset, partition.metadata)
        for topic in response.topics
        for partition in topic.partitions
    }
