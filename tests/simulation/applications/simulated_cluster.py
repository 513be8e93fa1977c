"""Simulated brokers: three nodes, one topic, the pure coordinators.

A node that is cut off from the controller keeps its metadata, and the groups that it coordinated.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Iterator
from uuid import UUID

from simulation.applications.simulated_topic import NODES, TOPIC, SimulatedTopic
from simulation.applications.simulated_transactions import Publishing, SimulatedTransactions
from simulation.applications.virtual_kernel import Kernel, Process, VirtualClock
from simulation.applications.virtual_network import Connection, Link, NetworkClient, Respond
from simulation.broker import Broker, Entry

from spark_groupsource.broker.group import GroupConfig, error_response
from spark_groupsource.client.cluster.group_offsets import BY_ID
from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader, OffsetsTopicRecord
from spark_groupsource.common.net import Address
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, decode_key, decode_offset_value
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeGroupsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

GROUP = "g"
BOOTSTRAP = ",".join(f"node{number}:9092" for number in NODES)
_FOREVER_MS = 2**60
# called with the partition, the offset, the former one and the id of the member
OnCommit = Callable[[TopicPartition, int, int, str], None]
_GROUP_REQUESTS = (
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    DescribeGroupsRequest,
    TxnOffsetCommitRequest,
)
_TRANSACTION_REQUESTS = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    EndTxnRequest,
)


class Observer:
    """What the invariants need to know of the coordinator; in place of its own checks."""

    def __init__(self, on_commit: OnCommit, broker: Coordinator) -> None:
        self._on_commit = on_commit
        self._broker = broker

    def before(self, request: Any) -> None:
        """Needs no state before a request."""

    replied = append_failed = after = reloading = check_all_responses_sent = transaction_ended = (
        lambda self, *_: None  # checked by the simulation of the coordinator
    )

    def appending(self, cause: Any, key: bytes, value: bytes | None, producer_id: int) -> None:
        decoded = decode_key(key)
        # the offsets of a transaction are committed by its end
        if isinstance(decoded, OffsetKey) and value is not None and producer_id < 0:
            p = TopicPartition(decoded.topic, decoded.partition)
            member_id = getattr(cause.request, "member_id", "")
            self._on_commit(p, decode_offset_value(value).offset, self._broker.stored(p), member_id)


class Coordinator(Broker):
    """The coordinator with an observer; `on_members` is called after each call with the ids of the members."""

    def __init__(
        self,
        kernel: Kernel,
        config: GroupConfig,
        on_commit: OnCommit,
        on_members: Callable[[Coordinator, Any], None],
    ) -> None:
        self._on_members = on_members
        self._is_created = False
        super().__init__(kernel, config)  # type: ignore[arg-type]
        self.checks = Observer(on_commit, self)  # type: ignore[assignment]
        self._is_created = True

    def _run(self, outcome: Any, cause: Any) -> None:
        super()._run(outcome, cause)
        if self._is_created:
            self._on_members(self, cause)

    def members(self) -> frozenset[str]:
        group = self.shard.group(GROUP)
        return frozenset() if group is None else frozenset(group.members)

    def stored(self, p: TopicPartition) -> int:
        """Returns the committed offset, -1 without one."""
        found = self.shard.store.offsets_of(GROUP).get(p)
        return -1 if found is None else found.offset

    def load(self, log: list[Entry], load_ms: int) -> None:
        self.log = list(log)
        self._seat(load_ms)


class SimulatedCluster:
    """Three nodes.

    Attributes:
        topic, ends: the topic, and the log end offset of each partition.
        transactions: the transaction coordinator, and the output.
        coordinator, coordinator_node: the present one.
        stale: nodes that are cut off from the controller, with the coordinator that each one keeps, if any.
        ignorant: stale nodes that have not received the topic yet.
    """

    def __init__(
        self,
        kernel: Kernel,
        random: Random,
        config: GroupConfig,
        partitions: int,
        on_commit: OnCommit,
        on_members: Callable[[Coordinator, Any], None],
    ) -> None:
        self.kernel = kernel
        self.random = random
        self.topic = SimulatedTopic(kernel, random, partitions)
        self.ends = self.topic.ends
        self.transactions = SimulatedTransactions(kernel, self._end_transaction)
        self.on_published: Callable[[list[Publishing]], None] = lambda published: None
        self._new_coordinator = lambda: Coordinator(kernel, config, on_commit, on_members)
        self.coordinator = self._new_coordinator()
        self.coordinator_node = random.choice(NODES)
        self.stale: dict[int, Coordinator | None] = {}
        self._stale_coordinator_node: dict[int, int] = {}
        self.ignorant: set[int] = set()
        # member id -> client id; the member id of a static member has its group instance id
        self.client_ids: dict[str, str] = {}
        # called with the id of a member whose commit was rejected
        self.on_fenced: Callable[[str], None] = lambda member_id: None
        self._links: dict[tuple[str, int], Link] = {}
        # dicts as sets with an order
        self._connections: dict[int, dict[Connection, None]] = {number: {} for number in NODES}

    def client(self, process: Process, settings: Any) -> NetworkClient:
        client = NetworkClient(BOOTSTRAP, settings, VirtualClock(process), self.random)
        client.simulated, client.process = self, process
        return client

    # -- network -----------------------------------------------------------------------------------------------------

    def link(self, process: Process, address: Address) -> Link:
        return self.link_of(process.name.partition(" ")[0], _number(address))

    def link_of(self, application: str, node: int) -> Link:
        return self._links.setdefault((application, node), Link())

    def links(self) -> list[Link]:
        return list(self._links.values())

    def connected(self, connection: Connection) -> None:
        self._connections[_number(connection.address)][connection] = None

    def closed(self, connection: Connection) -> None:
        self._connections[_number(connection.address)].pop(connection, None)

    def _break_connections(self, node: int) -> None:
        broken, self._connections[node] = self._connections[node], {}
        for connection in broken:
            connection.break_off()

    # -- faults ------------------------------------------------------------------------------------------------------

    def crash_coordinator(self, load_ms: int, lost: int) -> dict[TopicPartition, int]:
        """Restarts the coordinator's node without its last `lost` commits; returns what goes back by it, and to where.

        The loss of a repeated commit changes nothing. Offset -1 is none.
        """
        log, former = self.coordinator.log, _logged_offsets(self.coordinator.log)
        # not the tombstones of a topic that was deleted
        while lost and log and log[-1].value and isinstance(decode_key(log[-1].key or b""), OffsetKey):
            del log[-1]
            lost -= 1
        left = _logged_offsets(log)
        gone = {p: left.get(p, -1) for p, offset in former.items() if left.get(p) != offset}
        self.coordinator.crash(load_ms, keep=True)
        self._break_connections(self.coordinator_node)
        return gone

    def delete_topic(self) -> None:
        """Deletes the topic; the coordinator deletes its offsets."""
        self.topic.delete(self.coordinator_node)
        self.coordinator.drop_partitions(sorted(self.ends))

    def _end_transaction(self, producer_id: int, is_committed: bool, published: list[Publishing]) -> None:
        self.coordinator.end_transaction(producer_id, is_committed)
        if is_committed:
            self.on_published(published)

    def move_coordinator(self, load_ms: int) -> None:
        others = [number for number in NODES if number != self.coordinator_node and number not in self.stale]
        if others:
            self.coordinator_node = self.random.choice(others)
            self.coordinator.move(load_ms)

    def isolate(self, node: int, *, is_ignorant: bool, load_ms: int, moves_leaders: bool = False) -> None:
        """Cuts a node off from the controller; another one takes its groups over, and its partitions."""
        if self.stale:
            return
        self.topic.cut_off.add(node)
        self.transactions.leave(node)
        if moves_leaders:
            self.topic.move_leaders(self.topic.led_by(node))
        self.stale[node] = None
        self._stale_coordinator_node[node] = self.coordinator_node
        if is_ignorant:
            self.ignorant.add(node)
        if node == self.coordinator_node:
            former = self.stale[node] = self.coordinator
            former.fails_until_ms, former.append_error = _FOREVER_MS, ErrorCode.COORDINATOR_NOT_AVAILABLE
            self.coordinator = self._new_coordinator()
            self.coordinator.load(former.log, load_ms)
            self.coordinator_node = self.random.choice([number for number in NODES if number != node])

    def rejoin(self, node: int) -> None:
        """Ends the isolation of a node."""
        former = self.stale.pop(node, None)
        self.ignorant.discard(node)
        self.topic.rejoin(node)
        if former is not None:
            former.incarnation += 1
            self._break_connections(node)

    # -- requests ----------------------------------------------------------------------------------------------------

    def receive(self, connection: Connection, request: Any, version: int, client_id: str, respond: Respond) -> None:
        node = _number(connection.address)
        if isinstance(request, _GROUP_REQUESTS):
            self._receive_group(node, request, version, client_id, respond)
        elif isinstance(request, MetadataRequest):
            respond(self._metadata(node, request))
        elif isinstance(request, FindCoordinatorRequest):
            respond(self._found_coordinator(node, request))
        elif isinstance(request, ListOffsetsRequest):
            respond(self.topic.list_offsets(node, request))
        elif isinstance(request, OffsetForLeaderEpochRequest):
            respond(self.topic.epoch_ends(node, request))
        elif isinstance(request, FetchRequest):
            respond(self.topic.fetch(node, request))
        elif isinstance(request, _TRANSACTION_REQUESTS):
            respond(self.transactions.handle(node, request))
        elif isinstance(request, ProduceRequest):
            respond(self.transactions.produce(request))
        else:
            raise AssertionError(f"unexpected request {request}")

    def _receive_group(self, node: int, request: Any, version: int, client_id: str, respond: Respond) -> None:
        coordinator = self.stale.get(node)
        if coordinator is None and node == self.coordinator_node:
            coordinator = self.coordinator
        if coordinator is None:
            respond(error_response(request, ErrorCode.NOT_COORDINATOR, version))
            return
        topic_id, error = self.topic.views[node].topic_id, ErrorCode.NONE
        if isinstance(request, OffsetCommitRequest):
            error = _set_names(request.topics, topic_id, version)
            respond = self._noticing_fences(request.member_id, respond)
        elif isinstance(request, OffsetFetchRequest):
            for group in request.groups or ():
                error = error or _set_names(group.topics or (), topic_id, version)
        elif isinstance(request, TxnOffsetCommitRequest):
            error = self.transactions.verify_offsets(request)
        elif isinstance(request, JoinGroupRequest):
            respond = self._noticing_member(client_id, respond)
        if error:
            respond(error_response(request, error, version))
        elif isinstance(request, OffsetFetchRequest):
            coordinator.receive(request, version, client_id, lambda response: respond(_with_ids(response, topic_id)))
        else:
            coordinator.receive(request, version, client_id, respond)

    def _noticing_member(self, client_id: str, respond: Respond) -> Respond:
        def noticed(response: Any) -> None:
            self.client_ids[response.member_id] = client_id
            respond(response)

        return noticed

    def _noticing_fences(self, member_id: str, respond: Respond) -> Respond:
        def noticed(response: Any) -> None:
            if any(p.error_code in FENCING_ERRORS for topic in response.topics for p in topic.partitions):
                self.on_fenced(member_id)
            respond(response)

        return noticed

    def _metadata(self, node: int, request: MetadataRequest) -> MetadataResponse:
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host=f"node{number}", port=9092, rack=None)
            for number in NODES
        ]
        names = [TOPIC] if request.topics is None else [topic.name or "" for topic in request.topics]
        topics = self.topic.metadata(node, names, is_ignorant=node in self.ignorant)
        return MetadataResponse(
            throttle_time_ms=0, brokers=brokers, cluster_id="simulated", controller_id=1, topics=topics, error_code=0
        )

    def _found_coordinator(self, node: int, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        found = self._stale_coordinator_node[node] if node in self.stale else self.coordinator_node
        if request.key_type == 1:
            found = self.transactions.node
        row = FindCoordinatorResponse.Coordinator(
            key=request.key or GROUP, node_id=found, host=f"node{found}", port=9092, error_code=0, error_message=None
        )
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=0,
            error_message=None,
            node_id=found,
            host=f"node{found}",
            port=9092,
            coordinators=[row],
        )


class SimulatedOffsetsTopic(OffsetsTopicReader):
    """`__consumer_offsets`, read after one request to the coordinator's node."""

    def find_partition(self) -> TopicPartition | None:
        self._cluster.metadata([TOPIC], timeout_ms=self.left_ms)
        return TopicPartition("__consumer_offsets", 0)

    def _log(self) -> list[Entry]:
        assert isinstance(self._cluster, NetworkClient)
        return self._cluster.simulated.coordinator.log

    def log_end_offset(self, partition: TopicPartition) -> int:
        return len(self._log())

    def windows(self, partition: TopicPartition, end: int) -> Iterator[OffsetRange]:
        if end:
            yield OffsetRange(partition, 0, end)

    def records(self, window: OffsetRange) -> Iterator[OffsetsTopicRecord]:
        # the reader gets the records of committed transactions alone
        pending: dict[int, list[Entry]] = {}
        for entry in self._log()[window.start : window.end]:
            found = [entry]
            if entry.key is None:
                found = pending.pop(entry.producer_id, []) if entry.committed else []
            elif entry.producer_id >= 0:
                pending.setdefault(entry.producer_id, []).append(entry)
                found = []
            for each in found:
                if each.key is not None:
                    yield OffsetsTopicRecord(decode_key(each.key), each.value)


def _logged_offsets(log: list[Entry]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for entry in log:
        # the marker of a transaction has no key
        key = None if entry.key is None else decode_key(entry.key)
        if isinstance(key, OffsetKey):
            p = TopicPartition(key.topic, key.partition)
            offsets.pop(p, None)
            if entry.value is not None:
                offsets[p] = decode_offset_value(entry.value).offset
    return offsets


def _set_names(topics: Any, topic_id: UUID | None, version: int) -> ErrorCode:
    """Sets the names of topics, as the broker does before it calls the coordinator; returns the error of an id."""
    for topic in topics:
        if version >= BY_ID:
            if topic.topic_id != topic_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic.name = TOPIC
    return ErrorCode.NONE


def _with_ids(response: Any, topic_id: UUID | None) -> Any:
    for group in response.groups or ():
        for topic in group.topics:
            topic.topic_id = topic_id
    return response


def _number(address: Address) -> int:
    return int(address.host.removeprefix("node"))
