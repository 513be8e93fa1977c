"""Simulated topic: id, end offsets and leaders as each node knows them.

A change reaches the nodes one after the other; a node that is cut off from the controller learns nothing. Requests are
served by what their node knows, so a former leader serves its log up to where the next leader epoch starts.
"""

from __future__ import annotations

from random import Random
from typing import Any, Iterable, Mapping, NamedTuple
from uuid import UUID

from simulation.applications.virtual_kernel import Kernel

from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

TOPIC, OUTPUT = "t", "out"
NODES = (1, 2, 3)
_FIRST_ID = 7
_NO_ID = UUID(int=0)


class Leader(NamedTuple):
    """`node` is -1 while there is no leader."""

    node: int
    epoch: int


class TopicView(NamedTuple):
    """The topic, as one node knows it; without id it does not exist."""

    topic_id: UUID | None
    leaders: Mapping[TopicPartition, Leader]


class SimulatedTopic:
    """The topic of a run.

    Attributes:
        ends: log end offset of each partition.
        present: the topic, as the controller knows it.
        views: the topic, as each node knows it.
        cut_off: nodes that learn nothing.
    """

    def __init__(self, kernel: Kernel, random: Random, partitions: int) -> None:
        self._kernel, self._random = kernel, random
        self.ends = {TopicPartition(TOPIC, number): 0 for number in range(partitions)}
        self.present = TopicView(UUID(int=_FIRST_ID), {p: Leader(_node(p.partition), 0) for p in self.ends})
        self.views = dict.fromkeys(NODES, self.present)
        self.cut_off: set[int] = set()
        self._changes = 0
        self._known = dict.fromkeys(NODES, 0)
        # start offset of each leader epoch
        self._starts: dict[TopicPartition, list[int]] = {p: [0] for p in self.ends}
        self._deleted: dict[UUID | None, Mapping[TopicPartition, int]] = {}
        self._created = 1

    @property
    def exists(self) -> bool:
        return self.present.topic_id is not None

    # -- changes -----------------------------------------------------------------------------------------------------

    def _change(self, present: TopicView, within_ms: int, first: int | None = None) -> None:
        """`within_ms`: the time in which the nodes learn the change; `first` learns it at once."""
        self.present = present
        self._changes += 1
        if first is not None:
            self._learn(first, self._changes, present)
        for node in NODES:
            self._kernel.call_in(self._random.randrange(within_ms), self._learn, node, self._changes, present)

    def _learn(self, node: int, change: int, view: TopicView) -> None:
        if node not in self.cut_off and change > self._known[node]:
            self.views[node], self._known[node] = view, change

    def rejoin(self, node: int) -> None:
        """A node is no longer cut off."""
        self.cut_off.discard(node)
        self._learn(node, self._changes, self.present)

    def move_leaders(self, partitions: Iterable[TopicPartition], without_ms: int = 0) -> None:
        """Elects other leaders, after a time without one."""
        leaders = dict(self.present.leaders)
        for p in partitions:
            former = leaders.get(p)
            if former is None:
                continue
            others = [node for node in NODES if node != former.node and node not in self.cut_off]
            node = -1 if without_ms else self._random.choice(others)
            leaders[p] = Leader(node, former.epoch + 1)
            self._starts[p].append(self.ends[p])
        self._change(TopicView(self.present.topic_id, leaders), 2_000)
        if without_ms:
            self._kernel.call_in(without_ms, self._elect, self.present.topic_id)

    def _elect(self, topic_id: UUID | None) -> None:
        without = [p for p, leader in self.present.leaders.items() if leader.node < 0]
        if topic_id == self.present.topic_id and without:
            self.move_leaders(without)

    def led_by(self, node: int) -> list[TopicPartition]:
        return [p for p, leader in self.present.leaders.items() if leader.node == node]

    def delete(self, coordinator: int) -> None:
        """Deletes the topic; the node of the coordinator, which deletes its offsets, learns it at once."""
        self._deleted[self.present.topic_id] = dict(self.ends)
        self.ends.update(dict.fromkeys(self.ends, 0))
        self._starts = {p: [0] for p in self.ends}
        self._change(TopicView(None, {}), 1_000, coordinator)

    def create(self) -> None:
        self._created += 1
        leaders = {p: Leader(self._random.choice(NODES), 0) for p in self.ends}
        self._change(TopicView(UUID(int=_FIRST_ID + self._created), leaders), 1_000)

    # -- requests ----------------------------------------------------------------------------------------------------

    def metadata(self, node: int, names: Iterable[str], *, is_ignorant: bool) -> list[Any]:
        """Returns the topics of a Metadata response; an ignorant node has not received the topic yet."""
        topic_class = MetadataResponse.MetadataResponseTopic
        view, topics = self.views[node], []
        for name in names:
            topic_id, leaders = (None, {}) if is_ignorant or name != TOPIC else view
            if name == OUTPUT:
                topic_id = UUID(int=1)
                leaders = {TopicPartition(OUTPUT, number): Leader(_node(number), 0) for number in range(len(NODES))}
            topics.append(
                topic_class(
                    error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic_id is None else 0,
                    name=name,
                    topic_id=topic_id or _NO_ID,
                    is_internal=False,
                    partitions=[
                        topic_class.MetadataResponsePartition(
                            error_code=int(ErrorCode.LEADER_NOT_AVAILABLE) if leader.node < 0 else 0,
                            partition_index=p.partition,
                            leader_id=leader.node,
                            leader_epoch=leader.epoch,
                            replica_nodes=list(NODES),
                            isr_nodes=list(NODES),
                            offline_replicas=[],
                        )
                        for p, leader in leaders.items()
                    ],
                )
            )
        return topics

    def _check(self, node: int, p: TopicPartition, epoch: int) -> ErrorCode:
        leader = self.views[node].leaders.get(p)
        if leader is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if 0 <= epoch < leader.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > leader.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if leader.node == node else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _end(self, node: int, p: TopicPartition) -> int:
        """Returns the log end offset at a node that regards itself as the leader."""
        view = self.views[node]
        if view.topic_id != self.present.topic_id:
            return self._deleted[view.topic_id][p]
        starts, epoch = self._starts[p], view.leaders[p].epoch
        return self.ends[p] if epoch + 1 >= len(starts) else starts[epoch + 1]

    def list_offsets(self, node: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topic_class = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                p = TopicPartition(topic.name, row.partition_index)
                error = self._check(node, p, row.current_leader_epoch)
                offset = -1 if error else self._end(node, p) if row.timestamp == -1 else 0
                rows.append(
                    topic_class.ListOffsetsPartitionResponse(
                        partition_index=row.partition_index,
                        error_code=int(error),
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=-1 if error else self.views[node].leaders[p].epoch,
                    )
                )
            topics.append(topic_class(name=topic.name, partitions=rows))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def epoch_ends(self, node: int, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topic_class = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                p = TopicPartition(topic.topic, row.partition)
                error = self._check(node, p, row.current_leader_epoch)
                epoch, end = -1, -1
                if not error:
                    epoch = min(row.leader_epoch, self.views[node].leaders[p].epoch)
                    starts = self._starts[p]
                    end = starts[epoch + 1] if epoch + 1 < len(starts) else self._end(node, p)
                rows.append(
                    topic_class.EpochEndOffset(
                        error_code=int(error), partition=row.partition, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(topic_class(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    def fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        """Returns an error, or that the log has the offset before the requested one, which is the end of a range."""
        topic_class = FetchResponse.FetchableTopicResponse
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                p = TopicPartition(TOPIC, row.partition)
                error = self._check(node, p, row.current_leader_epoch)
                if topic.topic_id != self.views[node].topic_id:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                elif not error and self._end(node, p) < row.fetch_offset:
                    error = ErrorCode.OFFSET_NOT_AVAILABLE
                rows.append(topic_class.PartitionData(partition_index=row.partition, error_code=int(error)))
            topics.append(topic_class(topic=TOPIC, topic_id=topic.topic_id, partitions=rows))
        return FetchResponse(responses=topics)


def _node(number: int) -> int:
    return NODES[number % len(NODES)]
