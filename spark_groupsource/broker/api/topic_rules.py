"""Rules of authorization of requests for topics and their partitions."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Callable

from spark_groupsource.broker.acls import CLUSTER_NAME, Operation, ResourceType
from spark_groupsource.broker.api.access import Access, Verdict, appended, replaced
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire import messages as m

_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_NONE = ErrorCode.NONE
# of the last byte of the attributes of a record batch
_ATTRIBUTES_OFFSET, _TRANSACTIONAL_BIT = 22, 0x10


# --- topics with partitions ---


def _identity(topic: Any, field: str = "name") -> dict[str, Any]:
    """Returns name, or name and id, of a topic of a request, as fields of the response."""
    identity: dict[str, Any] = {field: getattr(topic, "name", None) or getattr(topic, "topic", "")}
    topic_id = getattr(topic, "topic_id", None)
    return identity if topic_id is None else {**identity, "topic_id": topic_id}


@dataclass(frozen=True)
class TopicRule:
    """Denied topics of `field` are added to `response_field`, each partition with an error."""

    operation: Operation
    field: str
    response_field: str
    topic: Any
    partition: Any
    partitions: tuple[str, str]  # in the request and in the response
    index: tuple[str | None, str]  # of a partition in the request, None if it is a number
    name: str = "name"

    def __call__(self, access: Access, request: Any) -> Verdict:
        allowed, denied = access.split(self.operation, getattr(request, self.field) or ())
        if not denied:
            return Verdict(request)
        entries = [self.entry(topic) for topic in denied]
        return Verdict(replaced(request, **{self.field: allowed}), None, appended(self.response_field, entries))

    def entry(self, topic: Any) -> Any:
        """Returns a denied topic of the response."""
        given, answered = self.index
        found = [
            self.partition(**{answered: each if given is None else getattr(each, given), "error_code": _TOPIC})
            for each in getattr(topic, self.partitions[0])
        ]
        return self.topic(**_identity(topic, self.name), **{self.partitions[1]: found})


_PRODUCED: Any = m.ProduceResponse.TopicProduceResponse
LISTED: Any = m.ListOffsetsResponse.ListOffsetsTopicResponse
_COMMITTED: Any = m.OffsetCommitResponse.OffsetCommitResponseTopic
_TXN_COMMITTED: Any = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
DELETED_RECORDS: Any = m.DeleteRecordsResponse.DeleteRecordsTopicResult
_DELETED_OFFSETS: Any = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
EPOCHS: Any = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
PRODUCERS: Any = m.DescribeProducersResponse.TopicResponse

_PRODUCE_TOPICS = TopicRule(
    Operation.WRITE, "topic_data", "responses", _PRODUCED, _PRODUCED.PartitionProduceResponse,
    ("partition_data", "partition_responses"), ("index", "index"),
)  # fmt: skip
_COMMIT_TOPICS = TopicRule(
    Operation.READ, "topics", "topics", _COMMITTED, _COMMITTED.OffsetCommitResponsePartition,
    ("partitions", "partitions"), ("partition_index", "partition_index"),
)  # fmt: skip
_TXN_COMMIT_TOPICS = TopicRule(
    Operation.READ, "topics", "topics", _TXN_COMMITTED, _TXN_COMMITTED.TxnOffsetCommitResponsePartition,
    ("partitions", "partitions"), ("partition_index", "partition_index"),
)  # fmt: skip
_DELETE_OFFSETS = TopicRule(
    Operation.READ, "topics", "topics", _DELETED_OFFSETS, _DELETED_OFFSETS.OffsetDeleteResponsePartition,
    ("partitions", "partitions"), ("partition_index", "partition_index"),
)  # fmt: skip


def _has_transactional_records(request: Any) -> bool:
    return any(
        len(data.records or b"") > _ATTRIBUTES_OFFSET and data.records[_ATTRIBUTES_OFFSET] & _TRANSACTIONAL_BIT
        for topic in request.topic_data
        for data in topic.partition_data
    )


def produce(access: Access, request: Any) -> Verdict:
    name = request.transactional_id
    if _has_transactional_records(request) and not (name and access.transactional_id(Operation.WRITE, name)):
        response = m.ProduceResponse(responses=[_PRODUCE_TOPICS.entry(topic) for topic in request.topic_data])
        for topic in response.responses:
            for partition in topic.partition_responses:
                partition.error_code = _TRANSACTIONAL_ID
        return Verdict(response=response)
    return _PRODUCE_TOPICS(access, request)


def offset_commit(access: Access, request: Any) -> Verdict:
    if access.group(Operation.READ, request.group_id):
        return _COMMIT_TOPICS(access, request)
    topics = [_COMMIT_TOPICS.entry(topic) for topic in request.topics]
    return Verdict(response=m.OffsetCommitResponse(topics=_recoded(topics, _GROUP)))


def txn_offset_commit(access: Access, request: Any) -> Verdict:
    code = _NONE
    if not access.transactional_id(Operation.WRITE, request.transactional_id):
        code = _TRANSACTIONAL_ID
    elif not access.group(Operation.READ, request.group_id):
        code = _GROUP
    if not code:
        return _TXN_COMMIT_TOPICS(access, request)
    topics = [_TXN_COMMIT_TOPICS.entry(topic) for topic in request.topics]
    return Verdict(response=m.TxnOffsetCommitResponse(throttle_time_ms=0, topics=_recoded(topics, code)))


def _recoded(topics: list[Any], code: ErrorCode) -> list[Any]:
    for topic in topics:
        for partition in topic.partitions:
            partition.error_code = code
    return topics


def offset_delete(access: Access, request: Any) -> Verdict:
    if not access.group(Operation.DELETE, request.group_id):
        return Verdict(response=m.OffsetDeleteResponse(error_code=_GROUP, throttle_time_ms=0, topics=[]))
    return _DELETE_OFFSETS(access, request)


def offset_fetch(access: Access, request: Any) -> Verdict:
    """Topics of a group without DESCRIBE have an error where the request names them, and are missing otherwise."""
    response_class: Any = m.OffsetFetchResponse
    if not request.groups:
        topic_class = response_class.OffsetFetchResponseTopic
        if not access.group(Operation.DESCRIBE, request.group_id):
            topics = [
                _offsets_entry(topic_class, topic_class.OffsetFetchResponsePartition, topic, _GROUP)
                for topic in request.topics or ()
            ]
            return Verdict(response=response_class(topics=topics, error_code=_GROUP if access.version > 1 else _NONE))
        kept, complete = _readable(access, request.topics, topic_class, topic_class.OffsetFetchResponsePartition)
        return Verdict(replaced(request, topics=kept), None, complete)
    group_class = response_class.OffsetFetchResponseGroup
    topic_class = group_class.OffsetFetchResponseTopics
    groups, denied = [], []
    # of each entry of a group: a request may name a group twice
    completions: defaultdict[str, deque[Callable[[Any], Any]]] = defaultdict(deque)
    for group in request.groups:
        if not access.group(Operation.DESCRIBE, group.group_id):
            denied.append(group_class(group_id=group.group_id, topics=[], error_code=_GROUP))
            continue
        kept, complete = _readable(access, group.topics, topic_class, topic_class.OffsetFetchResponsePartitions)
        groups.append(replaced(group, topics=kept))
        completions[group.group_id].append(complete)

    def complete_all(response: Any) -> Any:
        for group in response.groups:
            completions[group.group_id].popleft()(group)
        response.groups = [*response.groups, *denied]
        return response

    if not groups:
        return Verdict(response=response_class(groups=denied))
    return Verdict(replaced(request, groups=groups), None, complete_all)


def _offsets_entry(topic_class: Any, partition_class: Any, topic: Any, code: ErrorCode) -> Any:
    partitions = [
        partition_class(partition_index=number, committed_offset=-1, metadata="", error_code=code)
        for number in topic.partition_indexes
    ]
    return topic_class(**_identity(topic), partitions=partitions)


def _readable(
    access: Access, topics: Any, topic_class: Any, partition_class: Any
) -> tuple[Any, Callable[[Any], Any]]:
    if topics is None:  # all committed offsets of the group

        def keep_readable(owner: Any) -> Any:
            owner.topics = [topic for topic in owner.topics if access.topic(Operation.DESCRIBE, topic)]
            return owner

        return None, keep_readable
    allowed, denied = access.split(Operation.DESCRIBE, topics)
    entries = [_offsets_entry(topic_class, partition_class, topic, _TOPIC) for topic in denied]
    return allowed, appended("topics", entries) or (lambda owner: owner)


# --- metadata and topics ---


def metadata(access: Access, request: Any) -> Verdict:
    entry: Any = m.MetadataResponse.MetadataResponseTopic
    all_topics = request.topics is None or (access.version == 0 and not request.topics)
    allowed, denied = ([], []) if all_topics else access.split(Operation.DESCRIBE, request.topics)
    if not all_topics and (access.version < 4 or request.allow_auto_topic_creation):
        if access.broker.config.auto_create_topics_enable and not access.cluster(Operation.CREATE):
            known = access.broker.partitions.topics
            described, allowed = allowed, []
            for topic in described:
                exists = not topic.name or topic.name in known
                (allowed if exists or access.topic(Operation.CREATE, topic) else denied).append(topic)
    names = {access.topic_name(topic) for topic in allowed}
    entries = [
        entry(
            error_code=_TOPIC,
            name=topic.name,
            topic_id=getattr(topic, "topic_id", None),
            is_internal=False,
            partitions=[],
        )
        for topic in denied
    ]

    def complete(response: Any) -> Any:
        topics = response.topics
        if all_topics:
            topics = [topic for topic in topics if access.topic(Operation.DESCRIBE, topic)]
        elif denied and not allowed:
            # version 0 returns all topics for an empty list
            topics = [topic for topic in topics if topic.name in names]
        for topic in topics:
            topic.authorized_operations = access.mask(topic.authorized_operations, ResourceType.TOPIC, topic.name or "")
        response.topics = [*topics, *entries]
        response.authorized_operations = access.mask(
            response.authorized_operations, ResourceType.CLUSTER, CLUSTER_NAME
        )
        return response

    return Verdict(request if all_topics else replaced(request, topics=allowed), None, complete)


def describe_cluster(access: Access, request: Any) -> Verdict:
    def complete(response: Any) -> Any:
        operations = response.authorized_operations
        response.authorized_operations = access.mask(operations, ResourceType.CLUSTER, CLUSTER_NAME)
        return response

    return Verdict(request, None, complete)


def describe_topic_partitions(access: Access, request: Any) -> Verdict:
    entry: Any = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    allowed, denied = access.split(Operation.DESCRIBE, request.topics)
    entries = [entry(error_code=_TOPIC, name=topic.name, is_internal=False, partitions=[]) for topic in denied]
    if request.topics and not allowed:
        response: Any = m.DescribeTopicPartitionsResponse
        return Verdict(response=response(topics=entries, next_cursor=None))

    def complete(response: Any) -> Any:
        response.topics = [t for t in response.topics if access.topic(Operation.DESCRIBE, t)] + entries
        return response

    return Verdict(replaced(request, topics=allowed), None, complete)


def create_topics(access: Access, request: Any) -> Verdict:
    entry: Any = m.CreateTopicsResponse.CreatableTopicResult
    if access.cluster(Operation.CREATE):
        return Verdict(request)
    allowed, denied = access.split(Operation.CREATE, request.topics)
    entries = [entry(name=topic.name, error_code=_TOPIC, error_message="Authorization failed.") for topic in denied]
    return Verdict(replaced(request, topics=allowed), None, appended("topics", entries))


def delete_topics(access: Access, request: Any) -> Verdict:
    entry: Any = m.DeleteTopicsResponse.DeletableTopicResult
    if not request.topics:
        names, denied = access.split(Operation.DELETE, request.topic_names)
        entries = [entry(name=name, error_code=_TOPIC) for name in denied]
        return Verdict(replaced(request, topic_names=names), None, appended("responses", entries))
    allowed, denied = access.split(Operation.DELETE, request.topics)
    entries = [entry(name=topic.name, topic_id=topic.topic_id, error_code=_TOPIC) for topic in denied]
    return Verdict(replaced(request, topics=allowed), None, appended("responses", entries))


def create_partitions(access: Access, request: Any) -> Verdict:
    entry: Any = m.CreatePartitionsResponse.CreatePartitionsTopicResult
    allowed, denied = access.split(Operation.ALTER, request.topics)
    entries = [entry(name=topic.name, error_code=_TOPIC, error_message=None) for topic in denied]
    return Verdict(replaced(request, topics=allowed), None, appended("results", entries))
