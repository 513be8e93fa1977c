"""Kills a broker under transactions; each output record must occur once.

    PYTHONPATH=jobs:tests python tests/chaos/exactly_once.py --records 20000 --kills 50 --seed 7

Two workers of one group (librdkafka) read a topic and write each record to another in transactions that also commit
the offsets. The broker is killed with SIGKILL at random times and restarted on the same port. After an error a worker
follows librdkafka's classification: retry, abort, or restart with a new producer. At the end a read_committed consumer
must find each record once. The seed determines the times of the kills.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.raw_broker import BrokerProcess
from support.read_back import messages_to_end
from support.topics import create_topic, produce
from support.waiting import wait_until

PARTITIONS = 2
WORKERS = 2
BATCH = 25
SETTINGS = (
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
)


class Worker(threading.Thread):
    """Moves records from `source` to `sink` until `stopped`; `errors` counts the errors by reaction and name."""

    def __init__(self, servers: str, number: int, stopped: threading.Event) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._servers, self._number, self._stopped = servers, number, stopped
        self.errors: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._work()
                except KafkaException as error:  # restart with the same transactional.id, which fences the old producer
                    self.errors[f"restart: {error.args[0].name()}"] += 1
        except BaseException as error:
            self.failure = error

    def _work(self) -> None:
        settings = {"bootstrap.servers": self._servers, "log_level": 0, "reconnect.backoff.max.ms": 200}
        # librdkafka 2.16 rebootstraps when its only broker is down, and send_offsets_to_transaction then waits forever
        # for the previous group coordinator
        settings["metadata.recovery.strategy"] = "none"
        producer = Producer({**settings, "transactional.id": f"worker-{self._number}", "linger.ms": 0})
        consumer = Consumer(
            {**settings, "group.id": "workers", "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "isolation.level": "read_committed", "session.timeout.ms": 6_000}
        )  # fmt: skip
        try:
            producer.init_transactions(30)
            consumer.subscribe(["source"])
            while not self._stopped.is_set():
                messages = [message for message in consumer.consume(BATCH, 0.5) if not message.error()]
                if messages and not self._move(producer, consumer, messages):
                    return  # uncommitted records are read again from the committed offsets
        finally:
            consumer.close()
            producer.purge()

    def _move(self, producer: Producer, consumer: Consumer, messages: list[Any]) -> bool:
        """Runs one transaction; returns False when it was aborted."""
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce("sink", message.value(), partition=message.partition())
            offsets: dict[int, int] = {}
            for message in messages:
                offsets[message.partition()] = message.offset() + 1
            committed = [TopicPartition("source", partition, offset) for partition, offset in offsets.items()]
            self._until_done(
                lambda: producer.send_offsets_to_transaction(committed, consumer.consumer_group_metadata(), 5)
            )
            self._until_done(lambda: producer.commit_transaction(5))
            return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.errors[f"abort: {error.args[0].name()}"] += 1
            self._until_done(lambda: producer.abort_transaction(5))
            return False

    def _until_done(self, action) -> None:
        while True:
            try:
                return action()
            except KafkaException as error:
                if not error.args[0].retriable() or self._stopped.is_set():
                    raise
                self.errors[f"retry: {error.args[0].name()}"] += 1


def read_committed(servers: str) -> Counter[bytes]:
    """Counts the values in the sink that a read_committed consumer sees."""
    return Counter(message.value() or b"" for message in messages_to_end(servers, "sink", PARTITIONS))


def progress(servers: str, workers: list[Worker], before: int) -> int | None:
    """Returns the number of moved records, or None when it has not increased."""
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure
    count = sum(read_committed(servers).values())
    return count if count > before else None


def run(data_dir: Path, records: int, kills: int, seed: int) -> Counter[str]:
    """Returns the errors of the workers by kind.

    Raises: AssertionError when a record is missing or duplicated.
    """
    randomness = random.Random(seed)
    broker = BrokerProcess(data_dir, *SETTINGS)
    servers, port = broker.bootstrap_servers, broker.address.port
    stopped = threading.Event()
    workers = [Worker(servers, number, stopped) for number in range(WORKERS)]
    try:
        for topic in ("source", "sink"):
            create_topic(servers, topic, PARTITIONS)
        produce(servers, "source", [(n % PARTITIONS, None, b"%d" % n) for n in range(records)])
        for worker in workers:
            worker.start()
        for _ in range(kills):
            time.sleep(randomness.uniform(0.2, 1.5))
            broker.kill()
            broker = BrokerProcess(data_dir, *SETTINGS, port=port)
        expected = Counter({b"%d" % n: 1 for n in range(records)})

        count = -1
        while count < records:  # while there is progress
            count = wait_until(lambda: progress(servers, workers, count) or 0, "another record is moved", 120, 1)
        found = read_committed(servers)
        missing, twice = expected - found, {value: count for value, count in found.items() if count > 1}
        assert not missing and not twice, f"{len(missing)} missing, {len(twice)} more than once: {list(twice)[:5]}"
    finally:
        stopped.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join(30)
        broker.kill()
    return sum((worker.errors for worker in workers), Counter())


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a broker under transactions and check the records.")
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="groupsource-exactly-once-") as directory:
        errors = run(Path(directory), options.records, options.kills, options.seed)
    summary = ", ".join(f"{kind} {count}" for kind, count in errors.most_common()) or "none"
    print(f"{options.records} records, {options.kills} kills: each came out once; errors: {summary}")


if __name__ == "__main__":
    main()
