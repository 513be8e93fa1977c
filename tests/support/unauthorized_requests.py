"""One request of each API that needs authorization, and its errors."""

from __future__ import annotations

from typing import Any, Iterator

from support.commit_requests import commit_topics
from support.message_fields import fields_of
from support.raw_broker import RawConnection

from spark_groupsource.wire import messages as m
from spark_groupsource.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TRANSACTION_DENIED = 29, 30, 31, 53
Cases = list[tuple[str, Any, int, set[int]]]


def cases(topic: str, group: str) -> Cases:
    """Returns (name, request, version, error codes of the response)."""
    requests: list[tuple[Any, int, set[int]]] = [
        *_of_topics(topic),
        *_of_groups(topic, group),
        *_of_transactions(topic, group),
        *_of_the_cluster(topic),
    ]
    return [(type(request).__name__, request, version, codes) for request, version, codes in requests]


def _of_topics(topic: str) -> Iterator[tuple[Any, int, set[int]]]:
    listed: Any = m.ListOffsetsRequest.ListOffsetsTopic
    partition = listed.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    yield (
        m.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[listed(name=topic, partitions=[partition])]),
        7,
        {TOPIC_DENIED},
    )
    fetched: Any = m.FetchRequest.FetchTopic
    partition = fetched.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    yield (
        m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[fetched(topic=topic, partitions=[partition])]),
        11,
        {0, TOPIC_DENIED},
    )
    named: Any = m.MetadataRequest.MetadataRequestTopic
    for name in (topic, f"{topic}-new"):
        yield m.MetadataRequest(topics=[named(name=name)], allow_auto_topic_creation=True), 9, {TOPIC_DENIED}
    yield m.MetadataRequest(topics=None), 9, set()
    produced: Any = m.ProduceRequest.TopicProduceData
    data = produced(name=topic, partition_data=[produced.PartitionProduceData(index=0, records=b"")])
    yield m.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data]), 9, {TOPIC_DENIED}
    created: Any = m.CreateTopicsRequest.CreatableTopic
    new = created(name=f"{topic}-new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    yield m.CreateTopicsRequest(topics=[new], timeout_ms=1000, validate_only=False), 4, {TOPIC_DENIED}
    yield m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 4, {TOPIC_DENIED}
    grown: Any = m.CreatePartitionsRequest.CreatePartitionsTopic
    more = grown(name=topic, count=9, assignments=None)
    yield m.CreatePartitionsRequest(topics=[more], timeout_ms=1, validate_only=True), 2, {TOPIC_DENIED}
    deleted: Any = m.DeleteRecordsRequest.DeleteRecordsTopic
    records = deleted(name=topic, partitions=[deleted.DeleteRecordsPartition(partition_index=0, offset=0)])
    yield m.DeleteRecordsRequest(topics=[records], timeout_ms=1000), 1, {TOPIC_DENIED}
    epochs: Any = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    yield (
        m.OffsetForLeaderEpochRequest(replica_id=-2, topics=[epochs(topic=topic, partitions=[partition])]),
        3,
        {TOPIC_DENIED},
    )
    producers: Any = m.DescribeProducersRequest.TopicRequest
    yield m.DescribeProducersRequest(topics=[producers(name=topic, partition_indexes=[0])]), 0, {TOPIC_DENIED}
    described: Any = m.DescribeTopicPartitionsRequest
    yield (
        described(topics=[described.TopicRequest(name=topic)], response_partition_limit=10, cursor=None),
        0,
        {TOPIC_DENIED},
    )


def _of_groups(topic: str, group: str) -> Iterator[tuple[Any, int, set[int]]]:
    yield m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4, {GROUP_DENIED}
    yield m.FindCoordinatorRequest(key=group, key_type=0), 3, {GROUP_DENIED}
    joined: Any = m.JoinGroupRequest
    protocol = joined.JoinGroupRequestProtocol(name="range", metadata=b"")
    yield (
        joined(
            group_id=group, session_timeout_ms=6000, rebalance_timeout_ms=6000, member_id="",
            group_instance_id=None, protocol_type="consumer", protocols=[protocol],
        ),
        5,
        {GROUP_DENIED},
    )  # fmt: skip
    member = {"group_id": group, "generation_id": 1, "member_id": "m"}
    yield m.SyncGroupRequest(**member, group_instance_id=None, assignments=[]), 3, {GROUP_DENIED}  # type: ignore[arg-type]
    yield m.HeartbeatRequest(**member, group_instance_id=None), 3, {GROUP_DENIED}  # type: ignore[arg-type]
    left: Any = m.LeaveGroupRequest
    yield left(group_id=group, members=[left.MemberIdentity(member_id="m", group_instance_id=None)]), 4, {GROUP_DENIED}
    yield m.DescribeGroupsRequest(groups=[group], include_authorized_operations=True), 4, {GROUP_DENIED}
    yield m.DeleteGroupsRequest(groups_names=[group]), 1, {GROUP_DENIED}
    yield m.ListGroupsRequest(), 3, {0}
    committed = commit_topics(m.OffsetCommitRequest, {topic: {0: 1}})
    yield m.OffsetCommitRequest(group_id=group, topics=committed), 8, {GROUP_DENIED}
    fetched: Any = m.OffsetFetchRequest
    old = fetched.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    yield fetched(group_id=group, topics=[old]), 5, {GROUP_DENIED}
    asked: Any = fetched.OffsetFetchRequestGroup
    yield fetched(groups=[asked(group_id=group, topics=None)]), 8, {GROUP_DENIED}
    removed: Any = m.OffsetDeleteRequest
    offsets = removed.OffsetDeleteRequestTopic(
        name=topic, partitions=[removed.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition(partition_index=0)]
    )
    yield removed(group_id=group, topics=[offsets]), 0, {GROUP_DENIED}


def _of_transactions(topic: str, group: str) -> Iterator[tuple[Any, int, set[int]]]:
    yield m.FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), 4, {TRANSACTION_DENIED}
    yield m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 2, {TRANSACTION_DENIED}
    yield m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 2, {CLUSTER_DENIED}
    added: Any = m.AddPartitionsToTxnRequest
    producer = {"v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0}
    topics = [added.AddPartitionsToTxnTopic(name=topic, partitions=[0])]
    yield (
        added(v3_and_below_transactional_id="x", v3_and_below_topics=topics, **producer),
        3,
        {TRANSACTION_DENIED},
    )
    one = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
    yield m.AddOffsetsToTxnRequest(**one, group_id=group), 3, {TRANSACTION_DENIED}  # type: ignore[arg-type]
    yield m.EndTxnRequest(**one, committed=True), 3, {TRANSACTION_DENIED}  # type: ignore[arg-type]
    commit: Any = m.TxnOffsetCommitRequest
    yield commit(**one, group_id=group, topics=commit_topics(commit, {topic: {0: 1}})), 2, {TRANSACTION_DENIED}
    yield m.DescribeTransactionsRequest(transactional_ids=["x"]), 0, {TRANSACTION_DENIED}
    yield m.ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0, {0}


def _of_the_cluster(topic: str) -> Iterator[tuple[Any, int, set[int]]]:
    described: Any = m.DescribeConfigsRequest.DescribeConfigsResource
    for kind, name, code in ((2, topic, TOPIC_DENIED), (4, "1", CLUSTER_DENIED)):
        resource = described(resource_type=kind, resource_name=name, configuration_keys=None)
        yield m.DescribeConfigsRequest(resources=[resource], include_synonyms=False), 2, {code}
        altered: Any = m.IncrementalAlterConfigsRequest.AlterConfigsResource
        changed = altered(resource_type=kind, resource_name=name, configs=[])
        yield m.IncrementalAlterConfigsRequest(resources=[changed], validate_only=True), 1, {code}
        old: Any = m.AlterConfigsRequest.AlterConfigsResource
        yield (
            m.AlterConfigsRequest(
                resources=[old(resource_type=kind, resource_name=name, configs=[])], validate_only=True
            ),
            1,
            {code},
        )
    every: dict[str, Any] = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1}
    every |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    yield m.DescribeAclsRequest(**every), 1, {CLUSTER_DENIED}  # type: ignore[arg-type]
    creation: Any = m.CreateAclsRequest.AclCreation
    acl = creation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    yield m.CreateAclsRequest(creations=[acl]), 1, {CLUSTER_DENIED}
    yield m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(**every)]), 1, {CLUSTER_DENIED}  # type: ignore[arg-type]
    yield m.DescribeLogDirsRequest(topics=None), 3, {CLUSTER_DENIED}
    yield m.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000), 1, {CLUSTER_DENIED}
    yield m.ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None), 0, {CLUSTER_DENIED}
    yield m.DescribeClientQuotasRequest(components=[], strict=False), 0, {CLUSTER_DENIED}
    scram_of: Any = m.DescribeUserScramCredentialsRequest
    # Kafka 4.3 does not respond to a denied request for all users
    yield scram_of(users=[scram_of.UserName(name="ann")]), 0, {CLUSTER_DENIED}
    scram: Any = m.AlterUserScramCredentialsRequest
    deletion = scram.ScramCredentialDeletion(name="ann", mechanism=1)
    yield scram(deletions=[deletion], upsertions=[]), 0, {CLUSTER_DENIED}
    yield m.DescribeClusterRequest(include_cluster_authorized_operations=True), 0, {0}


def codes_of(response: Any, version: int) -> set[int]:
    """Returns every error code in a response that was encoded at `version`."""
    found: set[int] = set()
    for name, value in fields_of(response, version).items() if hasattr(response, "FIELDS") else ():
        found |= _codes(name, value)
    return found


def _codes(name: str, value: Any) -> set[int]:
    if name.endswith("error_code"):
        return {int(value)}
    if isinstance(value, dict):
        return set().union(*(_codes(key, each) for key, each in value.items()))
    if isinstance(value, (list, tuple)):
        return set().union(*(_codes("", each) for each in value))
    return set()


def logged_in(address: str, user: str, password: str) -> RawConnection:
    """Returns a connection after a login with PLAIN."""
    connection = RawConnection(address)
    assert connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    token = f"\0{user}\0{password}".encode()
    assert connection.call(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0
    return connection
