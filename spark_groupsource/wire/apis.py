"""The table of APIs: key, message classes and supported versions."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ApiMessage,
    ApiVersionsRequest,
    ApiVersionsResponse,
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
    EndTxnRequest,
    EndTxnResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    ResponseT,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class Api(NamedTuple):
    """One API with its message classes and the versions that this package can encode and decode."""

    key: ApiKey
    name: str
    request: type[Request[Any]]
    response: type[ApiMessage]
    min_version: int
    max_version: int

    def is_flexible(self, version: int) -> bool:
        """True if the version has compact types and tagged fields (KIP-482)."""
        return self.request.flexible_version_q(version)


def _api(request: type[Request[ResponseT]], response: type[ResponseT]) -> Api:
    schema = request.json
    low, _, high = schema["validVersions"].partition("-")
    name = schema["name"].removesuffix("Request")
    return Api(request.API_KEY, name, request, response, int(low), int(high or low))


APIS: Mapping[int, Api] = {
    api.key: api
    for api in (
        _api(ProduceRequest, ProduceResponse),
        _api(FetchRequest, FetchResponse),
        _api(ListOffsetsRequest, ListOffsetsResponse),
        _api(MetadataRequest, MetadataResponse),
        _api(OffsetCommitRequest, OffsetCommitResponse),
        _api(OffsetFetchRequest, OffsetFetchResponse),
        _api(FindCoordinatorRequest, FindCoordinatorResponse),
        _api(JoinGroupRequest, JoinGroupResponse),
        _api(HeartbeatRequest, HeartbeatResponse),
        _api(LeaveGroupRequest, LeaveGroupResponse),
        _api(SyncGroupRequest, SyncGroupResponse),
        _api(DescribeGroupsRequest, DescribeGroupsResponse),
        _api(ListGroupsRequest, ListGroupsResponse),
        _api(SaslHandshakeRequest, SaslHandshakeResponse),
        _api(ApiVersionsRequest, ApiVersionsResponse),
        _api(CreateTopicsRequest, CreateTopicsResponse),
        _api(DeleteTopicsRequest, DeleteTopicsResponse),
        _api(DeleteRecordsRequest, DeleteRecordsResponse),
        _api(InitProducerIdRequest, InitProducerIdResponse),
        _api(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        _api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
        _api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
        _api(EndTxnRequest, EndTxnResponse),
        _api(WriteTxnMarkersRequest, WriteTxnMarkersResponse),
        _api(TxnOffsetCommitRequest, TxnOffsetCommitResponse),
        _api(DescribeAclsRequest, DescribeAclsResponse),
        _api(CreateAclsRequest, CreateAclsResponse),
        _api(DeleteAclsRequest, DeleteAclsResponse),
        _api(DescribeConfigsRequest, DescribeConfigsResponse),
        _api(AlterConfigsRequest, AlterConfigsResponse),
        _api(DescribeLogDirsRequest, DescribeLogDirsResponse),
        _api(SaslAuthenticateRequest, SaslAuthenticateResponse),
        _api(CreatePartitionsRequest, CreatePartitionsResponse),
        _api(DeleteGroupsRequest, DeleteGroupsResponse),
        _api(ElectLeadersRequest, ElectLeadersResponse),
        _api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
        _api(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
        _api(OffsetDeleteRequest, OffsetDeleteResponse),
        _api(DescribeClientQuotasRequest, DescribeClientQuotasResponse),
        _api(AlterClientQuotasRequest, AlterClientQuotasResponse),
        _api(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse),
        _api(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
        _api(DescribeClusterRequest, DescribeClusterResponse),
        _api(DescribeProducersRequest, DescribeProducersResponse),
        _api(DescribeTransactionsRequest, DescribeTransactionsResponse),
        _api(ListTransactionsRequest, ListTransactionsResponse),
        _api(ListConfigResourcesRequest, ListConfigResourcesResponse),
        _api(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    )
}
"""API key -> API, for every API that this package sends or serves."""


def api_of(message: ApiMessage | type[ApiMessage]) -> Api:
    """Returns the API of a request or response."""
    return APIS[message.API_KEY]
