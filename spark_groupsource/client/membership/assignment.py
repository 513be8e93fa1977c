"""Assignment of a group by its leader, between JoinGroup and SyncGroup.

Source: Kafka's ConsumerCoordinator.onLeaderElected; KIP-429 (cooperative hand-over), KIP-881 (racks).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

from spark_groupsource.assign import Assignor
from spark_groupsource.client.cluster.cluster_client import ClusterClient, ClusterMetadata
from spark_groupsource.client.membership.membership_values import Joined
from spark_groupsource.errors import ConfigurationError, NetworkError
from spark_groupsource.model import Assignment, GroupMember, TopicPartition, bounded_names
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription, encode_assignment

_log = logging.getLogger(__name__)

MetadataSnapshot = Mapping[str, Any]
"""topic -> partition count, or the racks of each partition if the assignor may use them"""


@dataclass(frozen=True)
class GroupAssignment:
    """Assignment of a whole group.

    Attributes:
        assignments: member id -> encoded assignment.
        topics, snapshot: the topics whose changes require a rebalance, and the metadata that were used.
    """

    assignments: Mapping[str, bytes]
    topics: frozenset[str]
    snapshot: MetadataSnapshot


def compute_assignment(
    cluster: ClusterClient,
    assignor: Assignor,
    joined: Joined,
    with_racks: bool,
    is_current: Callable[[], bool],
) -> GroupAssignment:
    """Runs `assignor` over all members with refreshed metadata.

    Args:
        is_current: False once the member is no longer the leader of this generation.

    Raises: ConfigurationError and other errors of an assignor of the user, as `UserAssignor`; RemoteProtocolError on a
        malformed subscription; NetworkError once the assignment is no longer needed.
    """
    members = [
        GroupMember(member_id, decode_subscription(data), instance_id)
        for member_id, instance_id, data in joined.members
    ]
    topics = frozenset(topic for member in members for topic in member.subscription.topics)
    view = _fresh_metadata(cluster, topics, joined, is_current)
    used = metadata_snapshot(view, topics, with_racks)
    if joined.skip_assignment:
        # KIP-814: the group keeps its assignment, this member only watches the metadata
        return GroupAssignment({}, topics, used)
    counts = {topic: len(view.topics[topic].partitions) for topic in sorted(topics) if topic in view.topics}
    assigned = assignor.assign(counts, members, _racks(view, topics))
    unsubscribed = {tp.topic for partitions in assigned.values() for tp in partitions} - topics
    if unsubscribed:
        # an assignor may assign topics without a subscriber; their metadata are watched too
        topics |= unsubscribed
        view = _fresh_metadata(cluster, topics, joined, is_current)
        existing = {each for topic in unsubscribed for each in view.partitions_of(topic)}
        given = (each for partitions in assigned.values() for each in partitions if each.topic in unsubscribed)
        missing = sorted(each for each in given if each not in existing)
        if missing:
            raise ConfigurationError(
                f"Option kafka.partition.assignment.strategy: assignor {assignor.name} assigns "
                f"{bounded_names(missing)}, which does not exist. Fix the assignor and restart the query."
            )
        used = metadata_snapshot(view, topics, with_racks)
    return GroupAssignment(
        {
            member.member_id: encode_assignment(Assignment(tuple(assigned.get(member.member_id, ()))))
            for member in members
        },
        topics,
        used,
    )


def _fresh_metadata(
    cluster: ClusterClient, topics: frozenset[str], joined: Joined, is_current: Callable[[], bool]
) -> ClusterMetadata:
    """Requests metadata until a broker responds: every member of the group waits for the assignment.

    As ConsumerNetworkClient.ensureFreshMetadata for a leader. The end of the session or of the generation bounds it.
    """
    while True:
        try:
            return cluster.metadata(topics, refresh=True)
        except NetworkError as error:
            if not is_current():
                raise
            member_id = joined.generation.member_id
            _log.warning("[member=%s] The assignment of the group waits for metadata, retrying: %s", member_id, error)


def unassigned(counts: Mapping[str, int], assignments: Iterable[bytes]) -> tuple[TopicPartition, ...]:
    """Returns the partitions of these topics that are in no member's assignment.

    Args:
        counts: topic -> number of partitions.
        assignments: encoded assignment of each member, as in a DescribeGroups response; empty bytes assign nothing.
    Raises: RemoteProtocolError on a malformed assignment.
    """
    missing = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
    for data in assignments:
        missing.difference_update(decode_assignment(data).partitions if data else ())
    return tuple(sorted(missing))


def metadata_snapshot(view: ClusterMetadata, topics: Iterable[str], with_racks: bool) -> MetadataSnapshot:
    """Returns the part of the metadata whose change requires a new assignment."""
    known = {topic: view.topics[topic] for topic in topics if topic in view.topics}
    if not with_racks:
        return {topic: len(info.partitions) for topic, info in known.items()}
    return {topic: _racks_of(view, topic) for topic in known}


def _racks(view: ClusterMetadata, topics: Iterable[str]) -> Mapping[str, tuple[tuple[str, ...], ...]] | None:
    if not any(node.rack for node in view.nodes.values()):
        return None
    return {topic: _racks_of(view, topic) for topic in topics if topic in view.topics}


def _racks_of(view: ClusterMetadata, topic: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(sorted({view.nodes[n].rack or "" for n in partition.replicas if n in view.nodes and view.nodes[n].rack}))
        for _, partition in sorted(view.topics[topic].partitions.items())
    )
