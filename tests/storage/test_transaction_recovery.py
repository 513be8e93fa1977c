"""Recovery of producers and transactions: snapshots, transaction index, restarts."""

from __future__ import annotations

import pytest
from support.partition_logs import batch
from support.transaction_logs import NOW, LoggedTransactions, snapshots, write_transactions

from spark_groupsource.broker.storage.producer_state import ProducerStateManager
from spark_groupsource.errors import ErrorCode
from spark_groupsource.records.compaction import empty_batch
from spark_groupsource.records.header import iter_batches


@pytest.fixture
def logged(tmp_path) -> LoggedTransactions:
    return LoggedTransactions(tmp_path / "t-0")


@pytest.mark.conformance("LL-003", "LL-010", "PS-020", "PS-021", "PS-029", "UL-036", "UL-118")
@pytest.mark.parametrize("clean", (True, False))
def test_a_restart_recovers_producers_and_transactions(logged, clean):
    write_transactions(logged)
    known = logged.state
    assert known[0] == 5 and len(known[1]) == 3
    if clean:
        logged.partition.close()
    logged.reopen(logged.partition.log.log_end_offset if clean else None)
    assert logged.state == known
    logged.end(4, True)
    logged.end(5, True)
    assert logged.partition.last_stable_offset == logged.partition.log.log_end_offset


@pytest.mark.parametrize("clean", (True, False))
@pytest.mark.parametrize("damage", (b"torn", b"\x00\x07" + bytes(32)))
def test_a_corrupt_transaction_index_is_rebuilt_from_the_log(logged, damage, clean):
    """After a clean shutdown it is reported; after an unclean one it is not read."""
    write_transactions(logged)
    known = logged.state
    logged.partition.close()
    path = sorted(logged.directory.glob("*.txnindex"))[0]
    valid = path.read_bytes()
    path.write_bytes(valid + damage)
    logged.reopen(logged.partition.log.log_end_offset if clean else None)
    assert logged.state == known and path.read_bytes() == valid
    assert any("The log is replayed instead" in line for line in logged.reports) is clean


@pytest.mark.conformance("LL-032")
def test_an_empty_transaction_index_is_rebuilt_after_an_unclean_shutdown(logged):
    """The file may be empty after a power loss, and an abort marker in the log then has no row."""
    write_transactions(logged)
    known = logged.state
    for path in logged.directory.glob("*.txnindex"):
        path.write_bytes(b"")
    logged.reopen()
    assert logged.state == known and len(known[1]) == 3


def test_indexes_of_a_log_that_a_power_loss_removed_are_not_used_by_a_new_one(logged):
    write_transactions(logged)
    for path in logged.directory.glob("*.log"):
        path.unlink()
    logged.reopen()
    assert logged.partition.log.log_end_offset == 0 and not list(logged.directory.glob("*index"))
    logged.send(1, 0, b"a")
    logged.end(1, False)
    known = logged.state
    assert [row.last_offset for row in known[1]] == [1]
    logged.reopen(logged.partition.log.log_end_offset)
    assert logged.state[1] == known[1]


def test_transaction_index_rows_lost_in_a_crash_are_restored(logged):
    write_transactions(logged)
    active = logged.partition.log.segments[-1].path.with_suffix(".txnindex")
    valid = active.read_bytes()
    active.unlink()
    logged.reopen()
    assert active.read_bytes() == valid
    logged.reopen()
    assert len(logged.state[1]) == 3, "not duplicated"


@pytest.mark.conformance("PS-002", "PS-022", "PS-039")
def test_a_marker_without_records_sets_the_epochs_also_after_a_restart(logged):
    logged.end(9, True, epoch=3, coordinator_epoch=5)
    for clean in (False, True):
        logged.partition.close()
        logged.reopen(logged.partition.log.log_end_offset if clean else None)
        assert logged.state[2] == {9: (3, 5, None)}
        assert logged.rejected(logged.send, 9, 0, b"a", epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
        code = logged.rejected(logged.end, 9, True, epoch=3, coordinator_epoch=4)
        assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert logged.send(9, 0, b"a", epoch=3) == 1


@pytest.mark.conformance("PS-047")
def test_a_segment_without_its_snapshot_is_deleted(logged):
    write_transactions(logged)
    (logged.directory / f"{3:020d}.snapshot").unlink()
    logged.partition.log.delete_records(6)
    assert snapshots(logged) == [6]


@pytest.mark.conformance("PS-045")
def test_snapshots_of_no_segment_are_removed(logged):
    write_transactions(logged)
    known = logged.state
    valid = (logged.directory / f"{3:020d}.snapshot").read_bytes()
    for offset in (1, 4, 5, 10**6):
        (logged.directory / f"{offset:020d}.snapshot").write_bytes(valid)
    logged.reopen()
    assert snapshots(logged) == [3, 6] and logged.state == known


@pytest.mark.conformance("PS-040", "PS-041", "PS-042")
@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-7], lambda data: data[:9] + b"?" + data[10:]])
def test_a_corrupt_snapshot_is_ignored_and_removed(logged, damage):
    write_transactions(logged)
    known = logged.state
    logged.partition.close()
    end = logged.partition.log.log_end_offset
    newest = logged.directory / f"{end:020d}.snapshot"
    newest.write_bytes(damage(newest.read_bytes()))
    logged.reopen(end)
    assert logged.state == known and not newest.exists()


