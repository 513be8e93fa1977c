"""Rules of authorization of requests for groups, transactions, settings and the cluster."""

from __future__ import annotations

from typing import Any, Callable

from spark_groupsource.broker.acls import Operation, ResourceType
from spark_groupsource.broker.api.access import Access, Verdict, appended, replaced
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire import messages as m

_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_TOPIC_RESOURCE, _BROKER_RESOURCES = 2, (4, 8)
_GROUP_KEY = 0


_NONE = ErrorCode.NONE


# --- settings ---


def configs(topic: Operation, cluster: Operation, field: str, entry: Any) -> Callable[[Access, Any], Verdict]:
    def rule(access: Access, request: Any) -> Verdict:
        allowed, entries = [], []
        for resource in request.resources:
            code = _NONE
            if resource.resource_type == _TOPIC_RESOURCE and not access.topic(topic, resource.resource_name):
                code = _TOPIC
            elif resource.resource_type in _BROKER_RESOURCES and not access.cluster(cluster):
                code = _CLUSTER
            if not code:
                allowed.append(resource)
                continue
            kind, name = resource.resource_type, resource.resource_name
            entries.append(entry(error_code=code, error_message=None, resource_type=kind, resource_name=name))
        return Verdict(replaced(request, resources=allowed), None, appended(field, entries))

    return rule


# --- groups ---


def one_group(response_class: Any) -> Callable[[Access, Any], Verdict]:
    def rule(access: Access, request: Any) -> Verdict:
        if access.group(Operation.READ, request.group_id):
            return Verdict(request)
        return Verdict(response=response_class(error_code=_GROUP))

    return rule


def describe_groups(access: Access, request: Any) -> Verdict:
    entry: Any = m.DescribeGroupsResponse.DescribedGroup
    allowed, denied = access.split_names(Operation.DESCRIBE, ResourceType.GROUP, request.groups)
    entries = [entry(error_code=_GROUP, group_id=name) for name in denied]

    def complete(response: Any) -> Any:
        for group in response.groups:
            operations = group.authorized_operations
            group.authorized_operations = access.mask(operations, ResourceType.GROUP, group.group_id)
        response.groups = [*response.groups, *entries]
        return response

    if not allowed:
        response: Any = m.DescribeGroupsResponse
        return Verdict(response=response(groups=entries))
    return Verdict(replaced(request, groups=allowed), None, complete)


def list_groups(access: Access, request: Any) -> Verdict:
    if access.cluster(Operation.DESCRIBE):
        return Verdict(request)

    def complete(response: Any) -> Any:
        response.groups = [each for each in response.groups if access.group(Operation.DESCRIBE, each.group_id)]
        return response

    return Verdict(request, None, complete)


def delete_groups(access: Access, request: Any) -> Verdict:
    entry: Any = m.DeleteGroupsResponse.DeletableGroupResult
    allowed, denied = access.split_names(Operation.DELETE, ResourceType.GROUP, request.groups_names)
    entries = [entry(group_id=name, error_code=_GROUP) for name in denied]
    if not allowed:
        return Verdict(response=m.DeleteGroupsResponse(throttle_time_ms=0, results=entries))
    return Verdict(replaced(request, groups_names=allowed), None, appended("results", entries))


def find_coordinator(access: Access, request: Any) -> Verdict:
    response: Any = m.FindCoordinatorResponse
    kind, code = ResourceType.TRANSACTIONAL_ID, _TRANSACTIONAL_ID
    if request.key_type == _GROUP_KEY:
        kind, code = ResourceType.GROUP, _GROUP
    if access.version < 4:
        if access.can(Operation.DESCRIBE, kind, request.key):
            return Verdict(request)
        return Verdict(response=response(error_code=code, node_id=-1, host="", port=-1))
    allowed, denied = access.split_names(Operation.DESCRIBE, kind, request.coordinator_keys)
    entries = [response.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code) for key in denied]
    return Verdict(replaced(request, coordinator_keys=allowed), None, appended("coordinators", entries))


# --- transactions ---


def init_producer_id(access: Access, request: Any) -> Verdict:
    response: Any = m.InitProducerIdResponse
    if request.transactional_id:
        if access.transactional_id(Operation.WRITE, request.transactional_id):
            return Verdict(request)
        return Verdict(response=response(error_code=_TRANSACTIONAL_ID))
    if access.cluster(Operation.IDEMPOTENT_WRITE) or access.can_any(Operation.WRITE, ResourceType.TOPIC):
        return Verdict(request)
    return Verdict(response=response(error_code=_CLUSTER))


