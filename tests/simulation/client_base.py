"""Base of simulated clients: one request at a time, pauses, shutdown."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

from simulation.group_requests import Versions, commit_request, fetch_request, leave_request, transactional_request

from spark_groupsource.assign import load_assignor
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Assignment, GroupMember, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_groupsource.wire.messages import HeartbeatRequest

if TYPE_CHECKING:
    from simulation.run import SimulationRun

SESSION_MS = 600
PARTITIONS = {"x": 3, "y": 2}
_TIMEOUT_MS = 250
_COMMIT_MS = 350
_REMEMBERED: Any = lru_cache(maxsize=1_000)
read_subscription: Callable[[bytes], Subscription] = _REMEMBERED(decode_subscription)
read_assignment: Callable[[bytes], Assignment] = _REMEMBERED(decode_assignment)
write_subscription: Callable[[Subscription], bytes] = _REMEMBERED(encode_subscription)


class Spec(NamedTuple):
    """Configuration of a client."""

    group_id: str
    make: str
    topics: str
    instance: str
    protocols: str
    version: int


class Client:
    """Base of both clients: one request at a time, pauses, shutdown."""

    def __init__(self, simulation: SimulationRun, name: str, spec: Spec) -> None:
        self.simulation = simulation
        self.name = name
        self.spec = spec
        self.topics = tuple(spec.topics)
        self.instance_id = None if spec.instance == "-" else spec.instance
        self.protocol_names = spec.protocols.split("+")
        self.versions = Versions.of(spec.version)
        self.stopped = ""
        self.paused_until_ms = 0
        self.before: tuple[str, int, Sequence[TopicPartition]] | None = None
        self.fetched = True
        self.commit_due_ms = 0
        self._requests_sent = 0
        self._awaited = 0
        self._awaited_kind = ""
        self._wake = 0

    # --- implemented by subclasses

    member_id: str
    generation_id: int
    owned: Sequence[TopicPartition]

    @property
    def settled(self) -> bool:
        """Whether it owns its assignment and needs no rebalance."""
        raise NotImplementedError

    def step(self) -> None:
        """Sends the next request, if any; called while no response is pending."""
        raise NotImplementedError

    def on_response(self, kind: str, response: Any) -> None:
        raise NotImplementedError

    def on_lost(self, kind: str) -> None:
        raise NotImplementedError

    def resubscribe(self, topics: str) -> None:
        raise NotImplementedError

    # --- events

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    def leave(self) -> None:
        """Shuts down; a dynamic member leaves the group."""
        if not self.stopped and self.instance_id is None and self.member_id:
            request = leave_request(self.spec.group_id, self.member_id, self.versions)
            self._send(request, self.versions.leave, lambda response: None)
        self.stop("left")

    def disconnected(self) -> None:
        """Handles a lost connection."""
        if self._awaited:
            self.simulation.time.call_in(1, self._lose, self._awaited)

    def act_stale(self) -> None:
        """Sends a commit and a heartbeat of the previous generation."""
        if self.before is None or self.stopped:
            return
        member_id, generation_id, owned = self.before
        request = self._heartbeat_request(member_id, generation_id)
        self._send(request, self.versions.heartbeat, lambda response: None)
        if owned:
            commit = self._commit_request(member_id, generation_id, owned)
            self._send(commit, self.versions.commit, lambda response: None)

    def act_transactionally(self, producer_id: int) -> None:
        """Commits its partitions in a transaction."""
        if self.owned and not self.stopped:
            offsets = {partition: self.simulation.next_offset() for partition in self.owned}
            request = transactional_request(
                self.spec.group_id, self.member_id, self.generation_id, self.instance_id, offsets, producer_id
            )
            self._send(request, 3, lambda response: None)

    # --- sending

    def call(self, kind: str, request: Any, version: int, timeout_ms: int = _TIMEOUT_MS) -> None:
        self._requests_sent += 1
        request_number = self._awaited = self._requests_sent
        self._awaited_kind = kind
        self._send(request, version, lambda response: self._take(request_number, response))
        self.simulation.time.call_in(timeout_ms, self._lose, request_number)

    def _send(self, request: Any, version: int, on_response: Callable[[Any], None]) -> None:
        self.simulation.link(self.name).send(request, version, on_response, in_bytes=self.spec.version < 9)

    def wake_at(self, at_ms: int) -> None:
        self._wake += 1
        self.simulation.time.call_at(at_ms, self._woken, self._wake)

    def go(self) -> None:
        """Continues, unless it is stopped, paused or waits for a response."""
        if self.stopped or self._awaited:
            return
        if self.simulation.time.now_ms < self.paused_until_ms:
            self.wake_at(self.paused_until_ms)
        else:
            self.step()

    def _woken(self, wake: int) -> None:
        if wake == self._wake:
            self.go()

    def _take(self, request_number: int, response: Any) -> None:
        if self.stopped or request_number != self._awaited:
            return
        if self.simulation.time.now_ms < self.paused_until_ms:
            self.simulation.time.call_at(self.paused_until_ms, self._take, request_number, response)
            return
        self._awaited = 0
        self.on_response(self._awaited_kind, response)
        self.go()

    def _lose(self, request_number: int) -> None:
        if self.stopped or request_number != self._awaited:
            return
        if self.simulation.time.now_ms < self.paused_until_ms:
            # a response that arrived during the pause is read first
            self.simulation.time.call_at(self.paused_until_ms + 1, self._lose, request_number)
            return
        self._awaited = 0
        self.on_lost(self._awaited_kind)
        self.go()

    # --- requests

    def commit(self, partitions: Sequence[TopicPartition]) -> None:
        self.commit_due_ms = self.simulation.time.now_ms + _COMMIT_MS
        request = self._commit_request(self.member_id, self.generation_id, partitions)
        self.call("commit", request, self.versions.commit)

    def fetch(self) -> None:
        request = fetch_request(self.spec.group_id, self.owned, self.versions)
        self.call("fetch", request, self.versions.fetch)

    def _commit_request(self, member_id: str, generation_id: int, partitions: Sequence[TopicPartition]) -> Any:
        offsets = {partition: self.simulation.next_offset() for partition in partitions}
        return commit_request(self.spec.group_id, member_id, generation_id, self.instance_id, offsets)

    def _heartbeat_request(self, member_id: str, generation_id: int) -> Any:
        return HeartbeatRequest(
            group_id=self.spec.group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=self.instance_id,
        )

    def keep_former_generation(self) -> None:
        """Keeps the current generation for `act_stale`."""
        self.before = (self.member_id, self.generation_id, self.owned)

    def refused(self, code: int) -> None:
        """Handles rejection by the group."""
        self.simulation.refused(self, ErrorCode(code))

    def assign(self, name: str, members: Sequence[tuple[str, str | None, bytes]]) -> dict[str, bytes]:
        """Returns the assignment of this leader."""
        known = [GroupMember(member_id, read_subscription(data), i) for member_id, i, data in members]
        topics = sorted({topic for member in known for topic in member.subscription.topics})
        shares = load_assignor(name).assign({topic: PARTITIONS[topic] for topic in topics}, known)
        return {member_id: encode_assignment(Assignment(tuple(share))) for member_id, share in shares.items()}
