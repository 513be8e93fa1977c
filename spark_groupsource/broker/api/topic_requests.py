"""Handlers of Metadata, DescribeCluster, CreateTopics, DeleteTopics and CreatePartitions.

Source: Kafka `KafkaApis`, `ReplicationControlManager`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Mapping, NamedTuple, Sequence

from spark_groupsource.broker.api.request_limits import check_changes
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ZERO_UUID, ApiRequestContext
from spark_groupsource.broker.storage.catalog import INTERNAL_TOPICS, UNLISTED_TOPICS, TopicEntry
from spark_groupsource.broker.storage.log_manager import TopicPlan
from spark_groupsource.broker.storage.topic_config import TOPIC_FIELDS, TOPIC_SETTINGS
from spark_groupsource.common.config_def import format_value
from spark_groupsource.common.coroutines import pause
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from spark_groupsource.wire.transaction_records import TRANSACTIONS_TOPIC

# codes of org.apache.kafka.common.acl.AclOperation; without an authorizer all operations are allowed
TOPIC_OPERATIONS = frozenset({3, 4, 5, 6, 7, 8, 10, 11})
_CLUSTER_OPERATIONS = frozenset({5, 7, 8, 9, 10, 11, 12})
_BROKERS, _CONTROLLERS = 1, 2
_TOPIC_SOURCE = 1
_MAX_CREATED_BY_METADATA = 1_000

_MetadataTopic = MetadataResponse.MetadataResponseTopic
_MetadataPartition = _MetadataTopic.MetadataResponsePartition
_NewTopic = CreateTopicsRequest.CreatableTopic
_NewPartitions = CreatePartitionsRequest.CreatePartitionsTopic
_CreatedTopic = CreateTopicsResponse.CreatableTopicResult
_DeletedTopic = DeleteTopicsResponse.DeletableTopicResult
_GrownTopic = CreatePartitionsResponse.CreatePartitionsTopicResult


class PartitionFields(NamedTuple):
    """Fields that responses about partitions have in common."""

    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: Sequence[int]
    isr_nodes: Sequence[int]
    offline_replicas: Sequence[int]


# --- metadata ---


async def metadata(broker: Broker, context: ApiRequestContext, request: MetadataRequest) -> MetadataResponse:
    """Returns running nodes and topics with their leaders; may create topics that are requested by name.

    Names beyond the largest number of new topics get UNKNOWN_TOPIC_OR_PARTITION, so clients retry.
    """
    requested = request.topics
    topics: list[_MetadataTopic] = []
    if requested is None or (context.api_version == 0 and not requested):
        for entry in tuple(broker.partitions.topics.values()):
            if entry.name in UNLISTED_TOPICS:
                continue
            try:
                topics.append(await _describe_topic(broker, entry, request))
            except ApiError:
                continue  # deleted since the first step
            await pause()
    else:
        distinct: dict[tuple[str | None, uuid.UUID | None], MetadataRequest.MetadataRequestTopic] = {}
        for topic in requested:
            distinct[topic.name, topic.topic_id] = topic
            await pause()
        errors: dict[str, ErrorCode] = {}
        if context.api_version < 4 or request.allow_auto_topic_creation:
            errors = await _auto_create(broker, [name for name, _ in distinct if name is not None])
        for topic in distinct.values():
            topics.append(await _requested_topic(broker, context, request, topic, errors))
            await pause()
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=None)
            for node in broker.nodes.at(context.listener)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
        authorized_operations=_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else None,
        error_code=0,
    )


async def _requested_topic(
    broker: Broker,
    context: ApiRequestContext,
    request: MetadataRequest,
    requested: MetadataRequest.MetadataRequestTopic,
    errors: Mapping[str, ErrorCode],
) -> _MetadataTopic:
    name, topic_id = requested.name, requested.topic_id or ZERO_UUID
    try:
        if name is None:
            name = broker.partitions.topic_name(topic_id)
        elif name not in broker.partitions.topics:
            broker.partitions.check_name(name)
            raise ApiError(errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return await _describe_topic(broker, broker.partitions.topic(name), request)
    except ApiError as error:
        # null from version 12, empty before
        response_name = name if name is not None or context.api_version >= 12 else ""
        include_operations = request.include_topic_authorized_operations and requested.name is not None
        return _MetadataTopic(
            error_code=error.code,
            name=response_name,
            topic_id=topic_id,
            is_internal=False,
            partitions=[],
            authorized_operations=TOPIC_OPERATIONS if include_operations else None,
        )


async def _auto_create(broker: Broker, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Creates the first unknown topics; returns the errors."""
    if not broker.config.auto_create_topics_enable:
        return {}
    errors: dict[str, ErrorCode] = {}
    new: list[TopicPlan] = []
    for name in names:
        if name not in broker.partitions.topics and len(new) < _MAX_CREATED_BY_METADATA:
            try:
                if name in INTERNAL_TOPICS:
                    await _create_internal(broker, name)
                else:
                    broker.partitions.check_name(name)
                    new.append(TopicPlan(name, broker.config.num_partitions, {}))
            except ApiError as error:
                errors[name] = error.code
        await pause()
    if new:
        created = await broker.create_topics(new)
        errors.update((topic.name, result.code) for topic, result in zip(new, created) if isinstance(result, ApiError))
    return errors


