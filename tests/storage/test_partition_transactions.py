"""Transactions of one partition: last stable offset, transaction index, producer fencing."""

from __future__ import annotations

import inspect
import random
import tracemalloc

import pytest
from support.log_broker import LogBroker, append, read
from support.log_requests import create_topic, delete_records
from support.partition_logs import batch, values_from
from support.transaction_logs import NOW, LoggedTransactions, write_transactions

from spark_groupsource.broker.storage.partition import TransactionVerifier
from spark_groupsource.broker.storage.transaction_index import AbortedTxn, TransactionIndex, decode_rows, encode_rows
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.records.decode import control_type
from spark_groupsource.records.header import iter_batches


@pytest.fixture
def logged(tmp_path) -> LoggedTransactions:
    return LoggedTransactions(tmp_path / "t-0")


@pytest.mark.conformance("PS-034", "UL-106", "UL-117")
def test_open_transactions_hold_the_last_stable_offset(logged):
    assert logged.partition.last_stable_offset == 0
    logged.send(1, 0, b"a", b"b")
    logged.send(2, 0, b"c")
    assert logged.partition.last_stable_offset == 0
    logged.end(1, True)
    assert logged.partition.last_stable_offset == 2, "the first offset of the other transaction"
    logged.send(1, 2, b"d")
    logged.end(2, True)
    assert logged.partition.last_stable_offset == 4
    logged.end(1, True)
    assert logged.partition.last_stable_offset == logged.partition.log.log_end_offset == 7
    assert logged.state[1] == []


@pytest.mark.conformance("PS-052", "PS-053", "UL-108")
def test_aborted_transactions_are_indexed_with_the_last_stable_offset(logged):
    logged.send(1, 0, b"a")
    logged.send(2, 0, b"b")
    logged.end(2, False)
    logged.end(1, False)
    logged.send(1, 1, b"c")
    logged.end(1, True)
    logged.end(9, False)  # it has no records in this partition
    assert logged.state[1] == [AbortedTxn(2, 1, 2, 0), AbortedTxn(1, 0, 3, 4)]
    assert logged.partition.transaction_index.overlapping(3, 9) == [AbortedTxn(1, 0, 3, 4)]
    assert logged.partition.transaction_index.overlapping(0, 1) == [AbortedTxn(1, 0, 3, 4)]
    assert logged.partition.transaction_index.overlapping(4, 9) == []


def test_markers_are_control_batches_of_their_producer(logged):
    logged.send(3, 0, b"a", epoch=4)
    logged.end(3, False, epoch=4, coordinator_epoch=7)
    data = bytes(logged.partition.log.read(1, 1000))
    (header,) = iter_batches(data)
    assert header.is_control and header.is_transactional and control_type(data, header) == 0
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 4, -1)
    ((_, value),) = values_from(logged.partition.log, 1)
    assert value == bytes.fromhex("0000 00000007")


