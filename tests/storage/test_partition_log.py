"""Partition log: append, read, roll, timestamp lookup, retention."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.file_operations import FileOperations
from support.partition_logs import (
    SMALL,
    append,
    batch,
    fill,
    latest_timestamp,
    logs,
    offset_for_timestamp,
    open_log,
    values_from,
)

from spark_groupsource.broker.storage import log as log_module
from spark_groupsource.broker.storage.segment_index import SegmentIndex
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.errors import StorageError
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


@pytest.mark.conformance("UL-003", "UL-047")
def test_offsets_are_consecutive_and_every_record_is_read(directory):
    log, _ = open_log(directory)
    stored = fill(log)
    assert [offset for offset, _ in stored] == list(range(90))
    assert values_from(log, 0) == stored
    assert log.log_end_offset == log.high_watermark == 90
    assert bytes(log.read(90, 1000)) == b""


@pytest.mark.conformance("UL-008", "UL-051", "UL-052", "UL-055")
@pytest.mark.parametrize("config", [TopicConfig(), SMALL], ids=["one segment", "many"])
@pytest.mark.parametrize("reopened", [False, True])
def test_reads_start_at_any_offset_with_any_limit(directory, config, reopened):
    log, _ = open_log(directory, config=config)
    stored = fill(log)
    if reopened:
        log.close()
        log, reports = open_log(directory, config=config, recovery_point=90)
        assert reports == []
    for offset in range(90):
        for max_bytes in (0, 1, 200, 500, 100_000):
            data = log.read(offset, max_bytes)
            headers = list(iter_batches(data))
            assert headers[0].base_offset <= offset <= headers[0].last_offset
            assert sum(header.size for header in headers) == len(data)
            assert len(data) <= max_bytes or len(headers) == 1
            following = offset + sum(header.record_count for header in headers)
            assert max_bytes < 100_000 or config is SMALL or following >= 90
        assert values_from(log, offset, 300) == stored[offset:]


@pytest.mark.conformance("UL-045")
def test_segments_roll_and_are_named_by_their_base_offset(directory):
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    names = [path.stem for path in logs(directory)]
    assert len(names) > 3
    assert all(path.stat().st_size <= 1024 for path in logs(directory))
    assert names == [f"{segment.base_offset:020d}" for segment in log.segments]


def test_an_index_entry_has_the_last_offset_of_its_batch(directory):
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    log.close()
    for path in logs(directory):
        data, base = path.read_bytes(), int(path.stem)
        headers = {header.position: header for header in iter_batches(data)}
        entries = list(struct.iter_unpack(">ii", path.with_suffix(".index").read_bytes()))
        assert entries and all(headers[position].last_offset == base + offset for offset, position in entries)
        times = list(struct.iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes()))
        largest = max(headers.values(), key=lambda header: header.max_timestamp)
        assert times[-1] == (largest.max_timestamp, largest.last_offset - base)


@pytest.mark.conformance("UL-069")
@pytest.mark.parametrize("config", [TopicConfig(), SMALL], ids=["one segment", "many"])
def test_lookup_by_timestamp_returns_the_first_record_at_or_after_it(directory, config):
    log, _ = open_log(directory, config=config)
    fill(log)  # batch n has the timestamps 1000 + 10 n, + 1 and + 2
    for timestamp_ms, expected in [(0, (1000, 0)), (1001, (1001, 1)), (1003, (1010, 3)), (1292, (1292, 89))]:
        assert offset_for_timestamp(log, timestamp_ms) == expected
    assert offset_for_timestamp(log, 1293) is None
    assert latest_timestamp(log) == (1292, 89)
    log.delete_records(4)
    assert offset_for_timestamp(log, 0) == (1011, 4)


@pytest.mark.conformance("UL-069")
def test_lookup_by_timestamp_with_descending_timestamps(directory):
    log, _ = open_log(directory, config=SMALL)
    for stamp in (5000, 1000, 3000, 7000, 2000) * 10:
        append(log, batch(b"x" * 50, timestamp_ms=stamp))
    assert offset_for_timestamp(log, 1) == (5000, 0)
    assert offset_for_timestamp(log, 6000) == (7000, 3)
    assert latest_timestamp(log) == (7000, 3)


@pytest.mark.conformance("UL-053", "UL-091", "UL-093")
def test_delete_records_removes_records_and_segments(directory):
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log)
    count = len(logs(directory))
    assert log.delete_records(50) == 50
    assert len(logs(directory)) < count and int(logs(directory)[0].stem) <= 50
    assert values_from(log, 50) == stored[50:]
    with pytest.raises(ValueError, match="outside 50 to 90"):
        log.read(49, 1000)
    log.close()
    log, _ = open_log(directory, config=SMALL, recovery_point=90, log_start=50)
    assert (log.log_start_offset, values_from(log, 50)) == (50, stored[50:])


@pytest.mark.conformance("UL-094", "UL-095", "UL-096", "UL-097")
def test_retention_deletes_old_and_excess_segments(directory):
    log, _ = open_log(directory, config=TopicConfig(segment_bytes=1024, retention_ms=100))
    fill(log)
    assert log.retention_start_offset(1_050) == 0
    limit = log.retention_start_offset(1_300)
    assert 0 < limit < 90
    assert log.retention_start_offset(10_000) == 90  # including the active segment, which the caller rolls
    log.config = TopicConfig(segment_bytes=1024, retention_bytes=2_000, retention_ms=-1)
    limit = log.retention_start_offset(10**15)
    assert sum(s.size for s in log.segments if s.base_offset >= limit) >= 2_000


@pytest.mark.conformance("UL-098")
def test_retention_ignores_compacted_topics(directory):
    log, _ = open_log(directory, config=TopicConfig(segment_bytes=1024, cleanup_policy=("compact",)))
    fill(log)
    assert log.retention_start_offset(10**15) == 0


def test_settings_do_not_create_any_number_of_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "MAX_SEGMENTS", 5)
    monkeypatch.setattr(log_module, "_MIN_BYTES_ABOVE_LIMIT", 3_000)
    log, _ = open_log(tmp_path / "t-0", config=TopicConfig(segment_bytes=1_024, segment_ms=1))
    stored = []
    for number in range(200):
        value = b"%d" % number * 50
        stored.append((append(log, batch(value, timestamp_ms=1_000 * number)), value))
    sizes = [segment.size for segment in log.segments]
    assert max(sizes[:4]) < 1_024 and all(2_500 < size <= 3_000 for size in sizes[4:-1])
    # private: the count that the limit is compared with
    assert log._files.segment_count == len(sizes) < 20 and values_from(log, 0) == stored
    log.delete_records(log.log_end_offset)
    assert log._files.segment_count == 1
    for number in range(4):  # the limit counts the segments that exist
        append(log, batch(b"x", timestamp_ms=10**6 + 1_000 * number))
    assert len(log.segments) == 5


def test_index_entries_of_a_segment_have_a_distance_whatever_the_setting(tmp_path):
    index = SegmentIndex(tmp_path / "0.log", 0, 0)
    for number in range(20_000):
        index.add_batch(100 * number, 100, number, number)
    # private: the number of entries is the memory of the index
    assert 4_096 <= len(index._offsets) < 5_000
    assert index.lookup(3_000).position == 300_000 and 1_990_000 < index.lookup(19_999).position <= 1_999_900


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_completed_segment_keeps_few_index_entries_in_memory(tmp_path, is_reopened):
    config = TopicConfig(segment_bytes=300_000)
    log, _ = open_log(tmp_path / "t-0", config=config)
    stored = []
    while len(log.segments) < 3:
        value = b"%d" % len(stored) * 50
        stored.append((append(log, batch(value, timestamp_ms=1_000 * len(stored))), value))
    if is_reopened:
        log.close()
        log, _ = open_log(tmp_path / "t-0", config=config, recovery_point=log.log_end_offset)
    completed = log.segments[0]
    positions = {completed.index.position_floor(position) for position in range(0, completed.size, 500)}
    assert 300_000 // 25_000 < len(positions) <= 300_000 // 12_000
    assert completed.index.paths[0].stat().st_size > 8 * 2 * len(positions)  # Kafka's files have all of them
    for offset in range(0, len(stored), 97):
        assert values_from(log, offset, 1_000)[:2] == stored[offset : offset + 2]
        assert offset_for_timestamp(log, 1_000 * offset) == (1_000 * offset, offset)


@pytest.mark.conformance("UL-013", "UL-147")
def test_a_segment_rolls_by_segment_ms(tmp_path):
    config = TopicConfig(segment_ms=1_000)
    log, _ = open_log(tmp_path / "t-0", config=config)
    for stamp in (5_000, 5_500, 6_000, 6_001, 6_900, 7_001):
        append(log, batch(b"x", timestamp_ms=stamp))
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    log.close()
    log, _ = open_log(tmp_path / "t-0", config=config, recovery_point=6)
    append(log, batch(b"x", timestamp_ms=7_002))
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    for number, now_ms in enumerate((50_000, 51_000, 51_001), 7):
        assert append(log, batch(b"x", timestamp_ms=-1), now_ms) == number
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]  # its first batch has a timestamp
    log.roll()
    for now_ms in (60_000, 61_000, 61_001):
        append(log, batch(b"x", timestamp_ms=-1), now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 10, 12]
    compacted = TopicConfig(segment_ms=1_000, max_compaction_lag_ms=10, cleanup_policy=("compact",))
    assert (compacted.roll_ms, TopicConfig(max_compaction_lag_ms=10).roll_ms) == (10, 604_800_000)


@pytest.mark.conformance("UL-016", "UL-101", "UL-102", "UL-103", "UL-104")
def test_leader_epochs_follow_the_start_and_the_end_of_the_log(directory):
    log, _ = open_log(directory, config=SMALL)
    for epoch in range(1, 4):
        fill(log, batches=10)
        log.leader_epochs.assign(epoch, log.log_end_offset)
    base = append(log, batch(b"x"))
    (header,) = iter_batches(log.read(base, 1))
    assert header.partition_leader_epoch == 3
    checkpoint = directory / "leader-epoch-checkpoint"
    assert checkpoint.read_text().split("\n")[2:-1] == ["0 0", "1 30", "2 60", "3 90"]
    log.delete_records(40)
    assert checkpoint.read_text().split("\n")[2:-1] == ["1 40", "2 60", "3 90"]
    assert log.leader_epochs.end_offset_for(0, log.log_end_offset) == (0, 40)
    log.delete_records(60)
    assert checkpoint.read_text().split("\n")[2:-1] == ["2 60", "3 90"]
    path = [path for path in logs(directory) if int(path.stem) <= 75][-1]
    position = next(header.position for header in iter_batches(path.read_bytes()) if header.base_offset == 75)
    path.write_bytes(path.read_bytes()[:position])
    log, _ = open_log(directory, config=SMALL, log_start=60)
    assert log.log_end_offset == 75
    assert checkpoint.read_text().split("\n")[2:-1] == ["2 60"]
    # killed between the checkpoint of the log start offset and that of the epochs
    open_log(directory, config=SMALL, log_start=66)
    assert checkpoint.read_text().split("\n")[2:-1] == ["2 66"]


# --- rolling ---


@pytest.mark.conformance("UL-014")
def test_an_empty_segment_is_used_again_by_a_roll(directory):
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log, batches=2)
    interrupted = directory / f"{log.log_end_offset:020d}.log"
    interrupted.touch()  # a roll failed after it had created the file
    log.roll()
    log.roll()
    assert logs(directory) == [directory / f"{0:020d}.log", interrupted]
    assert [segment.path for segment in log.segments] == logs(directory)
    log.delete_records(log.log_end_offset)
    assert logs(directory) == [interrupted], "the active segment remains"
    append(log, batch(b"next"))
    log.close()
    log, reports = open_log(directory, config=SMALL, recovery_point=7, log_start=6)
    assert values_from(log, len(stored)) == [(len(stored), b"next")] and reports == []


def test_an_index_that_was_partly_written_on_a_full_disk_has_no_duplicates(directory):
    with FileOperations(directory.parent, lambda operation: None) as files:
        log, _ = open_log(directory, config=SMALL)
        fill(log, batches=20, size=1)
        indexes = log.segments[-1].index.paths
        for free_bytes in (5, 0, 20):
            files.free_bytes = free_bytes
            with pytest.raises(StorageError, match="No space left"):
                log.segments[-1].index.write()
        files.free_bytes = None
        log.close()
    for path, size in zip(indexes, (8, 12)):
        data = path.read_bytes()
        entries = [data[at : at + size] for at in range(0, len(data), size)]
        assert len(entries) > 2 and entries == sorted(set(entries))
    log, reports = open_log(directory, config=SMALL, recovery_point=20)
    assert reports == [] and len(values_from(log, 0)) == 20


# --- special batches and segments ---


@pytest.mark.conformance("UL-046", "UL-054")
def test_an_empty_log_is_opened_and_an_empty_active_segment_is_closed(directory):
    log, _ = open_log(directory)
    log.close()
    log, reports = open_log(directory, recovery_point=0)
    assert (log.log_start_offset, log.log_end_offset, reports) == (0, 0, [])
    assert bytes(log.read(0, 1000)) == b"" and latest_timestamp(log) is None
    append(log, batch(b"x"))
    log.roll()
    log.close()
    assert log.recovery_point == 1


@pytest.mark.conformance("UL-028", "UL-057", "UL-091")
def test_the_log_end_stays_when_every_record_is_deleted(directory):
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    log.roll()
    for _ in range(2):
        assert log.delete_records(90) == 90 and len(logs(directory)) == 1
    log.close()
    log, _ = open_log(directory, config=SMALL, recovery_point=90, log_start=90)
    assert append(log, batch(b"next")) == 90


@pytest.mark.conformance("UL-056", "UL-076", "UL-080")
def test_null_values_missing_timestamps_and_every_codec_are_stored(directory):
    log, _ = open_log(directory)
    for codec in range(5):
        data = encode_batch([Record(None, None, -1), Record(b"k", b"v" * 500, -1)], codec=codec)
        assert append(log, data) == 2 * codec
    assert values_from(log, 0) == [(number, b"v" * 500 if number % 2 else None) for number in range(10)]
    assert latest_timestamp(log) == (-1, 0)


@pytest.mark.conformance("LL-020", "LL-022")
def test_a_segment_is_rolled_before_its_relative_offsets_overflow(directory):
    log, _ = open_log(directory)
    append(log, batch(b"first"))
    segment = log.segments[0]
    assert segment.fits(100, 2**31 - 1, 1 << 30) and not segment.fits(100, 2**31, 1 << 30)
    segment.next_offset = 2**31
    append(log, batch(b"far"))
    assert [each.base_offset for each in log.segments] == [0, 2**31]


@pytest.mark.conformance("UL-099", "UL-100")
def test_retention_applies_to_topics_with_both_policies(directory):
    both = TopicConfig(segment_bytes=1024, retention_ms=100, cleanup_policy=("compact", "delete"))
    log, _ = open_log(directory, config=both)
    fill(log)
    assert log.retention_start_offset(10_000) == 90 and log.retention_start_offset(1_050) == 0
    log.config = TopicConfig(segment_bytes=1024, cleanup_policy=("compact",))
    assert log.delete_records(50) == 50 and log.segments[0].next_offset > 50
