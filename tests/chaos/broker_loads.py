"""Clients of a broker that is killed: records, commits, and their checks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from support.commit_requests import commit_topics
from support.raw_broker import RawConnection, fetch, produce
from support.raw_members import heartbeat, join, sync

from spark_groupsource.errors import GroupSourceError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.messages import InitProducerIdRequest, OffsetCommitRequest, OffsetFetchRequest

KEYS = 7
LOADING = 14
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.segment.bytes": "1000000",
    "log.segment.bytes": "500000",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.1",
}


class CheckFailed(Exception):
    """An acknowledged record or offset is missing, a record is duplicated, or a restart took too long."""


class BrokerCommand:
    """The command ``groupsource broker`` on one directory and one port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "groupsource"), "broker", "--data-dir", str(self.directory)]
        for name, value in SETTINGS.items():
            command += ["--config", f"{name}={value}"]
        with open(self.directory.with_suffix(".log"), "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*command, "--listen", self.address], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise CheckFailed(f"the broker did not start: {self.log_lines()[-1:]}")
        self.address = line.split()[-1]

    def stop(self, kill: bool) -> None:
        assert self.process is not None and self.process.stdout is not None
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()

    def cpu_s(self) -> float:
        """Returns the used processor seconds; nan on systems without /proc."""
        assert self.process is not None
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(") ")[2].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_lines(self) -> list[str]:
        return self.directory.with_suffix(".log").read_text("utf-8").splitlines()


class Load(threading.Thread):
    """A client that continues after every kill; `failure` is the error that stopped it."""

    def __init__(self, broker: BrokerCommand, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.broker = broker
        self.failure = ""
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            try:
                with RawConnection(self.broker.address) as connection:
                    while not self.done.is_set():
                        self.step(connection)
            except GroupSourceError:
                time.sleep(0.02)  # the broker is down
            except Exception as error:
                self.failure = repr(error)
                return

    def step(self, connection: RawConnection) -> None:
        raise NotImplementedError

    def check(self, connection: RawConnection, before: object) -> None:
        """Checks that everything in `before`, the acknowledged state before a kill, is present."""

    def acknowledged(self) -> object:
        return None


class LogReader:
    """Reads a partition incrementally."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.position = 0
        self.largest = -1
        self.found: list[tuple[bytes | None, bytes]] = []

    def read(self, connection: RawConnection) -> None:
        while True:
            response = fetch(connection, self.topic, self.position, partition=self.partition)
            if response.error_code:
                raise CheckFailed(f"{self.topic}-{self.partition} at {self.position}: error {response.error_code}")
            if self.position >= response.high_watermark:
                return
            data = bytes(response.records or b"")
            if not data:
                name = f"{self.topic}-{self.partition}"
                raise CheckFailed(f"{name}: nothing at {self.position} < {response.high_watermark}")
            for header in iter_batches(data):
                records = decode_records(data, header)
                self.found += [(r.key, r.value or b"") for r in records if r.offset >= self.position]
                self.position = header.next_offset


class Idempotent(Load):
    """Produces records numbered from 0: every acknowledged record must be present once and in order."""

    topic = "own"
    partitions = 1

    def __init__(self, broker: BrokerCommand) -> None:
        super().__init__(broker, self.topic)
        self.reset()
        self.acked: set[bytes] = set()
        self._producer_id: int | None = None
        self._sequence = 0

    def step(self, connection: RawConnection) -> None:
        if self._producer_id is None:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
            )
            self._producer_id = connection.call(request, 4).producer_id
        values = [b"%d" % (self._sequence + item) for item in range(3)]
        # sent unchanged until the broker responds
        batch = encode_batch(
            [Record(None, value + b"." * 50, 1_000) for value in values],
            producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence,
        )  # fmt: skip
        response = produce(connection, self.topic, batch)
        if response.error_code:
            raise CheckFailed(f"{self.topic}: error {response.error_code} {response.error_message}")
        self._sequence += len(values)
        self.acked.update(values)

    def acknowledged(self) -> object:
        return set(self.acked)

    def check(self, connection: RawConnection, before: object) -> None:
        assert isinstance(before, set)
        for reader in self.readers:
            reader.read(connection)
            values, reader.found = [value.rstrip(b".") for _, value in reader.found], []
            for value in values:
                if value in self.present:
                    raise CheckFailed(f"{self.topic}: record {value!r} is duplicated")
                if int(value) < reader.largest:
                    raise CheckFailed(f"{self.topic}-{reader.partition}: record {value!r} is out of order")
                self.present.add(value)
                reader.largest = int(value)
        missing = sorted(before - self.present)
        if missing:
            raise CheckFailed(f"{self.topic}: {len(missing)} acknowledged records are missing, first {missing[0]!r}")

    def reset(self) -> None:
        """Reads everything from the beginning at the next check."""
        self.present: set[bytes] = set()
        self.readers = [LogReader(self.topic, number) for number in range(self.partitions)]


class Librdkafka(Idempotent):
    """Produces with librdkafka, with five requests in flight."""

    topic = "librdkafka"
    partitions = 2

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.broker.address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 10,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.acked.add(message.value().rstrip(b"."))  # type: ignore[attr-defined]
            else:
                self.failure = str(error)

        for number in itertools.count():
            if self.done.is_set() or self.failure:
                break
            while len(producer) > 500:
                producer.poll(0.01)
            producer.produce(self.topic, b"%d" % number + b"." * 50, partition=number % 2, on_delivery=delivered)
            producer.poll(0 if number % 20 else 0.005)
        producer.flush(30)


class Compacted(Load):
    """Produces increasing numbers with few keys to a compacted topic: the latest of each key must be present."""

    topic = "compacted"

    def __init__(self, broker: BrokerCommand) -> None:
        super().__init__(broker, self.topic)
        self.latest: dict[bytes, int] = {}
        self._number = 0

    def step(self, connection: RawConnection) -> None:
        self._number += 1
        key = b"%d" % (self._number % KEYS)
        response = produce(connection, self.topic, encode_batch([Record(key, b"%d" % self._number, 1_000)] * 20))
        if response.error_code:
            raise CheckFailed(f"{self.topic}: error {response.error_code} {response.error_message}")
        self.latest[key] = self._number

    def acknowledged(self) -> object:
        return dict(self.latest)

    def check(self, connection: RawConnection, before: object) -> None:
        assert isinstance(before, dict)
        reader = LogReader(self.topic, 0)
        reader.read(connection)
        stored = {key: int(value) for key, value in reader.found if key is not None}
        for key, number in before.items():
            if stored.get(key, -1) < number:
                raise CheckFailed(f"{self.topic}: key {key!r} has {stored.get(key)}, {number} was acknowledged")


class Commits(Load):
    """A group that commits increasing offsets, optionally as a member in its generation."""

    def __init__(self, broker: BrokerCommand, group: str, member: bool) -> None:
        super().__init__(broker, group)
        self.group = group
        self.acked = -1
        self.sent = -1
        self._has_member = member
        self._joined: object = None

    def step(self, connection: RawConnection) -> None:
        if self._has_member and self._joined is None:
            joined = join(connection, group=self.group)
            if joined.error_code == LOADING:
                return
            if joined.error_code or sync(connection, joined, self.group).error_code:
                raise CheckFailed(f"join of group {self.group} failed: error {joined.error_code}")
            self._joined = joined
        self.sent += 1
        code = commit(connection, self.group, {"own": [(0, self.sent)]}, self._joined)
        if code:
            raise CheckFailed(f"group {self.group}: a commit failed with error {code}")
        self.acked = self.sent
        if self._joined is not None and self.sent % 10 == 0:
            code = heartbeat(connection, self._joined, self.group)
            if code and code != LOADING:
                raise CheckFailed(f"group {self.group}: a heartbeat failed with error {code}")

    def acknowledged(self) -> object:
        return self.acked

    def check(self, connection: RawConnection, before: object) -> None:
        assert isinstance(before, int)
        found = committed(connection, self.group).get(("own", 0), -1)
        if not before <= found <= self.sent:
            raise CheckFailed(f"group {self.group} has committed {found}, {before} was acknowledged, {self.sent} sent")


def commit(connection: RawConnection, group: str, offsets: dict[str, list[tuple[int, int]]], joined=None) -> int:
    """Commits offsets; returns the first error code of the response, or 0."""
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
        member_id="" if joined is None else joined.member_id,
        topics=commit_topics(OffsetCommitRequest, {name: dict(entries) for name, entries in offsets.items()}),
    )
    while True:
        response = connection.call(request, 8)
        code = next((p.error_code for t in response.topics for p in t.partitions if p.error_code), 0)
        if code != LOADING:
            return code
        time.sleep(0.005)


def committed(connection: RawConnection, group: str) -> dict[tuple[str, int], int]:
    request = OffsetFetchRequest(group_id=group, topics=None, require_stable=True)
    while (response := connection.call(request, 7)).error_code == LOADING:
        time.sleep(0.005)
    if response.error_code:
        raise CheckFailed(f"fetching the offsets of group {group} failed with error {response.error_code}")
    return {(t.name, p.partition_index): p.committed_offset for t in response.topics for p in t.partitions}
