"""Requests of one group member: executes the actions of its state machine.

`client.membership` states which thread may use which field under which lock.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Awaitable, Callable, Collection, Mapping, TypeVar

from spark_groupsource.assign import is_built_in
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.assignment import GroupAssignment, compute_assignment, unassigned
from spark_groupsource.client.membership.blocking_calls import BlockingCalls
from spark_groupsource.client.membership.fencing import follow_downgrade
from spark_groupsource.client.membership.group_connections import GroupConnections
from spark_groupsource.client.membership.member_requests import MemberRequests
from spark_groupsource.client.membership.membership_values import (
    Action,
    Generation,
    Joined,
    MarkCoordinatorUnknown,
    MemberState,
    SendHeartbeat,
    SendJoinGroup,
)
from spark_groupsource.client.membership.response_rules import Reaction, Reset, ResponseRule, fatal_error
from spark_groupsource.client.membership.shared_membership import LocalMember, SharedMembership
from spark_groupsource.client.network.retry import backoff_ms, retry_level
from spark_groupsource.common.clock import Instant
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
    RemoteProtocolError,
    error_name,
)
from spark_groupsource.model import Subscription, bounded_names
from spark_groupsource.wire.consumer_protocol import encode_subscription
from spark_groupsource.wire.member_reasons import REJOIN_WITH_MEMBER_ID, UNASSIGNED_PARTITIONS
from spark_groupsource.wire.messages import DescribeGroupsRequest, JoinGroupRequest, Request, Response

_log = logging.getLogger(__name__)
R = TypeVar("R", bound="Response")

# the coordinator responds to JoinGroup when the last member has joined, at the latest after the rebalance timeout
_JOIN_GRACE_MS = 5_000
# states of a group in which the coordinator has responded to every JoinGroup, or SyncGroup
_JOIN_ANSWERED = frozenset({"CompletingRebalance", "Stable", "Empty", "Dead"})
_SYNC_ANSWERED = frozenset({"PreparingRebalance", "Stable", "Empty", "Dead"})
# how long a leader waits for its assignor before it looks whether the member is still in the generation
_MAX_WAIT_MS = 1_000


class MemberTask:
    """Belongs to the event loop of the members, which executes one action of a member at a time.

    Args: `notify` lets the owner's thread look at the members; `await_member_ids` waits for the other members.
    """

    def __init__(
        self,
        member: LocalMember,
        cluster: ClusterClient,
        shared: SharedMembership,
        connections: GroupConnections,
        calls: BlockingCalls,
        notify: Callable[[], None],
        await_member_ids: Callable[[], Awaitable[None]],
    ) -> None:
        self.member = member
        self.membership = member.membership
        self._cluster = cluster
        self._shared = shared
        self._clock = cluster.clock
        self._calls = calls
        self._notify = notify
        self._await_member_ids = await_member_ids
        self._requests = MemberRequests(member, cluster, connections, calls)

    def next_action(self, now_ms: int) -> Action:
        """As `Membership.next_action`; the caller holds `SharedMembership.changed`."""
        return self.membership.next_action(now_ms)

    async def run(self, action: Action) -> None:
        """Executes an action; the owner's thread raises its error from `poll`."""
        try:
            await self._execute(action)
        except Exception as error:
            with self._shared.changed:
                if not self._shared.is_closing:
                    self._fail(error)

    async def _execute(self, action: Action) -> None:
        if isinstance(action, SendJoinGroup):
            await self._join()
        elif isinstance(action, SendHeartbeat):
            await self._send_heartbeat()
        elif isinstance(action, MarkCoordinatorUnknown):
            self._requests.mark_unknown("session timed out without receiving a heartbeat response.")
            with self._shared.changed:
                self.membership.restart_session_timer(self._clock.now_ms())

    def _fail(self, error: Exception) -> None:
        self.member.failure = error
        reason = f"rebalance failed due to {type(error).__name__}"
        if self.membership.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE):
            self.membership.on_rebalance_failure(reason)
        self.membership.request_rejoin(reason)
        self.membership.prepare_needed = True
        self._notify()

    # -- rebalance ---------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        prepared = await self._join_request()
        if prepared is None:
            return
        has_ended = False
        try:
            has_ended = await self._rebalance(*prepared)
        finally:
            with self._shared.changed:
                if not has_ended and not self._shared.is_closing:
                    self._shared.metrics.rebalance_failed(self._clock.now_ms())

    async def _rebalance(self, request: JoinGroupRequest, sent: Generation, reason: str) -> bool:
        """Sends JoinGroup and SyncGroup; returns True if the member has an assignment, or its member id (KIP-394)."""
        membership, metrics = self.membership, self._shared.metrics
        started = self._clock.instant()
        with self._shared.changed:
            metrics.rebalance_started(self.member.client_id, started.now_ms)
        response = await self._call(request, _JOIN_ANSWERED)
        if response is None:
            return False
        with self._shared.changed:
            now = self._clock.instant()
            outcome = membership.on_join_response(response, sent, now.now_ms)
            if isinstance(outcome, Joined):
                self.member.keep_owned_commits()
                metrics.joined(now.now_ms - started.now_ms, now.now_ms)
                self._record_joined(outcome, sent, reason, started, now)
        if isinstance(outcome, Joined):
            role = f"leader of {len(outcome.members)} members" if outcome.is_leader else "follower"
            join_ms = now.now_ms - started.now_ms
            _log.info("%s Joined the group as %s in %d ms.", self.member.log_prefix, role, join_ms)
            if not await self._sync(outcome):
                return False
            if not sent.member_id:
                await self._find_unassigned()
            return True
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            await self._await_member_ids()
            return True
        self._apply_rule(outcome, outcome.code or response.error_code, "JoinGroup")
        return False

    async def _join_request(self) -> tuple[JoinGroupRequest, Generation, str] | None:
        """Returns the JoinGroup request, its generation and its reason; None where the member must not join now."""
        shared, membership, member = self._shared, self.membership, self.member
        with shared.changed:
            if membership.prepare_needed or shared.is_closing:
                return None
            topics, assigned, generation_id = shared.topics, member.last_assigned, member.last_generation_id
        # code of the user may block
        def user_data_of() -> dict[str, bytes | None]:
            return {name: each.user_data(topics, assigned, generation_id) for name, each in member.assignors.items()}

        never_blocks = all(map(is_built_in, member.assignors.values()))
        user_data = user_data_of() if never_blocks else await self._calls.run(user_data_of)
        with shared.changed:
            if membership.prepare_needed or shared.is_closing or topics != shared.topics:
                return None
            reason = membership.rejoin_reason
            request = membership.join_request(self._protocols(user_data))
            sent, prefix = membership.generation, member.log_prefix
        _log.info("%s Joining the group%s.", prefix, f": {reason}" if reason else "")
        return request, sent, reason

    def _record_joined(self, joined: Joined, sent: Generation, reason: str, started: Instant, now: Instant) -> None:
        shared, client_id = self._shared, self.member.client_id
        shared.events.contacted(client_id, now.now_ms)
        shared.events.joined(
            client_id,
            joined.generation.member_id,
            reason=reason,
            # a static member may be new or have returned: its coordinator knows
            is_new=self.membership.config.group_instance_id is None
            and (not sent.member_id or reason.startswith(REJOIN_WITH_MEMBER_ID)),
            sent_ms=started.timestamp_ms,
            at_ms=now.timestamp_ms,
            members=joined.members,
            generation_id=joined.generation.generation_id,
        )

    async def _sync(self, joined: Joined) -> bool:
        """Sends SyncGroup; returns True if the rebalance ended with an assignment."""
        shared, membership = self._shared, self.membership
        begin_ms = self._clock.now_ms()
        computed = await self._run_assignor(joined) if joined.is_leader else None
        started = self._clock.instant()
        with shared.changed:
            if membership.generation != joined.generation or shared.is_closing:
                # the member was removed, or left, while the assignor ran
                return False
            request = membership.sync_request(computed.assignments if computed else {})
        response = await self._call(request, _SYNC_ANSWERED)
        if response is None:
            return False
        with shared.changed:
            now = self._clock.instant()
            rule = membership.on_sync_response(response, joined.generation, now.now_ms)
            if rule.reaction is Reaction.CONTINUE:
                latency_ms, generation_id = now.now_ms - started.now_ms, joined.generation.generation_id
                shared.metrics.synced(self.member.client_id, generation_id, latency_ms, now.now_ms)
                shared.events.contacted(self.member.client_id, now.now_ms)
                received = membership.assignment
                shared.events.synced(
                    self.member.client_id,
                    joined.generation.member_id,
                    assignment_ms=started.now_ms - begin_ms if computed is not None else None,
                    partitions=received.partitions if received is not None else (),
                    sent_ms=started.timestamp_ms,
                    at_ms=now.timestamp_ms,
                    generation_id=joined.generation.generation_id,
                )
                if computed is not None:
                    shared.group_topics, shared.snapshot = computed.topics, computed.snapshot
                self._notify()
        if rule.reaction is Reaction.CONTINUE:
            _log.info("%s Synced with the group in %d ms.", self.member.log_prefix, now.now_ms - started.now_ms)
            return True
        self._apply_rule(rule, rule.code or response.error_code, "SyncGroup")
        return False

    async def _find_unassigned(self) -> None:
        """Requests a rebalance if this static member has returned to a group with unassigned partitions.

        The coordinator gives a returning static member its old assignment without a rebalance. If it stopped between
        the two rebalances of a cooperative hand-over, the partitions that it revoked in the first are unassigned, and
        no other member requests the second.
        """
        membership, shared = self.membership, self._shared
        group_id = membership.config.group_id
        if membership.config.group_instance_id is None or not membership.config.cooperative:
            return
        try:
            request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
            described = await self._requests.call(request, membership.config.heartbeat_interval_ms)
            (group,) = described.groups
            if group.error_code or group.group_state != "Stable":
                # a rebalance is in progress
                return
            with shared.changed:
                topics = shared.topics
            find = partial(self._cluster.metadata, topics, timeout_ms=membership.config.heartbeat_interval_ms)
            view = await self._calls.run(find)
            counts = {topic: len(view.topics[topic].partitions) for topic in topics if topic in view.topics}
            missing = unassigned(counts, [bytes(member.member_assignment) for member in group.members])
        except (NetworkError, BrokerError, RemoteProtocolError) as error:
            _log.info("%s Cannot check the group for unassigned partitions: %s", self.member.log_prefix, error)
            return
        if missing:
            with shared.changed:
                membership.request_rejoin(f"{UNASSIGNED_PARTITIONS}: {bounded_names(missing)}")
                self._notify()

    async def _run_assignor(self, joined: Joined) -> GroupAssignment | None:
        """Computes the assignment of the group; None if the member is no longer in the generation afterwards.

        The assignor runs in a separate thread, because it may take longer than the session timeout; the loop sends
        heartbeats meanwhile.
        """
        membership = self.membership
        computing = asyncio.ensure_future(self._calls.run_now(self._assign, joined))
        # also where nothing waits for it any longer
        computing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        wait_ms = min(membership.config.heartbeat_interval_ms, _MAX_WAIT_MS)
        while not (await asyncio.wait([computing], timeout=wait_ms / 1000))[0]:
            with self._shared.changed:
                if membership.generation != joined.generation or self._shared.is_closing:
                    return None
                action = self.next_action(self._clock.now_ms())
            await self._execute(action)
        try:
            return await computing
        except Exception as error:
            with self._shared.changed:
                membership.on_rebalance_failure(f"rebalance failed due to {type(error).__name__} in the leader")
            raise

    def _assign(self, joined: Joined) -> GroupAssignment:
        protocol_name = joined.generation.protocol_name
        assignor = self.member.assignors.get(protocol_name or "")
        if assignor is None:
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Assignment by member {self.member.client_id} of group '{self.membership.config.group_id}'",
                f"The group chose assignor {protocol_name}, the member supports {', '.join(self.member.assignors)}.",
            )
        return compute_assignment(
            self._cluster, assignor, joined, bool(self._shared.settings.client_rack), partial(self._is_in, joined)
        )

    def _is_in(self, joined: Joined) -> bool:
        with self._shared.changed:
            return self.membership.generation == joined.generation and not self._shared.is_closing

    def _apply_rule(self, rule: ResponseRule, code: int, request: str) -> None:
        """Applies the rule of a failed JoinGroup or SyncGroup; the state machine has applied its part."""
        if rule.mark_coordinator_unknown:
            self._requests.mark_unknown(f"error response {error_name(code)} to {request}.")
        with self._shared.changed:
            if rule.reaction is Reaction.REJOIN_AFTER_BACKOFF:
                self._delay_rejoin()
            elif rule.reaction is Reaction.FENCED:
                self._fail(self._fenced_error(code))
            elif rule.reaction is Reaction.FAIL:
                self._fail(fatal_error(self.membership.config.group_id, request, code))
            self._notify()

    async def _call(self, request: Request[R], answered_in: Collection[str]) -> R | None:
        """Sends JoinGroup or SyncGroup; the coordinator may respond as late as after the rebalance timeout.

        Kafka's client limits SyncGroup to request.timeout.ms, so an assignor that takes longer never ends a rebalance
        there.

        Returns: None if there is no response, which ends the rebalance of this member.
        """
        config = self.membership.config
        rebalance_ms = self.membership.rebalance_timeout_ms + _JOIN_GRACE_MS
        timeout_ms = max(self._cluster.settings.request_timeout_ms, rebalance_ms)
        try:
            return await self._requests.call_delayed(request, timeout_ms, answered_in)
        except (NetworkError, BrokerError) as error:
            if isinstance(error, BrokerError) and not error.retriable:
                with self._shared.changed:
                    self.membership.on_rebalance_failure(f"rebalance failed due to {error_name(error.code)}")
                raise fatal_error(config.group_id, "FindCoordinator", error.code) from error
            _log.log(retry_level(error), "%s Rebalance failed, rejoining: %s", self.member.log_prefix, error)
            with self._shared.changed:
                self.membership.on_rebalance_failure(f"rebalance failed due to {type(error).__name__}")
                self._delay_rejoin()
            return None

    def _delay_rejoin(self) -> None:
        self.membership.retry_after(self._clock.now_ms(), self._backoff_ms())

    def _protocols(self, user_data: Mapping[str, bytes | None]) -> list[tuple[str, bytes]]:
        """Name and encoded subscription of each assignor with its user data, in the configured order."""
        membership, shared = self.membership, self._shared
        subscription: dict[str, Any] = {
            "topics": shared.topics,
            "owned_partitions": membership.owned,
            "generation_id": membership.generation.generation_id,
            "rack_id": shared.settings.client_rack or None,
        }
        return [
            (name, encode_subscription(Subscription(user_data=data, **subscription)))
            for name, data in user_data.items()
        ]

    # -- heartbeats and leaving --------------------------------------------------------------------------------------

    async def _send_heartbeat(self) -> None:
        shared, membership = self._shared, self.membership
        with shared.changed:
            now_ms = self._clock.now_ms()
            request = membership.heartbeat_request(now_ms)
            shared.metrics.heartbeat_sent(self.member.client_id, now_ms)
            sent = membership.generation
            # as in Kafka's client, a coordinator that does not respond is replaced when the session timer expires
            timeout_ms = min(self._cluster.settings.request_timeout_ms, membership.session_left_ms(now_ms))
        try:
            code = (await self._requests.call(request, timeout_ms)).error_code
            if code == ErrorCode.ILLEGAL_GENERATION and await self._calls.run(
                follow_downgrade, self._cluster, shared, membership, sent, timeout_ms
            ):
                code = ErrorCode.REBALANCE_IN_PROGRESS
        except (NetworkError, BrokerError) as error:
            if isinstance(error, BrokerError) and not error.retriable:
                raise fatal_error(membership.config.group_id, "FindCoordinator", error.code) from error
            _log.log(retry_level(error), "%s Heartbeat failed, retrying: %s", self.member.log_prefix, error)
            with shared.changed:
                membership.on_heartbeat_failure(self._clock.now_ms(), self._backoff_ms())
            return
        with shared.changed:
            now = self._clock.instant()
            shared.metrics.heartbeat_received(now.now_ms - now_ms, now.now_ms)
            owned_since = membership.generation
            rule = membership.on_heartbeat_response(code, sent, now.now_ms)
            self._record_heartbeat(rule, code, owned_since, now)
            if rule.reaction is Reaction.RETRY_HEARTBEAT:
                membership.on_heartbeat_failure(self._clock.now_ms(), self._backoff_ms())
            elif rule.reaction is Reaction.FENCED:
                self._fail(self._fenced_error(code, sent))
            self._notify()
        if code:
            _log.info("%s Heartbeat response: %s.", self.member.log_prefix, error_name(code))
        if rule.mark_coordinator_unknown:
            self._requests.mark_unknown(f"error response {error_name(code)} to Heartbeat.")

    def _record_heartbeat(self, rule: ResponseRule, code: int, generation: Generation, now: Instant) -> None:
        """Records what a heartbeat response says; `generation` is that before the response was applied."""
        events, client_id = self._shared.events, self.member.client_id
        if rule.reaction is Reaction.REBALANCE and self.membership.state is MemberState.STABLE:
            events.noticed(client_id, generation.member_id, now.timestamp_ms)
        if code == ErrorCode.UNKNOWN_MEMBER_ID and rule.reset is not Reset.NOTHING:
            self._shared.record_removed(self.member, generation, now)
        elif code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            events.contacted(client_id, now.now_ms)

    def _fenced_error(self, code: int, sent: Generation | None = None) -> GenerationMismatchError:
        config = self.membership.config
        generation = sent or self.membership.owned_since
        return GenerationMismatchError(
            group_id=config.group_id,
            member_id=generation.member_id or self.member.client_id,
            generation_id=generation.generation_id,
            cause=f"another process joined with the same kafka.group.instance.id {config.group_instance_id!r} "
            f"({error_name(code)}), give each process its own",
        )

    def _backoff_ms(self) -> int:
        settings = self._cluster.settings
        return backoff_ms(
            self.membership.attempts, settings.retry_backoff_ms, settings.retry_backoff_max_ms, self._cluster.rng
        )
