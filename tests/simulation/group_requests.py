"""Requests of the simulated clients, and the versions that belong together."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from support.commit_requests import commit_topics

from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.consumer_protocol import partitions_by_topic
from spark_groupsource.wire.messages import (
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)


class Versions(NamedTuple):
    """The version of each request, of a client with a given JoinGroup version."""

    join: int
    sync: int
    heartbeat: int
    commit: int
    fetch: int
    leave: int

    @classmethod
    def of(cls, join: int) -> Versions:
        """Returns the versions of a client: before static members, with them, or the newest."""
        if join < 5:
            return cls(join, min(join, 2), min(join, 2), 2 + join, 1 + join, min(join, 2))
        if join < 9:
            return cls(join, max(join - 3, 3), 3 if join < 8 else 4, 7 if join < 7 else 8, join, join - 3)
        return cls(9, 5, 4, 9, 8, 5)


def error_of(response: Any) -> int:
    """Returns the first error in a response."""
    topics = list(getattr(response, "topics", None) or ())
    for group in getattr(response, "groups", None) or ():
        if group.error_code:
            return int(group.error_code)
        topics += group.topics
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                return int(partition.error_code)
    return int(getattr(response, "error_code", None) or ErrorCode.NONE)


def join_request(
    group_id: str,
    member_id: str,
    instance_id: str | None,
    protocols: Sequence[tuple[str, bytes]],
    session_ms: int,
    rebalance_ms: int,
) -> Any:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        reason=None,
    )


def sync_request(
    group_id: str,
    member_id: str,
    generation_id: int,
    instance_id: str | None,
    protocol_name: str,
    assignments: Mapping[str, bytes],
) -> Any:
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
            for member, data in assignments.items()
        ],
    )


def leave_request(group_id: str, member_id: str, versions: Versions, instance_id: str | None = None) -> Any:
    if versions.leave < 3:
        return LeaveGroupRequest(group_id=group_id, member_id=member_id)
    identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=None)
    return LeaveGroupRequest(group_id=group_id, members=[identity])


def commit_request(
    group_id: str,
    member_id: str,
    generation_id: int,
    instance_id: str | None,
    offsets: Mapping[TopicPartition, int],
) -> Any:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=-1,
        topics=commit_topics(OffsetCommitRequest, _by_topic(offsets)),
    )


def transactional_request(
    group_id: str,
    member_id: str,
    generation_id: int,
    instance_id: str | None,
    offsets: Mapping[TopicPartition, int],
    producer_id: int,
) -> Any:
    return TxnOffsetCommitRequest(
        transactional_id="transaction",
        group_id=group_id,
        producer_id=producer_id,
        producer_epoch=0,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=commit_topics(TxnOffsetCommitRequest, _by_topic(offsets)),
    )


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[partition] = offset
    return found


def fetch_request(group_id: str, partitions: Sequence[TopicPartition], versions: Versions) -> Any:
    by_topic = partitions_by_topic(partitions).items()
    if versions.fetch >= 8:
        group_class = OffsetFetchRequest.OffsetFetchRequestGroup
        wanted = [group_class.OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in by_topic]
        return OffsetFetchRequest(groups=[group_class(group_id=group_id, topics=wanted)], require_stable=False)
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in by_topic]
    return OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=False)
