"""Data directory: lock, catalog, checkpoints, and recovery from crashes."""

from __future__ import annotations

import os
import uuid

import pytest
from support.log_requests import create_topic, delete_records, delete_topic
from support.partition_logs import batch, values_from
from support.reported_lines import ReportedLines

from spark_groupsource.broker.storage.catalog import TopicEntry
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.common.config_def import INT64_MAX
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition


def opened(path) -> DataDirectory:
    data = DataDirectory(path)
    data.open(1)
    return data


@pytest.mark.conformance("LL-001", "UL-064")
def test_topics_and_log_start_offsets_survive_a_restart(tmp_path):
    data = opened(tmp_path)
    entry = TopicEntry("t", uuid.uuid4(), 3, {"retention.ms": "5"})
    data.put_topics(entry)
    data.set_log_start_offsets({TopicPartition("t", 1): 42})
    cluster_id = data.cluster_id
    data.set_recovery_points({TopicPartition("t", 0): 7})
    data.close(is_clean=True)
    data = opened(tmp_path)
    assert (data.topics, data.cluster_id) == ({"t": entry}, cluster_id)
    assert data.log_start_offsets == {TopicPartition("t", 1): 42}
    assert data.recovery_points == {TopicPartition("t", 0): 7} and data.had_clean_shutdown
    data.close(is_clean=False)
    data = opened(tmp_path)
    assert data.recovery_points == {TopicPartition("t", 0): 7} and not data.had_clean_shutdown
    data.close(is_clean=False)


def test_recovery_points_are_not_lowered_by_offsets_that_were_read_before(tmp_path):
    data = opened(tmp_path)
    here, deleted = TopicPartition("t", 0), TopicPartition("t", 1)
    data.raise_recovery_point(here, 9, lambda each: True)
    data.raise_recovery_point(here, 8, lambda each: True)
    data.raise_recovery_point(deleted, 9, lambda each: False)
    data.set_recovery_points({here: 7})
    assert data.recovery_points == {here: 9}
    data.close(is_clean=False)


def test_gaps_end_at_the_recovery_point_of_a_log_that_was_or_may_be_compacted(tmp_path):
    data = opened(tmp_path)
    compacted, dirty = TopicPartition("t", 0), TopicPartition("t", 1)
    data.set_cleaner_offset(compacted, 5)
    assert data.gaps_end(compacted, is_compacted=True) == INT64_MAX  # its recovery point was lost
    data.set_recovery_points({compacted: 9})
    assert [data.gaps_end(compacted, is_compacted) for is_compacted in (True, False)] == [9, 9]
    assert [data.gaps_end(dirty, is_compacted) for is_compacted in (True, False)] == [0, 0]
    data.close(is_clean=False)
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    data = opened(tmp_path)
    assert [data.gaps_end(each, is_compacted=True) for each in (compacted, dirty)] == [INT64_MAX, INT64_MAX]
    assert data.gaps_end(dirty, is_compacted=False) == 0
    data.close(is_clean=False)


def test_offset_checkpoints_have_kafkas_format(tmp_path):
    data = opened(tmp_path)
    data.set_log_start_offsets({TopicPartition("t", 1): 42})
    data.set_log_start_offsets({TopicPartition("a", 0): 1})
    data.set_recovery_points({TopicPartition("t", 1): 9})
    data.close(is_clean=False)
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n2\na 0 1\nt 1 42\n"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 1 9\n"


