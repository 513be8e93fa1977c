"""Start positions of a new assignment: checkpoint, committed offset or startingOffsets."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import MappingProxyType
from typing import AbstractSet, Iterable, Mapping, NamedTuple

from spark_groupsource.common.clock import Clock
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.source.group.ownership import Ownership
from spark_groupsource.source.options.position_spec import PositionSpec
from spark_groupsource.source.options.source_options import EARLIEST, LATEST, SourceOptions
from spark_groupsource.source.positions.data_loss import DataLossPolicy
from spark_groupsource.source.positions.log_end_offsets import RECHECK_MS, LogEndOffsets
from spark_groupsource.source.positions.offset_json import SourceOffset
from spark_groupsource.source.positions.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.positions.position_decisions import (
    Commits,
    PositionSource,
    StartPosition,
    checkpointed_positions,
    commits_ahead_error,
    committed_offset,
    decide_positions,
    ranges_ahead,
)
from spark_groupsource.source.positions.stream_positions import StreamPositions
from spark_groupsource.wire.commit_reports import author_metadata, committed_topic_id

_log = logging.getLogger(__name__)

# of 200 ms each
_DELETED_ATTEMPTS = 6


class ResolvedPositions(NamedTuple):
    """Result of `StartPositions.resolve`.

    `to_commit` must be committed before anything is read; `commits` are the group's committed offsets until then.
    `followed_resets` are committed once the checkpoint has the batch that begins there: a reset is followed once, also
    if the reader ends before it has committed the end of that batch.
    """

    positions: StreamPositions
    to_commit: Offsets
    commits: Commits
    followed_resets: Offsets


class StartPositions:
    """Resolves the start positions of one query."""

    def __init__(
        self,
        options: SourceOptions,
        ownership: Ownership,
        lookup: OffsetLookup,
        data_loss: DataLossPolicy,
        log_ends: LogEndOffsets,
        clock: Clock,
    ) -> None:
        self._options = options
        self._ownership = ownership
        self._lookup = lookup
        self._data_loss = data_loss
        self._log_ends = log_ends
        self._clock = clock
        # assigned partitions that do not exist, and those that were reported
        self._absent: frozenset[TopicPartition] = frozenset()
        self._reported_absent: frozenset[TopicPartition] = frozenset()
        self._absent_checked_ms = 0
        self._is_restart = True
        self._spec = options.starting or PositionSpec("startingOffsets", default=LATEST, uses_group=True)

    def start_query(self, start: SourceOffset, positions: StreamPositions) -> StreamPositions:
        """Returns the positions at the first call of a query, which does not own a partition yet.

        `startingOffsets` is resolved for every partition of the subscription: this query may acquire any of them later
        from a member that has not committed. The checkpoint stores the result.

        Raises: BrokerError, NetworkError.
        """
        if start.reader or start.positions:
            return positions
        partitions = self._lookup.partitions()
        counts = self._lookup.partition_counts()
        topic_ids = self._lookup.topic_ids(counts)
        starting: Offsets = {}
        if self._spec.default != EARLIEST:
            commits = self._ownership.committed(partitions, topic_ids) if self._spec.uses_group else {}
            try:
                starting = self._lookup.resolve(self._spec, partitions, commits)
            except ConfigurationError:
                # a partition without position, in a list for example, is an error of the query that owns it
                starting = {}
        return positions.started(topic_ids, counts, starting)

    def resolve(
        self,
        owned: frozenset[TopicPartition],
        start: SourceOffset,
        previous: StreamPositions,
        left_out: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> ResolvedPositions:
        """Resolves the position of each owned partition after the assignment has changed.

        Args:
            left_out: where the batch that ends at `start` begins if its records were not read.
        Raises: DataLossError, ConfigurationError (onGroupReset=fail, onGroupAhead=fail), BrokerError, NetworkError.
        """
        deleted = self._report_deleted(owned, start, previous)
        self._log_ends.reset()
        topics = {p.topic for p in owned} | set(previous.topic_ids)
        existing_ids = self._lookup.topic_ids(topics, refresh=True)
        current = previous.with_topic_ids(existing_ids)
        replaced = _recreated_topics(current, start)
        known = replace(
            start,
            positions={p: left_out.get(p, at) for p, at in start.positions.items() if p.topic not in replaced},
            delivered={p: at for p, at in start.delivered.items() if p.topic not in replaced},
        )
        checkpoint = checkpointed_positions(known, current)
        lost = {p for p in checkpoint if p not in owned and p not in deleted}
        commits = self._ownership.committed(sorted(owned | lost), existing_ids)
        positioned = {p for p in owned & start.positions.keys() if p.topic in replaced}
        recreated = self._recreated(positioned, start, current, commits)
        without = (p for p in owned if not (p in checkpoint or p in recreated or commits.get(p) is not None))
        owned = owned - self._find_absent(without, current)
        is_transactional = self._options.client.transactional_id is not None
        decided = decide_positions(
            owned - recreated.keys(),
            known,
            current,
            commits,
            self._ownership.last_commits,
            is_same_group=self._is_same_group(start),
            is_transactional=is_transactional,
        )
        decided.update(self._react_to_resets(decided, checkpoint))
        decided.update(self._react_to_commits_ahead(decided, checkpoint))
        acquired: Offsets = {
            p: position.offset
            for p, position in decided.items()
            # without a committed offset the end offset must have the position, in case its batch is left out
            if position.offset is not None
            and (position.offset != start.positions.get(p) or (is_transactional and commits.get(p) is None))
        }
        unknown = [p for p, position in decided.items() if position.offset is None]
        initial = self._resolve_initial(unknown, current, commits)
        acquired.update(initial)
        to_commit = self._initial_to_commit(initial, current) | {
            p: commit.offset
            for p, commit in commits.items()
            if commit is not None and _is_followed(commit, acquired.get(p), checkpoint.get(p, -1))
        }
        delivered = {p: checkpoint[p] for p in lost if (committed_offset(commits.get(p)) or 0) < checkpoint[p]}
        resets: Offsets = {
            p: position.offset
            for p, position in decided.items()
            if position.source is PositionSource.COMMIT_RESET and position.offset is not None
        }
        acquired.update(recreated)
        return ResolvedPositions(current.assigned(owned, acquired, commits, delivered), to_commit, commits, resets)

    def _report_deleted(
        self, owned: frozenset[TopicPartition], start: SourceOffset, previous: StreamPositions
    ) -> list[TopicPartition]:
        """Reports partitions that are no longer owned because they were deleted, rather than moved to another member.

        Those of a topic that is no longer subscribed are not to be read.

        Raises: DataLossError.
        """
        lost = (previous.owned | set(start.positions)) - owned
        deleted = self._lookup.missing(lost, attempts=_DELETED_ATTEMPTS)
        reported = (p for p in deleted if p in start.positions and self._options.subscribes(p.topic))
        self._data_loss.deleted({p: start.positions[p] for p in reported})
        return deleted

    def _find_absent(
        self, candidates: Iterable[TopicPartition], positions: StreamPositions
    ) -> AbstractSet[TopicPartition]:
        """Returns the assigned partitions that do not exist, and that did not exist when the query started.

        The leader of the group may be another client, whose assignor names any partition, or have newer metadata.
        """
        added = [p for p in candidates if positions.is_added(p) and p not in positions.owned]
        unknown = self._lookup.missing(added, refresh=False)
        self._absent = frozenset(self._lookup.missing(unknown, attempts=_DELETED_ATTEMPTS))
        self._absent_checked_ms = self._clock.now_ms()
        new = sorted(self._absent - self._reported_absent)
        if new:
            self._reported_absent |= self._absent
            names, entity = bounded_names(new), f"group={self._options.group_id}"
            _log.warning("[%s] Assigned partitions do not exist, and are read once they do: %s.", entity, names)
        return self._absent

    def has_found_absent(self) -> bool:
        """Returns whether an assigned partition that did not exist does now; requests metadata once per second."""
        if not self._absent or self._clock.now_ms() < self._absent_checked_ms + RECHECK_MS:
            return False
        self._absent_checked_ms = self._clock.now_ms()
        found = sorted(self._absent - set(self._lookup.missing(self._absent)))
        if found:
            names = bounded_names(found)
            _log.info("[group=%s] Assigned partitions exist now: %s.", self._options.group_id, names)
        return bool(found)

    def _is_same_group(self, start: SourceOffset) -> bool:
        return start.group_id == self._options.group_id

    def _initial_to_commit(self, initial: Offsets, positions: StreamPositions) -> Offsets:
        """Returns the first positions that must be committed before anything is read.

        "latest" changes with each record: an owner that starts before the first commit must start at the same offset.
        """
        if self._spec.default == EARLIEST:
            return {}
        deleted = self._log_ends.deleted
        return {p: offset for p, offset in initial.items() if not positions.is_added(p) and p not in deleted}

    def _recreated(
        self,
        partitions: AbstractSet[TopicPartition],
        start: SourceOffset,
        positions: StreamPositions,
        commits: Commits | None = None,
    ) -> Offsets:
        """Returns start offsets of partitions whose topic was recreated since this query had positions in it.

        Args:
            commits: the group's committed offsets, fetched if they are not given.
        Raises: DataLossError, BrokerError, NetworkError.
        """
        if not partitions:
            return {}
        self._data_loss.recreated({p: start.positions[p] for p in sorted(partitions) if p in start.positions})
        # the new topic may have fewer partitions; one that is added later is read from its start
        missing = self._lookup.missing(partitions)
        self._log_ends.add_deleted(missing, is_reported=False)
        existing = sorted(partitions - set(missing))
        commits = self._ownership.committed(existing, positions.topic_ids) if commits is None else commits
        # other members have read records of the new topic; what was committed without its id may be of the deleted one
        read: Offsets = {
            p: commit.offset
            for p in existing
            if (commit := commits.get(p)) is not None
            and (p not in start.positions or committed_topic_id(commit.metadata) == positions.topic_ids[p.topic])
        }
        return dict.fromkeys(missing, 0) | read | self._earliest([p for p in existing if p not in read])

    def _earliest(self, partitions: list[TopicPartition]) -> Offsets:
        """Returns the log start offset of each partition, 0 for those that were deleted once more."""
        try:
            return self._lookup.earliest(partitions)
        except BrokerError as error:
            deleted = self._lookup.missing_after(error, partitions)
            self._log_ends.add_deleted(deleted, is_reported=False)
            return dict.fromkeys(deleted, 0) | self._earliest([p for p in partitions if p not in deleted])

    def check_topics(self, positions: StreamPositions, start: SourceOffset) -> StreamPositions:
        """Returns the positions after topics that were recreated since the last call, found in cached metadata.

        Raises: DataLossError.
        """
        # a deleted topic has no id, and its cached metadata would be requested every time
        topics = {p.topic for p in positions.owned - self._log_ends.deleted} & set(positions.topic_ids)
        found = self._lookup.topic_ids(topics) if topics else {}
        recreated = positions.recreated_topics(found)
        if not recreated:
            return positions
        self._log_ends.expire()
        updated = positions.with_topic_ids(found)
        partitions = {p for p in updated.owned if p.topic in recreated}
        return updated.with_acquired(self._recreated(partitions, start, updated))

    def _react_to_resets(
        self, decided: Mapping[TopicPartition, StartPosition], checkpoint: Offsets
    ) -> dict[TopicPartition, StartPosition]:
        """Returns the positions that replace resets by an operator, according to onGroupReset.

        Raises: ConfigurationError.
        """
        reset = [p for p, position in decided.items() if position.source is PositionSource.COMMIT_RESET]
        if not reset:
            return {}
        reaction, group_id, first = self._options.on_group_reset, self._options.group_id, reset[0]
        if reaction == "fail":
            raise ConfigurationError(
                f"The committed offset of {first} in group {group_id} was reset by an operator to "
                f"{decided[first].offset}; the checkpoint is at {checkpoint[first]} (onGroupReset=fail). Set "
                "onGroupReset to follow to read again from the committed offset, or to ignore to continue from the "
                "checkpoint."
            )
        _log.warning(
            "[group=%s] Committed offsets were reset by an operator to before the checkpoint (onGroupReset=%s): %s.",
            group_id,
            reaction,
            bounded_names(f"{p} ({decided[p].offset} < {checkpoint[p]})" for p in reset),
        )
        if reaction == "follow":
            return {}
        return {p: StartPosition(PositionSource.CHECKPOINT, checkpoint[p]) for p in reset}

    def _react_to_commits_ahead(
        self, decided: Mapping[TopicPartition, StartPosition], checkpoint: Offsets
    ) -> dict[TopicPartition, StartPosition]:
        """Returns the positions that replace committed offsets ahead of the checkpoint, according to onGroupAhead.

        During a run they are those of members that have owned the partitions meanwhile, which are always followed.

        Raises: ConfigurationError.
        """
        is_restart, self._is_restart = self._is_restart, False
        ahead = [p for p, position in decided.items() if position.source is PositionSource.COMMIT_AHEAD]
        if not ahead:
            return {}
        reaction, group_id = self._options.on_group_ahead, self._options.group_id
        ranges = ranges_ahead({p: (checkpoint[p], decided[p].offset or 0) for p in ahead})
        if not is_restart:
            _log.info("[group=%s] Committed offsets are ahead of the checkpoint and followed: %s.", group_id, ranges)
            return {}
        if reaction == "fail":
            raise commits_ahead_error(group_id, ranges)
        if reaction == "ignore":
            _log.warning(
                "[group=%s] Committed offsets are ahead of the checkpoint; reading again from the checkpoint "
                "(onGroupAhead=ignore): %s.",
                group_id,
                ranges,
            )
            return {p: StartPosition(PositionSource.CHECKPOINT, checkpoint[p]) for p in ahead}
        _log.warning(
            "[group=%s] Committed offsets are ahead of the checkpoint and followed: this query does not read the "
            "records between them, which the state of a stateful query lacks then (onGroupAhead=follow): %s.",
            group_id,
            ranges,
        )
        return {}

    def _resolve_initial(
        self, partitions: list[TopicPartition], positions: StreamPositions, commits: Commits
    ) -> Offsets:
        """Resolves partitions that have neither checkpoint nor committed offset.

        Raises: DataLossError.
        """
        found = {p: positions.starting[p] for p in partitions if p in positions.starting}
        added = [p for p in partitions if p not in found and positions.is_added(p)]
        existing = [p for p in partitions if p not in found and not positions.is_added(p)]
        try:
            begins = self._lookup.earliest(added)
            found |= self._lookup.resolve(self._spec, existing, commits) if existing else {}
        except BrokerError as error:
            deleted = self._lookup.missing_after(error, partitions)
            self._data_loss.deleted_before_lookup(deleted)
            self._log_ends.add_deleted(deleted, is_reported=True)
            rest = [p for p in partitions if p not in deleted]
            return dict.fromkeys(deleted, 0) | self._resolve_initial(rest, positions, commits)
        if positions.partition_counts:
            self._data_loss.added_partition_truncated({p: begin for p, begin in begins.items() if begin})
        return found | begins


def _recreated_topics(positions: StreamPositions, start: SourceOffset) -> set[str]:
    """Returns the topics whose id is not that of the checkpoint."""
    return {topic for topic, found in positions.topic_ids.items() if start.topic_ids.get(topic, found) != found}


def _is_followed(commit: OffsetAndMetadata, position: int | None, checkpoint: int) -> bool:
    """True if the query continues at the commit of a member that is not of this source.

    Such a commit is repeated under the name of this query. If this query crashed before its first commit, the foreign
    commit below the checkpoint would look like an operator's reset.
    """
    is_foreign = not commit.metadata.startswith(author_metadata(""))
    return is_foreign and commit.offset > checkpoint and position == commit.offset
