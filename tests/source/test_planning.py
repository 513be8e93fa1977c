"""Micro-batch planning: positions, limits, read tasks."""

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.source.positions.planning import (
    Backlog,
    SizeEstimate,
    SizeSample,
    TaskPlan,
    limit_bytes,
    limit_ends,
    plan_batch_tasks,
    plan_tasks,
    sample_offsets,
    should_plan_batch,
    split_tasks,
)
from spark_groupsource.source.positions.position_decisions import PositionSource, StartPosition, decide_position

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


@pytest.mark.parametrize(
    "checkpoint, committed, last_committed, is_retained, expected",
    [
        # neither checkpoint nor commit
        (None, None, None, False, StartPosition(PositionSource.STARTING, None)),
        # no checkpoint
        (None, 7, None, False, StartPosition(PositionSource.COMMIT, 7)),
        # restart: checkpoint equal to, behind and ahead of the committed offset
        (7, 7, 7, False, StartPosition(PositionSource.CHECKPOINT, 7)),
        (7, 9, 4, False, StartPosition(PositionSource.COMMIT_AHEAD, 9)),
        (7, None, 4, False, StartPosition(PositionSource.CHECKPOINT, 7)),
        # ahead: the last commit of this query, the progress of another member since, an operator's reset
        (7, 4, 4, False, StartPosition(PositionSource.CHECKPOINT, 7)),
        (7, 5, 4, False, StartPosition(PositionSource.CHECKPOINT, 7)),
        (7, 5, None, False, StartPosition(PositionSource.CHECKPOINT, 7)),
        (7, 3, 4, False, StartPosition(PositionSource.COMMIT_RESET, 3)),
        (7, 5, 7, False, StartPosition(PositionSource.COMMIT_RESET, 5)),
        # a running query does not follow a reset
        (7, 3, 4, True, StartPosition(PositionSource.RUNNING, 7)),
        (7, 7, 7, True, StartPosition(PositionSource.RUNNING, 7)),
        (7, None, None, True, StartPosition(PositionSource.RUNNING, 7)),
        (7, 9, 4, True, StartPosition(PositionSource.COMMIT_AHEAD, 9)),
    ],
)
def test_position_of_an_owned_partition(checkpoint, committed, last_committed, is_retained, expected):
    decided = decide_position(
        checkpoint=checkpoint, committed=committed, last_committed=last_committed, is_retained=is_retained
    )
    assert decided == expected


def test_limit_is_shared_by_backlog_and_starves_no_partition():
    backlog = Backlog({P0: 0, P1: 100, P2: 5}, {P0: 900, P1: 200, P2: 5})
    assert limit_ends(backlog, 100) == {P0: 89, P1: 111, P2: 5}
    assert limit_ends(backlog, None) == {P0: 900, P1: 200, P2: 5}
    assert limit_ends(backlog, 1) == {P0: 1, P1: 101, P2: 5}
    assert limit_ends(Backlog({P0: 0, P1: 0}, {P0: 1_000_000, P1: 1}), 10) == {P0: 9, P1: 1}
    assert limit_ends(Backlog({P0: 0, P1: 0}, {P0: 1, P1: 1}), 1) == {P0: 1, P1: 1}


def test_end_before_begin_is_no_backlog():
    backlog = Backlog({P0: 10, P1: 3}, {P0: 4})
    assert (backlog.total, backlog.ends) == (0, {P0: 10, P1: 3})


sizes = st.lists(st.integers(0, 2**50), min_size=1, max_size=20)


@given(sizes, st.integers(1, 2**50))
def test_limit_holds_for_any_backlog(sizes, limit):
    begins = {TopicPartition("t", number): number for number in range(len(sizes))}
    backlog = Backlog(begins, {p: begins[p] + sizes[p.partition] for p in begins})
    ends = limit_ends(backlog, limit)
    read = {p: ends[p] - begins[p] for p in begins}
    waiting = sum(1 for size in sizes if size)
    assert sum(read.values()) == min(sum(sizes), max(limit, waiting))
    assert all(min(size, 1) <= read[TopicPartition("t", number)] <= size for number, size in enumerate(sizes))


# very different lags, many of them equal or close to 0
lags = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**62), st.sampled_from([1, 2**31, 2**62])), min_size=1)


@given(lags, st.one_of(st.integers(1, 100), st.integers(1, 2**62)))
def test_limit_is_in_proportion_to_lag(lags, limit):
    begins = {TopicPartition("t", number): 0 for number in range(len(lags))}
    ends = limit_ends(Backlog(begins, {p: lags[p.partition] for p in begins}), limit)
    read = [ends[p] for p in sorted(begins)]
    waiting, total = sum(1 for lag in lags if lag), sum(lags)
    for lag, count in zip(lags, read):
        # one offset each, and a proportional share of the rest, rounded
        due = (lag - 1) * max(limit - waiting, 0) / max(total - waiting, 1) + 1 if lag else 0
        assert total <= limit or due - 1 - due * 1e-9 <= count <= due + 1 + due * 1e-9
    by_lag = sorted(zip(lags, read))
    assert all(more >= less or more_lag == less_lag for (less_lag, less), (more_lag, more) in zip(by_lag, by_lag[1:]))
    assert all(abs(a - b) <= 1 for (lag_a, a), (lag_b, b) in zip(by_lag, by_lag[1:]) if lag_a == lag_b)