async def _create_internal(broker: Broker, name: str) -> None:
    """Raises: ApiError."""
    if name == OFFSETS_TOPIC:
        await broker.group_coordinator.shards.ensure_topic()
    elif name == TRANSACTIONS_TOPIC:
        await broker.transaction_coordinator.shards.ensure_topic()
    else:
        await broker.group_coordinator.event_log.ensure_topic()


async def _describe_topic(
    broker: Broker, entry: TopicEntry, request: MetadataRequest
) -> _MetadataTopic:
    partitions: list[_MetadataPartition] = []
    for topic_partition in entry.partitions:
        if topic_partition not in broker.partitions:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # deleted since the previous step
        partitions.append(_described_partition(partition_fields(broker, topic_partition)))
        await pause()
    return _MetadataTopic(
        error_code=0,
        name=entry.name,
        topic_id=entry.topic_id,
        is_internal=entry.name in INTERNAL_TOPICS,
        partitions=partitions,
        authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else None,
    )


def _described_partition(fields: PartitionFields) -> _MetadataPartition:
    return _MetadataPartition(
        error_code=fields.error_code,
        partition_index=fields.partition_index,
        leader_id=fields.leader_id,
        leader_epoch=fields.leader_epoch,
        replica_nodes=fields.replica_nodes,
        isr_nodes=fields.isr_nodes,
        offline_replicas=fields.offline_replicas,
    )


def partition_fields(broker: Broker, topic_partition: TopicPartition) -> PartitionFields:
    """Leader, replicas and in-sync replicas of a partition."""
    leaders = broker.leaders
    leader, replicas = leaders.leader(topic_partition), leaders.replicas(topic_partition)
    if broker.partitions.offline_reason(topic_partition):
        return PartitionFields(
            ErrorCode.LEADER_NOT_AVAILABLE, topic_partition.partition, -1, leader.epoch, replicas, [], replicas
        )
    in_sync = [node_id for node_id in replicas if node_id in leaders.running]
    offline = [node_id for node_id in replicas if node_id not in in_sync] if len(in_sync) < len(replicas) else []
    return PartitionFields(
        ErrorCode.NONE, topic_partition.partition, leader.node_id, leader.epoch, replicas, in_sync, offline
    )