def transaction(response_class: Any, has_group: bool = False) -> Callable[[Access, Any], Verdict]:
    def rule(access: Access, request: Any) -> Verdict:
        if not access.transactional_id(Operation.WRITE, request.transactional_id):
            return Verdict(response=response_class(error_code=_TRANSACTIONAL_ID))
        if has_group and not access.group(Operation.READ, request.group_id):
            return Verdict(response=response_class(error_code=_GROUP))
        return Verdict(request)

    return rule


def add_partitions(access: Access, request: Any) -> Verdict:
    """As in Kafka, nothing is added if one topic is denied: the other partitions have OPERATION_NOT_ATTEMPTED."""
    entry: Any = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    topics = request.v3_and_below_topics
    may_write = access.transactional_id(Operation.WRITE, request.v3_and_below_transactional_id)
    _, denied = access.split(Operation.WRITE, topics)
    if may_write and not denied:
        return Verdict(request)
    denied_names = {topic.name for topic in denied}
    results = []
    for topic in topics:
        code = _TOPIC if topic.name in denied_names else ErrorCode.OPERATION_NOT_ATTEMPTED
        code = code if may_write else _TRANSACTIONAL_ID
        partitions = [
            entry.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
            for number in topic.partitions
        ]
        results.append(entry(name=topic.name, results_by_partition=partitions))
    response: Any = m.AddPartitionsToTxnResponse
    return Verdict(response=response(results_by_topic_v3_and_below=results))


def describe_transactions(access: Access, request: Any) -> Verdict:
    entry: Any = m.DescribeTransactionsResponse.TransactionState
    names = request.transactional_ids
    allowed, denied = access.split_names(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, names)
    entries = [entry(error_code=_TRANSACTIONAL_ID, transactional_id=name) for name in denied]

    def complete(response: Any) -> Any:
        for state in response.transaction_states:
            state.topics = [topic for topic in state.topics if access.topic(Operation.DESCRIBE, topic)]
        response.transaction_states = [*response.transaction_states, *entries]
        return response

    return Verdict(replaced(request, transactional_ids=allowed), None, complete)


def list_transactions(access: Access, request: Any) -> Verdict:
    def complete(response: Any) -> Any:
        response.transaction_states = [
            each
            for each in response.transaction_states
            if access.transactional_id(Operation.DESCRIBE, each.transactional_id)
        ]
        return response

    return Verdict(request, None, complete)


# --- the cluster ---


def cluster(operation: Operation, rejected: Callable[[Any], Any]) -> Callable[[Access, Any], Verdict]:
    def rule(access: Access, request: Any) -> Verdict:
        return Verdict(request) if access.cluster(operation) else Verdict(response=rejected(request))

    return rule


def create_acls_rejected(request: Any) -> Any:
    rejected = m.CreateAclsResponse.AclCreationResult(error_code=_CLUSTER, error_message=None)
    return m.CreateAclsResponse(throttle_time_ms=0, results=[rejected] * len(request.creations))


def delete_acls_rejected(request: Any) -> Any:
    result: Any = m.DeleteAclsResponse.DeleteAclsFilterResult
    rejected = result(error_code=_CLUSTER, error_message=None, matching_acls=[])
    return m.DeleteAclsResponse(throttle_time_ms=0, filter_results=[rejected] * len(request.filters))


def alter_scram_rejected(request: Any) -> Any:
    result: Any = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    names = dict.fromkeys([each.name for each in (*request.deletions, *request.upsertions)])
    results = [result(user=name, error_code=_CLUSTER, error_message=None) for name in names]
    return m.AlterUserScramCredentialsResponse(throttle_time_ms=0, results=results)


def alter_quotas_rejected(request: Any) -> Any:
    entry: Any = m.AlterClientQuotasResponse.EntryData
    entries = [
        entry(
            error_code=_CLUSTER,
            error_message=None,
            entity=[
                entry.EntityData(entity_type=e.entity_type, entity_name=e.entity_name) for e in each.entity
            ],
        )
        for each in request.entries
    ]
    return m.AlterClientQuotasResponse(throttle_time_ms=0, entries=entries)


def markers_rejected(request: Any) -> Any:
    marker: Any = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic: Any = marker.WritableTxnMarkerTopicResult
    partition: Any = topic.WritableTxnMarkerPartitionResult
    markers = [
        marker(
            producer_id=each.producer_id,
            topics=[
                topic(
                    name=named.name,
                    partitions=[
                        partition(partition_index=number, error_code=_CLUSTER) for number in named.partition_indexes
                    ],
                )
                for named in each.topics
            ],
        )
        for each in request.markers
    ]
    return m.WriteTxnMarkersResponse(markers=markers)


def rejected(response_class: Any, **fields: Any) -> Callable[[Any], Any]:
    return lambda request: response_class(error_code=_CLUSTER, **fields)
