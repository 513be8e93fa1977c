"""The thread of one member: it carries out what `membership` decides, over a connection of its own.

All members of a process share one condition: whoever touches a `Membership` or `SharedMembership` holds it, and
nothing is sent or awaited from the network while it is held.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, wait
from typing import Any, Mapping, Sequence

from spark_groupsource.assign import Assignor
from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.membership.assignment import Decision, decide, unassigned
from spark_groupsource.client.membership.response_rules import Reaction, ResponseRule, fatal_error
from spark_groupsource.client.membership.shared_membership import SharedMembership
from spark_groupsource.client.membership.state_machine import (
    NO_GENERATION,
    Action,
    Generation,
    Idle,
    Joined,
    LeaveOnPollTimeout,
    MarkCoordinatorUnknown,
    Membership,
    MemberState,
    SendHeartbeat,
    SendJoinGroup,
)
from spark_groupsource.client.network.connection import BrokerConnection
from spark_groupsource.client.network.retry import backoff_ms
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    NetworkError,
    RemoteProtocolError,
)
from spark_groupsource.model import Assignment, Node, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import encode_subscription
from spark_groupsource.wire.messages import DescribeGroupsRequest, Message

_log = logging.getLogger(__name__)

# a JoinGroup is answered when the last member has joined: that takes up to the rebalance time-out
_JOIN_GRACE_MS = 5_000
# how long a member that was given its id waits for its siblings to have theirs, so that one round takes all of them
_GATHER_MS = 1_000
# a thread looks around at least this often, whatever its timers say
_LONGEST_WAIT_MS = 1_000
_COORDINATOR_SLICE_MS = 5_000
POLL_EXPIRED = "consumer poll timeout has expired."


class MemberThread:
    """One member with its thread, its connection and its assignors."""

    def __init__(
        self,
        index: int,
        membership: Membership,
        assignors: Sequence[Assignor],
        cluster: Cluster,
        shared: SharedMembership,
    ) -> None:
        self.index = index
        self.membership = membership
        self.client_id = shared.settings.member_client_id(index)
        self.failure: Exception | None = None
        self.assignors: Mapping[str, Assignor] = {assignor.name: assignor for assignor in assignors}
        # what the assignors remember: the last assignment and its generation, kept over resets
        self.last_assigned: tuple[TopicPartition, ...] = ()
        self.last_generation_id = NO_GENERATION
        self._cluster = cluster
        self._shared = shared
        self._clock = cluster.clock
        self._connection: BrokerConnection | None = None
        self._coordinator: Node | None = None
        self._thread = threading.Thread(target=self._run, name=f"group member {self.client_id}", daemon=True)

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def stop(self, timeout_ms: int) -> None:
        """Ends the thread, waking it from whatever it waits for; `SharedMembership.closing` must be set before."""
        connection = self._connection
        if connection is not None:
            connection.abort()
        if self._thread.ident is not None:
            self._thread.join(max(timeout_ms, 1) / 1000)

    def record_assignment(self, assignment: Assignment, generation: Generation) -> None:
        """Keeps what was assigned for the next subscription, and tells the assignor that was voted for."""
        self.last_assigned = tuple(sorted(assignment.partitions))
        self.last_generation_id = generation.generation_id
        assignor = self.assignors.get(generation.protocol_name or "")
        if assignor is not None:
            assignor.on_assignment(assignment, generation.generation_id)

    def _run(self) -> None:
        try:
            while self.run_once():
                pass
        finally:
            self._disconnect()

    def run_once(self) -> bool:
        """One turn of the loop; False once the group is closing."""
        shared = self._shared
        with shared.changed:
            if shared.closing:
                return False
            now_ms = self._clock.now_ms()
            action = self.membership.next_action(now_ms)
            if isinstance(action, Idle):
                shared.changed.wait(min(max(action.until_ms - now_ms, 1), _LONGEST_WAIT_MS) / 1000)
                return True
        try:
            self._execute(action)
        except Exception as error:
            # whatever it is, it must not die with the thread: the owner raises it from poll()
            with shared.changed:
                if shared.closing:
                    return False
                self._fail(error)
        return True

    def _execute(self, action: Action) -> None:
        if isinstance(action, SendJoinGroup):
            self._join()
        elif isinstance(action, SendHeartbeat):
            self._beat()
        elif isinstance(action, MarkCoordinatorUnknown):
            self._mark_coordinator_unknown("session timed out without receiving a heartbeat response")
        elif isinstance(action, LeaveOnPollTimeout):
            self._leave_on_poll_timeout()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        reason = f"rebalance failed due to {type(error).__name__}"
        if self.membership.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE):
            self.membership.on_rebalance_failure(reason)
        self.membership.request_rejoin(reason)
        self.membership.prepare_needed = True
        self._shared.changed.notify_all()

    # -- a round -----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        shared, membership = self._shared, self.membership
        with shared.changed:
            if membership.prepare_needed or shared.closing:
                return
            reason = membership.rejoin_reason
            request = membership.join_request(self._protocols())
            sent = membership.generation
        started_ms, started_at = self._clock.now_ms(), self._clock.timestamp_ms()
        floor = 5 if membership.config.group_instance_id is not None else 0
        answer = self._call_rebalance(request, floor)
        if answer is None:
            return
        with shared.changed:
            now_ms = self._clock.now_ms()
            outcome = membership.on_join_response(answer, sent, now_ms)
            if isinstance(outcome, Joined):
                generation_id = outcome.generation.generation_id
                shared.recorder.joined(
                    generation_id, reason, started_at, self._clock.timestamp_ms(), now_ms - started_ms
                )
                if outcome.is_leader:
                    shared.recorder.led(generation_id, [m[0] for m in outcome.members], self._clock.timestamp_ms())
        if isinstance(outcome, Joined):
            if self._sync(outcome) and not sent.member_id:
                self._find_unassigned()
        elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._await_member_ids()
        else:
            self._apply_rule(outcome, outcome.code or answer.error_code, "JoinGroup")

    def _await_member_ids(self) -> None:
        """Waits for siblings that still have no member id.

        The coordinator waits for every id it has given out, so siblings that all have theirs before the first of them
        joins share one round. (Only an empty group does not: its first round waits group.initial.rebalance.delay.ms.)
        """
        shared = self._shared
        deadline_ms = self._clock.now_ms() + _GATHER_MS
        with shared.changed:
            shared.changed.notify_all()
            while shared.awaits_member_ids() and not shared.closing:
                left_ms = deadline_ms - self._clock.now_ms()
                if left_ms <= 0:
                    return
                shared.changed.wait(left_ms / 1000)

    def _sync(self, joined: Joined) -> bool:
        """True where the round has ended with an assignment."""
        shared, membership = self._shared, self.membership
        decision = self._decide(joined) if joined.is_leader else None
        started_ms = self._clock.now_ms()
        with shared.changed:
            if membership.generation != joined.generation or shared.closing:
                # thrown out, or left, while it was deciding
                return False
            request = membership.sync_request(decision.assignments if decision else {})
        answer = self._call_rebalance(request, 3 if membership.config.group_instance_id is not None else 0)
        if answer is None:
            return False
        with shared.changed:
            now_ms = self._clock.now_ms()
            rule = membership.on_sync_response(answer, joined.generation, now_ms)
            if rule.reaction is Reaction.CONTINUE:
                shared.recorder.synced(joined.generation.generation_id, self._clock.timestamp_ms(), now_ms - started_ms)
                if decision is not None:
                    shared.group_topics, shared.snapshot = decision.topics, decision.snapshot
                shared.changed.notify_all()
                return True
        self._apply_rule(rule, rule.code or answer.error_code, "SyncGroup")
        return False

    def _find_unassigned(self) -> None:
        """Asks for a round if a static member has returned to a group in which partitions are nobody's.

        It is given what it had, without a round. If it died between the two rounds of a cooperative hand-over, what it
        gave up in the first is assigned to nobody, and the second was for it to ask for: nobody else ever will.
        """
        membership, shared = self.membership, self._shared
        group_id = membership.config.group_id
        if membership.config.group_instance_id is None or not membership.config.cooperative:
            return
        try:
            request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
            (group,) = self._call(request, membership.config.heartbeat_interval_ms, 0).groups
            if group.error_code or group.group_state != "Stable":
                # the group is in a round, or about to be
                return
            view = self._cluster.metadata(shared.topics)
            counts = {topic: len(view.topics[topic].partitions) for topic in shared.topics if topic in view.topics}
            missing = unassigned(counts, [bytes(member.member_assignment) for member in group.members])
        except (NetworkError, BrokerError, RemoteProtocolError) as error:
            _log.info("member %s cannot see what group %s has assigned: %s", self.client_id, group_id, error)
            return
        if missing:
            with shared.changed:
                membership.request_rejoin(f"assigned to nobody: {', '.join(map(str, missing))}")
                shared.changed.notify_all()

    def _decide(self, joined: Joined) -> Decision | None:
        """What a leader decides; None where it is out of the group by then.

        It is decided beside this thread, which goes on beating: an assignor may take longer than a session lasts.
        """
        membership, deciding = self.membership, Future[Decision]()

        def run() -> None:
            try:
                deciding.set_result(self._assign(joined))
            except BaseException as error:
                deciding.set_exception(error)

        threading.Thread(target=run, name=f"assignment by {self.client_id}", daemon=True).start()
        wait_ms = min(membership.config.heartbeat_interval_ms, _LONGEST_WAIT_MS)
        while not wait([deciding], wait_ms / 1000).done:
            with self._shared.changed:
                if membership.generation != joined.generation or self._shared.closing:
                    return None
                action = membership.next_action(self._clock.now_ms())
            self._execute(action)
        try:
            return deciding.result()
        except Exception as error:
            with self._shared.changed:
                membership.on_rebalance_failure(f"rebalance failed due to {type(error).__name__} in the leader")
            raise

    def _assign(self, joined: Joined) -> Decision:
        assignor = self.assignors.get(joined.generation.protocol_name or "")
        if assignor is None:
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {self.membership.config.group_id} chose assignor {joined.generation.protocol_name}, "
                f"member {self.client_id} knows {', '.join(self.assignors)}",
            )
        return decide(self._cluster, assignor, joined, bool(self._shared.settings.client_rack))

    def _apply_rule(self, rule: ResponseRule, code: int, request: str) -> None:
        """Carries out the rule of a failed JoinGroup or SyncGroup; the membership has applied its part."""
        if rule.mark_coordinator_unknown:
            self._mark_coordinator_unknown(f"{request} was answered {BrokerError(code, 'error')}")
        with self._shared.changed:
            if rule.reaction is Reaction.REJOIN_AFTER_BACKOFF:
                self._delay_rejoin()
            elif rule.reaction is Reaction.FENCED:
                self._fail(self._fenced(code))
            elif rule.reaction is Reaction.FAIL:
                self._fail(fatal_error(self.membership.config.group_id, request, code))
            self._shared.changed.notify_all()

    def _call_rebalance(self, request: Message, floor: int) -> Message | None:
        """The answer to a JoinGroup or SyncGroup; None when it was lost, and the round with it."""
        config = self.membership.config
        timeout_ms = max(self._cluster.settings.request_timeout_ms, config.rebalance_timeout_ms + _JOIN_GRACE_MS)
        try:
            return self._call(request, timeout_ms, floor)
        except (NetworkError, BrokerError) as error:
            if isinstance(error, BrokerError) and not error.retriable:
                with self._shared.changed:
                    self.membership.on_rebalance_failure(f"rebalance failed due to {error}")
                raise fatal_error(config.group_id, "FindCoordinator", error.code) from error
            _log.info("member %s: %s; it joins again", self.client_id, error)
            with self._shared.changed:
                self.membership.on_rebalance_failure(f"rebalance failed due to {type(error).__name__}")
                self._delay_rejoin()
            return None

    def _delay_rejoin(self) -> None:
        self.membership.retry_after(self._clock.now_ms(), self._backoff_ms())

    def _protocols(self) -> list[tuple[str, bytes]]:
        """Name and subscription of each assignor, in the configured order."""
        membership, shared = self.membership, self._shared
        subscription: dict[str, Any] = {
            "topics": shared.topics,
            "owned_partitions": membership.owned,
            "generation_id": membership.generation.generation_id,
            "rack_id": shared.settings.client_rack or None,
        }
        return [
            (
                name,
                encode_subscription(
                    Subscription(
                        user_data=assignor.user_data(shared.topics, self.last_assigned, self.last_generation_id),
                        **subscription,
                    )
                ),
            )
            for name, assignor in self.assignors.items()
        ]

    # -- between rounds ----------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        shared, membership = self._shared, self.membership
        with shared.changed:
            request = membership.heartbeat_request(self._clock.now_ms())
            sent = membership.generation
        floor = 3 if membership.config.group_instance_id is not None else 0
        try:
            code = int(self._call(request, self._cluster.settings.request_timeout_ms, floor).error_code)
        except (NetworkError, BrokerError) as error:
            _log.debug("heartbeat of %s: %s", self.client_id, error)
            with shared.changed:
                membership.on_heartbeat_failure(self._clock.now_ms(), self._backoff_ms())
            return
        with shared.changed:
            rule = membership.on_heartbeat_response(code, sent, self._clock.now_ms())
            if rule.reaction is Reaction.RETRY_HEARTBEAT:
                membership.on_heartbeat_failure(self._clock.now_ms(), self._backoff_ms())
            elif rule.reaction is Reaction.FENCED:
                self._fail(self._fenced(code, sent))
            shared.changed.notify_all()
        if rule.mark_coordinator_unknown:
            self._mark_coordinator_unknown(f"Heartbeat was answered {BrokerError(code, 'error')}")

    def _leave_on_poll_timeout(self) -> None:
        membership = self.membership
        interval_ms = membership.config.rebalance_timeout_ms
        _log.warning(
            "member %s leaves group %s: no new batch was asked for within kafka.max.poll.interval.ms (%d ms); "
            "raise it, or make batches smaller",
            self.client_id,
            membership.config.group_id,
            interval_ms,
        )
        # as in Kafka's client, the member is out before the coordinator knows: a commit meanwhile is told the cause
        with self._shared.changed:
            request = membership.leave_request(POLL_EXPIRED)
            membership.on_leave(f"no new batch was asked for within kafka.max.poll.interval.ms ({interval_ms} ms)")
            self._shared.changed.notify_all()
        if request is not None:
            try:
                self._call(request, self._cluster.settings.request_timeout_ms, 0)
            except GroupSourceError as error:
                # whether it arrived does not matter: the session would time out just so
                _log.debug("leaving by %s: %s", self.client_id, error)

    def _fenced(self, code: int, sent: Generation | None = None) -> GenerationMismatchError:
        config = self.membership.config
        generation = sent or self.membership.owned_since
        return GenerationMismatchError(
            group_id=config.group_id,
            member_id=generation.member_id or self.client_id,
            generation_id=generation.generation_id,
            cause=f"another process joined as {config.group_instance_id}, its kafka.group.instance.id must be "
            f"different ({BrokerError(code, 'answer')})",
        )

    # -- the coordinator ---------------------------------------------------------------------------------------------

    def _call(self, request: Message, timeout_ms: int, floor: int) -> Message:
        """One request to the coordinator; a lost connection is forgotten with the coordinator behind it."""
        connection = self._connected()
        try:
            return connection.call(request, timeout_ms, floor=floor)
        except NetworkError as error:
            self._mark_coordinator_unknown(str(error))
            raise

    def _connected(self) -> BrokerConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        slice_ms = min(_COORDINATOR_SLICE_MS, self.membership.config.session_timeout_ms)
        node = self._cluster.find_coordinator(self.membership.config.group_id, slice_ms)
        connection = self._cluster.connect(self._cluster.node_address(node), client_id=self.client_id)
        self._connection, self._coordinator = connection, node
        with self._shared.changed:
            if self._shared.closing:
                raise NetworkError("the group client is closing")
        try:
            connection.open()
        except NetworkError as error:
            self._mark_coordinator_unknown(str(error))
            raise
        with self._shared.changed:
            self.membership.restart_session_timer(self._clock.now_ms())
        return connection

    def _mark_coordinator_unknown(self, reason: str) -> None:
        """Nothing of the membership is reset: the coordinator decides, wherever it is now."""
        _log.info("member %s looks for its coordinator again: %s", self.client_id, reason)
        if self._coordinator is not None:
            self._cluster.forget_coordinator(self.membership.config.group_id, self._coordinator)
        self._disconnect()
        with self._shared.changed:
            self.membership.restart_session_timer(self._clock.now_ms())

    def _disconnect(self) -> None:
        connection, self._connection, self._coordinator = self._connection, None, None
        if connection is not None:
            connection.close()

    def _backoff_ms(self) -> int:
        settings = self._cluster.settings
        return backoff_ms(
            self.membership.attempts, settings.retry_backoff_ms, settings.retry_backoff_max_ms, self._cluster.rng
        )
