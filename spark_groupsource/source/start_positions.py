"""Start positions of a new assignment: checkpoint, committed offset or startingOffsets."""

from __future__ import annotations

import logging
from typing import Mapping, NamedTuple

from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.source.data_loss import DataLossPolicy
from spark_groupsource.source.log_end_offsets import LogEndOffsets
from spark_groupsource.source.offset_json import SourceOffset
from spark_groupsource.source.offset_lookup import OffsetLookup, Offsets
from spark_groupsource.source.options import EARLIEST, LATEST, SourceOptions
from spark_groupsource.source.planning import PositionSource, StartPosition, decide_position
from spark_groupsource.source.position_spec import PositionSpec
from spark_groupsource.source.stream_positions import StreamPositions

_log = logging.getLogger(__name__)

COMMIT_METADATA_PREFIX = "groupsource "
"""Begin of the metadata of every commit of this source, followed by the name of the reader."""

Commits = Mapping[TopicPartition, OffsetAndMetadata | None]


class Takeover(NamedTuple):
    """Result of `StartPositions.resolve`; `to_commit` must be committed before anything is read."""

    positions: StreamPositions
    to_commit: Offsets


class StartPositions:
    """Resolves the start positions of one query."""

    def __init__(
        self, options: SourceOptions, lookup: OffsetLookup, data_loss: DataLossPolicy, log_ends: LogEndOffsets
    ) -> None:
        self._options = options
        self._lookup = lookup
        self._data_loss = data_loss
        self._log_ends = log_ends

    def report_deleted(self, owned: frozenset[TopicPartition], start: SourceOffset, previous: StreamPositions) -> None:
        """Reports partitions that are no longer owned because they were deleted, rather than moved to another member.

        Raises: DataLossError.
        """
        deleted = self._lookup.missing((previous.owned | set(start.positions)) - owned)
        self._data_loss.deleted({p: start.positions[p] for p in deleted if p in start.positions})

    def resolve(
        self, owned: frozenset[TopicPartition], start: SourceOffset, commits: Commits, previous: StreamPositions
    ) -> Takeover:
        """Resolves the position of each owned partition after the assignment has changed.

        Args:
            commits: the group's committed offsets of `owned`.

        Raises: DataLossError, ConfigurationError (onGroupReset=fail), BrokerError, NetworkError.
        """
        self._log_ends.reset()
        decided = {p: _decide(p, start, commits.get(p), is_retained=p in previous.owned) for p in sorted(owned)}
        decided.update(self._react_to_resets(decided, start))
        self._log_followed(decided, start)
        unknown = [p for p, position in decided.items() if position.offset is None]
        acquired: Offsets = {
            p: position.offset
            for p, position in decided.items()
            if position.offset is not None and position.offset != start.positions.get(p)
        }
        initial = self._resolve_initial(unknown, start, commits, previous.is_new)
        acquired.update(initial)
        topic_ids = self._lookup.topic_ids({p.topic for p in owned}, refresh=True)
        positions = previous.assigned(owned, acquired, commits, topic_ids, self._lookup.partition_counts())
        to_commit = {
            p: commit.offset
            for p, commit in commits.items()
            if commit is not None and _is_followed(commit, p, positions, start)
        }
        if self._initial_spec(previous.is_new).default != EARLIEST:
            # "latest" moves on: a new owner that takes over before the first commit must start at the same offset
            to_commit.update(initial)
        return Takeover(positions, to_commit)

    def recreated(self, positions: StreamPositions, start: SourceOffset) -> Offsets:
        """Returns start offsets of partitions whose topic was recreated since `start`.

        Raises: DataLossError.
        """
        topics = {
            topic for topic, topic_id in positions.topic_ids.items() if start.topic_ids.get(topic, topic_id) != topic_id
        }
        lost = [p for p in sorted(positions.owned) if p.topic in topics and p in start.positions]
        if not lost:
            return {}
        self._data_loss.recreated({p: start.positions[p] for p in lost})
        # a committed offset may be of the deleted topic or of the new one, so it is not used
        return self._lookup.earliest(lost)

    def check_topics(self, positions: StreamPositions, start: SourceOffset) -> StreamPositions:
        """Returns the positions after topics that were recreated since the last call, found in cached metadata.

        Raises: DataLossError.
        """
        found = self._lookup.topic_ids(positions.topic_ids) if positions.topic_ids else {}
        if all(positions.topic_ids[topic] == topic_id for topic, topic_id in found.items()):
            return positions
        self._log_ends.expire()
        updated = positions.with_topic_ids(found)
        return updated.with_acquired(self.recreated(updated, start))

    def _react_to_resets(
        self, decided: Mapping[TopicPartition, StartPosition], start: SourceOffset
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
                f"{decided[first].offset}; the checkpoint is at {start.positions[first]} (onGroupReset=fail). Set "
                "onGroupReset to follow to read again from the committed offset, or to ignore to continue from the "
                "checkpoint."
            )
        _log.warning(
            "[group=%s] Committed offsets were reset by an operator to before the checkpoint (onGroupReset=%s): %s.",
            group_id,
            reaction,
            bounded_names(f"{p} ({decided[p].offset} < {start.positions[p]})" for p in reset),
        )
        if reaction == "follow":
            return {}
        return {p: StartPosition(PositionSource.CHECKPOINT, start.positions[p]) for p in reset}

    def _log_followed(self, decided: Mapping[TopicPartition, StartPosition], start: SourceOffset) -> None:
        ahead = [p for p, position in decided.items() if position.source is PositionSource.COMMIT_AHEAD]
        if ahead:
            _log.info(
                "[group=%s] Committed offsets are ahead of the checkpoint and followed: %s.",
                self._options.group_id,
                bounded_names(f"{p} ({decided[p].offset} > {start.positions[p]})" for p in ahead),
            )

    def _resolve_initial(
        self, partitions: list[TopicPartition], start: SourceOffset, commits: Commits, is_new: bool
    ) -> Offsets:
        """Resolves partitions that have neither checkpoint nor committed offset.

        Raises: DataLossError.
        """
        if not partitions:
            return {}
        try:
            found = self._lookup.resolve(self._initial_spec(is_new), partitions, commits)
        except BrokerError as error:
            is_unknown = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            deleted = self._lookup.missing(partitions) if is_unknown else []
            if not deleted:
                raise
            self._data_loss.deleted_before_lookup(deleted)
            self._log_ends.add_deleted(deleted)
            rest = [p for p in partitions if p not in deleted]
            return dict.fromkeys(deleted, 0) | self._resolve_initial(rest, start, commits, is_new)
        if not is_new and start.partition_counts:
            # partitions below the count belonged to other members, which may not have committed yet
            added = {p: begin for p, begin in found.items() if p.partition >= start.partition_counts.get(p.topic, 0)}
            self._data_loss.added_partition_truncated({p: begin for p, begin in added.items() if begin})
        return found

    def _initial_spec(self, is_new: bool) -> PositionSpec:
        """Start of partitions without position; after the first batch the earliest offset, for they may be new."""
        if not is_new:
            return PositionSpec("startingOffsets", default=EARLIEST)
        return self._options.starting or PositionSpec("startingOffsets", default=LATEST, uses_group=True)


def _decide(
    p: TopicPartition, start: SourceOffset, commit: OffsetAndMetadata | None, *, is_retained: bool
) -> StartPosition:
    return decide_position(
        checkpoint=start.positions.get(p),
        committed=commit,
        is_retained=is_retained,
        is_own_commit=commit is not None and commit.metadata.startswith(COMMIT_METADATA_PREFIX),
    )


def _is_followed(
    commit: OffsetAndMetadata, p: TopicPartition, positions: StreamPositions, start: SourceOffset
) -> bool:
    """True if the query continues at the commit of a member that is not of this source.

    Such a commit is repeated under the name of this query. If this query crashed before its first commit, the foreign
    commit behind the checkpoint would look like an operator's reset.
    """
    is_ahead = commit.offset > start.positions.get(p, -1)
    is_foreign = not commit.metadata.startswith(COMMIT_METADATA_PREFIX)
    return is_foreign and is_ahead and positions.acquired.get(p) == commit.offset
