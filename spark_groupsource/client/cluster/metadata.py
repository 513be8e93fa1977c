"""Metadata of a cluster: brokers, topics, partitions, leaders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, NamedTuple
from uuid import UUID

from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import Node, TopicPartition, topic_matches
from spark_groupsource.wire.messages import MetadataResponse

EARLIEST = -2
"""ListOffsets timestamp of the log start offset."""
LATEST = -1
"""ListOffsets timestamp of the high watermark, or of the last stable offset with read_committed."""
MAX_TIMESTAMP = -3
"""ListOffsets timestamp of the record with the largest timestamp (KIP-734)."""


class PartitionInfo(NamedTuple):
    """One partition; `leader_id` is -1 while it has no leader."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    """One existing topic; `topic_id` is None if the broker has no topic ids."""

    name: str
    topic_id: Any
    partitions: Mapping[int, PartitionInfo]
    is_internal: bool = False

    @property
    def has_id(self) -> bool:
        return self.topic_id is not None and self.topic_id.int != 0


class CachedTopic(NamedTuple):
    """A topic in the cache of a client.

    Attributes:
        at_ms: time of the last response.
        info: None for a topic that does not exist, or that was never described.
        error: of the last response; what is known of the topic outlasts an error that shows no deletion.
    """

    at_ms: int = 0
    info: TopicInfo | None = None
    error: int = 0


class OffsetAndTimestamp(NamedTuple):
    """Result of ListOffsets; `offset` is -1 if no record is at or after the timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class EpochEndOffset(NamedTuple):
    """The largest leader epoch up to the requested one and its end offset; both -1 if the leader has none."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True)
class ClusterMetadata:
    """Brokers and topics; `errors` has the error code of each requested topic that cannot be described."""

    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]
    controller_id: int = -1
    cluster_id: str | None = None
    errors: Mapping[str, int] = field(default_factory=dict)

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Returns the partitions of a topic in order; none for an unknown topic."""
        info = self.topics.get(topic)
        return () if info is None else tuple(TopicPartition(topic, number) for number in sorted(info.partitions))

    def lacks(self, topic_partition: TopicPartition) -> bool:
        """Returns whether a requested partition does not exist; False for a topic that cannot be described."""
        code = self.errors.get(topic_partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        info = self.topics.get(topic_partition.topic)
        has_partition = info is not None and topic_partition.partition in info.partitions
        return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not has_partition

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Returns topic -> id as text, without topics that do not exist or, on older brokers, have no id."""
        found = (self.topics[name] for name in set(topics) & set(self.topics))
        return {info.name: str(info.topic_id) for info in found if info.has_id}

    def matching_topics(self, pattern: str, *, exclude_internal: bool) -> list[str]:
        """Returns the topics whose names contain a match of `pattern`, sorted."""
        chosen = (info.name for info in self.topics.values() if not (exclude_internal and info.is_internal))
        return sorted(name for name in chosen if topic_matches(pattern, name))

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """Returns the leader epoch of a partition, -1 if it is unknown."""
        info = self.topics.get(topic_partition.topic)
        partition = info.partitions.get(topic_partition.partition) if info else None
        return -1 if partition is None else partition.leader_epoch

    def leader(self, topic_partition: TopicPartition) -> Node:
        """Returns the leader of a partition.

        Raises: BrokerError, retriable while there is no leader.
        """
        info = self.topics.get(topic_partition.topic)
        if info is None:
            code = self.errors.get(topic_partition.topic, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            raise BrokerError(code, f"Leader lookup of {topic_partition}")
        partition = info.partitions.get(topic_partition.partition)
        if partition is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Leader lookup of {topic_partition}")
        node = self.nodes.get(partition.leader_id)
        if node is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"Leader lookup of {topic_partition}")
        return node


def known_topic(name: str, topic_id: UUID | None, numbers: Iterable[int]) -> TopicInfo:
    """Returns a topic of which only its id and some partitions are known."""
    return TopicInfo(name, topic_id, {number: PartitionInfo(number, -1, -1) for number in numbers})


def merge_topic(cached: TopicInfo, received: TopicInfo) -> TopicInfo:
    """Returns `received`, with the cached partitions whose leader epoch is larger, and those that `received` lacks.

    The epochs and the partitions of one topic only grow; a response with less is from a broker with older metadata
    (KIP-320, Kafka `Metadata.updateLatestMetadata`). Partitions are kept only where an id shows that it is one topic.
    """
    if cached.topic_id != received.topic_id:
        return received
    newer = {
        number: known
        for number, known in cached.partitions.items()
        if number in received.partitions and 0 <= received.partitions[number].leader_epoch < known.leader_epoch
    }
    if received.has_id:
        newer |= {number: known for number, known in cached.partitions.items() if number not in received.partitions}
    return received._replace(partitions={**received.partitions, **newer}) if newer else received


def without_earlier_leader(topic: TopicInfo, number: int, epoch: int) -> TopicInfo:
    """Returns the topic, without the leader of a partition if its epoch is known and is before `epoch`."""
    known = topic.partitions.get(number)
    if known is None or not 0 <= known.leader_epoch < epoch:
        return topic
    return topic._replace(partitions={**topic.partitions, number: known._replace(leader_id=-1, leader_epoch=epoch)})


def is_contradicted(known: TopicInfo, received: TopicInfo | None) -> bool:
    """Returns whether a response shows that a topic, or a part of it, was deleted or recreated.

    Args:
        received: the topic in the response; None if the response lacks it.
    """
    if received is None:
        return True
    if known.has_id and received.has_id:
        return bool(known.topic_id != received.topic_id)
    return not known.partitions.keys() <= received.partitions.keys()


def topic_of_most(known: TopicInfo, received: Mapping[int, TopicInfo | None], brokers: int) -> TopicInfo | None:
    """Returns a topic after the brokers were asked, one after the other; None if it was deleted.

    One broker may have older metadata than the others, also for long. So a topic, or a part of it, was deleted or
    recreated only if more than half of the brokers say so. A leader of the new topic that has not received it yet would
    respond with the offsets of the deleted one, because ListOffsets has no topic ids: so all leaders must say so, too.

    Args:
        received: id of each broker that has responded -> the topic in its response; None where the response lacks it.
        brokers: number of brokers of the cluster, those without a response included.
    """
    changed = {node_id: topic for node_id, topic in received.items() if is_contradicted(known, topic)}
    if 2 * len(changed) > brokers:
        present = [topic for topic in changed.values() if topic is not None]
        found = max(present, key=lambda topic: len(topic.partitions), default=None)
        leaders = {info.leader_id for info in found.partitions.values()} if found is not None else set()
        if all(changed.get(leader) is not None for leader in leaders - {-1}):
            return found
    return merge_of(known, received.values())


def merge_of(known: TopicInfo, received: Iterable[TopicInfo | None]) -> TopicInfo:
    """Returns a topic with the latest of what brokers know of it, without those that have another topic or none."""
    for topic in received:
        if topic is not None and not is_contradicted(known, topic):
            known = merge_topic(known, topic)
    return known


def read_metadata(response: MetadataResponse) -> ClusterMetadata:
    """Converts a Metadata response of any version."""
    topics: dict[str, TopicInfo] = {}
    errors: dict[str, int] = {}
    for topic in response.topics:
        # only requests by topic id have responses without a name
        name = topic.name or ""
        if topic.error_code:
            errors[name] = topic.error_code
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
            topics[name] = TopicInfo(name, topic.topic_id, partitions, topic.is_internal)
    nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in response.brokers}
    return ClusterMetadata(nodes, topics, response.controller_id, response.cluster_id, errors)
