"""The data directory: its lock, its catalogue, and what a crash between two steps leaves."""

from __future__ import annotations

import errno
import uuid

import pytest
from broker_context import (
    RawConnection,
    append,
    batch,
    create_topic,
    fetch,
    fetched_values,
    metadata,
    open_log,
    produce,
)
from test_log import fill, logs, values_from

from spark_groupsource.broker.server import EmbeddedBroker
from spark_groupsource.errors import CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.storage import segment as segment_module
from spark_groupsource.storage.data_directory import DataDirectory, TopicEntry
from spark_groupsource.storage.topic_config import TopicConfig


def opened(path) -> DataDirectory:
    data = DataDirectory(path)
    data.open(1)
    return data


def test_topics_ids_and_log_starts_are_kept(tmp_path):
    data = opened(tmp_path)
    entry = TopicEntry("t", uuid.uuid4(), 3, {"retention.ms": "5"})
    data.put_topic(entry)
    data.set_log_start(TopicPartition("t", 1), 42)
    cluster_id = data.cluster_id
    data.close({TopicPartition("t", 0): 7})
    data = opened(tmp_path)
    assert (data.topics, data.cluster_id) == ({"t": entry}, cluster_id)
    assert data.log_starts == {TopicPartition("t", 1): 42}
    assert data.clean_end_offset(TopicPartition("t", 0)) == 7
    data.close(None)
    data = opened(tmp_path)
    assert data.clean_end_offset(TopicPartition("t", 0)) is None  # there was no clean stop in between
    data.close(None)


def test_the_log_starts_are_kept_in_kafkas_format(tmp_path):
    data = opened(tmp_path)
    data.set_log_start(TopicPartition("t", 1), 42)
    data.set_log_start(TopicPartition("a", 0), 1)
    data.close(None)
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n2\na 0 1\nt 1 42\n"


def test_one_broker_at_a_time(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(StorageError, match="is in use by another broker"):
        opened(tmp_path)
    first.close({})
    opened(tmp_path).close(None)


def test_another_node_is_refused(tmp_path):
    opened(tmp_path).close({})
    with pytest.raises(StorageError, match="is that of node 1, this broker is node 2; set node.id"):
        DataDirectory(tmp_path).open(2)
    opened(tmp_path).close({})  # and the lock is free again


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used: .*; choose another"):
        opened(tmp_path / "file" / "data")


def test_a_crash_while_a_topic_is_deleted_is_made_good(tmp_path):
    data = opened(tmp_path)
    data.put_topic(TopicEntry("t", uuid.uuid4(), 2))
    for number in range(2):
        (tmp_path / f"t-{number}").mkdir()
        (tmp_path / f"t-{number}" / "00000000000000000000.log").write_bytes(b"x")

    def crash():
        raise RuntimeError("killed here")

    with pytest.raises(RuntimeError):
        data.remove_topic("t", crash)
    data.close(None)
    data = opened(tmp_path)
    assert (data.topics, list(tmp_path.glob("t-*"))) == ({}, [])
    data.close(None)


def test_a_damaged_note_of_a_clean_stop_counts_as_a_crash(tmp_path):
    opened(tmp_path).close({TopicPartition("t", 0): 7})
    (tmp_path / "clean-shutdown.json").write_bytes(b"\0")
    data = opened(tmp_path)
    assert data.clean_end_offset(TopicPartition("t", 0)) is None
    data.close(None)


# --- disks that fail ---


def test_a_full_disk_refuses_what_it_cannot_keep_and_goes_on(tmp_path, monkeypatch):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        assert produce(connection, "t", batch(b"a")).base_offset == 0
        whole = segment_module.write_exactly

        def half(descriptor, data, position):
            whole(descriptor, memoryview(data)[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(segment_module, "write_exactly", half)
        answer = produce(connection, "t", batch(b"b"))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left on device; free space" in answer.error_message
        assert metadata(connection, "t").topics[0].error_code == 0
        monkeypatch.undo()
        assert produce(connection, "t", batch(b"c")).base_offset == 1
        assert fetched_values(fetch(connection, "t", 0)) == [b"a", b"c"]
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert fetched_values(fetch(connection, "t", 0)) == [b"a", b"c"]


def test_flushing_every_batch_and_a_disk_that_fails_at_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(segment_module, "sync_data", flushed.append)
    config = {"log.flush.interval.messages": "1"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        for number in range(3):
            assert produce(connection, "t", batch(b"%d" % number)).base_offset == number
            assert len(flushed) == number + 1

        def fail(descriptor):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(segment_module, "sync_data", fail)
        assert produce(connection, "t", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        monkeypatch.undo()
        # what is on the disk now is anyone's guess, so nothing more is taken until a restart has looked
        assert produce(connection, "t", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert any("t-0 is offline" in line and "Input/output error" in line for line in broker.reports)
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert produce(connection, "t", batch(b"y")).error_code == 0
        assert fetched_values(fetch(connection, "t", 0))[:3] == [b"0", b"1", b"2"]


def test_segments_that_vanished_are_named(tmp_path):
    config = TopicConfig(segment_bytes=1024)
    log, _ = open_log(tmp_path / "t-0", config=config)
    stored = fill(log)
    log.close()
    first, second, third, *_ = logs(tmp_path / "t-0")
    first.unlink()
    log, reports = open_log(tmp_path / "t-0", config=config, clean_end=90)
    assert f"begins at offset {int(second.stem)}, t-0 should begin at 0" in reports[0]
    assert values_from(log, int(second.stem)) == stored[int(second.stem) :]
    log.close()
    third.unlink()
    log, reports = open_log(tmp_path / "t-0", config=config, clean_end=90)
    with pytest.raises(CorruptRecordError, match=f"readable up to offset {int(third.stem)}"):
        values_from(log, int(second.stem))


def test_a_file_that_became_shorter_since_a_clean_stop_is_damage(tmp_path):
    log, _ = open_log(tmp_path / "t-0")
    fill(log, batches=3)
    log.close()
    (path,) = logs(tmp_path / "t-0")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])  # a third is one batch
    log, reports = open_log(tmp_path / "t-0", clean_end=9)
    assert "ends before what was stored" in reports[0]
    with pytest.raises(StorageError, match="takes no records"):
        append(log, batch(b"x"))
    with pytest.raises(CorruptRecordError, match="readable up to offset 3"):
        values_from(log, 0)
    assert log.log_end_offset == 9
    log.delete_records(9)
    assert append(log, batch(b"x")) == 9
