"""DescribeGroups, ListGroups and DeleteGroups.

Version notes. DescribeGroups: authorized operations from version 3, group instance id from version 4; an unknown group
is GROUP_ID_NOT_FOUND from version 6, and a group in state Dead without an error below. ListGroups: state and states
filter from version 4, type and types filter from version 5.

Source: KIP-518, KIP-1043; Kafka's GroupMetadataManager, `describeGroups` and `listGroups`.
"""

from __future__ import annotations

from typing import AbstractSet, Callable, Iterable

from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import DEAD, STABLE, GroupOperation
from spark_groupsource.broker.group.outcome import OutcomeBuilder
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey
from spark_groupsource.wire.messages import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse

GROUP_TYPE = "classic"
_NOT_FOUND_VERSION = 6
_MAX_RESPONSE_BYTES = 8_388_608
_MEMBER_BYTES = 100  # approximate size of the ids and the host of a member
# there is no authorizer: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
_ALL_OPERATIONS = frozenset({3, 6, 8, 10, 11})


def describe(
    group: ClassicGroup | None, group_id: str, api_version: int, include_authorized_operations: bool = False
) -> DescribeGroupsResponse.DescribedGroup:
    """Returns one group of a DescribeGroups response; only a Stable group has protocol and metadata. O(members)."""
    if group is None or group.state is DEAD:
        return _describe_unknown(group_id, api_version, include_authorized_operations)
    is_stable = group.state is STABLE
    protocol_name = (group.protocol_name or "") if is_stable else ""
    group_class = DescribeGroupsResponse.DescribedGroup
    return group_class(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name,
        members=[
            group_class.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol_name) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
        authorized_operations=set(_ALL_OPERATIONS) if include_authorized_operations else None,
    )


def _describe_unknown(
    group_id: str, api_version: int, include_authorized_operations: bool
) -> DescribeGroupsResponse.DescribedGroup:
    unknown = described_group_error(group_id, ErrorCode.NONE)
    unknown.group_state = DEAD.value
    if api_version >= _NOT_FOUND_VERSION:
        unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        unknown.error_message = f"Group {group_id} not found."
    elif include_authorized_operations:
        unknown.authorized_operations = set(_ALL_OPERATIONS)
    return unknown


def bounded_descriptions(
    group_ids: Iterable[str], describe_group: Callable[[str], DescribeGroupsResponse.DescribedGroup]
) -> list[DescribeGroupsResponse.DescribedGroup]:
    """Returns the descriptions of groups up to the largest size of a response, and at least one.

    The others get COORDINATOR_LOAD_IN_PROGRESS, so that a client requests them again. A group id may occur repeatedly,
    as in Kafka.
    """
    known: dict[str, DescribeGroupsResponse.DescribedGroup] = {}
    described: list[DescribeGroupsResponse.DescribedGroup] = []
    left = _MAX_RESPONSE_BYTES
    for group_id in group_ids:
        if left <= 0:
            described.append(described_group_error(group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            continue
        group = known.get(group_id)
        if group is None:
            group = known[group_id] = describe_group(group_id)
        described.append(group)
        for member in group.members:
            left -= len(member.member_metadata or b"") + len(member.member_assignment or b"") + _MEMBER_BYTES
    return described


def described_group_error(group_id: str, error: ErrorCode) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(
        error_code=error,
        error_message=None,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=None,
    )


def list_groups(
    groups: Iterable[ClassicGroup], states_filter: Iterable[str] | None, types_filter: Iterable[str] | None
) -> list[ListGroupsResponse.ListedGroup]:
    """Returns the groups of a ListGroups response; filters ignore case, an empty filter accepts every group."""
    states = _lower(states_filter)
    types = _lower(types_filter)
    if types and GROUP_TYPE not in types:
        return []
    return [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=GROUP_TYPE,
        )
        for group in groups
        if not states or group.state.value.lower() in states
    ]


def _lower(names: Iterable[str] | None) -> AbstractSet[str]:
    return {name.lower() for name in names or ()}


def is_deletable(group: ClassicGroup | None) -> bool:
    """Returns whether DeleteGroups would delete the group."""
    return group is not None and group.rule(GroupOperation.DELETE_GROUP).error is ErrorCode.NONE


def delete_group(
    builder: OutcomeBuilder,
    group: ClassicGroup | None,
    offsets: AbstractSet[TopicPartition],
    is_stored: bool,
) -> ErrorCode:
    """Adds the tombstones of an Empty group and of its offsets, or returns the error."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    error = group.rule(GroupOperation.DELETE_GROUP).error
    if error is ErrorCode.NONE:
        remove_group(builder, group.group_id, offsets, is_stored)
    return error


def remove_group(
    builder: OutcomeBuilder, group_id: str, offsets: AbstractSet[TopicPartition], is_stored: bool
) -> None:
    """Adds tombstones of the committed and pending offsets, and of the group itself if it has a record."""
    for topic, partition in sorted(offsets):
        builder.store_offset(OffsetKey(group_id, topic, partition), None)
    if is_stored:
        builder.store_group(group_id, None)


def delete_groups_response(results: Iterable[tuple[str, ErrorCode]]) -> DeleteGroupsResponse:
    """`results`: (group id, error)."""
    result_class = DeleteGroupsResponse.DeletableGroupResult
    return DeleteGroupsResponse(
        throttle_time_ms=0,
        results=[result_class(group_id=group_id, error_code=error) for group_id, error in results],
    )
