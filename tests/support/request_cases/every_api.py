"""One request of every API that the broker serves, in each version."""

from __future__ import annotations

import uuid
from typing import Any

from support.partition_logs import batch

from spark_groupsource.wire import messages

TIMES = (-1, -2, -3, -4, -5, -6, 0, 10**15)


def produce(version, topic_id, name):
    topic = messages.ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData(index=1, records=batch(b"v"))
    data = topic(name="t", topic_id=topic_id, partition_data=[part])
    return messages.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=100, topic_data=[data])


def fetch(version, topic_id, name):
    topic = messages.FetchRequest.FetchTopic
    wanted = topic.FetchPartition(
        partition=0, current_leader_epoch=0, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1000,
    )  # fmt: skip
    return messages.FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1000, isolation_level=version % 2, session_id=0,
        session_epoch=-1, topics=[topic(topic="t", topic_id=topic_id, partitions=[wanted])],
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


def list_offsets(version, topic_id, name, time=-1):
    topic = messages.ListOffsetsRequest.ListOffsetsTopic
    wanted = [topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=time)]
    return messages.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic(name="t", partitions=wanted)], timeout_ms=100
    )


def _metadata(version, topic_id, name):
    topic = messages.MetadataRequest.MetadataRequestTopic
    wanted = [topic(name="t"), topic(name="nowhere")]
    if version >= 12:
        wanted += [topic(name=None, topic_id=topic_id), topic(name=None, topic_id=uuid.uuid4())]
    return messages.MetadataRequest(
        topics=wanted, allow_auto_topic_creation=False, include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )  # fmt: skip


def _commit(version, topic_id, name):
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic
    entries = [
        topic.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=2, committed_leader_epoch=0, committed_metadata=None
        )
        for number in (0, 9)
    ]
    return messages.OffsetCommitRequest(
        group_id="simple", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        retention_time_ms=-1, topics=[topic(name="t", topic_id=topic_id, partitions=entries)],
    )  # fmt: skip


def _offset_fetch(version, topic_id, name):
    if version < 8:
        topic = messages.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        return messages.OffsetFetchRequest(group_id="simple", topics=[topic], require_stable=True)
    group = messages.OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0, 1])]
    groups = [
        group(group_id="simple", member_id=None, member_epoch=-1, topics=topics),
        group(group_id="other", member_id=None, member_epoch=-1, topics=None),
    ]
    return messages.OffsetFetchRequest(groups=groups, require_stable=True)


def _join(version, topic_id, name):
    metadata = bytes.fromhex("0000 00000000 ffffffff")
    protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    return messages.JoinGroupRequest(
        group_id=name, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="", group_instance_id=None,
        protocol_type="consumer", protocols=[protocol], reason="test",
    )  # fmt: skip


def _leave(version, topic_id, name):
    member = messages.LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id=None, reason=None)
    return messages.LeaveGroupRequest(group_id=name, member_id="m", members=[member])


def _sync(version, topic_id, name):
    return messages.SyncGroupRequest(
        group_id=name, generation_id=1, member_id="m", group_instance_id=None, protocol_type="consumer",
        protocol_name="range", assignments=[],
    )  # fmt: skip


def _create_topics(version, topic_id, name):
    topic = messages.CreateTopicsRequest.CreatableTopic
    config = topic.CreatableTopicConfig(name="retention.ms", value="1000")
    topics = [
        topic(name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[config]),
        topic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[]),
    ]
    return messages.CreateTopicsRequest(topics=topics, timeout_ms=100, validate_only=False)


def _delete_topics(version, topic_id, name):
    state = messages.DeleteTopicsRequest.DeleteTopicState
    topics = [state(name="nowhere"), state(name=None, topic_id=uuid.uuid4())]
    return messages.DeleteTopicsRequest(topics=topics, topic_names=["nowhere"], timeout_ms=100)


def _delete_records(version, topic_id, name):
    topic = messages.DeleteRecordsRequest.DeleteRecordsTopic
    entries = [topic.DeleteRecordsPartition(partition_index=number, offset=0) for number in (0, 5)]
    return messages.DeleteRecordsRequest(topics=[topic(name="t", partitions=entries)], timeout_ms=100)


