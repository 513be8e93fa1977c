"""Subscription and assignment bytes of the protocol type `consumer`, as every Kafka consumer writes them.

Knows the frozen values of `model`; brokers treat these bytes as opaque.

Source: KIP-429 (owned partitions), KIP-792 (generation), KIP-881 (rack); Kafka's ConsumerProtocol.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.wire.decoder import decode_prefix
from spark_groupsource.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """What a member sends in JoinGroup; topics and owned partitions are written sorted, as Java's consumer
    does.

    Fields newer than `version` are left out.
    """
    owned = partitions_by_topic(sorted(subscription.owned_partitions))
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in owned.items()
        ],
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id or None,
    )
    return bytes(message.encode(version=version))


def decode_subscription(data: bytes) -> Subscription:
    """A member's subscription, of any version.

    A version above ours is read as far as ours goes and the rest is ignored, as the protocol demands of every
    reader.

    Raises: RemoteProtocolError on a negative version, and on bytes that are missing or do not decode.
    """
    message = _decode(ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned_partitions=_flatten(message.owned_partitions or ()),
        generation_id=message.generation_id,
        rack_id=message.rack_id or None,
    )


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    """What the group leader sends for one member; topics come in order of their first partition."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in partitions_by_topic(assignment.partitions).items()
        ],
        user_data=assignment.user_data,
    )
    return bytes(message.encode(version=version))


def decode_assignment(data: bytes) -> Assignment:
    """A member's assignment, of any version.

    Raises: RemoteProtocolError on a negative version, and on bytes that are missing or do not decode; no
    bytes at all (the leader gave this member nothing to decode) are missing bytes too, the caller decides
    what they mean.
    """
    message = _decode(ConsumerProtocolAssignment, data)
    return Assignment(partitions=_flatten(message.assigned_partitions), user_data=message.user_data)


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """topic -> partition numbers, both in order of appearance."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _decode(message_class: Any, data: bytes) -> Any:
    if len(data) < 2:
        raise RemoteProtocolError(f"{message_class.__name__}: {len(data)} bytes are too short for a version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise RemoteProtocolError(f"{message_class.__name__}: version {version} does not exist")
    message, _ = decode_prefix(message_class, min(version, HIGHEST_VERSION), memoryview(data), 2)
    return message


def _flatten(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(entry.topic, partition) for entry in topics for partition in entry.partitions)
