"""Micro-batch planning: pure functions from positions and limits to ranges and tasks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.model import OffsetRange, TopicPartition

# starting a task costs about 30 ms, so more tasks per slot, or smaller ones, are slower
_MAX_TASKS_PER_SLOT = 4
_MIN_TASK_OFFSETS = 1_000
_MIN_SPLIT_OFFSETS = 100_000
# assumed size of a record in a partition without samples
_UNMEASURED_BYTES = 1024.0


@dataclass(frozen=True)
class Backlog:
    """Offsets that can be read: `begins` and `ends` of the same partitions; `total` is their number."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        given = self.ends
        ends = {p: end if (end := given.get(p, begin)) > begin else begin for p, begin in self.begins.items()}
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "total", sum(ends.values()) - sum(self.begins.values()))

    def size(self, topic_partition: TopicPartition) -> int:
        return self.ends[topic_partition] - self.begins[topic_partition]


def limit_ends(backlog: Backlog, max_offsets: int | None) -> dict[TopicPartition, int]:
    """Returns the end of each partition's range when at most `max_offsets` are read in all.

    The limit is shared in proportion to the backlog. Every partition with a backlog gets at least one offset; a
    limit below the number of such partitions is exceeded, as in Spark's Kafka source.
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
    """Mean bytes per offset near `offset`."""

    offset: int
    density: float


class SizeEstimate(NamedTuple):
    """Cumulative stored bytes of a partition's backlog: `bytes[i]` lie between `offsets[0]` and `offsets[i]`.

    The first pair is the begin and 0; each other pair is the end of a stored batch or of a sampled range. Records of
    one batch are assumed to have equal sizes, and records beyond the last pair the mean size of those before.
    """

    offsets: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def density(self) -> float:
        """Mean bytes per offset, greater than 0."""
        return max(self.bytes[-1] / max(self.offsets[-1] - self.offsets[0], 1), 1e-3)

    def size(self, end: int) -> float:
        """Returns the bytes from the begin to `end`."""
        if end >= self.offsets[-1]:
            return self.bytes[-1] + (end - self.offsets[-1]) * self.density
        at = bisect_right(self.offsets, end) - 1
        step = (self.bytes[at + 1] - self.bytes[at]) / (self.offsets[at + 1] - self.offsets[at])
        return self.bytes[at] + (end - self.offsets[at]) * step

    def extended(self, samples: Sequence[SizeSample]) -> SizeEstimate:
        """Returns this estimate extended by samples in the order of offsets.

        Between two samples the larger density of both is assumed, so a single change of the record size is covered.
        """
        offsets, sizes, last = list(self.offsets), list(self.bytes), self.density
        for offset, density in samples:
            if offset > offsets[-1]:
                sizes.append(sizes[-1] + max(int((offset - offsets[-1]) * max(density, last)), 1))
                offsets.append(offset)
            last = density
        return SizeEstimate(tuple(offsets), tuple(sizes))

    def end(self, size: float) -> int:
        """Returns the largest offset such that at most `size` bytes lie before it."""
        if size >= self.bytes[-1]:
            return self.offsets[-1] + int((size - self.bytes[-1]) / self.density)
        at = bisect_right(self.bytes, size) - 1
        step = (self.offsets[at + 1] - self.offsets[at]) / (self.bytes[at + 1] - self.bytes[at])
        return self.offsets[at] + int((size - self.bytes[at]) * step)


def limit_bytes(
    backlog: Backlog, sizes: Mapping[TopicPartition, SizeEstimate], max_bytes: int
) -> dict[TopicPartition, int]:
    """Returns the end of each partition's range when about `max_bytes` are read in all, in proportion to the backlog.

    Every partition with a backlog gets at least one offset, so a record larger than the limit does not stop the
    query.

    Args:
        sizes: estimates; a partition without one is assumed to have the mean record size of the others.
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
        end = known[p].end(max_bytes * weights[p] / total)
        ends[p] = min(max(end, backlog.begins[p] + 1), backlog.ends[p])
    return ends


