"""Cases of the group protocol on two coordinators, step by step.

A case is a function that gets a `GroupScenario`. `EmbeddedGroup` plays it on the embedded coordinator with a manual
clock, as docs/protocol.md shows it, and records its steps. `KafkaGroup` plays it on a real Kafka by sockets, and
compares each step with the recorded one: a step ends when everything that the recorded one has is there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from support.compared_sides import ComparedSide, Request
from support.kafka_cluster import OFFSETS_TOPIC
from support.raw_broker import fetch_request
from support.waiting import wait_until

from spark_groupsource.errors import ErrorCode, error_name
from spark_groupsource.model import coordinator_partition
from spark_groupsource.notebook.group_scenario import (
    HEARTBEATS_END,
    REBALANCE_TIMEOUT_MS,
    REQUEST_VERSIONS,
    SESSION_TIMEOUT_MS,
    EntryKind,
    GroupScenario,
    ScenarioMember,
    fields_text,
    record_text,
)
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.group_records import (
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_value,
)
from spark_groupsource.wire.messages import DescribeGroupsRequest, JoinGroupRequest

PlayedCase = Callable[[GroupScenario], None]

_FETCH_VERSION = 11
_MOVE, _EXPIRATION = "the coordinator moves", "offsets expire"
_EXPIRATION_S = 120
_STEP_S = 20
_POLL_S = 0.02
_SLOWER = 20  # a step that takes long is looked at every 20th of its time
_HEARTBEAT_S = 0.1
_GENERATED_ID = re.compile(r"([\w-]+?)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")


class CaseStep(NamedTuple):
    """What a request of a case, or the time that passes, has led to; member ids are `a-1`, and without hosts.

    Attributes:
        at_ms: the time of the case at the end of the step.
        responses: those that arrived, sorted.
        heartbeats: the responses to the heartbeats of `advance`; equal ones in a row are one.
        waiting: the members whose requests wait for a response.
        group: the response to DescribeGroups.
        records: those that were appended to `__consumer_offsets`.
        timer_step: the number of the step that set the timer that fired last, None if no timer had an effect.
    """

    action: str
    at_ms: int
    responses: tuple[str, ...]
    heartbeats: tuple[str, ...]
    waiting: tuple[str, ...]
    group: str
    records: tuple[str, ...]
    timer_step: int | None = None


class CaseTiming(NamedTuple):
    """The time of a case on Kafka. Timeouts are those of the page, except that of the timer that fires.

    Attributes:
        timeout_ms: the session timeout of the member `dying`, without such a member the rebalance timeout of all.
        scale: real milliseconds of a millisecond of the case. None: `advance` ends as soon as it has had its effect, at
            once if it has none.
    """

    timeout_ms: int | None = None
    dying: str | None = None
    scale: float | None = None


class EmbeddedGroup(GroupScenario):
    """The embedded coordinator; `steps` has the steps of the case."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.steps: list[CaseStep] = []
        self._received: list[str] = []
        self._waiting_members: set[str] = set()
        self._recorded = 0
        self._timer_steps: dict[str, int] = {}

    def send(self, request_member: ScenarioMember, request: Any, on_response: Callable[[Any], None] | None) -> None:
        """See `GroupScenario`."""

        def receive(response: Any) -> None:
            self._waiting_members.discard(request_member.name)
            self._received.append(_response_text(request_member.name, request, response))
            if on_response is not None:
                on_response(response)

        before = len(self.entries)
        self._waiting_members.add(request_member.name)
        super().send(request_member, request, receive)
        self._end_step(_action(request_member.name, request), before)

    def advance(self, duration_ms: int, *, heartbeats: Collection[ScenarioMember] = ()) -> None:
        """See `GroupScenario`."""
        before = len(self.entries)
        super().advance(duration_ms, heartbeats=heartbeats)
        shown = [entry for entry in self.entries[before:] if entry.kind is EntryKind.RESPONSE]
        answers = [f"{entry.member} {entry.summary}" for entry in shown if entry.text.startswith("Heartbeat ")]
        self._end_step(f"advance {duration_ms}", before, _without_repetitions(answers))

    def move_coordinator(self) -> None:
        """See `GroupScenario`."""
        before = len(self.entries)
        super().move_coordinator()
        self._end_step(_MOVE, before)

    def expire_offsets(self) -> None:
        """See `GroupScenario`."""
        before = len(self.entries)
        super().expire_offsets()
        self._end_step(_EXPIRATION, before)

    def _end_step(self, action: str, before: int, heartbeats: tuple[str, ...] = ()) -> None:
        """Adds a step with the entries from the number `before` on."""
        timer_step = None
        for entry in self.entries[before:]:
            if entry.kind is EntryKind.TIMER and " set to " in entry.text:
                self._timer_steps[entry.text.partition(" set to ")[0]] = len(self.steps)
            elif entry.kind is EntryKind.TIMER_FIRED:
                timer_step = self._timer_steps.get(entry.text, timer_step)
        records = _in_order(action, [_record_line(key, value) for key, value in self.log[self._recorded :]])
        self._recorded = len(self.log)
        group, waiting = _described_text(self.describe()), tuple(sorted(self._waiting_members))
        step = CaseStep(
            action, self.now_ms, tuple(sorted(self._received)), heartbeats, waiting, group, records, timer_step
        )
        self._received.clear()
        self.steps.append(step)