@given(st.lists(st.one_of(st.integers(0, 2), st.integers(0, 900)), min_size=1, max_size=12), st.integers(1, 200))
def test_backlog_is_read_in_as_few_batches_as_the_limit_allows_and_no_partition_waits(lags, limit):
    ends = {TopicPartition("t", number): lag for number, lag in enumerate(lags)}
    begins = dict.fromkeys(ends, 0)
    batches = 0
    while (backlog := Backlog(begins, ends)).total:
        reached = limit_ends(backlog, limit)
        assert all(reached[p] > begins[p] for p in begins if backlog.size(p))
        begins, batches = reached, batches + 1
    assert batches <= -(-sum(lags) // limit)


@pytest.mark.parametrize(
    "size, min_offsets, waited_ms, expected",
    [
        (0, None, None, False),
        (1, None, 5, True),
        (1, 10, None, True),  # the first batch never waits
        (9, 10, 5, False),
        (10, 10, 5, True),
        (9, 10, 1000, True),
        (0, 10, 1000, False),
    ],
)
def test_batch_waits_for_min_offsets(size, min_offsets, waited_ms, expected):
    backlog = Backlog({P0: 0}, {P0: size})
    decided = should_plan_batch(backlog, min_offsets=min_offsets, waited_ms=waited_ms, max_trigger_delay_ms=1000)
    assert decided is expected


def test_one_task_per_member_with_records():
    ranges = [OffsetRange(P2, 0, 5), OffsetRange(P0, 0, 5), OffsetRange(P1, 3, 3)]
    assert plan_tasks(ranges, {P0: 1, P1: 0, P2: 1}) == [TaskPlan(1, (OffsetRange(P0, 0, 5), OffsetRange(P2, 0, 5)))]
    assert plan_tasks(ranges, {P0: 1}) == [
        TaskPlan(-1, (OffsetRange(P2, 0, 5),)),
        TaskPlan(1, (OffsetRange(P0, 0, 5),)),
    ]


def test_tasks_are_split_for_min_partitions_and_max_records():
    task = TaskPlan(0, (OffsetRange(P0, 0, 7), OffsetRange(P1, 10, 13)))
    assert split_tasks([task], max_records=4) == [
        TaskPlan(0, (OffsetRange(P0, 0, 4),)),
        TaskPlan(0, (OffsetRange(P0, 4, 7),)),
        TaskPlan(0, (OffsetRange(P1, 10, 13),)),
    ]
    assert [t.offsets for t in split_tasks([task], min_partitions=2)] == [5, 5]
    assert split_tasks([task], min_partitions=1) == [task]
    assert split_tasks([], min_partitions=4) == []
    assert len(split_tasks([task], min_partitions=100)) == 10


@pytest.mark.parametrize(
    "offsets, min_partitions, expected",
    [
        ([4, 20], 4, [4, 6, 7, 7]),
        ([1, 1000], 4, [1, 333, 333, 334]),
        ([500, 12_000, 15_001], 6, [500, 5_000, 5_000, 5_001, 6_000, 6_000]),
        ([1, 1, 10_000], 6, [1, 1, 2_500, 2_500, 2_500, 2_500]),
        ([10_000, 15_000, 20_000], 9, [5_000] * 9),
        # only large tasks are split, so rounding leaves more or fewer tasks
        ([10, 10, 1], 6, [1, 3, 3, 3, 3, 4, 4]),
        ([10, 10, 10], 4, [10, 10, 10]),
    ],
)
def test_small_tasks_count_towards_min_partitions(offsets, min_partitions, expected):
    """The cases of Spark's KafkaOffsetRangeCalculatorSuite (SPARK-28489, SPARK-30656, SPARK-36576)."""
    tasks = [TaskPlan(-1, (OffsetRange(TopicPartition("t", n), 0, size),)) for n, size in enumerate(offsets)]
    assert sorted(task.offsets for task in split_tasks(tasks, min_partitions=min_partitions)) == expected


@given(sizes, st.integers(1, 60), st.none() | st.integers(1, 1000))
def test_splitting_reads_everything_once(sizes, parts, cap):
    sizes = [size % 5000 for size in sizes]
    ranges = [OffsetRange(TopicPartition("t", n), n, n + size) for n, size in enumerate(sizes)]
    owners = {r.topic_partition: r.topic_partition.partition % 3 for r in ranges}
    tasks = plan_tasks(ranges, owners, min_partitions=parts, max_records=cap)
    assert all(0 < task.offsets <= (cap or 2**60) for task in tasks)
    read = sorted(piece for task in tasks for piece in task.ranges)
    joined: list[OffsetRange] = []
    for piece in read:
        if joined and joined[-1].topic_partition == piece.topic_partition and joined[-1].end == piece.start:
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    assert joined == [r for r in ranges if r.end > r.start]


@given(sizes, st.integers(1, 8), st.none() | st.integers(1, 20))
def test_batch_tasks_read_everything_once(sizes, parallelism, min_partitions):
    ranges = [OffsetRange(TopicPartition("t", n), n, n + size) for n, size in enumerate(sizes)]
    tasks = plan_batch_tasks(ranges, lambda: parallelism, min_partitions=min_partitions)
    assert all(task.ranges for task in tasks)
    read = Counter({r.topic_partition: 0 for r in ranges})
    for r in (r for task in tasks for r in task.ranges):
        read[r.topic_partition] += r.end - r.start
    assert read == {r.topic_partition: r.end - r.start for r in ranges}
    total = sum(sizes)
    if min_partitions is None:
        assert len(tasks) <= max(4 * parallelism, 1) and len(tasks) <= max(total // 1_000, 1)


@pytest.mark.parametrize(
    ("sizes", "parallelism", "options", "expected"),
    [
        ([], 8, {}, []),
        # a small read is one task, whatever the number of partitions
        ([5] * 100, 8, {}, [500]),
        ([1_500] * 4, 8, {}, [1_500] * 4),
        ([600] * 4, 8, {}, [1_200] * 2),
        ([5_000] * 100, 2, {}, [60_000] * 4 + [65_000] * 4),
        # two partitions for eight slots
        ([150_000] * 2, 8, {}, [75_000] * 4),
        ([400_000] * 2, 8, {}, [100_000] * 8),
        ([4_000_000] * 2, 8, {}, [1_000_000] * 8),
        ([99_999], 8, {}, [99_999]),
        ([5] * 4, 8, {"min_partitions": 2}, [10, 10]),
        ([5] * 4, 8, {"min_partitions": 4}, [5] * 4),
        ([5] * 4, 8, {"max_records": 10}, [10, 10]),
    ],
)
def test_number_of_batch_tasks(sizes, parallelism, options, expected):
    ranges = [OffsetRange(TopicPartition("t", n), 0, size) for n, size in enumerate(sizes)]
    assert sorted(task.offsets for task in plan_batch_tasks(ranges, lambda: parallelism, **options)) == expected


def test_byte_limit_is_shared_by_backlog():
    backlog = Backlog({P0: 0, P1: 0, P2: 5}, {P0: 1000, P1: 1000, P2: 5})
    sizes = {P0: SizeEstimate((0, 100), (0, 10_000)), P1: SizeEstimate((0, 100), (0, 30_000))}
    assert limit_bytes(backlog, sizes, 500_000) == {P0: 1000, P1: 1000, P2: 5}
    assert limit_bytes(backlog, sizes, 40_000) == {P0: 100, P1: 100, P2: 5}
    assert limit_bytes(backlog, sizes, 1) == {P0: 1, P1: 1, P2: 5}
    # a partition without estimate has the mean record size
    assert limit_bytes(Backlog({P0: 0, P1: 7}, {P0: 100, P1: 107}), {P0: sizes[P0]}, 10_000) == {P0: 50, P1: 57}
    assert limit_bytes(Backlog({P0: 0}, {P0: 5000}), {}, 10_240) == {P0: 10}


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=30), min_size=1, max_size=6), st.data())
def test_byte_limit_holds_where_all_sizes_are_known(records, data):
    limit = data.draw(st.integers(1, sum(map(sum, records)) + 1))
    backlog = Backlog(
        {TopicPartition("t", n): 0 for n in range(len(records))},
        {TopicPartition("t", n): len(sizes) for n, sizes in enumerate(records)},
    )
    measured = {
        TopicPartition("t", n): SizeEstimate(tuple(range(len(sizes) + 1)), (0, *accumulate(sizes)))
        for n, sizes in enumerate(records)
    }
    ends = limit_bytes(backlog, measured, limit)
    total = sum(map(sum, records))
    for p, end in ends.items():
        sizes = records[p.partition]
        assert 1 <= end <= len(sizes)
        # more than the share only if the first record is larger
        assert end == 1 or sum(sizes[:end]) <= limit * sum(sizes) / total * (1 + 1e-9)


def test_estimate_is_extended_by_samples():
    measured = SizeEstimate((100, 150, 200), (0, 400, 1000))
    assert sample_offsets(measured, 200, 4) == []
    assert sample_offsets(measured, 1000, 4) == [400, 600, 800, 999]
    samples = [SizeSample(400, 5.0), SizeSample(600, 100.0), SizeSample(800, 100.0), SizeSample(999, 20.0)]
    extended = measured.extended(samples)
    assert extended.offsets == (100, 150, 200, 400, 600, 800, 999)
    # the larger density of both ends of a range: the change may be directly after offset 400
    assert extended.bytes == (0, 400, 1000, 3000, 23_000, 43_000, 62_900)
    assert measured.extended([]) == measured


def test_sizes_are_interpolated_within_and_beyond_the_estimate():
    sizes = SizeEstimate((10, 20, 30), (0, 100, 1100))
    assert [sizes.size(n) for n in (10, 15, 20, 25, 30, 40)] == [0, 50, 100, 600, 1100, 1650]
    assert [sizes.end(n) for n in (0, 50, 100, 600, 1100, 1650)] == [10, 15, 20, 25, 30, 40]
