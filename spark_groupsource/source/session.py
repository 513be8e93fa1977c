"""The live half of a stream reader: one per query, in Spark's reader process, from the first callback to the stop.

Every callback of Spark comes through here on one thread; a second one, of the control socket, asks for drains. The
order inside `latest_offset` is the heart of the source:

1. commit `start`: that Spark calls with it proves that everything up to it is checkpointed;
2. poll the group, which may hand partitions over: nothing uncommitted may be left, or the next owner repeats it;
3. plan what is new.

A cooperative round does not stop what stays: while the others are waited for, batches of it go on.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping
from uuid import uuid4

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
)
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition, bounded_names
from spark_groupsource.source.co_readers import CoReaders, PeerReply, ReaderState
from spark_groupsource.source.data_loss import DataLossPolicy
from spark_groupsource.source.log_end_offsets import LogEnds
from spark_groupsource.source.offset_json import (
    SourceOffset,
    decode_offset,
    encode_offset,
    logged_ranges,
    nest_positions,
)
from spark_groupsource.source.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.options import EARLIEST, LATEST, SourceOptions
from spark_groupsource.source.ownership import Commits, Ownership
from spark_groupsource.source.planning import (
    Acquisition,
    Backlog,
    PositionSource,
    decide_position,
    is_worth_a_batch,
    limit_bytes,
    limit_ends,
    plan_tasks,
)
from spark_groupsource.source.position_spec import PositionSpec
from spark_groupsource.source.record_sizes import estimate_sizes, extend_estimates
from spark_groupsource.source.task_reader import GroupInputPartition, TaskMembership

_log = logging.getLogger(__name__)

# Spark asks about 90 times a second when idle; the brokers are asked at most once in this time
_REFRESH_MS = 100
# how long a round is waited for before what stays is read on
_JOIN_SLICE_MS = 100
# the same where a group is between two assignments, so that nobody can commit
_COMMIT_PATIENCE_MS = 1_000
_METADATA_PREFIX = "groupsource "
# the coordinator waits for its leader's assignment, which takes moments
_PASSING = frozenset({ErrorCode.REBALANCE_IN_PROGRESS})


@dataclass(frozen=True)
class Limits:
    """What a call of Spark allows: None where there is no bound."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class _Group:
    """Who owns what, settled; `members` by index, empty where there is no membership."""

    generation_id: int = -1
    owners: Mapping[TopicPartition, int] = field(default_factory=dict)
    members: Mapping[int, TaskMembership] = field(default_factory=dict)

    @classmethod
    def of(cls, ownership: Ownership) -> _Group:
        return cls(ownership.generation_id, ownership.owners(), ownership.members())


