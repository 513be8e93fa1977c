"""Kafka's request, response and record classes, one for all versions.

kafka-python builds the classes from Kafka's message schemas; those of log records, and of ConsumerGroupDescribe, which
it lacks, from the schemas in `resources/`.
That library is imported here, in `message_base.py` (base classes) and in `sasl_client.py` (SASL mechanisms) only.

A message is built with keyword arguments and encoded at the version that the connection negotiated. A field outside
that version has its schema default. Nested structs are class attributes:
``JoinGroupRequest.JoinGroupRequestProtocol(name=..., metadata=...)``.

Type checkers read `messages.pyi`, which ``tests/wire/generate_message_stubs.py`` writes from the same schemas. There, a
request is a `Request` of its response class, so a function from ``Request[R]`` to ``R`` keeps the response's type, and
the fields of requests and records are read-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.message_base import (
    SCHEMAS,
    UUID,
    ApiData,
    ApiMessage,
    BaseField,
    BitField,
    DataContainer,
    EncodeBuffer,
    EncodeBufferPool,
    Request,
    Response,
    ResponseT,
    StructField,
    import_schemas,
)

if TYPE_CHECKING:
    # what `__getattr__` provides; type checkers read the stub
    from kafka.protocol.admin import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        AlterConfigsRequest,
        AlterConfigsResponse,
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
        CreateAclsRequest,
        CreateAclsResponse,
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteAclsRequest,
        DeleteAclsResponse,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        DescribeAclsRequest,
        DescribeAclsResponse,
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
        DescribeClusterRequest,
        DescribeClusterResponse,
        DescribeConfigsRequest,
        DescribeConfigsResponse,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
        ElectLeadersRequest,
        ElectLeadersResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        ListConfigResourcesRequest,
        ListConfigResourcesResponse,
        ListGroupsRequest,
        ListGroupsResponse,
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
    )
    from kafka.protocol.consumer import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
        FetchRequest,
        FetchResponse,
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )
    from kafka.protocol.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )

    from spark_groupsource.wire.consumer_group_describe import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
    )
    from spark_groupsource.wire.log_record_schemas import (
        GroupMetadataKey,
        GroupMetadataValue,
        OffsetCommitKey,
        OffsetCommitValue,
        TransactionLogKey,
        TransactionLogValue,
    )

# module of kafka-python -> names of its APIs that this package sends or serves
_APIS: Mapping[str, tuple[str, ...]] = {
    "admin.acl": ("CreateAcls", "DeleteAcls", "DescribeAcls"),
    "admin.client_quotas": ("AlterClientQuotas", "DescribeClientQuotas"),
    "admin.cluster": ("DescribeCluster", "DescribeLogDirs"),
    "admin.configs": ("AlterConfigs", "DescribeConfigs", "IncrementalAlterConfigs", "ListConfigResources"),
    "admin.groups": ("DeleteGroups", "DescribeGroups", "ListGroups"),
    "admin.topics": (
        "CreatePartitions",
        "CreateTopics",
        "DeleteRecords",
        "DeleteTopics",
        "DescribeTopicPartitions",
        "ElectLeaders",
        "ListPartitionReassignments",
    ),
    "admin.transactions": ("DescribeProducers", "DescribeTransactions", "ListTransactions"),
    "admin.users": ("AlterUserScramCredentials", "DescribeUserScramCredentials"),
    "consumer.fetch": ("Fetch",),
    "consumer.group": (
        "Heartbeat",
        "JoinGroup",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetDelete",
        "OffsetFetch",
        "SyncGroup",
    ),
    "consumer.offsets": ("ListOffsets", "OffsetForLeaderEpoch"),
    "metadata.api_versions": ("ApiVersions",),
    "metadata.find_coordinator": ("FindCoordinator",),
    "metadata.metadata": ("Metadata",),
    "producer.produce": ("Produce",),
    "producer.transaction": (
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "EndTxn",
        "InitProducerId",
        "TxnOffsetCommit",
        "WriteTxnMarkers",
    ),
    "sasl": ("SaslAuthenticate", "SaslHandshake"),
}
_MODULES: Mapping[str, str] = {
    **{
        f"{api}{side}": f"{SCHEMAS}.{module}"
        for module, apis in _APIS.items()
        for api in apis
        for side in ("Request", "Response")
    },
    "ConsumerProtocolAssignment": f"{SCHEMAS}.consumer.metadata",
    "ConsumerProtocolSubscription": f"{SCHEMAS}.consumer.metadata",
    **dict.fromkeys(
        ("ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse"),
        "spark_groupsource.wire.consumer_group_describe",
    ),
    **dict.fromkeys(
        (
            "GroupMetadataKey",
            "GroupMetadataValue",
            "OffsetCommitKey",
            "OffsetCommitValue",
            "TransactionLogKey",
            "TransactionLogValue",
        ),
        "spark_groupsource.wire.log_record_schemas",
    ),
}
"""Message class -> the module that builds it from its schema."""


def __getattr__(name: str) -> Any:
    """Builds a message class at its first use: a process needs a few of them only."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        message_class = getattr(import_schemas(_MODULES[name]), name)
    except ModuleNotFoundError:
        # another version of kafka-python; the packages export the classes of all their modules
        message_class = getattr(import_schemas(_MODULES[name].rpartition(".")[0]), name)
    if issubclass(message_class, ApiMessage):
        # kafka-python looks API_KEY up in the schema at each access, and every request is dispatched by it
        message_class.API_KEY = ApiKey(message_class.API_KEY)
    globals()[name] = message_class
    return message_class


__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AlterClientQuotasRequest",
    "AlterClientQuotasResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "ApiData",
    "ApiMessage",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BaseField",
    "BitField",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DataContainer",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "EncodeBuffer",
    "EncodeBufferPool",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitKey",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetCommitValue",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "Request",
    "Response",
    "ResponseT",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "StructField",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TransactionLogKey",
    "TransactionLogValue",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UUID",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]