def _epoch_ends(version, topic_id, name):
    topic = messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    wanted = [
        topic.OffsetForLeaderPartition(partition=number, current_leader_epoch=-1, leader_epoch=epoch)
        for number, epoch in ((0, 0), (0, 9), (7, 0))
    ]
    return messages.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(topic="t", partitions=wanted)])


def _describe_configs(version, topic_id, name):
    resource = messages.DescribeConfigsRequest.DescribeConfigsResource
    wanted = [(2, "t", None), (2, "nowhere", None), (4, "1", ["num.partitions"]), (8, "1", None)]
    resources = [resource(resource_type=kind, resource_name=of, configuration_keys=keys) for kind, of, keys in wanted]
    return messages.DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)


def _alter_configs(version, topic_id, name):
    resource = messages.AlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name="retention.ms", value="5000")]
    wanted = [(2, "t"), (2, "nowhere"), (4, "1")]
    resources = [resource(resource_type=kind, resource_name=of, configs=configs) for kind, of in wanted]
    return messages.AlterConfigsRequest(resources=resources, validate_only=True)


def _describe_log_dirs(version, topic_id, name):
    topic = messages.DescribeLogDirsRequest.DescribableLogDirTopic
    topics = [topic(topic="t", partitions=[0, 1, 7]), topic(topic="nowhere", partitions=[0])]
    return messages.DescribeLogDirsRequest(topics=topics if version % 2 else None)


def _incremental_alter_configs(version, topic_id, name):
    resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name="retention.ms", config_operation=version, value="5000")]
    wanted = [(2, "t"), (2, "nowhere"), (4, "1")]
    resources = [resource(resource_type=kind, resource_name=of, configs=configs) for kind, of in wanted]
    return messages.IncrementalAlterConfigsRequest(resources=resources, validate_only=True)


def _create_partitions(version, topic_id, name):
    topic = messages.CreatePartitionsRequest.CreatePartitionsTopic
    topics = [topic(name="t", count=5, assignments=None), topic(name="nowhere", count=5, assignments=None)]
    return messages.CreatePartitionsRequest(topics=topics, timeout_ms=100, validate_only=True)


def _offset_delete(version, topic_id, name):
    topic = messages.OffsetDeleteRequest.OffsetDeleteRequestTopic
    entries = [topic.OffsetDeleteRequestPartition(partition_index=number) for number in (0, 9)]
    return messages.OffsetDeleteRequest(group_id="simple", topics=[topic(name="t", partitions=entries)])


def _add_partitions(version, topic_id, name):
    topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name, v3_and_below_producer_id=7, v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic(name="t", partitions=[0, 9])],
    )  # fmt: skip


def _markers(version, topic_id, name):
    marker = messages.WriteTxnMarkersRequest.WritableTxnMarker
    topics = [marker.WritableTxnMarkerTopic(name="t", partition_indexes=[1, 9])]
    markers = [
        marker(producer_id=producer_id, producer_epoch=0, transaction_result=False, topics=topics, coordinator_epoch=0)
        for producer_id in (7, -1)
    ]
    return messages.WriteTxnMarkersRequest(markers=markers)


def _txn_commit(version, topic_id, name):
    topic = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    entries = [
        topic.TxnOffsetCommitRequestPartition(
            partition_index=number, committed_offset=2, committed_leader_epoch=0, committed_metadata=None
        )
        for number in (0, 9)
    ]
    return messages.TxnOffsetCommitRequest(
        transactional_id=name, group_id="simple", producer_id=7, producer_epoch=0, generation_id=-1, member_id="",
        group_instance_id=None, topics=[topic(name="t", partitions=entries)],
    )  # fmt: skip


def _alter_quotas(version, topic_id, name):
    entry = messages.AlterClientQuotasRequest.EntryData
    entity = [entry.EntityData(entity_type="user", entity_name=None)]
    ops = [entry.OpData(key="consumer_byte_rate", value=1.5, remove=version == 0)]
    return messages.AlterClientQuotasRequest(entries=[entry(entity=entity, ops=ops)], validate_only=True)


def _describe_quotas(version, topic_id, name):
    component = messages.DescribeClientQuotasRequest.ComponentData(entity_type="client-id", match_type=2, match=None)
    return messages.DescribeClientQuotasRequest(components=[component], strict=True)


def _alter_users(version, topic_id, name):
    request = messages.AlterUserScramCredentialsRequest
    added = request.ScramCredentialUpsertion(
        name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"x" * 32
    )
    deletions = [request.ScramCredentialDeletion(name="nobody", mechanism=2)]
    return request(deletions=deletions, upsertions=[added])


