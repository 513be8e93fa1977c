"""Immutable values that every package uses: partitions, offsets, nodes, group members."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Iterable, Mapping, NamedTuple, Sequence

new_tuple = tuple.__new__
"""Creates a named tuple from a tuple of all its values, in a third of the time that its constructor takes."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Records of one partition from `start` (inclusive) to `end` (exclusive)."""

    topic_partition: TopicPartition
    start: int
    end: int


class Node(NamedTuple):
    """One broker in the cluster metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id: {self.node_id})"


class OffsetAndMetadata(NamedTuple):
    """A committed offset, which is the next offset to read; `leader_epoch` is -1 if unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True)
class Subscription:
    """Subscription of a member, which the group leader receives (ConsumerProtocolSubscription v0-v3).

    `generation_id` is the generation of `owned_partitions`, -1 if there is none.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    rack_id: str | None = None


@dataclass(frozen=True)
class Assignment:
    """Assignment of one member (ConsumerProtocolAssignment v0-v3)."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


@dataclass(frozen=True)
class GroupMember:
    """One member, as passed to an assignor."""

    member_id: str
    subscription: Subscription
    group_instance_id: str | None = None


# topic -> racks of the replicas of each partition, in partition order; an empty tuple where racks are unknown
PartitionRacks = Mapping[str, Sequence[Sequence[str]]]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Groups partitions by topic, sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def topic_matches(pattern: str, topic: str) -> bool:
    """Returns whether the name of a topic contains a match of `subscribePattern`, as in Spark's Kafka source."""
    return re.search(pattern, topic) is not None


def bounded_names(names: Iterable[object], limit: int = 5, *, count: int | None = None) -> str:
    """Joins names for log lines and messages: at most `limit` of them, then the number of the others.

    If `count`, the number of names, is given, the others are not computed.

    Example: ``orders-0, orders-1, orders-2, orders-3, orders-4 and 4,995 more``.
    """
    names = iter(names)
    shown = [str(name) for name in islice(names, limit)]
    omitted = (sum(1 for _ in names) + len(shown) if count is None else count) - limit
    return ", ".join(shown) + (f" and {omitted:,} more" if omitted > 0 else "")


class ProducerIdAndEpoch(NamedTuple):
    """An idempotent or transactional producer."""

    producer_id: int
    epoch: int


_MAX_CACHED_CHARS, _CACHED_HASHES = 128, 4_096
"""Bounds of the memory of cached hashes: a client of the broker chooses the names, of up to 32,767 bytes."""


def java_string_hash(text: str) -> int:
    """Returns Java's `String.hashCode`, a signed 32-bit number."""
    return _cached_hash(text) if len(text) <= _MAX_CACHED_CHARS else _java_string_hash(text)


def _java_string_hash(text: str) -> int:
    units: Iterable[int]
    if text.isascii():
        units = text.encode()
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


# a leader orders its members by it in each rebalance, and every request of a group needs it
_cached_hash = lru_cache(maxsize=_CACHED_HASHES)(_java_string_hash)


def coordinator_partition(key: str, partition_count: int) -> int:
    """Returns the partition of `__consumer_offsets` or `__transaction_state` for a group or transactional id.

    The leader of the partition is the coordinator.

    Source: Kafka's `Utils.abs(groupId.hashCode()) % numPartitions`.
    """
    value = java_string_hash(key)
    # the smallest int has no absolute value in Java; Kafka uses 0
    return 0 if value == -(1 << 31) else abs(value) % partition_count
