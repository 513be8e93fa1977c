"""Partition log: append, read, roll, timestamp lookup, recovery."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.partition_logs import append, batch, fill, logs, open_log, values_from
from support.waiting import wait_until

from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.storage.topic_config import TopicConfig

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


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
        assert log.offset_for_timestamp(timestamp_ms) == expected
    assert log.offset_for_timestamp(1293) is None
    assert log.latest_timestamp() == (1292, 89)
    log.delete_records(4)
    assert log.offset_for_timestamp(0) == (1011, 4)


@pytest.mark.conformance("UL-069")
def test_lookup_by_timestamp_with_descending_timestamps(directory):
    log, _ = open_log(directory, config=SMALL)
    for stamp in (5000, 1000, 3000, 7000, 2000) * 10:
        append(log, batch(b"x" * 50, timestamp_ms=stamp))
    assert log.offset_for_timestamp(1) == (5000, 0)
    assert log.offset_for_timestamp(6000) == (7000, 3)
    assert log.latest_timestamp() == (7000, 3)


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


# --- recovery ---


@pytest.mark.conformance("LL-012")
@pytest.mark.parametrize("config", [TopicConfig(), SMALL], ids=["one segment", "many"])
def test_a_log_is_complete_after_an_unclean_shutdown(directory, config):
    log, _ = open_log(directory, config=config)
    stored = fill(log)
    log, reports = open_log(directory, config=config)
    assert (values_from(log, 0), reports) == (stored, [])
    assert append(log, batch(b"next")) == 90


@pytest.mark.conformance("LL-019")
def test_every_incomplete_tail_is_truncated_and_nothing_before_it(directory):
    log, _ = open_log(directory)
    stored = fill(log, batches=3)
    (path,) = logs(directory)
    whole = path.read_bytes()
    last = list(iter_batches(whole))[-1]
    for size in range(last.position, len(whole)):
        path.write_bytes(whole[:size])
        log, reports = open_log(directory)
        assert log.log_end_offset == 6 and values_from(log, 0) == stored[:6]
        assert path.stat().st_size == last.position
        if size > last.position:
            assert "Truncated unflushed bytes" in reports[0]
        assert append(log, batch(b"next")) == 6


def test_zeros_after_the_log_are_an_incomplete_tail(directory):
    log, _ = open_log(directory)
    stored = fill(log, batches=3)
    (path,) = logs(directory)
    with open(path, "ab") as file:
        file.write(bytes(5000))
    log, reports = open_log(directory)
    assert values_from(log, 0) == stored
    assert ": 5000 bytes, log end offset" in reports[0]


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("place", range(0, 80, 1))
def test_a_flipped_bit_is_reported_and_ends_the_readable_log(directory, clean, place):
    """Any byte of the second batch: header, checksum or records."""
    log, _ = open_log(directory, config=TopicConfig(index_interval_bytes=0))
    stored = fill(log, batches=3)
    log.close()
    (path,) = logs(directory)
    before = path.read_bytes()
    second = list(iter_batches(before))[1]
    flip(path, second.position + place, bit=place % 8)
    damaged = path.read_bytes()
    log, reports = open_log(directory, recovery_point=9, is_clean=clean)
    found = []
    if 12 <= place < 16:  # the checksum does not cover the leader epoch
        assert values_from(log, 0) == stored
        return
    with pytest.raises(CorruptRecordError, match="readable up to offset 3"):
        for offset in range(9):
            found += values_from_one(log, offset)
    assert [value for value in found if value not in stored] == []
    assert all(offset < 3 for offset, _ in found)
    assert any("is damaged at byte" in line and "DeleteRecords" in line for line in reports)
    assert path.read_bytes() == damaged  # nothing was truncated
    assert log.log_end_offset == 9
    with pytest.raises(StorageError, match="takes no records"):
        append(log, batch(b"more"))


def values_from_one(log, offset):
    data = log.read(offset, 1)
    return [
        (record.offset, record.value)
        for header in iter_batches(data)
        for record in decode_records(data, header)
        if record.offset == offset
    ]


def test_delete_records_up_to_a_corrupt_range_makes_the_rest_readable(directory):
    log, _ = open_log(directory)
    stored = fill(log, batches=4)
    (path,) = logs(directory)
    second = list(iter_batches(path.read_bytes()))[1]
    flip(path, second.position + 70)
    log, reports = open_log(directory, recovery_point=12)
    assert "DeleteRecords up to offset 6" in reports[0]
    log.delete_records(6)
    assert values_from(log, 6) == stored[6:]
    assert append(log, batch(b"next")) == 12
    assert values_from(log, 6)[-1] == (12, b"next")


def test_a_corrupt_last_batch_below_the_recovery_point_is_not_truncated(directory):
    """It was flushed, so it may have been acknowledged; appends fail until its records are deleted."""
    log, _ = open_log(directory)
    stored = fill(log, batches=3)
    (path,) = logs(directory)
    last = list(iter_batches(path.read_bytes()))[-1]
    flip(path, last.position + 70)
    log, reports = open_log(directory, recovery_point=9, is_clean=False)
    assert values_from_one(log, 5) == [stored[5]]
    with pytest.raises(CorruptRecordError):
        log.read(6, 100)
    assert "DeleteRecords up to offset 9" in reports[0]
    log.delete_records(9)
    assert append(log, batch(b"next")) == 9
    assert values_from(log, 9) == [(9, b"next")]
    log.close()
    log, _ = open_log(directory, recovery_point=10, log_start=9)
    assert values_from(log, 9) == [(9, b"next")]


def test_corruption_in_a_completed_segment_is_found_by_a_read(directory):
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log)
    log.close()
    path = logs(directory)[1]
    second = list(iter_batches(path.read_bytes()))[1]
    flip(path, second.position + 70)
    log, reports = open_log(directory, config=SMALL, recovery_point=90)
    assert reports == []
    found = []
    with pytest.raises(CorruptRecordError):
        while True:
            found += values_from_one(log, len(found))
    assert found == stored[: second.base_offset]
    assert len(reports) == 1 and str(path) in reports[0]
    log.delete_records(second.next_offset)
    assert values_from(log, second.next_offset) == stored[second.next_offset :]


@pytest.mark.conformance("LL-013", "LL-015")
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "overwritten"])
def test_a_bad_index_is_rebuilt(directory, suffix, damage):
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log)
    log.close()
    good = {path: path.read_bytes() for path in directory.glob(f"*{suffix}")}
    for path, data in good.items():
        if damage == "missing":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(data[:-3])
        else:
            path.write_bytes(b"\x7f" * len(data))
    log, reports = open_log(directory, config=SMALL, recovery_point=90)
    assert (values_from(log, 0), reports) == (stored, [])
    assert log.offset_for_timestamp(1201) == (1201, 61)
    log.close()
    assert {path: path.read_bytes() for path in good} == good


def test_a_directory_without_segments_is_reported(directory):
    directory.mkdir()
    with pytest.raises(StorageError, match="has no segment of t-0. Restore"):
        open_log(directory)


def test_a_segment_that_becomes_shorter_is_reported(directory):
    log, _ = open_log(directory)
    fill(log, batches=3)
    logs(directory)[0].write_bytes(b"")
    with pytest.raises(StorageError, match="ends at byte 0"):
        log.read(0, 1000)


def test_missing_segments_are_reported(tmp_path):
    config = TopicConfig(segment_bytes=1024)
    log, _ = open_log(tmp_path / "t-0", config=config)
    stored = fill(log)
    log.close()
    first, second, third, *_ = logs(tmp_path / "t-0")
    first.unlink()
    log, reports = open_log(tmp_path / "t-0", config=config, recovery_point=90)
    assert f"begins at offset {int(second.stem)}, but the log start offset is 0" in reports[0]
    assert values_from(log, int(second.stem)) == stored[int(second.stem) :]
    log.close()
    third.unlink()
    log, reports = open_log(tmp_path / "t-0", config=config, recovery_point=90)
    with pytest.raises(CorruptRecordError, match=f"readable up to offset {int(third.stem)}"):
        values_from(log, int(second.stem))


def test_a_segment_shorter_than_at_a_clean_shutdown_is_corrupt(tmp_path):
    log, _ = open_log(tmp_path / "t-0")
    fill(log, batches=3)
    log.close()
    (path,) = logs(tmp_path / "t-0")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])  # a third is one batch
    log, reports = open_log(tmp_path / "t-0", recovery_point=9)
    assert "ends before what was flushed" in reports[0]
    with pytest.raises(StorageError, match="takes no records"):
        append(log, batch(b"x"))
    with pytest.raises(CorruptRecordError, match="readable up to offset 3"):
        values_from(log, 0)
    assert log.log_end_offset == 9
    log.delete_records(9)
    assert append(log, batch(b"x")) == 9


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
    compacted = TopicConfig(segment_ms=1_000, max_compaction_lag_ms=10, cleanup_policy=("compact",))
    assert (compacted.roll_ms, TopicConfig(max_compaction_lag_ms=10).roll_ms) == (10, 604_800_000)


# --- recovery points ---


@pytest.mark.conformance("LL-019")
def test_damage_from_the_recovery_point_on_is_truncated_with_everything_after_it(directory):
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log)
    log.close()
    paths = logs(directory)
    second = list(iter_batches(paths[1].read_bytes()))[1]
    flip(paths[1], second.position + 70)
    log, reports = open_log(directory, config=SMALL, recovery_point=second.base_offset, is_clean=False)
    assert log.log_end_offset == second.base_offset and values_from(log, 0) == stored[: second.base_offset]
    assert "Truncated unflushed bytes" in reports[0] and "Deleted segments from offset" in reports[1]
    assert [path.name for path in logs(directory)] == [path.name for path in paths[:2]]
    assert append(log, batch(b"next")) == second.base_offset
    assert values_from(log, second.base_offset) == [(second.base_offset, b"next")]


def test_a_missing_end_of_an_unflushed_segment_truncates_the_log(directory):
    """A power loss can leave a later segment of a log whose earlier one ends with a whole batch."""
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log)
    log.close()
    first = logs(directory)[0]
    *_, last = iter_batches(first.read_bytes())
    first.write_bytes(first.read_bytes()[: last.position])
    log, reports = open_log(directory, config=SMALL)
    assert values_from(log, 0) == stored[: last.base_offset] and log.log_end_offset == last.base_offset
    assert len(logs(directory)) == 1 and "Deleted segments" in reports[0]


@pytest.mark.conformance("LL-012", "LL-033")
def test_only_segments_from_the_recovery_point_on_are_recovered(directory):
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    log.close()
    for path in logs(directory):
        flip(path, 70)
    active = log.segments[-1].base_offset
    log, reports = open_log(directory, config=SMALL, recovery_point=active, is_clean=False)
    assert log.first_recovered_offset == log.log_end_offset == active and len(reports) == 1


@pytest.mark.conformance("LL-037")
def test_an_empty_active_segment_is_recovered(directory):
    log, _ = open_log(directory)
    stored = fill(log)
    log.roll()
    for index in directory.glob("*.index"):
        index.unlink()
    log, reports = open_log(directory)
    assert (values_from(log, 0), reports, len(log.segments)) == (stored, [], 2)
    assert append(log, batch(b"next")) == 90


@pytest.mark.conformance("LL-035")
def test_a_log_that_ends_below_its_start_is_emptied(directory):
    """The log start offset was stored, and the records below it were never flushed."""
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    log, reports = open_log(directory, config=SMALL, log_start=200)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (200, 200, 1)
    assert "Deleted every segment" in reports[-1]
    assert append(log, batch(b"next")) == 200 and values_from(log, 200) == [(200, b"next")]


@pytest.mark.conformance("LL-016")
def test_indexes_without_a_segment_are_removed(directory):
    log, _ = open_log(directory)
    stored = fill(log)
    log.close()
    for suffix in ("index", "timeindex", "txnindex"):
        (directory / f"{5:020d}.{suffix}").write_bytes(bytes(34))
    log, _ = open_log(directory, recovery_point=90)
    assert values_from(log, 0) == stored and not list(directory.glob(f"{5:020d}.*"))


@pytest.mark.conformance("UL-137")
def test_the_recovery_point_follows_flushes_and_stays_after_a_failed_one(directory, monkeypatch):
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    wait_until(lambda: log.recovery_point == log.segments[-1].base_offset, "completed segments are flushed")
    log.config = TopicConfig(flush_messages=1)
    append(log, batch(b"x"))
    assert log.recovery_point < 91
    log.flush_if_due()
    assert log.recovery_point == 91
    log.config = TopicConfig()
    append(log, batch(b"x"))

    def fail(paths):
        raise StorageError("a bad disk")

    monkeypatch.setattr("spark_groupsource.storage.log.sync_files", fail)
    log.roll()
    append(log, batch(b"x"))
    with pytest.raises(StorageError, match="a bad disk"):
        log.close()
    assert (log.recovery_point, log.log_end_offset) == (91, 93)


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


# --- special batches and segments ---


@pytest.mark.conformance("UL-046", "UL-054")
def test_an_empty_log_is_opened_and_an_empty_active_segment_is_closed(directory):
    log, _ = open_log(directory)
    log.close()
    log, reports = open_log(directory, recovery_point=0)
    assert (log.log_start_offset, log.log_end_offset, reports) == (0, 0, [])
    assert bytes(log.read(0, 1000)) == b"" and log.latest_timestamp() is None
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
    assert log.latest_timestamp() is None


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
