"""What a cluster says about itself, as frozen values; and the reading of a Metadata answer into them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple

from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.wire.messages import Message

EARLIEST = -2
"""Timestamp that asks ListOffsets for the log start."""
LATEST = -1
"""Timestamp that asks ListOffsets for the log end (the last stable offset under read_committed)."""
MAX_TIMESTAMP = -3
"""Timestamp that asks ListOffsets for the record with the largest timestamp (KIP-734)."""


class PartitionInfo(NamedTuple):
    """One partition; `leader_id` is -1 while it has no leader."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    """One existing topic; `topic_id` is None at brokers that have no topic ids."""

    name: str
    topic_id: Any
    partitions: Mapping[int, PartitionInfo]
    is_internal: bool = False


class OffsetAndTimestamp(NamedTuple):
    """Answer of ListOffsets; `offset` is -1 when no record is at or after the asked timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True)
class ClusterMetadata:
    """Brokers and topics as last heard; `errors` holds the code of every asked topic that cannot be described."""

    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]
    controller_id: int = -1
    cluster_id: str | None = None
    errors: Mapping[str, int] = field(default_factory=dict)

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Every partition of a topic, in order; none for a topic that is not there."""
        info = self.topics.get(topic)
        return () if info is None else tuple(TopicPartition(topic, number) for number in sorted(info.partitions))

    def leader(self, topic_partition: TopicPartition) -> Node:
        """The broker that serves a partition.

        Raises: BrokerError; retriable while there is no leader.
        """
        info = self.topics.get(topic_partition.topic)
        if info is None:
            code = self.errors.get(topic_partition.topic, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            raise BrokerError(code, f"topic {topic_partition.topic}")
        partition = info.partitions.get(topic_partition.partition)
        if partition is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_partition}")
        node = self.nodes.get(partition.leader_id)
        if node is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic_partition}")
        return node


def read_metadata(answer: Message) -> ClusterMetadata:
    """A Metadata answer of any version."""
    topics: dict[str, TopicInfo] = {}
    errors: dict[str, int] = {}
    for topic in answer.topics:
        if topic.error_code:
            errors[topic.name] = topic.error_code
        else:
            partitions = {
                p.partition_index: PartitionInfo(
                    p.partition_index,
                    p.leader_id,
                    p.leader_epoch,
                    tuple(p.replica_nodes),
                    tuple(p.isr_nodes),
                )
                for p in topic.partitions
            }
            topics[topic.name] = TopicInfo(topic.name, topic.topic_id, partitions, topic.is_internal)
    nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in answer.brokers}
    return ClusterMetadata(nodes, topics, answer.controller_id, answer.cluster_id, errors)
