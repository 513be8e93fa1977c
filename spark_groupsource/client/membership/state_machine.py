"""Consumer group membership state machine (client side).

Pure: time is an argument, requests are return values; `member_task` sends them. The owner of the partitions decides
when a member may rejoin (`prepare`) and when it applies an assignment (`complete`); between the two the event loop of
the members sends JoinGroup, SyncGroup and Heartbeat.

Source: Kafka's AbstractCoordinator, ConsumerCoordinator, Heartbeat; KIP-62, KIP-345, KIP-394, KIP-429, KIP-814.
"""

from __future__ import annotations

from typing import Callable, Mapping, Sequence

from spark_groupsource.client.membership.commit_repetition import CommitRepetition
from spark_groupsource.client.membership.membership_values import (
    NO_GENERATION,
    Action,
    AssignmentChange,
    Generation,
    Idle,
    Joined,
    MarkCoordinatorUnknown,
    MemberConfig,
    MemberState,
    ReleasedPartitions,
    SendHeartbeat,
    SendJoinGroup,
)
from spark_groupsource.client.membership.response_rules import (
    HEARTBEAT_RULES,
    JOIN_RULES,
    PROTOCOL_MISMATCH,
    SYNC_RULES,
    Reaction,
    Reset,
    ResponseRule,
)
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode, RemoteProtocolError, error_name
from spark_groupsource.model import Assignment, TopicPartition
from spark_groupsource.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from spark_groupsource.wire.member_reasons import (
    ALREADY_REBALANCING,
    COMMIT_WHILE_REBALANCING,
    MAX_REASON,
    REJOIN_WITH_MEMBER_ID,
    REVOKE_AND_REJOIN,
    SUBSCRIPTION_CHANGED,
    SUBSCRIPTION_MISMATCH,
)
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

_FOREVER_MS = 2**62
_MAX_REBALANCE_TIMEOUT_MS = 2**31 - 1


