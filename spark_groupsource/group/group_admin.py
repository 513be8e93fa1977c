"""DescribeGroups, ListGroups and DeleteGroups: what operators see and remove.

Version notes. DescribeGroups: authorized operations from version 3, instance id from 4; from 6 an unknown group is
GROUP_ID_NOT_FOUND, below it is a group in state Dead and no error. ListGroups: state and its filter from version 4,
type and its filter from 5.

Source: KIP-518, KIP-1043; Kafka's GroupMetadataManager, `describeGroups` and `listGroups`.
"""

from __future__ import annotations

from typing import AbstractSet, Iterable

from spark_groupsource.errors import ErrorCode
from spark_groupsource.group.classic_group import ClassicGroup
from spark_groupsource.group.outcome import OutcomeBuilder
from spark_groupsource.group.states import DEAD, STABLE, GroupOperation
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey
from spark_groupsource.wire.messages import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
    Message,
)

GROUP_TYPE = "classic"
_NOT_FOUND_VERSION = 6
# everybody may do everything a group knows: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
_ALL_OPERATIONS = frozenset({3, 6, 8, 10, 11})


def describe(
    group: ClassicGroup | None, group_id: str, api_version: int, include_authorized_operations: bool = False
) -> Message:
    """One group's part of a DescribeGroups answer; protocol and metadata are shown of a Stable group only.

    O(members).
    """
    if group is None or group.state is DEAD:
        return _describe_unknown(group_id, api_version, include_authorized_operations)
    is_stable = group.state is STABLE
    protocol_name = (group.protocol_name or "") if is_stable else ""
    described = DescribeGroupsResponse.DescribedGroup
    return described(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name,
        members=[
            described.DescribedGroupMember(
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


def _describe_unknown(group_id: str, api_version: int, include_authorized_operations: bool) -> Message:
    unknown = described_group_error(group_id, ErrorCode.NONE)
    unknown.group_state = DEAD.value
    if api_version >= _NOT_FOUND_VERSION:
        unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        unknown.error_message = f"Group {group_id} not found."
    elif include_authorized_operations:
        unknown.authorized_operations = set(_ALL_OPERATIONS)
    return unknown


def described_group_error(group_id: str, error: ErrorCode) -> Message:
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
    groups: Iterable[ClassicGroup], states_filter: Iterable[str], types_filter: Iterable[str]
) -> list[Message]:
    """Entries of a ListGroups answer; filters ignore case, an empty one lets everything through."""
    states = _lowered(states_filter)
    types = _lowered(types_filter)
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


def _lowered(names: Iterable[str] | None) -> AbstractSet[str]:
    return {name.lower() for name in names or ()}


def delete_group(
    builder: OutcomeBuilder,
    group: ClassicGroup | None,
    offsets: AbstractSet[TopicPartition],
    is_stored: bool,
) -> ErrorCode:
    """Tombstones for an Empty group and all its offsets, or the error that says why not."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    error = group.rule(GroupOperation.DELETE_GROUP).error
    if error is ErrorCode.NONE:
        remove_group(builder, group.group_id, offsets, is_stored)
    return error


def remove_group(builder: OutcomeBuilder, group_id: str, offsets: AbstractSet[TopicPartition], is_stored: bool) -> None:
    """Tombstones, also for pending offsets; none for the group itself where none of its records was ever written."""
    for topic, partition in sorted(offsets):
        builder.store_offset(OffsetKey(group_id, topic, partition), None)
    if is_stored:
        builder.store_group(group_id, None)


def delete_groups_response(results: Iterable[tuple[str, ErrorCode]]) -> Message:
    """`results`: (group id, error)."""
    result_class = DeleteGroupsResponse.DeletableGroupResult
    return DeleteGroupsResponse(
        throttle_time_ms=0,
        results=[result_class(group_id=group_id, error_code=error) for group_id, error in results],
    )
