"""Power loss at any file operation: flushed data and log recovery."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Callable

import pytest
from support.examples import scaled
from support.file_operations import FileOperations
from support.log_broker import NOW, SMALL, LogBroker, append, read
from support.log_requests import create_topic, delete_records, delete_topic
from support.power_loss import Disk, Operation, write_state

from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records

ONCE = b"once"
_STATES = 120


class Acknowledged:
    """State that must be stored, from the marks of a run."""

    def __init__(self) -> None:
        self.values: dict[str, list[bytes]] = {}
        self.topics: set[str] = set()
        self.latest: dict[bytes, bytes] = {}
        self.aborted: set[bytes] = set()

    def add(self, mark: tuple) -> None:
        match mark:
            case ("topic", name):
                self.topics.add(name)
                self.values[name] = []
            case ("deleting", name):
                self.topics.discard(name)
            case ("value", name, value):
                self.values[name].append(value)
            case ("latest", key, value):
                self.latest[key] = value
            case ("aborted", value):
                self.aborted.add(value)


class LateFlushes:
    """Runs each background flush when the next two are requested, as on a slow disk."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], None], Future[None]]] = []

    def __call__(self, work: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        self._waiting.append((work, done))
        while len(self._waiting) > 2:
            self.run_first()
        return done

    def run_first(self) -> None:
        work, done = self._waiting.pop(0)
        work()
        done.set_result(None)

    def run_all(self) -> None:
        while self._waiting:
            self.run_first()


def run_transactions(broker: LogBroker, mark: Callable[[tuple], None]) -> None:
    """Two producers, one of which aborts its transactions, over several segments."""
    flushes = LateFlushes()
    broker.logs.files.run_in_background = flushes  # type: ignore[method-assign]
    create_topic(broker.logs, "t", 1, SMALL)
    mark(("topic", "t"))
    partition = broker.partition("t")
    for number in range(12):
        plain, committed, aborted = (b"%s %d" % (kind, number) for kind in (b"plain", b"committed", b"aborted"))
        mark(("aborted", aborted))
        append(partition, plain + b"." * 60)
        mark(("value", "t", plain + b"." * 60))
        append(partition, committed, producer_id=1, producer_epoch=0, base_sequence=number, transactional=True)
        append(partition, aborted, producer_id=2, producer_epoch=0, base_sequence=number, transactional=True)
        partition.append_transaction_marker(2, 0, False, 0, NOW)
        partition.append_transaction_marker(1, 0, True, 0, NOW)
        mark(("value", "t", committed))
        if number % 4 == 1:
            run_at_once(broker.logs.checkpoints.recovery_points())
    assert len(partition.log.segments) > 3
    flushes.run_all()


def run_compaction(broker: LogBroker, mark: Callable[[tuple], None]) -> None:
    flushes = LateFlushes()
    broker.logs.files.run_in_background = flushes  # type: ignore[method-assign]
    create_topic(broker.logs, "c", 1, {**SMALL, "cleanup.policy": "compact"})
    mark(("topic", "c"))
    partition = broker.partition("c")
    append(partition, ONCE, ONCE)  # every cleaned segment has it
    mark(("latest", ONCE, ONCE))
    for number in range(60):
        key = b"%d" % (number % 3)
        value = b"%d " % number + b"." * 50
        append(partition, value, key)
        mark(("latest", key, value))
        if number % 20 == 19:
            broker.clean("c", on_wait=flushes.run_all)
            run_at_once(broker.logs.checkpoints.recovery_points())
    assert len(partition.log.segments) > 2
    flushes.run_all()


def run_topics(broker: LogBroker, mark: Callable[[tuple], None]) -> None:
    """Topics that are deleted and created again, and records that are deleted."""
    for number in range(3):
        create_topic(broker.logs, "brief", 1, SMALL)  # no checkpoint has it
        append(broker.partition("brief"), b"old")
        delete_topic(broker.logs, "brief")
        create_topic(broker.logs, "again", 2, SMALL)
        mark(("topic", "again"))
        partition = broker.partition("again")
        for item in range(8):
            value = b"%d %d" % (number, item) + b"." * 200
            append(partition, value)
            mark(("value", "again", value))
        run_at_once(broker.logs.checkpoints.recovery_points())
        end = partition.log.log_end_offset
        partition.log.roll()
        mark(("topic", "again"))
        delete_records(broker.logs, TopicPartition("again", 0), end)
        mark(("deleting", "again"))
        delete_topic(broker.logs, "again")


RUNS = {"transactions": run_transactions, "compaction": run_compaction, "topics": run_topics}


def recorded(path: Path, run: Callable[[LogBroker, Callable[[tuple], None]], None], flush: bool) -> list[Operation]:
    operations: list[Operation] = []
    with FileOperations(path, operations.append) as files:
        broker = LogBroker(path, flush)
        run(broker, files.mark)
        broker.stop()
    return operations


@pytest.mark.parametrize("end", ("roll", "stop"))
def test_a_new_transaction_index_is_in_its_directory_before_its_segment_is_trusted(tmp_path: Path, end: str) -> None:
    """After a roll the recovery point is the end of the segment, which is then not read again."""
    operations: list[Operation] = []
    with FileOperations(tmp_path, operations.append):
        broker = LogBroker(tmp_path, True)
        create_topic(broker.logs, "t", 1, {})
        partition = broker.partition("t")
        append(partition, b"first")  # flushes the directory with the files of the segment
        append(partition, b"aborted", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        partition.append_transaction_marker(1, 0, False, 0, NOW)
        partition.remove_expired_producers(NOW)  # else a stop writes their snapshot, and flushes the directory
        if end == "roll":
            partition.log.roll()
        broker.stop()
    named = [(operation[0], *(each for each in operation[1:] if isinstance(each, str))) for operation in operations]
    created = named.index(("open", f"t-0/{0:020d}.txnindex"))
    mark = ".kafka_cleanshutdown"
    trusted = ("open", f"t-0/{3:020d}.log") if end == "roll" else ("rename", f"{mark}.tmp", mark)
    assert ("flush_directory", "t-0") in named[created : named.index(trusted)]


def check(path: Path, known: Acknowledged, flush: bool) -> None:
    broker = LogBroker(path, flush)
    assert not [line for line in broker.reports if "damaged" in line or "offline" in line], broker.reports
    assert known.topics <= set(broker.logs.topics)
    for partition in broker.logs:
        assert not partition.offline_reason
        values = read(partition)
        log = partition.log
        for offset in range(log.log_start_offset, log.log_end_offset):
            assert log.read(offset, 1), f"a consumer of {partition.topic_partition} waits at {offset}"
        assert not known.aborted.intersection(values), "an aborted record is visible"
        if flush and partition.topic_partition == ("t", 0):
            assert [value for value in values if value in known.values.get("t", [])] == known.values.get("t", [])
        if flush and partition.topic_partition == ("again", 0) and "again" in known.topics:
            assert known.values["again"] in ([], values[: len(known.values["again"])])
        if flush and partition.topic_partition == ("c", 0):
            latest = {
                record.key: record.value
                for stored in partition.log.batches(0)
                for record in decode_records(stored.buffer, stored.header)
            }
            order = [ONCE, *(b"%d " % number + b"." * 50 for number in range(60))]
            for key, value in known.latest.items():
                assert order.index(latest[key]) >= order.index(value)
        append(partition, b"next", b"key")
        assert read(partition)[-1:] == [b"next"] or partition.last_stable_offset < partition.log.log_end_offset
    for name in {"again", "brief"} - set(broker.logs.topics):
        create_topic(broker.logs, name, 1, SMALL)
        append(broker.partition(name), b"new")
        assert read(broker.partition(name)) == [b"new"], "a deleted topic is created again"
    broker.crash()


@pytest.mark.parametrize(
    "flush", (True, pytest.param(False, marks=pytest.mark.slow)), ids=("flush always", "flush os")
)
@pytest.mark.parametrize("name", RUNS)
def test_logs_recover_from_a_power_loss_at_any_operation(tmp_path: Path, name: str, flush: bool) -> None:
    """With flushes nothing acknowledged is lost; without, every log opens and takes records."""
    operations = recorded(tmp_path / "data", RUNS[name], flush)
    randomness = random.Random(name)
    count = scaled(_STATES, 20)
    # the long variant has eight states for each operation
    states = Counter(randomness.choices(range(len(operations)), k=8 * len(operations) if count == _STATES else count))
    disk, known = Disk(), Acknowledged()
    for number, operation in enumerate(operations):
        disk.apply(operation)
        if operation[0] == "mark":
            known.add(operation[1])
        for _ in range(states[number]):
            check_after_power_loss(disk, randomness, tmp_path / "after", known, flush)


def check_after_power_loss(
    disk: Disk, randomness: random.Random, path: Path, known: Acknowledged, flush: bool
) -> None:
    write_state(disk.after_power_loss(randomness), path)
    check(path, known, flush)
    shutil.rmtree(path)
