"""What a micro-batch reads: pure functions from positions, commits and limits to ranges and tasks.

Knows offsets only. Whoever calls has asked the group what it owns and the brokers how far the logs reach.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from typing import Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition

# of an offset, where nothing could be measured
_UNMEASURED_BYTES = 1024.0


class PositionSource(Enum):
    """Where a partition's position came from, in the words of messages."""

    OWN = "own position"
    CHECKPOINT = "checkpoint"
    GROUP = "group"
    GROUP_AHEAD = "group, ahead of the checkpoint"
    GROUP_RESET = "group, moved back by an operator"
    STARTING = "startingOffsets"


class Acquisition(NamedTuple):
    """The position of one newly owned partition, or None where only `startingOffsets` can tell it."""

    winner: PositionSource
    offset: int | None


def decide_position(
    *,
    checkpoint: int | None,
    committed: OffsetAndMetadata | None,
    is_kept: bool,
    written_by_us: bool,
) -> Acquisition:
    """Decides which offset wins for one owned partition after the group has changed.

    Args:
        checkpoint: next offset of the last checkpointed batch, None when that batch did not hold the partition.
        committed: the group's commit.
        is_kept: this run of the query owned the partition already, and the checkpoint's offset is its own position.
        written_by_us: the commit's metadata is that of a query of this source.

    A committed offset ahead of ours was processed by another member and is followed. One behind ours is an operator's
    reset if nobody of this source wrote it; a run in progress never goes back.
    """
    if checkpoint is None:
        if committed is None:
            return Acquisition(PositionSource.STARTING, None)
        return Acquisition(PositionSource.GROUP, committed.offset)
    if committed is not None and committed.offset > checkpoint:
        return Acquisition(PositionSource.GROUP_AHEAD, committed.offset)
    if is_kept:
        return Acquisition(PositionSource.OWN, checkpoint)
    if committed is not None and committed.offset < checkpoint and not written_by_us:
        return Acquisition(PositionSource.GROUP_RESET, committed.offset)
    return Acquisition(PositionSource.CHECKPOINT, checkpoint)