def describe_cluster(
    broker: Broker, context: ApiRequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Returns the running nodes."""
    if context.api_version >= 1 and request.endpoint_type != _BROKERS:
        controllers = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if controllers else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="This listener serves brokers only. Use endpoint type 1.",
            endpoint_type=_BROKERS,
            cluster_id=broker.cluster_id,
            controller_id=-1,
            brokers=[],
            authorized_operations=None,
        )
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=None, is_fenced=False
            )
            for node in broker.nodes.at(context.listener)
        ],
        authorized_operations=_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else None,
    )


# --- changes ---


async def create_topics(
    broker: Broker, context: ApiRequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Creates each topic independently of the others, up to the largest number of partitions of one request."""
    counted = configured = 0
    named = Counter(topic.name for topic in request.topics)
    # a duplicate name is an error, with one entry in the response
    distinct = {topic.name: topic for topic in request.topics}
    outcomes: dict[str, TopicEntry | ApiError] = {}
    new: list[TopicPlan] = []
    for topic in distinct.values():
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"The request contains topic {topic.name} more than once.")
            configured += len(topic.configs)
            check_changes(configured, "settings")
            _check_settings(broker, topic)
            count = _partition_count(broker, topic)
            check_changes(counted + count, "partitions")
            settings = {config.name: config.value for config in topic.configs}
            if request.validate_only:
                broker.partitions.check_new_topic(topic.name, count, settings)
                known = {name: value for name, value in settings.items() if value is not None}
                outcomes[topic.name] = TopicEntry(topic.name, uuid.uuid4(), count, known)
            else:
                new.append(TopicPlan(topic.name, count, settings))
            counted += count
        except ApiError as error:
            outcomes[topic.name] = error.without_traceback()
        await pause()
    created = await broker.create_topics(new)
    outcomes.update((topic.name, outcome) for topic, outcome in zip(new, created))
    results = []
    for name in distinct:
        results.append(_created_topic(broker, context, name, outcomes[name]))
        await pause()
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _created_topic(
    broker: Broker, context: ApiRequestContext, name: str, outcome: TopicEntry | ApiError
) -> _CreatedTopic:
    if isinstance(outcome, ApiError):
        return _CreatedTopic(
            name=name,
            topic_id=ZERO_UUID,
            error_code=outcome.code,
            error_message=outcome.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    config = broker.partitions.config_of(outcome)
    return _CreatedTopic(
        name=name,
        topic_id=outcome.topic_id,
        error_code=0,
        error_message=None,
        num_partitions=outcome.partition_count,
        replication_factor=len(broker.leaders.node_ids),
        configs=[
            _CreatedTopic.CreatableTopicConfigs(
                name=setting,
                value=format_value(getattr(config, TOPIC_FIELDS[setting])),
                read_only=False,
                config_source=(
                    _TOPIC_SOURCE
                    if setting in outcome.settings
                    else broker.dynamic.source(key.broker_name, context.node_id)
                ),
                is_sensitive=False,
            )
            for setting, key in TOPIC_SETTINGS.items()
        ],
    )


def _check_settings(broker: Broker, topic: _NewTopic) -> None:
    """Raises: ApiError for an illegal or existing name, then for invalid settings: before partitions, as Kafka does."""
    settings = {config.name: config.value for config in topic.configs}
    known = {name: value for name, value in settings.items() if value is not None}
    broker.partitions.check_new_topic(topic.name, 1, known)
    if len(known) < len(settings):
        names = bounded_names(sorted(settings.keys() - known.keys()))
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {names}")


def _partition_count(broker: Broker, topic: _NewTopic) -> int:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            text = "Assignments exclude a partition count and a replication factor. Set both to -1."
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        numbers = sorted(assignment.partition_index for assignment in topic.assignments)
        if numbers != list(range(len(numbers))):
            text = "Assignments must contain consecutive partitions from 0."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        _check_replicas(broker, topic.assignments)
        return len(numbers)
    brokers = len(broker.leaders.node_ids)
    has_factor = topic.replication_factor == -1 or topic.replication_factor >= 1
    has_count = topic.num_partitions == -1 or topic.num_partitions >= 1
    # an invalid partition count is reported before a factor that is too large
    if not has_factor or (topic.replication_factor > brokers and has_count):
        text = f"Replication factor must be from 1 to {brokers}, the number of brokers, got {topic.replication_factor}."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return broker.config.num_partitions if topic.num_partitions == -1 else topic.num_partitions


async def delete_topics(
    broker: Broker, context: ApiRequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Deletes topics by name, or by id from version 6."""
    requested: list[tuple[str | None, uuid.UUID]]
    if context.api_version >= 6:
        requested = [(topic.name, topic.topic_id or ZERO_UUID) for topic in request.topics]
    else:
        requested = [(name, ZERO_UUID) for name in request.topic_names]
    await pause()
    names = {entry.topic_id: name for name, entry in broker.partitions.topics.items()}
    await pause()
    counts = Counter(names.get(topic_id, topic_id) if name is None else name for name, topic_id in requested)
    results = []
    await pause()
    for name, topic_id in dict.fromkeys(requested):
        code, message = ErrorCode.NONE, None
        try:
            if name is not None and topic_id != ZERO_UUID:
                text = "The request contains both name and id of a topic. Use one of them."
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            if counts[names.get(topic_id, topic_id) if name is None else name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains a topic more than once.")
            if not broker.config.delete_topic_enable:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled (delete.topic.enable=false).")
            if name is None:
                name = broker.partitions.topic_name(topic_id)
            topic_id = broker.partitions.topic(name).topic_id
            await broker.delete_topic(name)
        except ApiError as error:
            code, message = error.code, error.message
        results.append(_DeletedTopic(name=name, topic_id=topic_id, error_code=code, error_message=message))
        await pause()
    return DeleteTopicsResponse(throttle_time_ms=0, responses=results)


async def create_partitions(
    broker: Broker, context: ApiRequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Adds partitions to topics, up to the largest number of one request."""
    results: list[_GrownTopic] = []
    created = 0
    named = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        code, message = ErrorCode.NONE, None
        await pause()
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"The request contains topic {topic.name} more than once.")
            _check_new_count(broker, topic)
            added = topic.count - broker.partitions.topic(topic.name).partition_count
            check_changes(created + added, "partitions")
            created += added
            if not request.validate_only:
                await broker.add_partitions(topic.name, topic.count)
        except ApiError as error:
            code, message = error.code, error.message
        results.append(_GrownTopic(name=topic.name, error_code=code, error_message=message))
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def _check_new_count(broker: Broker, topic: _NewPartitions) -> None:
    entry = broker.partitions.topic(topic.name)
    if topic.name in INTERNAL_TOPICS:
        text = f"The number of partitions of the internal topic {topic.name} is fixed."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, text)
    if topic.count <= entry.partition_count:
        count = entry.partition_count
        text = f"Topic {topic.name} has {count} partitions. The new count must be greater, got {topic.count}."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, text)
    if topic.count > 100_000:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"A topic has at most 100000 partitions, got {topic.count}.")
    if topic.assignments is not None:
        added = topic.count - entry.partition_count
        if len(topic.assignments) != added:
            text = f"Assignments must cover the {added} added partitions, got {len(topic.assignments)}."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        _check_replicas(broker, topic.assignments)


def _check_replicas(
    broker: Broker,
    assignments: Sequence[_NewTopic.CreatableReplicaAssignment | _NewPartitions.CreatePartitionsAssignment],
) -> None:
    known = broker.leaders.node_ids
    for assignment in assignments:
        replicas = assignment.broker_ids
        unknown = [node_id for node_id in replicas if node_id not in known]
        text = ""
        if not replicas:
            text = "The manual partition assignment includes an empty replica list."
        elif unknown:
            text = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
        elif len(set(replicas)) < len(replicas):
            text = "The manual partition assignment includes the same broker more than once."
        if text:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{text} Brokers are {list(known)}.")
