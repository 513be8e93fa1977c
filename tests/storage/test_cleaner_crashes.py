"""Compaction: crashes and write errors in every replacement step."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Callable

import pytest
from support.compacted_logs import COMPACT, Store, compacted, fill, keyed
from support.examples import scaled
from support.file_operations import FileOperations
from support.partition_logs import open_log
from support.power_loss import Disk, Operation, write_state

from spark_groupsource.broker.storage import log as log_module
from spark_groupsource.broker.storage.cleaner import Cleaner, log_to_clean
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.segment_swap import CleanedSegment, replacement_steps
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.errors import StorageError

# --- crashes ---


@pytest.mark.conformance("LC-041", "LL-018")
@pytest.mark.slow
def test_a_crash_in_any_replacement_step_leaves_the_old_or_new_log(tmp_path):
    store = Store(tmp_path / "d")
    written = fill(store, 11, batches=60)
    store.partition.close()
    before, after = written, compacted(written, store.log.segments[-1].base_offset)
    stages: list[Path] = []

    def keep(*_):
        stages.append(tmp_path / f"stage {len(stages)}")
        shutil.copytree(tmp_path / "d" / "t-0", stages[-1])

    task = log_to_clean(store.log, 0, 2_000)

    def steps(*arguments):
        keep()
        for step in replacement_steps(*arguments):
            keep()
            yield step

    monkey = pytest.MonkeyPatch()
    monkey.setattr(log_module, "replacement_steps", steps)
    try:
        for _ in Cleaner(store.partition, task, store.data, FileCache(), 2_000).run():
            keep()
    finally:
        monkey.undo()
    keep()
    seen = set()
    for stage in stages:
        for recovery_point in (None, store.log.log_end_offset):
            again = stage.with_name(stage.name + " again")
            shutil.copytree(stage, again)
            log, reports = open_log(again, config=COMPACT, recovery_point=recovery_point, gaps_end=task.end_offset)
            found = keyed(log, 0)
            # a committed replacement is compacted, any other segment is unchanged
            assert set(after) <= set(found) <= set(before) and found == sorted(found)
            assert log.log_end_offset == store.log.log_end_offset and reports == []
            assert not [p for p in again.iterdir() if p.suffix in (".swap", ".cleaned")]
            seen.add(len(found))
            shutil.rmtree(again)
    assert len(before) in seen and len(after) in seen


@pytest.mark.conformance("LC-041")
def test_an_interrupted_replacement_is_completed_after_two_crashes(tmp_path):
    store = Store(tmp_path)
    fill(store, 2)
    expected = store.contents()
    group = store.log.segments[:-1]
    end = group[-1].next_offset
    cleaned = CleanedSegment(tmp_path / "t-0", 0, end, 100)
    for segment in group:
        for stored in segment.scan(0, segment.size):
            cleaned.append(stored.buffer[stored.header.position :][: stored.header.size], stored.header)
    cleaned.finish()
    for count in (1, 2, 3, 1):
        for _ in zip(range(count), replacement_steps(tmp_path / "t-0", 0, end)):
            pass
    store.restart(clean=False)
    assert len(store.log.segments) == 2 and store.contents() == expected


def test_a_log_has_a_recovery_point_before_it_may_have_gaps(tmp_path, monkeypatch):
    """Otherwise records that a power loss takes from the first pass on would count as compacted."""
    store = Store(tmp_path / "d")
    fill(store, 11, batches=60)
    topic_partition, data = store.log.topic_partition, store.data
    store_recovery_point, had_gaps = data.raise_recovery_point, []

    def stored(*arguments):
        had_gaps.append(topic_partition in data.cleaner_offsets)
        store_recovery_point(*arguments)

    monkeypatch.setattr(data, "raise_recovery_point", stored)
    for _ in Cleaner(store.partition, log_to_clean(store.log, 0, 2_000), data, FileCache(), 2_000).run():
        pass
    assert had_gaps == [False] and topic_partition in data.cleaner_offsets


@pytest.mark.conformance("LC-033")
@pytest.mark.parametrize("steps", range(0, 70, 5))
@pytest.mark.slow
def test_a_pass_that_is_stopped_leaves_the_records_unchanged(tmp_path, steps):
    store = Store(tmp_path, TopicConfig(cleanup_policy=("compact",), segment_bytes=4096, index_interval_bytes=100))
    written = fill(store, 4)
    expected = compacted(written, store.log.segments[-1].base_offset)
    run = Cleaner(store.partition, log_to_clean(store.log, 0, 2_000), store.data, FileCache(), 2_000).run()
    for _ in range(steps):
        next(run)
    run.close()
    assert store.contents() == written and not list((tmp_path / "t-0").glob("*.cleaned"))
    store.restart(clean=False)
    assert store.contents() == written and store.reports == []
    assert store.clean() and store.contents() == expected


def test_a_write_error_during_compaction_leaves_the_log_unchanged(tmp_path, monkeypatch):
    store = Store(tmp_path)
    written = fill(store, 4)

    def full(self, rows):
        raise StorageError("no space")

    monkeypatch.setattr(CleanedSegment, "finish", full)
    with pytest.raises(StorageError, match="no space"):
        store.clean()
    assert store.contents() == written and not list((tmp_path / "t-0").glob("*.cleaned"))
    monkeypatch.undo()
    assert store.clean()


@pytest.mark.conformance("LC-006")
def test_duplicates_are_detected_after_a_kill_wherever_the_segment_rolled(tmp_path):
    store = Store(tmp_path)

    def send(sequence):
        return store.append((b"k", b"x" * 300), producer_id=7, producer_epoch=0, base_sequence=sequence)

    for sequence in range(11):  # two to a segment
        assert send(sequence) == sequence
    store.restart(clean=False)
    assert len(store.log.segments) > 4
    assert [send(sequence) for sequence in range(6, 11)] == list(range(6, 11))
    assert send(11) == 11


@pytest.mark.parametrize("is_known", (True, False))
def test_a_missing_offset_above_the_recovery_point_truncates_a_compacted_log(tmp_path, is_known):
    """A power loss took the records of a completed segment that was not flushed, and left the next segment."""
    store = Store(tmp_path)
    fill(store, 3, batches=40)
    assert store.clean()
    recovery_point = store.data.recovery_points[store.log.topic_partition]
    fill(store, 4, batches=40)
    lost, following = store.log.segments[-3:-1]
    assert lost.base_offset > recovery_point
    expected = [record for record in store.contents() if record[0] < lost.base_offset]
    lost.path.write_bytes(b"")
    if not is_known:
        (tmp_path / "recovery-point-offset-checkpoint").unlink()
    store.data.close(is_clean=False)
    store.data = DataDirectory(tmp_path)
    store.data.open(1)
    store.open(recovery_point if is_known else 0, is_clean=False)
    if is_known:
        assert store.log.log_end_offset == lost.base_offset and store.contents() == expected
        assert "Deleted segments" in store.reports[0] and not following.path.exists()
        assert store.append((b"next", b"")) == lost.base_offset
    else:  # any missing offset may have been compacted
        assert following.path.exists() and not store.reports


def test_records_are_compacted_when_they_are_flushed_and_the_recovery_point_is_stored(tmp_path):
    """A power loss must not take a record after the one that it superseded was removed."""
    store = Store(tmp_path)
    flushes: list[tuple[Callable[[], None], Future[None]]] = []

    def run_in_background(work: Callable[[], None]) -> Future[None]:
        flushes.append((work, Future()))
        return flushes[-1][1]

    store.log._files.run_in_background = run_in_background  # private: the flush thread of an open log
    fill(store, 5, batches=40)
    assert len(flushes) > 3 and log_to_clean(store.log, 0, 2_000) is None
    for work, done in flushes[:2]:
        work()
        done.set_result(None)
    task = log_to_clean(store.log, 0, 2_000)
    assert task is not None and task.segments == store.log.segments[:2]
    for _ in Cleaner(store.partition, task, store.data, FileCache(), 2_000).run():
        replaced = store.log.segments[: len(task.segments)] != task.segments
        assert not replaced or store.data.recovery_points[store.log.topic_partition] == task.end_offset
    assert replaced


@pytest.mark.conformance("LC-041")
def test_removed_segments_do_not_return_when_the_power_is_lost_after_the_last_rename(tmp_path):
    """Without a flush of the directory before it, the last rename may be stored and the removals before it lost."""
    store = Store(tmp_path / "before")
    written = fill(store, 11, batches=60)
    store.partition.close()
    expected = compacted(written, store.log.segments[-1].base_offset)
    store.log.config = TopicConfig(cleanup_policy=("compact",))  # all segments become one
    bases = [0, store.log.segments[-1].base_offset]
    disk = Disk(tmp_path / "before")
    operations: list[Operation] = []
    with FileOperations(tmp_path / "before", operations.append):
        assert store.clean()
    renames = [number for number, each in enumerate(operations) if each[0] == "rename" and each[1].endswith(".swap")]
    for operation in operations[: renames[-1] + 1]:
        disk.apply(operation)
    for seed in range(scaled(40, 20)):
        path = tmp_path / str(seed)
        write_state(disk.after_power_loss(random.Random(seed)), path)
        log, reports = open_log(path / "t-0", config=COMPACT, recovery_point=store.log.log_end_offset, is_clean=False)
        assert [segment.base_offset for segment in log.segments] == bases
        assert keyed(log, 0) == expected and reports == []
        shutil.rmtree(path)
