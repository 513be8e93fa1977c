"""What a group's leader does between JoinGroup and SyncGroup: it reads everyone's subscription and assigns.

Source: Kafka's ConsumerCoordinator.onLeaderElected; KIP-429 (cooperative hand-over), KIP-881 (racks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence

from spark_groupsource.assign import Assignor, CooperativeStickyAssignor
from spark_groupsource.client.cluster.client import Cluster, ClusterMetadata
from spark_groupsource.client.membership.state_machine import Joined
from spark_groupsource.model import Assignment, GroupMember, TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, decode_subscription, encode_assignment

Snapshot = Mapping[str, Any]
"""topic -> what of it went into the assignment: partition count, or the racks of each partition"""


@dataclass(frozen=True)
class Decision:
    """What a leader decided: bytes for every member, and what it decided upon."""

    assignments: Mapping[str, bytes]
    topics: frozenset[str]
    snapshot: Snapshot


def decide(cluster: Cluster, assignor: Assignor, joined: Joined, with_racks: bool) -> Decision:
    """Runs `assignor` over all members, on metadata fetched now.

    Raises: whatever the assignor raises; RuntimeError where a cooperative assignor of the user's moves a partition that
        its owner has not given up; RemoteProtocolError on a subscription that cannot be read; NetworkError.
    """
    members = [
        GroupMember(member_id, decode_subscription(data), instance_id)
        for member_id, instance_id, data in joined.members
    ]
    topics = frozenset(topic for member in members for topic in member.subscription.topics)
    view = cluster.metadata(topics, refresh=True)
    taken = snapshot(view, topics, with_racks)
    if joined.skip_assignment:
        # KIP-814: the group is stable, this member only takes over watching the metadata
        return Decision({}, topics, taken)
    counts = {topic: len(view.topics[topic].partitions) for topic in sorted(topics) if topic in view.topics}
    assigned = assignor.assign(counts, members, _racks(view, topics))
    if assignor.cooperative and not isinstance(assignor, CooperativeStickyAssignor):
        _check_hand_over(assignor.name, members, assigned)
    unasked = {tp.topic for partitions in assigned.values() for tp in partitions} - topics
    if unasked:
        # an assignor may give what nobody subscribes to; it has to be watched like the rest
        topics |= unasked
        taken = snapshot(cluster.metadata(topics, refresh=True), topics, with_racks)
    return Decision(
        {
            member.member_id: encode_assignment(Assignment(tuple(assigned.get(member.member_id, ()))))
            for member in members
        },
        topics,
        taken,
    )


def unassigned(counts: Mapping[str, int], assignments: Iterable[bytes]) -> tuple[TopicPartition, ...]:
    """The partitions of these topics that none of a group's assignments names.

    Args:
        counts: topic -> number of partitions.
        assignments: each member's bytes, as DescribeGroups tells them; none at all assign nothing.
    Raises: RemoteProtocolError on bytes that are no assignment.
    """
    wanted = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
    for data in assignments:
        wanted.difference_update(decode_assignment(data).partitions if data else ())
    return tuple(sorted(wanted))


def _check_hand_over(
    name: str, members: Sequence[GroupMember], assigned: Mapping[str, Sequence[TopicPartition]]
) -> None:
    """A partition goes to a new owner only in the round after the old one gave it up.

    Raises: RuntimeError naming what would be read by two at once.
    """
    gained: set[TopicPartition] = set()
    given_up: set[TopicPartition] = set()
    for member in members:
        before, after = set(member.subscription.owned_partitions), set(assigned.get(member.member_id, ()))
        gained |= after - before
        given_up |= before - after
    if gained & given_up:
        moved = ", ".join(map(str, sorted(gained & given_up)))
        raise RuntimeError(
            f"assignor {name} is cooperative, but gives {moved} to a new owner while the old one still reads it; it "
            "must leave such partitions out of one assignment"
        )


def snapshot(view: ClusterMetadata, topics: Iterable[str], with_racks: bool) -> Snapshot:
    """What must stay as it is for an assignment to stay right."""
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
