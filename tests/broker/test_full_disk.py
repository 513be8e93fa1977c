"""Full and failing disks: errors of the affected partitions only."""

from __future__ import annotations

import errno
import os
import resource

import pytest
from support.partition_logs import batch
from support.raw_broker import BrokerProcess, RawConnection, create_topic, fetch, fetched_values, metadata, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.storage import files as files_module
from spark_groupsource.broker.storage import segment as segment_module
from spark_groupsource.broker.storage import segment_swap as swap_module
from spark_groupsource.errors import ErrorCode, StorageError
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import DescribeProducersRequest

OFFLINE = "[partition=t-0] The partition is offline"


@pytest.mark.slow
def test_a_file_at_its_size_limit_rejects_only_its_own_records(tmp_path):
    """RLIMIT_FSIZE simulates a full disk: a write fails after a part of its bytes."""
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "full")
        create_topic(connection, "other")
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        stored = []
        for number in range(200):
            value = b"%03d" % number + b"x" * 1000
            response = produce(connection, "full", batch(value))
            if response.error_code:
                break
            stored.append(value)
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR and "File too large" in response.error_message
        assert 80 < len(stored) < 100
        small = batch(b"y")
        assert produce(connection, "other", small).error_code == 0
        assert metadata(connection, "full").topics[0].error_code == 0
        assert fetched_values(fetch(connection, "full", 0)) == stored
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert produce(connection, "full", small).base_offset == len(stored)  # the limit is removed
        broker.kill()
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert fetched_values(fetch(connection, "full", 0)) == [*stored, b"y"]
        assert fetched_values(fetch(connection, "other", 0)) == [b"y"]


def test_an_unwritable_directory_rejects_new_topics_and_serves_existing_ones(tmp_path, monkeypatch):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        produce(connection, "t", batch(b"a"))

        def refuse(*arguments):
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(files_module.os, "pwrite", refuse)
        refused = create_topic(connection, "new")
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "Read-only file system. Check space and permissions" in refused.error_message
        assert metadata(connection, "new").topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert fetched_values(fetch(connection, "t", 0)) == [b"a"]
        monkeypatch.undo()
        assert create_topic(connection, "new").error_code == 0


def test_an_unwritable_directory_is_an_error_at_start(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("spark_groupsource.broker.storage.directory_owner.os.open", refuse)
    with pytest.raises(StorageError, match=r"\.lock cannot be created: Read-only file system. Check permissions"):
        EmbeddedBroker(tmp_path).start()


def test_compaction_on_a_full_disk_is_reported_and_retried(tmp_path, monkeypatch):
    config = {"log.cleaner.backoff.ms": "10"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:

        def full(self, batch, header):
            raise StorageError("No space left on device.")

        monkeypatch.setattr(swap_module.CleanedSegment, "append", full)
        create_topic(connection, "t", cleanup_policy="compact", segment_bytes="1024")
        for number in range(30):
            record = encode_batch([Record(b"k%d" % number, b"x" * 100, 1)])
            assert produce(connection, "t", record).error_code == 0
        wait_until(lambda: any("[partition=t-0] Compaction failed" in line for line in broker.reports), "the report")
        assert len(fetched_values(fetch(connection, "t", 0))) > 0
        assert produce(connection, "t", encode_batch([Record(b"k", b"v", 1)])).error_code == 0
        assert len([line for line in broker.reports if "Compaction failed" in line]) == 1
        assert not list(tmp_path.glob("t-0/*.cleaned"))


def test_a_failed_segment_swap_takes_one_partition_offline_until_a_restart(tmp_path, monkeypatch):
    config = {"log.cleaner.backoff.ms": "10"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "other")
        create_topic(connection, "t", cleanup_policy="compact", segment_bytes="1024")

        def refuse(*arguments, **options):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(swap_module, "_remove_segment", refuse)
        for number in range(30):
            if produce(connection, "t", encode_batch([Record(b"k", b"%d" % number * 50, 1)])).error_code:
                break
        wait_until(lambda: any(OFFLINE in line for line in broker.reports), "the report")
        assert fetch(connection, "t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(connection, "other", batch(b"x")).error_code == 0
        monkeypatch.undo()
        assert list(tmp_path.glob("t-0/*.swap"))
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        end = fetch(connection, "t", 0)
        assert end.error_code == 0 and not list(tmp_path.glob("t-0/*.swap"))
        assert fetched_values(fetch(connection, "t", end.high_watermark - 1))
        assert list(broker.reports) == []


def test_a_read_error_is_reported_with_its_position_and_affects_one_partition(tmp_path, monkeypatch):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        for name in ("t", "other"):
            create_topic(connection, name)
            produce(connection, name, batch(b"a"))
        bad = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_ino
        pread = os.pread

        def read(descriptor, size, position):
            if os.fstat(descriptor).st_ino == bad:
                raise OSError(errno.EIO, "Input/output error")
            return pread(descriptor, size, position)

        monkeypatch.setattr(files_module.os, "pread", read)
        assert fetch(connection, "t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetched_values(fetch(connection, "other", 0)) == [b"a"]
        monkeypatch.undo()
        assert fetched_values(fetch(connection, "t", 0)) == [b"a"]


def test_a_full_disk_rejects_records_and_recovers(tmp_path, monkeypatch):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        assert produce(connection, "t", batch(b"a")).base_offset == 0
        whole = segment_module.write_exactly

        def half(descriptor, data, position):
            whole(descriptor, memoryview(data)[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(segment_module, "write_exactly", half)
        response = produce(connection, "t", batch(b"b"))
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left on device. Free space" in response.error_message
        assert metadata(connection, "t").topics[0].error_code == 0
        monkeypatch.undo()
        assert produce(connection, "t", batch(b"c")).base_offset == 1
        assert fetched_values(fetch(connection, "t", 0)) == [b"a", b"c"]
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert fetched_values(fetch(connection, "t", 0)) == [b"a", b"c"]


def test_a_failed_flush_takes_the_partition_offline_until_a_restart(tmp_path, monkeypatch):
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
        # the state on disk is unknown, so the partition is offline until a restart has recovered it
        assert produce(connection, "t", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert any(OFFLINE in line and "Input/output error" in line for line in broker.reports)
        row = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
        (found,) = connection.call(DescribeProducersRequest(topics=[row]), 0).topics[0].partitions
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert produce(connection, "t", batch(b"y")).error_code == 0
        assert fetched_values(fetch(connection, "t", 0))[:3] == [b"0", b"1", b"2"]


@pytest.mark.slow
def test_few_file_descriptors_are_shared_by_partitions_and_connections(tmp_path):
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", 50)
        used = len(os.listdir(f"/proc/{broker.process.pid}/fd"))
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        for number in range(100):
            assert produce(connection, "t", batch(b"x"), number % 50).error_code == 0
        assert create_topic(connection, "other").error_code == 0
        with RawConnection(broker.bootstrap_servers) as second:
            assert produce(second, "other", batch(b"x")).error_code == 0
        assert broker.terminate() == 0
