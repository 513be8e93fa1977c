"""Committed offsets of a repeated commit, created only when they are read.

Most commits are replaced by the next one of the same member before anything reads their offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import repeat
from typing import Iterator, NamedTuple, Sequence, Tuple, overload

from spark_groupsource.group.members import text_bytes
from spark_groupsource.model import TopicPartition, new_tuple
from spark_groupsource.wire.group_records import OffsetValue

_MAX_BYTES = 131_072
"""Approximate memory of the last repeated commits of all groups of a shard."""
_COMMIT_BYTES, _OFFSET_BYTES = 800, 100

CommittedOffset = Tuple[TopicPartition, OffsetValue]
_new_value = partial(new_tuple, OffsetValue)


class CommitColumns(NamedTuple):
    """What repeated commits have in common: their partitions, each once, with leader epochs and metadata.

    `size_bytes`: approximate memory of a commit, with all texts.
    """

    partitions: tuple[TopicPartition, ...]
    leader_epochs: tuple[int, ...]
    metadata: tuple[str, ...]
    size_bytes: int


def commit_columns(
    partitions: tuple[TopicPartition, ...], leader_epochs: tuple[int, ...], metadata: tuple[str, ...]
) -> CommitColumns:
    """Returns the columns with their size."""
    texts = sum(len(topic) for topic, _ in partitions) + sum(map(text_bytes, metadata))
    size_bytes = _COMMIT_BYTES + _OFFSET_BYTES * len(partitions) + texts
    return CommitColumns(partitions, leader_epochs, metadata, size_bytes)


class RepeatedOffsets(Sequence[CommittedOffset]):
    """The offsets of one commit, in the order of `columns`."""

    __slots__ = ("_offsets", "_timestamp_ms", "columns")

    def __init__(self, columns: CommitColumns, offsets: Sequence[int], timestamp_ms: int) -> None:
        self.columns = columns
        self._offsets = offsets
        self._timestamp_ms = timestamp_ms

    def __len__(self) -> int:
        return len(self.columns.partitions)

    def __iter__(self) -> Iterator[CommittedOffset]:
        partitions, leader_epochs, metadata, _ = self.columns
        constants = repeat(self._timestamp_ms), repeat(-1), repeat(None)
        return zip(partitions, map(_new_value, zip(self._offsets, leader_epochs, metadata, *constants)))

    @overload
    def __getitem__(self, index: int) -> CommittedOffset: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CommittedOffset]: ...

    def __getitem__(self, index: int | slice) -> CommittedOffset | Sequence[CommittedOffset]:
        return list(self)[index]


class RepeatedCommits:
    """The last repeated commits of some groups, whose offsets are not created yet.

    Those of groups that have not committed for the longest time are created when they take too much memory.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[str, RepeatedOffsets] = OrderedDict()  # the group that has committed last is last
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._last)

    def has_columns(self, group_id: str, columns: CommitColumns) -> bool:
        """Returns whether the last commit of a group has these columns."""
        last = self._last.get(group_id)
        return last is not None and last.columns is columns

    def put(self, group_id: str, commit: RepeatedOffsets) -> None:
        """Adds the commit of a group, after another one with the same columns or after `pop`."""
        if group_id in self._last:
            self._last.move_to_end(group_id)
        else:
            self._size_bytes += commit.columns.size_bytes
        self._last[group_id] = commit

    def pop(self, group_id: str) -> RepeatedOffsets | None:
        """Removes and returns the commit of a group."""
        last = self._last.pop(group_id, None)
        if last is not None:
            self._size_bytes -= last.columns.size_bytes
        return last

    def surplus(self) -> Iterator[str]:
        """Yields the groups with the oldest commits, each to be popped, as long as they take too much memory."""
        while self._size_bytes > _MAX_BYTES:
            yield next(iter(self._last))

    def group_ids(self) -> list[str]:
        return list(self._last)
