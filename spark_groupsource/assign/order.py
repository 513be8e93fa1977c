"""Orders in which Kafka's assignors walk members; with them our result is a Java leader's, list by list.

Source: Kafka's AbstractPartitionAssignor.MemberInfo (static members first), java.util.HashMap (iteration).
"""

from __future__ import annotations

from typing import Callable, Iterable, Sequence, TypeVar

from spark_groupsource.model import GroupMember, TopicPartition

Item = TypeVar("Item")


def text_order(text: str) -> bytes:
    """Sort key of a text as Java compares it: by UTF-16 units, not by code points."""
    return text.encode("utf-16-be", "surrogatepass")


def static_first(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Members that have an instance id, by it, then the others by member id."""
    return sorted(
        members,
        key=lambda member: (
            (0, text_order(member.group_instance_id))
            if member.group_instance_id is not None
            else (1, text_order(member.member_id))
        ),
    )


def by_member_hash(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Members as Java walks a HashMap keyed by member id that was filled in the given order."""
    return hash_map_order(list(members), lambda member: text_hash(member.member_id))


def hash_map_order(items: Sequence[Item], hash_of: Callable[[Item], int]) -> list[Item]:
    """Distinct items by bucket of a `java.util.HashMap`, within a bucket in the given order.

    The table begins with 16 buckets and doubles whenever it is more than three quarters full.
    """
    capacity = 16
    while len(items) > capacity * 3 // 4:
        capacity *= 2

    def bucket(item: Item) -> int:
        code = hash_of(item)
        return (code ^ code >> 16) & (capacity - 1)

    return sorted(items, key=bucket)


def text_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned 32-bit number."""
    code = 0
    units = text_order(text)
    for high, low in zip(units[::2], units[1::2]):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


def partition_hash(topic_partition: TopicPartition) -> int:
    """hashCode of Kafka's TopicPartition, as an unsigned 32-bit number."""
    return (31 * (31 + topic_partition.partition) + text_hash(topic_partition.topic)) & 0xFFFFFFFF
