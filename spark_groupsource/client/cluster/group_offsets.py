"""OffsetFetch and OffsetCommit requests and responses, with topic ids.

From version 10 on, topics are identified by their ids (KIP-848): an offset of a topic that was deleted is not taken for
one of a topic of the same name that was created later.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Iterable, Mapping, NamedTuple, Sequence
from uuid import UUID

from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names, by_topic
from spark_groupsource.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

BY_ID = 10
"""First version of both requests that has topic ids instead."""

TopicIds = Mapping[str, str]
"""Topic -> id as text."""

NO_IDS: TopicIds = MappingProxyType({})
"""Topics are identified by name."""


class CommittingMember(NamedTuple):
    """The member that commits offsets, in its generation. Source: ConsumerGroupMetadata."""

    generation_id: int
    member_id: str
    group_instance_id: str | None = None


NO_MEMBER = CommittingMember(-1, "")
"""A simple consumer, which may commit while the group has no members."""

# a coordinator stores the offsets of a request as one record batch, of max.message.bytes at most (1,048,588), and
# responds UNKNOWN_SERVER_ERROR to a larger one
_MAX_COMMIT_BYTES = 524_288
# of a record, without the names and the metadata
_COMMIT_RECORD_BYTES = 64


class CommitPart(NamedTuple):
    """Offsets that are sent in one request, of the commit with this index."""

    commit: int
    member: CommittingMember
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


def split_commits(
    group_id: str, commits: Iterable[tuple[CommittingMember, Mapping[TopicPartition, OffsetAndMetadata]]]
) -> list[CommitPart]:
    """Divides commits into parts that a coordinator can store: about 4,000 partitions each with short metadata."""
    parts: list[CommitPart] = []
    fixed = _COMMIT_RECORD_BYTES + len(group_id.encode())
    for index, (member, offsets) in enumerate(commits):
        part: dict[TopicPartition, OffsetAndMetadata] = {}
        parts.append(CommitPart(index, member, part))
        left = _MAX_COMMIT_BYTES
        for tp, committed in offsets.items():
            size = fixed + len(tp.topic) + len(committed.metadata.encode())
            if size > left and part:
                part, left = {}, _MAX_COMMIT_BYTES
                parts.append(CommitPart(index, member, part))
            part[tp] = committed
            left -= size
    return parts


def errors_of_commits(parts: Sequence[CommitPart], outcomes: Iterable[object]) -> list[GroupSourceError | None]:
    """Returns the first error of each commit; None if all its parts succeeded."""
    errors: list[GroupSourceError | None] = [None] * (parts[-1].commit + 1 if parts else 0)
    for part, outcome in zip(parts, outcomes):
        if isinstance(outcome, GroupSourceError) and errors[part.commit] is None:
            errors[part.commit] = outcome
    return errors


def ids_of(partitions: Iterable[TopicPartition], topic_ids: TopicIds) -> dict[str, UUID] | None:
    """Returns the ids of the topics of `partitions`; None if one of them is unknown."""
    topics = {tp.topic for tp in partitions}
    return {topic: UUID(topic_ids[topic]) for topic in topics} if topics <= topic_ids.keys() else None


def offset_fetch_request(
    group_id: str,
    partitions: Sequence[TopicPartition] | None,
    ids: Mapping[str, UUID],
    *,
    require_stable: bool = True,
) -> OffsetFetchRequest:
    """Returns the request; `partitions` None for all committed offsets of the group."""
    one, many = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None if partitions is None else by_topic(partitions)
    rows = many.OffsetFetchRequestTopics
    # versions up to 7 encode the group, later ones the list of groups
    return OffsetFetchRequest(
        group_id=group_id,
        topics=None if topics is None else [one(name=t, partition_indexes=n) for t, n in topics.items()],
        groups=[
            many(
                group_id=group_id,
                topics=None
                if topics is None
                else [rows(name=t, topic_id=ids.get(t), partition_indexes=n) for t, n in topics.items()],
            )
        ],
        require_stable=require_stable,
    )


def fetched_group(response: OffsetFetchResponse) -> OffsetFetchResponse | OffsetFetchResponse.OffsetFetchResponseGroup:
    """Returns the part of the response about the group; versions up to 7 have one group at the top level."""
    return response.groups[0] if response.groups else response


def set_names(response: OffsetFetchResponse, ids: Mapping[str, UUID]) -> None:
    """Sets the names of the topics in a response that has their ids."""
    names: dict[UUID | None, str] = {topic_id: name for name, topic_id in ids.items()}
    for topic in response.groups[0].topics:
        topic.name = names.get(topic.topic_id, "")


def fetch_error(group_id: str, response: OffsetFetchResponse) -> BrokerError | None:
    """Returns the error of the group, of the topics without permission, or of the first partition with one."""
    group = fetched_group(response)
    if group.error_code:
        return BrokerError(group.error_code, f"OffsetFetch of group '{group_id}'")
    failed = [(topic.name, p) for topic in group.topics for p in topic.partitions if p.error_code]
    forbidden = sorted({name for name, p in failed if p.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    if forbidden:
        hint = f"Grant the user DESCRIBE on {bounded_names(forbidden)}."
        return BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"OffsetFetch of group '{group_id}'", hint)
    for name, p in failed:
        return BrokerError(p.error_code, f"OffsetFetch of {name}-{p.partition_index} of group '{group_id}'")
    return None


def offset_commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    member: CommittingMember,
    ids: Mapping[str, UUID],
) -> OffsetCommitRequest:
    """Returns the request of a member, or of a simple consumer."""
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = []
    for topic, numbers in by_topic(offsets).items():
        partitions = []
        for number in numbers:
            committed = offsets[TopicPartition(topic, number)]
            if committed.offset < 0:
                raise ValueError(f"offset {committed.offset} of {topic}-{number} cannot be committed")
            partitions.append(
                topic_class.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        topics.append(topic_class(name=topic, topic_id=ids.get(topic), partitions=partitions))
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=topics,
    )


def commit_errors(response: OffsetCommitResponse) -> list[int]:
    """Returns the error codes of all partitions, as `Router.call_coordinator_each` needs them."""
    codes = [_commit_code(p.error_code) for topic in response.topics for p in topic.partitions]
    # a coordinator that lost its log fails the append with REQUEST_TIMED_OUT: the client must look it up again
    return [int(ErrorCode.NOT_COORDINATOR) if code == ErrorCode.REQUEST_TIMED_OUT else code for code in codes]


def first_commit_error(response: OffsetCommitResponse, ids: Mapping[str, UUID]) -> tuple[TopicPartition, int] | None:
    """Returns the first partition with an error, and its code."""
    names: dict[UUID | None, str] = {topic_id: name for name, topic_id in ids.items()}
    return next(
        (
            (TopicPartition(topic.name or names.get(topic.topic_id, ""), p.partition_index), _commit_code(p.error_code))
            for topic in response.topics
            for p in topic.partitions
            if p.error_code
        ),
        None,
    )


def _commit_code(code: int) -> int:
    """Returns the code of a partition; from version 9 on, the member of an unknown group is not named as unknown."""
    return int(ErrorCode.UNKNOWN_MEMBER_ID) if code == ErrorCode.GROUP_ID_NOT_FOUND else code
