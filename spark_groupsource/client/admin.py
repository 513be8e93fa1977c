"""Changing and listing topics and groups, for the command line and for tests.

Every function takes the `Cluster` first, raises BrokerError naming the topic or group and the broker's own words, and
changes nothing it was not asked to change.
"""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.cluster.metadata import TopicInfo
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError, RemoteProtocolError
from spark_groupsource.model import Node, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from spark_groupsource.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    Message,
    OffsetDeleteRequest,
)

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


class NewTopic(NamedTuple):
    """A topic to create; -1 leaves partitions or replication to the broker's defaults."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = {}


class GroupListing(NamedTuple):
    """One group of the cluster; `state` and `group_type` are empty at brokers too old to tell."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str
    coordinator: Node


class MemberDescription(NamedTuple):
    """One member; `subscription` is None and `assignment` empty where their bytes are no consumer's."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    subscription: Subscription | None
    assignment: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    """One group; `state` is ``Dead`` for one that does not exist. `protocol` is the chosen assignor."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]
    coordinator: Node


class ConfigEntry(NamedTuple):
    """One setting of a topic or broker; `value` is None where the broker hides it."""

    name: str
    value: str | None
    is_default: bool
    is_sensitive: bool


def create_topics(cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
    """Creates topics.

    Raises: BrokerError (TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, …) for the first that was refused.
    """
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            creatable(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=[],
                configs=[creatable.CreatableTopicConfig(name=k, value=v) for k, v in topic.config.items()],
            )
            for topic in topics
        ],
        timeout_ms=cluster.settings.request_timeout_ms,
        validate_only=validate_only,
    )
    answer = _call_controller(cluster, request, lambda a: [t.error_code for t in a.topics])
    for topic in answer.topics:
        _check(topic.error_code, f"create topic {topic.name}", topic.error_message)


def delete_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Deletes topics with all their records.

    Raises: BrokerError (UNKNOWN_TOPIC_OR_PARTITION, …) for the first that was refused.
    """
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=cluster.settings.request_timeout_ms)
    answer = _call_controller(cluster, request, lambda a: [t.error_code for t in a.responses])
    for topic in answer.responses:
        _check(topic.error_code, f"delete topic {topic.name}", topic.error_message)


def create_partitions(cluster: Cluster, counts: Mapping[str, int]) -> None:
    """Raises the number of partitions of topics to the given totals."""
    row = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[row(name=name, count=count, assignments=None) for name, count in counts.items()],
        timeout_ms=cluster.settings.request_timeout_ms,
        validate_only=False,
    )
    answer = _call_controller(cluster, request, lambda a: [t.error_code for t in a.results])
    for topic in answer.results:
        _check(topic.error_code, f"add partitions to topic {topic.name}", topic.error_message)


def delete_records(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Deletes every record before the given offset of each partition (-1: all); the new log starts."""
    view = cluster.metadata({tp.topic for tp in offsets}, refresh=True)
    starts: dict[TopicPartition, int] = {}
    row = DeleteRecordsRequest.DeleteRecordsTopic
    for tp, offset in offsets.items():
        request = DeleteRecordsRequest(
            topics=[
                row(
                    name=tp.topic,
                    partitions=[row.DeleteRecordsPartition(partition_index=tp.partition, offset=offset)],
                )
            ],
            timeout_ms=cluster.settings.request_timeout_ms,
        )
        answer = cluster.call_node(view.leader(tp).node_id, request)
        for p in (p for topic in answer.topics for p in topic.partitions):
            _check(p.error_code, f"delete records of {tp} before {offset}")
            starts[tp] = p.low_watermark
    return starts


def list_topics(cluster: Cluster, *, internal: bool = False) -> dict[str, TopicInfo]:
    """Every topic by name, sorted; those of Kafka itself only with `internal`."""
    topics = cluster.metadata(None, refresh=True).topics
    return {name: topics[name] for name in sorted(topics) if internal or not topics[name].is_internal}


def describe_config(cluster: Cluster, resource_type: int, name: str) -> dict[str, ConfigEntry]:
    """The settings of a topic (`TOPIC_RESOURCE`) or of a broker (`BROKER_RESOURCE`, its id as text)."""
    row = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[row(resource_type=resource_type, resource_name=name, configuration_keys=None)]
    )
    # a broker's own settings are known to that broker only
    if resource_type == BROKER_RESOURCE:
        answer = cluster.call_node(int(name), request)
    else:
        answer = cluster.call_any(request)
    result = answer.results[0]
    _check(result.error_code, f"settings of {name}", result.error_message)
    return {
        c.name: ConfigEntry(c.name, c.value, c.is_default or c.config_source == 5, c.is_sensitive)
        for c in sorted(result.configs, key=lambda c: str(c.name))
    }


