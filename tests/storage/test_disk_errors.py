"""A full disk: requests fail without damage until there is space again."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
from support.examples import scaled
from support.file_operations import FileOperations
from support.log_broker import NOW, SMALL, LogBroker, append, read
from support.log_requests import create_topic, delete_records

from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition


class FullDisk:
    """A broker on a disk that becomes full once; each failed request is repeated after space was freed."""

    def __init__(self, path: Path, free_bytes: int) -> None:
        self.path = path
        self.free_bytes = free_bytes
        self.failure = ""
        self.written: list[int] = []

    def run(self, requests: Callable[[FullDisk], None]) -> None:
        with FileOperations(self.path, self._record) as self.files:
            self.broker = LogBroker(self.path)
            self.files.free_bytes = self.free_bytes
            requests(self)
            self.files.free_bytes = None
            self.broker.stop()

    def _record(self, operation: tuple) -> None:
        if operation[0] == "write":
            self.written.append(len(operation[3]))

    def request(self, call: Callable[[LogBroker], object]) -> None:
        """Calls until it succeeds; a partition that an error took offline needs a restart."""
        while True:
            try:
                call(self.broker)
                return
            except ApiError as error:
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR and not self.failure, error
                self.failure = str(error)
                self.files.free_bytes = None
                if any(partition.offline_reason for partition in self.broker.logs):
                    self.broker.crash()
                    self.broker = LogBroker(self.path)


def requests(disk: FullDisk) -> None:
    disk.request(lambda broker: create_topic(broker.logs, "t", 1, SMALL))
    for number in range(8):
        values = [b"plain %d" % number + b"." * 60, b"aborted %d" % number, b"committed %d" % number]
        ids = {"producer_id": 1, "producer_epoch": 0, "transactional": True}

        def send(value: bytes, broker: LogBroker, **options) -> None:
            append(broker.partition("t"), value, **options)

        def end(committed: bool, broker: LogBroker) -> None:
            broker.partition("t").append_transaction_marker(1, 0, committed, 0, NOW)

        disk.request(lambda broker: send(values[0], broker))
        disk.request(lambda broker: send(values[1], broker, base_sequence=2 * number, **ids))
        disk.request(lambda broker: end(False, broker))
        disk.request(lambda broker: send(values[2], broker, base_sequence=2 * number + 1, **ids))
        disk.request(lambda broker: end(True, broker))
        run_at_once(disk.broker.logs.checkpoints.recovery_points())
    disk.request(lambda broker: delete_records(broker.logs, TopicPartition("t", 0), 1))


def check(disk: FullDisk, *, maybe_twice: bool) -> None:
    for _ in range(2):
        broker = LogBroker(disk.path)
        assert not [line for line in broker.reports if "damaged" in line or "offline" in line]
        values = [value for value in read(broker.partition("t")) if not value.startswith(b"plain 0")]
        expected = [value for n in range(8) for value in (b"plain %d" % n + b"." * 60, b"committed %d" % n)][1:]
        if maybe_twice:  # a request whose flush failed may have stored its record, and was repeated
            values = list(dict.fromkeys(values))
        assert values == expected
        broker.crash()


@pytest.mark.conformance("UL-014")
@pytest.mark.slow
def test_a_full_disk_fails_one_request_and_damages_nothing(tmp_path: Path) -> None:
    unlimited = FullDisk(tmp_path / "unlimited", 1 << 40)
    unlimited.run(requests)
    check(unlimited, maybe_twice=False)
    total = sum(unlimited.written)
    count = scaled(60, 20)
    failed_files = set()
    for number in range(count):
        disk = FullDisk(tmp_path / str(number), total * number // count)
        disk.run(requests)
        check(disk, maybe_twice=True)
        failed_files.update(name for name in (".log", ".txnindex", ".snapshot", "checkpoint") if name in disk.failure)
    assert ".log" in failed_files and len(failed_files) > 1, failed_files


def test_a_disk_that_fills_during_a_checkpoint_is_reported(tmp_path: Path) -> None:
    with FileOperations(tmp_path, lambda operation: None) as files:
        broker = LogBroker(tmp_path)
        create_topic(broker.logs, "t", 1, {})
        append(broker.partition("t"), b"x")
        files.free_bytes = 0
        assert not run_at_once(broker.logs.checkpoints.recovery_points())
        assert "Storing recovery points failed" in broker.reports[-1] and "No space left" in broker.reports[-1]
        with pytest.raises(ApiError, match="No space left"):
            delete_records(broker.logs, TopicPartition("t", 0), 1)
        assert broker.partition("t").log.log_start_offset == 0
        files.free_bytes = None
        assert run_at_once(broker.logs.checkpoints.recovery_points())
        assert broker.data.recovery_points == {TopicPartition("t", 0): 1}
        broker.stop()
