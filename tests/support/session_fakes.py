"""In-memory cluster, group and query for `StreamSession` on a manual clock."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, Iterable, Mapping, Sequence, cast

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import NO_IDS
from spark_groupsource.client.cluster.metadata import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    EpochEndOffset,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicInfo,
)
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import Node, OffsetAndMetadata, TopicPartition
from spark_groupsource.source.group.ownership import GroupSnapshot
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.session import StreamSession
from spark_groupsource.source.tasks.task_partition import TaskMembership

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
NO_LIMITS = Limits()


class FakeTopicId(str):
    """A readable id; `int` as of a UUID, which is 0 where there is no id."""

    int = 1


@dataclass
class FakeCluster:
    """Logs as pairs of start and end offset; `lookups` counts the ListOffsets calls."""

    logs: dict[TopicPartition, tuple[int, int]] = field(default_factory=lambda: {p: (0, 10) for p in (P0, P1, P2)})
    lookups: int = 0
    topic_id: str | None = None
    cluster_id: str | None = None
    leader_epoch: int = 0
    epoch_ends: dict[int, EpochEndOffset] = field(default_factory=dict)
    call_timeout_ms: int | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    rng: Random = field(default_factory=lambda: Random(0))
    settings = ClientSettings((Address("h", 1),))

    def metadata(self, topics: Iterable[str] | None = None, *, refresh: bool = False) -> ClusterMetadata:
        partitions = {p.partition: PartitionInfo(p.partition, 1, 0) for p in self.logs}
        if topics and not partitions:
            return ClusterMetadata({}, {}, errors={t: 3 for t in topics})
        topic_id = None if self.topic_id is None else FakeTopicId(self.topic_id)
        topic = TopicInfo("t", topic_id, partitions)
        return ClusterMetadata({1: Node(1, "h", 1)}, {"t": topic}, cluster_id=self.cluster_id)

    def add_known_partitions(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, Any]) -> None:
        """Has no cache."""

    def confirm_leaders(self, topics: Iterable[str]) -> None:
        """Has one broker."""

    def list_offsets(
        self, partitions: Mapping[TopicPartition, int], read_committed: bool | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self.lookups += 1
        for p in partitions:
            if p not in self.logs:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {p}")
        side = {EARLIEST: 0, LATEST: 1}
        return {p: OffsetAndTimestamp(self.logs[p][side[at]], -1, -1) for p, at in partitions.items()}

    def cached_leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.leader_epoch)

    def end_offsets_for_epochs(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, EpochEndOffset]:
        return {p: self.epoch_ends.get(e, EpochEndOffset(e, self.logs[p][1])) for p, e in epochs.items()}

    def ends_of_former_epochs(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, EpochEndOffset]:
        return ClusterClient.ends_of_former_epochs(cast(ClusterClient, self), epochs, timeout_ms)

    def task_brokers(self, partitions: Iterable[TopicPartition], group_id: str | None = None) -> tuple[Address, ...]:
        return tuple(Address(f"h{p.partition}", 1) for p in partitions)

    def close(self) -> None:
        """Has no connections."""


@dataclass
class FakeGroup:
    """A group with an assignment that the test sets; `calls` records the calls in order.

    Commits of partitions in `not_existing` are rejected. `history` has every commit of a query, as `__consumer_offsets`
    does; unless it is complete, there may be others. `unsettled` polls find the rebalance in progress; then
    `finally_assigned` becomes the assignment. `topic_ids`: ids at the coordinator, which rejects others.
    """

    assigned: dict[TopicPartition, int] = field(default_factory=lambda: {P0: 0, P1: 0, P2: 1})
    commits: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    generation_id: int = 0
    rejoin_needed: bool = True
    next_assigned: dict[TopicPartition, int] | None = None
    commit_error: Exception | None = None
    not_existing: set[TopicPartition] = field(default_factory=set)
    calls: list[Any] = field(default_factory=list)
    joined: bool = False
    retains_partitions: bool = False
    unsettled: int = 0
    finally_assigned: dict[TopicPartition, int] | None = None
    history: list[tuple[TopicPartition, OffsetAndMetadata]] = field(default_factory=list)
    is_history_complete: bool = False
    topic_ids: dict[str, str] | None = None

    def repeats_commit(self) -> bool:
        return False

    def poll(self, timeout_ms: int) -> bool:
        self.calls.append("poll")
        if self.rejoin_needed:
            self.rejoin_needed = False
            self.generation_id += 1
            self.assigned = self.assigned if self.next_assigned is None else self.next_assigned
            self.next_assigned = None
            self.joined = True
        if self.unsettled:
            self.unsettled -= 1
            return False
        if self.finally_assigned is not None:
            self.assigned, self.finally_assigned = self.finally_assigned, None
            self.generation_id += 1
        return True

    def owners(self) -> dict[TopicPartition, int]:
        return dict(self.assigned) if self.joined else {}

    def snapshot(self) -> GroupSnapshot:
        owners = self.owners()
        members = {m: TaskMembership("g", f"m{m}", self.generation_id, None, 3000) for m in set(owners.values())}
        return GroupSnapshot(self.generation_id, owners, members)

    def committed(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, str] = NO_IDS
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self._check_topic_ids(partitions, topic_ids)
        return {p: self.commits.get(p) for p in partitions}

    def last_commits(self, partitions: Sequence[TopicPartition], metadata: str) -> dict[TopicPartition, int | None]:
        found = {p: commit.offset for p, commit in self.history if p in partitions and commit.metadata == metadata}
        return {p: found.get(p) for p in partitions if self.is_history_complete or p in found}

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None = None,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        self.calls.append(("commit", {p: o.offset for p, o in offsets.items()}))
        self._check_topic_ids(offsets, topic_ids)
        if self.commit_error is not None:
            raise self.commit_error
        assert set(offsets) <= set(self.owners())
        existing = {p: commit for p, commit in offsets.items() if p not in self.not_existing}
        self.commits.update(existing)
        self.history += existing.items()
        if len(existing) < len(offsets):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "commit")

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], transactions: Transactions
    ) -> None:
        self.calls.append(("transaction", {p: o.offset for p, o in offsets.items()}))
        if self.commit_error is not None:
            raise self.commit_error
        assert set(offsets) <= set(self.owners())
        self.commits.update(offsets)

    def _check_topic_ids(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        known = self.topic_ids
        named = [] if known is None else [p.topic for p in partitions if p.topic in topic_ids]
        if known is not None and any(known.get(topic) != topic_ids[topic] for topic in named):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "request by topic id")

    def metrics(self) -> Mapping[str, float]:
        return {}

    def step_back(self, reason: str) -> None:
        self.calls.append("step back")
        self.joined, self.rejoin_needed = False, True

    def leave(self, reason: str) -> None:
        self.calls.append("leave")
        self.joined = False

    def rebalance(self, assigned: dict[TopicPartition, int]) -> None:
        self.rejoin_needed, self.next_assigned = True, assigned


class Query:
    """Drives a session as Spark does: each call gets the last end offset as read from a checkpoint."""

    def __init__(
        self,
        start: dict[str, Any] | None = None,
        cluster: FakeCluster | None = None,
        group: FakeGroup | None = None,
        co_readers: Any = None,
        parsed: SourceOptions | None = None,
        **options: str,
    ) -> None:
        base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g", **options}
        self.cluster, self.group = cluster or FakeCluster(), group or FakeGroup()
        self.clock = ManualClock()
        parsed = parsed or parse_options(base, "stream")
        self.session = StreamSession(cast(ClusterClient, self.cluster), parsed, self.group, self.clock, co_readers)
        self.start: dict[str, Any] = start or {}

    def trigger(self, limits: Limits = NO_LIMITS) -> dict[TopicPartition, tuple[int, int]] | None:
        """Runs one trigger; returns the ranges of the batch, None if there is no batch."""
        begin, end = self.start, self.session.latest_offset(json.loads(json.dumps(self.start)), limits)
        if json.dumps(end) == json.dumps(begin) and begin:
            return None
        self.start = json.loads(json.dumps(end))
        tasks = self.session.input_partitions(begin, self.start)
        self.session.commit()
        return {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges}

    def committed(self) -> dict[TopicPartition, int]:
        return {p: commit.offset for p, commit in self.group.commits.items()}
