"""Producer state: sequence numbers, producer epochs, expiration, snapshots."""

from __future__ import annotations

import pytest
from support.partition_logs import batch

from spark_groupsource.broker.storage import producer_state
from spark_groupsource.broker.storage.producer_state import ProducerBatchError, ProducerCount, ProducerStateManager
from spark_groupsource.errors import CorruptRecordError, ErrorCode
from spark_groupsource.records.header import iter_batches


def numbered(sequence: int, *, epoch: int = 0, count: int = 2, producer_id: int = 7):
    values = [b"x"] * count
    data = batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return next(iter_batches(data))


def stored(*headers) -> ProducerStateManager:
    states, offset = ProducerStateManager(), 0
    for header in headers:
        assert states.check(header) is None
        states.update(header, offset)
        offset += header.record_count
    return states


def refused(states, header) -> ErrorCode:
    with pytest.raises(ProducerBatchError) as caught:
        states.check(header)
    return caught.value.code


@pytest.mark.conformance("PS-001")
def test_batches_with_consecutive_sequence_numbers_are_accepted():
    states = stored(numbered(0), numbered(2), numbered(4))
    assert states.check(numbered(6)) is None
    assert refused(states, numbered(7)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.conformance("UL-038")
def test_the_last_five_batches_are_duplicates_and_older_ones_out_of_order():
    states = stored(*(numbered(2 * number) for number in range(6)))
    for number in range(1, 6):
        assert states.check(numbered(2 * number)).base_offset == 2 * number
    assert refused(states, numbered(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, numbered(10, count=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.conformance("UL-136")
def test_an_unknown_producer_may_start_at_any_sequence_number():
    assert ProducerStateManager().check(numbered(500)) is None


@pytest.mark.conformance("PS-033", "PS-035", "UL-037")
def test_inactive_producers_without_open_transaction_expire():
    values = {"producer_epoch": 0, "base_sequence": 0}
    old = next(iter_batches(batch(b"x", producer_id=1, timestamp_ms=1_000, **values)))
    new = next(iter_batches(batch(b"x", producer_id=2, timestamp_ms=1_001, **values)))
    begun = next(iter_batches(batch(b"x", producer_id=3, timestamp_ms=1_000, transactional=True, **values)))
    states = stored(old, new, begun)
    states.remove_expired(999)
    assert set(states.entries()) == {1, 2, 3}
    states.remove_expired(1_000)
    assert set(states.entries()) == {2, 3} and states.first_unstable_offset() == 2
    states.complete_transaction(3, 0, 0, 1_500)
    states.remove_expired(1_500)
    assert len(states) == 0
    assert states.check(old) is None  # the producer is unknown now


@pytest.mark.conformance("PS-001")
def test_a_new_producer_epoch_starts_at_sequence_0_and_fences_the_old_one():
    states = stored(numbered(0), numbered(2))
    assert refused(states, numbered(4, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(numbered(0, epoch=1)) is None
    states.update(numbered(0, epoch=1), 4)
    assert refused(states, numbered(4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check(numbered(2, epoch=1)) is None


@pytest.mark.conformance("PS-003", "PS-004")
def test_sequence_numbers_wrap_to_0():
    last = 2**31 - 1
    states = stored(numbered(last - 1), numbered(0))
    assert states.check(numbered(last - 1)).base_offset == 0
    states = stored(numbered(last, count=3))
    assert states.check(numbered(2)) is None
    assert states.check(numbered(last, count=3)).base_offset == 0
    assert states.encode() == ProducerStateManager.decode(states.encode()).encode()


def test_batches_without_producer_id_have_no_state():
    states = ProducerStateManager()
    states.update(next(iter_batches(batch(b"x"))), 0)
    assert len(states) == 0


@pytest.mark.conformance("PS-031", "PS-054")
def test_a_snapshot_retains_the_batches_of_each_producer():
    states = stored(numbered(0), numbered(2), numbered(0, producer_id=8, epoch=3))
    again = ProducerStateManager.decode(states.encode())
    assert again.check(numbered(2)).base_offset == 2
    assert again.check(numbered(4)) is None
    assert again.check(numbered(0, producer_id=8, epoch=3)).base_offset == 4
    assert refused(again, numbered(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_snapshot_keeps_the_time_of_the_last_marker_from_which_a_producer_expires():
    begun = batch(b"x", producer_id=3, producer_epoch=0, base_sequence=0, timestamp_ms=1_000, transactional=True)
    states = stored(next(iter_batches(begun)))
    states.complete_transaction(3, 0, 0, 5_000)
    again = ProducerStateManager.decode(states.encode())
    again.remove_expired(4_999)
    assert again.entries()[3].coordinator_epoch == 0
    again.remove_expired(5_000)
    assert not again.entries()


def test_a_snapshot_with_any_corrupt_byte_is_rejected():
    data = stored(numbered(0)).encode()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 4
        with pytest.raises(CorruptRecordError):
            ProducerStateManager.decode(bytes(changed))
        with pytest.raises(CorruptRecordError):
            ProducerStateManager.decode(data[:position])


@pytest.mark.conformance("PS-005")
def test_a_sequence_that_does_not_wrap_to_0_is_out_of_order():
    states = stored(numbered(2**31 - 1, count=1))
    assert refused(states, numbered(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, numbered(2**31 - 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.conformance("PS-006")
def test_replay_of_the_log_accepts_any_first_sequence():
    states = ProducerStateManager()
    states.update(numbered(16), 100)
    assert states.check(numbered(18)) is None
    assert refused(states, numbered(20)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.conformance("PS-013")
def test_a_check_does_not_change_the_state():
    states = stored(numbered(0))
    before = states.encode()
    assert states.check(numbered(2)) is None and states.check(numbered(0, epoch=3)) is None
    assert states.check(numbered(0)) is not None and refused(states, numbered(9))
    assert states.encode() == before


@pytest.mark.conformance("PS-014", "PS-023")
def test_a_transaction_keeps_its_first_offset_until_its_marker():
    def begun(sequence):
        values = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        return next(iter_batches(batch(b"x", b"y", **values)))

    states = stored(begun(0), begun(2))
    entry = states.entries()[7]
    assert (entry.first_offset, entry.batches[-1].last_sequence, entry.batches[-1].last_offset) == (0, 3, 3)
    assert states.complete_transaction(7, 0, 5, 1_000) == 0
    assert (entry.first_offset, entry.coordinator_epoch, len(entry.batches)) == (None, 5, 2)
    states.update(begun(4), 5)
    # the coordinator fences the producer
    assert states.complete_transaction(7, 1, 6, 1_000) == 5
    assert (entry.epoch, entry.first_offset, len(entry.batches), states.first_unstable_offset()) == (1, None, 0, None)


def _of_producer(number: int, transactional: bool = False):
    return next(iter_batches(batch(b"x", producer_id=number, base_sequence=0, producer_epoch=0, timestamp_ms=1,
                                   transactional=transactional)))  # fmt: skip


def test_a_new_producer_replaces_the_one_that_has_not_written_for_the_longest_time(monkeypatch):
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 4)
    count = ProducerCount()
    states = ProducerStateManager(count)
    states.update(_of_producer(1, transactional=True), 0)
    for offset, number in enumerate((2, 3, 4, 2, 5, 6), 1):
        states.update(_of_producer(number), offset)
    assert (list(states.entries()), count.total) == ([1, 2, 5, 6], 4)  # 3 and 4 have not written since
    again = ProducerStateManager.decode(states.encode(), count)
    assert (list(again.entries()), count.total) == ([1, 2, 5, 6], 8)
    states.close()
    again.start_verification(_of_producer(7), False, 1)
    again.remove_expired(1)
    assert (list(again.entries()), count.total) == ([1], 1)


def test_the_producers_of_all_partitions_are_bounded(monkeypatch):
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS_IN_TOTAL", 6)
    count = ProducerCount()
    partitions = [ProducerStateManager(count) for _ in range(3)]
    for number in range(10):
        for states in partitions:
            states.update(_of_producer(number), number)
    assert [list(states.entries()) for states in partitions] == [[8, 9]] * 3
    another = ProducerStateManager(count)
    another.update(_of_producer(1), 0)
    another.update(_of_producer(2), 1)
    assert (list(another.entries()), count.total) == ([2], 7)


def test_producers_that_are_verified_replace_no_producers(monkeypatch):
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 2)
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS_IN_TOTAL", 3)
    monkeypatch.setattr(producer_state, "_MAX_VERIFYING", 3)
    count = ProducerCount()
    partitions = [ProducerStateManager(count) for _ in range(2)]
    for states in partitions:
        states.update(_of_producer(1), 0)
        for number in range(10, 20):  # ids that were not assigned
            states.start_verification(_of_producer(number), False, 1)
    assert [list(states.entries()) for states in partitions] == [[1], [1]]
    assert (count.total, count.verifying) == (2, 4)  # the second partition has one of its own
    for states in partitions:
        states.close()
    assert (count.total, count.verifying) == (0, 0)


@pytest.mark.conformance("PS-049", "PS-051")
def test_a_verification_state_has_the_lowest_sequence_of_its_epoch_and_expires():
    states = ProducerStateManager()
    for sequence, epoch in ((4, 0), (6, 0), (2, 0), (1, -1)):
        states.start_verification(numbered(sequence, epoch=epoch), False, 1_000 + sequence)
    assert refused(states, numbered(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(numbered(2)) is None
    states.start_verification(numbered(5, epoch=1), False, 2_000)
    assert states.check(numbered(5, epoch=1)) is None
    states.remove_expired(1_003)
    assert refused(states, numbered(6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    states.remove_expired(1_004)
    assert states.check(numbered(6)) is None
