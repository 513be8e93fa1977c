"""Partition log: recovery, corrupt ranges, recovery points."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from support.file_operations import FileOperations
from support.partition_logs import SMALL, append, batch, fill, logs, offset_for_timestamp, open_log, values_from
from support.power_loss import Operation
from support.waiting import wait_until

from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.broker.storage.transaction_index import TransactionIndex
from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


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


def test_a_truncated_tail_is_flushed_before_it_is_overwritten(directory):
    """Otherwise a second power loss could restore the truncated bytes after records of the same offsets."""
    log, _ = open_log(directory)
    fill(log, batches=3)
    (path,) = logs(directory)
    os.truncate(path, path.stat().st_size - 1)
    operations: list[Operation] = []
    with FileOperations(directory, operations.append):
        open_log(directory)
    opened = {operation[1]: operation[2] for operation in operations if operation[0] == "open"}
    found = [kind for kind, number, *_ in operations if kind != "open" and opened.get(number) == path.name]
    assert found == ["truncate", "flush"]


def test_zeros_after_the_log_are_an_incomplete_tail(directory):
    log, _ = open_log(directory)
    stored = fill(log, batches=3)
    (path,) = logs(directory)
    with open(path, "ab") as file:
        file.write(bytes(5000))
    log, reports = open_log(directory)
    assert values_from(log, 0) == stored
    assert ": 5000 bytes, log end offset" in reports[0]


@pytest.mark.parametrize("first", [None, 0, 2])
def test_batches_of_producers_are_searched_from_the_first_one_on(directory, monkeypatch, first):
    """Recovery has read all of them before."""
    log, _ = open_log(directory)
    starts = []
    for number in range(4):
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if number == first else {}
        starts.append(log.size_bytes)
        append(log, batch(b"v" * 100, **options))
    log, _ = open_log(directory)
    positions = []

    def recorded(descriptor, size, position, pread=os.pread):
        positions.append(position)
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", recorded)
    found = [] if first is None else [first]
    assert [stored.header.base_offset for stored in log.batches(0, of_producers=True)] == found
    assert positions == [starts[number] for number in found]
    append(log, batch(b"later", producer_id=8, producer_epoch=0, base_sequence=0))
    assert [stored.header.base_offset for stored in log.batches(0, of_producers=True)] == [*found, 4]


def test_batches_of_producers_after_a_corrupt_range_are_found(directory):
    log, _ = open_log(directory)
    append(log, batch(b"0"))
    damaged_at = log.size_bytes
    for value, producer_id in ((b"1", -1), (b"2", -1), (b"3", 7)):
        append(log, batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=0))
    (path,) = logs(directory)
    flip(path, damaged_at + 65)
    log, _ = open_log(directory, recovery_point=4, is_clean=False)
    log.delete_records(2)
    assert [stored.header.base_offset for stored in log.batches(2, of_producers=True)] == [3]


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


@pytest.mark.parametrize(("byte", "bit"), [(4, 7), (3, 0), (1, 6)])
@pytest.mark.parametrize("recovery_point", [0, 9])
def test_an_offset_that_the_indexes_cannot_store_is_invalid(directory, byte, bit, recovery_point):
    """No checksum covers the base offset, and a compacted log has gaps."""
    config = TopicConfig(cleanup_policy=("compact",), index_interval_bytes=0)
    log, _ = open_log(directory, config=config)
    stored = fill(log, batches=3)
    (path,) = logs(directory)
    second = list(iter_batches(path.read_bytes()))[1]
    flip(path, second.position + byte, bit=bit)
    log, reports = open_log(directory, config=config, recovery_point=recovery_point, is_clean=False)
    assert "a batch has base offset" in reports[0]
    assert log.log_end_offset == (9 if recovery_point else 3)
    if recovery_point:
        with pytest.raises(CorruptRecordError, match="readable up to offset 3"):
            values_from(log, 0)
    else:
        assert values_from(log, 0) == stored[:3]


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
    assert offset_for_timestamp(log, 1201) == (1201, 61)
    log.close()
    assert {path: path.read_bytes() for path in good} == good


def test_a_directory_without_flushed_segments_is_reported(directory):
    directory.mkdir()
    with pytest.raises(StorageError, match="has no segment of t-0. Restore"):
        open_log(directory, recovery_point=1)
    log, _ = open_log(directory)  # nothing of it was flushed
    assert (log.log_start_offset, log.log_end_offset, log.has_files) == (0, 0, False)
    assert append(log, batch(b"x")) == 0 and values_from(log, 0) == [(0, b"x")]


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
    assert "ends before the flushed offset" in reports[0]
    with pytest.raises(StorageError, match="takes no records"):
        append(log, batch(b"x"))
    with pytest.raises(CorruptRecordError, match="readable up to offset 3"):
        values_from(log, 0)
    assert log.log_end_offset == 9
    log.delete_records(9)
    assert append(log, batch(b"x")) == 9


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


@pytest.mark.parametrize("log_start", (90, 60))
def test_only_records_above_the_log_start_are_missed(directory, log_start):
    """A power loss kept the removal of newer segments, but neither that of the first one nor the new active one."""
    log, _ = open_log(directory, config=SMALL)
    fill(log)
    log.close()
    for path in logs(directory)[1:]:
        path.unlink()
    log, reports = open_log(directory, config=SMALL, recovery_point=90, is_clean=False, log_start=log_start)
    assert (log.log_start_offset, log.log_end_offset) == (log_start, 90)
    assert [line for line in reports if "damaged" in line] == ([] if log_start == 90 else reports)
    if log_start == 90:
        assert "Deleted every segment" in reports[-1]
        assert append(log, batch(b"next")) == 90
    else:
        with pytest.raises(StorageError, match="delete records up to offset 90"):
            append(log, batch(b"next"))


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

    monkeypatch.setattr("spark_groupsource.broker.storage.log.sync_files", fail)
    log.roll()
    append(log, batch(b"x"))
    with pytest.raises(StorageError, match="a bad disk"):
        log.close()
    assert (log.recovery_point, log.log_end_offset) == (91, 93)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_directory_that_disappears_before_its_flush_is_reported_unless_it_is_deleted(directory, is_deleted):
    log, reports = open_log(directory, config=SMALL)
    flushes = []
    # private: flushes that run when the test does
    log._files.run_in_background = lambda flush: flushes.append(flush) or Future()
    fill(log)
    if is_deleted:
        log.close_files()
    directory.rename(directory.with_name("renamed"))
    if is_deleted:
        flushes[0]()
        assert reports == []
    else:
        with pytest.raises(StorageError):
            flushes[0]()
        assert "A completed segment was not flushed: " in reports[-1]


def test_files_with_other_names_are_ignored(directory):
    log, _ = open_log(directory, config=SMALL)
    stored = fill(log)
    log.close()
    for name in ("x.log", "x.txnindex", "1x.txnindex", "x.swap", "0.log.swap", "x.snapshot", "-1.log", "x.index"):
        (directory / name).write_bytes(b"x")
    log, reports = open_log(directory, config=SMALL)
    assert values_from(log, 0) == stored and reports == []
    index = TransactionIndex(str(directory))
    index.load(10**9)
    assert len(index) == 0
