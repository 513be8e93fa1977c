"""Compaction of transactions: aborted records, markers, the transaction index."""

from __future__ import annotations

import random

import pytest
from support.compacted_logs import Store
from support.examples import scaled

from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import control_key


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


@pytest.mark.conformance("LC-013")
def test_the_last_batch_of_a_pass_is_kept_without_records_if_it_is_a_marker(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    store.append((b"b", b"1"))
    transactions.send(1, (b"a", b"1"))
    store.append((b"a", b"2"))
    transactions.end(1, True)
    store.log.roll()
    transactions.send(1, (b"c", b"active"))
    transactions.end(1, True)
    shapes = []
    for now in (2_000, 2_001, 9_000, 9_001):
        store.data.set_cleaner_offset(store.log.topic_partition, 0)
        assert store.clean(now)
        shapes.append(shape(store)[:-2])
    # the record is superseded, then the marker has no batch of its transaction, then its delete horizon is reached
    kept = [(0, "data"), (2, "data")]
    assert shapes == [[*kept, (3, "marker")]] * 2 + [[*kept, (3, "(marker)")]] * 2
    assert [offset for offset, _, _ in store.contents() if offset < 4] == [0, 2]


@pytest.mark.conformance("LC-014")
def test_a_committed_transaction_over_two_segments_is_kept(tmp_path):
    store = Store(tmp_path)
    transactions = Transactions(store)
    transactions.send(1, (b"a", b"1"))
    store.log.roll()
    transactions.end(1, True)
    store.log.roll()
    for now in (2_000, 9_000):
        store.data.set_cleaner_offset(store.log.topic_partition, 0)
        assert store.clean(now)
        assert shape(store) == [(0, "data"), (1, "marker")]
        assert visible(store) == {b"a": b"1"}


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


@pytest.mark.parametrize("seed", range(scaled(8, 1)))
@pytest.mark.slow
def test_read_committed_result_is_unchanged_by_passes_and_restarts(tmp_path, seed):
    rng = random.Random(seed)
    store = Store(tmp_path)
    transactions = Transactions(store)
    running: set[int] = set()
    for round_number in range(6):
        for number in range(scaled(60, 30)):
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
