"""Iteration orders of Java collections.

With them an assignment equals that of a Java leader, including the order of each list.

Source: Kafka's AbstractPartitionAssignor.MemberInfo (static members first), java.util.HashMap (iteration).
"""

from __future__ import annotations

from typing import Callable, Iterable, Sequence, TypeVar

from spark_groupsource.model import GroupMember, TopicPartition, java_string_hash

Item = TypeVar("Item")
_UINT32 = 0xFFFFFFFF


def text_order(text: str) -> bytes:
    """Returns the sort key of a text in Java: UTF-16 code units, not code points."""
    return text.encode("utf-16-be", "surrogatepass")


def static_first(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Returns static members by group instance id, then the others by member id."""
    return sorted(
        members,
        key=lambda member: (
            (0, text_order(member.group_instance_id))
            if member.group_instance_id is not None
            else (1, text_order(member.member_id))
        ),
    )


def by_member_hash(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Returns members in the iteration order of a Java HashMap keyed by member id."""
    return hash_map_order(list(members), lambda member: java_string_hash(member.member_id) & _UINT32)


def hash_map_order(items: Sequence[Item], hash_of: Callable[[Item], int]) -> list[Item]:
    """Returns distinct items in the iteration order of a `java.util.HashMap` filled in the given order.

    The order is that of the buckets: 16 at first, doubled whenever the map is more than three quarters full.
    """
    capacity = 16
    while len(items) > capacity * 3 // 4:
        capacity *= 2

    def bucket(item: Item) -> int:
        code = hash_of(item)
        return (code ^ code >> 16) & (capacity - 1)

    return sorted(items, key=bucket)


def partition_hash(topic_partition: TopicPartition) -> int:
    """Returns hashCode of Kafka's TopicPartition as an unsigned 32-bit number."""
    return (31 * (31 + topic_partition.partition) + java_string_hash(topic_partition.topic)) & _UINT32
