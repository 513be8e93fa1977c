"""Committed offsets: commit, fetch, delete, expiration.

The functions read the stored offsets and return changes as records. Their cost is in the number of partitions named,
except for expiration, which iterates over all offsets.

Version notes. OffsetCommit: versions 2 to 4 have a retention time; version 1, which is not served, has a timestamp per
partition; version 9 may return GROUP_ID_NOT_FOUND. TxnOffsetCommit: member and generation from version 3. OffsetFetch:
null topics are all topics from version 2; require_stable from version 7, several groups from version 8.

Source: KIP-211, KIP-447, KIP-496; Kafka's OffsetMetadataManager and OffsetExpirationConditionImpl.
"""

from __future__ import annotations

from typing import AbstractSet, Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence, overload

from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_calls import OffsetFetchTopic
from spark_groupsource.broker.group.group_states import DEAD, EMPTY, STABLE, GroupAction, GroupOperation
from spark_groupsource.broker.group.member_sessions import renew_session
from spark_groupsource.broker.group.outcome import OutcomeBuilder, RequestContext, StoreOffsets
from spark_groupsource.broker.group.responses import CommitResults, commit_response, transactional_commit_response
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition, new_tuple
from spark_groupsource.wire.consumer_protocol import PROTOCOL_TYPE
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue
from spark_groupsource.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_GROUP_NOT_FOUND_VERSION = 9
_GROUPS_VERSION = 8
NO_OFFSET = OffsetValue(offset=-1)
_STORE_OFFSETS = StoreOffsets()

_FetchPartition = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics.OffsetFetchResponsePartitions


# --- commit


def commit_offsets(
    builder: OutcomeBuilder, group: ClassicGroup | None, request: OffsetCommitRequest, context: RequestContext
) -> None:
    """Checks the member, then each partition; `group` is None if it does not exist yet."""
    error, renews_session = check_commit(group, request, context.api_version)
    if renews_session and group is not None:
        renew_session(builder, group, request.member_id)
    if error is not ErrorCode.NONE:
        builder.reply(context.token, commit_error_response(request, error))
        return
    expire_timestamp_ms = -1
    if request.retention_time_ms != -1 and 2 <= context.api_version <= 4:
        expire_timestamp_ms = builder.instant.timestamp_ms + request.retention_time_ms
    builder.reply(context.token, commit_response(_store(builder, request, expire_timestamp_ms)))


def commit_transactional_offsets(
    builder: OutcomeBuilder, group: ClassicGroup | None, request: TxnOffsetCommitRequest, context: RequestContext
) -> None:
    """As `commit_offsets`, in a transaction: the offsets are pending until the transaction commits."""
    error = _check_transactional(group, request)
    if error is not ErrorCode.NONE:
        builder.reply(context.token, commit_error_response(request, error))
        return
    builder.producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    builder.reply(context.token, transactional_commit_response(_store(builder, request, -1)))


