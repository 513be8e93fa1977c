"""Replay of a logged batch after a restart.

The group is joined first. What other members have committed is not read again; what they own and have not committed is
waited for.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import TopicIds
from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition, bounded_names
from spark_groupsource.source.group.ownership import Commits, GroupSnapshot, Ownership
from spark_groupsource.source.group.replay_wait import ReplayStep, ReplayWait
from spark_groupsource.source.options.source_options import EARLIEST, SourceOptions
from spark_groupsource.source.positions.data_loss import DataLossPolicy
from spark_groupsource.source.positions.kafka_checkpoint import initial_offsets
from spark_groupsource.source.positions.offset_json import SourceOffset, logged_ranges
from spark_groupsource.source.positions.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.positions.position_decisions import commits_ahead_error, committed_offset, ranges_ahead
from spark_groupsource.wire.commit_reports import author_metadata, is_author

if TYPE_CHECKING:
    from spark_groupsource.source.group.transactional_commits import TransactionalCommits

_log = logging.getLogger(__name__)

# between two requests while other members are waited for
_RETRY_MS = 100


class ReplayedBatch(NamedTuple):
    """What is read again of a logged batch.

    Attributes:
        group: the assignment in which `ranges` are read.
        left_out: the start offsets of a batch of which nothing is read, so that the next batch reads its records.
    """

    ranges: list[OffsetRange]
    group: GroupSnapshot = GroupSnapshot()
    left_out: Mapping[TopicPartition, int] = MappingProxyType({})


class BatchReplay:
    """Reads logged batches of one query again.

    Args:
        transactions: of a query that writes exactly once.
        poll_group: polls the group with the assignment whose partitions are read now, None before the first one;
            returns whether the assignment is stable.
        is_closing: whether the reader ends without the batch; a drain waits for it.
        entity: returns the start of log lines.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        options: SourceOptions,
        ownership: Ownership,
        lookup: OffsetLookup,
        data_loss: DataLossPolicy,
        clock: Clock,
        *,
        transactions: TransactionalCommits | None,
        poll_group: Callable[[GroupSnapshot | None], bool],
        is_closing: Callable[[], bool],
        entity: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._ownership = ownership
        self._lookup = lookup
        self._data_loss = data_loss
        self._clock = clock
        self._transactions = transactions
        self._poll_group = poll_group
        self._is_closing = is_closing
        self._entity = entity

    def ranges(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """Returns the ranges of a batch of the offset log. Raises: ConfigurationError, BrokerError, NetworkError."""
        ranges, unknown = logged_ranges(start, end)
        if unknown and not start.positions and not end.reader:
            begins = self._initial_of_sparks_source(frozenset(unknown))
            return ranges + [OffsetRange(p, begin, end.positions[p]) for p, begin in sorted(begins.items())]
        for p, begin in self._lookup.earliest(unknown).items():
            _log.warning("%s The checkpoint has no start offset of %s; reading from %d.", self._entity(), p, begin)
            ranges.append(OffsetRange(p, begin, end.positions[p]))
        return ranges

    def _initial_of_sparks_source(self, partitions: frozenset[TopicPartition]) -> Offsets:
        """Returns the start of batch 0 of a checkpoint of Spark's Kafka source, which the offset log does not have."""
        if self._options.values.checkpoint is not None:
            return initial_offsets(self._options.values.checkpoint, partitions)
        if self._options.starting is not None and self._options.starting.default == EARLIEST:
            return self._lookup.earliest(partitions)
        raise ConfigurationError(
            "The checkpoint is of Spark's Kafka source and its first batch is not committed: the start of the batch is "
            "in the folder sources of the checkpoint. Set checkpointLocation to the local checkpoint directory, or let "
            "format kafka finish the batch."
        )

    def read_again(
        self, ranges: Iterable[OffsetRange], end: SourceOffset, end_json: Mapping[str, Any]
    ) -> ReplayedBatch:
        """Returns a logged batch without what other members have committed since.

        A batch that this query has published in a transaction is read in full, so that its state is right: it is not
        written again, and nothing of it is committed. One that it has not published is left out: the group's committed
        offsets are where the output ends, and the next batch begins there. So each batch is published as a whole or
        not at all, also where this query is killed again.

        Raises: DataLossError for a topic that was recreated since; without failOnDataLoss its ranges are skipped;
            ConfigurationError (onGroupAhead=fail), BrokerError, NetworkError.
        """
        is_published = self._transactions is not None and self._transactions.is_published(end.reader, end_json)
        if self._transactions is not None and self._options.group_id is not None and not is_published:
            left_out: Offsets = {r.topic_partition: r.start for r in ranges}
            _log.info(
                "%s A logged batch was not published; the next one reads its records: %s.",
                self._entity(),
                bounded_names(left_out),
            )
            return ReplayedBatch([], left_out=left_out)
        logged = {r.topic_partition: r for r in ranges if r.end > r.start}
        if not logged:
            return ReplayedBatch([])
        self._cluster.add_known_partitions(logged, end.topic_ids)
        found = self._lookup.topic_ids({p.topic for p in logged}, refresh=True)
        recreated = {t for t, topic_id in found.items() if end.topic_ids.get(t, topic_id) != topic_id}
        self._data_loss.recreated({p: r.start for p, r in logged.items() if p.topic in recreated})
        existing = {p: r for p, r in logged.items() if p.topic not in recreated}
        if is_published:
            _log.info("%s Reading a published batch again for its state: %s.", self._entity(), bounded_names(existing))
            return ReplayedBatch([existing[p] for p in sorted(existing)])
        group, commits = self._join(existing, found)
        if self._options.on_group_ahead != "follow":
            # as at a restart without a logged batch: of the partitions of this query
            owned = group.owners if self._options.group is not None else existing
            ahead = {
                p: (r.start, commit.offset)
                for p, r in existing.items()
                if p in owned and (commit := commits.get(p)) is not None and commit.offset > r.start
            }
            if ahead and self._options.on_group_ahead == "fail":
                raise commits_ahead_error(self._options.group_id, ranges_ahead(ahead))
            commits = {p: commit for p, commit in commits.items() if p not in ahead}
        replayed = []
        for p, (_, start, stop) in existing.items():
            commit = commits.get(p)
            begin = start if commit is None else min(max(start, commit.offset), stop)
            replayed.append(OffsetRange(p, begin, stop))
        self._log_processed(logged, replayed, commits, end.reader)
        names = bounded_names(sorted(r.topic_partition for r in replayed if r.end > r.start))
        if self._options.assign is None and names:
            _log.warning("%s Reading a logged batch again: %s.", self._entity(), names)
        return ReplayedBatch(replayed, group)

    def _join(
        self, logged: Mapping[TopicPartition, OffsetRange], topic_ids: TopicIds
    ) -> tuple[GroupSnapshot, Commits]:
        """Joins the group, and waits until other members have committed what they own of a logged batch.

        Their commits are what a later restart finds: a range that is left to another member without them could be lost.
        Two queries that restart together may each own what the other one has logged, and then both wait. So one that
        waits without progress leaves the group for a while: the others read what it has owned, and it joins again. A
        member that commits nothing while a rebalance would wait for it is not waited for.

        Returns: the assignment, empty without a group, and the committed offsets.
        """
        group, commits = GroupSnapshot(), self._ownership.committed(sorted(logged), topic_ids)
        settings = self._options.group
        if settings is None or not logged:
            return group, commits
        # no member owns what does not exist, or what is no longer subscribed
        shared = {p for p in logged.keys() - self._lookup.missing(logged) if self._options.subscribes(p.topic)}
        wait = ReplayWait(settings.session_timeout_ms, settings.rebalance_timeout_ms, self._cluster.rng)
        current: GroupSnapshot | None = None
        while not self._is_closing():
            is_settled = False
            if wait.is_member:
                is_settled = self._poll_group(current)
                current = group = self._ownership.snapshot()
            commits = self._ownership.committed(sorted(logged), topic_ids)
            awaited = {
                p: commits.get(p)
                for p in sorted(shared - group.owners.keys())
                if (committed_offset(commits.get(p)) or 0) < logged[p].end
            }
            if not awaited:
                break
            names = bounded_names(awaited)
            step = wait.next_step({p: commits.get(p) for p in shared}, self._clock.now_ms())
            if step is ReplayStep.BEGIN:
                _log.info("%s Waiting for other members to commit parts of a logged batch: %s.", self._entity(), names)
            elif step is ReplayStep.READ_AGAIN:
                _log.warning(
                    "%s Other members own parts of a logged batch and have committed nothing for %d ms; reading them "
                    "again: %s.",
                    self._entity(),
                    settings.rebalance_timeout_ms,
                    names,
                )
                break
            elif step is ReplayStep.STEP_BACK and is_settled:
                _log.info("%s Leaving the group until other members have committed: %s.", self._entity(), names)
                self._ownership.step_back("waiting for parts of a logged batch")
                wait.stepped_back(self._clock.now_ms())
                current, group = None, GroupSnapshot()
            self._clock.sleep_ms(_RETRY_MS)
        return group, commits

    def _log_processed(
        self,
        logged: Mapping[TopicPartition, OffsetRange],
        replayed: Sequence[OffsetRange],
        commits: Commits,
        reader: str,
    ) -> None:
        """Logs the ranges of a logged batch that are not read again, because the group has committed them.

        A commit of this query follows its ``commits/N``, so without that file the checkpoint was changed by hand.
        """
        by_author: dict[bool, list[str]] = {True: [], False: []}
        for p, begin, _ in sorted(replayed):
            commit, start = commits.get(p), logged[p].start
            if commit is not None and begin > start:
                is_own = bool(reader) and is_author(commit.metadata, author_metadata(reader))
                by_author[is_own].append(f"{p} [{start}, {begin})")
        if by_author[False]:
            text = "%s Other members have committed offsets within the logged batch, which are not read again: %s."
            _log.info(text, self._entity(), bounded_names(by_author[False]))
        if by_author[True]:
            _log.warning(
                "%s Offsets of the logged batch are not read again, because the group has committed them: %s. This "
                "query commits after the batch, so its file in the folder commits of the checkpoint was deleted. To "
                "read them again, reset the offsets of the group.",
                self._entity(),
                bounded_names(by_author[True]),
            )