@dataclass(frozen=True)
class Backlog:
    """What could be read: `begins` and `ends` of the same partitions, ends never before begins."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        ends = {p: max(begin, self.ends.get(p, begin)) for p, begin in self.begins.items()}
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "total", sum(ends[p] - begin for p, begin in self.begins.items()))

    def size(self, topic_partition: TopicPartition) -> int:
        return self.ends[topic_partition] - self.begins[topic_partition]


def limit_ends(backlog: Backlog, max_offsets: int | None) -> dict[TopicPartition, int]:
    """Where each partition's range ends when at most `max_offsets` are read over all.

    The limit is shared in proportion to the backlog. Every partition with a backlog gets at least one offset, so that
    none starves; with fewer offsets than such partitions the limit is exceeded by that much, as in Spark's own source.
    """
    if max_offsets is None or backlog.total <= max_offsets:
        return dict(backlog.ends)
    waiting = [p for p in sorted(backlog.begins) if backlog.size(p)]
    ends = dict(backlog.begins)
    spare, rest = max(max_offsets - len(waiting), 0), max(backlog.total - len(waiting), 1)
    remainders = []
    for topic_partition in waiting:
        share, remainder = divmod((backlog.size(topic_partition) - 1) * spare, rest)
        ends[topic_partition] += 1 + share
        remainders.append((-remainder, topic_partition))
    left = len(waiting) + spare - sum(ends[p] - backlog.begins[p] for p in waiting)
    for _, topic_partition in sorted(remainders)[:left]:
        ends[topic_partition] += 1
    return ends


class SizeSample(NamedTuple):
    """Mean bytes of the offsets at `offset`."""

    offset: int
    density: float


class SizeEstimate(NamedTuple):
    """How many bytes the first records of a partition's backlog take in the log: `offsets` and `bytes` rise together.

    The first pair is the begin and 0, each further one the end of a stored batch, or of a stretch that was looked at in
    places. Within a batch records are taken to be of one size, and beyond the last pair of the mean size before.
    """

    offsets: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def density(self) -> float:
        """Mean bytes of an offset, never 0."""
        return max(self.bytes[-1] / max(self.offsets[-1] - self.offsets[0], 1), 1e-3)

    def size(self, end: int) -> float:
        """Bytes from the begin up to `end`."""
        if end >= self.offsets[-1]:
            return self.bytes[-1] + (end - self.offsets[-1]) * self.density
        at = bisect_right(self.offsets, end) - 1
        step = (self.bytes[at + 1] - self.bytes[at]) / (self.offsets[at + 1] - self.offsets[at])
        return self.bytes[at] + (end - self.offsets[at]) * step

    def beyond(self, seen: Sequence[SizeSample]) -> SizeEstimate:
        """These, and what lies further on by some looks at it, in order of offsets.

        Between two looks records are taken to be as large as the larger ones of both, so what changes once is seen;
        larger records that lie between two looks, and reach neither, are not.
        """
        offsets, sizes, last = list(self.offsets), list(self.bytes), self.density
        for offset, density in seen:
            if offset > offsets[-1]:
                sizes.append(sizes[-1] + max(int((offset - offsets[-1]) * max(density, last)), 1))
                offsets.append(offset)
            last = density
        return SizeEstimate(tuple(offsets), tuple(sizes))

    def end(self, size: float) -> int:
        """The last offset up to which no more than `size` bytes lie."""
        if size >= self.bytes[-1]:
            return self.offsets[-1] + int((size - self.bytes[-1]) / self.density)
        at = bisect_right(self.bytes, size) - 1
        step = (self.offsets[at + 1] - self.offsets[at]) / (self.bytes[at + 1] - self.bytes[at])
        return self.offsets[at] + int((size - self.bytes[at]) * step)


def limit_bytes(
    backlog: Backlog, sizes: Mapping[TopicPartition, SizeEstimate], max_bytes: int
) -> dict[TopicPartition, int]:
    """Where each partition's range ends when about `max_bytes` are read over all, in proportion to what waits.

    Every partition with a backlog gets at least one offset, so that none starves and a record larger than the limit
    does not stop the query.

    Args:
        sizes: what was measured; a partition that is missing is taken to be like the others.
    """
    waiting = [p for p in sorted(backlog.begins) if backlog.size(p)]
    typical = sum(s.density for s in sizes.values()) / len(sizes) if sizes else _UNMEASURED_BYTES
    begins = backlog.begins
    known = {p: sizes.get(p) or SizeEstimate((begins[p], begins[p] + 1), (0, int(typical))) for p in waiting}
    weights = {p: known[p].size(backlog.ends[p]) for p in waiting}
    total = sum(weights.values())
    if total <= max_bytes:
        return dict(backlog.ends)
    ends = dict(backlog.begins)
    for p in waiting:
        wished = known[p].end(max_bytes * weights[p] / total)
        ends[p] = min(max(wished, backlog.begins[p] + 1), backlog.ends[p])
    return ends


def sample_offsets(sizes: SizeEstimate, end: int, count: int) -> list[int]:
    """Where to look at records before they are read up to `end`: nowhere if all of them have been measured."""
    measured = sizes.offsets[-1]
    if end <= measured:
        return []
    return [measured + (end - measured) * n // count for n in range(1, count)] + [end - 1]


def is_worth_a_batch(
    backlog: Backlog, *, min_offsets: int | None, waited_ms: int | None, max_trigger_delay_ms: int
) -> bool:
    """Decides whether enough has gathered to plan a batch.

    Args:
        min_offsets: ``minOffsetsPerTrigger``, None for no such wish.
        waited_ms: since the last batch was planned; None before the first, which never waits.
    """
    if not backlog.total:
        return False
    if min_offsets is None or waited_ms is None:
        return True
    return backlog.total >= min_offsets or waited_ms >= max_trigger_delay_ms


class TaskPlan(NamedTuple):
    """What one task reads. `member` is the index of the member it acts for, -1 without membership."""

    member: int
    ranges: tuple[OffsetRange, ...]

    @property
    def offsets(self) -> int:
        return sum(r.end - r.start for r in self.ranges)


def plan_tasks(
    ranges: Iterable[OffsetRange],
    owners: Mapping[TopicPartition, int],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[TaskPlan]:
    """Splits ranges into tasks: one per member with something to read, cut further where asked.

    Args:
        ranges: of all partitions of the batch; empty ones make no task.
        owners: partition -> index of the member that owns it; others are read for member -1.
        min_partitions: wished number of tasks; larger tasks are split in proportion to their size.
        max_records: most offsets of one task.
    """
    by_member: dict[int, list[OffsetRange]] = {}
    for offset_range in sorted(ranges):
        if offset_range.end > offset_range.start:
            by_member.setdefault(owners.get(offset_range.topic_partition, -1), []).append(offset_range)
    tasks = [TaskPlan(member, tuple(chosen)) for member, chosen in sorted(by_member.items())]
    return split_tasks(tasks, min_partitions=min_partitions, max_records=max_records)


def split_tasks(
    tasks: Sequence[TaskPlan], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[TaskPlan]:
    """Cuts tasks so that none exceeds `max_records` and, if it can be had, there are `min_partitions` of them."""
    total = sum(task.offsets for task in tasks)
    wished = min_partitions if min_partitions and min_partitions > len(tasks) else 0
    pieces = []
    for task in tasks:
        parts = max(1, (task.offsets * wished + total // 2) // total) if wished else 1
        if max_records:
            parts = max(parts, -(-task.offsets // max_records))
        pieces.extend(_cut(task, min(parts, task.offsets)))
    return pieces


def _cut(task: TaskPlan, parts: int) -> list[TaskPlan]:
    """`parts` tasks of sizes that differ by one at most."""
    if parts <= 1:
        return [task]
    smaller, larger = divmod(task.offsets, parts)
    sizes = [smaller + 1] * larger + [smaller] * (parts - larger)
    pieces: list[TaskPlan] = []
    rest = list(reversed(task.ranges))
    for size in sizes:
        taken: list[OffsetRange] = []
        while size:
            topic_partition, start, end = rest.pop()
            stop = min(end, start + size)
            taken.append(OffsetRange(topic_partition, start, stop))
            size -= stop - start
            if stop < end:
                rest.append(OffsetRange(topic_partition, stop, end))
        pieces.append(TaskPlan(task.member, tuple(taken)))
    return pieces


def pack_tasks(ranges: Iterable[OffsetRange], most: int) -> list[TaskPlan]:
    """Tasks of a read without members: one per partition, or `most` of about equal size where partitions are more."""
    chosen = sorted((r for r in ranges if r.end > r.start), key=lambda r: (r.start - r.end, r.topic_partition))
    bins: list[list[OffsetRange]] = [[] for _ in range(min(most, len(chosen)))]
    loads = [0] * len(bins)
    for offset_range in chosen:
        lightest = loads.index(min(loads))
        bins[lightest].append(offset_range)
        loads[lightest] += offset_range.end - offset_range.start
    return sorted((TaskPlan(-1, tuple(sorted(packed))) for packed in bins), key=lambda task: task.ranges)
