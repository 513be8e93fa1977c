"""Admin client: topics, configurations, groups, offsets.

Every function raises NetworkError, and BrokerError for the first topic, group or partition that the broker rejects.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence, TypeVar

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.metadata import TopicInfo
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    NetworkError,
    RemoteProtocolError,
    UnsupportedVersionError,
    as_sentence,
)
from spark_groupsource.model import Node, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from spark_groupsource.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    OffsetDeleteRequest,
    Request,
)

Described = TypeVar("Described", DescribeGroupsResponse, ConsumerGroupDescribeResponse)

_GROUPS_PER_REQUEST = 200


class NewTopic(NamedTuple):
    """A topic to create; -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = {}


class GroupListing(NamedTuple):
    """One group of the cluster; `state` and `group_type` are empty if the broker does not support them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str
    coordinator: Node


class MemberDescription(NamedTuple):
    """One member; `subscription` is None and `assignment` empty if they are not of the consumer protocol.

    Of a group of type ``consumer`` (KIP-848), also the member's epoch, the assignment it is to reach, and whether it
    uses the new protocol, as far as the broker knows; None for other groups.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    subscription: Subscription | None
    assignment: tuple[TopicPartition, ...]
    member_epoch: int | None = None
    target_assignment: tuple[TopicPartition, ...] = ()
    is_upgraded: bool | None = None


class GroupDescription(NamedTuple):
    """One group; `protocol` is the assignor; `state` is ``Dead`` for a group that does not exist.

    The epochs are those of a group of type ``consumer`` (KIP-848), None for other groups.

    Attributes:
        dead_reason: why the broker describes no such group, for example because it is a share group.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]
    coordinator: Node
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None
    dead_reason: str = ""


def create_topics(cluster: ClusterClient, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
    """Creates topics."""
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
    for topic in _call_controller(cluster, request, "topics", "topics"):
        _check(topic.error_code, f"Creating topic '{topic.name}'", topic.error_message)


def delete_topics(cluster: ClusterClient, names: Iterable[str]) -> None:
    """Deletes topics."""
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=cluster.settings.request_timeout_ms)
    for topic in _call_controller(cluster, request, "topic_names", "responses"):
        _check(topic.error_code, f"Deleting topic '{topic.name}'", topic.error_message)


def create_partitions(cluster: ClusterClient, counts: Mapping[str, int]) -> None:
    """Increases the number of partitions of topics to the given totals."""
    row = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[row(name=name, count=count, assignments=None) for name, count in counts.items()],
        timeout_ms=cluster.settings.request_timeout_ms,
        validate_only=False,
    )
    for topic in _call_controller(cluster, request, "topics", "results"):
        _check(topic.error_code, f"Adding partitions to topic '{topic.name}'", topic.error_message)


def delete_records(cluster: ClusterClient, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Deletes the records before the given offset of each partition (-1: all); returns the new log start offsets."""
    cluster.describe_topics({tp.topic for tp in offsets})
    return cluster.delete_records(offsets)


def list_topics(cluster: ClusterClient, *, internal: bool = False) -> dict[str, TopicInfo]:
    """Lists topics by name, sorted; internal topics only with `internal`."""
    topics = cluster.metadata(None, refresh=True).topics
    return {name: topics[name] for name in sorted(topics) if internal or not topics[name].is_internal}


