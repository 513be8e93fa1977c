"""Kafka's request, response and record classes, one for all versions.

kafka-python builds the classes from Kafka's message schemas, and those of log records from the schemas in `resources/`.
Messages and schemas are imported from that library here only; `sasl_client.py` imports its SASL mechanisms.

A message is built with keyword arguments and encoded at the version that the connection negotiated. A field outside
that version has its schema default. Nested structs are class attributes:
``JoinGroupRequest.JoinGroupRequestProtocol(name=..., metadata=...)``.

Type checkers read `messages.pyi`, which ``tests/wire/generate_message_stubs.py`` writes from the same schemas. There, a
request is a `Request` of its response class, so a function from ``Request[R]`` to ``R`` keeps the response's type, and
the fields of requests and records are read-only.
"""

from __future__ import annotations

import warnings
from typing import TypeVar

from spark_groupsource.wire.api_keys import ApiKey

with warnings.catch_warnings():
    # kafka-python reads its schemas through an importlib call that is deprecated in Python 3.11 and 3.12
    warnings.simplefilter("ignore", DeprecationWarning)
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
    from kafka.protocol.api_data import ApiData
    from kafka.protocol.api_message import ApiMessage
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
    from kafka.protocol.data_container import DataContainer
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
    from kafka.protocol.schemas import BaseField, StructField
    from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer, EncodeBufferPool
    from kafka.protocol.schemas.fields.codecs.types import UUID, BitField

    _RESOURCES = "spark_groupsource.wire.resources"

    class OffsetCommitKey(ApiData, load_json=_RESOURCES):
        """Key of a committed offset in `__consumer_offsets`."""

    class OffsetCommitValue(ApiData, load_json=_RESOURCES):
        """Value of a committed offset."""

    class GroupMetadataKey(ApiData, load_json=_RESOURCES):
        """Key of a group in `__consumer_offsets`."""

    class GroupMetadataValue(ApiData, load_json=_RESOURCES):
        """Value of a group with its members."""

    class TransactionLogKey(ApiData, load_json=_RESOURCES):
        """Key of a transactional id in `__transaction_state`."""

    class TransactionLogValue(ApiData, load_json=_RESOURCES):
        """Value of a transactional id."""

ResponseT = TypeVar("ResponseT")
Request = Response = ApiMessage
"""Base class of the requests and of the responses; generic in the stub."""

for _message_class in [each for each in globals().values() if isinstance(each, type) and issubclass(each, ApiMessage)]:
    if _message_class is not ApiMessage:
        # kafka-python looks API_KEY up in the schema at each access, and every request is dispatched by it
        _message_class.API_KEY = ApiKey(_message_class.API_KEY)


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
