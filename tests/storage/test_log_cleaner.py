"""Compaction: retained and removed records, selection and grouping of segments."""

from __future__ import annotations

import tracemalloc
from typing import NamedTuple

import google_crc32c
import pytest
from support.compacted_logs import COMPACT, Store, compacted, fill, keyed
from support.examples import scaled
from support.partition_logs import append, offset_for_timestamp, values_from

from spark_groupsource.broker.storage.cleaner import Cleaner, OffsetMap, group_segments_by_size, log_to_clean
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.segment_scan import InvalidBatchError
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.records.encode import Record, encode_batch


@pytest.mark.conformance("LC-003", "LC-039")
@pytest.mark.parametrize("seed", range(scaled(8, 1)))
def test_compaction_retains_the_last_record_of_each_key_and_its_offset(tmp_path, seed):
    store = Store(tmp_path)
    written = fill(store, seed)
    size, active = store.log.size_bytes, store.log.segments[-1].base_offset
    assert store.clean()
    expected = compacted(written, active)
    assert store.contents() == expected
    assert store.log.size_bytes < size and store.log.log_end_offset == written[-1][0] + 1
    for clean in (True, False, True):
        for offset in range(0, store.log.log_end_offset, 7):
            for max_bytes in (1, 300, 1 << 20):
                assert keyed(store.log, offset, max_bytes) == [each for each in expected if each[0] >= offset]
        for stamp in (0, 1_020, 1_060):
            found = offset_for_timestamp(store.log, stamp)
            assert found is None or found.offset in {offset for offset, _, _ in expected}
        store.restart(clean)
        assert [line for line in store.reports if "damaged" in line] == []
    assert not store.clean()
    # a second pass with more records
    written = expected + fill(store, seed + 100)
    active = store.log.segments[-1].base_offset
    assert store.clean()
    assert store.contents() == compacted(written, active)


@pytest.mark.conformance("LC-023", "LC-046")
def test_tombstones_are_removed_after_delete_retention(tmp_path):
    store = Store(tmp_path)
    store.append((b"a", b"1"), (b"b", b"1"))
    store.append((b"a", None))
    store.log.roll()
    store.append((b"c", b"1"))
    store.log.roll()
    assert store.clean(10_000)
    assert store.contents() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    for number, now in enumerate((10_500, 11_000)):
        store.append((b"d%d" % number, b"x"))
        store.log.roll()
        assert store.clean(now)
        assert ((2, b"a", None) in store.contents()) == (now < 11_000)
    assert [key for _, key, _ in store.contents()] == [b"b", b"c", b"d0", b"d1"]


@pytest.mark.conformance("LC-029", "LC-031")
def test_records_younger_than_min_compaction_lag_are_retained(tmp_path):
    store = Store(tmp_path, TopicConfig(cleanup_policy=("compact",), min_compaction_lag_ms=1_000))
    for stamp in (1_000, 2_000, 3_000):
        store.append((b"k", b"%d" % stamp), timestamp_ms=stamp)
        store.log.roll()
    assert log_to_clean(store.log, 0, 1_999) is None
    assert store.clean(3_500)
    assert [value for _, _, value in store.contents()] == [b"2000", b"3000"]
    assert store.data.cleaner_offsets[store.log.topic_partition] == 2


@pytest.mark.conformance("LC-030")
def test_dirty_ratio_and_max_compaction_lag_select_a_log(tmp_path):
    store = Store(tmp_path, TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=5_000))
    for _ in range(4):
        store.append((b"k", b"x" * 1000))
        store.log.roll()
    task = log_to_clean(store.log, 0, 5_000)
    assert (task.dirty_ratio, task.is_overdue, len(task.segments)) == (1.0, False, 4)
    task = log_to_clean(store.log, 3, 6_001)
    assert (task.dirty_ratio, task.is_overdue) == (0.25, True)
    assert log_to_clean(store.log, 4, 6_001) is None


