"""Benchmark of the pause that a rebalance causes, by assignor.

    python benchmarks/rebalance.py [--kafka] [--slow 3] [--assignor range]

Three readers are three applications of one group with a steady input; this script makes Spark's calls. `a` reads its
batches without delay; each batch of `b` takes `--slow` seconds, so `b` delays every rebalance. Then `c` joins. For each
assignor, the table has the longest time between two completed batches of `a` before `c` joined and during the
rebalance, and the time until `c` had its first records. Runs on the embedded broker, or on a real Kafka with --kafka.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "jobs"))

from real_kafka import RealKafka  # noqa: E402

PARTITIONS = 6
PER_SECOND = 300
STEADY_S = 6.0
ASSIGNORS = ("range", "sticky", "cooperative-sticky")
QUICK = {"group.initial.rebalance.delay.ms": "0"}


@contextmanager
def feeding(servers: str, topic: str) -> Iterator[None]:
    """Produces records to every partition at a steady rate, in a thread."""
    ending = threading.Event()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})

    def run() -> None:
        number = 0
        while not ending.wait(0.05):
            for _ in range(PER_SECOND // 20):
                producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
                number += 1
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class Application:
    """One query in a thread that makes Spark's calls; `ended` has the end times of batches with records, in seconds."""

    def __init__(self, name: str, options: dict[str, str], slow_s: float = 0) -> None:
        from spark_groupsource.source.options.option_parser import parse_options
        from spark_groupsource.source.options.schema import SelectedColumns
        from spark_groupsource.source.spark.stream_reader import GroupStreamReader

        self.ended: list[float] = []
        self._slow_s = slow_s
        parsed = parse_options({**options, "kafka.client.id": name}, "stream")
        self._reader = GroupStreamReader(parsed, SelectedColumns(("value",)), driver=os.getpid())
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start = self._reader.initialOffset()
        try:
            while not self._ending.is_set():
                end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
                if end == start:
                    continue
                parts = self._reader.partitions(start, end)
                count = sum(batch.num_rows for part in parts for batch in self._reader.read(part))
                self._ending.wait(self._slow_s if count else 0)
                start = end
                if count:
                    self.ended.append(time.monotonic())
        finally:
            self._reader.stop()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(30)

    def longest_gap(self, begin_s: float, end_s: float) -> float:
        """Returns the longest time in seconds between two batches, from the last before the span to the first after."""
        before = [at for at in self.ended if at < begin_s][-1:]
        after = [at for at in self.ended if at >= end_s][:1]
        times = before + [at for at in self.ended if begin_s <= at < end_s] + after
        return max(later - earlier for earlier, later in zip(times, times[1:]))


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.02)


def measure(servers: str, assignor: str, slow_s: float) -> tuple[float, float, float]:
    """Returns the longest gap of `a` before `c` joined and during the rebalance, and the seconds until `c` read."""
    from spark_groupsource.client.admin import NewTopic, create_topics, describe_groups
    from spark_groupsource.client.cluster.cluster_client import ClusterClient
    from spark_groupsource.client.settings import ClientSettings

    topic = group = f"rebalance-{assignor}"
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "kafka.group.id": group,
        "splitBetweenQueries": "true",
        "members": "1",
        "startingOffsets": "latest",
        # bounds the time until members notice a rebalance, and so the pause of eager members
        "kafka.heartbeat.interval.ms": "500",
        "kafka.partition.assignment.strategy": assignor,
    }
    settings = ClientSettings.parse({"bootstrap.servers": servers})
    with ClusterClient(servers, settings) as cluster:
        create_topics(cluster, [NewTopic(topic, PARTITIONS, 1)])

        def shared_by(count: int) -> bool:
            described = describe_groups(cluster, [group])[group]
            return described.state == "Stable" and sum(bool(m.assignment) for m in described.members) == count

        with feeding(servers, topic):
            a = Application("a", options)
            b = Application("b", options, slow_s)
            wait_for(lambda: shared_by(2) and a.ended and b.ended, "reading by two applications")
            begin_s = time.monotonic()
            time.sleep(STEADY_S)
            joined_s = time.monotonic()
            steady_s = a.longest_gap(begin_s, joined_s)
            c = Application("c", options)
            wait_for(lambda: c.ended and shared_by(3), "reading by three applications")
            settled_s = time.monotonic()
            wait_for(lambda: a.ended[-1] > settled_s, "a further batch")
            moving_s = a.longest_gap(joined_s, settled_s)
            for application in (a, b, c):
                application.stop()
        return steady_s, moving_s, c.ended[0] - joined_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="run on a downloaded Apache Kafka")
    parser.add_argument("--slow", type=float, default=3.0, metavar="SECONDS", help="duration of a batch of `b`")
    parser.add_argument("--assignor", action="append", choices=ASSIGNORS, help="assignor to measure; may be repeated")
    arguments = parser.parse_args()

    from spark_groupsource.broker.embedded import EmbeddedBroker
    from spark_groupsource.source.process import reader_process

    # a reader must not replace the signal handlers of this process
    reader_process.install_signal_handlers = lambda terminate: None
    logging.getLogger("spark_groupsource").addHandler(logging.NullHandler())
    broker = RealKafka(QUICK) if arguments.kafka else EmbeddedBroker(config=QUICK)
    table = Table("assignor", "steady, s", "while c joins, s", "ratio", "until c reads, s")
    with broker:
        for assignor in arguments.assignor or ASSIGNORS:
            steady_s, moving_s, joined_s = measure(broker.bootstrap_servers, assignor, arguments.slow)
            ratio = moving_s / steady_s
            table.add_row(assignor, f"{steady_s:.2f}", f"{moving_s:.2f}", f"{ratio:.1f}", f"{joined_s:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
