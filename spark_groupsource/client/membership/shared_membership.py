"""Shared state of the members of one process and group; views.

`client.membership` states which thread may use which field under which lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Callable, Mapping, NamedTuple

from spark_groupsource.assign import Assignor
from spark_groupsource.client.cluster.group_offsets import TopicIds
from spark_groupsource.client.membership.assignment import MetadataSnapshot
from spark_groupsource.client.membership.coordinator_metrics import CoordinatorMetrics
from spark_groupsource.client.membership.member_events import MemberEvents
from spark_groupsource.client.membership.membership_values import NO_GENERATION, Generation
from spark_groupsource.client.membership.rebalance_log import RebalanceLog
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.clock import Instant
from spark_groupsource.model import Assignment, OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.group_events import Cause


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


@dataclass
class LocalMember:
    """One member of this process.

    Attributes:
        failure: ended the member's rebalance; the owner's thread raises it from `poll`.
        commits, topic_ids: the last offsets to commit, and the ids of their topics.
        last_assigned, last_generation_id: the last assignment, kept over resets for the assignors' user data.
    """

    index: int
    client_id: str
    membership: Membership
    assignors: Mapping[str, Assignor]
    failure: Exception | None = None
    commits: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    last_assigned: tuple[TopicPartition, ...] = ()
    last_generation_id: int = NO_GENERATION

    @property
    def log_prefix(self) -> str:
        """Start of every log line about this member."""
        group_id, generation_id = self.membership.config.group_id, self.membership.generation.generation_id
        return f"[group={group_id} member={self.client_id} generation={generation_id}]"

    def view(self) -> MemberView:
        """Returns the member as it is now."""
        membership = self.membership
        is_retaining = membership.retains_partitions
        known = membership.owned_since if membership.is_fenced or is_retaining else membership.generation
        instance_id, owned = membership.config.group_instance_id, membership.owned
        return MemberView(
            self.index, known.member_id, self.client_id, instance_id, known.generation_id, owned, is_retaining
        )

    def keep_owned_commits(self) -> None:
        """Removes the last offsets of partitions that are not owned; called at the beginning of a generation.

        Until then they may be repeated, because no other member can own the partitions.
        """
        owned = frozenset(self.membership.owned)
        self.commits = {tp: offset for tp, offset in self.commits.items() if tp in owned}

    def keep_commits_of(self, topic_ids: TopicIds) -> None:
        """Removes the last offsets of topics that were recreated since; those of the others have the given ids."""
        known, self.topic_ids = self.topic_ids, topic_ids
        self.commits = {tp: at for tp, at in self.commits.items() if known.get(tp.topic) == topic_ids.get(tp.topic)}

    def record_assignment(self, assignment: Assignment, generation: Generation) -> None:
        """Keeps an assignment for the next subscription, and passes it to the assignor that the group chose."""
        self.last_assigned = tuple(sorted(assignment.partitions))
        self.last_generation_id = generation.generation_id
        assignor = self.assignors.get(generation.protocol_name or "")
        if assignor is not None:
            assignor.on_assignment(assignment, generation.generation_id)


class SharedMembership:
    """Members of one process and their shared state.

    Attributes:
        changed: guards this object and the members; see `client.membership`.
        topics: the topics that every member subscribes to.
        group_topics, snapshot: set by the member that leads the group, if one of these does: topics of the whole group,
            and the metadata on which it computed the assignment.
        metrics: what the members have sent and received.
        is_closing: the event loop of the members ends.
        wake: lets the event loop look for actions of the members, after another thread has changed them.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.changed = threading.Condition()
        self.topics: tuple[str, ...] = settings.topics
        self.members: list[LocalMember] = []
        self.events = MemberEvents(settings.group_id, settings.members)
        self.rebalance_log = RebalanceLog()
        self.metrics = CoordinatorMetrics()
        self.group_topics: frozenset[str] = frozenset()
        self.snapshot: MetadataSnapshot = {}
        self.is_closing = False
        self.wake: Callable[[], None] = lambda: None

    def record_left(self, member: LocalMember, cause: Cause, reason: str, at_ms: int) -> None:
        """Records that a member leaves its generation."""
        generation = member.membership.generation
        self.events.left(member.client_id, generation.member_id, generation.generation_id, cause, reason, at_ms)

    def record_removed(self, member: LocalMember, generation: Generation, now: Instant) -> None:
        """Records that the coordinator no longer knows a member, which it had in `generation`."""
        membership = member.membership
        self.events.removed(
            member.client_id,
            generation.member_id,
            generation.generation_id,
            membership.rejoin_reason,
            membership.config.session_timeout_ms,
            now.now_ms,
            now.timestamp_ms,
        )

    def awaits_member_ids(self) -> bool:
        """True while a joining member has no member id yet."""
        return any(
            not member.membership.generation.member_id
            and member.membership.rejoin_needed
            and not member.membership.prepare_needed
            and member.failure is None
            for member in self.members
        )

    def is_settled(self) -> bool:
        """True while every member owns its assignment of one and the same generation and none has to rejoin."""
        generations = {member.membership.generation.generation_id for member in self.members}
        return len(generations) == 1 and all(
            member.membership.is_settled and member.failure is None for member in self.members
        )

    def view(self) -> GroupView:
        """Returns the members as they are now."""
        memberships = [member.membership for member in self.members]
        is_settled = self.is_settled()
        retains_partitions = is_settled or (
            any(m.owned for m in memberships)
            and all(m.config.cooperative and not m.is_fenced for m in memberships)
            and all(member.failure is None for member in self.members)
        )
        return GroupView(tuple(member.view() for member in self.members), is_settled, retains_partitions)

    def needs_owner(self) -> bool:
        """True while a member cannot continue before the owner's thread acts."""
        return any(
            member.failure is not None or member.membership.needs_prepare or member.membership.needs_complete
            for member in self.members
        )

    def rejoin_needed(self) -> bool:
        """True where the next `poll` moves partitions, or raises."""
        return any(
            member.failure is not None or member.membership.rejoin_needed or member.membership.needs_complete
            for member in self.members
        )