def sample_offsets(sizes: SizeEstimate, end: int, count: int) -> list[int]:
    """Returns the offsets to sample before records are read up to `end`; none if the estimate covers them."""
    measured = sizes.offsets[-1]
    if end <= measured:
        return []
    return [measured + (end - measured) * n // count for n in range(1, count)] + [end - 1]


def should_plan_batch(
    backlog: Backlog, *, min_offsets: int | None, waited_ms: int | None, max_trigger_delay_ms: int
) -> bool:
    """Returns True if the backlog is large enough or old enough for a batch.

    Args:
        min_offsets: ``minOffsetsPerTrigger`` or None.
        waited_ms: time since the last batch was planned; None before the first batch, which does not wait.
    """
    if not backlog.total:
        return False
    if min_offsets is None or waited_ms is None:
        return True
    return backlog.total >= min_offsets or waited_ms >= max_trigger_delay_ms


class TaskPlan(NamedTuple):
    """Ranges of one read task; `member` is the index of its group member, -1 without membership."""

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
    """Assigns ranges to read tasks: one per member with a non-empty range, split further by the limits.

    Args:
        owners: partition -> index of the member that owns it; other partitions are read without membership.
        min_partitions: desired number of tasks; tasks are split in proportion to their size.
        max_records: maximum number of offsets per task.
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
    """Splits tasks so that none exceeds `max_records` and there are about `min_partitions` tasks.

    As in Spark's `KafkaOffsetRangeCalculator`, tasks that are too small to be split count towards `min_partitions`.
    """
    total = sum(task.offsets for task in tasks)
    desired = min_partitions if min_partitions and min_partitions > len(tasks) else 0
    large = [task for task in tasks if _share(task, total, desired) > 1]
    total, desired = sum(task.offsets for task in large), max(desired - (len(tasks) - len(large)), 1)
    chosen = frozenset(large)
    pieces = []
    for task in tasks:
        parts = max(_share(task, total, desired), 1) if task in chosen else 1
        if max_records:
            parts = max(parts, -(-task.offsets // max_records))
        pieces.extend(_split(task, min(parts, task.offsets)))
    return pieces


def _share(task: TaskPlan, total: int, parts: int) -> int:
    """Returns the share of a task in `parts` tasks of `total` offsets in all, rounded; 0 if there are none."""
    return (task.offsets * parts + total // 2) // total if total else 0


def _split(task: TaskPlan, parts: int) -> list[TaskPlan]:
    """Splits one task into `parts` tasks whose sizes differ by at most one offset."""
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


def plan_batch_tasks(
    ranges: Iterable[OffsetRange],
    find_parallelism: Callable[[], int],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[TaskPlan]:
    """Returns the tasks of a batch read, whose number follows what Spark runs in parallel and the number of offsets.

    There is one task per partition, except that

    * partitions share tasks if there are more than four times the tasks that run in parallel, or fewer than 1,000
      offsets for each task;
    * large partitions are split if there are fewer than tasks run in parallel, into tasks of about 100,000 offsets or
      more;
    * `min_partitions` and `max_records` split further; see `split_tasks`.

    Args:
        find_parallelism: returns the number of tasks that run in parallel; not called for a read of one task.
    """
    chosen = sorted((r for r in ranges if r.end > r.start), key=lambda r: (r.start - r.end, r.topic_partition))
    total = sum(r.end - r.start for r in chosen)
    parallelism = find_parallelism() if total >= 2 * _MIN_TASK_OFFSETS else 1
    most = max(min(_MAX_TASKS_PER_SLOT * parallelism, total // _MIN_TASK_OFFSETS), min_partitions or 1, 1)
    packed = _pack(chosen, min(most, len(chosen)))
    tasks = split_tasks(packed, min_partitions=min(parallelism, total // _MIN_SPLIT_OFFSETS))
    return split_tasks(tasks, min_partitions=min_partitions, max_records=max_records)


def _pack(ranges: Iterable[OffsetRange], count: int) -> list[TaskPlan]:
    """Returns `count` tasks of similar size; the largest ranges must be first."""
    bins: list[list[OffsetRange]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for offset_range in ranges:
        load, lightest = loads[0]
        bins[lightest].append(offset_range)
        heapreplace(loads, (load + offset_range.end - offset_range.start, lightest))
    return sorted((TaskPlan(-1, tuple(sorted(packed))) for packed in bins), key=lambda task: task.ranges)
