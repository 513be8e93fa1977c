"""Clients of the simulation: group members on a faulty network.

`PackageMember` runs the package's own `Membership` as its member thread does. `EagerConsumer` is a minimal eager
consumer in any protocol version. A client sends one request at a time. Every commit of a run has a different offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from simulation.client_base import PARTITIONS, SESSION_MS, Client, Spec, read_assignment, write_subscription
from simulation.group_requests import error_of, join_request, sync_request

from spark_groupsource.assign import load_assignor
from spark_groupsource.client.membership.assignment import unassigned
from spark_groupsource.client.membership.membership_values import (
    Generation,
    Idle,
    Joined,
    MarkCoordinatorUnknown,
    MemberConfig,
    SendHeartbeat,
    SendJoinGroup,
)
from spark_groupsource.client.membership.response_rules import Reaction, ResponseRule
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Subscription, TopicPartition
from spark_groupsource.wire.messages import DescribeGroupsRequest

if TYPE_CHECKING:
    from simulation.run import SimulationRun

HEARTBEAT_MS = 200
REBALANCE_MS = 800
_JOIN_TIMEOUT_MS = REBALANCE_MS + 300
_BACKOFF_MS = 40
_FENCED = ErrorCode.FENCED_INSTANCE_ID
_OUT = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
_REFUSED = (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


class PackageMember(Client):
    """A member that runs the package's `Membership`."""

    def __init__(self, simulation: SimulationRun, name: str, spec: Spec) -> None:
        super().__init__(simulation, name, spec)
        config = MemberConfig(
            group_id=spec.group_id,
            assignors=tuple(self.protocol_names),
            cooperative=spec.protocols == "cooperative-sticky",
            group_instance_id=self.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self.membership = Membership(config, simulation.time.now_ms)
        self._sent = Generation()
        self._is_revoking = False
        self._joined_without_id = False
        self._last: tuple[tuple[TopicPartition, ...], int] = ((), -1)

    @property
    def member_id(self) -> str:  # type: ignore[override]
        return self.membership.generation.member_id

    @property
    def generation_id(self) -> int:  # type: ignore[override]
        return self.membership.generation.generation_id

    @property
    def owned(self) -> Sequence[TopicPartition]:  # type: ignore[override]
        return self.membership.owned

    @property
    def settled(self) -> bool:
        return self.membership.is_settled and self.fetched

    def resubscribe(self, topics: str) -> None:
        self.topics = tuple(topics)
        self.membership.subscription_changed("the subscription has changed")

    def step(self) -> None:
        now_ms, membership = self.simulation.time.now_ms, self.membership
        action = membership.next_action(now_ms)
        if isinstance(action, MarkCoordinatorUnknown):
            membership.restart_session_timer(now_ms)
        if self._poll(now_ms):
            return
        action = membership.next_action(now_ms)
        if isinstance(action, SendJoinGroup):
            self._sent = membership.generation
            self._joined_without_id = not self._sent.member_id
            self.call("join", membership.join_request(self._protocols()), self.versions.join, _JOIN_TIMEOUT_MS)
        elif isinstance(action, SendHeartbeat):
            self._sent = membership.generation
            self.call("heartbeat", membership.heartbeat_request(now_ms), self.versions.heartbeat)
        elif isinstance(action, Idle):
            self.wake_at(min(action.until_ms, max(self.commit_due_ms, now_ms + 20)))
        else:
            raise AssertionError(f"{self.name}: unexpected repeated action {action}")

    def _poll(self, now_ms: int) -> bool:
        """Polls as the application does; returns whether a request was sent."""
        membership = self.membership
        if membership.needs_complete:
            assignment, generation = membership.assignment, membership.generation
            completed = membership.complete(lambda topic: topic in self.topics)
            if completed is not None and assignment is not None:
                self._last = (tuple(sorted(assignment.partitions)), generation.generation_id)
                self.fetched = not completed.gained and self.fetched
        if membership.needs_prepare:
            self.keep_former_generation()
            revoked = membership.released_partitions(self.topics).revoked
            if revoked and not self._is_revoking:
                self._is_revoking = True
                self._sent = membership.generation
                self.commit(revoked)
                return True
            self._is_revoking = False
            membership.prepare(self.topics)
        elif membership.is_settled and membership.owned and now_ms >= self.commit_due_ms:
            self._sent = membership.generation
            if self.fetched:
                self.commit(membership.owned)
            else:
                self.fetch()
            return True
        elif membership.is_settled and not membership.owned:
            self.fetched = True
        return False

    def _protocols(self) -> list[tuple[str, bytes]]:
        membership = self.membership
        return [
            (
                name,
                write_subscription(
                    Subscription(
                        self.topics,
                        load_assignor(name).user_data(self.topics, *self._last),
                        membership.owned,
                        membership.generation.generation_id,
                    )
                ),
            )
            for name in self.protocol_names
        ]

    def on_response(self, kind: str, response: Any) -> None:
        now_ms, membership = self.simulation.time.now_ms, self.membership
        if kind == "join":
            joined = membership.on_join_response(response, self._sent, now_ms)
            if isinstance(joined, Joined):
                self._sync(joined)
            else:
                self._rebalance_failed(joined, response.error_code)
        elif kind == "sync":
            rule = membership.on_sync_response(response, self._sent, now_ms)
            if rule.reaction is not Reaction.CONTINUE:
                self._rebalance_failed(rule, response.error_code)
            elif self._joined_without_id and self.instance_id is not None and membership.config.cooperative:
                request = DescribeGroupsRequest(groups=[self.spec.group_id], include_authorized_operations=False)
                self.call("describe", request, 5)
        elif kind == "describe":
            self._find_unassigned(response.groups[0])
        elif kind == "heartbeat":
            rule = membership.on_heartbeat_response(response.error_code, self._sent, now_ms)
            if rule.reaction is Reaction.RETRY_HEARTBEAT:
                membership.on_heartbeat_failure(now_ms, _BACKOFF_MS)
            elif rule.reaction is Reaction.FENCED:
                self.simulation.fenced(self)
        elif kind == "commit":
            membership.on_commit_response(error_of(response), self._sent)
        elif kind == "fetch":
            self.fetched = error_of(response) == ErrorCode.NONE
            self.commit_due_ms = now_ms + _BACKOFF_MS

    def _find_unassigned(self, group: Any) -> None:
        if not group.error_code and group.group_state == "Stable":
            counts = {topic: PARTITIONS[topic] for topic in self.topics}
            if unassigned(counts, [member.member_assignment for member in group.members]):
                self.membership.request_rejoin("unassigned partitions")

    def _sync(self, joined: Joined) -> None:
        assignments: dict[str, bytes] = {}
        if joined.is_leader and not joined.skip_assignment:
            assignments = self.assign(joined.generation.protocol_name or "", joined.members)
        self._sent = self.membership.generation
        self.call("sync", self.membership.sync_request(assignments), self.versions.sync, _JOIN_TIMEOUT_MS)

    def _rebalance_failed(self, rule: ResponseRule, code: int) -> None:
        if rule.reaction is Reaction.REJOIN_AFTER_BACKOFF:
            self.membership.retry_after(self.simulation.time.now_ms, _BACKOFF_MS)
        elif rule.reaction is Reaction.FENCED:
            self.simulation.fenced(self)
        elif rule.reaction is Reaction.FAIL:
            self.refused(rule.code or code)

    def on_lost(self, kind: str) -> None:
        now_ms, membership = self.simulation.time.now_ms, self.membership
        if kind in ("join", "sync"):
            membership.on_rebalance_failure(f"no response to {kind}")
            membership.retry_after(now_ms, _BACKOFF_MS)
        elif kind == "heartbeat":
            membership.on_heartbeat_failure(now_ms, _BACKOFF_MS)


class EagerConsumer(Client):
    """A minimal eager consumer."""

    def __init__(self, simulation: SimulationRun, name: str, spec: Spec) -> None:
        super().__init__(simulation, name, spec)
        self.member_id = ""
        self.generation_id = -1
        self.owned: Sequence[TopicPartition] = ()
        self._protocol_name = ""
        self._joined_with = self.topics
        self._rejoins = True
        self._retry_at_ms = self._heartbeat_due_ms = 0

    @property
    def settled(self) -> bool:
        return not self._rejoins and self.fetched

    def resubscribe(self, topics: str) -> None:
        self.topics = tuple(topics)
        self._rejoins = True

    def step(self) -> None:
        now_ms = self.simulation.time.now_ms
        if now_ms < self._retry_at_ms:
            self.wake_at(self._retry_at_ms)
        elif self._rejoins and self.owned:
            self.keep_former_generation()
            partitions, self.owned = self.owned, ()
            self.commit(partitions)
        elif self._rejoins:
            self._joined_with = self.topics
            metadata = write_subscription(Subscription(self.topics))
            protocols = [(name, metadata) for name in self.protocol_names]
            request = join_request(
                self.spec.group_id, self.member_id, self.instance_id, protocols, SESSION_MS, REBALANCE_MS
            )
            self.call("join", request, self.versions.join, _JOIN_TIMEOUT_MS)
        elif now_ms >= self._heartbeat_due_ms:
            self._heartbeat_due_ms = now_ms + HEARTBEAT_MS
            self.call("heartbeat", self._heartbeat_request(self.member_id, self.generation_id), self.versions.heartbeat)
        elif not self.fetched:
            self.fetch()
        elif self.owned and now_ms >= self.commit_due_ms:
            self.commit(self.owned)
        else:
            self.wake_at(min(self._heartbeat_due_ms, self.commit_due_ms if self.owned else self._heartbeat_due_ms))

    def on_response(self, kind: str, response: Any) -> None:
        code = error_of(response)
        if code == _FENCED:
            self.simulation.fenced(self)
        elif code in _REFUSED:
            self.refused(code)
        elif kind == "fetch":
            self.fetched = code == ErrorCode.NONE
            self._retry_at_ms = self.simulation.time.now_ms + (0 if self.fetched else _BACKOFF_MS)
        elif code == ErrorCode.NONE:
            self._succeeded(kind, response)
        else:
            self._failed(kind, code, response)

    def _succeeded(self, kind: str, response: Any) -> None:
        if kind == "join":
            self.member_id, self.generation_id = response.member_id, response.generation_id
            self._protocol_name = response.protocol_name or ""
            assignments: dict[str, bytes] = {}
            if response.leader == response.member_id and not response.skip_assignment:
                members = [(m.member_id, m.group_instance_id, bytes(m.metadata)) for m in response.members]
                assignments = self.assign(self._protocol_name, members)
            request = sync_request(
                self.spec.group_id,
                self.member_id,
                self.generation_id,
                self.instance_id,
                self._protocol_name,
                assignments,
            )
            self.call("sync", request, self.versions.sync, _JOIN_TIMEOUT_MS)
        elif kind == "sync":
            self.owned = read_assignment(bytes(response.assignment)).partitions
            self._rejoins = self._joined_with != self.topics
            self.fetched = not self.owned
            self._heartbeat_due_ms = self.simulation.time.now_ms + HEARTBEAT_MS

    def _failed(self, kind: str, code: int, response: Any) -> None:
        now_ms = self.simulation.time.now_ms
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return
        if code in _OUT:
            self.keep_former_generation()
            self.generation_id, self.owned, self._rejoins = -1, (), True
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoins = True
        if kind in ("join", "sync"):
            self._rejoins = True
        self._retry_at_ms = now_ms + (_BACKOFF_MS if kind != "heartbeat" else 0)

    def on_lost(self, kind: str) -> None:
        if kind in ("join", "sync"):
            self._rejoins = True
            self._retry_at_ms = self.simulation.time.now_ms + _BACKOFF_MS