def list_groups(cluster: Cluster, states: Sequence[str] = ()) -> list[GroupListing]:
    """Every group of the cluster, asked from every broker, sorted by group id.

    Args:
        states: only groups in these states; () for all.
    """
    listed: list[GroupListing] = []
    floor = 4 if states else 0
    for node in cluster.metadata((), refresh=True).nodes.values():
        request = ListGroupsRequest(states_filter=list(states), types_filter=[])
        retry = cluster.retry()
        while True:
            try:
                answer = cluster.call_node(node.node_id, request, floor=floor)
                _check(answer.error_code, f"list groups of broker {node}")
                break
            except NetworkError as error:
                retry.again(error)
            except BrokerError as error:
                if not error.retriable:
                    raise
                retry.again(error)
        listed.extend(
            GroupListing(g.group_id, g.protocol_type, g.group_state or "", g.group_type or "", node)
            for g in answer.groups
        )
    return sorted(listed)


def describe_groups(cluster: Cluster, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
    """State, assignor and members of groups; a group that does not exist is described as ``Dead``."""
    described: dict[str, GroupDescription] = {}
    for group_id in group_ids:
        request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
        answer = cluster.call_coordinator(group_id, request, errors=lambda a: [g.error_code for g in a.groups])
        group = answer.groups[0]
        # since version 6 a missing group is an error of its own (KIP-1043)
        if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            _check(group.error_code, f"describe group {group_id}", group.error_message)
        described[group_id] = GroupDescription(
            group_id,
            group.group_state or "Dead",
            group.protocol_type,
            group.protocol_data,
            tuple(_member(group.protocol_type, m) for m in group.members),
            cluster.find_coordinator(group_id),
        )
    return described


def delete_groups(cluster: Cluster, group_ids: Iterable[str]) -> None:
    """Deletes groups and their offsets.

    Raises: BrokerError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …) for the first that was refused.
    """
    for group_id in group_ids:
        request = DeleteGroupsRequest(groups_names=[group_id])
        answer = cluster.call_coordinator(group_id, request, errors=lambda a: [r.error_code for r in a.results])
        _check(answer.results[0].error_code, f"delete group {group_id}")


def delete_offsets(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    """Deletes committed offsets of partitions that no member subscribes to.

    Raises: BrokerError (GROUP_SUBSCRIBED_TO_TOPIC, NON_EMPTY_GROUP, …) for the first that was refused.
    """
    row = OffsetDeleteRequest.OffsetDeleteRequestTopic
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            row(name=topic, partitions=[row.OffsetDeleteRequestPartition(partition_index=n) for n in numbers])
            for topic, numbers in by_topic.items()
        ],
    )
    answer = cluster.call_coordinator(group_id, request)
    _check(answer.error_code, f"delete offsets of group {group_id}")
    for result in answer.topics:
        for p in result.partitions:
            _check(p.error_code, f"delete offset of {result.name}-{p.partition_index}, group {group_id}")


def remove_members(
    cluster: Cluster,
    group_id: str,
    member_ids: Sequence[str] = (),
    *,
    group_instance_ids: Sequence[str] = (),
    reason: str = "removed by an operator",
) -> None:
    """Takes members out of a group: dynamic ones by member id, static ones by instance id.

    Raises: BrokerError (UNKNOWN_MEMBER_ID, …) for the first that was refused.
    """
    row = LeaveGroupRequest.MemberIdentity
    text = reason[:255]
    request = LeaveGroupRequest(
        group_id=group_id,
        members=[row(member_id=m, group_instance_id=None, reason=text) for m in member_ids]
        + [row(member_id="", group_instance_id=i, reason=text) for i in group_instance_ids],
    )
    answer = cluster.call_coordinator(group_id, request, floor=3)
    _check(answer.error_code, f"remove members of group {group_id}")
    for member in answer.members:
        _check(member.error_code, f"remove {member.member_id or member.group_instance_id} from group {group_id}")


def _member(protocol_type: str, member: Message) -> MemberDescription:
    subscription: Subscription | None = None
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            subscription = decode_subscription(member.member_metadata) if member.member_metadata else None
            assignment = decode_assignment(member.member_assignment).partitions if member.member_assignment else ()
        except RemoteProtocolError:
            # a group of another kind may call itself a consumer group; what it does show is worth showing
            subscription, assignment = None, ()
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, subscription, assignment
    )


def _call_controller(
    cluster: Cluster, request: Message, errors: Callable[[Message], Sequence[int]]
) -> Message:
    """Asks the controller, again where it has just changed."""
    retry = cluster.retry()
    while True:
        answer = cluster.call_controller(request, retry.remaining_ms)
        codes = errors(answer)
        if ErrorCode.NOT_CONTROLLER not in codes:
            return answer
        retry.again(BrokerError(ErrorCode.NOT_CONTROLLER, "the cluster's controller"))


def _check(code: int, context: str, message: str | None = None) -> None:
    if code:
        raise BrokerError(code, f"{context} ({message})" if message else context)
