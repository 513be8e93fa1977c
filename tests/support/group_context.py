"""Group coordinator shard under test, driven as the broker drives it.

Every request and response is encoded and decoded in its version, so that fields that the version lacks are missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from support.commit_requests import commit_topics
from support.message_fields import encoded_and_decoded

from spark_groupsource.broker.group import (
    GroupConfig,
    GroupShard,
    GroupTimer,
    JoinTimer,
    Outcome,
    RequestContext,
    SessionTimer,
    SetTimer,
)
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_states import GroupState
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Subscription
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.consumer_protocol import encode_subscription
from spark_groupsource.wire.group_events import GroupEvent
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

GROUP = "group"
TYPE = "consumer"
SESSION_MS = 500
REBALANCE_MS = 500
DELAY_MS = 50
_EPOCH_MS = 1_700_000_000_000
RANGE: Sequence[tuple[str, bytes]] = (("range", b""),)

# the settings of Kafka's GroupCoordinatorTest
CONFIG = GroupConfig(
    group_min_session_timeout_ms=10,
    group_max_session_timeout_ms=600_000,
    group_max_size=4,
    group_initial_rebalance_delay_ms=DELAY_MS,
)


def subscribing(*topics: str, protocol: str = "range") -> Sequence[tuple[str, bytes]]:
    """Returns the protocols of a consumer that subscribes to these topics."""
    return ((protocol, encode_subscription(Subscription(topics), 0)),)


class ResponseHandle:
    """The response to one request, which may be delayed."""

    def __init__(self, request: Any, version: int) -> None:
        self.request = request
        self.version = version
        self._response: Any = None

    def deliver(self, response: Any) -> None:
        assert self._response is None, f"second response: {self.request}"
        self._response = encoded_and_decoded(response, self.version)

    @property
    def is_delayed(self) -> bool:
        return self._response is None

    @property
    def response(self) -> Any:
        assert self._response is not None, f"no response: {self.request}"
        return self._response

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.response.error_code)

    @property
    def member_id(self) -> str:
        return str(self.response.member_id)


@dataclass
class Joined:
    """A member of a group."""

    member_id: str
    generation_id: int
    leader_id: str
    instance_id: str | None = None


class GroupContext:
    """One shard, its log, its timers and its clock.

    `append_error`: while set, appends fail with it. `hold_appends`: while True, outcomes wait for `release_appends`.
    """

    def __init__(
        self,
        config: GroupConfig = CONFIG,
        *,
        log: Iterable[tuple[bytes, bytes | None]] = (),
        history: Iterable[tuple[Any, ...]] = (),
        now_ms: int = 1_000,
    ) -> None:
        # the time of day continues after a restart
        self.clock = ManualClock(now_ms, _EPOCH_MS + now_ms)
        self.config = config
        self.shard = GroupShard(0, config)
        self.log: list[tuple[bytes, bytes | None]] = []
        # the same, with the producer of each record (-1 none), and markers: (producer, committed)
        self.history: list[tuple[Any, ...]] = []
        self.timers: dict[GroupTimer, int] = {}
        self.log_lines: list[Any] = []
        self.events: list[GroupEvent] = []
        self.append_error: ErrorCode | None = None
        self.hold_appends = False
        self.held_appends: list[Outcome] = []
        self._handles: dict[object, ResponseHandle] = {}
        self.connection_id = 0
        self.request_count = 0
        for key, value in log:
            self.append(key, value)
        for entry in history:
            if len(entry) == 2:
                self.end_transaction(*entry)
            else:
                self.append(entry[1], entry[2], entry[0])
        self.settle(self.shard.on_loaded(self.clock.instant()))

    # --- the broker

    def append(self, key: bytes, value: bytes | None, producer_id: int = -1) -> None:
        self._write(key, value, producer_id)
        self.shard.replay(key, value, producer_id=producer_id)

    def _write(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        self.log.append((key, value))
        self.history.append((producer_id, key, value))

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Replays a transaction marker."""
        self.history.append((producer_id, committed))
        self.shard.end_transaction(producer_id, committed)

    def restarted(self) -> GroupContext:
        """Returns a context whose shard has loaded the same log."""
        return GroupContext(self.config, history=self.history, now_ms=self.clock.now_ms())

    def settle(self, outcome: Outcome) -> None:
        self.log_lines.extend(outcome.log_lines)
        self.events.extend(outcome.events)
        for timer in outcome.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.deadline_ms
            else:
                self.timers.pop(timer.key, None)
        if not outcome.records:
            self._reply(outcome)
        elif self.append_error is not None:
            self.settle(self.shard.append_failed(outcome, self.append_error, self.clock.instant()))
        else:
            producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
            for key, value, _ in outcome.records:
                self._write(key, value, producer_id)
            self.shard.replay_appended(outcome, outcome.records)
            if self.hold_appends:
                self.held_appends.append(outcome)
            else:
                self._appended(outcome)

    def _appended(self, outcome: Outcome) -> None:
        self._reply(outcome)
        following = self.shard.append_succeeded(outcome, self.clock.instant())
        assert outcome.is_continued or following == Outcome()
        self.settle(following)

    def release_appends(self) -> None:
        self.hold_appends = False
        held, self.held_appends = self.held_appends, []
        for outcome in held:
            self._appended(outcome)

    def _reply(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            self._handles[reply.token].deliver(reply.response)

    def send(
        self, request: Any, version: int, *, client_id: str = "client", host: str = "/127.0.0.1"
    ) -> ResponseHandle:
        request = encoded_and_decoded(request, version)
        assert api_of(request).max_version >= version
        self.request_count += 1
        token = object()
        handle = self._handles[token] = ResponseHandle(request, version)
        context = RequestContext(token, version, client_id, host, f"uuid-{self.request_count}", self.connection_id)
        self.settle(self.shard.handle(request, context, self.clock.instant()))
        return handle

    def advance(self, duration_ms: int) -> None:
        """Advances the clock and fires the timers that expire on the way."""
        end = self.clock.now_ms() + duration_ms
        while True:
            due = min(self.timers.items(), key=lambda item: item[1], default=None)
            if due is None or due[1] > end:
                break
            self.clock.advance_ms(max(due[1] - self.clock.now_ms(), 0))
            del self.timers[due[0]]
            self.settle(self.shard.expire(due[0], self.clock.instant()))
        self.clock.advance_ms(end - self.clock.now_ms())

    def delayed_count(self) -> int:
        return sum(handle.is_delayed for handle in self._handles.values())

    # --- queries

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        group = self.shard.group(group_id)
        assert group is not None
        return group

    def state(self, group_id: str = GROUP) -> GroupState:
        group = self.shard.group(group_id)
        return GroupState.DEAD if group is None else group.state

    def session_deadline(self, member_id: str, group_id: str = GROUP) -> int | None:
        return self.timers.get(SessionTimer(group_id, member_id))

    def kinds(self) -> list[str]:
        return [line.kind for line in self.log_lines]

    def kill(self, group_id: str = GROUP) -> None:
        """Makes a group Dead without removing it."""
        group = self.shard.group(group_id) or ClassicGroup(group_id)
        self.shard.groups[group_id] = group
        group.transition(GroupState.DEAD, self.clock.timestamp_ms())

    # --- requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        protocol_type: str = TYPE,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int | None = None,
        reason: str | None = None,
        client_id: str = "client",
    ) -> ResponseHandle:
        """Sends version 3 by default, which does not require a member id."""
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
            reason=reason,
        )
        if version is None:
            version = 3 if instance is None else 5
        return self.send(request, version, client_id=client_id)

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocol_type: str | None = TYPE,
        protocol_name: str | None = "range",
        version: int = 5,
    ) -> ResponseHandle:
        entries = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a)
            for m, a in (assignments or {}).items()
        ]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=entries,
        )
        return self.send(request, version)

    def heartbeat(
        self, member_id: str, generation_id: int, *, group: str = GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation_id, member_id=member_id, group_instance_id=instance
        )
        return self.send(request, 3).error

    def leave(self, *members: tuple[str, str | None], group: str = GROUP, version: int = 5) -> ResponseHandle:
        """`members`: (member id, instance id)."""
        if version < 3:
            ((member_id, _),) = members
            return self.send(LeaveGroupRequest(group_id=group, member_id=member_id), version)
        entries = [
            LeaveGroupRequest.MemberIdentity(member_id=m, group_instance_id=i, reason="closing") for m, i in members
        ]
        return self.send(LeaveGroupRequest(group_id=group, members=entries), version)

    def leave_errors(self, *members: tuple[str, str | None], group: str = GROUP) -> list[ErrorCode]:
        handle = self.leave(*members, group=group)
        assert handle.error is ErrorCode.NONE
        assert [(m.member_id, m.group_instance_id) for m in handle.response.members] == list(members)
        return [ErrorCode(m.error_code) for m in handle.response.members]

    def commit(
        self,
        offset: int = 0,
        member_id: str = "",
        generation_id: int = -1,
        *,
        group: str = GROUP,
        instance: str | None = None,
        topic: str = "topic",
        partitions: Sequence[int] = (0,),
        metadata: str | None = "",
        leader_epoch: int = -1,
        retention_ms: int = -1,
        version: int = 8,
    ) -> list[ErrorCode]:
        fields = {"committed_leader_epoch": leader_epoch, "committed_metadata": metadata}
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=commit_topics(OffsetCommitRequest, {topic: dict.fromkeys(partitions, offset)}, **fields),
        )
        response = self.send(request, version).response
        return [ErrorCode(p.error_code) for t in response.topics for p in t.partitions]

    def commit_in_transaction(
        self,
        offset: int = 0,
        member_id: str = "",
        generation_id: int = -1,
        *,
        producer_id: int = 7,
        group: str = GROUP,
        instance: str | None = None,
        topic: str = "topic",
        partitions: Sequence[int] = (0,),
        metadata: Sequence[str | None] = ("",),
        leader_epoch: int = -1,
        version: int = 3,
    ) -> list[ErrorCode]:
        """Below version 3 the request has no member; every partition gets the same `metadata`."""
        topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        rows = [
            topic_class.TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata[at % len(metadata)],
            )
            for at, partition in enumerate(partitions)
        ]
        request = TxnOffsetCommitRequest(
            transactional_id="transaction",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            topics=[topic_class(name=topic, partitions=rows)],
        )
        response = self.send(request, version).response
        return [ErrorCode(p.error_code) for t in response.topics for p in t.partitions]

    def fetch(self, *partitions: tuple[str, int], group: str = GROUP, version: int = 8) -> dict[tuple[str, int], int]:
        """Returns (topic, partition) -> offset, of all partitions if none is given."""
        handle = self.fetch_response(group, partitions or None, version)
        topics = handle.response.topics if version < 8 else handle.response.groups[0].topics
        return {(t.name, p.partition_index): p.committed_offset for t in topics for p in t.partitions}

    def fetch_response(
        self, group: str, partitions: Sequence[tuple[str, int]] | None, version: int, require_stable: bool = False
    ) -> ResponseHandle:
        if version < 8:
            topic_class: Any = OffsetFetchRequest.OffsetFetchRequestTopic
        else:
            topic_class = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        topics = None
        if partitions is not None:
            topics = [topic_class(name=t, partition_indexes=[p]) for t, p in partitions]
        if version < 8:
            request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
        else:
            entry = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=topics)
            request = OffsetFetchRequest(groups=[entry], require_stable=require_stable)
        return self.send(request, version)

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> ResponseHandle:
        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        topics = [
            topic_class(name=t, partitions=[topic_class.OffsetDeleteRequestPartition(partition_index=p)])
            for t, p in partitions
        ]
        return self.send(OffsetDeleteRequest(group_id=group, topics=topics), 0)

    def delete_groups(self, *group_ids: str) -> dict[str, ErrorCode]:
        response = self.send(DeleteGroupsRequest(groups_names=list(group_ids)), 2).response
        return {result.group_id: ErrorCode(result.error_code) for result in response.results}

    def describe(self, group: str = GROUP, version: int = 5) -> Any:
        (described,) = self.send(DescribeGroupsRequest(groups=[group]), version).response.groups
        return described

    def list(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> dict[str, Any]:
        response = self.send(ListGroupsRequest(states_filter=list(states), types_filter=list(types)), 5).response
        assert response.error_code == ErrorCode.NONE
        return {group.group_id: group for group in response.groups}

    # --- groups in a given state

    def completing(
        self,
        count: int = 1,
        *,
        instances: Sequence[str] = (),
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        **how: Any,
    ) -> Sequence[Joined]:
        """Returns the members of a CompletingRebalance group; the first is the leader."""
        instance_ids: list[str | None] = list(instances) or [None] * count
        handles = [self.join(instance=instance, protocols=protocols, **how) for instance in instance_ids]
        while any(handle.is_delayed for handle in handles):  # a window with a new member is followed by another one
            assert JoinTimer(how.get("group", GROUP)) in self.timers
            self.advance(DELAY_MS)
        return [
            Joined(a.member_id, a.response.generation_id, a.response.leader, i)
            for a, i in zip(handles, instance_ids, strict=True)
        ]

    def stable(
        self,
        count: int = 1,
        *,
        instances: Sequence[str] = (),
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        **how: Any,
    ) -> Sequence[Joined]:
        """Returns the members of a Stable group; the assignment of each is its member id."""
        members = self.completing(count, instances=instances, protocols=protocols, **how)
        assignments = {member.member_id: member.member_id.encode() for member in members}
        kind = how.get("protocol_type", TYPE)
        name = self.group(how.get("group", GROUP)).protocol_name
        for member in members:
            handle = self.sync(
                member.member_id,
                member.generation_id,
                assignments if member.member_id == member.leader_id else None,
                group=how.get("group", GROUP),
                instance=member.instance_id,
                protocol_type=kind,
                protocol_name=name,
            )
            assert handle.response.assignment == member.member_id.encode()
        return members