class KafkaGroup(GroupScenario):
    """A group of a real Kafka that is expected to have the given steps.

    Args:
        bootstrap_servers: the coordinator of the group.
        partitions: of `__consumer_offsets`.
        move: moves the coordinator, and returns the address of the new one.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        partitions: int,
        expected: Sequence[CaseStep],
        timing: CaseTiming,
        move: Callable[[], str] | None = None,
    ):
        super().__init__(group_id)
        self._side = ComparedSide("Kafka", bootstrap_servers, "")
        self._partition = coordinator_partition(group_id, partitions)
        self._expected = iter(expected)
        self._timing = timing
        self._move = move
        self._started_s: list[float] = []  # of each step
        self._senders: dict[str, tuple[Any, Callable[[Any], None] | None]] = {}
        self._received: list[str] = []
        self._answers: list[str] = []
        self._appended: list[str] = []
        self._offset = 0
        self._short_ids: dict[str, str] = {}

    def play(self, case: PlayedCase) -> None:
        """Raises: AssertionError for the first step that differs."""
        try:
            case(self)
            self._take_responses(0)
            self._take_records()
            left = [step.action for step in self._expected], self._received, self._appended
            assert left == ([], [], []), f"after the last step: {left}"
        finally:
            self._side.close()

    # --- as in GroupScenario

    def send(self, request_member: ScenarioMember, request: Any, on_response: Callable[[Any], None] | None) -> None:
        """See `GroupScenario`."""
        expected = self._begin_step(_action(request_member.name, request))
        if isinstance(request, JoinGroupRequest):
            self._shorten(request, request_member.name)
        self._side.post(request_member.name, Request(request, REQUEST_VERSIONS[request.API_KEY]))
        self._senders[request_member.name] = request, on_response
        self._end_step(expected)

    def _shorten(self, request: Any, name: str) -> None:
        timeout_ms, dying, _ = self._timing
        if timeout_ms is None:
            return
        if dying is None:
            request.rebalance_timeout_ms = timeout_ms
        elif name == dying and request.member_id:  # an id without a member is kept for the session timeout, too
            request.session_timeout_ms = timeout_ms

    def advance(self, duration_ms: int, *, heartbeats: Collection[ScenarioMember] = ()) -> None:
        """See `GroupScenario`."""
        self._end_step(self._begin_step(f"advance {duration_ms}"), heartbeats)

    def move_coordinator(self) -> None:
        """See `GroupScenario`; what waits gets its response from the old coordinator."""
        assert self._move is not None
        expected = self._begin_step(_MOVE)
        address = self._move()
        wait_until(self._has_no_request, "the old coordinator responds")
        self._side.close()
        self._side = ComparedSide("Kafka", address, "")
        self._end_step(expected)

    def _has_no_request(self) -> bool:
        self._take_responses(0)
        return not self._senders

    def expire_offsets(self) -> None:
        """Kafka decides when it checks."""
        self._end_step(self._begin_step(_EXPIRATION), limit_s=_EXPIRATION_S)

    # --- a step

    def _begin_step(self, action: str) -> CaseStep:
        self._started_s.append(time.monotonic())
        expected, named = next(self._expected), self._named(action)
        assert named == expected.action, f"request on Kafka: {named}\npage: {expected.action}"
        return expected

    def _end_step(
        self, expected: CaseStep, heartbeats: Collection[ScenarioMember] = (), limit_s: float = _STEP_S
    ) -> None:
        """Returns when the step has what is expected. Raises: AssertionError after a time limit."""
        earliest_s = self._earliest_s(expected)
        if self._timing.scale is not None and not expected.responses:
            time.sleep(max(earliest_s - time.monotonic(), 0))
        begin_s = time.monotonic()
        senders = dict.fromkeys(heartbeats, 0.0)
        while True:
            self._send_heartbeats(senders)
            self._take_responses(_POLL_S if expected.responses else 0)
            self._take_records()
            found = CaseStep(
                expected.action,
                expected.at_ms,
                tuple(sorted(self._received)),
                _without_repetitions(self._answers),
                tuple(sorted(self._senders)),
                self._named(_described_text(self._describe())),
                _in_order(expected.action, self._appended),
                expected.timer_step,
            )
            if found == expected:
                break
            elapsed_s = time.monotonic() - begin_s
            if elapsed_s > limit_s:
                raise AssertionError("\n".join(_differences(expected, found)))
            time.sleep(max(_POLL_S, min(elapsed_s / _SLOWER, _HEARTBEAT_S)))
        assert time.monotonic() >= earliest_s, f"{expected.action}: a timer fired early"
        for one in (self._received, self._answers, self._appended):
            one.clear()

    def _earliest_s(self, expected: CaseStep) -> float:
        """The time before which the step cannot end: timers do not fire early."""
        if self._timing.scale is not None:
            return self._started_s[0] + expected.at_ms * self._timing.scale / 1000
        if self._timing.timeout_ms is None or expected.timer_step is None:
            return 0
        return self._started_s[expected.timer_step] + self._timing.timeout_ms / 1000

    def _send_heartbeats(self, senders: dict[ScenarioMember, float]) -> None:
        now_s = time.monotonic()
        for member, sent_s in list(senders.items()):
            if not member.member_id or now_s - sent_s < _HEARTBEAT_S:
                continue
            senders[member] = now_s
            request = member.heartbeat_request()
            response = self._side.broker.exchange(request, REQUEST_VERSIONS[request.API_KEY])
            self._answers.append(f"{member.name} {error_name(response.error_code)}")
            if response.error_code in HEARTBEATS_END:
                member.forget()

    def _take_responses(self, timeout_s: float) -> None:
        for name in list(self._senders):
            if not self._side.has_response(name, timeout_s):
                continue
            request, on_response = self._senders.pop(name)
            _, response = self._side.take(name)
            assert response is not None, f"Kafka has closed the connection of {name}."
            self._received.append(self._named(_response_text(name, request, response)))
            if on_response is not None:
                on_response(response)

    def _describe(self) -> Any:
        request = DescribeGroupsRequest(groups=[self.group_id])
        (group,) = self._side.broker.exchange(request, REQUEST_VERSIONS[request.API_KEY]).groups
        return group

    def _take_records(self) -> None:
        request = fetch_request(OFFSETS_TOPIC, self._offset, partition=self._partition)
        (topic,) = self._side.broker.exchange(request, _FETCH_VERSION).responses
        (partition,) = topic.partitions
        if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._move is not None:
            return  # it is about to become the leader
        assert partition.error_code == ErrorCode.NONE, partition
        data = bytes(partition.records or b"")
        for header in iter_batches(data):
            self._offset = header.last_offset + 1
            for record in decode_records(data, header):
                key = record.key or b""
                if getattr(decode_key(key), "group_id", None) == self.group_id:
                    self._appended.append(self._named(_record_line(key, record.value, self._timing)))

    def _named(self, text: str) -> str:
        """Replaces generated member ids by those of the page: in the order in which they become known."""

        def name(match: re.Match[str]) -> str:
            known = [each for each in self._short_ids.values() if each.rpartition("-")[0] == match[1]]
            return self._short_ids.setdefault(match[0], f"{match[1]}-{len(known) + 1}")

        return _GENERATED_ID.sub(name, text)


def _action(name: str, request: Any) -> str:
    return f"{name} -> {api_of(request).name}{fields_text(request, REQUEST_VERSIONS[request.API_KEY])}"


def _response_text(name: str, request: Any, response: Any) -> str:
    if isinstance(request, JoinGroupRequest):
        # Kafka lists the members in the order of a hash table
        response.members = sorted(response.members, key=lambda each: each.member_id)
    return f"{name} <- {api_of(request).name}{fields_text(response, REQUEST_VERSIONS[request.API_KEY])}"


def _described_text(group: Any) -> str:
    group.error_message = None
    group.members = sorted(group.members, key=lambda each: each.member_id)
    for member in group.members:
        member.client_host = ""
    return fields_text(group, REQUEST_VERSIONS[DescribeGroupsRequest.API_KEY])


def _record_line(key: bytes, value: bytes | None, timing: CaseTiming = CaseTiming()) -> str:
    """Returns a record with all fields, without times and hosts; the timeouts are those of the page.

    Kafka writes offsets in version 4, with the topic id, the embedded broker in version 3 (docs/protocol.md).
    """
    decoded = decode_key(key)
    if value is None or not isinstance(decoded, (OffsetKey, GroupKey)):
        return record_text(key, value)
    if isinstance(decoded, OffsetKey):
        offset = decode_offset_value(value)
        return f"{record_text(key, value)} {offset._replace(commit_timestamp_ms=0, topic_id=None)}"
    group = decode_group_value(value)
    members = sorted(group.members, key=lambda each: each.member_id)
    text = record_text(key, encode_group_value(group._replace(members=tuple(members))))
    details = [text, f"version {value[1]}", group.protocol_type]
    for member in members:
        session_ms, rebalance_ms = member.session_timeout_ms, member.rebalance_timeout_ms
        if timing.dying == member.client_id and session_ms == timing.timeout_ms:
            session_ms = SESSION_TIMEOUT_MS
        if timing.dying is None and rebalance_ms == timing.timeout_ms:
            rebalance_ms = REBALANCE_TIMEOUT_MS
        timeouts = f"session {session_ms} rebalance {rebalance_ms}"
        details.append(f"{member.client_id} {member.group_instance_id} {timeouts} {member.subscription!r}")
    return " ".join(details)


def _in_order(action: str, records: Sequence[str]) -> tuple[str, ...]:
    """Kafka writes tombstones of expired offsets in the order of a hash table."""
    return tuple(sorted(records) if action == _EXPIRATION else records)


def _without_repetitions(answers: Sequence[str]) -> tuple[str, ...]:
    """Returns the responses to heartbeats by member; equal ones in a row are one."""
    by_member: dict[str, list[str]] = {}
    for answer in answers:
        row = by_member.setdefault(answer.partition(" ")[0], [])
        if row[-1:] != [answer]:
            row.append(answer)
    return tuple(answer for _, row in sorted(by_member.items()) for answer in row)


def _differences(expected: CaseStep, found: CaseStep) -> Iterator[str]:
    yield f"Kafka differs from the page after: {expected.action}"
    for name, ours, theirs in zip(CaseStep._fields, expected, found):
        if ours != theirs:
            yield f"{name}:\n  page:  {ours}\n  Kafka: {theirs}"