class Membership:
    """State of one member. Not thread-safe.

    Attributes:
        prepare_needed: the owner has to call `prepare` before the member may join.
        owned, owned_since: partitions of the member, and the generation of their assignment.
        loss_cause: why the coordinator no longer accepts that generation.
        repetition: when the last commits are repeated.
        rebalance_timeout_ms: how long a rebalance waits for this member.
    """

    def __init__(self, config: MemberConfig, now_ms: int) -> None:
        self.config = config
        self.state = MemberState.UNJOINED
        self.generation = Generation()
        self.is_leader = False
        self.rejoin_needed = True
        self.rejoin_reason = ""
        self.prepare_needed = True
        self.owned: tuple[TopicPartition, ...] = ()
        self.owned_since = Generation()
        self.loss_cause = ""
        self.repetition = CommitRepetition()
        self.rebalance_timeout_ms = config.rebalance_timeout_ms
        self._joined_with_old = False
        self._commits_in_owned_since = False
        self._assignment: Assignment | None = None
        self._attempts = 0
        self._retry_at_ms = 0
        self._heartbeat_sent_ms = now_ms
        self._heartbeat_due_ms = now_ms
        self._session_due_ms = now_ms

    # -- the owner ---------------------------------------------------------------------------------------------------

    def expect_pause(self, pause_ms: int) -> None:
        """Makes the coordinator wait at least `pause_ms` for this member in the rebalances after the next JoinGroup."""
        self.rebalance_timeout_ms = min(max(self.rebalance_timeout_ms, pause_ms), _MAX_REBALANCE_TIMEOUT_MS)

    def request_rejoin(self, reason: str) -> None:
        """Requests a rebalance; the member joins after the owner has called `prepare`."""
        if not self.rejoin_needed:
            self.rejoin_needed = True
            self.rejoin_reason = reason

    def subscription_changed(self, reason: str) -> None:
        """Requests a rebalance, which follows one that is in progress with the old subscription.

        Source: ConsumerCoordinator.rejoinNeededOrPending, which compares with the subscription of the JoinGroup.
        """
        self._joined_with_old = self.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)
        self.request_rejoin(reason)

    @property
    def needs_prepare(self) -> bool:
        """True if the owner must call `prepare` now."""
        return self.rejoin_needed and self.prepare_needed and self.state in (MemberState.UNJOINED, MemberState.STABLE)

    @property
    def needs_complete(self) -> bool:
        """True if an assignment was received and the owner must call `complete`."""
        return self.state is MemberState.STABLE and self._assignment is not None

    @property
    def is_settled(self) -> bool:
        """True while the member owns its assignment of the current generation and need not rejoin."""
        return self.state is MemberState.STABLE and self._assignment is None and not self.rejoin_needed

    @property
    def is_fenced(self) -> bool:
        """True while the member owns partitions of a generation that the coordinator no longer accepts."""
        return bool(self.owned) and self.generation.generation_id == NO_GENERATION

    @property
    def loses_partitions(self) -> bool:
        """True if the partitions are lost, not revoked, where the member leaves now.

        Source: ConsumerCoordinator.onLeavePrepare.
        """
        return self.is_fenced or self.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)

    @property
    def retains_partitions(self) -> bool:
        """True during a rebalance whose JoinGroup lists the owned partitions, so no other member is assigned them.

        Every JoinGroup lists the same partitions until the owner polls, so they stay with the member in every
        generation until then (KIP-429).
        """
        return bool(self.owned) and not self.is_fenced and not self.prepare_needed

    @property
    def is_rebalancing(self) -> bool:
        """True from the first JoinGroup of a rebalance, which may get no response, to the response of SyncGroup."""
        return self.state is not MemberState.STABLE and not self.prepare_needed

    @property
    def accepts_commits(self) -> bool:
        """True while the coordinator may accept commits of the member's generation, also from a member that joins.

        Until all members have joined, no other member can own the partitions of this one; after that, the coordinator
        rejects the generation.

        Source: ClassicGroup.validateOffsetCommit, which rejects commits in CompletingRebalance.
        """
        has_generation = self.generation.generation_id != NO_GENERATION
        return has_generation and self.state is not MemberState.COMPLETING_REBALANCE

    @property
    def commit_generation(self) -> Generation:
        """The generation to commit in: that of the last JoinGroup response, or that of the owned partitions.

        A coordinator that took the group over knows no generation whose assignment was not stored. It continues in that
        of the owned partitions until all members have joined again.
        """
        return self.owned_since if self._commits_in_owned_since else self.generation

    @property
    def repeat_due_ms(self) -> int:
        """When the last commits are to be repeated, for the request that was lost may still arrive."""
        return self.repetition.due_ms if self.accepts_commits else _FOREVER_MS

    def released_partitions(self, topics: Sequence[str]) -> ReleasedPartitions:
        """Returns the partitions that `prepare` will release; the owner commits them before.

        Args:
            topics: the subscribed topics.
        Source: ConsumerCoordinator.onJoinPrepare.
        """
        if self.generation.generation_id == NO_GENERATION or not self.generation.member_id:
            return ReleasedPartitions(lost=self.owned)
        if not self.config.cooperative:
            return ReleasedPartitions(revoked=self.owned)
        subscribed = frozenset(topics)
        return ReleasedPartitions(revoked=tuple(tp for tp in self.owned if tp.topic not in subscribed))

    def prepare(self, topics: Sequence[str]) -> ReleasedPartitions:
        """Releases the partitions that the member must not own during a JoinGroup; then the member may join."""
        self.prepare_needed = False
        self.is_leader = False
        self._assignment = None
        released = self.released_partitions(topics)
        gone = {*released.revoked, *released.lost}
        self.owned = tuple(tp for tp in self.owned if tp not in gone)
        return released

    def assignment_change(self, subscribed: Callable[[str], bool]) -> AssignmentChange | None:
        """Returns the change that `complete` will make; None if the subscription no longer has a topic of it."""
        assignment = self._assignment
        if assignment is None or not all(subscribed(tp.topic) for tp in assignment.partitions):
            return None
        assigned, owned = set(assignment.partitions), set(self.owned)
        # an eager member owns nothing at this point
        return AssignmentChange(tuple(sorted(assigned - owned)), tuple(sorted(owned - assigned)))

    def complete(self, subscribed: Callable[[str], bool]) -> AssignmentChange | None:
        """Applies the assignment unless the subscription no longer has a topic of it; then the member rejoins.

        Source: ConsumerCoordinator.onJoinComplete.
        """
        completed = self.assignment_change(subscribed)
        assignment, self._assignment = self._assignment, None
        if assignment is None:
            return None
        if completed is None:
            self.request_rejoin(SUBSCRIPTION_MISMATCH)
            return None
        if completed.revoked:
            # KIP-429: the next generation assigns the revoked partitions to their new owners
            self.request_rejoin(REVOKE_AND_REJOIN)
        self.owned = tuple(sorted(assignment.partitions))
        self.owned_since = self.generation
        self.loss_cause = ""
        return completed

    @property
    def assignment(self) -> Assignment | None:
        """The assignment that was received, until `complete`."""
        return self._assignment

    # -- the event loop -----------------------------------------------------------------------------------------

    def next_action(self, now_ms: int) -> Action:
        """Returns the next action; `SendJoinGroup` means JoinGroup and the SyncGroup after it.

        Source: AbstractCoordinator.HeartbeatThread.
        """
        may_join = self.state in (MemberState.UNJOINED, MemberState.STABLE)
        if self.rejoin_needed and not self.prepare_needed and may_join:
            return SendJoinGroup() if now_ms >= self._retry_at_ms else Idle(self._retry_at_ms)
        if self.state in (MemberState.UNJOINED, MemberState.PREPARING_REBALANCE):
            return Idle(_FOREVER_MS)
        if now_ms >= self._session_due_ms:
            return MarkCoordinatorUnknown()
        if now_ms >= self._heartbeat_due_ms:
            return SendHeartbeat()
        return Idle(min(self._heartbeat_due_ms, self._session_due_ms))

    def session_left_ms(self, now_ms: int) -> int:
        """Returns the time until the session timer expires, at least 1."""
        return max(self._session_due_ms - now_ms, 1)

    def restart_session_timer(self, now_ms: int) -> None:
        """Restarts the session timer, for example when the coordinator was found."""
        self._session_due_ms = now_ms + self.config.session_timeout_ms

    def expedite_heartbeat(self, now_ms: int, interval_ms: int) -> None:
        """Makes the next heartbeat due `interval_ms` after the last one, because the group is about to rebalance."""
        self._heartbeat_due_ms = min(self._heartbeat_due_ms, max(now_ms, self._heartbeat_sent_ms + interval_ms))

    def join_request(self, protocols: Sequence[tuple[str, bytes]]) -> JoinGroupRequest:
        """Returns the JoinGroup request and begins a rebalance.

        Args:
            protocols: name of each configured assignor with the encoded subscription.
        """
        self.state = MemberState.PREPARING_REBALANCE
        self._joined_with_old = False
        config = self.config
        return JoinGroupRequest(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.generation.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            reason=self.rejoin_reason[:MAX_REASON],
        )

    def on_join_response(self, response: JoinGroupResponse, sent: Generation, now_ms: int) -> Joined | ResponseRule:
        """Applies a JoinGroup response; returns `Joined`, or the rule of the error."""
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.state = MemberState.UNJOINED
            self.generation = Generation(NO_GENERATION, response.member_id, None)
            self._rejoin(REJOIN_WITH_MEMBER_ID)
            return JOIN_RULES[ErrorCode.MEMBER_ID_REQUIRED]
        rule = JOIN_RULES.get(response.error_code, ResponseRule(Reaction.FAIL))
        if rule.reaction is not Reaction.CONTINUE:
            return self._rebalance_failed(rule, response.error_code, sent, "JoinGroup")
        if (response.protocol_type or PROTOCOL_TYPE) != PROTOCOL_TYPE:
            return self._rebalance_failed(PROTOCOL_MISMATCH, PROTOCOL_MISMATCH.code, sent, "JoinGroup")
        if self.state is not MemberState.PREPARING_REBALANCE:
            rejoin = ResponseRule(Reaction.REJOIN)
            return self._rebalance_failed(rejoin, ErrorCode.REBALANCE_IN_PROGRESS, sent, "JoinGroup")
        if self._was_left_out(response.generation_id):
            stale = SYNC_RULES[ErrorCode.ILLEGAL_GENERATION]
            return self._rebalance_failed(stale, ErrorCode.ILLEGAL_GENERATION, sent, "JoinGroup")
        self.state = MemberState.COMPLETING_REBALANCE
        self.generation = Generation(response.generation_id, response.member_id, response.protocol_name)
        self._commits_in_owned_since = False
        self.is_leader = response.leader == response.member_id
        self.repetition.cancel()
        self._restart_timers(now_ms)
        members = tuple((m.member_id, m.group_instance_id, bytes(m.metadata)) for m in response.members)
        return Joined(self.generation, self.is_leader, bool(response.skip_assignment), members)

    def sync_request(self, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
        """Returns the SyncGroup request; the leader sends the assignments of all members, a follower none."""
        generation = self.generation
        return SyncGroupRequest(
            group_id=self.config.group_id,
            generation_id=generation.generation_id,
            member_id=generation.member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=generation.protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in assignments.items()
            ],
        )

    def on_sync_response(self, response: SyncGroupResponse, sent: Generation, now_ms: int) -> ResponseRule:
        """Applies a SyncGroup response; after `Reaction.CONTINUE` the owner must call `complete`.

        Raises: RemoteProtocolError on a malformed assignment.
        """
        rule = SYNC_RULES.get(response.error_code, ResponseRule(Reaction.FAIL))
        if rule.reaction is not Reaction.CONTINUE:
            return self._rebalance_failed(rule, response.error_code, sent, "SyncGroup")
        name, kind = response.protocol_name or sent.protocol_name, response.protocol_type or PROTOCOL_TYPE
        if name != sent.protocol_name or kind != PROTOCOL_TYPE:
            return self._rebalance_failed(PROTOCOL_MISMATCH, PROTOCOL_MISMATCH.code, sent, "SyncGroup")
        if self.generation != sent or self.state is not MemberState.COMPLETING_REBALANCE:
            stale = SYNC_RULES[ErrorCode.ILLEGAL_GENERATION]
            return self._rebalance_failed(stale, response.error_code, sent, "SyncGroup")
        try:
            self._assignment = decode_assignment(bytes(response.assignment))
        except RemoteProtocolError:
            self.on_rebalance_failure("the leader's assignment is malformed")
            raise
        self.state = MemberState.STABLE
        # an earlier REBALANCE_IN_PROGRESS is dropped: the next heartbeat returns it again if it still holds
        self.rejoin_needed = self._joined_with_old
        self.rejoin_reason = SUBSCRIPTION_CHANGED if self._joined_with_old else ""
        self.prepare_needed = True
        self._attempts = 0
        self._restart_timers(now_ms)
        return rule

    def on_rebalance_failure(self, reason: str) -> None:
        """Ends a rebalance without a response (disconnect, timeout, failed assignor); resets nothing else."""
        self.state = MemberState.UNJOINED
        self.is_leader = False
        self._rejoin(reason)

    def retry_after(self, now_ms: int, delay_ms: int) -> None:
        """Delays the next JoinGroup by at least `delay_ms`."""
        self._attempts += 1
        self._retry_at_ms = now_ms + delay_ms

    @property
    def attempts(self) -> int:
        """Number of failures since the last success, for the backoff."""
        return self._attempts

    def heartbeat_request(self, now_ms: int) -> HeartbeatRequest:
        self._heartbeat_sent_ms = now_ms
        self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms
        return self.probe_request()

    def probe_request(self) -> HeartbeatRequest:
        """Returns a Heartbeat that only shows whether a broker knows the member; it moves no timer."""
        return HeartbeatRequest(
            group_id=self.config.group_id,
            generation_id=self.generation.generation_id,
            member_id=self.generation.member_id,
            group_instance_id=self.config.group_instance_id,
        )

    def on_heartbeat_response(self, code: int, sent: Generation, now_ms: int) -> ResponseRule:
        """Applies the error code of a Heartbeat response; after `Reaction.RETRY_HEARTBEAT` call `on_heartbeat_failure`.

        A fencing error for an earlier generation is ignored.
        """
        rule = HEARTBEAT_RULES.get(code, ResponseRule(Reaction.RETRY_HEARTBEAT))
        if code in FENCING_ERRORS and sent != self.generation:
            rule = HEARTBEAT_RULES[ErrorCode.NONE]
        if rule.reaction is Reaction.RETRY_HEARTBEAT:
            return rule
        self._session_due_ms = now_ms + self.config.session_timeout_ms
        self._attempts = 0
        if rule.reaction is Reaction.REBALANCE and self.state is MemberState.STABLE:
            self.request_rejoin(ALREADY_REBALANCING)
        if rule.reset is not Reset.NOTHING:
            self._reset(rule.reset, FENCING_ERRORS[code], f"encountered {error_name(code)} from Heartbeat response")
        return rule

    def can_be_downgraded(self, sent: Generation) -> bool:
        """Returns whether ILLEGAL_GENERATION need not fence the member; see `find_downgraded_generation`."""
        is_dynamic = self.config.group_instance_id is None
        return is_dynamic and self.state is MemberState.STABLE and sent == self.generation

    def follow_generation(self, sent: Generation, generation_id: int) -> None:
        """Continues in the generation that a downgrade of the group gave the member."""
        if self.can_be_downgraded(sent):
            self.generation = sent._replace(generation_id=generation_id)
            self.request_rejoin(ALREADY_REBALANCING)

    def on_heartbeat_failure(self, now_ms: int, delay_ms: int) -> None:
        """Delays the next heartbeat by the backoff. A failed heartbeat does not end the membership."""
        self._attempts += 1
        self._heartbeat_due_ms = now_ms + delay_ms

    def on_commit_response(self, code: int, sent: Generation) -> bool:
        """Applies the error code of an OffsetCommit response.

        Returns: True if the commit can be retried, because a rebalance has ended meanwhile or is about to end.
        """
        if code == ErrorCode.ILLEGAL_GENERATION and self.is_rebalancing:
            # either the coordinator does not know the generation, or the rebalance has ended there: then the JoinGroup
            # response with the next generation follows, or was lost and is requested again
            self._commits_in_owned_since = sent == self.generation != self.owned_since
            return True
        if sent != self.generation:
            return not self.is_fenced
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            # the coordinator responds so between JoinGroup and SyncGroup; a member that has received its assignment of
            # the same generation meanwhile would start another rebalance
            if self.state is not MemberState.STABLE:
                self.request_rejoin(COMMIT_WHILE_REBALANCING)
            return True
        if code in FENCING_ERRORS:
            reset = Reset.GENERATION if code == ErrorCode.ILLEGAL_GENERATION else Reset.ALL
            self._reset(reset, FENCING_ERRORS[code], f"encountered {error_name(code)} from OffsetCommit response")
        return False

    def leave_request(self, reason: str, *, is_static_leaving: bool = False) -> LeaveGroupRequest | None:
        """Returns the LeaveGroup request; None for members that do not leave: those without an id, and static ones.

        The caller must call `on_leave` after any response.
        """
        instance_id = self.config.group_instance_id
        if not self.generation.member_id or (instance_id is not None and not is_static_leaving):
            return None
        member = LeaveGroupRequest.MemberIdentity(
            member_id=self.generation.member_id, group_instance_id=instance_id, reason=reason[:MAX_REASON]
        )
        return LeaveGroupRequest(
            group_id=self.config.group_id, member_id=self.generation.member_id, members=[member]
        )

    def on_leave(self, cause: str) -> None:
        """Resets generation and member id."""
        self._reset(Reset.ALL, cause, cause)

    # -- internals ---------------------------------------------------------------------------------------------------

    def _rebalance_failed(self, rule: ResponseRule, code: int, sent: Generation, request: str) -> ResponseRule:
        reason = f"rebalance failed due to {error_name(code)} from {request} response"
        if rule.reset is not Reset.NOTHING and sent == self.generation:
            self._reset(rule.reset, FENCING_ERRORS.get(code, reason), reason)
        self.state = MemberState.UNJOINED
        self.is_leader = False
        self._rejoin(reason)
        if rule.reaction in (Reaction.FAIL, Reaction.FENCED):
            # the owner gets the error first; the poll after that joins again
            self.prepare_needed = True
        return rule

    def _was_left_out(self, generation_id: int) -> bool:
        """Returns whether there was a generation between in which other members may have got the owned partitions.

        A rebalance that no longer waits removes a dynamic member, but keeps a static one with its earlier subscription,
        which does not list what it was assigned after that.

        Source: GroupMetadataManager.completeClassicGroupJoin.
        """
        is_static = self.config.group_instance_id is not None
        return is_static and bool(self.owned) and generation_id > self.generation.generation_id + 1

    def _rejoin(self, reason: str) -> None:
        self.rejoin_needed = True
        self.rejoin_reason = reason

    def _reset(self, reset: Reset, cause: str, reason: str) -> None:
        is_retaining = self.state is MemberState.COMPLETING_REBALANCE and self.retains_partitions
        if reset is Reset.GENERATION and is_retaining and self.config.group_instance_id is None:
            # a dynamic member that the coordinator no longer waits for is removed. So this one took the group over
            # before the assignment was stored, and the partitions are still the member's
            self.generation = self.owned_since
            self.state = MemberState.UNJOINED
            self.is_leader = False
            self._rejoin(reason)
            return
        member_id = self.generation.member_id if reset is Reset.GENERATION else ""
        # partitions that were retained are lost now; `prepare` releases them before the next JoinGroup
        self.prepare_needed = True
        self.generation = Generation(NO_GENERATION, member_id, None)
        self._commits_in_owned_since = False
        self.state = MemberState.UNJOINED
        self.is_leader = False
        self.repetition.cancel()
        self.loss_cause = cause
        self._assignment = None
        self._rejoin(reason)

    def _restart_timers(self, now_ms: int) -> None:
        self._heartbeat_sent_ms = now_ms
        self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms - self.config.heartbeat_offset_ms
        self._session_due_ms = now_ms + self.config.session_timeout_ms
