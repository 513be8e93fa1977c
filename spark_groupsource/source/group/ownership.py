"""Partitions a stream owns: assigned by the group, or listed by `assign`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, Protocol, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import NO_IDS, TopicIds
from spark_groupsource.client.membership.commit_repetition import CommitRepetition
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.group.rebalance_listener import load_rebalance_listener
from spark_groupsource.source.group.rebalance_reports import RebalanceReports
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.positions.offset_lookup import OffsetLookup
from spark_groupsource.source.tasks.task_partition import TaskMembership

if TYPE_CHECKING:
    from spark_groupsource.client.records.transactions import Transactions

_log = logging.getLogger(__name__)

Commits = dict[TopicPartition, OffsetAndMetadata | None]


@dataclass(frozen=True)
class GroupSnapshot:
    """The assignment at one moment.

    Attributes:
        generation_id: generation of the group, -1 without a group.
        owners: owned partition -> index of the member that owns it, -1 without a group.
        members: index -> membership for read tasks; empty without a group.
    """

    generation_id: int = -1
    owners: Mapping[TopicPartition, int] = field(default_factory=dict)
    members: Mapping[int, TaskMembership] = field(default_factory=dict)


class Ownership(Protocol):
    """Interface of both kinds; used by one thread at a time."""

    @property
    def rejoin_needed(self) -> bool:
        """True if the next `poll` may revoke partitions; all positions must be committed before."""

    @property
    def retains_partitions(self) -> bool:
        """True if no owned partition is revoked before the next `poll`, so it may be read during a rebalance."""

    def repeats_commit(self) -> bool:
        """True if everything must be committed again now, because a commit without a response may still arrive.

        The members of a group repeat their commits themselves.
        """

    def poll(self, timeout_ms: int) -> bool:
        """Joins or rejoins the group if needed; returns True once the assignment is stable."""

    def snapshot(self) -> GroupSnapshot:
        """Returns the assignment now; partitions change in `poll` and `leave` only."""

    def committed(self, partitions: Sequence[TopicPartition], topic_ids: TopicIds = NO_IDS) -> Commits:
        """Fetches the group's committed offsets; None where there is none; see `ClusterClient.fetch_committed`."""

    def last_commits(self, partitions: Sequence[TopicPartition], metadata: str) -> dict[TopicPartition, int | None]:
        """Returns the last offsets that were committed with `metadata`, None where there was none; see
        `find_last_commits`.
        """

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None = None,
        topic_ids: TopicIds = NO_IDS,
    ) -> None:
        """Commits for the owning members; waits at most `max_rebalance_wait_ms` for a rebalance to end.

        Raises: GenerationMismatchError, BrokerError, NetworkError; UNKNOWN_TOPIC_ID if a topic has another id than in
            `topic_ids`, which were read when the position was.
        """

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], transactions: Transactions
    ) -> None:
        """Adds the offsets to a transaction, for the owning members.

        Raises: GenerationMismatchError, BrokerError, NetworkError.
        """

    def metrics(self) -> Mapping[str, float]:
        """Returns the metrics of the members, see `CoordinatorMetrics.values`; nothing without a group."""

    def step_back(self, reason: str) -> None:
        """Leaves the group until the next `poll`, so that other members read what this query owns."""

    def leave(self, reason: str) -> None:
        """Leaves the group; no partition is owned afterwards."""


