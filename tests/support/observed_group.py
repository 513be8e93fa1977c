"""A simulated group, as each source of its rebalances sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.group_context import GROUP, GroupContext, ResponseHandle

from spark_groupsource.broker.group import GroupConfig
from spark_groupsource.client.membership.member_events import MemberEvents
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.monitor.rebalances.group_history import GroupLog
from spark_groupsource.wire.commit_reports import author_metadata, decode_report, encode_report
from spark_groupsource.wire.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from spark_groupsource.wire.group_events import Cause, GroupEvent, decode_event, encode_event
from spark_groupsource.wire.group_records import GroupKey, OffsetKey, decode_group_value, decode_key
from spark_groupsource.wire.member_reasons import ALREADY_REBALANCING
from spark_groupsource.wire.messages import LeaveGroupRequest

SESSION_MS = 10_000
POLL_MS = 60_000
COMMIT_MS = 1_000
CONFIG = GroupConfig(group_initial_rebalance_delay_ms=50, offsets_retention_minutes=60)


@dataclass(eq=False)
class ObservedMember:
    """A member in a process of its own, which reports its events.

    Attributes:
        is_alive: it sends heartbeats.
        is_busy: a batch is in flight, so it neither commits nor joins.
    """

    client_id: str
    events: MemberEvents
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: tuple[TopicPartition, ...] = ()
    is_alive: bool = True
    is_busy: bool = False
    reported: int = 0


class _Join(NamedTuple):
    """A JoinGroup and its response."""

    member: ObservedMember
    handle: ResponseHandle
    reason: str
    sent_ms: int
    is_new: bool


class _Context(GroupContext):
    """Notes the time of each record."""

    def __init__(self, history: Sequence[tuple[Any, ...]] = (), now_ms: int = 1_000) -> None:
        self.times: list[int] = []
        super().__init__(CONFIG, history=history, now_ms=now_ms)

    def _write(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        super()._write(key, value, producer_id)
        self.times.append(self.clock.timestamp_ms())


@dataclass
class ObservedGroup:
    """Members that rebalance, and what each source has of it.

    Attributes:
        partitions: of each topic.
        reports: events in the metadata of the commits.
    """

    assignors: tuple[str, ...] = ("range",)
    partitions: int = 6
    members: dict[str, ObservedMember] = field(default_factory=dict)
    reports: list[GroupEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = _Context()
        self._events: list[GroupEvent] = []
        # (time, leader epoch of the partition of __consumer_offsets, key, value)
        self._records: list[tuple[int, int, bytes, bytes | None]] = []
        self._epoch = 0
        self._written = 0

    # -- what the sources have ---------------------------------------------------------------------------------------

    @property
    def events(self) -> list[GroupEvent]:
        """Those of the coordinator, through JSON, as another process reads them."""
        return [decode_event(encode_event(event)) for event in [*self._events, *self._context.events]]

    @property
    def now_ms(self) -> int:
        return self._context.clock.timestamp_ms()

    def log(self, has_records: bool = True, has_reports: bool = True) -> GroupLog:
        """The group in `__consumer_offsets`."""
        self._take_records()
        log = GroupLog(reports=self.reports if has_reports else [])
        for at_ms, epoch, data, value in self._records if has_records else ():
            key = decode_key(data)
            if isinstance(key, GroupKey):
                decoded = None if value is None else decode_group_value(value)
                log.records.append(log.tracker.record(at_ms, decoded, epoch))
            elif isinstance(key, OffsetKey) and value is not None:
                log.tracker.commit(TopicPartition(key.topic, key.partition), at_ms)
        return log

    # -- actions -----------------------------------------------------------------------------------------------------

    def add(self, client_id: str, instance: str | None = None, topics: Sequence[str] = ("t",)) -> ObservedMember:
        """A new process, which has not joined yet."""
        member = ObservedMember(client_id, MemberEvents(GROUP), tuple(topics), self.assignors, instance)
        self.members[client_id] = member
        return member

    def run(self, duration_ms: int) -> None:
        """Time passes; the members send heartbeats and commit."""
        for _ in range(duration_ms // COMMIT_MS):
            self._context.advance(COMMIT_MS)
            for member in self.members.values():
                self._beat(member)
                if member.is_alive and not member.is_busy and member.owned:
                    self.commit(member)

    def rebalance(self, *first: ObservedMember, reason: str = "") -> None:
        """Members send JoinGroup, the others follow when they are notified, and all synchronize."""
        joining = [self._join(member, reason) for member in first]
        self._context.advance(200)
        for member in self.members.values():
            if member.is_alive and member.generation >= 0 and member not in first:
                self._beat(member)
                if not member.is_busy:
                    joining.append(self._join(member, ALREADY_REBALANCING))
                    self._context.advance(10)
        while any(join.handle.is_delayed for join in joining):
            self._context.advance(COMMIT_MS)
            for member in self.members.values():
                if member.is_busy:
                    self._beat(member)
        self._complete(joining)

    def leave(self, member: ObservedMember, cause: Cause, reason: str, client_id: str | None = None) -> None:
        """Sends LeaveGroup; `client_id` is that of an operator."""
        at_ms = self._context.clock.timestamp_ms()
        if client_id is None:
            member.events.left(member.client_id, member.member_id, member.generation, cause, reason, at_ms)
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=member.member_id, group_instance_id=member.instance, reason=reason
        )
        request = LeaveGroupRequest(group_id=GROUP, members=[identity])
        self._context.send(request, 5, client_id=client_id or member.client_id)
        if client_id is None:
            self._reset(member)

    def end(self, member: ObservedMember) -> None:
        """The process is gone."""
        member.is_alive = False
        del self.members[member.client_id]

    def restart_member(self, member: ObservedMember) -> None:
        """The process of a static member ends, and another one joins with its group instance id."""
        self.end(member)
        again = self.add(member.client_id, member.instance, member.topics)
        self._context.advance(COMMIT_MS)
        self._complete([self._join(again, "")])

    def restart_coordinator(self) -> None:
        """The coordinator moves to another broker, which loads the log."""
        self._take_records()
        self._events += self._context.events
        history, now_ms = self._context.history, self._context.clock.now_ms()
        self._context = _Context(history, now_ms)
        self._written, self._epoch = len(self._context.log), self._epoch + 1

    def expire_offsets(self) -> None:
        """Removes the offsets of a group that has been Empty for the retention time, and the group."""
        self._context.clock.advance_ms(2 * CONFIG.offsets_retention_ms)
        self._context.settle(self._context.shard.expire_offsets(self._context.clock.instant()))

    def commit(self, member: ObservedMember) -> None:
        """Commits all owned partitions; the first commit after a rebalance has a report."""
        new, count = member.events.since(member.reported)
        report = encode_report(new, "app", member.client_id)
        metadata = f"{author_metadata('reader')} {report}" if report else author_metadata("reader")
        numbers = [p.partition for p in member.owned if p.topic == "t"]
        errors = self._context.commit(
            1, member.member_id, member.generation, instance=member.instance, topic="t", partitions=numbers,
            metadata=metadata,
        )  # fmt: skip
        if report and set(errors) == {ErrorCode.NONE}:
            member.reported = count
            self.reports += decode_report(GROUP, metadata)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _join(self, member: ObservedMember, reason: str) -> _Join:
        sent_ms = self._context.clock.timestamp_ms()
        is_cooperative = member.assignors == ("cooperative-sticky",)
        revoked = () if is_cooperative else member.owned
        member.events.prepared(member.client_id, member.member_id, revoked, sent_ms)
        owned = member.owned if is_cooperative else ()
        data = encode_subscription(Subscription(member.topics, owned_partitions=owned))
        handle = self._context.join(
            member.member_id,
            instance=member.instance,
            protocols=[(name, data) for name in member.assignors],
            session_ms=SESSION_MS,
            rebalance_ms=POLL_MS,
            # version 3 needs no member id
            version=9 if member.member_id or member.instance else 3,
            reason=reason,
            client_id=member.client_id,
        )
        return _Join(member, handle, reason, sent_ms, not member.member_id)

    def _complete(self, joining: Sequence[_Join]) -> None:
        """Handles the responses to JoinGroup, and synchronizes."""
        now_ms = self._context.clock.timestamp_ms()
        for member, handle, reason, sent_ms, is_new in joining:
            response = handle.response
            member.member_id, member.generation = response.member_id, response.generation_id
            members = [(m.member_id, m.group_instance_id, b"") for m in response.members]
            member.events.contacted(member.client_id, now_ms)
            member.events.joined(
                member.client_id, member.member_id, reason=reason, is_new=is_new, sent_ms=sent_ms, at_ms=now_ms,
                members=members, generation_id=member.generation,
            )  # fmt: skip
        self._context.advance(20)
        is_skipped = any(join.handle.response.skip_assignment for join in joining)
        owned = {} if is_skipped else self._assign([join.member for join in joining])
        assignments = {m.member_id: encode_assignment(Assignment(owned[m])) for m in owned}
        leader_id = joining[0].handle.response.leader
        handles = []
        for member in sorted((join.member for join in joining), key=lambda each: each.member_id == leader_id):
            handle = self._context.sync(
                member.member_id,
                member.generation,
                assignments if member.member_id == leader_id else None,
                instance=member.instance,
                protocol_name=self._context.group().protocol_name,
            )
            handles.append((member, handle))
        for member, handle in handles:
            member.owned = decode_assignment(handle.response.assignment).partitions
            at_ms = self._context.clock.timestamp_ms()
            member.events.synced(
                member.client_id, member.member_id, assignment_ms=5 if member.member_id == leader_id else None,
                partitions=member.owned, sent_ms=at_ms, at_ms=at_ms, generation_id=member.generation,
            )  # fmt: skip
            member.events.ended(member.generation)

    def _assign(self, members: Sequence[ObservedMember]) -> dict[ObservedMember, tuple[TopicPartition, ...]]:
        """Assigns each topic in turn; a cooperative member gets what another one still owns in the next round."""
        found: dict[ObservedMember, list[TopicPartition]] = {member: [] for member in members}
        still_owned = {p: m for m in members for p in m.owned}
        for topic in sorted({topic for member in members for topic in member.topics}):
            subscribed = [member for member in members if topic in member.topics]
            for number in range(self.partitions):
                partition, owner = TopicPartition(topic, number), subscribed[number % len(subscribed)]
                is_cooperative = owner.assignors == ("cooperative-sticky",)
                if not is_cooperative or still_owned.get(partition, owner) is owner:
                    found[owner].append(partition)
        return {member: tuple(owned) for member, owned in found.items()}

    def _beat(self, member: ObservedMember) -> None:
        if not member.is_alive or member.generation < 0:
            return
        clock = self._context.clock
        error = self._context.heartbeat(member.member_id, member.generation, instance=member.instance)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            member.events.noticed(member.client_id, member.member_id, clock.timestamp_ms())
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            member.events.removed(
                member.client_id, member.member_id, member.generation, "", SESSION_MS, clock.now_ms(),
                clock.timestamp_ms(),
            )  # fmt: skip
            self._reset(member)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            member.events.contacted(member.client_id, clock.now_ms())

    def _reset(self, member: ObservedMember) -> None:
        member.member_id, member.generation, member.owned = "", -1, ()

    def _take_records(self) -> None:
        """Takes the records that are new since the last call."""
        times = self._context.times
        new = zip(times[self._written :], self._context.log[self._written :])
        self._records += [(at_ms, self._epoch, key, value) for at_ms, (key, value) in new]
        self._written = len(times)
