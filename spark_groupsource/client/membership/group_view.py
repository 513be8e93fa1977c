"""Immutable views of the members of a `GroupClient`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_groupsource.client.membership.membership_values import NO_GENERATION
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.model import TopicPartition


@dataclass(frozen=True)
class MemberView:
    """One member; `generation_id` is -1 and `member_id` empty while it is in no group.

    A fenced member keeps the generation and the member id of its assignment until `GroupClient.poll` releases the
    partitions, so that the coordinator rejects requests for them with the right error. So does a member that retains
    its partitions during a rebalance, see `Membership.retains_partitions`.
    """

    index: int
    member_id: str
    client_id: str
    group_instance_id: str | None
    generation_id: int
    partitions: tuple[TopicPartition, ...]
    retains_partitions: bool = False


class GroupView(NamedTuple):
    """The members of one client.

    Attributes:
        is_stable: every member owns its assignment of the group's generation, and none has to rejoin.
        retains_partitions: no rebalance revokes a partition before the next `poll`; false for eager members during a
            rebalance.
    """

    members: tuple[MemberView, ...]
    is_stable: bool
    retains_partitions: bool = False

    @property
    def generation_id(self) -> int:
        """The highest generation of the members, -1 when none is in the group."""
        return max((member.generation_id for member in self.members), default=NO_GENERATION)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of all members, sorted."""
        return tuple(sorted(tp for member in self.members for tp in member.partitions))


def view_member(index: int, client_id: str, membership: Membership) -> MemberView:
    """Returns the view of a member now."""
    known = membership.owned_since if membership.is_fenced or membership.retains_partitions else membership.generation
    return MemberView(
        index,
        known.member_id,
        client_id,
        membership.config.group_instance_id,
        known.generation_id,
        membership.owned,
        membership.retains_partitions,
    )