class AssignedPartitions:
    """The partitions of option assign; offsets are committed without membership if the query has a group."""

    rejoin_needed = False
    retains_partitions = True

    def __init__(self, cluster: ClusterClient, options: SourceOptions) -> None:
        self._cluster = cluster
        self._group_id = options.group_id
        self._partitions = OffsetLookup(cluster, options).partitions()
        self._is_rejected = False
        self._repetition = CommitRepetition()

    def repeats_commit(self) -> bool:
        now_ms = self._cluster.clock.now_ms()
        if not self._repetition.is_due(now_ms):
            return False
        self._repetition.repeated(now_ms)
        return True

    def poll(self, timeout_ms: int) -> bool:
        return True

    def snapshot(self) -> GroupSnapshot:
        return GroupSnapshot(owners=dict.fromkeys(self._partitions, -1))

    def committed(self, partitions: Sequence[TopicPartition], topic_ids: TopicIds = NO_IDS) -> Commits:
        if self._group_id is None:
            return dict.fromkeys(partitions)
        self._cluster.confirm_coordinator(self._group_id)
        return self._cluster.fetch_committed(self._group_id, partitions, topic_ids=topic_ids)

    def last_commits(self, partitions: Sequence[TopicPartition], metadata: str) -> dict[TopicPartition, int | None]:
        return {} if self._group_id is None else _last_commits(self._cluster, self._group_id, partitions, metadata)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None = None,
        topic_ids: TopicIds = NO_IDS,
    ) -> None:
        if self._group_id is None:
            return
        try:
            timeout_ms = None if max_rebalance_wait_ms is not None else self._cluster.settings.default_api_timeout_ms
            clock, repetition = self._cluster.clock, self._repetition
            self._cluster.commit(
                self._group_id,
                offsets,
                timeout_ms=timeout_ms,
                topic_ids=topic_ids,
                on_lost=lambda: repetition.start(clock.now_ms()),
            )
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            # the group has members; one line until a commit succeeds, because each batch commits
            level = logging.DEBUG if self._is_rejected else logging.WARNING
            _log.log(
                level,
                "[group=%s] Offsets of option assign are not committed while the group has members: %s",
                self._group_id,
                error,
            )
            self._is_rejected = True
        else:
            self._is_rejected = False

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], transactions: Transactions
    ) -> None:
        if self._group_id is not None:
            transactions.commit_offsets(self._group_id, offsets)

    def metrics(self) -> Mapping[str, float]:
        return {}

    def step_back(self, reason: str) -> None:
        """Has no group."""

    def leave(self, reason: str) -> None:
        self._partitions = []


class GroupPartitions:
    """The partitions that the query's members own."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: SourceOptions,
        clock: Clock,
        members: int,
        application: str = "",
        recorded_query: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._cluster = cluster
        self._settings = options.group_settings(members)
        class_path = options.rebalance_listener
        self._group = GroupClient(
            cluster, self._settings, clock, load_rebalance_listener(class_path) if class_path else None
        )
        self.reports = RebalanceReports(
            self._group, self._settings.group_id, clock, options.rebalance_log, application, recorded_query
        )
        self._has_left = False

    @property
    def rejoin_needed(self) -> bool:
        return self._group.rejoin_needed

    @property
    def retains_partitions(self) -> bool:
        return not self._has_left and self._group.view.retains_partitions

    def repeats_commit(self) -> bool:
        return False

    def poll(self, timeout_ms: int) -> bool:
        view = self._group.poll(timeout_ms)
        self.reports.append_to_file()
        return view.is_stable

    def snapshot(self) -> GroupSnapshot:
        if self._has_left:
            return GroupSnapshot()
        view = self._group.view
        return GroupSnapshot(
            view.generation_id,
            {p: member.index for member in view.members for p in member.partitions},
            {
                member.index: TaskMembership(
                    group_id=self._settings.group_id,
                    member_id=member.member_id,
                    generation_id=member.generation_id,
                    group_instance_id=member.group_instance_id,
                    heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
                    retains_partitions=member.retains_partitions,
                )
                for member in view.members
            },
        )

    def committed(self, partitions: Sequence[TopicPartition], topic_ids: TopicIds = NO_IDS) -> Commits:
        return dict(self._group.committed(list(partitions), topic_ids))

    def last_commits(self, partitions: Sequence[TopicPartition], metadata: str) -> dict[TopicPartition, int | None]:
        return _last_commits(self._cluster, self._settings.group_id, partitions, metadata)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        max_rebalance_wait_ms: int | None = None,
        topic_ids: TopicIds = NO_IDS,
    ) -> None:
        self._group.commit(offsets, max_rebalance_wait_ms, topic_ids)

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], transactions: Transactions
    ) -> None:
        self._group.commit_in_transaction(offsets, transactions)

    def metrics(self) -> Mapping[str, float]:
        return self._group.metrics()

    def step_back(self, reason: str) -> None:
        self._group.step_back(reason)

    def leave(self, reason: str) -> None:
        if not self._has_left:
            self._has_left = True
            try:
                self._group.leave(reason)
            except ConfigurationError as error:
                # raised by the user's rebalance listener after the members have left; the query has ended
                _log.error("[group=%s] %s", self._settings.group_id, error)
            self.reports.close()


def _last_commits(
    cluster: ClusterClient, group_id: str, partitions: Sequence[TopicPartition], metadata: str
) -> dict[TopicPartition, int | None]:
    # few queries need it, and not at their start
    from spark_groupsource.client.membership.commit_history import find_last_commits

    return find_last_commits(cluster, group_id, partitions, metadata)
