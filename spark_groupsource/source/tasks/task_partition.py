"""Input partition of a read task: ranges, settings, membership.

The reader process plans it and the read task receives it; the reader process does not load what reads records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address
from spark_groupsource.model import OffsetRange, TopicPartition, bounded_names


@dataclass(frozen=True)
class TaskMembership:
    """The member a task sends heartbeats for, as of the planning of the batch.

    `retains_partitions`: a cooperative rebalance that does not revoke the batch's partitions was in progress. It is no
    part of the assignment, so it does not take part in comparisons.
    """

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None
    heartbeat_interval_ms: int
    retains_partitions: bool = field(default=False, compare=False)


class GroupInputPartition(InputPartition):
    """Ranges of one read task, with metadata of the cluster from the reader process.

    Attributes:
        membership: None for batch reads, option assign and replays.
        topic_ids: topic -> id of the topic for which the ranges were planned; a task reads no other topic of the name.
        leader_epochs: leader epoch in which each range was in the log (KIP-320); may lack partitions.
        known_brokers: addresses of the leaders and the coordinator from the metadata of the reader process; see
            `Router.task_brokers`.
        max_outage_ms: how long the task waits for the leaders of its partitions, and for the coordinator; None for no
            bound.
        is_batch: whether the task is of a batch read, not of a stream.
        group_id: group of the stream; None without one.
        query_file: file to which a task on the driver's machine writes the name of its query.
    """

    query_file: str | None = None

    def __init__(
        self,
        *,
        ranges: Sequence[OffsetRange],
        settings: ClientSettings,
        fail_on_data_loss: bool,
        membership: TaskMembership | None = None,
        topic_ids: Mapping[str, str] | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        known_brokers: Sequence[Address] = (),
        max_outage_ms: int | None = None,
        is_batch: bool = False,
        group_id: str | None = None,
    ) -> None:
        self.ranges = tuple(ranges)
        topics = {r.topic_partition.topic for r in self.ranges}
        self.topic_ids = {topic: each for topic, each in (topic_ids or {}).items() if topic in topics}
        read = {r.topic_partition for r in self.ranges}
        self.leader_epochs = {p: epoch for p, epoch in (leader_epochs or {}).items() if p in read}
        self.known_brokers = tuple(known_brokers)
        self.settings = settings
        self.fail_on_data_loss = fail_on_data_loss
        self.membership = membership
        self.max_outage_ms = max_outage_ms
        self.is_batch = is_batch
        self.group_id = group_id

    def __repr__(self) -> str:
        ranges = bounded_names(f"{r.topic_partition} [{r.start}, {r.end})" for r in self.ranges)
        return f"GroupInputPartition({ranges})"
