"""Group member with a scripted coordinator, without sockets and threads.

Everything between `poll` and the requests is the package's own code. The thread of the members is not started; the test
runs their event loop with `run_members`. By default the coordinator accepts every request and assigns `assigned`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from random import Random
from typing import Any, Callable, Iterable, Iterator, Sequence
from uuid import UUID

from support.manual_loop import ManualMembers

from spark_groupsource.assign import Assignor
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import BY_ID
from spark_groupsource.client.cluster.metadata import EARLIEST
from spark_groupsource.client.membership.group_client import GroupClient, GroupView
from spark_groupsource.client.membership.membership_values import Idle
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.client.settings import ClientSettings, GroupSettings
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ErrorCode, NetworkError, RequestTimeoutError, UnsupportedVersionError
from spark_groupsource.model import Assignment, OffsetAndMetadata, Subscription, TopicPartition
from spark_groupsource.wire.apis import api_of
from spark_groupsource.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_groupsource.wire.messages import (
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)

GROUP = "g"
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
U0 = TopicPartition("u", 0)

Step = ErrorCode | Exception | Callable[[Any], Any]
"""Prepared response: an error code, an exception, or a function of the request (None for the default response)."""


def described(*assignments: bytes, state: str = "Stable", code: int = 0) -> Any:
    """Returns a DescribeGroups response: a group whose members have these assignments."""
    row = DescribeGroupsResponse.DescribedGroup
    members = [
        row.DescribedGroupMember(member_id=f"m{number}", member_metadata=b"", member_assignment=data)
        for number, data in enumerate(assignments)
    ]
    return DescribeGroupsResponse(
        throttle_time_ms=0, groups=[row(error_code=code, group_id=GROUP, group_state=state, members=members)]
    )


class Script:
    """The scripted cluster and coordinator.

    Attributes:
        sent: every request as (API, request, timeout in ms).
        connections: number of connections that members have opened.
        topics: topic -> the brokers of each partition.
        topic_errors: topic -> its error in Metadata.
        broker_racks: broker -> its rack.
        is_leader: whether the member under test is the leader of its group.
        other_members: member id -> subscription of the other members.
        assigned: partitions that the leader assigns to the member under test, if another member is the leader.
        committed: committed offsets of the group.
        log_end_offsets: topic -> log end offset of each of its partitions, 10 by default.
        topic_ids: topic -> its id in Metadata; a coordinator with `serves_topic_ids` compares those of commits.
        waits_for_timeout: False during a request of the event loop.
        delay_ms: set by a prepared function of JoinGroup or SyncGroup: the response arrives so much later.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[tuple[str, Any, int | None]] = []
        self.topics: dict[str, list[list[int]]] = {"t": [[0], [0]]}
        self.topic_errors: dict[str, ErrorCode] = {}
        self.broker_racks: dict[int, str | None] = {0: None}
        self.connections = 0
        self.generation_id = 0
        self.is_leader = True
        self.other_members: dict[str, Subscription] = {}
        self.assigned: Sequence[TopicPartition] = (T0, T1)
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.log_end_offsets: dict[str, int] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.serves_topic_ids = False
        self.delay_ms = 0
        self.waits_for_timeout = True
        self._ids: Iterator[str] = (f"m{number}" for number in range(1, 1_000))
        self._steps: dict[str, deque[Step]] = defaultdict(deque)

    def prepare(self, api: str, *steps: Step) -> None:
        """Prepares the responses of the next requests of an API, one each; API `Connect` is opening a connection."""
        self._steps[api].extend(steps)

    def clear_prepared(self) -> None:
        """Removes the prepared responses that were not used."""
        self._steps.clear()

    def requests(self, api: str) -> list[Any]:
        """Returns the requests of one API so far."""
        return [request for name, request, _ in self.sent if name == api]

    def sent_apis(self) -> list[str]:
        """Returns the APIs of all requests so far, in order."""
        return [name for name, _, _ in self.sent]

    def connect(self) -> None:
        self.connections += 1
        if self._steps["Connect"]:
            step = self._steps["Connect"].popleft()
            assert isinstance(step, Exception)
            raise step

    def default_response(self, request: Any, code: int = 0) -> Any:
        """Returns the response without preparation, or with an error code."""
        return getattr(self, f"_{api_of(request).name}")(request, code)

    def time_out(self, timeout_ms: int | None) -> None:
        """Time passes while a caller that blocks waits for a response."""
        if self.waits_for_timeout:
            self.clock.advance_ms(timeout_ms or 0)

    def respond(self, request: Any, timeout_ms: int | None) -> Any:
        """Returns the prepared or the default response of a request."""
        name = api_of(request).name
        self.sent.append((name, request, timeout_ms))
        if not self._steps[name]:
            return self.default_response(request)
        step = self._steps[name].popleft()
        if isinstance(step, Exception):
            if isinstance(step, RequestTimeoutError):
                self.time_out(timeout_ms)
            raise step
        if isinstance(step, ErrorCode):
            return self.default_response(request, step)
        response = step(request)
        return self.default_response(request) if response is None else response

    def _Metadata(self, request: Any, code: int) -> Any:
        row, part = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseTopic
        names = sorted(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        topics = []
        for name in names:
            replicas = self.topics.get(name, [])
            missing = 0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            error_code = self.topic_errors.get(name, missing)
            partitions = [
                part.MetadataResponsePartition(
                    error_code=0, partition_index=index, leader_id=nodes[0], leader_epoch=0, replica_nodes=nodes,
                    isr_nodes=nodes, offline_replicas=[],
                )
                for index, nodes in enumerate(replicas)
            ]  # fmt: skip
            topics.append(
                row(
                    error_code=error_code,
                    name=name,
                    topic_id=self.topic_ids.get(name),
                    is_internal=name[:2] == "__",
                    partitions=partitions,
                )
            )
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host=f"host{number}", port=9092, rack=rack)
            for number, rack in self.broker_racks.items()
        ]
        return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=0, topics=topics)

    def _ListOffsets(self, request: Any, code: int) -> Any:
        row = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = [
            row(
                name=topic.name,
                partitions=[
                    row.ListOffsetsPartitionResponse(
                        partition_index=p.partition_index,
                        error_code=code,
                        offset=0 if p.timestamp == EARLIEST else self.log_end_offsets.get(topic.name, 10),
                        timestamp=-1,
                        leader_epoch=-1,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def _FindCoordinator(self, request: Any, code: int) -> Any:
        row = FindCoordinatorResponse.Coordinator
        found = row(key=GROUP, node_id=0, host="host0", port=9092, error_code=code, error_message=None)
        return FindCoordinatorResponse(coordinators=[found])

    def _JoinGroup(self, request: Any, code: int) -> Any:
        if code or (not request.member_id and request.group_instance_id is None):
            member_id = request.member_id or ("" if code else next(self._ids))
            return JoinGroupResponse(error_code=code or ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, members=[])
        self.generation_id += 1
        return self.join_response(request, request.member_id or next(self._ids))

    def join_response(self, request: Any, member_id: str, **fields: Any) -> Any:
        """Returns the response of a completed join phase."""
        chosen = request.protocols[0]
        rows = [(member_id, chosen.metadata), *((k, encode_subscription(v)) for k, v in self.other_members.items())]
        row = JoinGroupResponse.JoinGroupResponseMember
        values: dict[str, Any] = {
            "error_code": 0,
            "generation_id": self.generation_id,
            "protocol_type": "consumer",
            "protocol_name": chosen.name,
            "leader": member_id if self.is_leader else "other",
            "skip_assignment": False,
            "member_id": member_id,
            "members": [row(member_id=k, metadata=data) for k, data in rows] if self.is_leader else [],
        }
        return JoinGroupResponse(**{**values, **fields})

    def _SyncGroup(self, request: Any, code: int) -> Any:
        data = {entry.member_id: entry.assignment for entry in request.assignments}.get(request.member_id)
        return self.sync_response(request, data or encode_assignment(Assignment(tuple(self.assigned))), code)

    def sync_response(self, request: Any, assignment: bytes, code: int = 0) -> Any:
        return SyncGroupResponse(
            error_code=code,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=b"" if code else assignment,
        )

    def _DescribeGroups(self, request: Any, code: int) -> Any:
        """Returns a group in which every partition is assigned."""
        everything = [TopicPartition(t, n) for t, replicas in self.topics.items() for n in range(len(replicas))]
        return described(encode_assignment(Assignment(tuple(everything))))

    def _Heartbeat(self, request: Any, code: int) -> Any:
        return HeartbeatResponse(error_code=code)

    def _LeaveGroup(self, request: Any, code: int) -> Any:
        return LeaveGroupResponse(error_code=code, members=[])

    def _OffsetCommit(self, request: Any, code: int) -> Any:
        row = OffsetCommitResponse.OffsetCommitResponseTopic
        ids = self.topic_ids if self.serves_topic_ids else {}
        other = ErrorCode.UNKNOWN_TOPIC_ID
        topics = [
            row(
                name=topic.name,
                partitions=[
                    row.OffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=code if ids.get(topic.name) in (None, topic.topic_id) else code or other,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    def _OffsetFetch(self, request: Any, code: int) -> Any:
        return self.fetch_response(request, {}, code)

    def fetch_response(self, request: Any, codes: dict[TopicPartition, ErrorCode], code: int = 0) -> Any:
        """Returns an OffsetFetch response, with errors of partitions or of the group."""
        group = OffsetFetchResponse.OffsetFetchResponseGroup
        row = group.OffsetFetchResponseTopics
        topics = []
        for topic in request.groups[0].topics or ():
            partitions = []
            for number in topic.partition_indexes:
                tp = TopicPartition(topic.name, number)
                known = self.committed.get(tp, OffsetAndMetadata(-1))
                partitions.append(
                    row.OffsetFetchResponsePartitions(
                        partition_index=number, committed_offset=known.offset, metadata=known.metadata,
                        committed_leader_epoch=known.leader_epoch, error_code=codes.get(tp, 0),
                    )
                )  # fmt: skip
            topics.append(row(name=topic.name, partitions=partitions))
        return OffsetFetchResponse(groups=[group(group_id=GROUP, topics=topics, error_code=code)])


class ScriptedPipeline:
    """Replaces `RequestPipeline`."""

    is_expired = is_receiving = False

    def __init__(self, script: Script) -> None:
        self._script = script
        self.is_closed = False
        self._waiting: list[asyncio.Future[Any]] = []

    def start(self) -> None:
        """Nothing arrives before a request."""

    def version_for(self, request: Any) -> int:
        return api_of(request).max_version

    def call(self, request: Any, timeout_ms: int, *, min_version: int = 0, client_id: str) -> asyncio.Future[Any]:
        """Sends a request; a `RequestTimeoutError` of its preparation means that no response arrives."""
        script, loop = self._script, asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(future)
        script.delay_ms, script.waits_for_timeout = 0, False
        try:
            response = script.respond(request, timeout_ms)
            if script.delay_ms:
                loop.call_later(script.delay_ms / 1000, self._deliver, future, response)
            else:
                future.set_result(response)
        except RequestTimeoutError as error:
            loop.call_later(timeout_ms / 1000, self._fail, error)
        except NetworkError as error:
            self._fail(error)
        except Exception as error:
            future.set_exception(error)
        finally:
            script.waits_for_timeout = True
        return future

    @staticmethod
    def _deliver(future: asyncio.Future[Any], response: Any) -> None:
        if not future.done():
            future.set_result(response)

    def _fail(self, error: NetworkError) -> None:
        self.is_closed = True
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_exception(type(error)(str(error)))

    def retire(self) -> None:
        self.close()

    def close(self) -> None:
        self._fail(NetworkError("The connection was closed."))


class ScriptedCluster(ClusterClient):
    """The package's own routing, caches and retries, with a scripted network."""

    def __init__(self, script: Script, clock: ManualClock, **settings: Any) -> None:
        super().__init__("host0:9092", ClientSettings((Address("host0", 9092),), **settings), clock, Random(1))
        self.script = script

    def forget_coordinators(self) -> None:
        self._coordinators.clear()

    def has_coordinator(self, group_id: str) -> bool:
        """Whether the coordinator of the group is cached."""
        return group_id in self._coordinators

    def call_address_each(
        self,
        address: Address,
        requests: Iterable[Any],
        received: list[Any],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> None:
        if min_version >= BY_ID and not self.script.serves_topic_ids:
            raise UnsupportedVersionError("The coordinator does not support topic ids.")
        for request in requests:
            received.append(self.script.respond(request, timeout_ms))

    def open_pipeline(self, address: Address, timeout_ms: int) -> Any:
        self.script.connect()
        return ScriptedPipeline(self.script)


class Recorder:
    """A rebalance listener that records its calls; `raising` maps the name of a callback to the exception it raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.raising: dict[str, Exception] = {}
        self.on: Callable[[str], None] = lambda call: None

    def _record(self, call: str, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append((call, tuple(partitions)))
        self.on(call)
        if call in self.raising:
            raise self.raising[call]

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._record("revoked", partitions)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._record("assigned", partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._record("lost", partitions)


class Bench:
    """A `GroupClient` with one member and a script.

    Args:
        client: settings as in `ClientSettings`.
        start_ms: start of the monotonic clock.
        settings: as in `GroupSettings`.
    """

    def __init__(self, client: dict[str, Any] | None = None, start_ms: int = 1_000, **settings: Any) -> None:
        self.clock = ManualClock(now_ms=start_ms)
        self.script = Script(self.clock)
        self.cluster = ScriptedCluster(self.script, self.clock, **(client or {}))
        self.listener = Recorder()
        values = settings if "pattern" in settings else {"topics": ("t",), **settings}
        self.client = GroupClient(self.cluster, GroupSettings(GROUP, **values), listener=self.listener)
        self.members = ManualMembers(self.client, self.clock)

    @property
    def member(self) -> Membership:
        return self.client.shared.members[0].membership

    def callbacks(self) -> list[tuple[str, tuple[TopicPartition, ...]]]:
        """Returns the calls of the rebalance listener since the last call of this method."""
        calls, self.listener.calls = self.listener.calls, []
        return calls

    def clear(self) -> None:
        """Removes the recorded requests and callbacks."""
        self.script.sent.clear()
        self.listener.calls.clear()

    def run_members(self) -> None:
        """Runs the event loop until the member is idle."""
        self.members.run()

    def poll(self) -> GroupView:
        """Polls with a timeout of 0."""
        return self.client.poll(0)

    def settle(self, attempts: int = 10) -> GroupView:
        """Polls until the group is stable; advances the clock over retry backoffs."""
        for _ in range(attempts):
            if self.poll().is_stable:
                break
            self.run_members()
            action = self.member.next_action(self.clock.now_ms())
            if isinstance(action, Idle) and self.member.rejoin_needed and not self.member.prepare_needed:
                self.clock.advance_ms(max(min(action.until_ms - self.clock.now_ms(), 1_000), 0))
        return self.client.view

    def heartbeat(self) -> None:
        """Advances the clock to the next heartbeat and lets the member send it."""
        self.clock.advance_ms(self.member.config.heartbeat_interval_ms)
        self.run_members()


def joined(**settings: Any) -> Bench:
    """Returns a stable member, the leader of its group, without recorded requests and callbacks."""
    bench = Bench(**settings)
    assert bench.settle().is_stable, bench.script.sent_apis()
    bench.clear()
    return bench


def follower(*assigned: TopicPartition, **settings: Any) -> Bench:
    """As `joined`, with another member as the leader."""
    bench = Bench(**settings)
    bench.script.is_leader = False
    if assigned:
        bench.script.assigned = assigned
    assert bench.settle().is_stable, bench.script.sent_apis()
    bench.clear()
    return bench


def using(assignor: type[Assignor]) -> dict[str, Any]:
    """Returns the setting of `Bench` for an assignor of a test module."""
    return {"assignors": (f"{assignor.__module__}:{assignor.__name__}",)}


def subscriptions(bench: Bench) -> list[Subscription]:
    """Returns the subscription of each JoinGroup, from its first protocol."""
    return [decode_subscription(request.protocols[0].metadata) for request in bench.script.requests("JoinGroup")]


def sent_assignments(bench: Bench) -> dict[str, tuple[TopicPartition, ...]]:
    """Returns member id -> partitions of the last SyncGroup."""
    request = bench.script.requests("SyncGroup")[-1]
    return {row.member_id: decode_assignment(row.assignment).partitions for row in request.assignments}
