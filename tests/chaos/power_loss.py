"""Simulates power losses of a broker under load and checks its restart.

    PYTHONPATH=jobs:tests python tests/chaos/power_loss.py [--rounds 300] [--flush always|os] [--seed N]

The broker runs in a child process whose file operations are recorded (`support.file_operations`). It is killed after
one of them, also during recovery, and `support.power_loss` computes one of the contents that the disk may then have.

With ``--flush always``, nothing acknowledged may be missing: records of idempotent producers, the last record of each
key of a compacted topic, committed offsets, created and deleted topics. A transaction is visible as a whole in both of
its partitions with its offset, or not at all, as it was ended; nothing aborted is visible. With ``--flush os``, records
may be lost, but every partition and every coordinator must serve clients again without help.

Exits with status 1 and one line that names the first failed check.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

from support.commit_requests import commit_topics
from support.file_operations import FileOperations
from support.partition_logs import batch
from support.power_loss import Disk, write_state
from support.raw_broker import RawConnection, create_topic, fetch_request, metadata, produce
from support.raw_transactions import RawTransactions, committed_offset

from spark_groupsource.broker.process import serve_forever
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ErrorCode, GroupSourceError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.messages import DeleteTopicsRequest, InitProducerIdRequest, OffsetCommitRequest

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.segment.bytes": "20000",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.segment.bytes": "20000",
    "log.segment.bytes": "20000",
    "log.index.interval.bytes": "500",
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0.05",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.retention.ms": "-1",
}
PARTITIONS = 2
GROUPS = [f"group-{number}" for number in range(6)]
TRANSACTIONAL_IDS = [f"id-{number}" for number in range(4)]
KEYS = 5
BAD_REPORTS = ("damaged", "corrupt", "offline", "failed", "unexpected error")
RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
)  # fmt: skip


class CheckFailed(Exception):
    """Something acknowledged is missing, something aborted is visible, or a partition does not serve clients."""


class Broker:
    """The broker in a child process, on the directory `path`, with recorded file operations."""

    def __init__(self, path: Path, journal: Path, flush: bool, stop_after: int) -> None:
        self.path, self._journal = path, journal
        self._disk = Disk(path) if path.exists() else Disk()
        path.mkdir(exist_ok=True)
        ready, write_end = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(ready)
            _serve(path, journal, write_end, flush, stop_after)
        os.close(write_end)
        with open(ready, encoding="ascii") as pipe:
            self.address = pipe.readline().strip()  # empty if the process was stopped before it served clients

    def cut_power(self, randomness: random.Random) -> list[str]:
        """Kills the process and replaces the directory by what a power loss may leave; returns the reports."""
        os.kill(self._process, 9)
        os.waitpid(self._process, 0)
        reports = []
        for operation in _read(self._journal):
            self._disk.apply(operation)
            if operation[0] == "mark":
                reports.append(operation[1])
        shutil.rmtree(self.path)
        write_state(self._disk.after_power_loss(randomness), self.path)
        return reports


def _serve(path: Path, journal: Path, ready: int, flush: bool, stop_after: int) -> None:
    """Runs the broker until `stop_after` file operations are done; does not return."""
    remaining = stop_after
    with open(journal, "wb", buffering=0) as output:

        def record(operation: Any) -> None:
            nonlocal remaining
            output.write(pickle.dumps(operation))
            remaining -= operation[0] != "mark"
            if not remaining:
                os._exit(0)

        settings = {**SETTINGS, "log.flush.interval.messages": "1"} if flush else SETTINGS
        try:
            with FileOperations(path, record) as files:


                def tell(address: str) -> None:
                    os.write(ready, f"{address}\n".encode())
                    os.close(ready)

                def mark(lines: Any) -> None:
                    for line, _ in lines:
                        files.mark(line)

                serve_forever(path, Address("127.0.0.1", 0), settings, ready=tell, report=mark)
        except BaseException:
            output.write(pickle.dumps(("mark", f"unexpected error {traceback.format_exc()}")))
        os._exit(1)


def _read(journal: Path) -> Iterator[Any]:
    with open(journal, "rb") as source:
        while True:
            try:
                yield pickle.load(source)
            except EOFError:
                return


# --- reading ---


class Reader:
    """Reads one partition incrementally, without aborted records and markers if `committed`."""

    def __init__(self, topic: str, partition: int, committed: bool = False) -> None:
        self.topic, self.partition, self._committed = topic, partition, committed
        self.position = 0

    def read(self, connection: RawConnection) -> list[tuple[bytes | None, bytes]]:
        """(key, value) of the records from the last position to the end, or to the last stable offset."""
        start = self.position
        try:
            return self._read(connection)
        except GroupSourceError:
            self.position = start  # the caller has got nothing
            raise

    def _read(self, connection: RawConnection) -> list[tuple[bytes | None, bytes]]:
        found: list[tuple[bytes | None, bytes]] = []
        while True:
            request = fetch_request(self.topic, self.position, partition=self.partition)
            request.isolation_level = int(self._committed)
            response = connection.call(request, 11).responses[0].partitions[0]
            if response.error_code:
                raise CheckFailed(f"{self.topic}-{self.partition} at {self.position}: error {response.error_code}")
            data = bytes(response.records or b"")
            if not data:
                end = response.last_stable_offset if self._committed else response.high_watermark
                if self.position < end:
                    raise CheckFailed(f"{self.topic}-{self.partition}: nothing at {self.position} < {end}")
                return found
            aborted = sorted((each.first_offset, each.producer_id) for each in response.aborted_transactions or ())
            found += self._visible(data, aborted)

    def _visible(self, data: bytes, aborted: list[tuple[int, int]]) -> Iterator[tuple[bytes | None, bytes]]:
        running: set[int] = set()
        for header in iter_batches(data):
            while aborted and aborted[0][0] <= header.last_offset:
                running.add(aborted.pop(0)[1])
            if header.is_control:
                running.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in running):
                for record in decode_records(data, header):
                    if record.offset >= self.position:
                        yield record.key, record.value or b""
            self.position = header.next_offset


def until(call: Callable[[], Any], accepted: Callable[[Any], bool], what: str) -> Any:
    """Repeats a call until its result is accepted."""
    deadline = time.monotonic() + 20
    while not accepted(result := call()):
        if time.monotonic() > deadline:
            raise CheckFailed(f"{what}: {result!r} for 20 s")
        time.sleep(0.005)
    return result


def _is_reached(end: int, position: int) -> bool:
    return position >= end


def until_none(call: Callable[[], ErrorCode], what: str) -> None:
    code = until(call, lambda code: code not in RETRIABLE, what)
    if code is not ErrorCode.NONE:
        raise CheckFailed(f"{what}: {code.name}")


def commit(connection: RawConnection, group: str, offset: int) -> None:
    topics = commit_topics(OffsetCommitRequest, {"plain": {0: offset}})
    request = OffsetCommitRequest(group_id=group, topics=topics)

    def call() -> ErrorCode:
        return ErrorCode(connection.call(request, 8).topics[0].partitions[0].error_code)

    until_none(call, f"commit of {group}")


def committed(connection: RawConnection, group: str, topic: str = "plain") -> int:
    return until(
        lambda: committed_offset(connection, group, topic, stable=True),
        lambda found: not isinstance(found, ErrorCode),
        f"offset of {group}",
    )


# --- load ---


class Transaction(NamedTuple):
    """One transaction: its number is the value of both records and the committed offset of the group of its id."""

    transactional_id: str
    number: int
    outcome: str  # ongoing, committed, aborted, or unknown while EndTxn(commit) is not answered


class Load:
    """A client that sends one request after another, and knows what was acknowledged."""

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness
        self._next = 0
        self.produced: list[dict[bytes, bool]] = [{} for _ in range(PARTITIONS)]  # value -> acknowledged
        # key -> the last acknowledged number, -1 without one, and the number that was sent after it
        self.latest: dict[bytes, list[int]] = collections.defaultdict(lambda: [-1])
        self.offsets = {group: (-1, -1) for group in GROUPS}  # acknowledged, sent
        self.transactions: list[Transaction] = []
        self.topics: dict[str, bool | None] = {}  # name -> whether it exists, None if unknown
        self._producers: dict[str, RawTransactions] = {}
        self._producer_id = -1
        self._sequences = [0] * PARTITIONS

    def start(self, connection: RawConnection, suffix: str) -> None:
        """Initializes the producers, which ends what those with the same `suffix` had begun before the power loss."""
        for topic, settings in (("plain", {}), ("transactions", {}), ("compacted", {"cleanup_policy": "compact"})):
            partitions = 1 if settings else PARTITIONS
            code = ErrorCode(create_topic(connection, topic, partitions, **settings).error_code)
            if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise CheckFailed(f"creating topic {topic}: {code.name}")
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
        )
        self._producer_id = connection.call(request, 4).producer_id
        self._sequences = [0] * PARTITIONS
        for name in TRANSACTIONAL_IDS:
            producer = self._producers[name] = RawTransactions(connection, name + suffix)
            until_none(producer.find, f"coordinator of {name}")
            until_none(producer.init, f"initialization of {name}")

    def step(self, connection: RawConnection) -> None:
        """One action; a lost connection raises GroupSourceError."""
        self._next += 1
        actions = (self._produce, self._transact, self._transact, self._commit, self._compact, self._change_topic)
        self._randomness.choices(actions, (6, 3, 3, 4, 6, 1))[0](connection, self._next)

    def _produce(self, connection: RawConnection, number: int) -> None:
        partition, value = number % PARTITIONS, b"%d" % number
        data = batch(
            value, b"." * self._randomness.randrange(300), producer_id=self._producer_id, producer_epoch=0,
            base_sequence=self._sequences[partition],
        )  # fmt: skip
        self.produced[partition][value] = False
        _expect_none(produce(connection, "plain", data, partition).error_code, "produce")
        self._sequences[partition] += 2
        self.produced[partition][value] = True

    def _transact(self, connection: RawConnection, number: int) -> None:
        name = self._randomness.choice(TRANSACTIONAL_IDS)
        producer = self._producers[name]
        self.transactions.append(Transaction(name, number, "ongoing"))
        until_none(lambda: max(producer.add("transactions", *range(PARTITIONS))), f"adding partitions to {name}")
        for partition in range(PARTITIONS):
            _expect_none(producer.send("transactions", b"%d" % number, partition), "transactional produce")
        until_none(lambda: producer.add_offsets(name), f"adding offsets to {name}")
        until_none(lambda: producer.commit_offset(name, "transactions", number)[0], f"transactional commit of {name}")
        committed = self._randomness.random() < 0.5
        if committed:
            self.transactions[-1] = Transaction(name, number, "unknown")
        until_none(lambda: producer.end(committed), f"end of {name}")
        self.transactions[-1] = Transaction(name, number, "committed" if committed else "aborted")

    def _commit(self, connection: RawConnection, number: int) -> None:
        group = self._randomness.choice(GROUPS)
        self.offsets[group] = self.offsets[group][0], number
        commit(connection, group, number)
        self.offsets[group] = number, number

    def _compact(self, connection: RawConnection, number: int) -> None:
        # a key that is written once must be in the compacted segments from then on
        key = b"%d" % (number % KEYS) if number % 7 else b"once-%d" % number
        self.latest[key].append(number)
        data = encode_batch([Record(key, b"%d" % number, 1_000), Record(b"filler", b"." * 500, 1_000)])
        _expect_none(produce(connection, "compacted", data).error_code, "produce to the compacted topic")
        self.latest[key] = [number]

    def _change_topic(self, connection: RawConnection, number: int) -> None:
        name = f"topic-{number % 3}"
        exists = self.topics.get(name, False)
        self.topics[name] = None
        if exists:
            request = DeleteTopicsRequest(topic_names=[name], timeout_ms=1_000)
            _expect_none(connection.call(request, 5).responses[0].error_code, f"deletion of {name}")
        else:
            _expect_none(create_topic(connection, name, PARTITIONS).error_code, f"creation of {name}")
        self.topics[name] = not exists
        if not exists:
            _expect_none(produce(connection, name, batch(b"%d" % number)).error_code, f"produce to {name}")


def _expect_none(code: int, what: str) -> None:
    if code:
        raise CheckFailed(f"{what}: {ErrorCode(code).name}")


# --- checks ---


class Checker:
    """Compares a restarted broker with what was acknowledged."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.restart()

    def restart(self) -> None:
        """Reads everything from the beginning at the next check."""
        self._plain = [Reader("plain", number) for number in range(PARTITIONS)]
        self._present: list[dict[bytes, None]] = [{} for _ in range(PARTITIONS)]
        self._transactional = [Reader("transactions", number, True) for number in range(PARTITIONS)]
        self._visible: list[dict[bytes, None]] = [{} for _ in range(PARTITIONS)]

    def check_flushed(self, connection: RawConnection) -> None:
        """Everything that was acknowledged must be there."""
        self._check_produced(connection)
        self._check_transactions(connection)
        stored = {key: int(value) for key, value in Reader("compacted", 0).read(connection) if key != b"filler"}
        for key, numbers in self.load.latest.items():
            if len(numbers) == 1 and stored.get(key, -1) != numbers[0]:
                raise CheckFailed(f"key {key!r} has {stored.get(key)}, {numbers[0]} was acknowledged")
            self.load.latest[key] = [stored.get(key, -1)]
        for group, (acknowledged, sent) in self.load.offsets.items():
            found = committed(connection, group)
            if not acknowledged <= found <= sent:
                raise CheckFailed(f"{group} has committed {found}, {acknowledged} was acknowledged, {sent} sent")
            self.load.offsets[group] = found, found
        existing = {topic.name for topic in metadata(connection, *self.load.topics).topics if not topic.error_code}
        for name, exists in self.load.topics.items():
            if exists is not None and exists != (name in existing):
                raise CheckFailed(f"{name} was {'created' if exists else 'deleted'}: found {sorted(existing)}")
            self.load.topics[name] = name in existing

    def _check_produced(self, connection: RawConnection) -> None:
        for partition, (reader, present) in enumerate(zip(self._plain, self._present)):
            for _, value in reader.read(connection):
                if value.startswith(b".") or not value:
                    continue
                if value in present:
                    raise CheckFailed(f"record {value!r} is duplicated")
                present[value] = None
            produced = self.load.produced[partition]
            missing = [value for value, acknowledged in produced.items() if acknowledged and value not in present]
            if missing:
                raise CheckFailed(f"{len(missing)} acknowledged records are missing, first {missing[0]!r}")

    def _check_transactions(self, connection: RawConnection) -> None:
        for reader, visible in zip(self._transactional, self._visible):
            end = Reader("transactions", reader.partition)
            end.position = reader.position
            end.read(connection)

            def read(reader: Reader = reader, visible: dict[bytes, None] = visible) -> int:
                for _, value in reader.read(connection):
                    if value in visible:
                        raise CheckFailed(f"transactional record {value!r} is duplicated")
                    visible[value] = None
                return reader.position

            until(read, partial(_is_reached, end.position), "every transaction is ended")
        offsets = {name: -1 for name in TRANSACTIONAL_IDS}
        for index, transaction in enumerate(self.load.transactions):
            seen = [b"%d" % transaction.number in visible for visible in self._visible]
            expected = {"committed": [[True] * PARTITIONS], "unknown": [[True] * PARTITIONS, [False] * PARTITIONS]}
            if seen not in expected.get(transaction.outcome, [[False] * PARTITIONS]):
                raise CheckFailed(f"{transaction} is visible in the partitions {seen}")
            self.load.transactions[index] = transaction._replace(outcome="committed" if seen[0] else "aborted")
            if seen[0]:
                offsets[transaction.transactional_id] = transaction.number
        for name, number in offsets.items():
            if (found := committed(connection, name, "transactions")) != number:
                raise CheckFailed(f"{name} has committed offset {found}, its last transaction is {number}")

    def check_available(self, connection: RawConnection) -> None:
        """Every partition must serve reads and appends, and every coordinator commits."""
        topics = metadata(connection, "plain", "transactions", "compacted", *self.load.topics).topics
        for topic in topics:
            if topic.error_code:
                continue
            for partition in topic.partitions:
                reader = Reader(topic.name, partition.partition_index)
                reader.read(connection)
                data = encode_batch([Record(b"filler", b"", 1_000)])
                response = produce(connection, topic.name, data, partition.partition_index)
                _expect_none(response.error_code, f"produce to {topic.name}-{partition.partition_index}")
        for group in (*GROUPS, *TRANSACTIONAL_IDS):
            commit(connection, group, self.load._next)
            if (found := committed(connection, group)) != self.load._next:
                raise CheckFailed(f"{group} has committed {found} instead of {self.load._next}")