@pytest.mark.conformance("PS-007", "PS-015", "PS-037", "PS-038", "UL-042", "UL-110", "UL-112")
def test_old_producer_and_coordinator_epochs_are_fenced(logged):
    logged.send(1, 0, b"a", epoch=3)
    assert logged.rejected(logged.send, 1, 0, b"b", epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert logged.rejected(logged.end, 1, True, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    logged.end(1, False, epoch=4, coordinator_epoch=5)
    assert logged.rejected(logged.send, 1, 1, b"b", epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    code = logged.rejected(logged.end, 1, True, epoch=4, coordinator_epoch=4)
    assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert logged.rejected(logged.send, 1, 1, b"b", epoch=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    logged.send(1, 0, b"b", epoch=4)


def test_a_marker_of_transaction_version_2_has_a_greater_epoch_than_its_transaction(logged):
    def end(epoch: int) -> int:
        return logged.partition.append_transaction_marker(1, epoch, True, 0, NOW, transaction_version=2).base_offset

    logged.send(1, 0, b"a", epoch=5)
    assert logged.rejected(end, 5) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert (end(6), logged.partition.last_stable_offset) == (1, 2)
    assert end(6) == 2, "without an open transaction it is a retry"
    assert logged.rejected(end, 5) is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.conformance("PS-016")
def test_a_non_transactional_batch_during_a_transaction_is_rejected(logged):
    logged.send(1, 0, b"a")
    assert logged.rejected(logged.send, 1, 1, b"b", transactional=False) is ErrorCode.INVALID_TXN_STATE
    logged.end(1, True)
    logged.send(1, 1, b"b", transactional=False)


@pytest.mark.conformance("UL-132")
def test_only_the_first_batch_of_a_transaction_is_verified(logged):
    verified = []

    def verify(header) -> None:
        verified.append(header.base_sequence)
        if len(verified) == 1:
            raise ApiError(ErrorCode.INVALID_TXN_STATE)

    def send(sequence: int) -> int:
        data = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True)
        return logged.partition.append(data, NOW, verify=TransactionVerifier(verify)).base_offset

    assert logged.rejected(send, 0) is ErrorCode.INVALID_TXN_STATE
    assert [send(0), send(0), send(1)] == [0, 0, 1]
    assert verified == [0, 0]


def test_a_batch_that_could_not_be_verified_is_stored_before_the_next_one(logged):
    """A batch that is sent again must not find a later batch of its producer (Kafka `VerificationStateEntry`)."""
    codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS]

    def verify(header) -> None:
        if codes:
            raise ApiError(codes.pop())

    def send(sequence: int, epoch: int = 0) -> int:
        data = batch(b"x", producer_id=1, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        return logged.partition.append(data, NOW, verify=TransactionVerifier(verify)).base_offset

    assert logged.rejected(send, 4) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert logged.rejected(send, 3) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert logged.rejected(send, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [send(3), send(4)] == [0, 1]
    logged.end(1, True)
    codes.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert logged.rejected(send, 5) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert logged.rejected(send, 6) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, epoch=1) == 3, "an abort was followed by the next epoch"


def test_a_marker_ends_a_failed_verification(logged):
    codes = [ErrorCode.INVALID_TXN_STATE]

    def verify(header) -> None:
        if codes:
            raise ApiError(codes.pop())

    def send(sequence: int) -> int:
        data = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True)
        return logged.partition.append(data, NOW, verify=TransactionVerifier(verify)).base_offset

    logged.send(1, 0, b"a", b"b")
    logged.end(1, True)
    assert logged.rejected(send, 1) is ErrorCode.INVALID_TXN_STATE, "a late batch of the transaction"
    logged.end(1, False)
    assert send(2) == 4


def test_a_transactional_batch_is_verified_before_its_sequence_number(logged):
    """The error of a batch outside of a transaction does not depend on earlier batches, except the fenced epoch."""

    def verify(header) -> None:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)

    def send(sequence: int, epoch: int) -> int:
        data = batch(b"x", producer_id=1, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        return logged.partition.append(data, NOW, verify=TransactionVerifier(verify)).base_offset

    logged.send(1, 0, b"a", epoch=1)
    logged.end(1, True, epoch=1)
    codes = [logged.rejected(send, sequence, epoch) for sequence, epoch in ((0, 1), (1, 1), (7, 1), (0, 0))]
    assert codes == [ErrorCode.INVALID_TXN_STATE] * 3 + [ErrorCode.INVALID_PRODUCER_EPOCH]


@pytest.mark.conformance("UL-114")
def test_delete_records_removes_transaction_index_files(logged):
    write_transactions(logged)
    logged.partition.log.delete_records(6)
    assert len(sorted(logged.directory.glob("*.txnindex"))) == 1
    assert logged.partition.last_stable_offset == 6, "not below the log start offset"


@pytest.mark.conformance("UL-011")
def test_reads_end_at_the_last_stable_offset(logged):
    logged.send(1, 0, b"a")
    logged.end(1, True)
    logged.send(2, 0, b"b")
    logged.partition.log.roll()
    logged.send(3, 0, b"c")
    log = logged.partition.log
    stable = logged.partition.last_stable_offset
    assert stable == 2
    assert [header.base_offset for header in iter_batches(log.read(0, 10_000, stable))] == [0, 1]
    assert not log.read(2, 10_000, stable) and not log.read(3, 10_000, stable)
    assert len(log.read(2, 10_000)) > 0


def test_transaction_index_rows_have_kafkas_format():
    row = AbortedTxn(producer_id=1, first_offset=2, last_offset=5, last_stable_offset=6)
    data = encode_rows([row])
    assert data.hex() == "0000" + "0000000000000001" + "0000000000000002" + "0000000000000005" + "0000000000000006"
    assert decode_rows(data) == [row]
    with pytest.raises(CorruptRecordError, match="invalid row"):
        decode_rows(data + data)  # markers must ascend


@pytest.mark.conformance("UL-010")
def test_the_state_of_a_producer_has_its_epochs_sequence_and_transaction(logged):
    logged.send(1, 0, b"a", b"b", epoch=3)
    entry = logged.partition.producers()[1]
    assert (entry.epoch, entry.batches[-1].last_sequence, entry.first_offset) == (3, 1, 0)
    assert (entry.timestamp_ms, entry.coordinator_epoch) == (1_001, -1)
    logged.end(1, True, epoch=3, coordinator_epoch=7)
    assert (entry.first_offset, entry.coordinator_epoch, entry.timestamp_ms) == (None, 7, NOW)


@pytest.mark.conformance("UL-105", "UL-113")
def test_the_last_stable_offset_is_not_below_the_log_start(logged):
    logged.partition.append(batch(b"plain"), NOW)
    assert logged.partition.last_stable_offset == 1
    logged.send(1, 0, b"a", b"b", b"c")
    logged.send(1, 3, b"d")
    assert logged.partition.last_stable_offset == 1
    logged.partition.log.delete_records(3)
    assert logged.partition.last_stable_offset == 3
    logged.end(1, False)
    assert logged.partition.last_stable_offset == 6


@pytest.mark.conformance("UL-111")
def test_a_marker_without_transaction_fences_earlier_coordinators(logged):
    logged.end(1, True, coordinator_epoch=5)
    assert logged.rejected(logged.end, 1, True, coordinator_epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.conformance("UL-115")
def test_a_transaction_index_that_cannot_be_written_takes_the_partition_offline(logged, monkeypatch):
    logged.send(1, 0, b"a")

    def fail(*arguments):
        raise StorageError("no space")

    with monkeypatch.context() as full:
        full.setattr(TransactionIndex, "add", fail)
        assert logged.rejected(logged.end, 1, False) is ErrorCode.KAFKA_STORAGE_ERROR
    assert logged.rejected(logged.send, 1, 1, b"b") is ErrorCode.KAFKA_STORAGE_ERROR
    assert "The partition is offline: no space" in logged.reports[-1]
    logged.reopen()
    assert logged.state[1] == [AbortedTxn(1, 0, 1, 2)]


def test_aborted_transactions_of_deleted_segments_are_not_found(tmp_path):
    broker = LogBroker(tmp_path)
    create_topic(broker.logs, "t", 1, {})
    partition = broker.partition("t")
    for number in range(10):
        append(partition, b"x", producer_id=1, producer_epoch=0, base_sequence=number, transactional=True)
        partition.append_transaction_marker(1, 0, False, 0, NOW)
        if number in (2, 6):
            partition.log.roll()
    delete_records(broker.logs, partition.topic_partition, 15)
    assert [row.last_offset for row in partition.transaction_index.overlapping(15, 100)] == [15, 17, 19]
    assert len(partition.transaction_index) == 3 and read(partition) == []
    broker.crash()


def test_memory_has_only_the_number_of_aborted_transactions(tmp_path):
    index = TransactionIndex(str(tmp_path))
    tracemalloc.start()
    try:
        for number in range(3_000):
            index.add(number // 1_000 * 2_000, AbortedTxn(1, 2 * number, 2 * number + 1, 2 * number + 2))
        # threads of earlier tests allocate too
        own = [tracemalloc.Filter(True, each) for each in (inspect.getfile(TransactionIndex), __file__)]
        held = tracemalloc.take_snapshot().filter_traces(own)
        assert sum(trace.size for trace in held.traces) < 20_000
    finally:
        tracemalloc.stop()
    assert len(index) == 3_000
    assert [row.first_offset for row in index.overlapping(3_990, 4_005)] == list(range(3_990, 4_005, 2))
    assert len(index.overlapping(0, 6_000)) == 3_000


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_the_search_for_aborted_transactions_ends_early_and_finds_all(tmp_path, seed):
    rng = random.Random(seed)
    running: dict[int, int] = {}
    rows = []
    for offset in range(120):
        producer_id = rng.randrange(4)
        if producer_id not in running:
            running[producer_id] = offset
        elif rng.random() < 0.4:
            first = running.pop(producer_id)
            if rng.random() < 0.7:
                stable = min(running.values(), default=offset + 1)
                rows.append(AbortedTxn(producer_id, first, offset, stable))
    index = TransactionIndex(str(tmp_path))
    for row in rows:
        index.add(row.last_offset // 50 * 50, row)
    for start in range(0, 120, 7):
        for end in range(start, 121, 5):
            expected = [row for row in rows if row.last_offset >= start and row.first_offset < end]
            assert index.overlapping(start, end) == expected
