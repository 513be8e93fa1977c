"""Handlers of ACLs.

Source: KIP-11, KIP-140, KIP-290; Kafka `AclApis`.
"""

from __future__ import annotations

from typing import Any

from spark_groupsource.broker.acls import MAX_ACLS, Acl, AclFilter, check_acl
from spark_groupsource.broker.api.request_limits import check_changes
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.common.coroutines import in_thread, pause, portions
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_PER_STEP = 200
_MAX_DELETED = 2 * MAX_ACLS
_TOO_MANY = f"The filters of the request select more than {_MAX_DELETED:,} ACLs. Delete the others with further ones."
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


async def describe_acls(
    broker: Broker, context: ApiRequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """Returns the selected ACLs by resource."""
    if broker.authorizer is None:
        code = ErrorCode.SECURITY_DISABLED
        return DescribeAclsResponse(throttle_time_ms=0, error_code=code, error_message=_NO_AUTHORIZER, resources=[])
    resources: list[_Resource] = []
    acls: dict[tuple[int, str, int], list[_Resource.AclDescription]] = {}
    for some in portions(broker.authorizer.matching(_filter(request)), _PER_STEP):
        for acl in some:
            key = kind, name, pattern = acl[:3]
            if key not in acls:
                acls[key] = []
                resources.append(
                    _Resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls[key])
                )
            description = _Resource.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
            acls[key].append(description)
        await pause()
    return DescribeAclsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, resources=resources
    )


async def create_acls(broker: Broker, context: ApiRequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
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
            check_changes(len(request.creations), "ACLs")
            check_acl(acl)
        except ApiError as error:
            results.append(_Created(error_code=error.code, error_message=error.message))
        else:
            added.append(acl)
            results.append(_Created(error_code=ErrorCode.NONE, error_message=None))
        await pause()
    try:
        if added:
            await in_thread(broker.authorizer.change, added)
    except (StorageError, ApiError) as error:
        code = error.code if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
        failed = _Created(error_code=code, error_message=str(error))
        results = [each if each.error_code else failed for each in results]
    return CreateAclsResponse(throttle_time_ms=0, results=results)


async def delete_acls(broker: Broker, context: ApiRequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Removes the selected ACLs and returns them."""
    if broker.authorizer is None:
        rejected = _Filtered(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER, matching_acls=[]
        )
        return DeleteAclsResponse(throttle_time_ms=0, filter_results=[rejected] * len(request.filters))
    found: list[list[Acl] | None] = []
    count = 0
    for each in request.filters:
        selected = broker.authorizer.matching(_filter(each)) if count <= _MAX_DELETED else None
        count += len(selected or ())
        found.append(selected if count <= _MAX_DELETED else None)
        await pause()
    code, text = ErrorCode.NONE, None
    try:
        removed = [acl for acls in found for acl in acls or ()]
        if removed:
            await in_thread(broker.authorizer.change, (), removed)
    except StorageError as error:
        code, text = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    results = []
    for selected in found:
        if selected is None:
            results.append(_Filtered(error_code=ErrorCode.POLICY_VIOLATION, error_message=_TOO_MANY, matching_acls=[]))
            await pause()
            continue
        matching = []
        for some in portions(selected, _PER_STEP):
            matching += [_deleted(acl, code, text) for acl in some]
            await pause()
        results.append(_Filtered(error_code=code, error_message=text, matching_acls=matching))
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=results)


def _deleted(acl: Acl, code: ErrorCode, text: str | None) -> _Filtered.DeleteAclsMatchingAcl:
    return _Filtered.DeleteAclsMatchingAcl(
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