def test_the_oldest_of_all_segments_makes_a_log_overdue(tmp_path):
    store = Store(tmp_path, TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=5_000))
    for timestamp_ms in (9_000, 1_000, 8_000):
        store.append((b"k", b"x"), timestamp_ms=timestamp_ms)
        store.log.roll()
    assert [log_to_clean(store.log, 0, now_ms).is_overdue for now_ms in (6_000, 6_001)] == [False, True]
    # as in Kafka, a timestamp of 0 does not count
    store = Store(tmp_path / "other", TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=5_000))
    store.append((b"k", b"x"), timestamp_ms=0)
    store.log.roll()
    assert not log_to_clean(store.log, 0, 10_000).is_overdue


@pytest.mark.conformance("LC-028", "LC-043")
@pytest.mark.slow
def test_a_full_offset_map_continues_in_the_next_pass(tmp_path):
    store = Store(tmp_path)
    written = fill(store, 1, keys=40, tombstones=False)
    active = store.log.segments[-1].base_offset
    passes = 0
    while store.clean(max_keys=10):
        passes += 1
    assert passes > 3
    assert store.contents() == compacted(written, active)


def test_a_tombstone_beyond_the_offset_map_gets_no_delete_horizon(tmp_path):
    store = Store(tmp_path)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1")):
        store.append((key, value))
        store.log.roll()
    assert store.clean(10_000, max_keys=1) and store.contents()[0] == (0, b"a", b"1")
    # a consumer that has read the record of key a reads the tombstone within delete.retention.ms of its removal
    assert store.clean(12_000)
    assert store.contents() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    store.append((b"d", b"1"))
    store.log.roll()
    assert store.clean(13_000)
    assert [key for _, key, _ in store.contents()] == [b"b", b"c", b"d"]


@pytest.mark.conformance("LC-035")
def test_small_segments_are_merged(tmp_path):
    store = Store(tmp_path)
    fill(store, 3, batches=300, keys=3)
    before = len(store.log.segments)
    store.clean()
    # as in Kafka, grouping uses the sizes before the pass, so the merge needs one more pass
    assert before == len(store.log.segments) > 8
    store.append((b"new", b"1"))
    store.log.roll()
    store.clean()
    assert len(store.log.segments) <= 3
    assert sorted(path.name.split(".", 1)[1] for path in (tmp_path / "t-0").glob(f"{0:020d}.*")) == [
        "index", "log", "timeindex"
    ]  # fmt: skip


@pytest.mark.conformance("LC-006", "LC-025", "UL-022", "UL-023")
def test_producer_state_is_kept_by_compaction_of_its_records(tmp_path):
    store = Store(tmp_path)
    for sequence in range(3):
        store.append((b"k", b"%d" % sequence), producer_id=7, producer_epoch=0, base_sequence=sequence)
    for number in range(40):
        store.append((b"k", b"later" * 10))
    store.log.roll()
    store.append((b"k", b"last"))
    assert store.clean()
    assert [offset for offset, _, _ in store.contents()] == [42, 43]
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    store.restart(clean=False)
    assert store.append((b"k", b"2"), producer_id=7, producer_epoch=0, base_sequence=2) == 2
    assert store.append((b"k", b"3"), producer_id=7, producer_epoch=0, base_sequence=3) == 44


@pytest.mark.conformance("LC-034")
def test_log_end_is_reachable_if_the_last_records_are_removed(tmp_path):
    store = Store(tmp_path)
    store.append((b"a", b"1"))
    store.append((b"b", None))
    store.log.roll()
    store.clean(1_000)
    store.append((b"c", b"1"))
    store.append((b"b", None))
    store.log.roll()
    assert store.clean(50_000) and len(store.log.segments) == 2
    store.append((b"d", b"1"))
    store.log.roll()
    assert store.clean(60_000)
    assert [key for _, key, _ in store.contents()] == [b"a", b"c", b"d"]  # the read reached the log end


def test_a_compacted_log_is_readable_after_its_policy_changes(tmp_path):
    store = Store(tmp_path)
    fill(store, 5)
    store.clean()
    expected = store.contents()
    for clean in (True, False):
        store.config = TopicConfig(segment_bytes=1024)
        store.data.close(is_clean=False)
        store.data = DataDirectory(tmp_path)
        store.data.open(1)
        assert store.log.topic_partition in store.data.cleaner_offsets
        files = FileCache()
        log = PartitionLog(tmp_path / "t-0", store.log.topic_partition, store.config, files, store.reports,
                           gaps_end=store.log.log_end_offset)  # fmt: skip
        log.open(store.log.log_end_offset if clean else 0, clean)
        assert keyed(log, 0) == expected and log.corrupt_range is None


