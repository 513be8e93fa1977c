"""State of a classic group: members, generation, protocols.

This state is in memory only: it is rebuilt from the stored group when a partition is loaded, and delayed requests are
lost with it. The methods keep the counters and maps consistent; the other modules decide when to call them, what to
return and which timers to set. Every call takes constant time unless its docstring says otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Collection, Mapping

from spark_groupsource.broker.group.group_states import (
    DEAD,
    EMPTY,
    GROUP_RULES,
    GROUP_TRANSITIONS,
    STABLE,
    GroupOperation,
    GroupRule,
    GroupState,
)
from spark_groupsource.broker.group.members import (
    DelayedRequest,
    Member,
    Protocols,
    most_voted,
    protocols_bytes,
    text_bytes,
)
from spark_groupsource.broker.group.subscribed_topics import subscribed_topics
from spark_groupsource.broker.state_transitions import check_transition
from spark_groupsource.errors import ErrorCode, RemoteProtocolError
from spark_groupsource.wire.consumer_protocol import PROTOCOL_TYPE
from spark_groupsource.wire.group_records import GroupValue

NO_GENERATION = -1
NO_LEADER = ""
UNKNOWN_MEMBER = ""
_GROUP_BYTES, _MEMBER_BYTES, _PENDING_JOIN_BYTES = 1_500, 1_000, 500


class ClassicGroup:
    """Members, generation and state of one group.

    Attributes:
        members: member id -> member, in the order in which they joined.
        static_members: group instance id -> member id.
        pending_joins: member ids returned with MEMBER_ID_REQUIRED whose members have not joined yet.
        pending_syncs: members of the current generation that have not sent SyncGroup yet.
        awaiting_join_count: members whose JoinGroup awaits its response.
        subscribed_topics: topics of all members, None if unknown.
        is_loaded: whether the group was loaded from the log and no rebalance has completed since.
        is_initial_rebalance: whether the join phase began in Empty and therefore waits for the initial rebalance delay.
        new_member_added: whether a member joined during the current window of the initial rebalance delay.
        initial_delay_ms: length of the current window of the initial rebalance delay.
        initial_remaining_ms: what remains for further windows.
    """

    def __init__(self, group_id: str, state_timestamp_ms: int = -1) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_timestamp_ms = state_timestamp_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.awaiting_join_count = 0
        self.subscribed_topics: frozenset[str] | None = None
        self.is_loaded = False
        self.is_initial_rebalance = False
        self.new_member_added = False
        self.initial_remaining_ms = 0
        self.initial_delay_ms = 0
        self._protocol_support: dict[str, int] = defaultdict(int)
        self._forgotten: dict[str, int] = defaultdict(int)
        self._members_bytes = 0

    # --- state

    def transition(self, new_state: GroupState, timestamp_ms: int) -> None:
        """Raises IllegalTransitionError unless GROUP_TRANSITIONS allows it."""
        entity = f"Group '{self.group_id}'"
        check_transition(entity, GROUP_TRANSITIONS, self.state, new_state, lambda state: state.value)
        self.state = new_state
        self.state_timestamp_ms = timestamp_ms

    def rule(self, operation: GroupOperation) -> GroupRule:
        """Returns the rule for an operation in the current state."""
        return GROUP_RULES[self.state][operation]

    @property
    def rebalance_timeout_ms(self) -> int:
        """Returns the longest rebalance timeout of the members, 0 without members. O(members)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_members_joined(self) -> bool:
        """Whether every member has sent JoinGroup and no member id is pending."""
        return self.awaiting_join_count == len(self.members) and not self.pending_joins

    # --- members

    def add(self, member: Member) -> None:
        """Adds a member; the first one becomes the leader.

        Raises: ValueError if the member id or the group instance id is in use.
        """
        if member.member_id in self.members:
            raise ValueError(f"Member '{member.member_id}' is already in group '{self.group_id}'.")
        if member.group_instance_id is not None:
            if member.group_instance_id in self.static_members:
                raise ValueError(
                    f"Group instance id '{member.group_instance_id}' is already in group '{self.group_id}'."
                )
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member)
        self.awaiting_join_count += member.awaiting_join is not None
        self.pending_joins.discard(member.member_id)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> Member:
        """Removes a member; if it was the leader, the member that joined first becomes the leader."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        self._forget_protocols(member)
        self.awaiting_join_count -= member.awaiting_join is not None
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def add_pending_join(self, member_id: str) -> None:
        """Raises ValueError if the id is that of a member."""
        if member_id in self.members:
            raise ValueError(f"Member id '{member_id}' cannot be pending: it is a member of group '{self.group_id}'.")
        self.pending_joins.add(member_id)

    def add_pending_sync(self, member_id: str) -> None:
        """Raises ValueError if the id is not that of a member."""
        if member_id not in self.members:
            raise ValueError(f"No SyncGroup expected of '{member_id}': it is not a member of group '{self.group_id}'.")
        self.pending_syncs.add(member_id)

    def replace_static_member(self, group_instance_id: str, new_member_id: str) -> tuple[Member, Member]:
        """Gives a static member a new id. Returns the former member, with its delayed requests, and the new one.

        The new one is not new to the group (`Member.is_new`): its session cannot expire while its JoinGroup is delayed.

        Raises: ValueError if the group instance id is not in the group.
        """
        old_id = self.static_members.get(group_instance_id)
        if old_id is None:
            raise ValueError(f"Group instance id '{group_instance_id}' is not in group '{self.group_id}'.")
        old = self.members[old_id]
        new = old.copy()
        new.member_id, new.awaiting_join, new.awaiting_sync, new.is_new = new_member_id, None, None, False
        self._swap(old, new)
        return old, new

    def restore_static_member(self, old: Member, new_member_id: str, leader_id: str) -> None:
        """Undoes `replace_static_member`, without the delayed requests of the former member: they got responses."""
        restored = old.copy()
        restored.awaiting_join = restored.awaiting_sync = None
        self._swap(self.members[new_member_id], restored)
        self.leader_id = leader_id or None

    def _swap(self, old: Member, new: Member) -> None:
        was_leader = self.leader_id == old.member_id
        owed_sync = old.member_id in self.pending_syncs
        self.remove(old.member_id)
        self.add(new)
        if was_leader:
            self.leader_id = new.member_id
        if owed_sync:
            self.pending_syncs.add(new.member_id)

    def update(
        self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Updates a member from a further JoinGroup."""
        self._forget_protocols(member)
        member.protocols = protocols
        self._count_protocols(member)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def await_join(self, member: Member, request: DelayedRequest) -> DelayedRequest | None:
        """Delays the response of a JoinGroup; returns the delayed request that it replaces."""
        replaced, member.awaiting_join = member.awaiting_join, request
        self.awaiting_join_count += replaced is None
        return replaced

    def take_awaiting_join(self, member: Member) -> DelayedRequest | None:
        """Removes and returns the delayed JoinGroup of a member."""
        delayed, member.awaiting_join = member.awaiting_join, None
        self.awaiting_join_count -= delayed is not None
        return delayed

    def maybe_elect_joined_leader(self) -> bool:
        """Replaces a leader that has not joined by the first member that has; False if none has. O(members)."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Returns NONE if the ids are those of one member, else the error."""
        if group_instance_id is not None:
            mapped = self.static_members.get(group_instance_id)
            if mapped is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if mapped != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # --- protocols

    def supports_protocols(self, protocol_type: str, protocol_names: Collection[str]) -> bool:
        """Whether a member with these protocols can join: all members support one of them."""
        if not self.members:
            return bool(protocol_type) and bool(protocol_names)
        count = len(self.members)
        support = self.protocol_support
        return protocol_type == self.protocol_type and any(support.get(name) == count for name in protocol_names)

    def candidate_protocols(self) -> frozenset[str]:
        """Returns the protocols that every member supports."""
        count = len(self.members)
        return frozenset(name for name, support in self.protocol_support.items() if support == count)

    def select_protocol(self) -> str:
        """Returns the protocol that the members vote for. O(members).

        Raises: ValueError without members.
        """
        candidates = self.candidate_protocols()
        if len(candidates) == 1:  # usually
            (selected,) = candidates
            return selected
        return most_voted(self.members.values(), candidates)

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the group and its members, without the stored group. O(pending joins)."""
        size = _GROUP_BYTES + 4 * len(self.group_id) + text_bytes(self.protocol_type or "") + self._members_bytes
        if self.pending_joins:  # few groups have any, and a broker has thousands of groups
            size += sum(_PENDING_JOIN_BYTES + len(member_id) for member_id in self.pending_joins)
        return size

    def _count_protocols(self, member: Member) -> None:
        names = 4 * len(member.member_id) + text_bytes(member.client_id)
        member.counted_bytes = _MEMBER_BYTES + names + protocols_bytes(member.protocols)
        self._members_bytes += member.counted_bytes
        for name in member.protocol_names:
            self._protocol_support[name] += 1

    def _forget_protocols(self, member: Member) -> None:
        self._members_bytes -= member.counted_bytes
        for name in member.protocol_names:
            self._forgotten[name] += 1

    @property
    def protocol_support(self) -> Mapping[str, int]:
        """Protocol name -> number of members that support it. O(protocols forgotten since the last call)."""
        # thousands of members that leave at once have mostly the same protocols
        for name, count in self._forgotten.items():
            support = self._protocol_support[name] - count
            if support:
                self._protocol_support[name] = support
            else:
                del self._protocol_support[name]
        self._forgotten.clear()
        return self._protocol_support

    # --- generations

    def init_next_generation(self, timestamp_ms: int) -> None:
        """Ends a join phase: CompletingRebalance with members, Empty without. O(members)."""
        self.generation_id += 1
        self.pending_syncs.clear()
        self.is_initial_rebalance = False
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, timestamp_ms)
        else:
            self.protocol_name = None
            self.leader_id = None
            self.transition(EMPTY, timestamp_ms)
        self.subscribed_topics = self.compute_subscribed_topics()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Returns the topics of all members under the selected protocol, None if unknown or too many. O(members)."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        try:
            return subscribed_topics({member.metadata(self.protocol_name) for member in self.members.values()})
        except RemoteProtocolError:
            return None

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member subscribes to `topic`; true if the subscriptions are unknown."""
        if self.state in (EMPTY, DEAD) or self.protocol_type != PROTOCOL_TYPE:
            return False
        return self.subscribed_topics is None or topic in self.subscribed_topics

    # --- records

    def to_value(self, assignment_of: Callable[[Member], bytes]) -> GroupValue:
        """Returns the record of the group with the given assignments and the time of its present state. O(members)."""
        protocol_name = self.protocol_name
        return GroupValue(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol_name=protocol_name,
            leader=self.leader_id if self.members else None,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                member.to_value(protocol_name or "", assignment_of(member)) for member in self.members.values()
            ),
        )

    def to_empty_value(self) -> GroupValue:
        """Returns the record of the group without members."""
        return GroupValue(self.protocol_type or "", self.generation_id, None, None, self.state_timestamp_ms, ())

    @classmethod
    def from_value(cls, group_id: str, value: GroupValue | None) -> ClassicGroup:
        """Returns the group of a record; None is a group that has offsets but no record."""
        group = cls(group_id)
        if value is None:
            return group
        group.generation_id = value.generation_id
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol_name
        group.state_timestamp_ms = value.state_timestamp_ms
        for member in value.members:
            group.add(Member.from_value(member, value.protocol_name))
        group.leader_id = value.leader if group.members else None
        # a stored group with members has completed its rebalance; no transition leads here
        group.state = STABLE if group.members else EMPTY
        group.is_loaded = bool(group.members)
        group.subscribed_topics = group.compute_subscribed_topics()
        return group
