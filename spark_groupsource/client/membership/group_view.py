"""What the owner of a group's members sees of them: a picture that later rounds do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_groupsource.client.membership.state_machine import NO_GENERATION, Membership
from spark_groupsource.model import TopicPartition


@dataclass(frozen=True)
class MemberView:
    """One member; `generation_id` is -1 and `member_id` empty while it is in no group.

    A member that was thrown out still shows the generation and the id under which it was given its partitions, until
    `poll` takes them away: whatever is done in their name is refused for the right reason. So does one that is
    `retains_partitions`: a rebalance is in progress that leaves it what it owns.
    """

    index: int
    member_id: str
    client_id: str
    group_instance_id: str | None
    generation_id: int
    partitions: tuple[TopicPartition, ...]
    retains_partitions: bool = False


class GroupView(NamedTuple):
    """Our members; `stable` when every one owns what the group's generation gives it and knows of no rebalance.

    `keeps`: whether a round is on its way or not, what they own stays theirs until the next `poll`. Never where
    members are eager and a rebalance is known.
    """

    members: tuple[MemberView, ...]
    is_stable: bool
    retains_partitions: bool = False

    @property
    def generation_id(self) -> int:
        """The highest generation of our members, -1 when none is in the group."""
        return max((member.generation_id for member in self.members), default=NO_GENERATION)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What we own in all, sorted."""
        return tuple(sorted(tp for member in self.members for tp in member.partitions))


def view_member(index: int, client_id: str, membership: Membership) -> MemberView:
    """The member as it is now."""
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
