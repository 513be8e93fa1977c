"""FindCoordinator and the group APIs: checked against the topics there are, then given to the shards.

Source: Kafka `KafkaApis` (what is checked before the coordinator sees a request).
"""

from __future__ import annotations

from typing import Callable, Iterable

from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, ResponseAction
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    FindCoordinatorResponse,
    Message,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)

_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_BATCHED_SINCE = 4
_TOPIC_ID_VERSION = 10  # of OffsetCommit and OffsetFetch: topics come by their ids (KIP-848)


def find_coordinator(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Whoever leads the partition of the log that holds the group or the transactional id; share groups have none."""
    batched = context.api_version >= _BATCHED_SINCE
    keys = request.coordinator_keys if batched else [request.key]
    answers = [_coordinator(broker, request.key_type, key) for key in keys]
    if batched:
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=answers)
    (answer,) = answers
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=answer.error_code,
        error_message=answer.error_message,
        node_id=answer.node_id,
        host=answer.host,
        port=answer.port,
    )


def _coordinator(broker: Broker, key_type: int, key: str) -> Message:
    try:
        if key_type not in (_GROUP_KEY, _TRANSACTION_KEY):
            text = "this broker coordinates consumer groups and transactions, not shares"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        runtime = broker.group_coordinator if key_type == _GROUP_KEY else broker.transaction_coordinator
        node = runtime.shards.coordinator_node(key)
    except ApiError as error:
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=0, error_message=None
    )


def group_request(broker: Broker, context: ApiRequestContext, request: Message) -> ResponseAction:
    """A request that needs nothing but the groups."""
    broker.group_coordinator.handle(context, request)
    return ResponseAction.DELAYED


def offset_commit(broker: Broker, context: ApiRequestContext, request: Message) -> Message | ResponseAction:
    """Offsets of partitions that do not exist are refused one by one; the others go to the group."""
    by_id = context.api_version >= _TOPIC_ID_VERSION
    nameless = _name_topics(broker, request.topics) if by_id else []
    known, unknown = known_topics(broker, request, OffsetCommitRequest.OffsetCommitRequestTopic)
    if not unknown and not by_id:
        return group_request(broker, context, request)
    refused = refusals(unknown, OffsetCommitResponse.OffsetCommitResponseTopic)
    add_refused = adding(refused)

    def finish(response: Message) -> None:
        add_refused(response)
        if by_id:
            _identify_topics(broker, response)
            response.topics += [_commit_not_identified(topic) for topic in nameless]

    if not known:
        response = OffsetCommitResponse(throttle_time_ms=0, topics=[])
        finish(response)
        return response
    checked = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=known,
    )
    broker.group_coordinator.handle(context, checked, finish)
    return ResponseAction.DELAYED


def offset_fetch(broker: Broker, context: ApiRequestContext, request: Message) -> ResponseAction:
    """What groups have committed, by names or, from version 10 on, by topic ids."""
    if context.api_version < _TOPIC_ID_VERSION:
        return group_request(broker, context, request)
    nameless = {group.group_id: _name_topics(broker, group.topics or ()) for group in request.groups}
    for group in request.groups:
        if group.topics is not None:
            group.topics = [topic for topic in group.topics if topic.name]

    def finish(response: Message) -> None:
        for group in response.groups:
            _identify_topics(broker, group)
            if not group.error_code:
                group.topics += [_fetch_not_identified(topic) for topic in nameless[group.group_id]]

    broker.group_coordinator.handle(context, request, finish)
    return ResponseAction.DELAYED


def offset_delete(broker: Broker, context: ApiRequestContext, request: Message) -> Message | ResponseAction:
    """Like a commit: partitions that do not exist are refused one by one."""
    known, unknown = known_topics(broker, request, OffsetDeleteRequest.OffsetDeleteRequestTopic)
    refused = refusals(unknown, OffsetDeleteResponse.OffsetDeleteResponseTopic)
    checked = OffsetDeleteRequest(group_id=request.group_id, topics=known)
    broker.group_coordinator.handle(context, checked, adding(refused))
    return ResponseAction.DELAYED


def adding(topics: list[Message]) -> Callable[[Message], None]:
    """Adds to an answer what is said of partitions that no shard was asked for; a topic stays one entry."""

    def finish(response: Message) -> None:
        if getattr(response, "error_code", 0):
            return  # the whole request is refused
        refused = {topic.name: topic for topic in topics}
        for topic in response.topics:
            if topic.name in refused:
                topic.partitions = [*refused.pop(topic.name).partitions, *topic.partitions]
        response.topics = [*response.topics, *refused.values()]

    return finish


def _name_topics(broker: Broker, topics: Iterable[Message]) -> list[Message]:
    """Gives each topic the name that its id stands for; returns those whose id stands for none."""
    nameless = []
    for topic in topics:
        try:
            topic.name = broker.partitions.topic_name(topic.topic_id)
        except ApiError:
            topic.name = ""
            nameless.append(topic)
    return nameless


def _identify_topics(broker: Broker, answer: Message) -> None:
    """Gives each topic of an answer its id; one without, deleted since, is left out, for it cannot be told."""
    topics = broker.partitions.topics
    for topic in answer.topics:
        if topic.name in topics:
            topic.topic_id = topics[topic.name].topic_id
    answer.topics = [topic for topic in answer.topics if topic.name in topics]


def _commit_not_identified(topic: Message) -> Message:
    answer_class = OffsetCommitResponse.OffsetCommitResponseTopic
    entries = [
        answer_class.OffsetCommitResponsePartition(
            partition_index=each.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_ID
        )
        for each in topic.partitions
    ]
    return answer_class(topic_id=topic.topic_id, partitions=entries)


def _fetch_not_identified(topic: Message) -> Message:
    answer_class = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    entry_class = answer_class.OffsetFetchResponsePartitions
    entries = [
        entry_class(
            partition_index=number, committed_offset=-1, committed_leader_epoch=-1, metadata="",
            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
        )
        for number in topic.partition_indexes
    ]  # fmt: skip
    return answer_class(topic_id=topic.topic_id, partitions=entries)


def known_topics(broker: Broker, request: Message, topic_class: Message) -> tuple[list[Message], list[Message]]:
    """The request's topics with the partitions that exist, and with those that do not."""
    known, unknown = [], []
    for topic in request.topics:
        there: list[Message] = []
        missing: list[Message] = []
        for partition in topic.partitions:
            found = TopicPartition(topic.name, partition.partition_index) in broker.partitions
            (there if found else missing).append(partition)
        if there:
            known.append(topic_class(name=topic.name, partitions=there))
        if missing:
            unknown.append(topic_class(name=topic.name, partitions=missing))
    return known, unknown


def refusals(topics: list[Message], answer_class: Message) -> list[Message]:
    """Entries of `answer_class` that say of each partition that it does not exist."""
    (entry_class,) = [each for name, each in vars(answer_class).items() if name.endswith("Partition")]
    return [
        answer_class(
            name=topic.name,
            partitions=[
                entry_class(partition_index=p.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for p in topic.partitions
            ],
        )
        for topic in topics
    ]
