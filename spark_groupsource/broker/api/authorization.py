"""Authorization of requests: resource and operation of each API, and its error.

What a principal may not access is taken out of a request before its handler runs, and added to the response with an
error, as in Kafka's `KafkaApis`. A request whose whole resource is denied has no handler.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from spark_groupsource.broker.acls import Operation, ResourceType
from spark_groupsource.broker.api import resource_rules as rules
from spark_groupsource.broker.api import topic_rules as topics
from spark_groupsource.broker.api.access import Access, Verdict
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.wire import messages as m
from spark_groupsource.wire.api_keys import ApiKey


def authorize(broker: Broker, context: ApiRequestContext, request: Any) -> Verdict:
    """Returns what is left of a request; the broker has an authorizer."""
    assert broker.authorizer is not None
    rule = RULES.get(ApiKey(context.api_key))
    if rule is None:
        return Verdict(request)
    return rule(Access(broker, broker.authorizer, context), request)


def readable_topics(broker: Broker, context: ApiRequestContext) -> Callable[[str], bool]:
    """Returns the function that decides whether the principal of a Fetch request may read a topic."""
    if broker.authorizer is None:
        return lambda topic: True
    access = Access(broker, broker.authorizer, context)
    return lambda topic: access.can(Operation.READ, ResourceType.TOPIC, topic)


_DESCRIBED_CONFIG: Any = m.DescribeConfigsResponse.DescribeConfigsResult
_ALTERED_CONFIG: Any = m.AlterConfigsResponse.AlterConfigsResourceResponse
_INCREMENTAL: Any = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

RULES: Mapping[ApiKey, Callable[[Access, Any], Verdict]] = {
    ApiKey.PRODUCE: topics.produce,
    ApiKey.LIST_OFFSETS: topics.TopicRule(
        Operation.DESCRIBE, "topics", "topics", topics.LISTED, topics.LISTED.ListOffsetsPartitionResponse,
        ("partitions", "partitions"), ("partition_index", "partition_index"),
    ),
    ApiKey.METADATA: topics.metadata,
    ApiKey.OFFSET_COMMIT: topics.offset_commit,
    ApiKey.OFFSET_FETCH: topics.offset_fetch,
    ApiKey.FIND_COORDINATOR: rules.find_coordinator,
    ApiKey.JOIN_GROUP: rules.one_group(m.JoinGroupResponse),
    ApiKey.HEARTBEAT: rules.one_group(m.HeartbeatResponse),
    ApiKey.LEAVE_GROUP: rules.one_group(m.LeaveGroupResponse),
    ApiKey.SYNC_GROUP: rules.one_group(m.SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: rules.describe_groups,
    ApiKey.LIST_GROUPS: rules.list_groups,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: topics.TopicRule(
        Operation.DELETE, "topics", "topics", topics.DELETED_RECORDS,
        topics.DELETED_RECORDS.DeleteRecordsPartitionResult,
        ("partitions", "partitions"), ("partition_index", "partition_index"),
    ),
    ApiKey.INIT_PRODUCER_ID: rules.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.TopicRule(
        Operation.DESCRIBE, "topics", "topics", topics.EPOCHS, topics.EPOCHS.EpochEndOffset,
        ("partitions", "partitions"), ("partition", "partition"), "topic",
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: rules.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: rules.transaction(m.AddOffsetsToTxnResponse, has_group=True),
    ApiKey.END_TXN: rules.transaction(m.EndTxnResponse),
    ApiKey.WRITE_TXN_MARKERS: rules.cluster(Operation.CLUSTER_ACTION, rules.markers_rejected),
    ApiKey.TXN_OFFSET_COMMIT: topics.txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: rules.cluster(Operation.DESCRIBE, rules.rejected(m.DescribeAclsResponse, resources=[])),
    ApiKey.CREATE_ACLS: rules.cluster(Operation.ALTER, rules.create_acls_rejected),
    ApiKey.DELETE_ACLS: rules.cluster(Operation.ALTER, rules.delete_acls_rejected),
    ApiKey.DESCRIBE_CONFIGS: rules.configs(
        Operation.DESCRIBE_CONFIGS, Operation.DESCRIBE_CONFIGS, "results", _DESCRIBED_CONFIG
    ),
    ApiKey.ALTER_CONFIGS: rules.configs(Operation.ALTER_CONFIGS, Operation.ALTER_CONFIGS, "responses", _ALTERED_CONFIG),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: rules.configs(
        Operation.ALTER_CONFIGS, Operation.ALTER_CONFIGS, "responses", _INCREMENTAL
    ),
    ApiKey.DESCRIBE_LOG_DIRS: rules.cluster(Operation.DESCRIBE, rules.rejected(m.DescribeLogDirsResponse, results=[])),
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: rules.delete_groups,
    ApiKey.ELECT_LEADERS: rules.cluster(
        Operation.ALTER, rules.rejected(m.ElectLeadersResponse, replica_election_results=[])
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: rules.cluster(
        Operation.DESCRIBE, rules.rejected(m.ListPartitionReassignmentsResponse, topics=[])
    ),
    ApiKey.OFFSET_DELETE: topics.offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: rules.cluster(
        Operation.DESCRIBE_CONFIGS, rules.rejected(m.DescribeClientQuotasResponse, entries=None)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: rules.cluster(Operation.ALTER_CONFIGS, rules.alter_quotas_rejected),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: rules.cluster(
        Operation.DESCRIBE, rules.rejected(m.DescribeUserScramCredentialsResponse, results=[])
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: rules.cluster(Operation.ALTER, rules.alter_scram_rejected),
    ApiKey.DESCRIBE_CLUSTER: topics.describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: topics.TopicRule(
        Operation.READ, "topics", "topics", topics.PRODUCERS, topics.PRODUCERS.PartitionResponse,
        ("partition_indexes", "partitions"), (None, "partition_index"),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: rules.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: rules.list_transactions,
    ApiKey.LIST_CONFIG_RESOURCES: rules.cluster(
        Operation.DESCRIBE_CONFIGS, rules.rejected(m.ListConfigResourcesResponse, config_resources=[])
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
}  # fmt: skip
"""API -> rule. Fetch checks each partition when it reads it, because sessions have partitions that no request names.

ApiVersions, the SASL APIs and ConsumerGroupHeartbeat, which is always rejected, need no authorization.
"""