def run(scratch: Path, rounds: int, flush: bool, seed: int) -> None:
    randomness = random.Random(seed)
    load = Load(randomness)
    checker = Checker(load)
    statistics: collections.Counter[str] = collections.Counter()
    for number in range(rounds + 1):
        is_last = number == rounds
        stop_after = randomness.choice((randomness.randrange(1, 200), *[randomness.randrange(200, 1500)] * 2))
        broker = Broker(scratch / "data", scratch / "journal", flush, -1 if is_last else stop_after)
        try:
            if broker.address:
                statistics["starts"] += 1
                with RawConnection(broker.address) as connection:
                    # without flushes the coordinator may have lost the last epoch of an id
                    load.start(connection, "" if flush else f"-{number}")
                    if flush:
                        if is_last:
                            checker.restart()
                        checker.check_flushed(connection)
                    else:
                        checker.check_available(connection)
                        load.topics = dict.fromkeys(load.topics, None)
                        _find_topics(connection, load)
                    statistics["checks"] += 1
                    while not is_last:
                        load.step(connection)
                        statistics["actions"] += 1
        except GroupSourceError:
            pass  # the power was cut
        finally:
            reports = broker.cut_power(randomness)
        others = [line for line in reports if "Truncated unflushed bytes" not in line]
        bad = [line for line in others if any(word in line.lower() for word in BAD_REPORTS)]
        if bad:
            raise CheckFailed(f"the broker reported: {bad[0]}")
        statistics["truncations"] += len(reports) - len(others)
        if (number + 1) % 50 == 0:
            print(f"{number + 1} rounds, {dict(statistics)}", flush=True)
    kept = "nothing acknowledged lost, nothing aborted visible" if flush else "every partition and coordinator serves"
    print(
        f"--flush {'always' if flush else 'os'}: {rounds} power losses, {statistics['starts']} starts that served "
        f"clients, {statistics['checks']} checks, {statistics['actions']} actions acknowledged, "
        f"{statistics['truncations']} logs truncated; {kept}"
    )


def _find_topics(connection: RawConnection, load: Load) -> None:
    for topic in metadata(connection, *load.topics).topics if load.topics else ():
        load.topics[topic.name] = not topic.error_code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--flush", choices=("always", "os"), help="default: both, one after the other")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    for mode in (options.flush,) if options.flush else ("always", "os"):
        scratch = Path(tempfile.mkdtemp(prefix="groupsource-power-")).resolve()
        try:
            run(scratch, options.rounds, mode == "always", options.seed)
        except CheckFailed as error:
            print(f"seed {options.seed}, --flush {mode}: {error}; the data is in {scratch}", file=sys.stderr)
            return 1
        shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