class StreamSession:
    """Positions, commits and plans of one query."""

    def __init__(
        self,
        cluster: Cluster,
        options: SourceOptions,
        ownership: Ownership,
        clock: Clock | None = None,
        siblings: CoReaders | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._ownership = ownership
        self._clock: Clock = clock or SystemClock()
        self._lookup = OffsetLookup(cluster, options, self._clock)
        self._losses = DataLossPolicy(fail=options["failOnDataLoss"], group_id=options.group_id)
        self._log_ends = LogEnds(
            self._lookup,
            self._losses,
            self._clock,
            read_committed=cluster.settings.read_committed,
            refresh_ms=_REFRESH_MS,
        )
        self._lock = threading.RLock()
        self._draining = threading.Event()
        self.drained = threading.Event()
        self.reader = ""
        # the start of the last call as text, and where partitions taken over since then begin
        self._start_text: str | None = None
        # until this query has owned its first partition
        self._is_new = False
        self._acquired: Offsets = {}
        self._owned: set[TopicPartition] = set()
        self._group: _Group | None = None
        self._committed: Offsets = {}
        self._uncommitted: Offsets = {}
        self._topic_ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._is_available_now = False
        self._planned_ms: int | None = None
        self._last_end: dict[str, Any] | None = None
        # of the same query there may be more sources in this group, see the module `siblings`
        self._siblings = siblings
        self._stance = ReaderState(self._clock)
        self._gives_way = False

    # -- callbacks of Spark ------------------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """From now on nothing is read that is not there at the next call."""
        self._is_available_now = True

    def latest_offset(self, start_json: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Commits `start_json`, follows the group, and returns the end of the next batch; `start_json` for none.

        Raises: ConfigurationError, BrokerError, NetworkError, DataLossError; never for a fenced member.
        """
        with self._lock:
            start = decode_offset(start_json)
            self._begin_call(start, start_json)
            self._stance.called()
            if self.drained.is_set():
                self._clock.sleep_ms(_REFRESH_MS)
                return start_json
            self._commit(start)
            if self._draining.is_set():
                self._leave_drained()
                return start_json
            end = self._next_end(start, limits)
            if self.drained.is_set():
                return start_json
            self._stance.answered(end is not None, self._is_committed(start))
            self._last_end = start_json if end is None else encode_offset(end)
            return self._last_end

    def commit(self) -> None:
        """Tries again what `latest_offset` could not commit; the rest it has done before Spark calls this."""
        with self._lock:
            if self._uncommitted and not self.drained.is_set():
                self._commit_positions(dict(self._uncommitted))

    def input_partitions(self, start_json: dict[str, Any], end_json: dict[str, Any]) -> list[GroupInputPartition]:
        """The tasks of a batch, one per member or more; of a logged batch whatever the group says now."""
        with self._lock:
            self._stance.taken_up()
            start, end = decode_offset(start_json), decode_offset(end_json)
            ranges, unknown = logged_ranges(start, end)
            for p, begin in self._lookup.earliest(unknown).items():
                _log.warning("the checkpoint does not tell where %s begins; reading it from offset %d", p, begin)
                ranges.append(OffsetRange(p, begin, end.positions[p]))
            # the group as it was when this batch was planned; what happened to it since, the tasks find out
            group = self._group if self._group and end_json == self._last_end else _Group()
            self._warn_unfenced(ranges, group)
            settings = self._options.task_settings(self._cluster.settings)
            tasks = plan_tasks(
                ranges,
                group.owners,
                min_partitions=self._options["minPartitions"],
                max_records=self._options["maxRecordsPerPartition"],
            )
            return [
                GroupInputPartition(
                    ranges=task.ranges,
                    settings=settings,
                    fail_on_data_loss=self._options["failOnDataLoss"],
                    membership=group.members.get(task.member),
                )
                for task in tasks
            ]

    def report_latest(self) -> dict[str, Any] | None:
        """Log ends of the owned partitions, for the progress of the query."""
        with self._lock:
            if not self._log_ends.heard:
                return None
            return nest_positions({p: end for p, end in self._log_ends.heard.items() if p in self._owned})

    def close(self, reason: str) -> None:
        """Leaves the group."""
        self._draining.set()
        self._ownership.leave(reason)
        self._cluster.close()

    # -- drain -------------------------------------------------------------------------------------------------------

    def request_drain(self, proof: dict[str, Any] | None) -> bool:
        """Asks that nothing more be planned; called by the control thread.

        Args:
            proof: the end offset of the last finished batch, given when no batch is running. If nothing was planned
                after it, there is no need to wait for the next trigger.

        Returns: True once the last batch is committed and the members have left.
        """
        self._draining.set()
        if proof is not None and self._lock.acquire(timeout=1):
            try:
                if not self.drained.is_set() and proof == self._last_end:
                    start = decode_offset(proof)
                    self._begin_call(start, proof)
                    self._commit(start)
                    self._leave_drained()
            finally:
                self._lock.release()
        return self.drained.is_set()

    def _leave_drained(self) -> None:
        if self._uncommitted:
            self._commit_positions(dict(self._uncommitted))
        if self._uncommitted:
            _log.warning("offsets of %s could not be committed before leaving", bounded_names(self._uncommitted))
        self._ownership.leave("the query was drained")
        self.drained.set()

    # -- 1: commit ---------------------------------------------------------------------------------------------------

    def _begin_call(self, start: SourceOffset, start_json: dict[str, Any]) -> None:
        self.reader = start.reader or self.reader or uuid4().hex
        text = json.dumps(start_json)
        if self._start_text is None:
            self._is_new = not start.reader
        self._is_new = self._is_new and not start.positions
        if text != self._start_text:
            # Spark has written the end we gave it: what was taken over is an ordinary position now
            self._start_text = text
            self._acquired = {}

    def _commit(self, start: SourceOffset) -> None:
        """Commits the positions of `start` for what is owned now, unless the group has them already.

        What has come to this reader since, nobody has decided yet where it goes on: the group may be ahead, or reset.
        """
        owned = self._owned & self._ownership.owners().keys()
        self._commit_positions(
            {
                p: offset
                for p, offset in start.positions.items()
                if p in owned and p not in self._acquired and self._committed.get(p) != offset
            }
        )

    def _commit_positions(self, positions: Offsets) -> None:
        if not positions:
            self._uncommitted = {}
            return
        note = f"{_METADATA_PREFIX}{self.reader}"
        # where more batches come, one of them may commit as well; the last one has to
        patience_ms = None if self._draining.is_set() or self._is_available_now else _COMMIT_PATIENCE_MS
        try:
            self._ownership.commit({p: OffsetAndMetadata(offset, note) for p, offset in positions.items()}, patience_ms)
        except GenerationMismatchError as error:
            # the coordinator refused a former owner; the positions are checkpointed here, the group decides the rest
            self._uncommitted = {}
            _log.warning("%s", error)
        except (BrokerError, NetworkError) as error:
            if isinstance(error, BrokerError) and not error.retriable and error.code not in _PASSING:
                raise
            self._uncommitted = positions
            _log.warning("offsets of %s are not committed yet: %s", bounded_names(positions), error)
        else:
            self._uncommitted = {}
            self._committed.update(positions)

    # -- 2: follow the group -----------------------------------------------------------------------------------------

    def _next_end(self, start: SourceOffset, limits: Limits) -> SourceOffset | None:
        """Follows the group until it is settled or there is something to read; the end of the next batch, if any."""
        while True:
            settled = self._follow_group(start)
            if self._group is None or self._gives_way or self.drained.is_set():
                return None
            # a restarted query commits its checkpoint even if nothing new ever comes
            self._commit(start)
            end = self._plan(start, limits)
            if settled or end is not None:
                return end

    def _follow_group(self, start: SourceOffset) -> bool:
        """Polls the group and takes positions of what is newly owned; False while a round goes on that leaves some."""
        if self._uncommitted and self._ownership.is_moving:
            # handing over now would make the next owner repeat the batch
            self._clock.sleep_ms(_REFRESH_MS)
            return True
        if self._group is None and self._siblings is not None:
            self._siblings.gather()
        settled = self._poll()
        while not settled and not (self._group and self._group.owners and self._ownership.keeps):
            if self._draining.is_set() or self._gives_way:
                break
            settled = self._poll()
        if self._draining.is_set():
            self._leave_drained()
            return settled
        if self._gives_way:
            return False
        group = _Group.of(self._ownership)
        if group != self._group:
            self._take_over(frozenset(group.owners), start)
        self._group = group
        return settled

    def _poll(self) -> bool:
        settled = self._ownership.refresh(_JOIN_SLICE_MS)
        self._gives_way = self._siblings is not None and self._siblings.are_waiting(settled, self._is_available_now)
        return settled

    def _is_committed(self, start: SourceOffset) -> bool:
        """True when the group has all of `start` that is ours, so that handing it over makes nobody repeat anything."""
        owned = self._group.owners if self._group else {}
        return not self._uncommitted and all(
            self._committed.get(p) == offset for p, offset in start.positions.items() if p in owned
        )

    def peer_reply(self, group_id: str, least_ms: int) -> PeerReply:
        """How this reader stands to one of the same application that waits for the group; called by the control thread.

        With nothing in flight it rejoins here, for Spark may be unable to ask it. What it owns then, the next call of
        Spark finds out.
        """
        if group_id != self._options.group_id or self._options["assign"] is not None:
            return PeerReply.ELSEWHERE
        if self._draining.is_set() or not self._lock.acquire(timeout=_REFRESH_MS / 1000):
            return PeerReply.BUSY
        try:
            return self._stance.tell(least_ms, self._ownership.refresh)
        finally:
            self._lock.release()

    def _take_over(self, owned: frozenset[TopicPartition], start: SourceOffset) -> None:
        """Decides where each owned partition goes on after the group has changed."""
        # what the checkpoint holds and nobody owns here may be another member's, or gone
        gone = self._lookup.missing((self._owned | set(start.positions)) - owned)
        self._losses.deleted({p: start.positions[p] for p in gone if p in start.positions})
        committed = self._ownership.committed(sorted(owned))
        self._acquired = {}
        self._log_ends.restart()
        fresh = []
        for p in sorted(owned):
            acquisition = self._decide(p, start, committed)
            if acquisition.offset is None:
                fresh.append(p)
            elif acquisition.offset != start.positions.get(p):
                self._acquired[p] = acquisition.offset
        first = self._resolve_fresh(fresh, start, committed)
        self._acquired.update(first)
        self._committed = {p: commit.offset for p, commit in committed.items() if commit is not None}
        self._owned = set(owned)
        self._topic_ids = self._lookup.topic_ids({p.topic for p in owned}, refresh=True)
        self._counts = self._lookup.counts()
        # from others: were this query killed before its first commit, theirs, behind its checkpoint, would look like a
        # reset from outside; under its own name it does not. One that was followed back stays as the operator wrote it
        signed = {p: commit.offset for p, commit in committed.items() if commit and self._follows(p, commit, start)}
        if self._start_spec().default != EARLIEST:
            # nothing before it is for this group: whoever takes over before the first batch is committed goes on there
            signed.update(first)
        if signed:
            self._commit_positions(signed)
        self._acquired.update(self._restarts(start))

    def _follows(self, p: TopicPartition, commit: OffsetAndMetadata, start: SourceOffset) -> bool:
        """True when `p` goes on where a member that is none of ours has committed."""
        is_ahead = commit.offset > start.positions.get(p, -1)
        is_foreign = not commit.metadata.startswith(_METADATA_PREFIX)
        return is_foreign and is_ahead and self._acquired.get(p) == commit.offset

    def _restarts(self, start: SourceOffset) -> Offsets:
        """Begins of the partitions whose topic was made anew since `start`, where failOnDataLoss lets it go on.

        Raises: DataLossError.
        """
        anew = {t for t, topic_id in self._topic_ids.items() if start.topic_ids.get(t, topic_id) != topic_id}
        lost = [p for p in sorted(self._owned) if p.topic in anew and p in start.positions]
        if not lost:
            return {}
        self._losses.made_anew({p: start.positions[p] for p in lost})
        # what another member may have committed of the new topic is read again rather than guessed at
        return self._lookup.earliest(lost)

    def _decide(self, p: TopicPartition, start: SourceOffset, committed: Commits) -> Acquisition:
        commit = committed.get(p)
        acquisition = decide_position(
            checkpoint=start.positions.get(p),
            committed=commit,
            is_kept=p in self._owned,
            written_by_us=commit is not None and commit.metadata.startswith(_METADATA_PREFIX),
        )
        if acquisition.winner is PositionSource.GROUP_AHEAD:
            ahead, behind = acquisition.offset, start.positions[p]
            _log.info("%s: the group is at %s, ahead of the checkpoint at %s; going on from there", p, ahead, behind)
        if acquisition.winner is not PositionSource.GROUP_RESET:
            return acquisition
        reaction = self._options["onGroupReset"]
        told = (
            f"the committed offset of {p} in group {self._options.group_id} was moved back from outside, to "
            f"{acquisition.offset}; the checkpoint is at {start.positions[p]}"
        )
        if reaction == "fail":
            raise ConfigurationError(
                f"{told} (onGroupReset=fail). Set onGroupReset to follow to read again from there, or to ignore to go "
                "on from the checkpoint"
            )
        _log.warning("%s (onGroupReset=%s)", told, reaction)
        return Acquisition(PositionSource.CHECKPOINT, start.positions[p]) if reaction == "ignore" else acquisition

    def _resolve_fresh(self, fresh: list[TopicPartition], start: SourceOffset, committed: Commits) -> Offsets:
        """Positions of partitions that neither the checkpoint nor the group knows. Raises: DataLossError."""
        if not fresh:
            return {}
        try:
            found = self._lookup.resolve(self._start_spec(), fresh, committed)
        except BrokerError as error:
            gone = self._lookup.missing(fresh) if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else []
            if not gone:
                raise
            self._losses.gone_before_found(gone)
            self._log_ends.leave_out(gone)
            rest = [p for p in fresh if p not in gone]
            return dict.fromkeys(gone, 0) | self._resolve_fresh(rest, start, committed)
        if not self._is_new and start.counts:
            # others were another member's, which has lost nothing for not having committed yet
            added = {p: begin for p, begin in found.items() if p.partition >= start.counts.get(p.topic, 0)}
            self._losses.added_late({p: begin for p, begin in added.items() if begin})
        return found

    def _start_spec(self) -> PositionSpec:
        """Where such partitions begin: later ones at their earliest offset, for they may be new."""
        if not self._is_new:
            return PositionSpec("startingOffsets", default=EARLIEST)
        return self._options.starting or PositionSpec("startingOffsets", default=LATEST, uses_group=True)

    # -- 3: plan -----------------------------------------------------------------------------------------------------

    def _plan(self, start: SourceOffset, limits: Limits) -> SourceOffset | None:
        """The end of the next batch; None when there is nothing to read and nothing has changed hands."""
        begins = self._begins(start)
        ends, cut = self._log_ends.readable(begins, is_available_now=self._is_available_now)
        begins.update(cut)
        self._acquired.update(cut)
        backlog = Backlog(begins, ends)
        waited_ms = None if self._planned_ms is None else self._clock.now_ms() - self._planned_ms
        is_worth = is_worth_a_batch(
            backlog,
            min_offsets=None if self._is_available_now else limits.min_offsets,
            waited_ms=waited_ms,
            max_trigger_delay_ms=self._options["maxTriggerDelay"],
        )
        has_changed = bool(self._acquired) or self._owned != set(start.positions) or not start.reader
        if not is_worth and not has_changed:
            return None
        ends = self._limited(backlog, limits) if is_worth else begins
        if is_worth:
            self._planned_ms = self._clock.now_ms()
        generation_id = self._group.generation_id if self._group else -1
        topic_ids, counts = dict(self._topic_ids), dict(self._counts)
        return SourceOffset(ends, dict(self._acquired), generation_id, self.reader, topic_ids, counts)

    def _begins(self, start: SourceOffset) -> Offsets:
        """Where the next batch begins; a topic made anew during the run shows with the next metadata."""
        found = self._lookup.topic_ids(self._topic_ids) if self._topic_ids else {}
        if any(self._topic_ids[topic] != topic_id for topic, topic_id in found.items()):
            self._topic_ids.update(found)
            self._acquired.update(self._restarts(start))
            self._log_ends.forget()
        return {p: self._acquired.get(p, start.positions.get(p, 0)) for p in sorted(self._owned)}

    def _limited(self, backlog: Backlog, limits: Limits) -> Offsets:
        """Where each range ends under the limits by offsets and by bytes."""
        ends = limit_ends(backlog, limits.max_offsets)
        if limits.max_bytes is None:
            return ends
        allowed = Backlog(backlog.begins, ends)
        sizes = estimate_sizes(self._cluster, {p: begin for p, begin in allowed.begins.items() if allowed.size(p)})
        planned = limit_bytes(allowed, sizes, limits.max_bytes)
        further = extend_estimates(self._cluster, sizes, planned)
        return planned if further == sizes else limit_bytes(Backlog(backlog.begins, planned), further, limits.max_bytes)

    def _warn_unfenced(self, ranges: Iterable[OffsetRange], group: _Group) -> None:
        unfenced = [r.topic_partition for r in ranges if r.end > r.start and r.topic_partition not in group.owners]
        if unfenced and self._options["assign"] is None:
            _log.warning("reading a logged batch of %s again, without membership", bounded_names(unfenced))