@pytest.mark.conformance("PS-043")
def test_a_control_batch_without_records_does_not_change_the_state(logged):
    logged.send(1, 0, b"a")
    log = logged.partition.log
    logged.end(2, True)
    (header,) = iter_batches(bytes(log.read(1, 1000)))
    emptied = empty_batch(header._replace(producer_id=1, base_offset=0))
    log.append(bytearray(emptied), next(iter_batches(emptied)), NOW)
    known = logged.state
    logged.reopen()
    assert logged.state == known and known[2][1] == (0, -1, 0)


@pytest.mark.conformance(
    "LL-011", "PS-018", "PS-019", "PS-027", "UL-012", "UL-021",
    "UL-027", "UL-029", "UL-033", "UL-034", "UL-035", "UL-043",
)  # fmt: skip
def test_snapshots_are_named_by_their_offset_and_deleted_with_their_segments(logged):
    logged.send(1, 0, b"a", transactional=False)
    logged.partition.log.roll()
    logged.send(1, 1, b"b", transactional=False)
    logged.partition.append(batch(b"without producer id"), NOW)
    logged.partition.log.roll()
    assert snapshots(logged) == [1, 3]
    known = ProducerStateManager.decode((logged.directory / f"{1:020d}.snapshot").read_bytes())
    assert known.last_data_offsets() == {1: 0}, "the state before the first record of the segment"
    logged.partition.log.delete_records(2)
    assert snapshots(logged) == [1, 3]
    logged.partition.log.delete_records(3)
    assert snapshots(logged) == [3]
    assert 1 in logged.partition.producers(), "it expires by time"
    logged.partition.append(batch(b"later"), NOW)
    logged.partition.close()
    assert snapshots(logged) == [3, 4]
    logged.reopen(4)
    assert snapshots(logged) == [3] and logged.state[2] == {1: (0, -1, None)}


@pytest.mark.conformance("LL-003", "LL-036", "PS-017", "UL-031")
def test_snapshots_above_a_truncated_end_are_deleted(logged):
    write_transactions(logged)
    first, second, third = (segment.path for segment in logged.partition.log.segments)
    assert snapshots(logged) == [3, 6]
    (logged.directory / f"{99:020d}.snapshot").write_bytes(third.with_suffix(".snapshot").read_bytes())
    second.write_bytes(second.read_bytes()[:-1])
    logged.reopen()
    assert snapshots(logged) == [3] and logged.partition.log.log_end_offset == 5
    assert logged.partition.last_stable_offset == 5 and 4 not in logged.state[2]
    logged.send(4, 0, b"d")
    assert logged.partition.last_stable_offset == 5
    assert first.exists() and not third.exists()


@pytest.mark.conformance("LL-034")
def test_producers_are_recovered_without_snapshots(logged):
    write_transactions(logged)
    known = logged.state
    for path in logged.directory.glob("*.snapshot"):
        path.unlink()
    logged.reopen()
    assert logged.state == known


@pytest.mark.conformance("LL-009", "LL-011")
def test_producers_of_deleted_records_are_not_recovered(logged):
    logged.send(1, 0, b"a", transactional=False)
    logged.send(2, 0, b"b", transactional=False)
    logged.partition.log.delete_records(1)
    assert set(logged.state[2]) == {1, 2}
    logged.partition = logged.new_partition()
    logged.partition.log.log_start_offset = 1
    logged.partition.open()
    assert set(logged.state[2]) == {2}


@pytest.mark.conformance("LL-005")
def test_markers_with_descending_coordinator_epochs_are_recovered(logged):
    logged.send(1, 0, b"a")
    logged.end(1, True, coordinator_epoch=5)
    # private: the partition would reject a marker with a lower epoch, which an older log may have
    logged.partition._producers.entries()[1].coordinator_epoch = 0
    logged.end(1, True, coordinator_epoch=2)
    logged.reopen()
    assert logged.state[2] == {1: (0, 2, None)}