def list_groups(cluster: ClusterClient, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
    """Lists the groups of every broker, sorted by group id.

    Args:
        states, types: lists groups in these states and of these types only; () for all.
    """
    listed: list[GroupListing] = []
    # KIP-518 and KIP-848
    min_version = 5 if types else 4 if states else 0
    for node in cluster.metadata((), refresh=True).nodes.values():
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        retry = cluster.retry()
        while True:
            try:
                response = cluster.call_node(node.node_id, request, min_version=min_version)
                _check(response.error_code, f"Listing groups of broker {node}")
                break
            except NetworkError as error:
                retry.backoff_or_raise(error)
            except BrokerError as error:
                if not error.retriable:
                    raise
                retry.backoff_or_raise(error)
        listed.extend(
            GroupListing(g.group_id, g.protocol_type, g.group_state or "", g.group_type or "", node)
            for g in response.groups
        )
    return sorted(listed)


def describe_groups(cluster: ClusterClient, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
    """Describes groups, many with one request; the state of a group that does not exist is ``Dead``."""
    names = list(dict.fromkeys(group_ids))
    described = _describe(
        cluster, names, lambda g: DescribeGroupsRequest(groups=g, include_authorized_operations=False), _description
    )
    missing = [group_id for group_id in names if described[group_id].state == "Dead"]
    try:
        # DescribeGroups does not find groups of type consumer (KIP-848)
        described |= _describe(
            cluster,
            missing,
            lambda g: ConsumerGroupDescribeRequest(group_ids=g, include_authorized_operations=False),
            _new_protocol_description,
        )
    except UnsupportedVersionError:
        # the broker has no such groups
        pass
    return {group_id: described[group_id] for group_id in names}


def _describe(
    cluster: ClusterClient,
    group_ids: Sequence[str],
    request_of: Callable[[list[str]], Request[Described]],
    description: Callable[[Any, Node], GroupDescription],
) -> dict[str, GroupDescription]:
    """Describes groups with one request for each coordinator; those whose coordinator moves, one by one."""
    found: dict[str, GroupDescription] = {}
    for node, batch in batches_by_coordinator(cluster, group_ids) if len(group_ids) > 1 else ():
        try:
            response = cluster.call_address(cluster.node_address(node), request_of(batch))
        except NetworkError:
            # the groups are described one by one, with retries
            cluster.invalidate_coordinator(batch[0], node)
            continue
        for group in response.groups:
            if group.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                found[group.group_id] = description(group, node)
    for group_id in group_ids:
        if group_id not in found:
            request = request_of([group_id])
            response = cluster.call_coordinator(group_id, request, errors=lambda a: [g.error_code for g in a.groups])
            found[group_id] = description(response.groups[0], cluster.find_coordinator(group_id))
    return found


def batches_by_coordinator(cluster: ClusterClient, group_ids: Sequence[str]) -> Iterator[tuple[Node, list[str]]]:
    """Yields the groups of each coordinator, at most `_GROUPS_PER_REQUEST` at a time."""
    by_node: dict[Node, list[str]] = {}
    for group_id, node in cluster.find_coordinators(group_ids).items():
        by_node.setdefault(node, []).append(group_id)
    for node, names in by_node.items():
        for start in range(0, len(names), _GROUPS_PER_REQUEST):
            yield node, names[start : start + _GROUPS_PER_REQUEST]


def _description(group: DescribeGroupsResponse.DescribedGroup, coordinator: Node) -> GroupDescription:
    # versions 6+ return GROUP_ID_NOT_FOUND for a missing group (KIP-1043)
    if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        _check(group.error_code, f"Describing group '{group.group_id}'", group.error_message)
    return GroupDescription(
        group.group_id,
        group.group_state or "Dead",
        group.protocol_type,
        group.protocol_data,
        tuple(_member(group.protocol_type, m) for m in group.members),
        coordinator,
    )


def _new_protocol_description(
    group: ConsumerGroupDescribeResponse.DescribedGroup, coordinator: Node
) -> GroupDescription:
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        reason = group.error_message or ""
        return GroupDescription(group.group_id, "Dead", "", "", (), coordinator, dead_reason=reason)
    _check(group.error_code, f"Describing group '{group.group_id}'", group.error_message)
    members = tuple(
        MemberDescription(
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            Subscription(tuple(m.subscribed_topic_names)),
            tuple(TopicPartition(t.topic_name, n) for t in m.assignment.topic_partitions for n in t.partitions),
            m.member_epoch,
            tuple(TopicPartition(t.topic_name, n) for t in m.target_assignment.topic_partitions for n in t.partitions),
            None if m.member_type < 0 else m.member_type == 1,
        )
        for m in group.members
    )
    epochs = group.group_epoch, group.assignment_epoch
    return GroupDescription(
        group.group_id, group.group_state, PROTOCOL_TYPE, group.assignor_name, members, coordinator, *epochs
    )


def delete_groups(cluster: ClusterClient, group_ids: Iterable[str]) -> None:
    """Deletes groups with their offsets."""
    for group_id in group_ids:
        request = DeleteGroupsRequest(groups_names=[group_id])
        response = cluster.call_coordinator(group_id, request, errors=lambda a: [r.error_code for r in a.results])
        _check(response.results[0].error_code, f"Deleting group '{group_id}'")


class DeletedOffsets(NamedTuple):
    """Error codes of an OffsetDelete: of the group, then of each partition; 0 for success."""

    group: int
    partitions: Mapping[TopicPartition, int]


def try_delete_offsets(cluster: ClusterClient, group_id: str, partitions: Iterable[TopicPartition]) -> DeletedOffsets:
    """Deletes committed offsets of partitions that no member subscribes to; returns the errors.

    Raises: NetworkError; BrokerError if the coordinator is not available.
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
    response = cluster.call_coordinator(group_id, request)
    codes = {TopicPartition(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
    return DeletedOffsets(response.error_code, codes)


def delete_offsets(cluster: ClusterClient, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    """As `try_delete_offsets`, but raises BrokerError for the first error."""
    deleted = try_delete_offsets(cluster, group_id, partitions)
    _check(deleted.group, f"Deleting offsets of group '{group_id}'")
    for tp, code in deleted.partitions.items():
        _check(code, f"Deleting the offset of {tp} of group '{group_id}'")


def _member(
    protocol_type: str, member: DescribeGroupsResponse.DescribedGroup.DescribedGroupMember
) -> MemberDescription:
    subscription: Subscription | None = None
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            subscription = decode_subscription(member.member_metadata) if member.member_metadata else None
            assignment = decode_assignment(member.member_assignment).partitions if member.member_assignment else ()
        except RemoteProtocolError:
            # protocol type consumer does not guarantee the consumer protocol; the rest is still valid
            subscription, assignment = None, ()
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, subscription, assignment
    )


def _call_controller(cluster: ClusterClient, request: Any, topics_field: str, results_field: str) -> list[Any]:
    """Sends a request to the controller; returns the results of its topics.

    Retries while the controller moves, and topics that exceed the quota of controller mutations (KIP-599).

    Args:
        topics_field: the field of the request that has the topics or their names.
        results_field: the field of the response that has the results.
    """
    retry = cluster.retry()
    found: list[Any] = []
    while True:
        results = getattr(cluster.call_controller(request, retry.remaining_ms), results_field)
        code = ErrorCode.NOT_CONTROLLER
        if all(each.error_code != code for each in results):
            code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            found += [each for each in results if each.error_code != code]
            throttled = {each.name for each in results if each.error_code == code}
            if not throttled:
                return found
            request = copy(request)
            topics = getattr(request, topics_field)
            setattr(request, topics_field, [t for t in topics if getattr(t, "name", t) in throttled])
        retry.backoff_or_raise(BrokerError(code, "Request to the controller"))


def _check(code: int, operation: str, message: str | None = None) -> None:
    if code:
        raise BrokerError(code, operation, as_sentence(message))
