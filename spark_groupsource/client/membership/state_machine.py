"""One member's half of the classic group protocol: its state, what it sends next, what each answer means.

Pure: time comes in as monotonic milliseconds, requests go out as values, sockets and threads are the driver's
(`group_client`). The owner of the partitions decides when a round may begin (`prepare`) and when its result counts
(`complete`); in between the member's own thread may join, sync and beat as it likes.

Source: Kafka's AbstractCoordinator, ConsumerCoordinator, Heartbeat; KIP-62, KIP-345, KIP-394, KIP-429, KIP-814.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Callable, Mapping, NamedTuple, Sequence

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
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    Message,
    SyncGroupRequest,
)

NO_GENERATION = -1
_MAX_REASON = 255
_FOREVER_MS = 2**62


class MemberState(Enum):
    """UNJOINED: in no group, also after every reset. The others follow the two requests of a round."""

    UNJOINED = "unjoined"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"


class Generation(NamedTuple):
    """What the coordinator knows the member by; an answer is judged by the one its request was sent with."""

    generation_id: int = NO_GENERATION
    member_id: str = ""
    protocol_name: str | None = None


@dataclass(frozen=True)
class Idle:
    """Nothing to send before `until_ms`."""

    until_ms: int


@dataclass(frozen=True)
class SendJoinGroup:
    """Send JoinGroup."""


@dataclass(frozen=True)
class SendHeartbeat:
    """Send Heartbeat."""


@dataclass(frozen=True)
class MarkCoordinatorUnknown:
    """The coordinator has not answered for a whole session: look it up again. It decides whether we are still in."""


@dataclass(frozen=True)
class LeaveOnPollTimeout:
    """The owner did not come back within max.poll.interval.ms: leave (dynamic members) and start afresh."""


Action = Idle | SendJoinGroup | SendHeartbeat | MarkCoordinatorUnknown | LeaveOnPollTimeout


class ReleasedPartitions(NamedTuple):
    """What a member gives up before it joins: `revoked` while it may still commit, `lost` when it was thrown out."""

    revoked: tuple[TopicPartition, ...] = ()
    lost: tuple[TopicPartition, ...] = ()


class AssignmentChange(NamedTuple):
    """What a round brought: partitions gained, and (cooperative) those to be given up in a second round."""

    gained: tuple[TopicPartition, ...] = ()
    revoked: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class MemberConfig:
    """Settings of one member; `assignors` in order of preference."""

    group_id: str
    assignors: tuple[str, ...]
    cooperative: bool = False
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000


@dataclass(frozen=True)
class Joined:
    """A JoinGroup answer that succeeded; a leader has to assign unless `skip_assignment`."""

    generation: Generation
    is_leader: bool
    skip_assignment: bool
    members: tuple[tuple[str, str | None, bytes], ...]


class Membership:
    """State of one member. Not thread-safe: the driver holds its lock."""

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
        self._joined_with_old = False
        self._assignment: Assignment | None = None
        self._attempts = 0
        self._retry_at_ms = 0
        self._heartbeat_sent_ms = now_ms
        self._heartbeat_due_ms = now_ms
        self._session_due_ms = now_ms
        self._poll_due_ms = now_ms + config.rebalance_timeout_ms

    # -- the owner ---------------------------------------------------------------------------------------------------

    def on_poll(self, now_ms: int) -> None:
        """The owner is alive: restarts the poll timer."""
        self._poll_due_ms = now_ms + self.config.rebalance_timeout_ms

    def request_rejoin(self, reason: str) -> None:
        """Asks for a new round; it begins once the owner has prepared."""
        if not self.rejoin_needed:
            self.rejoin_needed = True
            self.rejoin_reason = reason

    def subscription_changed(self, reason: str) -> None:
        """Asks for a new round; where one is on its way with the old subscription, another one follows it.

        Source: ConsumerCoordinator.rejoinNeededOrPending, which compares with what was joined with.
        """
        self._joined_with_old = self.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)
        self.request_rejoin(reason)

    @property
    def needs_prepare(self) -> bool:
        """True where the owner must call `prepare` before the member may join."""
        return self.rejoin_needed and self.prepare_needed and self.state in (MemberState.UNJOINED, MemberState.STABLE)

    @property
    def needs_complete(self) -> bool:
        """True where a round has ended and the owner must call `complete`."""
        return self.state is MemberState.STABLE and self._assignment is not None

    @property
    def is_settled(self) -> bool:
        """True while the member owns what the group's current generation gives it and knows of no rebalance."""
        return self.state is MemberState.STABLE and self._assignment is None and not self.rejoin_needed

    @property
    def is_fenced(self) -> bool:
        """True where partitions are owned of which the group knows nothing any more."""
        return bool(self.owned) and self.generation.generation_id == NO_GENERATION

    @property
    def retains_partitions(self) -> bool:
        """True while a round is on its way whose JoinGroup names what is owned: nobody else is given it.

        Until the owner polls again every round names the same, so whatever generation comes, it stays ours (KIP-429).
        """
        return bool(self.owned) and not self.is_fenced and not self.prepare_needed

    def released_partitions(self, topics: Sequence[str]) -> ReleasedPartitions:
        """What `prepare` is going to give up; the owner has it committed and tells its listener first.

        Args:
            topics: what the member subscribes to now.
        Source: ConsumerCoordinator.onJoinPrepare.
        """
        if self.generation.generation_id == NO_GENERATION or not self.generation.member_id:
            return ReleasedPartitions(lost=self.owned)
        if not self.config.cooperative:
            return ReleasedPartitions(revoked=self.owned)
        return ReleasedPartitions(revoked=tuple(tp for tp in self.owned if tp.topic not in topics))

    def prepare(self, topics: Sequence[str]) -> ReleasedPartitions:
        """Gives up what must not be kept over a JoinGroup; from now on the member may join."""
        self.prepare_needed = False
        self.is_leader = False
        self._assignment = None
        given_up = self.released_partitions(topics)
        gone = {*given_up.revoked, *given_up.lost}
        self.owned = tuple(tp for tp in self.owned if tp not in gone)
        return given_up

    def assignment_change(self, subscribed: Callable[[str], bool]) -> AssignmentChange | None:
        """What `complete` is going to change; None where the assignment does not fit the subscription any more."""
        assignment = self._assignment
        if assignment is None or not all(subscribed(tp.topic) for tp in assignment.partitions):
            return None
        assigned, owned = set(assignment.partitions), set(self.owned)
        # an eager member owns nothing at this point
        return AssignmentChange(tuple(sorted(assigned - owned)), tuple(sorted(owned - assigned)))

    def complete(self, subscribed: Callable[[str], bool]) -> AssignmentChange | None:
        """Takes over the assignment of the round that ended, unless it does not fit the subscription any more.

        Source: ConsumerCoordinator.onJoinComplete.
        """
        completed = self.assignment_change(subscribed)
        assignment, self._assignment = self._assignment, None
        if assignment is None:
            return None
        if completed is None:
            self.request_rejoin("received assignment does not match the current subscription")
            return None
        if completed.revoked:
            # KIP-429: the owner gives up first, the next generation hands the partition to its new owner
            self.request_rejoin("need to revoke partitions and re-join")
        self.owned = tuple(sorted(assignment.partitions))
        self.owned_since = self.generation
        self.loss_cause = ""
        return completed

    @property
    def assignment(self) -> Assignment | None:
        """What the leader sent in the round that ended, until `complete`."""
        return self._assignment

    # -- the driver's thread -----------------------------------------------------------------------------------------

    def next_action(self, now_ms: int) -> Action:
        """What to do now. After `SendJoinGroup` the driver runs the whole round, then asks again.

        Source: AbstractCoordinator.HeartbeatThread.
        """
        may_join = self.state in (MemberState.UNJOINED, MemberState.STABLE)
        if self.rejoin_needed and not self.prepare_needed and may_join:
            return SendJoinGroup() if now_ms >= self._retry_at_ms else Idle(self._retry_at_ms)
        if self.state in (MemberState.UNJOINED, MemberState.PREPARING_REBALANCE):
            return Idle(_FOREVER_MS)
        if now_ms >= self._session_due_ms:
            return MarkCoordinatorUnknown()
        if now_ms >= self._poll_due_ms:
            return LeaveOnPollTimeout()
        if now_ms >= self._heartbeat_due_ms:
            return SendHeartbeat()
        return Idle(min(self._heartbeat_due_ms, self._poll_due_ms, self._session_due_ms))

    def restart_session_timer(self, now_ms: int) -> None:
        """Restarts the session timer: a new coordinator gets as long as the old one had."""
        self._session_due_ms = now_ms + self.config.session_timeout_ms

    def expedite_heartbeat(self, now_ms: int, gap_ms: int) -> None:
        """Beats `gap_ms` after the last heartbeat: when a sibling joins, the group is about to rebalance."""
        self._heartbeat_due_ms = min(self._heartbeat_due_ms, max(now_ms, self._heartbeat_sent_ms + gap_ms))

    def join_request(self, protocols: Sequence[tuple[str, bytes]]) -> Message:
        """Begins a round.

        Args:
            protocols: for each configured assignor its name and the member's subscription bytes.
        """
        self.state = MemberState.PREPARING_REBALANCE
        self._joined_with_old = False
        config = self.config
        return JoinGroupRequest(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            member_id=self.generation.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            reason=self.rejoin_reason[:_MAX_REASON],
        )

    def on_join_response(self, answer: Message, sent: Generation, now_ms: int) -> Joined | ResponseRule:
        """Takes a JoinGroup answer: `Joined`, or the rule of its error, which is already applied here."""
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.state = MemberState.UNJOINED
            self.generation = Generation(NO_GENERATION, answer.member_id, None)
            self._rejoin("need to re-join with the given member-id")
            return JOIN_RULES[ErrorCode.MEMBER_ID_REQUIRED]
        rule = JOIN_RULES.get(answer.error_code, ResponseRule(Reaction.FAIL))
        if rule.reaction is not Reaction.CONTINUE:
            return self._rebalance_failed(rule, answer.error_code, sent, "JoinGroup")
        if (answer.protocol_type or PROTOCOL_TYPE) != PROTOCOL_TYPE:
            return self._rebalance_failed(PROTOCOL_MISMATCH, PROTOCOL_MISMATCH.code, sent, "JoinGroup")
        if self.state is not MemberState.PREPARING_REBALANCE:
            rejoin = ResponseRule(Reaction.REJOIN)
            return self._rebalance_failed(rejoin, ErrorCode.REBALANCE_IN_PROGRESS, sent, "JoinGroup")
        self.state = MemberState.COMPLETING_REBALANCE
        self.generation = Generation(answer.generation_id, answer.member_id, answer.protocol_name)
        self.is_leader = answer.leader == answer.member_id
        self._restart_timers(now_ms)
        # the round may have taken as long as the owner may be silent
        self.on_poll(now_ms)
        members = tuple((m.member_id, m.group_instance_id, bytes(m.metadata)) for m in answer.members)
        return Joined(self.generation, self.is_leader, bool(answer.skip_assignment), members)

    def sync_request(self, assignments: Mapping[str, bytes]) -> Message:
        """The second request of a round: a leader's with every member's assignment, a follower's with none."""
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

    def on_sync_response(self, answer: Message, sent: Generation, now_ms: int) -> ResponseRule:
        """Takes a SyncGroup answer; after `Reaction.CONTINUE` the owner has to `complete`.

        Raises: RemoteProtocolError when the leader's bytes are no assignment.
        """
        rule = SYNC_RULES.get(answer.error_code, ResponseRule(Reaction.FAIL))
        if rule.reaction is not Reaction.CONTINUE:
            return self._rebalance_failed(rule, answer.error_code, sent, "SyncGroup")
        name, kind = answer.protocol_name or sent.protocol_name, answer.protocol_type or PROTOCOL_TYPE
        if name != sent.protocol_name or kind != PROTOCOL_TYPE:
            return self._rebalance_failed(PROTOCOL_MISMATCH, PROTOCOL_MISMATCH.code, sent, "SyncGroup")
        if self.generation != sent or self.state is not MemberState.COMPLETING_REBALANCE:
            stale = SYNC_RULES[ErrorCode.ILLEGAL_GENERATION]
            return self._rebalance_failed(stale, answer.error_code, sent, "SyncGroup")
        try:
            self._assignment = decode_assignment(bytes(answer.assignment))
        except RemoteProtocolError:
            self.on_rebalance_failure("the leader's assignment cannot be read")
            raise
        self.state = MemberState.STABLE
        # a REBALANCE_IN_PROGRESS heard before is dropped on purpose: the next heartbeat tells again
        self.rejoin_needed = self._joined_with_old
        self.rejoin_reason = "subscription has changed" if self._joined_with_old else ""
        self.prepare_needed = True
        self._attempts = 0
        self._restart_timers(now_ms)
        return rule

    def on_rebalance_failure(self, reason: str) -> None:
        """A round ended without an answer (disconnect, time-out, failed assignor); nothing else is reset."""
        self.state = MemberState.UNJOINED
        self.is_leader = False
        self._rejoin(reason)

    def retry_after(self, now_ms: int, delay_ms: int) -> None:
        """The next round begins `delay_ms` from now at the earliest."""
        self._attempts += 1
        self._retry_at_ms = now_ms + delay_ms

    @property
    def attempts(self) -> int:
        """Failures since the last success, for the backoff."""
        return self._attempts

    def heartbeat_request(self, now_ms: int) -> Message:
        self._heartbeat_sent_ms = now_ms
        self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms
        return HeartbeatRequest(
            group_id=self.config.group_id,
            generation_id=self.generation.generation_id,
            member_id=self.generation.member_id,
            group_instance_id=self.config.group_instance_id,
        )

    def on_heartbeat_response(self, code: int, sent: Generation, now_ms: int) -> ResponseRule:
        """Takes the code of a Heartbeat answer; `Reaction.RETRY_HEARTBEAT` wants `on_heartbeat_failure`.

        An answer to a generation that is not ours any more means nothing.
        """
        rule = HEARTBEAT_RULES.get(code, ResponseRule(Reaction.RETRY_HEARTBEAT))
        if code in FENCING_ERRORS and sent != self.generation:
            rule = HEARTBEAT_RULES[ErrorCode.NONE]
        if rule.reaction is Reaction.RETRY_HEARTBEAT:
            return rule
        self._session_due_ms = now_ms + self.config.session_timeout_ms
        self._attempts = 0
        if rule.reaction is Reaction.REBALANCE and self.state is MemberState.STABLE:
            self.request_rejoin("group is already rebalancing")
        if rule.reset is not Reset.NOTHING:
            self._reset(rule.reset, FENCING_ERRORS[code], f"encountered {error_name(code)} from Heartbeat response")
        return rule

    def on_heartbeat_failure(self, now_ms: int, delay_ms: int) -> None:
        """No usable answer to a heartbeat: the next one after the backoff. Whether we are out, the coordinator says."""
        self._attempts += 1
        self._heartbeat_due_ms = now_ms + delay_ms

    def on_commit_response(self, code: int, sent: Generation) -> bool:
        """Takes the code of a refused OffsetCommit: the group may have moved on, or be about to.

        Returns: True where the refusal is not final, because of a round that has ended since, or is about to end.
        """
        if sent != self.generation:
            return not self.is_fenced
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("offset commit failed since group is already rebalancing")
            return True
        if code == ErrorCode.ILLEGAL_GENERATION and self.state is MemberState.PREPARING_REBALANCE:
            # the round has ended at the coordinator; the answer to JoinGroup, on its way, tells what became of us
            return True
        if code in FENCING_ERRORS:
            reset = Reset.GENERATION if code == ErrorCode.ILLEGAL_GENERATION else Reset.ALL
            self._reset(reset, FENCING_ERRORS[code], f"encountered {error_name(code)} from OffsetCommit response")
        return False

    def leave_request(self, reason: str) -> Message | None:
        """LeaveGroup, or None for those that do not leave: static members, and who has no member id.

        Whoever sends it has to call `left` whatever the answer is.
        """
        if self.config.group_instance_id is not None or not self.generation.member_id:
            return None
        member = LeaveGroupRequest.MemberIdentity(
            member_id=self.generation.member_id, group_instance_id=None, reason=reason[:_MAX_REASON]
        )
        return LeaveGroupRequest(
            group_id=self.config.group_id, member_id=self.generation.member_id, members=[member]
        )

    def on_leave(self, cause: str) -> None:
        """Forgets generation and member id after leaving, or after what should have been leaving."""
        self._reset(Reset.ALL, cause, cause)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _rebalance_failed(self, rule: ResponseRule, code: int, sent: Generation, request: str) -> ResponseRule:
        reason = f"rebalance failed due to {error_name(code)} from {request} response"
        if rule.reset is not Reset.NOTHING and sent == self.generation:
            self._reset(rule.reset, FENCING_ERRORS.get(code, reason), reason)
        self.state = MemberState.UNJOINED
        self.is_leader = False
        self._rejoin(reason)
        if rule.reaction in (Reaction.FAIL, Reaction.FENCED):
            # the owner hears of it first; if it polls again, that is a new start
            self.prepare_needed = True
        return rule

    def _rejoin(self, reason: str) -> None:
        self.rejoin_needed = True
        self.rejoin_reason = reason

    def _reset(self, reset: Reset, cause: str, reason: str) -> None:
        member_id = self.generation.member_id if reset is Reset.GENERATION else ""
        # what was kept over this round is lost now, and the owner must hear of it before the next
        self.prepare_needed = True
        self.generation = Generation(NO_GENERATION, member_id, None)
        self.state = MemberState.UNJOINED
        self.is_leader = False
        self.loss_cause = cause
        self._assignment = None
        self._rejoin(reason)

    def _restart_timers(self, now_ms: int) -> None:
        self._heartbeat_sent_ms = now_ms
        self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms
        self._session_due_ms = now_ms + self.config.session_timeout_ms
