"""Injects faults into applications that copy a topic exactly once.

    PYTHONPATH=jobs:tests python tests/chaos/copies.py --events 50 --seed 7 [--kafka] [--executors 2]

Two applications copy a topic in one group: each record must be in the copy once. A third one counts its records by
window of event time, in a group of its own, so that its state must be right, too. A producer writes numbered records
during the run.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chaos.brokers import Broker, EmbeddedBrokerProcess, RealKafkaBroker
from chaos.copying_application import WINDOW_MS
from chaos.numbered_producer import NumberedProducer
from chaos.proxy import Proxy
from chaos.streaming_application import wait_s
from chaos.submitted_application import SubmittedApplication, signal_all
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Assigned
from support.clients import open_cluster
from support.topics import create_topic
from support.waiting import wait_until

PARTITIONS = 4
TOPIC, GROUP = "numbers", "copies"
COPY, COUNTS = f"{TOPIC}-copy", f"{TOPIC}-counts"
MAX_OFFSETS = 300
_SCRIPT = Path(__file__).with_name("copying_application.py")
_EVENTS = (
    "kill driver", "kill driver", "kill reader", "kill worker", "kill broker", "stop application", "stop driver",
    "drain",
)  # fmt: skip
# longer than the session of a member
_STOPPED_S = 8.0


class Topic:
    """What a read_committed consumer sees of a topic; `windows` are its numbers of records as the counts have them."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.records: list[tuple[str | None, str]] = []
        self.windows: Counter[str | None] = Counter()
        self._ended: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "checks",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        self._consumer.assign([Assigned(topic, number, 0) for number in range(PARTITIONS)])

    def read(self) -> list[tuple[str | None, str]]:
        """Reads what has arrived, and returns key and value of all records so far."""
        while (message := self._consumer.poll(0.5)) is not None:
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                self.records.append((None if key is None else key.decode(), (value or b"").decode()))
                _, timestamp_ms = message.timestamp()
                self.windows[f"{message.partition()} {timestamp_ms // WINDOW_MS * WINDOW_MS}"] += 1
            else:
                known = (KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
                assert error.code() in known, error
        return self.records

    def close(self) -> None:
        self._consumer.close()


def _wait_with_progress(is_done: Callable[[], bool], topic: Topic, what: str) -> None:
    """Waits while the topic grows: a busy machine may be many batches behind the producer."""
    while not is_done():
        known = len(topic.records)
        wait_until(lambda: len(topic.read()) > known, f"{what}, or another than the {known} known ones", wait_s(), 0.5)


class CopyRun:
    """One run in `directory`; with executors, each application has as many in processes of their own."""

    def __init__(self, directory: Path, *, kafka: bool, records_per_s: int, executors: int) -> None:
        self._events = (*_EVENTS, *["kill executor"] * (3 if executors else 0))
        self._proxy = Proxy()
        self._broker: Broker = (RealKafkaBroker if kafka else EmbeddedBrokerProcess)(directory, self._proxy)
        self._broker.start()
        for topic in (TOPIC, COPY, COUNTS):
            create_topic(self._proxy.address, topic, PARTITIONS)
        self._producer = NumberedProducer(self._proxy.address, TOPIC, PARTITIONS, records_per_s, is_idempotent=True)
        arguments = ["--bootstrap-servers", self._proxy.address, "--topic", TOPIC, "--group", GROUP]
        arguments += ["--max-offsets", str(MAX_OFFSETS)]
        self._applications = [
            SubmittedApplication(name, directory, 4, arguments + more, _SCRIPT, executors=executors)
            for name, more in (("a", []), ("b", []), ("c", ["--counts"]))
        ]

    def run(self, events: int, seed: int) -> int:
        """Injects events, and returns the number of records in the copy.

        Raises: AssertionError for a record that is lost or repeated.
        """
        draw = random.Random(seed)
        for application in self._applications:
            application.wait_ready()
        for number in range(1, events + 1):
            event, target = draw.choice(self._events), draw.choice(self._applications)
            target.wait_ready()
            self._inject(event, target)
            print(f"event {number}: {event} of {target.name}", flush=True)
            time.sleep(draw.uniform(0.2, 4))
        self._producer.stop()
        return self._check()

    def _inject(self, event: str, target: SubmittedApplication) -> None:
        if event == "kill broker":
            self._broker.kill()
            self._broker.start()
        elif event == "kill driver":
            target.process.kill()
            target.end()
            target.start()
        elif event == "drain":
            signal_all([target.process.pid], signal.SIGTERM)
            target.end()
            target.start()
        elif event.startswith("kill"):
            found = {"reader": target.readers, "worker": target.workers, "executor": target.executors}[event[5:]]()
            signal_all(found[:1] if event == "kill executor" else found, signal.SIGKILL)
        else:
            stopped = target.all_processes() if event == "stop application" else [target.process.pid]
            signal_all(stopped, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            signal_all(stopped, signal.SIGCONT)

    def _check(self) -> int:
        expected = {str(number) for number in self._producer.acknowledged}
        given, copied, counted = (Topic(self._proxy.address, name) for name in (TOPIC, COPY, COUNTS))
        by_partition = Counter(str(int(number) % PARTITIONS) for number in expected)

        def is_copied() -> bool:
            return expected <= {value for _, value in copied.read()}

        def is_counted() -> bool:
            return {key: int(value) for key, value in counted.read()} == given.windows

        try:
            _wait_with_progress(lambda: len(given.read()) >= len(expected), given, "the records are read")
            _wait_with_progress(is_copied, copied, f"each of {len(expected)} records is in the copy")
            _wait_with_progress(is_counted, counted, "the counts are those of the records")
        finally:
            for application in self._applications:
                application.close()
        repeated = {value: count for value, count in Counter(v for _, v in copied.read()).items() if count > 1}
        assert not repeated, f"{len(repeated)} records are in the copy more than once: {sorted(repeated)[:20]}"
        counts: dict[str | None, int] = {}
        for key, value in counted.read():
            assert int(value) >= counts.get(key, 0), f"the count of {key} decreases to {value}"
            counts[key] = int(value)
        self._check_offsets(by_partition)
        for topic in (given, copied, counted):
            topic.close()
        return len(copied.records)

    def _check_offsets(self, by_partition: Counter[str]) -> None:
        with open_cluster(self._proxy.address) as client:
            committed = client.fetch_committed(GROUP)
        found = {str(p.partition): c.offset for p, c in committed.items() if c is not None}
        assert found == by_partition, f"the offsets of the group are {found}, the input ends at {by_partition}"

    def close(self) -> None:
        for application in self._applications:
            application.close()
        self._broker.stop()


def run(
    directory: Path, *, events: int, seed: int, kafka: bool = False, records_per_s: int = 100, executors: int = 0
) -> int:
    """Runs the applications with faults; returns the number of records in the copy."""
    found = CopyRun(directory, kafka=kafka, records_per_s=records_per_s, executors=executors)
    try:
        return found.run(events, seed)
    finally:
        found.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--executors", type=int, default=0, help="of each application, in processes of their own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        count = run(
            Path(directory),
            events=options.events,
            seed=options.seed,
            kafka=options.kafka,
            executors=options.executors,
        )
    print(f"{count} records, each once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
