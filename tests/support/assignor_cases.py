"""Assignors and builders of their arguments, for tests."""

from __future__ import annotations

from typing import Any

from spark_groupsource.assign import CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor, StickyAssignor
from spark_groupsource.model import GroupMember, Subscription, TopicPartition

ASSIGNORS: dict[str, Any] = {
    "range": RangeAssignor,
    "roundrobin": lambda prefer_racks=False: RoundRobinAssignor(),
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def topic_partition(text):
    if isinstance(text, TopicPartition):
        return text
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def topic_partitions(texts):
    return [topic_partition(text) for text in texts]


def member(row):
    """Returns the member of a row: id, topics, owned, generation, user_data_hex, instance, rack."""
    user_data = row.get("user_data_hex")
    return GroupMember(
        member_id=row["id"],
        subscription=Subscription(
            topics=tuple(row.get("topics", ())),
            user_data=bytes.fromhex(user_data) if user_data is not None else None,
            owned_partitions=tuple(topic_partitions(row.get("owned", ()))),
            generation_id=row.get("generation", -1),
            rack_id=row.get("rack"),
        ),
        group_instance_id=row.get("instance"),
    )


def same_racks(partitions, racks):
    return {topic: [racks] * count for topic, count in partitions.items()}