def _store(
    builder: OutcomeBuilder, request: OffsetCommitRequest | TxnOffsetCommitRequest, expire_timestamp_ms: int
) -> CommitResults:
    """Adds a record for each valid partition; returns the result of every partition."""
    results = []
    offsets: list[tuple[TopicPartition, OffsetValue]] = []
    timestamp_ms, most_bytes = builder.instant.timestamp_ms, builder.config.offset_metadata_max_bytes
    none = ErrorCode.NONE
    for topic in request.topics:
        name = topic.name
        partitions: list[tuple[int, ErrorCode]] = []
        for entry in topic.partitions:
            number, metadata = entry.partition_index, entry.committed_metadata or ""
            if metadata and _metadata_length(metadata) > most_bytes:
                partitions.append((number, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                continue
            fields = (
                entry.committed_offset, entry.committed_leader_epoch, metadata, timestamp_ms, expire_timestamp_ms, None,
            )  # fmt: skip
            # not by their constructors, which take as long as the rest of the loop
            offsets.append((new_tuple(TopicPartition, (name, number)), new_tuple(OffsetValue, fields)))
            partitions.append((number, none))
        results.append((name, partitions))
    if offsets:
        builder.commit(request.group_id, offsets)
        builder.after_append = _STORE_OFFSETS
    return results


def _metadata_length(metadata: str) -> int:
    """Returns the length that offset.metadata.max.bytes limits."""
    # Kafka compares offset.metadata.max.bytes with the length of a Java string
    return len(metadata) if metadata.isascii() else len(metadata.encode("utf-16-le", "surrogatepass")) // 2


class CommitCheck(NamedTuple):
    """The error of a whole commit, and whether it restarts the session timeout of its member."""

    error: ErrorCode
    renews_session: bool = False


_ACCEPTED = CommitCheck(ErrorCode.NONE)


def check_commit(group: ClassicGroup | None, request: OffsetCommitRequest, api_version: int) -> CommitCheck:
    """Decides whether a member, or a client without group membership, may commit. Ignores the partitions.

    The first case that matches decides.
    """
    generation_id = request.generation_id_or_member_epoch
    if group is None:
        if generation_id < 0:
            return _ACCEPTED  # the first offset creates a simple group
        is_not_found = api_version >= _GROUP_NOT_FOUND_VERSION
        return CommitCheck(ErrorCode.GROUP_ID_NOT_FOUND if is_not_found else ErrorCode.ILLEGAL_GENERATION)
    if group.state is DEAD:
        return CommitCheck(group.rule(GroupOperation.COMMIT_MEMBER).error)
    # clients without membership: with `assign`, or administrators
    if generation_id < 0 and group.state is EMPTY:
        return CommitCheck(group.rule(GroupOperation.COMMIT_SIMPLE).error)
    if generation_id < 0 and not request.member_id and request.group_instance_id is None:
        return CommitCheck(group.rule(GroupOperation.COMMIT_SIMPLE).error)
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return CommitCheck(error)
    if generation_id != group.generation_id:
        return CommitCheck(ErrorCode.ILLEGAL_GENERATION)
    rule = group.rule(GroupOperation.COMMIT_MEMBER)
    # rejected while the group waits for the assignment of its leader; else the session of the member is renewed
    return new_tuple(CommitCheck, (rule.error, rule.action is GroupAction.ACCEPT and rule.renews_session))


def _check_transactional(group: ClassicGroup | None, request: TxnOffsetCommitRequest) -> ErrorCode:
    if group is None:
        return ErrorCode.NONE if request.generation_id < 0 else ErrorCode.ILLEGAL_GENERATION
    rule = group.rule(GroupOperation.COMMIT_TRANSACTIONAL)
    # below version 3 a request names no member
    names_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
    is_simple_commit = not names_member or (request.generation_id < 0 and group.state is EMPTY)
    if rule.action is not GroupAction.ACCEPT or is_simple_commit:
        return rule.error
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is ErrorCode.NONE and request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return error


@overload
def commit_error_response(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse: ...


@overload
def commit_error_response(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse: ...


def commit_error_response(
    request: OffsetCommitRequest | TxnOffsetCommitRequest, error: ErrorCode
) -> OffsetCommitResponse | TxnOffsetCommitResponse:
    """Returns the error of a whole request: OffsetCommit and TxnOffsetCommit have an error per partition only."""
    results = [(topic.name, [(entry.partition_index, error) for entry in topic.partitions]) for topic in request.topics]
    if isinstance(request, TxnOffsetCommitRequest):
        return transactional_commit_response(results)
    return commit_response(results)


def failed_commit_response(
    response: OffsetCommitResponse | TxnOffsetCommitResponse, error: ErrorCode
) -> OffsetCommitResponse | TxnOffsetCommitResponse:
    """Returns the response to a commit whose append failed; a partition that already has an error keeps it."""
    results = [
        (
            topic.name,
            [
                (entry.partition_index, ErrorCode(entry.error_code) if entry.error_code else error)
                for entry in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    if isinstance(response, TxnOffsetCommitResponse):
        return transactional_commit_response(results)
    return commit_response(results)


# --- fetch


def fetch_offsets(
    group: ClassicGroup | None,
    group_id: str,
    stored: Mapping[TopicPartition, OffsetValue],
    topics: Sequence[OffsetFetchTopic] | None,
    unstable: Collection[TopicPartition] = (),
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    """Returns one group of an OffsetFetch response, in the form of version 8; null topics are all topics.

    A partition without an offset, and every partition of a Dead or unknown group, has offset -1 and no error. The
    partitions in `unstable` get UNSTABLE_OFFSET_COMMIT.
    """
    if group is not None and group.state is DEAD:
        stored = {}
    if topics is None:
        requested = _by_topic(stored)
    else:
        requested = [(topic.name, list(topic.partition_indexes)) for topic in topics]
    group_class = OffsetFetchResponse.OffsetFetchResponseGroup
    topic_class = group_class.OffsetFetchResponseTopics
    return group_class(
        group_id=group_id,
        topics=[
            topic_class(
                name=name,
                partitions=[
                    _fetched(
                        partition,
                        stored.get(TopicPartition(name, partition), NO_OFFSET),
                        TopicPartition(name, partition) in unstable,
                    )
                    for partition in partitions
                ],
            )
            for name, partitions in requested
        ],
        error_code=ErrorCode.NONE,
    )


def _by_topic(stored: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(stored):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _fetched(partition: int, value: OffsetValue, is_unstable: bool) -> _FetchPartition:
    if is_unstable:
        value = NO_OFFSET
    return _FetchPartition(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
    )


def offset_fetch_response(
    groups: Sequence[OffsetFetchResponse.OffsetFetchResponseGroup], api_version: int
) -> OffsetFetchResponse:
    """Returns the response for these groups; below version 8 there is exactly one."""
    if api_version >= _GROUPS_VERSION:
        return OffsetFetchResponse(throttle_time_ms=0, groups=list(groups))
    (group,) = groups
    topic_class = OffsetFetchResponse.OffsetFetchResponseTopic
    partition_class = topic_class.OffsetFetchResponsePartition
    topics = [
        topic_class(
            name=topic.name,
            partitions=[
                partition_class(
                    partition_index=entry.partition_index,
                    committed_offset=entry.committed_offset,
                    committed_leader_epoch=entry.committed_leader_epoch,
                    metadata=entry.metadata,
                    error_code=entry.error_code,
                )
                for entry in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=group.error_code)


def requested_groups(
    request: OffsetFetchRequest, api_version: int
) -> list[tuple[str, Sequence[OffsetFetchTopic] | None]]:
    """Returns (group id, topics or None for all topics) of an OffsetFetch of any version."""
    if api_version >= _GROUPS_VERSION:
        return [(group.group_id, group.topics) for group in request.groups]
    return [(request.group_id, request.topics)]


def group_fetch_error(
    group_id: str, topics: Sequence[OffsetFetchTopic] | None, error: ErrorCode, api_version: int
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    """Returns one group of an OffsetFetch response, with an error; below version 2 its partitions have the error."""
    group = fetch_offsets(None, group_id, {}, topics if api_version < 2 else [])
    group.error_code = error
    for topic in group.topics:
        for entry in topic.partitions:
            entry.error_code = error
    return group


# --- delete


def delete_offsets(
    builder: OutcomeBuilder,
    group: ClassicGroup | None,
    stored: AbstractSet[TopicPartition],
    request: OffsetDeleteRequest,
    context: RequestContext,
) -> None:
    """Adds tombstones for the committed and pending offsets of topics to which no member subscribes."""
    error = _check_delete(group)
    if error is not ErrorCode.NONE:
        builder.reply(context.token, offset_delete_error_response(error))
        return
    assert group is not None
    topic_class = OffsetDeleteResponse.OffsetDeleteResponseTopic
    topics = []
    for topic in request.topics:
        subscribed = group.subscribes_to(topic.name)
        result = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        indexes = [partition.partition_index for partition in topic.partitions]
        for index in indexes:
            if not subscribed and TopicPartition(topic.name, index) in stored:
                builder.store_offset(OffsetKey(request.group_id, topic.name, index), None)
        partition_class = topic_class.OffsetDeleteResponsePartition
        partitions = [partition_class(partition_index=index, error_code=result) for index in indexes]
        topics.append(topic_class(name=topic.name, partitions=partitions))
    builder.reply(context.token, OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=topics))


def _check_delete(group: ClassicGroup | None) -> ErrorCode:
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    return group.rule(GroupOperation.DELETE_OFFSETS if is_consumer else GroupOperation.DELETE_OFFSETS_OTHER).error


def offset_delete_error_response(error: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error, throttle_time_ms=0, topics=[])


# --- expiration


def expired_offsets(
    group: ClassicGroup, stored: Mapping[TopicPartition, OffsetValue], retention_ms: int, timestamp_ms: int
) -> Iterator[TopicPartition]:
    """Returns the partitions of a group whose offsets have expired.

    An offset with an expiration time expires at that time. Any other offset expires after `retention_ms`:

    - without a protocol type, since its commit;
    - in an Empty group, since the group became Empty (if unknown, since its commit);
    - in a Stable consumer group, since its commit, if no member subscribes to its topic.

    Groups in other states, and Stable groups of other types, keep their offsets.
    """
    since_empty = group.state is EMPTY and group.protocol_type is not None and group.state_timestamp_ms >= 0
    unsubscribed_only = group.state is STABLE
    if group.protocol_type is None:
        unsubscribed_only = False
    elif group.state not in (EMPTY, STABLE):
        return
    elif group.state is STABLE and (group.protocol_type != PROTOCOL_TYPE or group.subscribed_topics is None):
        return
    for topic_partition, value in stored.items():
        if unsubscribed_only and group.subscribes_to(topic_partition.topic):
            continue
        if value.expire_timestamp_ms >= 0:
            is_expired = timestamp_ms >= value.expire_timestamp_ms
        else:
            since = group.state_timestamp_ms if since_empty else value.commit_timestamp_ms
            is_expired = timestamp_ms - since >= retention_ms
        if is_expired:
            yield topic_partition
