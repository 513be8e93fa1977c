"""FindCoordinator and the group APIs: checked against the topics there are, then given to the shards.

Source: Kafka `KafkaApis` (what is checked before the coordinator sees a request).
"""

from __future__ import annotations

from spark_groupsource.broker.node import LATER, Broker, Call, Unanswered
from spark_groupsource.broker.partitions import Refusal
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    FindCoordinatorResponse,
    Message,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_BATCHED_SINCE = 4


def find_coordinator(broker: Broker, call: Call, request: Message) -> Message:
    """Whoever leads the partition of the log that holds the group or the transactional id; share groups have none."""
    batched = call.api_version >= _BATCHED_SINCE
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
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
        node = (broker.coordinator if key_type == _GROUP_KEY else broker.transactions).node_of(key)
    except Refusal as error:
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=0, error_message=None
    )


def group_request(broker: Broker, call: Call, request: Message) -> Unanswered:
    """A request that needs nothing but the groups."""
    broker.coordinator.handle(call, request)
    return LATER


def offset_commit(broker: Broker, call: Call, request: Message) -> Message | Unanswered:
    """Offsets of partitions that do not exist are refused one by one; the others go to the group."""
    known, unknown = known_topics(broker, request, OffsetCommitRequest.OffsetCommitRequestTopic)
    if not unknown:
        return group_request(broker, call, request)
    refused = refusals(unknown, OffsetCommitResponse.OffsetCommitResponseTopic)
    if not known:
        return OffsetCommitResponse(throttle_time_ms=0, topics=refused)
    checked = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=known,
    )
    broker.coordinator.handle(call, checked, refused)
    return LATER


def offset_delete(broker: Broker, call: Call, request: Message) -> Message | Unanswered:
    """Like a commit: partitions that do not exist are refused one by one."""
    known, unknown = known_topics(broker, request, OffsetDeleteRequest.OffsetDeleteRequestTopic)
    if not unknown:
        return group_request(broker, call, request)
    refused = refusals(unknown, OffsetDeleteResponse.OffsetDeleteResponseTopic)
    if not known:
        return OffsetDeleteResponse(error_code=0, throttle_time_ms=0, topics=refused)
    broker.coordinator.handle(call, OffsetDeleteRequest(group_id=request.group_id, topics=known), refused)
    return LATER


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