def test_a_locked_directory_is_rejected(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(StorageError, match="is in use by another broker"):
        opened(tmp_path)
    first.close(is_clean=True)
    opened(tmp_path).close(is_clean=False)


def test_a_directory_of_another_node_is_rejected(tmp_path):
    opened(tmp_path).close(is_clean=True)
    with pytest.raises(StorageError, match="belongs to node 1, this broker is node 2. Set node.id"):
        DataDirectory(tmp_path).open(2)
    opened(tmp_path).close(is_clean=True)  # the lock was released


def test_a_directory_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used: .*. Choose another"):
        opened(tmp_path / "file" / "data")


def test_open_completes_an_interrupted_topic_deletion(tmp_path):
    data = opened(tmp_path)
    data.put_topics(TopicEntry("t", uuid.uuid4(), 2))
    for number in range(2):
        (tmp_path / f"t-{number}").mkdir()
        (tmp_path / f"t-{number}" / "00000000000000000000.log").write_bytes(b"x")
    data.remove_topic("t")
    data.close(is_clean=False)  # killed before the files were deleted
    data = opened(tmp_path)
    assert (data.topics, list(tmp_path.glob("t-*"))) == ({}, [])
    data.close(is_clean=False)


NAME = "t" * 249


@pytest.mark.parametrize("failing", ["rename", "unlink"])
def test_a_topic_recreated_after_a_failed_deletion_is_kept_by_restarts(tmp_path, monkeypatch, failing):
    """The files of the deleted topic are removed at the next start, those of the new one are kept."""
    reports = ReportedLines()
    data = DataDirectory(tmp_path, report=reports)
    data.open(1)
    manager = LogManager(data, TopicConfig(), reports)
    create_topic(manager, NAME, 2, {})
    manager.partition(NAME, 0).append(batch(b"old"), 1_000)
    delete_records(manager, TopicPartition(NAME, 0), 1)

    def fail(*arguments, **options):
        raise OSError(5, "Input/output error", str(tmp_path / f"{NAME}-0"))

    with monkeypatch.context() as broken:
        broken.setattr(os, failing, fail)
        delete_topic(manager, NAME)
        assert NAME not in manager.topics
        assert "remain until the next start" in reports[-1] and "Input/output error" in reports[-1]
        if failing == "rename":
            with pytest.raises(ApiError, match="cannot be renamed") as refused:
                create_topic(manager, NAME, 2, {})
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    create_topic(manager, NAME, 2, {})
    assert manager.partition(NAME, 0).append(batch(b"new"), 1_000).base_offset == 0
    for _ in range(2):
        data.close(manager.close_all())
        data = DataDirectory(tmp_path, report=reports)
        data.open(1)
        manager = LogManager(data, TopicConfig(), reports)
        manager.open_all()
        assert values_from(manager.partition(NAME, 0).log, 0) == [(0, b"new")]
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {f"{NAME}-0"}  # the written one
    data.close(manager.close_all())


def test_a_topic_whose_removal_cannot_be_stored_remains(tmp_path, monkeypatch):
    data = opened(tmp_path)
    manager = LogManager(data, TopicConfig(), print)
    create_topic(manager, "t", 1, {})

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        with pytest.raises(ApiError, match="No space left on device"):
            delete_topic(manager, "t")
    assert manager.partition("t", 0).append(batch(b"x"), 1_000).base_offset == 0
    delete_topic(manager, "t")
    assert list(tmp_path.glob("t-*")) == []
    data.close(manager.close_all())


def test_a_producer_id_is_returned_only_after_its_block_is_stored(tmp_path, monkeypatch):
    data = opened(tmp_path)
    assert [data.next_producer_id() for _ in range(1000)] == list(range(1000))

    def refuse(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "pwrite", refuse)
        full_disk.setattr(os, "replace", refuse)
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left on device"):
                data.next_producer_id()
    assert data.next_producer_id() == 1000
    data.close(is_clean=False)
    again = opened(tmp_path)
    assert again.next_producer_id() == 2000  # above every id that was returned
    again.close(is_clean=False)


def test_corrupt_recovery_points_are_reported_and_count_as_unflushed(tmp_path):
    data = opened(tmp_path)
    data.set_recovery_points({TopicPartition("t", 0): 7})
    data.close(is_clean=True)
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\nt 0\n")
    reports = ReportedLines()
    data = DataDirectory(tmp_path, report=reports)
    data.open(1)
    assert data.recovery_points == {} and "every segment is recovered" in reports[0]
    data.close(is_clean=False)


@pytest.mark.conformance("UL-122")
def test_records_above_the_log_end_cannot_be_deleted(tmp_path):
    data = opened(tmp_path)
    manager = LogManager(data, TopicConfig(), print)
    create_topic(manager, "t", 1, {})
    manager.partition("t", 0).append(batch(b"x"), 1_000)
    with pytest.raises(ApiError) as refused:
        delete_records(manager, TopicPartition("t", 0), 2)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(manager, TopicPartition("t", 0), -1) == 1
    data.close(manager.close_all())


def test_an_error_in_one_log_leaves_the_deletion_of_records_in_the_others(tmp_path, monkeypatch):
    data = opened(tmp_path)
    manager = LogManager(data, TopicConfig(), print)
    create_topic(manager, "t", 3, {})
    for number in range(3):
        manager.partition("t", number).append(batch(b"x"), 1_000)
    first, delete_records = manager.partition("t", 0).log, PartitionLog.delete_records

    def fail(log, before_offset):
        if log is first:
            raise StorageError("The leader epochs cannot be stored: no space left on device.")
        return delete_records(log, before_offset)

    monkeypatch.setattr(PartitionLog, "delete_records", fail)
    errors = run_at_once(manager.checkpoints.log_start_offsets({TopicPartition("t", n): 1 for n in (0, 1, 2, 9)}))
    assert {each.partition: error.code for each, error in errors.items()} == {
        0: ErrorCode.KAFKA_STORAGE_ERROR, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }  # fmt: skip
    assert [manager.partition("t", number).log.log_start_offset for number in range(3)] == [0, 1, 1]
    data.close(manager.close_all())