def test_undecodable_batches_are_retained(tmp_path):
    store = Store(tmp_path)
    store.append((b"a", b"1"))
    undecodable = bytearray(encode_batch([Record(b"a", b"3", 1_000)]))
    undecodable[61] ^= 0x3E
    undecodable[17:21] = google_crc32c.value(bytes(undecodable[21:])).to_bytes(4, "big")
    append(store.log, bytes(undecodable))
    store.append((b"b", b"1"))
    store.append((b"b", b"2"))
    store.log.roll()
    assert store.clean()
    headers = [stored.header for stored in store.log.batches(0)]
    assert [header.base_offset for header in headers] == [0, 1, 3]


@pytest.mark.conformance("LC-032")
def test_records_without_key_are_removed(tmp_path):
    """They were produced before the topic became compacted."""
    store = Store(tmp_path, TopicConfig(segment_bytes=1024))
    store.append((b"a", b"1"))
    append(store.log, encode_batch([Record(None, b"unkeyed", 1_000), Record(b"b", b"2", 1_000)]))
    append(store.log, encode_batch([Record(None, b"unkeyed", 1_000)]))
    store.log.roll()
    store.log.config = COMPACT
    store.append((b"c", b"3"))
    assert store.clean()
    assert store.contents() == [(0, b"a", b"1"), (2, b"b", b"2"), (4, b"c", b"3")]


@pytest.mark.conformance("LC-021", "LC-022")
def test_a_corrupt_batch_ends_the_pass_and_leaves_the_log_unchanged(tmp_path):
    store = Store(tmp_path)
    fill(store, 6, batches=20)
    path = store.log.segments[1].path
    for position in (11, 70):  # its length, its records
        damaged = bytearray(path.read_bytes())
        damaged[position] ^= 0x40
        before = path.read_bytes()
        path.write_bytes(damaged)
        with pytest.raises(InvalidBatchError):
            store.clean()
        assert path.read_bytes() == damaged and not list((tmp_path / "t-0").glob("*.cleaned"))
        path.write_bytes(before)
    assert store.clean()


@pytest.mark.conformance("LC-019", "LC-020")
def test_large_batches_are_compacted(tmp_path):
    store = Store(tmp_path)
    for number in range(3):
        append(store.log, encode_batch([Record(b"k", b"%d" % number * 3_000_000, 1_000)]))  # above max.message.bytes
    append(store.log, encode_batch([Record(b"active", b"", 1_000)]))
    assert store.clean()
    assert [(offset, len(value or b"")) for offset, _, value in store.contents()] == [(2, 3_000_000), (3, 0)]


class SizedSegment(NamedTuple):
    base_offset: int
    next_offset: int
    size: int


@pytest.mark.conformance("LC-035", "LC-036", "LC-037", "LC-038")
def test_segments_are_grouped_by_size_and_offset_range():
    def grouped(*segments: tuple[int, int, int]) -> list[int]:
        return [len(group) for group in group_segments_by_size([SizedSegment(*each) for each in segments], 100)]

    assert grouped((0, 10, 40), (10, 20, 60), (20, 30, 1)) == [2, 1]
    assert grouped((0, 10, 0), (10, 2**31, 0), (2**31, 2**31 + 1, 1)) == [2, 1], "relative offsets are int32"
    assert grouped((0, 2**31, 10), (2**31, 2**31 + 2, 0), (2**31 + 2, 2**32, 10)) == [1, 2]


@pytest.mark.conformance("LC-047")
def test_a_pass_starts_at_the_log_start_if_dirty_records_were_deleted(tmp_path):
    store = Store(tmp_path)
    fill(store, 8, batches=40)
    store.log.delete_records(store.log.segments[2].base_offset)
    written = store.contents()
    task = log_to_clean(store.log, 0, 2_000)
    assert task.first_dirty_offset == store.log.log_start_offset > 0
    assert store.clean()
    assert store.contents() == compacted(written, store.log.segments[-1].base_offset)


