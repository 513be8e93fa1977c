"""Consumer group on a coordinator with a manual clock, step by step.

A scenario has one coordinator shard, its log and its timers in memory, without threads, sockets or waiting. Each method
of a member sends one request; `GroupScenario.advance` moves the clock. `mermaid` and `listing` show what has happened.

The coordinator is `spark_groupsource.broker.group`, driven as `outcome.py` describes; members send what Kafka's Java
consumer sends with an eager assignor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Callable, NamedTuple, cast

from spark_groupsource.assign import RangeAssignor
from spark_groupsource.broker.group import (
    GroupConfig,
    GroupShard,
    GroupTimer,
    Outcome,
    RequestContext,
    SessionTimer,
    SetTimer,
)
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import ErrorCode, error_name
from spark_groupsource.model import Assignment, GroupMember, Subscription, TopicPartition, by_topic
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_groupsource.wire.group_records import (
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from spark_groupsource.wire.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000
HEARTBEAT_INTERVAL_MS = 3_000

# the newest versions that classic members send, and that of DescribeGroups
REQUEST_VERSIONS: Mapping[int, int] = {
    JoinGroupRequest.API_KEY: 9,
    SyncGroupRequest.API_KEY: 5,
    HeartbeatRequest.API_KEY: 4,
    LeaveGroupRequest.API_KEY: 5,
    OffsetCommitRequest.API_KEY: 8,
    OffsetFetchRequest.API_KEY: 8,
    DescribeGroupsRequest.API_KEY: 6,
}
# after these errors a member sends no heartbeat until it has joined again
HEARTBEATS_END = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class EntryKind(Enum):
    """What an entry of a scenario shows."""

    REQUEST = "->"
    RESPONSE = "<-"
    LOST_RESPONSE = "x-"
    STATE = "state"
    TIMER = "timer"
    TIMER_FIRED = "timer fired"
    RECORD = "record"
    NOTE = "note"


class ScenarioEntry(NamedTuple):
    """One thing that happened; `text` has all fields, `summary` those that a diagram shows."""

    time_ms: int
    kind: EntryKind
    member: str
    text: str
    summary: str


@dataclass(eq=False)
class ScenarioMember:
    """A member of a scenario; its client id is its name.

    Attributes: `topics`, its subscription, which the caller may change, and `owned`, its assignment.
    """

    scenario: GroupScenario
    name: str
    group_instance_id: str | None
    topics: list[str]
    member_id: str = ""
    generation_id: int = -1
    leader_id: str = ""
    owned: tuple[TopicPartition, ...] = ()
    members: list[Any] = field(default_factory=list)
    skips_assignment: bool = False

    def join(self, *, is_response_lost: bool = False) -> None:
        """Sends JoinGroup, and again with its member id if the coordinator requires one (KIP-394)."""
        # an eager assignor: the member has revoked its partitions before it joins
        subscription = Subscription(tuple(self.topics), generation_id=self.generation_id)
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            name=RangeAssignor.name, metadata=encode_subscription(subscription)
        )
        request = JoinGroupRequest(
            group_id=self.scenario.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
            reason=None,
        )
        needs_id = not self.member_id and self.group_instance_id is None
        self.scenario.send(self, request, None if is_response_lost and not needs_id else self._joined)
        if needs_id and self.member_id:
            self.join(is_response_lost=is_response_lost)

    def _joined(self, response: Any) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif response.error_code == ErrorCode.NONE:
            self.member_id, self.generation_id = response.member_id, response.generation_id
            self.leader_id, self.members = response.leader, list(response.members)
            self.skips_assignment = response.skip_assignment
        else:
            self._failed(response.error_code)

    def sync(self, *, is_response_lost: bool = False) -> None:
        """Sends SyncGroup; the leader runs the assignor and adds the assignment of each member."""
        entry = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self.scenario.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=RangeAssignor.name,
            assignments=[
                entry(member_id=member_id, assignment=encode_assignment(Assignment(tuple(partitions))))
                for member_id, partitions in self._assign().items()
            ],
        )
        self.scenario.send(self, request, None if is_response_lost else self._synced)

    def _assign(self) -> Mapping[str, list[TopicPartition]]:
        if self.leader_id != self.member_id or self.skips_assignment:
            return {}
        members = [
            GroupMember(each.member_id, decode_subscription(each.metadata), each.group_instance_id)
            for each in self.members
        ]
        return RangeAssignor().assign(self.scenario.topics, members)

    def _synced(self, response: Any) -> None:
        if response.error_code == ErrorCode.NONE:
            self.owned = decode_assignment(response.assignment).partitions
        else:
            self._failed(response.error_code)

    def heartbeat(self) -> None:
        """Sends Heartbeat."""
        self.scenario.send(self, self.heartbeat_request(), lambda response: self._failed(response.error_code))

    def heartbeat_request(self) -> HeartbeatRequest:
        """Returns the next Heartbeat of this member."""
        return HeartbeatRequest(
            group_id=self.scenario.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
        )

    def commit(self, offset: int, *, generation_id: int | None = None) -> None:
        """Sends OffsetCommit with `offset` for each owned partition, by default in the present generation."""
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition
        request = OffsetCommitRequest(
            group_id=self.scenario.group_id,
            generation_id_or_member_epoch=self.generation_id if generation_id is None else generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        partition(
                            partition_index=number,
                            committed_offset=offset,
                            committed_leader_epoch=0,
                            committed_metadata="",
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(self.owned).items()
            ],
        )
        self.scenario.send(self, request, _ignore)

    def fetch_offsets(self) -> None:
        """Sends OffsetFetch for the owned partitions."""
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [
            group.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
            for name, numbers in by_topic(self.owned).items()
        ]
        entry = group(group_id=self.scenario.group_id, topics=topics)
        self.scenario.send(self, OffsetFetchRequest(groups=[entry], require_stable=True), _ignore)

    def leave(self, reason: str = "the consumer is being closed") -> None:
        """Sends LeaveGroup with the reason (KIP-800)."""
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.group_instance_id, reason=reason
        )
        request = LeaveGroupRequest(group_id=self.scenario.group_id, members=[identity])
        self.scenario.send(self, request, lambda response: self.forget())

    def forget(self) -> None:
        """Forgets member id, generation and partitions, as a restart of the process does."""
        self.member_id, self.generation_id, self.leader_id, self.owned = "", -1, "", ()

    def _failed(self, error_code: int) -> None:
        if error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget()
        elif error_code == ErrorCode.ILLEGAL_GENERATION:
            self.generation_id = -1


class GroupScenario:
    """One group of a coordinator, and what has happened to it.

    Args:
        topics: topic -> number of partitions, which the caller may change.
        config: settings of the coordinator.
    Attributes: `log`, key and value of the records of the group in `__consumer_offsets`.

    In a notebook a scenario is shown as a sequence diagram and a listing.
    """

    def __init__(
        self, group_id: str = "delays", topics: Mapping[str, int] | None = None, config: GroupConfig | None = None
    ) -> None:
        self.group_id = group_id
        self.topics = dict(topics or {"flights": 4})
        self.entries: list[ScenarioEntry] = []
        self._config = config or GroupConfig()
        self._clock = ManualClock()
        self._members: list[ScenarioMember] = []
        self._timers: dict[GroupTimer, int] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self._pending: dict[int, tuple[ScenarioMember, Any, Callable[[Any], None] | None]] = {}
        self._tokens = 0
        self._ids: dict[str, int] = {}
        self._is_silent = False
        self._heartbeats: dict[ScenarioMember, _Heartbeats] = {}
        self._shard = GroupShard(0, self._config)
        self._state = "no group"
        self._shard.on_loaded(self._clock.instant())

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    def member(
        self, name: str, *, group_instance_id: str | None = None, topics: Collection[str] | None = None
    ) -> ScenarioMember:
        """Returns a new member, which has sent nothing yet; it subscribes to all topics by default."""
        member = ScenarioMember(self, name, group_instance_id, list(self.topics if topics is None else topics))
        self._members.append(member)
        return member

    def stable(self, *names: str, static: bool = False) -> list[ScenarioMember]:
        """Returns the members of a Stable group at time 0; the first one is the leader. What they sent is not shown."""
        self._is_silent = True
        members = [self.member(name, group_instance_id=f"{name}-instance" if static else None) for name in names]
        for member in members:
            member.join()
        # a window of the initial delay in which a member has joined is followed by another one
        self.advance(2 * self._config.group_initial_rebalance_delay_ms)
        for member in members:
            member.sync()
        self._is_silent = False
        past_ms = self.now_ms
        self._timers = {key: deadline_ms - past_ms for key, deadline_ms in self._timers.items()}
        self._clock = ManualClock(0, self._clock.timestamp_ms())
        owners = "; ".join(f"{member.member_id} owns {_names(member.owned)}" for member in members)
        self._add(EntryKind.NOTE, f"{self._state}. {owners}.", f"{self._state}<br/>{owners.replace('; ', '<br/>')}")
        return members

    def note(self, text: str) -> None:
        """Adds a sentence to the diagram and the listing."""
        self._add(EntryKind.NOTE, text)

    # --- time

    def advance(self, duration_ms: int, *, heartbeats: Collection[ScenarioMember] = ()) -> None:
        """Moves the clock; timers fire on the way, and the named members send heartbeats every 3,000 ms.

        Heartbeats with the same response are one entry. A member whose heartbeat is rejected sends no more.
        """
        end_ms = self.now_ms + duration_ms
        due = {member: self.now_ms + HEARTBEAT_INTERVAL_MS for member in heartbeats}
        while True:
            timer = min(self._timers, key=lambda key: self._timers[key], default=None)
            timer_ms = end_ms + 1 if timer is None else self._timers[timer]
            sender = min(due, key=lambda member: due[member], default=None)
            sender_ms = end_ms + 1 if sender is None else due[sender]
            if min(timer_ms, sender_ms) > end_ms:
                break
            self._clock.advance_ms(max(min(timer_ms, sender_ms) - self.now_ms, 0))
            if timer is not None and timer_ms <= sender_ms:
                self._fire(timer)
            elif sender is not None:
                due[sender] += HEARTBEAT_INTERVAL_MS
                if self._send_heartbeat(sender) in HEARTBEATS_END:
                    del due[sender]
        self._clock.advance_ms(end_ms - self.now_ms)
        self._add_heartbeats()

    def _fire(self, timer: GroupTimer) -> None:
        text = self._timer_text(timer)
        del self._timers[timer]
        outcome = self._shard.expire(timer, self._clock.instant())
        effect = "" if outcome != Outcome() else ", without effect: a delayed response keeps the member alive"
        self._add(EntryKind.TIMER_FIRED, text + effect, f"timer fired: {text}")
        self._settle(outcome)

    def _send_heartbeat(self, member: ScenarioMember) -> int:
        request = member.heartbeat_request()
        outcome = self._shard.handle(request, self._context(member, request), self._clock.instant())
        (reply,) = outcome.replies
        error = int(getattr(reply.response, "error_code"))
        run = self._heartbeats.get(member)
        if run is not None and run.error_code != error:
            self._add_heartbeats()
            run = None
        if run is None:
            run = self._heartbeats[member] = _Heartbeats(request, error, self.now_ms)
        run.count, run.last_ms = run.count + 1, self.now_ms
        for timer in outcome.timers:  # of a heartbeat: its session timer
            if isinstance(timer, SetTimer):
                self._timers[timer.key] = run.session_ends_ms = timer.deadline_ms
        if error in HEARTBEATS_END:
            self._add_heartbeats()
            member.forget()
        return error

    def _add_heartbeats(self) -> None:
        runs, self._heartbeats = self._heartbeats, {}
        for member, run in runs.items():
            version = REQUEST_VERSIONS[HeartbeatRequest.API_KEY]
            times = "" if run.count == 1 else f" ({run.count} times since {run.first_ms} ms)"
            sent = f"Heartbeat v{version}{times}{fields_text(run.request, version)}"
            short = "Heartbeat" if run.count == 1 else f"Heartbeat, {run.count} times"
            self._append(ScenarioEntry(run.last_ms, EntryKind.REQUEST, member.name, sent, short))
            if run.session_ends_ms is not None:
                text = f"session {run.request.member_id} set to {run.session_ends_ms}"
                self._append(ScenarioEntry(run.last_ms, EntryKind.TIMER, "", text, ""))
            received = f"Heartbeat error_code={error_name(run.error_code)}"
            short = error_name(run.error_code)
            self._append(ScenarioEntry(run.last_ms, EntryKind.RESPONSE, member.name, received, short))

    # --- requests

    def send(self, request_member: ScenarioMember, request: Any, on_response: Callable[[Any], None] | None) -> None:
        """Sends a request of a member; without `on_response`, the response is lost on its way."""
        context = self._context(request_member, request)
        self._pending[self._tokens] = (request_member, request, on_response)
        version = context.api_version
        text = f"{api_of(request).name} v{version}{fields_text(request, version)}"
        self._add(EntryKind.REQUEST, text, _request_summary(request), request_member)
        self._settle(self._shard.handle(request, context, self._clock.instant()))

    def _context(self, member: ScenarioMember, request: Any) -> RequestContext:
        self._tokens += 1
        if isinstance(request, JoinGroupRequest) and not request.member_id:
            self._ids[member.name] = self._ids.get(member.name, 0) + 1
        uuid = str(self._ids.get(member.name, 0))
        return RequestContext(self._tokens, REQUEST_VERSIONS[request.API_KEY], member.name, "/10.0.0.7", uuid)

    # --- the coordinator

    def describe(self) -> DescribeGroupsResponse.DescribedGroup:
        """Returns the group as DescribeGroups does."""
        request = DescribeGroupsRequest(groups=[self.group_id])
        self._tokens += 1
        context = RequestContext(self._tokens, REQUEST_VERSIONS[request.API_KEY], "", "/10.0.0.7", "")
        (reply,) = self._shard.handle(request, context, self._clock.instant()).replies
        (group,) = cast(DescribeGroupsResponse, reply.response).groups
        return group

    def move_coordinator(self) -> None:
        """Unloads the coordinator and loads another one, which replays the records."""
        self.note("The partition of __consumer_offsets gets another leader: the coordinator unloads the group.")
        unloaded = self._shard.on_unloaded(self._clock.instant())
        for timer in list(self._timers):
            self._add(EntryKind.TIMER, f"{self._timer_text(timer)} cancelled")
        self._timers.clear()
        self._settle(unloaded)
        self._shard = GroupShard(0, self._config)
        for key, value in self.log:
            self._shard.replay(key, value)
        self.note(f"The new coordinator has replayed {len(self.log)} records.")
        self._settle(self._shard.on_loaded(self._clock.instant()))

    def expire_offsets(self) -> None:
        """Runs the check of offsets.retention.check.interval.ms."""
        self.note("The coordinator looks for expired offsets (offsets.retention.check.interval.ms).")
        self._settle(self._shard.expire_offsets(self._clock.instant()))

    def _settle(self, outcome: Outcome) -> None:
        """Applies an outcome; outcome.py describes the order."""
        self._add_state()
        for timer in outcome.timers:
            if isinstance(timer, SetTimer):
                self._timers[timer.key] = timer.deadline_ms
                self._add(EntryKind.TIMER, f"{self._timer_text(timer.key)} set to {timer.deadline_ms}")
            elif timer.key in self._timers:
                del self._timers[timer.key]
                self._add(EntryKind.TIMER, f"{self._timer_text(timer.key)} cancelled")
        for key, value, _ in outcome.records:
            self.log.append((key, value))
            text = record_text(key, value)
            self._add(EntryKind.RECORD, text, text.partition(", members")[0])
        self._shard.replay_appended(outcome, outcome.records)
        for reply in outcome.replies:
            assert isinstance(reply.token, int)
            self._respond(*self._pending.pop(reply.token), reply.response)
        if outcome.records:
            self._settle(self._shard.append_succeeded(outcome, self._clock.instant()))

    def _respond(
        self, member: ScenarioMember, request: Any, on_response: Callable[[Any], None] | None, response: Any
    ) -> None:
        name = api_of(request).name
        kind = EntryKind.LOST_RESPONSE if on_response is None else EntryKind.RESPONSE
        text = f"{name}{fields_text(response, REQUEST_VERSIONS[request.API_KEY])}"
        self._add(kind, text, f"{name} {_response_summary(response)}", member)
        if on_response is not None:
            on_response(response)

    def _add_state(self) -> None:
        group = self._shard.group(self.group_id)
        if group is None:
            state = self._state if self._state == "no group" else "Dead"
        else:
            state = f"{group.state.value}, generation {group.generation_id}"
        if state != self._state:
            self._state = state
            self._add(EntryKind.STATE, state)

    def _timer_text(self, timer: GroupTimer) -> str:
        if not isinstance(timer, SessionTimer):
            return timer.kind
        group = self._shard.groups.get(self.group_id)
        member = None if group is None else group.members.get(timer.member_id)
        if group is not None and timer.member_id in group.pending_joins:
            return f"pending member id {timer.member_id}"
        return f"{'new member' if member is not None and member.is_new else 'session'} {timer.member_id}"

    # --- what happened

    def _add(
        self, kind: EntryKind, text: str, summary: str | None = None, member: ScenarioMember | None = None
    ) -> None:
        self._add_heartbeats()
        name = "" if member is None else member.name
        self._append(ScenarioEntry(self.now_ms, kind, name, text, text if summary is None else summary))

    def _append(self, entry: ScenarioEntry) -> None:
        if not self._is_silent:
            self.entries.append(entry)

    def listing(self) -> str:
        """Returns one line for each entry, with the time in milliseconds where it changes."""
        lines, last_ms = [f"{'ms':>9}"], -1
        for time_ms, kind, member, text, _ in self.entries:
            time = "" if time_ms == last_ms else str(time_ms)
            head = f"{member} {kind.value}" if member else f"{kind.value}:"
            lines.append(f"{time:>9}  {head} {text}")
            last_ms = time_ms
        return "\n".join(lines)

    def mermaid(self) -> str:
        """Returns a sequence diagram: requests, responses, records, states and the timers that fired."""
        ids = {member.name: f"m{number}" for number, member in enumerate(self._members)}
        lines = ["sequenceDiagram", *(f"    participant {id_} as {_mermaid(name)}" for name, id_ in ids.items())]
        lines += ["    participant G as coordinator", "    participant O as __consumer_offsets"]
        last_ms = -1
        for time_ms, kind, member, _, summary in self.entries:
            if kind is EntryKind.TIMER:
                continue
            if time_ms != last_ms:
                lines.append(f"    Note over m0,O: {time_ms:,} ms")
                last_ms = time_ms
            lines.append(f"    {_arrow(kind, ids.get(member, ''))}: {_mermaid(summary)}")
        return "\n".join(lines)

    def markdown(self) -> str:
        """Returns the diagram and the listing."""
        return f"```mermaid\n{self.mermaid()}\n```\n\n```text\n{self.listing()}\n```\n"

    _repr_markdown_ = markdown  # JupyterLab and Notebook 7 draw Mermaid

    def __repr__(self) -> str:
        return self.listing()


@dataclass
class _Heartbeats:
    """Consecutive heartbeats of one member with the same response."""

    request: HeartbeatRequest
    error_code: int
    first_ms: int
    last_ms: int = 0
    count: int = 0
    session_ends_ms: int | None = None


def _ignore(_: Any) -> None:
    """The response changes nothing in the member."""


def _mermaid(text: str) -> str:
    """Escapes the characters that end a statement or start an escape."""
    return text.translate({ord("#"): "#35;", ord(";"): "#59;"})


def _arrow(kind: EntryKind, member: str) -> str:
    return {
        EntryKind.REQUEST: f"{member}->>G",
        EntryKind.RESPONSE: f"G-->>{member}",
        EntryKind.LOST_RESPONSE: f"G--x{member}",
        EntryKind.RECORD: "G->>O",
        EntryKind.STATE: "Note over G",
        EntryKind.TIMER_FIRED: "Note over G",
        EntryKind.NOTE: "Note over m0,O",
    }[kind]


def _request_summary(request: Any) -> str:
    name = api_of(request).name
    generation = getattr(request, "generation_id", getattr(request, "generation_id_or_member_epoch", None))
    return name if generation is None else f"{name}, generation {generation}"


def _response_summary(response: Any) -> str:
    error = getattr(response, "error_code", None)
    if error is None:  # OffsetCommit has an error for each partition
        error = response.topics[0].partitions[0].error_code
    parts = [error_name(error)]
    if error == ErrorCode.NONE and hasattr(response, "leader"):
        parts.append(f"generation {response.generation_id}, leader {response.leader}")
    elif error == ErrorCode.NONE and hasattr(response, "assignment"):
        parts.append(_assignment_text(response.assignment))
    return ", ".join(parts)


def record_text(key: bytes, value: bytes | None) -> str:
    """Returns one record of `__consumer_offsets` as a line."""
    decoded = decode_key(key)
    if isinstance(decoded, OffsetKey):
        name = f"offset of {decoded.topic}-{decoded.partition}"
        return f"{name}: {'tombstone' if value is None else decode_offset_value(value).offset}"
    if not isinstance(decoded, GroupKey):
        return f"key version {decoded.version}"
    if value is None:
        return "group: tombstone"
    group = decode_group_value(value)
    parts = [f"group: generation {group.generation_id}"]
    if group.members:
        parts.append(f"leader {group.leader}, protocol {group.protocol_name}")
    members = [f"{each.member_id} {_assignment_text(each.assignment)}" for each in group.members]
    return ", ".join([*parts, f"members {', '.join(members)}" if members else "members none"])


def fields_text(message: Any, version: int) -> str:
    """Returns the fields of a version that have no default value, by name, without group id and protocol type."""
    shown = []
    for name in (each.name for each in message.FIELDS if version in each.versions):
        text = _field_text(name, getattr(message, name), version)
        if text:
            shown.append(f"{_NAMES.get(name, name)}={text}")
    return f" {' '.join(shown)}" if shown else ""


def _field_text(name: str, value: Any, version: int) -> str:
    if name == "error_code":
        return error_name(value)
    if name in _DECODERS and value:
        return _DECODERS[name](value)
    if name in _OMITTED or _DEFAULTS.get(name) == value:
        return ""
    if isinstance(value, (list, tuple)):
        items = [_item_text(item, version) for item in value]
        return f"[{', '.join(items)}]" if items else ""
    return "" if value is None or value is False or value in ("", b"") else str(value)


def _item_text(item: Any, version: int) -> str:
    return fields_text(item, version).strip() if hasattr(item, "FIELDS") else str(item)


def _subscription_text(data: bytes) -> str:
    subscription = decode_subscription(data)
    return f"(topics {','.join(subscription.topics)}, generation {subscription.generation_id})"


def _assignment_text(data: bytes) -> str:
    return f"({_names(decode_assignment(data).partitions)})" if data else "()"


def _names(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"


_NAMES: Mapping[str, str] = {
    "generation_id_or_member_epoch": "generation_id",
    "committed_leader_epoch": "leader_epoch",
    "partition_index": "partition",
    "partition_indexes": "partitions",
}
_OMITTED = ("group_id", "protocol_type")
_DEFAULTS: Mapping[str, int] = {"throttle_time_ms": 0, "committed_leader_epoch": -1, "retention_time_ms": -1}
_DECODERS: Mapping[str, Callable[[bytes], str]] = {
    "metadata": _subscription_text,
    "member_metadata": _subscription_text,
    "assignment": _assignment_text,
    "member_assignment": _assignment_text,
}
