"""Compaction: retained and removed records, transactions, crashes in every step."""

from __future__ import annotations

import random
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import pytest
from support.examples import scaled
from support.partition_logs import append, open_log, values_from

from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, control_key, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.storage import log as log_module
from spark_groupsource.storage.cleaner import Cleaner, OffsetMap, group_segments_by_size, log_to_clean
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.files import FileCache
from spark_groupsource.storage.log import PartitionLog
from spark_groupsource.storage.partition import Partition
from spark_groupsource.storage.segment import InvalidBatchError
from spark_groupsource.storage.segment_swap import CleanedSegment, replacement_steps
from spark_groupsource.storage.topic_config import TopicConfig

COMPACT = TopicConfig(
    segment_bytes=1024, index_interval_bytes=100, cleanup_policy=("compact",), delete_retention_ms=1000
)


class Store:
    """One partition of a compacted topic with its data directory."""

    def __init__(self, path: Path, config: TopicConfig = COMPACT) -> None:
        self.path, self.config = path, config
        self.data = DataDirectory(path)
        self.data.open(1)
        self.open()

    def open(self, recovery_point: int | None = None, is_clean: bool = True) -> None:
        self.log, self.reports = open_log(
            self.path / "t-0", config=self.config, recovery_point=recovery_point, is_clean=is_clean
        )
        self.partition = Partition(uuid.UUID(int=1), self.log, self.reports.append)
        self.partition._load_producers()

    def restart(self, clean: bool, is_flushed: bool = False) -> None:
        """An unclean restart recovers everything, or only the active segment with `is_flushed`."""
        end = self.log.log_end_offset if clean else self.log.segments[-1].base_offset if is_flushed else 0
        if clean:
            self.partition.close()
        self.data.close(is_clean=False)
        self.data = DataDirectory(self.path)
        self.data.open(1)
        self.open(end, clean)

    def append(self, *records: tuple[bytes, bytes | None], timestamp_ms: int = 1_000, **options) -> int:
        batch = encode_batch([Record(key, value, timestamp_ms) for key, value in records], **options)
        return self.partition.append(batch, timestamp_ms).base_offset

    def clean(self, timestamp_ms: int = 2_000, **options) -> bool:
        cleaned = self.data.cleaner_offsets.get(self.log.topic_partition, 0)
        task = log_to_clean(self.log, cleaned, timestamp_ms, self.partition.last_stable_offset)
        if task is None:
            return False
        for _ in Cleaner(self.partition, task, self.data, FileCache(), timestamp_ms, **options).run():
            pass
        return True

    def contents(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return keyed(self.log, self.log.log_start_offset)


def keyed(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes)
        assert data, f"nothing at {offset} of {log.log_end_offset}"
        for header in iter_batches(data):
            found += [(r.offset, r.key, r.value) for r in decode_records(data, header) if r.offset >= offset]
            assert header.next_offset > offset
            offset = header.next_offset
    return found


def compacted(records, active_base: int):
    """The records that a pass retains: the last one of each key, and all of the active segment."""
    latest = {key: offset for offset, key, _ in records if offset < active_base}
    return [each for each in records if each[0] >= active_base or latest[each[1]] == each[0]]


def fill(store: Store, seed: int, batches: int = 80, keys: int = 12, tombstones: bool = True, **options):
    rng = random.Random(seed)
    written = []
    for number in range(batches):
        records = [
            (b"key %d" % rng.randrange(keys), None if tombstones and rng.random() < 0.2 else b"value %d" % number)
            for _ in range(rng.randrange(1, 6))
        ]
        base = store.append(*records, timestamp_ms=1_000 + number, codec=rng.randrange(5), **options)
        written += [(base + item, key, value) for item, (key, value) in enumerate(records)]
    return written


@pytest.mark.conformance("LC-003", "LC-039")
@pytest.mark.parametrize("seed", range(scaled(8)))
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
            found = store.log.offset_for_timestamp(stamp)
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
def test_producer_state_survives_compaction_of_its_records(tmp_path):
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


@pytest.mark.conformance("LC-013", "LC-034")
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
        log = PartitionLog(tmp_path / "t-0", store.log.topic_partition, store.config, files, store.reports.append,
                           has_gaps=True)  # fmt: skip
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
def test_segments_are_grouped_by_size_and_offset_range(tmp_path):
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


# --- transactions ---


class Transactions:
    """Transactional producers of a store, with their sequence numbers."""

    def __init__(self, store: Store) -> None:
        self.store, self.sequences = store, {}

    def send(self, producer_id: int, *records: tuple[bytes, bytes | None]) -> int:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(records)
        return self.store.append(
            *records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )

    def end(self, producer_id: int, committed: bool) -> int:
        return self.store.partition.append_transaction_marker(producer_id, 0, committed, 0, 1_000).base_offset


def shape(store: Store) -> list[tuple[int, str]]:
    """(base offset, kind) of each batch; the kind of an empty batch is in brackets."""
    found = []
    for stored in store.log.batches(0):
        header = stored.header
        kind = "marker" if header.is_control else "data"
        found.append((header.base_offset, kind if header.record_count else f"({kind})"))
    return found


def visible(store: Store) -> dict[bytes, bytes | None]:
    """Key -> value for a read_committed consumer, by the transaction index."""
    end = store.log.log_end_offset
    aborted = sorted(store.partition.transaction_index.overlapping(0, end), key=lambda row: row.first_offset)
    running: set[int] = set()
    found: dict[bytes, bytes | None] = {}
    for stored in store.log.batches(0):
        header = stored.header
        while aborted and aborted[0].first_offset <= header.last_offset:
            running.add(aborted.pop(0).producer_id)
        if header.is_control:
            running.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in running):
            found.update((record.key, record.value) for record in decode_records(stored.buffer, header))
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.conformance("LC-008")
def test_committed_records_supersede_and_aborted_records_are_removed(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    store.append((b"a", b"old"), (b"b", b"stays"))
    transactions.send(1, (b"a", b"new"))
    transactions.send(2, (b"b", b"aborted"))
    transactions.end(1, True)
    transactions.end(2, False)
    transactions.send(2, (b"c", b"later"))
    transactions.end(2, True)
    store.log.roll()
    store.append((b"d", b"active"))
    before = visible(store)
    assert before == {b"a": b"new", b"b": b"stays", b"c": b"later", b"d": b"active"}

    assert store.clean()

    # the aborted batch is removed; its marker and its index row are removed by the next pass, which does not see it
    assert shape(store) == [
        (0, "data"), (2, "data"), (4, "marker"), (5, "marker"), (6, "data"), (7, "marker"), (8, "data")
    ]  # fmt: skip
    assert [value for _, key, value in store.contents() if key in (b"a", b"b")] == [b"stays", b"new"]
    assert visible(store) == before and len(store.partition.transaction_index) == 1
    for clean in (True, False):
        store.restart(clean)
        assert visible(store) == before and store.partition.last_stable_offset == store.log.log_end_offset


@pytest.mark.conformance("LC-007", "LC-010", "LC-012", "LC-016")
def test_markers_are_removed_after_their_transaction_and_delete_retention(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    for committed in (True, False):
        transactions.send(1, (b"a", b"1"))
        transactions.end(1, committed)
    store.append((b"a", b"plain"))
    transactions.send(1, (b"last", b"of its producer"))
    transactions.end(1, True)
    store.log.roll()
    store.append((b"x", b"1"))
    store.log.roll()
    store.append((b"y", b"1"))
    assert store.clean(2_000)
    assert [offset for offset, kind in shape(store)] == [1, 3, 4, 5, 6, 7, 8]
    for now, left in ((2_500, [1, 3, 4, 5, 6, 7]), (9_000, [4, 5, 6, 7])):
        # a new segment makes the log dirty
        store.append((b"y", b"%d" % now))
        store.log.roll()
        store.append((b"z", b"1"))
        assert store.clean(now)
        assert [offset for offset, _ in shape(store)][: len(left)] == left
    assert visible(store)[b"a"] == b"plain" and visible(store)[b"last"] == b"of its producer"


def test_the_last_marker_of_a_producer_is_retained_if_it_has_no_batch_of_its_epoch(tmp_path):
    """The marker has the last producer epoch, which fences the producer's earlier epochs."""
    store = Store(tmp_path)
    transactions = Transactions(store)
    transactions.send(1, (b"a", b"aborted"))
    store.partition.append_transaction_marker(1, 3, False, 0, 1_000)  # the coordinator has raised the epoch
    store.append((b"b", b"later"))
    for now in (2_000, 9_000, 20_000):
        store.log.roll()
        store.append((b"c", b"%d" % now))
        assert store.clean(now)
    assert shape(store)[:2] == [(1, "marker"), (2, "data")]
    for clean in (True, False):
        store.restart(clean)
        assert store.partition.producers()[1].epoch == 3
        with pytest.raises(ApiError) as fenced:
            transactions.send(1, (b"a", b"zombie"))
        assert fenced.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    store.partition.remove_expired_producers(100_000)
    store.log.roll()
    store.append((b"c", b"last"))
    assert store.clean(30_000)
    assert shape(store)[0] == (2, "data"), "the producer is no longer active"


@pytest.mark.conformance("LC-018", "LC-026")
def test_the_last_batch_of_a_producer_is_retained_if_its_transaction_was_aborted(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    transactions.send(1, (b"a", b"1"))
    transactions.end(1, False)
    transactions.send(1, (b"a", b"2"))
    transactions.end(1, False)
    for now in (2_000, 9_000, 20_000):
        store.log.roll()
        store.append((b"c", b"%d" % now))
        assert store.clean(now)
    assert shape(store)[:2] == [(2, "(data)"), (3, "marker")]
    store.restart(False)
    assert transactions.send(1, (b"a", b"3")) == 7, "the sequence number continues"


@pytest.mark.conformance("LC-017")
def test_batches_of_earlier_epochs_are_removed_if_sequence_numbers_start_again(tmp_path):
    """The group coordinator sends each transactional batch with sequence number 0."""
    store = Store(tmp_path)
    for number in range(3):
        store.append((b"k", b"%d" % number), producer_id=1, producer_epoch=number, base_sequence=0, transactional=True)
        store.partition.append_transaction_marker(1, number, True, 0, 1_000)
    for now in (2_000, 9_000, 20_000):
        store.log.roll()
        store.append((b"c", b"%d" % now))
        assert store.clean(now)
    assert shape(store)[:2] == [(4, "data"), (5, "marker")]


@pytest.mark.conformance("LC-027")
def test_a_marker_does_not_supersede_a_record_with_the_same_key(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    for kind in (0, 1):
        store.append((control_key(kind), b"%d" % kind))
        transactions.send(1, (b"a", b"%d" % kind))
        transactions.end(1, bool(kind))
    store.log.roll()
    store.append((b"b", b"active"))
    assert store.clean()
    assert visible(store) == {control_key(0): b"0", control_key(1): b"1", b"a": b"1", b"b": b"active"}


@pytest.mark.conformance("LC-009")
def test_compaction_ends_at_the_first_open_transaction(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    store.append((b"a", b"1"))
    store.append((b"a", b"2"))
    store.log.roll()
    transactions.send(1, (b"b", b"open"))
    store.append((b"b", b"1"))
    store.append((b"b", b"2"))
    store.log.roll()
    store.append((b"b", b"3"))
    assert store.clean()
    assert [offset for offset, _ in shape(store)] == [1, 2, 3, 4, 5]
    assert not store.clean(), "the log is not dirty"
    transactions.end(1, True)
    assert store.clean()
    assert [offset for offset, _ in shape(store)] == [1, 2, 4, 5, 6]
    assert visible(store) == {b"a": b"2", b"b": b"3"}


@pytest.mark.conformance("LC-015")
def test_transaction_index_is_compacted_with_its_segment(tmp_path):
    """An aborted transaction over two segments, of which the later one is not compacted yet."""
    store = Store(tmp_path)
    transactions = Transactions(store)
    transactions.send(1, (b"a", b"aborted"))
    transactions.send(2, (b"b", b"aborted"))
    transactions.end(2, False)
    store.append((b"c", b"1"))
    store.log.roll()
    transactions.send(1, (b"a", b"aborted too"))
    transactions.end(1, False)
    before = visible(store)
    assert store.partition.last_stable_offset == store.log.log_end_offset
    assert store.clean()
    assert visible(store) == before == {b"c": b"1"}
    assert [row.producer_id for row in store.partition.transaction_index.overlapping(0, 100)] == [2, 1]
    for clean in (True, False):
        known = store.partition.transaction_index.overlapping(0, 100)
        store.restart(clean, is_flushed=True)
        assert store.partition.transaction_index.overlapping(0, 100) == known and visible(store) == before


@pytest.mark.conformance("LC-014")
@pytest.mark.parametrize("seed", range(scaled(4)))
def test_read_committed_result_is_unchanged_by_passes_and_restarts(tmp_path, seed):
    rng = random.Random(seed)
    store = Store(tmp_path)
    transactions = Transactions(store)
    running: set[int] = set()
    for round_number in range(6):
        for number in range(60):
            producer_id = rng.randrange(1, 5)
            key = b"key %d" % rng.randrange(12)
            value = None if rng.random() < 0.2 else b"%d %d" % (round_number, number)
            if rng.random() < 0.3:
                store.append((key, value))
            elif producer_id in running and rng.random() < 0.4:
                transactions.end(producer_id, rng.random() < 0.5)
                running.discard(producer_id)
            else:
                transactions.send(producer_id, (key, value))
                running.add(producer_id)
        if rng.random() < 0.7:
            for producer_id in sorted(running):
                transactions.end(producer_id, rng.random() < 0.5)
            running.clear()
        before, stable = visible(store), store.partition.last_stable_offset
        store.clean(2_000 + round_number * rng.choice((10, 3_000)))
        assert visible(store) == before
        store.restart(rng.random() < 0.5, is_flushed=rng.random() < 0.5)
        assert visible(store) == before and store.partition.last_stable_offset == stable


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
            log, reports = open_log(again, config=COMPACT, recovery_point=recovery_point)
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


@pytest.mark.conformance("LC-033")
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