@pytest.mark.conformance("LC-004")
def test_a_pass_ends_if_its_segments_are_deleted(tmp_path):
    store = Store(tmp_path)
    fill(store, 9, batches=40)
    task = log_to_clean(store.log, 0, 2_000)
    cleaner = Cleaner(store.partition, task, store.data, FileCache(), 2_000)
    run = cleaner.run()
    next(run)
    assert not cleaner.is_obsolete
    store.log.delete_records(store.log.segments[1].base_offset)
    assert cleaner.is_obsolete
    run.close()
    assert not list((tmp_path / "t-0").glob("*.cleaned")) and store.clean()


def test_a_pass_ends_if_the_topic_is_not_compacted_any_more(tmp_path):
    """Kafka `LogManager.updateTopicConfig` aborts the cleaning."""
    store = Store(tmp_path)
    written = fill(store, 9, batches=40)
    cleaner = Cleaner(store.partition, log_to_clean(store.log, 0, 2_000), store.data, FileCache(), 2_000)
    run = cleaner.run()
    next(run)
    store.log.config = TopicConfig(segment_bytes=1024)
    assert cleaner.is_obsolete
    run.close()
    assert store.contents() == written


@pytest.mark.parametrize("cleaned_offset", [30, 10**6])
def test_a_cleaner_offset_above_the_completed_segments_is_ignored(tmp_path, cleaned_offset):
    """After a power loss the log may be shorter than its compacted part was (Kafka `cleanableOffsets`)."""
    store = Store(tmp_path)
    written = fill(store, 9, batches=10)
    assert store.log.segments[-1].base_offset < cleaned_offset
    store.data.set_cleaner_offset(store.log.topic_partition, cleaned_offset)
    assert store.clean()
    assert store.contents() == compacted(written, store.log.segments[-1].base_offset)


@pytest.mark.conformance("UL-030")
def test_snapshots_of_merged_segments_are_removed(tmp_path):
    store = Store(tmp_path)
    for sequence in range(6):
        store.append((b"k", b"%d" % sequence), producer_id=7, producer_epoch=0, base_sequence=sequence)
        store.log.roll()
    store.append((b"k", b"active"))
    assert len(list((tmp_path / "t-0").glob("*.snapshot"))) == 6
    assert store.clean()
    assert [int(path.stem) for path in (tmp_path / "t-0").glob("*.snapshot")] == [6]
    store.restart(clean=False)
    assert store.append((b"k", b"5"), producer_id=7, producer_epoch=0, base_sequence=5) == 5


@pytest.mark.slow
def test_a_batch_of_many_records_is_compacted_in_many_steps(tmp_path):
    store = Store(tmp_path, TopicConfig(cleanup_policy=("compact",)))
    count = 30_000
    store.append(*((b"%d" % (number % 10), b"%d" % number) for number in range(count)), codec=1)
    store.append((b"other", None))
    store.log.roll()
    store.append((b"last", b"v"))
    task = log_to_clean(store.log, 0, 2_000)
    tracemalloc.start()
    try:
        steps = sum(1 for _ in Cleaner(store.partition, task, store.data, FileCache(), 2_000).run())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert steps > 3 * count / 4096 and peak < 200 * count
    assert [key for _, key, _ in store.contents()] == [*(b"%d" % number for number in range(10)), b"other", b"last"]


@pytest.mark.conformance("LC-039")
def test_long_keys_are_distinguished():
    latest = OffsetMap()
    keys = [b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 34, b"#" * 32, b""]
    for number, key in enumerate(keys):
        latest.put(key, number)
    assert [latest.get(key) for key in keys] == list(range(len(keys)))
    assert latest.get(b"y") == -1


@pytest.mark.conformance("LC-011", "UL-049")
def test_reads_continue_after_a_segment_without_batches(tmp_path):
    store = Store(tmp_path, TopicConfig(cleanup_policy=("compact",), segment_bytes=1024, max_message_bytes=5000))
    for number in range(6):
        store.append((b"k", b"%d" % number * 600))
        store.log.roll()
    store.append((b"k", b"end"))
    assert store.clean()
    assert [offset for offset, _ in values_from(store.log, 0)] == [5, 6]
