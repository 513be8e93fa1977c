"""Decision between checkpoint and committed offset, for acquired partitions and restarts. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.source.positions.offset_json import SourceOffset
from spark_groupsource.source.positions.stream_positions import Offsets, StreamPositions
from spark_groupsource.wire.commit_reports import author_metadata, is_author, is_in_transaction

Commits = Mapping[TopicPartition, Optional[OffsetAndMetadata]]
FindLastCommits = Callable[[Sequence[TopicPartition], str], Mapping[TopicPartition, Optional[int]]]


class PositionSource(Enum):
    """Origin of a partition's position."""

    RUNNING = "position of the running query"
    CHECKPOINT = "checkpoint"
    COMMIT = "committed offset"
    COMMIT_AHEAD = "committed offset ahead of the checkpoint"
    COMMIT_RESET = "committed offset reset by an operator"
    STARTING = "startingOffsets"


class StartPosition(NamedTuple):
    """Start offset of an owned partition; None where `startingOffsets` decides."""

    source: PositionSource
    offset: int | None


def decide_position(
    *,
    checkpoint: int | None,
    committed: int | None,
    last_committed: int | None,
    is_retained: bool,
    is_transactional: bool = False,
) -> StartPosition:
    """Decides the position of one owned partition after the assignment has changed.

    Args:
        checkpoint: next offset of the last checkpointed batch; None if the batch did not contain the partition.
        committed: the group's committed offset.
        last_committed: the last offset that this query committed; None if it committed none.
        is_retained: this run of the query owned the partition before, so `checkpoint` is its own position.
        is_transactional: offsets are committed with the output, so the committed one is where the output ends.

    A committed offset ahead of the checkpoint was processed by another member and is followed. One before the last
    commit of this query is an operator's reset; a running query does not follow it. One between the two is the
    progress of another member over records that this query has delivered.
    """
    if checkpoint is None:
        if committed is None:
            return StartPosition(PositionSource.STARTING, None)
        return StartPosition(PositionSource.COMMIT, committed)
    if committed is not None and committed > checkpoint:
        return StartPosition(PositionSource.COMMIT_AHEAD, committed)
    if is_retained:
        return StartPosition(PositionSource.RUNNING, checkpoint)
    if committed is not None and last_committed is not None and committed < last_committed:
        return StartPosition(PositionSource.COMMIT_RESET, committed)
    if is_transactional and committed is not None and committed < checkpoint:
        return StartPosition(PositionSource.COMMIT, committed)
    return StartPosition(PositionSource.CHECKPOINT, checkpoint)


def decide_positions(
    partitions: Iterable[TopicPartition],
    start: SourceOffset,
    previous: StreamPositions,
    commits: Commits,
    find_last_commits: FindLastCommits,
    is_same_group: bool,
    is_transactional: bool = False,
) -> dict[TopicPartition, StartPosition]:
    """Decides the position of each partition after the assignment has changed, or after a restart.

    Args:
        start: the last checkpointed offset.
        previous: the positions before; of a restart, those of `start` alone.
        commits: the group's committed offsets of at least the partitions and of those that were lost.
        find_last_commits: returns the last commits with given metadata; see `Ownership.last_commits`.
        is_same_group: whether the checkpoint is of the present group.
        is_transactional: whether offsets are committed with the output of the query; those of a former run show it.
    Raises: BrokerError, NetworkError.
    """
    checkpoint = checkpointed_positions(start, previous)
    last_commits = _last_commits(start, checkpoint, commits, previous, find_last_commits, is_same_group)
    return {
        p: decide_position(
            checkpoint=checkpoint.get(p),
            committed=committed_offset(commits.get(p)),
            last_committed=last_commits.get(p),
            is_retained=p in previous.owned,
            is_transactional=is_transactional or is_in_transaction(_metadata(commits.get(p))),
        )
        for p in sorted(partitions)
    }


def checkpointed_positions(start: SourceOffset, previous: StreamPositions) -> dict[TopicPartition, int]:
    """Returns the positions of the checkpoint, those of lost partitions included.

    A partition that was acquired again, and lost before it was in a batch, has its position in `start` alone.
    """
    return {**start.delivered, **previous.delivered, **start.positions}


def _last_commits(
    start: SourceOffset,
    checkpoint: Offsets,
    commits: Commits,
    previous: StreamPositions,
    find_last_commits: FindLastCommits,
    is_same_group: bool,
) -> Offsets:
    """Returns the last commit of this query for each partition whose committed offset is below the checkpoint.

    The checkpoint contains the commits up to its last batch. Whether the end of that batch was committed, too, is found
    in `__consumer_offsets`. Where that is not readable, where the offset was deleted since, where compaction removed
    the commits of this query, and where the checkpoint is of another group, the commit itself must show its author:
    consumers write a leader epoch, sources and applications metadata, Kafka's tools neither (nor do some consumers).
    """
    name = author_metadata(start.reader)
    behind = {
        p: commit
        for p, commit in commits.items()
        if commit is not None
        and p not in previous.owned
        and commit.offset < checkpoint.get(p, 0)
        and not is_author(commit.metadata, name)
    }
    last = {p: previous.committed[p] for p in behind if p in previous.committed}
    doubtful = {p: commit for p, commit in behind.items() if commit.offset >= last.get(p, 0)}
    found = find_last_commits(sorted(doubtful), name) if doubtful else {}
    for p, commit in doubtful.items():
        own = found.get(p)
        if own is not None:
            last[p] = max(own, last.get(p, 0))
        elif p in found and is_same_group and (p in start.acquired or p not in previous.committed):
            continue  # it was killed in the first batch of the partition
        elif not commit.metadata and commit.leader_epoch < 0:
            last[p] = checkpoint[p]
    return last


def _metadata(commit: OffsetAndMetadata | None) -> str:
    return "" if commit is None else commit.metadata


def ranges_ahead(ahead: Mapping[TopicPartition, tuple[int, int]]) -> str:
    """Returns the text of committed offsets that are ahead of the checkpoint: partition -> checkpoint, commit."""
    return bounded_names(f"{p} ({committed} > {checkpoint})" for p, (checkpoint, committed) in sorted(ahead.items()))


def commits_ahead_error(group_id: str | None, ranges: str) -> ConfigurationError:
    """Returns the error of onGroupAhead=fail; `ranges`: see `ranges_ahead`."""
    return ConfigurationError(
        f"Committed offsets of group {group_id} are ahead of the checkpoint (onGroupAhead=fail): {ranges}. Set "
        "onGroupAhead to follow to leave out the records between them, or to ignore to read again from the checkpoint."
    )


def committed_offset(commit: OffsetAndMetadata | None) -> int | None:
    """Returns the offset of a commit, None without one."""
    return None if commit is None else commit.offset
