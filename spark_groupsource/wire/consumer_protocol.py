"""Subscription and assignment encoding of the consumer protocol.

The group coordinator treats these bytes as opaque.

Source: KIP-429 (owned partitions), KIP-792 (generation), KIP-881 (rack); Kafka's ConsumerProtocol.
"""

from __future__ import annotations

from typing import Iterable, Mapping

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.wire.decoder import MessageT, decode_prefix
from spark_groupsource.wire.encoder import encode_data
from spark_groupsource.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3

_Topic = ConsumerProtocolAssignment.TopicPartition | ConsumerProtocolSubscription.TopicPartition


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Encodes the subscription of a JoinGroup request, with sorted topics and partitions like Java's consumer.

    Fields newer than `version` are omitted.
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
    return encode_data(message, version)


def decode_subscription(data: bytes) -> Subscription:
    """Decodes the subscription of a member.

    The known fields of a newer version are decoded, the others are ignored, as the protocol requires.

    Raises: RemoteProtocolError if the version is negative or the bytes are invalid.
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
    """Encodes the assignment of one member; topics are in the order of their first partition."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in partitions_by_topic(assignment.partitions).items()
        ],
        user_data=assignment.user_data,
    )
    return encode_data(message, version)


def decode_assignment(data: bytes) -> Assignment:
    """Decodes the assignment of a member.

    Raises: RemoteProtocolError if the version is negative or the bytes are invalid. Empty bytes, from a leader without
    an assignment for the member, are invalid too; the caller handles them.
    """
    message = _decode(ConsumerProtocolAssignment, data)
    return Assignment(partitions=_flatten(message.assigned_partitions), user_data=message.user_data)


def decode_assigned_topics(data: bytes) -> dict[str, list[int]]:
    """Decodes the partitions of an assignment by topic. Raises: as `decode_assignment`."""
    found: dict[str, list[int]] = {}
    for entry in _decode(ConsumerProtocolAssignment, data).assigned_partitions:
        found.setdefault(entry.topic, []).extend(entry.partitions)
    return found


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Groups partitions by topic, both in order of appearance."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _decode(message_class: type[MessageT], data: bytes) -> MessageT:
    if len(data) < 2:
        raise RemoteProtocolError(f"Cannot decode {message_class.__name__}: {len(data)} bytes have no version.")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise RemoteProtocolError(f"Cannot decode {message_class.__name__}: version {version} does not exist.")
    message, _ = decode_prefix(message_class, min(version, HIGHEST_VERSION), memoryview(data), 2)
    return message


def _flatten(topics: Iterable[_Topic]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(entry.topic, partition) for entry in topics for partition in entry.partitions)
