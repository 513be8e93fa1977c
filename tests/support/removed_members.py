"""Removal of members from a group, as by an operator."""

from __future__ import annotations

from typing import Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.wire.messages import LeaveGroupRequest


def remove_members(
    cluster: ClusterClient, group_id: str, member_ids: Sequence[str] = (), *, group_instance_ids: Sequence[str] = ()
) -> None:
    """Removes dynamic members by member id, and static members by instance id."""
    row, reason = LeaveGroupRequest.MemberIdentity, "removed by an operator"
    members = [row(member_id=name, group_instance_id=None, reason=reason) for name in member_ids]
    members += [row(member_id="", group_instance_id=name, reason=reason) for name in group_instance_ids]
    request = LeaveGroupRequest(group_id=group_id, members=members)
    response = cluster.call_coordinator(group_id, request, min_version=3)
    assert not response.error_code
    assert not any(member.error_code for member in response.members)