def _describe_users(version, topic_id, name):
    user = messages.DescribeUserScramCredentialsRequest.UserName
    return messages.DescribeUserScramCredentialsRequest(users=[user(name="nobody"), user(name=name)])


def _acls(version, topic_id, name):
    acl = messages.CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:ann", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    return messages.CreateAclsRequest(creations=[acl])


_WHICH_ACLS: dict[str, Any] = {
    "resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


def _elect(version, topic_id, name):
    topic = messages.ElectLeadersRequest.TopicPartitions
    wanted = [topic(topic="t", partitions=[0, 9]), topic(topic="nowhere", partitions=[0])]
    return messages.ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=100)


def _pages(version, topic_id, name):
    request = messages.DescribeTopicPartitionsRequest
    begin = request.Cursor(topic_name="t", partition_index=0)
    topics = [request.TopicRequest(name="t"), request.TopicRequest(name="nowhere")]
    return request(topics=topics, response_partition_limit=1, cursor=begin)


REQUESTS = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: _metadata,
    8: _commit,
    9: _offset_fetch,
    10: lambda version, topic_id, name: messages.FindCoordinatorRequest(
        key="g", key_type=0, coordinator_keys=["g", "h"]
    ),
    11: _join,
    12: lambda version, topic_id, name: messages.HeartbeatRequest(group_id=name, generation_id=1, member_id="m"),
    13: _leave,
    14: _sync,
    15: lambda version, topic_id, name: messages.DescribeGroupsRequest(
        groups=["simple", "other"], include_authorized_operations=True
    ),
    16: lambda version, topic_id, name: messages.ListGroupsRequest(states_filter=[], types_filter=[]),
    17: lambda version, topic_id, name: messages.SaslHandshakeRequest(mechanism="PLAIN"),
    18: lambda version, topic_id, name: messages.ApiVersionsRequest(
        client_software_name="test", client_software_version="1"
    ),
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    22: lambda version, topic_id, name: messages.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
    ),
    23: _epoch_ends,
    24: _add_partitions,
    25: lambda version, topic_id, name: messages.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=7, producer_epoch=0, group_id="simple"
    ),
    26: lambda version, topic_id, name: messages.EndTxnRequest(
        transactional_id=name, producer_id=7, producer_epoch=0, committed=True
    ),
    27: _markers,
    28: _txn_commit,
    29: lambda version, topic_id, name: messages.DescribeAclsRequest(**_WHICH_ACLS),
    30: _acls,
    31: lambda version, topic_id, name: messages.DeleteAclsRequest(
        filters=[messages.DeleteAclsRequest.DeleteAclsFilter(**_WHICH_ACLS)]
    ),
    32: _describe_configs,
    33: _alter_configs,
    35: _describe_log_dirs,
    36: lambda version, topic_id, name: messages.SaslAuthenticateRequest(auth_bytes=b"x"),
    37: _create_partitions,
    42: lambda version, topic_id, name: messages.DeleteGroupsRequest(groups_names=["nobody", "other"]),
    43: _elect,
    44: _incremental_alter_configs,
    46: lambda version, topic_id, name: messages.ListPartitionReassignmentsRequest(timeout_ms=100, topics=None),
    47: _offset_delete,
    48: _describe_quotas,
    49: _alter_quotas,
    50: _describe_users,
    51: _alter_users,
    60: lambda version, topic_id, name: messages.DescribeClusterRequest(
        include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=False
    ),
    61: lambda version, topic_id, name: messages.DescribeProducersRequest(
        topics=[messages.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 9])]
    ),
    65: lambda version, topic_id, name: messages.DescribeTransactionsRequest(transactional_ids=[name, ""]),
    66: lambda version, topic_id, name: messages.ListTransactionsRequest(
        state_filters=["Ongoing", "Nonsense"], producer_id_filters=[7], duration_filter=1, transactional_id_pattern="a+"
    ),
    68: lambda version, topic_id, name: messages.ConsumerGroupHeartbeatRequest(
        group_id=name, member_id="m", member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"],
        topic_partitions=[],
    ),
    74: lambda version, topic_id, name: messages.ListConfigResourcesRequest(resource_types=[2, 4]),
    75: _pages,
}
