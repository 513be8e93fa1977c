"""Session of one streaming query: commits, group membership, batch planning.

Spark's callbacks arrive on one thread; the control socket's thread requests drains and replies to co-readers. The
order of steps in `latest_offset` gives the source's guarantees:

1. commit `start`: Spark calls with it only after it has checkpointed everything before it. Everything is committed
   again before partitions are revoked and before the group is left: the group may have lost what it acknowledged;
2. poll the group, which may revoke partitions: an uncommitted position would be read again by the new owner;
3. plan the next batch.

A cooperative rebalance does not stop retained partitions: their batches continue while the other members rejoin.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping
from uuid import uuid4

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.group_offsets import TopicIds
from spark_groupsource.client.network.retry import retry_level
from spark_groupsource.common.clock import Clock, SystemClock
from spark_groupsource.errors import BrokerError, ErrorCode, GenerationMismatchError, NetworkError
from spark_groupsource.model import (
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
    bounded_names,
)
from spark_groupsource.source.control_client import PeerReply
from spark_groupsource.source.group.batch_replay import BatchReplay
from spark_groupsource.source.group.co_readers import CoReaders
from spark_groupsource.source.group.ownership import GroupSnapshot, Ownership
from spark_groupsource.source.group.rebalance_reports import Reports
from spark_groupsource.source.group.start_positions import StartPositions
from spark_groupsource.source.locked_calls import LockedCalls
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.positions.batch_planner import BatchPlanner, Limits
from spark_groupsource.source.positions.data_loss import DataLossPolicy
from spark_groupsource.source.positions.log_end_offsets import LogEndOffsets
from spark_groupsource.source.positions.offset_json import (
    GROUP_KEY,
    DecodedOffsets,
    SourceOffset,
    nest_positions,
)
from spark_groupsource.source.positions.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.positions.planning import Backlog, plan_tasks
from spark_groupsource.source.positions.position_epochs import PositionEpochs
from spark_groupsource.source.positions.published_progress import digest, reader_name
from spark_groupsource.source.positions.schema_changes import SchemaChanges
from spark_groupsource.source.positions.stream_positions import StreamPositions
from spark_groupsource.source.tasks.task_partition import GroupInputPartition
from spark_groupsource.wire.commit_reports import commit_metadata

if TYPE_CHECKING:
    from spark_groupsource.source.group.transactional_commits import TransactionalCommits

_log = logging.getLogger(__name__)

# time limit of one poll; during a rebalance the partitions that are retained are read between two polls
_POLL_MS = 100
# an idle query calls about 90 times a second; the brokers are queried at most once in this time
_REFRESH_MS = 100
# wait of a commit for a rebalance to end, where a later call can commit as well
_COMMIT_WAIT_MS = 1_000
# the coordinator has not received the leader's assignment yet
_TRANSIENT = frozenset({ErrorCode.REBALANCE_IN_PROGRESS})
_UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class FollowResult(Enum):
    """Why polling the group has ended."""

    SETTLED = "the assignment is stable"
    REBALANCING = "a rebalance is in progress and retained partitions may be read"
    YIELDED = "a co-reader cannot continue before this reader returns to Spark"
    DRAINING = "a drain was requested"
    UNRESOLVED = "a commit fails before the positions of a received assignment are resolved"


class StreamSession:
    """Positions, commits and plans of one query."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: SourceOptions,
        ownership: Ownership,
        clock: Clock | None = None,
        co_readers: CoReaders | None = None,
        reports: Reports | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._ownership = ownership
        self._clock: Clock = clock or SystemClock()
        self._co_readers = co_readers or CoReaders(options.group_id or "", list, self._clock)
        self._lookup = OffsetLookup(cluster, options, self._clock)
        data_loss = DataLossPolicy(
            fail=options.fail_on_data_loss,
            group_id=options.group_id,
            checkpoint=options.values.checkpoint,
            clusters=lambda: (self._checkpoint_cluster_id, self._lookup.cluster_id()),
        )
        self._data_loss = data_loss
        self._reports = reports or Reports()
        self._epochs = PositionEpochs(cluster)
        self._log_ends = LogEndOffsets(
            self._lookup,
            self._epochs,
            data_loss,
            self._clock,
            read_committed=cluster.settings.read_committed,
            refresh_ms=_REFRESH_MS,
            retries=options.fetch_offset_num_retries,
            retry_interval_ms=options.fetch_offset_retry_interval_ms,
        )
        self._start_positions = StartPositions(
            options, ownership, self._lookup, data_loss, self._log_ends, self._clock
        )
        self._planner = BatchPlanner(cluster, options, self._clock)
        self._schemas = SchemaChanges(options.values)
        self._lock = threading.RLock()
        entity = f"group={options.group_id}" if options.group_id else "session"
        self._calls = LockedCalls(
            cluster, self._lock, self._clock, entity=entity, max_outage_ms=options.max_outage_ms
        )
        self._draining = threading.Event()
        self._closing = threading.Event()
        self.drained = threading.Event()
        self.reader = ""
        self._checkpoint_cluster_id = ""
        self._positions = StreamPositions()
        self._offsets = DecodedOffsets()
        self._assignment: GroupSnapshot | None = None
        # the assignment in which a logged batch was read again
        self._replayed_in = GroupSnapshot()
        self._last_end: dict[str, Any] | None = None
        self._is_start_proven = True
        self._held_commits: Offsets = {}
        # the generation before whose end everything was committed again
        self._repeated_in: int | None = None
        transactional_id = options.client.transactional_id
        self._transactions = None if transactional_id is None else _transactional_commits(cluster, transactional_id)
        self._replay = BatchReplay(
            cluster,
            options,
            ownership,
            self._lookup,
            data_loss,
            self._clock,
            transactions=self._transactions,
            poll_group=lambda current: (
                self._poll_group(current, self._closing, is_available_now=False) is FollowResult.SETTLED
            ),
            is_closing=self._closing.is_set,
            entity=lambda: self._entity,
        )
        # of a query that writes exactly once: what the transaction of the batch in flight commits, and has committed
        self._in_flight: Offsets = {}
        self._in_flight_end: dict[str, Any] = {}
        # the start offsets of the batch in flight if its records are left to the next one
        self._left_out: Mapping[TopicPartition, int] = {}
        self._joined: tuple[Offsets, int] | None = None
        self._published_batch: int | None = None
        # False once a broker has rejected the metadata of commits
        self._has_metadata = True

    # -- callbacks of Spark ------------------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Limits all further batches to the end offsets of the next call."""
        self._planner.is_available_now = True

    def latest_offset(self, start_json: dict[str, Any] | None, limits: Limits) -> dict[str, Any]:
        """Commits `start_json`, follows the group, and returns the end of the next batch, or `start_json` for no batch.

        A fenced member raises no error here.

        Args:
            start_json: None if Spark has not passed a checkpoint yet, so that the query seems to be new: nothing is
                committed before `input_partitions`, which Spark calls with its start.

        Raises: ConfigurationError, BrokerError, NetworkError, DataLossError.
        """
        return self._calls.run(lambda: self._latest_offset(start_json, limits))

    def _latest_offset(self, given: dict[str, Any] | None, limits: Limits) -> dict[str, Any]:
        self._is_start_proven = given is not None
        start_json = given or {}
        start = self._offsets.decode(start_json)
        if self._transactions is not None:
            self._transactions.begin()
            if self._published_batch is None:
                self._published_batch = self._transactions.published_batch(start.reader)
            is_first = self._positions.checkpoint is None and not self._left_out
            if is_first and self._transactions.is_published(start.reader, start_json, is_left_out=True):
                # the query was killed before it has planned the batch that reads them
                self._left_out = {**start.committed, **start.acquired}
            self._transaction_ended(start_json)
        self._checkpoint_cluster_id = start.cluster_id
        self._schemas.check_kept(start)
        if self._positions.checkpoint is None:
            self._lookup.check_dead_letter_topic()
        self._checkpointed(start)
        self._reports.batch_ended()
        self._co_readers.call_started()
        if self.drained.is_set():
            self._clock.sleep_ms(_REFRESH_MS)
            return start_json
        self._resolve_replayed(start)
        if self._draining.is_set():
            self._leave_drained()
            return start_json
        self._commit(start, repeated=self._is_before_rebalance() or self._ownership.repeats_commit())
        end = self._next_end(start, limits)
        if self.drained.is_set():
            return start_json
        is_committed = self._positions.is_committed(start, self._existing(self._ownership.snapshot()))
        self._co_readers.call_ended(has_planned=end is not None, is_committed=is_committed)
        # without a new batch the same object that Spark passed: Spark compares offsets as text
        self._last_end = start_json if end is None else self._offsets.encode(end)
        return self._last_end

    def commit(self) -> None:
        """Retries a failed commit; everything else was committed by `latest_offset`."""
        self._calls.once(self._commit_again)

    def _commit_again(self) -> None:
        if self._positions.uncommitted and not self.drained.is_set():
            self._commit_positions(dict(self._positions.uncommitted))

    def input_partitions(self, start_json: dict[str, Any], end_json: dict[str, Any]) -> list[GroupInputPartition]:
        """Returns the read tasks of a batch; before a logged batch is read again, the group is joined.

        Raises: DataLossError, ConfigurationError, BrokerError, NetworkError.
        """
        return self._calls.run(lambda: self._input_partitions(start_json, end_json))

    def _input_partitions(self, start_json: dict[str, Any], end_json: dict[str, Any]) -> list[GroupInputPartition]:
        self._co_readers.batch_started()
        start, end = self._offsets.decode(start_json), self._offsets.decode(end_json)
        self.reader = self.reader or end.reader
        if self._transactions is not None:
            self._transactions.begin()
        self._checkpoint_cluster_id = end.cluster_id
        self._schemas.check_kept(end)
        # the assignment for which the batch was planned; a task checks that it is still valid
        is_planned = self._assignment is not None and end_json == self._last_end
        group = self._assignment if self._assignment is not None and is_planned else GroupSnapshot()
        ranges = self._replay.ranges(start, end)
        if is_planned and self._held_commits:
            # the checkpoint has the batch; other members must find the first positions before anything is read
            held, self._held_commits = self._held_commits, {}
            self._commit_positions(held)
        if is_planned and any(each.end > each.start for each in ranges):
            self._reports.batch_started()
        self._in_flight, self._in_flight_end, self._left_out = {}, end_json, {}
        if is_planned:
            self._in_flight = self._planned_ends(end, group)
        else:
            ranges, group, self._left_out = self._replay.read_again(ranges, end, end_json)
            self._replayed_in = group
        settings = self._options.task_settings(self._cluster.settings)
        tasks = plan_tasks(
            ranges,
            group.owners,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [
            GroupInputPartition(
                ranges=task.ranges,
                settings=settings,
                fail_on_data_loss=self._options.fail_on_data_loss,
                membership=group.members.get(task.member),
                topic_ids=end.topic_ids,
                leader_epochs=self._epochs.of_ranges(task.ranges),
                known_brokers=self._cluster.task_brokers(
                    (each.topic_partition for each in task.ranges), self._options.group_id
                ),
                max_outage_ms=self._options.max_outage_ms,
                group_id=self._options.group_id,
            )
            for task in tasks
        ]

    def report_latest(self) -> dict[str, Any] | None:
        """Returns the end offsets of the owned partitions, for the query's progress."""
        with self._lock:
            cached, owned = self._log_ends.cached, self._positions.owned
            return nest_positions({p: end for p, end in cached.items() if p in owned}) if cached else None

    def close(self, reason: str) -> None:
        """Leaves the group and closes the connections."""
        self._draining.set()
        self._closing.set()
        self._ownership.leave(reason)
        self._cluster.close()

    # -- calls of the control socket's thread ------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Returns state, assignment, last end offset and metrics, for table queries; does not wait for Spark."""
        assignment = self._assignment
        if self.drained.is_set():
            state = "drained"
        elif self._draining.is_set():
            state = "draining"
        elif assignment is None or self._ownership.rejoin_needed:
            state = "rebalancing"
        else:
            state = "running"
        return {
            "state": state,
            "generation": -1 if assignment is None else assignment.generation_id,
            "partitions": [] if assignment is None else sorted(assignment.owners),
            "published_batch": self._published_batch,
            "metrics": dict(self._ownership.metrics()),
            "end": {topic: ends for topic, ends in (self._last_end or {}).items() if topic != GROUP_KEY},
        }

    def request_drain(self, proof: dict[str, Any] | None) -> bool:
        """Requests that no more batches are planned.

        Args:
            proof: the end offset of the last finished batch, given while no batch runs. If no later batch was planned,
                the session leaves at once instead of at the next trigger.

        Returns: True once the last batch is committed and the members have left.
        """
        self._draining.set()
        if proof is not None and self._lock.acquire(timeout=1):
            try:
                if not self.drained.is_set() and proof == self._last_end:
                    self._batch_checkpointed(proof)
                    self._leave_drained()
            finally:
                self._lock.release()
        return self.drained.is_set()

    def batch_finished(self, end_json: dict[str, Any]) -> None:
        """Commits the end offset of a batch that Spark has checkpointed, before the next call of Spark does it.

        An end offset of an earlier batch is ignored, and one while a call of Spark runs, which commits it and may
        wait for a rebalance.

        Raises: BrokerError, NetworkError; the next call of Spark commits again.
        """
        if self._lock.acquire(timeout=_REFRESH_MS / 1000):
            try:
                self._calls.once(lambda: self._batch_finished(end_json))
            finally:
                self._lock.release()

    def _batch_finished(self, end_json: dict[str, Any]) -> None:
        if not self._draining.is_set() and end_json == self._last_end:
            start = self._batch_checkpointed(end_json)
            self._reports.batch_ended()
            self._commit(start)
            is_committed = self._positions.is_committed(start, self._existing(self._ownership.snapshot()))
            self._co_readers.call_ended(has_planned=False, is_committed=is_committed)

    def rejoin_if_idle(self) -> None:
        """Takes part in a rebalance while no batch is in flight and everything is committed; to be called often.

        The next call of Spark applies the new assignment.
        """
        if self._draining.is_set() or not self._ownership.rejoin_needed or not self._lock.acquire(blocking=False):
            return
        try:
            self._co_readers.rejoin_if_idle(self._poll_between_batches, _REFRESH_MS)
        finally:
            self._lock.release()

    def peer_reply(self, group_id: str, min_age_ms: int) -> PeerReply:
        """Replies to a co-reader that waits for the group; while no batch is in flight, rejoins the group.

        The next call of Spark applies the new assignment.
        """
        if group_id != self._options.group_id or self._options.assign is not None:
            return PeerReply.OTHER_GROUP
        if self._draining.is_set() or not self._lock.acquire(timeout=_REFRESH_MS / 1000):
            return PeerReply.BUSY
        try:
            return self._co_readers.reply(min_age_ms, self._poll_between_batches)
        finally:
            self._lock.release()

    def _poll_between_batches(self, timeout_ms: int) -> bool:
        """Polls the group while no batch is planned or in flight; the next call of Spark applies the assignment."""
        start = self._positions.checkpoint
        if start is not None and self._is_before_rebalance():
            self._calls.once(lambda: self._commit(start, repeated=True))
        return not self._positions.uncommitted and self._ownership.poll(timeout_ms)

    def _leave_drained(self) -> None:
        for _ in range(2):
            if self._positions.checkpoint is not None:
                self._commit(self._positions.checkpoint, repeated=True)
            if not self._positions.uncommitted:
                break
        if self._positions.uncommitted:
            names = bounded_names(self._positions.uncommitted)
            _log.warning("%s Leaving without having committed offsets of %s.", self._entity, names)
        self._ownership.leave("the query was drained")
        self.drained.set()

    # -- 1: commit ---------------------------------------------------------------------------------------------------

    def _batch_checkpointed(self, end_json: Mapping[str, Any]) -> SourceOffset:
        """Takes note of a finished batch before the next call of Spark."""
        self._transaction_ended(end_json)
        start = self._offsets.decode(end_json)
        self._checkpointed(start)
        return start

    def _checkpointed(self, start: SourceOffset) -> None:
        is_first = self._positions.checkpoint is None
        if is_first:
            self._cluster.add_known_partitions(start.positions, start.topic_ids)
        self.reader = start.reader or self.reader or uuid4().hex
        positions = self._positions.checkpointed(start)
        self._positions = self._start_positions.start_query(start, positions) if is_first else positions

    def _existing(self, group: GroupSnapshot) -> frozenset[TopicPartition]:
        """Owned partitions that exist: commits of deleted ones would be rejected, and delay the group."""
        return frozenset(group.owners) - self._log_ends.deleted

    def _commit(self, start: SourceOffset, *, repeated: bool = False) -> None:
        group = self._ownership.snapshot()
        # an offset of a transaction is not repeated: a later one may be in a transaction meanwhile
        is_repeated = repeated and self._is_resolved(group) and self._transactions is None
        offsets = self._positions.to_commit(start, self._existing(group), repeated=is_repeated)
        if offsets:
            self._commit_positions(offsets)
        else:
            self._positions = self._positions.commit_dropped()

    def _is_resolved(self, group: GroupSnapshot) -> bool:
        """False until the positions of a received assignment are resolved, which is done in a call of Spark alone."""
        return self._assignment is not None and self._assignment.generation_id == group.generation_id

    def _commit_positions(self, offsets: Offsets) -> None:
        # a later call can commit as well, except for the last one
        is_last = self._draining.is_set() or self._planner.is_available_now
        report, commits = self._commits_of(offsets, self._positions.topic_ids)
        try:
            if self._transactions is not None and self._options.group_id is not None:
                self._transactions.commit(self._ownership, commits)
            else:
                self._ownership.commit(commits, None if is_last else _COMMIT_WAIT_MS, self._positions.topic_ids)
        except GenerationMismatchError as error:
            # this query is no longer the owner; its positions are checkpointed, and the new owner's commits apply
            known = self._positions.committed
            self._reports.commit_rejected(sum(max(offset - known.get(p, offset), 0) for p, offset in offsets.items()))
            self._positions = self._positions.commit_dropped()
            _log.warning("%s %s", self._entity, error)
        except (BrokerError, NetworkError) as error:
            if self._shortens_metadata(error, report):
                self._commit_positions(offsets)
                return
            self._commit_failed(offsets, error)
        else:
            self._positions = self._positions.commit_succeeded(offsets)
            self._reports.committed()

    def _shortens_metadata(self, error: Exception, report: str) -> bool:
        """Returns whether a commit succeeds with less metadata, which the next one has."""
        is_too_large = isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_METADATA_TOO_LARGE
        if not is_too_large or not self._has_metadata:
            return False
        if report:
            _log.warning("%s Rebalance not reported: offset.metadata.max.bytes is too small.", self._entity)
            self._reports.committed()
        else:
            _log.warning(
                "%s Commits have no metadata, because offset.metadata.max.bytes of the brokers is too small: a reset "
                "by an operator and offsets of a topic that was recreated may not be recognized after a restart. "
                "Increase it to 128 or more.",
                self._entity,
            )
            self._has_metadata = False
        return True

    def _commits_of(
        self, offsets: Offsets, topic_ids: TopicIds
    ) -> tuple[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Returns the report of a rebalance that waits for a commit, and the offsets with their metadata.

        Args:
            topic_ids: ids of the topics in which the offsets are.
        """
        report, epochs = self._reports.pending() if self._has_metadata else "", self._epochs.of_records(offsets)
        cluster_id = self._cluster.cluster_id or ""

        def metadata_of(topic: str, report: str = "") -> str:
            if not self._has_metadata:
                return ""
            topic_id, is_in_transaction = topic_ids.get(topic, ""), self._transactions is not None
            return commit_metadata(self.reader, topic_id, report, cluster_id, is_in_transaction=is_in_transaction)

        metadata = {topic: metadata_of(topic) for topic in {p.topic for p in offsets}}
        commits = {p: OffsetAndMetadata(at, metadata[p.topic], epochs.get(p, -1)) for p, at in offsets.items()}
        if report and commits:
            first = min(commits)
            commits[first] = commits[first]._replace(metadata=metadata_of(first.topic, report))
        return report, commits

    def _commit_failed(self, offsets: Offsets, error: BrokerError | NetworkError) -> None:
        """Schedules a retry; commits at once without partitions that do not exist.

        Raises: `error` if it is fatal; NetworkError.
        """
        if isinstance(error, BrokerError) and not error.retriable and error.code not in _TRANSIENT:
            raise error
        self._positions = self._positions.commit_failed(offsets)
        is_unknown = isinstance(error, BrokerError) and error.code in _UNKNOWN_TOPIC
        deleted = self._lookup.missing(offsets) if is_unknown else []
        # `missing` has requested the metadata; the next plan reports topics that were recreated
        ids = self._lookup.topic_ids({p.topic for p in offsets} - {p.topic for p in deleted}) if is_unknown else {}
        recreated = self._positions.recreated_topics(ids)
        if not deleted and not recreated:
            names = bounded_names(offsets)
            _log.log(retry_level(error), "%s Commit failed, retrying: %s: %s", self._entity, error, names)
            return
        existing = {p: offset for p, offset in offsets.items() if p not in deleted and p.topic not in recreated}
        names = bounded_names(sorted(offsets.keys() - existing.keys()))
        _log.warning("%s Offsets of deleted partitions are not committed: %s.", self._entity, names)
        self._log_ends.add_deleted(deleted, is_reported=False)
        self._positions = self._positions.commit_dropped()
        if existing:
            self._commit_positions(existing)

    # -- 1: commit in the transaction of the output -------------------------------------------------------------------

    def _planned_ends(self, end: SourceOffset, group: GroupSnapshot) -> Offsets:
        """Returns the offsets that the transaction of a planned batch commits."""
        if self._transactions is None:
            return {}
        # a batch without records of a partition commits its first position, too
        committed = self._positions.committed
        return {p: at for p, at in end.positions.items() if p in group.owners and committed.get(p) != at}

    def cluster_id(self) -> str:
        """Returns the id of the cluster of the group."""
        return self._lookup.cluster_id()

    def end_in_flight(self) -> dict[str, str]:
        """Returns the digest of the end offset of the batch in flight, by the name of this reader."""
        end, is_left_out = self._in_flight_end, bool(self._left_out)
        return {reader_name(self.reader): digest(end, is_left_out=is_left_out)} if end else {}

    def join_transaction(self, producer: ProducerIdAndEpoch, batch: int) -> list[TopicPartition]:
        """Adds the end offsets of the batch in flight to the transaction that the sink has begun.

        Returns: the partitions of these offsets, else those of the batch that exist; one of them gets the progress.
        Raises: GenerationMismatchError, BrokerError, NetworkError; the transaction must be aborted then.
        """
        with self._lock:
            assert self._transactions is not None, "the source has no transactional id"
            end = self._offsets.decode(self._in_flight_end)
            while True:
                report, commits = self._commits_of(self._in_flight, end.topic_ids)
                try:
                    self._transactions.join(self._ownership, commits, producer)
                    break
                except BrokerError as error:
                    if not self._shortens_metadata(error, report):
                        raise
            self._joined = self._in_flight, batch
            return list(commits) or sorted(end.positions.keys() - self._lookup.missing(end.positions))

    def _transaction_ended(self, start_json: Mapping[str, Any]) -> None:
        """Takes note of the transaction of the last batch, after Spark has committed the batch."""
        joined, self._joined = self._joined, None
        if joined is not None:
            offsets, self._published_batch = joined
            self._positions = self._positions.commit_succeeded(offsets)
            self._reports.committed()
        elif self._in_flight and start_json == self._in_flight_end:
            _log.warning(
                "%s The batch was not in a transaction: its offsets are committed after it. kafka.transactional.id "
                "needs a sink of format groupsource with the same value; remove it for another sink.",
                self._entity,
            )
        self._in_flight = {}

    # -- 2: follow the group -----------------------------------------------------------------------------------------

    def _next_end(self, start: SourceOffset, limits: Limits) -> SourceOffset | None:
        """Follows the group until it is settled or there is something to read; returns the end of the next batch."""
        while True:
            result = self._follow_group(start)
            if result is FollowResult.DRAINING:
                self._leave_drained()
                return None
            if result in (FollowResult.YIELDED, FollowResult.UNRESOLVED) or self._assignment is None:
                return None
            # a restarted query commits its checkpoint even if no data arrives
            self._commit(start)
            end = self._plan(start, limits)
            lags = self._lags(start)
            self._reports.lag_sampled(lags)
            if result is FollowResult.SETTLED:
                self._reports.assigned(lags)
            if result is FollowResult.SETTLED or end is not None:
                return end

    def _follow_group(self, start: SourceOffset) -> FollowResult:
        """Polls the group and resolves the positions of a new assignment."""
        if self._is_before_rebalance():
            # noticed during the commit before
            self._commit(start, repeated=True)
        if self._positions.uncommitted:
            # a rebalance waits for the commit, also one that starts now: the next owner would repeat the batch
            if self._ownership.rejoin_needed:
                self._clock.sleep_ms(_REFRESH_MS)
                self._commit(start)
            if self._positions.uncommitted:
                # a batch of an assignment that was received and not applied would be one of a former generation
                is_resolved = self._is_resolved(self._ownership.snapshot())
                return FollowResult.SETTLED if is_resolved else FollowResult.UNRESOLVED
        if self._assignment is not None and self._ownership.rejoin_needed:
            self._reports.lag_before(self._lags(start))
        is_available_now = self._planner.is_available_now
        result = self._poll_group(self._assignment, self._draining, is_available_now=is_available_now)
        if result in (FollowResult.SETTLED, FollowResult.REBALANCING):
            assignment = self._ownership.snapshot()
            if assignment != self._assignment or self._start_positions.has_found_absent():
                self._apply_assignment(frozenset(assignment.owners), start)
            self._assignment = assignment
        return result

    def _poll_group(
        self, current: GroupSnapshot | None, ended: threading.Event, *, is_available_now: bool
    ) -> FollowResult:
        """Polls until the assignment is stable or retained partitions may be read.

        Args:
            current: the assignment whose partitions are read now, None before the first.
            ended: ends the poll.
        """
        if current is None:
            self._co_readers.join_not_started()
        while True:
            is_settled = self._ownership.poll(_POLL_MS)
            is_yielding = self._co_readers.should_yield(is_settled, is_available_now)
            if ended.is_set():
                return FollowResult.DRAINING
            if is_yielding:
                return FollowResult.YIELDED
            if is_settled:
                return FollowResult.SETTLED
            if current is not None and current.owners and self._ownership.retains_partitions:
                return FollowResult.REBALANCING

    def _resolve_replayed(self, start: SourceOffset) -> None:
        """Resolves the positions of the assignment in which a logged batch was read again.

        Without them the batch could not be committed before the next poll, which may revoke its partitions.
        """
        group = self._replayed_in
        is_current = bool(group.owners) and group.generation_id == self._ownership.snapshot().generation_id
        if self._assignment is None and is_current:
            self._apply_assignment(frozenset(group.owners), start)
            self._assignment = group

    def _is_before_rebalance(self) -> bool:
        """Returns True once before each rebalance, which may revoke any partition."""
        if self._assignment is None or not self._ownership.rejoin_needed:
            return False
        known, self._repeated_in = self._repeated_in, self._assignment.generation_id
        return known != self._repeated_in

    def _apply_assignment(self, owned: frozenset[TopicPartition], start: SourceOffset) -> None:
        resolved = self._start_positions.resolve(owned, start, self._positions, self._left_out)
        self._epochs.use_topics(resolved.positions.topic_ids)
        self._epochs.restore(resolved.commits, retained=self._positions.owned)
        self._positions = resolved.positions
        self._held_commits = resolved.followed_resets
        if not self._is_start_proven:
            self._held_commits = {**resolved.to_commit, **resolved.followed_resets}
        elif resolved.to_commit:
            self._commit_positions(resolved.to_commit)

    # -- 3: plan -----------------------------------------------------------------------------------------------------

    def _plan(self, start: SourceOffset, limits: Limits) -> SourceOffset | None:
        """Returns the end of the next batch; None when there is nothing to read and no partition has moved."""
        # its metadata request finds the new id of a recreated topic
        self._log_ends.recheck_deleted()
        readable = None
        while readable is None:
            self._positions = self._start_positions.check_topics(self._positions, start)
            self._epochs.use_topics(self._positions.topic_ids)
            begins = self._positions.begins(start)
            ids, is_available_now = self._positions.topic_ids, self._planner.is_available_now
            readable = self._log_ends.readable(begins, ids, is_available_now=is_available_now)
        self._positions = self._positions.with_acquired(readable.truncated)
        begins.update(readable.truncated)
        ends = self._planner.plan(Backlog(begins, readable.ends), limits)
        if ends is None:
            if not self._positions.differs_from(start):
                return None
            ends = begins
        else:
            self._schemas.check_planned()
        generation_id = self._assignment.generation_id if self._assignment else -1
        end = self._positions.end_offset(ends, generation_id, self.reader, self._options.group_id or "")
        return replace(end, schemas=self._schemas.schemas, cluster_id=self._lookup.cluster_id())

    def _lags(self, start: SourceOffset) -> dict[TopicPartition, int]:
        """Returns the lag of each owned partition whose end offset is known."""
        begins, ends = self._positions.begins(start), self._log_ends.cached
        return {p: max(ends[p] - begin, 0) for p, begin in begins.items() if p in ends}

    @property
    def _entity(self) -> str:
        """Start of log lines."""
        group = f"group={self._options.group_id} " if self._options.group_id else ""
        return f"[{group}query={self.reader[:8]}]"


def _transactional_commits(cluster: ClusterClient, transactional_id: str) -> TransactionalCommits:
    # few queries need the client of producers
    from spark_groupsource.source.group.transactional_commits import TransactionalCommits

    return TransactionalCommits(cluster, transactional_id)
