"""Handlers of ACLs.

Source: KIP-11, KIP-140, KIP-290; Kafka `AclApis`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from spark_groupsource.broker.acls import Acl, AclFilter, check_acl
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, Steps
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_NO_AUTHORIZER = "No Authorizer is configured on the broker"
_Created = CreateAclsResponse.AclCreationResult
_Filtered = DeleteAclsResponse.DeleteAclsFilterResult
_Resource = DescribeAclsResponse.DescribeAclsResource


def _filter(given: Any) -> AclFilter:
    return AclFilter(
        given.resource_type_filter,
        given.resource_name_filter,
        given.pattern_type_filter,
        given.principal_filter,
        given.host_filter,
        given.operation,
        given.permission_type,
    )


def describe_acls(broker: Broker, context: ApiRequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Returns the selected ACLs by resource."""
    if broker.authorizer is None:
        code = ErrorCode.SECURITY_DISABLED
        return DescribeAclsResponse(throttle_time_ms=0, error_code=code, error_message=_NO_AUTHORIZER, resources=[])
    resources: dict[tuple[int, str, int], Any] = {}
    for acl in broker.authorizer.matching(_filter(request)):
        resource = resources.setdefault(
            acl[:3],
            _Resource(
                resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type, acls=[]
            ),
        )
        resource.acls.append(
            _Resource.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return DescribeAclsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, resources=list(resources.values())
    )


def create_acls(broker: Broker, context: ApiRequestContext, request: CreateAclsRequest) -> Steps:
    """Adds the valid ACLs; each of the others has an error."""
    if broker.authorizer is None:
        rejected = _Created(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
        return CreateAclsResponse(throttle_time_ms=0, results=[rejected] * len(request.creations))
    results, added = [], []
    for each in request.creations:
        acl = Acl(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        try:
            check_acl(acl)
        except ApiError as error:
            results.append(_Created(error_code=error.code, error_message=error.message))
        else:
            added.append(acl)
            results.append(_Created(error_code=ErrorCode.NONE, error_message=None))
    try:
        if added:
            yield partial(broker.authorizer.change, added)
    except (StorageError, ApiError) as error:
        code = error.code if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
        failed = _Created(error_code=code, error_message=str(error))
        results = [each if each.error_code else failed for each in results]
    return CreateAclsResponse(throttle_time_ms=0, results=results)


def delete_acls(broker: Broker, context: ApiRequestContext, request: DeleteAclsRequest) -> Steps:
    """Removes the selected ACLs and returns them."""
    if broker.authorizer is None:
        rejected = _Filtered(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER, matching_acls=[]
        )
        return DeleteAclsResponse(throttle_time_ms=0, filter_results=[rejected] * len(request.filters))
    found = [broker.authorizer.matching(_filter(each)) for each in request.filters]
    code, text = ErrorCode.NONE, None
    try:
        if any(found):
            yield partial(broker.authorizer.change, (), [acl for acls in found for acl in acls])
    except StorageError as error:
        code, text = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    results = []
    for acls in found:
        matching = [
            _Filtered.DeleteAclsMatchingAcl(
                error_code=code,
                error_message=text,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
        results.append(_Filtered(error_code=code, error_message=text, matching_acls=matching))
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=results)
