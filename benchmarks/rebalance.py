"""How long an application stands still while another joins its group: eager against cooperative assignors, in one run.

    python benchmarks/rebalance.py [--kafka] [--slow 3] [--assignor range]

Three readers, driven as Spark drives them but without its own share of each batch, are three applications of one
group, fed steadily. `a` works off its batches as they come; each batch of `b` takes `--slow` seconds, so `b` is late in
every rebalance. Then `c` joins. Told are, for each assignor, the longest time between two finished batches of `a`
before `c` came and while the group rebalanced, and how long it took until `c` had its first records. On the embedded
broker, or on a real Kafka with --kafka.
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
    """A steady stream of records to every partition, in a thread."""
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
    """One query in a thread, driven as Spark drives it; `ended` holds when batches with records ended, in seconds."""

    def __init__(self, name: str, options: dict[str, str], slow_s: float = 0) -> None:
        from spark_groupsource.source.options import parse_options
        from spark_groupsource.source.schema import SelectedColumns
        from spark_groupsource.source.stream_reader import GroupStreamReader

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
        """Seconds between the ends of two batches, the longest; a batch before the span and one after it count."""
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
    """Longest gap of `a` before `c` came, the same while the group rebalanced, and seconds until `c` read."""
    from spark_groupsource.client.admin import NewTopic, create_topics, describe_groups
    from spark_groupsource.client.cluster.client import Cluster
    from spark_groupsource.client.settings import ClientSettings

    topic = group = f"rebalance-{assignor}"
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "kafka.group.id": group,
        "members": "1",
        "startingOffsets": "latest",
        # how soon members hear of a rebalance, and so how long an eager one stands still for it
        "kafka.heartbeat.interval.ms": "500",
        "kafka.partition.assignment.strategy": assignor,
    }
    settings = ClientSettings.parse({"bootstrap.servers": servers})
    with Cluster(servers, settings) as cluster:
        create_topics(cluster, [NewTopic(topic, PARTITIONS, 1)])

        def shared_by(count: int) -> bool:
            told = describe_groups(cluster, [group])[group]
            return told.state == "Stable" and sum(bool(m.assignment) for m in told.members) == count

        with feeding(servers, topic):
            a = Application("a", options)
            b = Application("b", options, slow_s)
            wait_for(lambda: shared_by(2) and a.ended and b.ended, "two applications that read")
            begin_s = time.monotonic()
            time.sleep(STEADY_S)
            joined_s = time.monotonic()
            steady_s = a.longest_gap(begin_s, joined_s)
            c = Application("c", options)
            wait_for(lambda: c.ended and shared_by(3), "three applications that read")
            settled_s = time.monotonic()
            wait_for(lambda: a.ended[-1] > settled_s, "a further batch")
            moving_s = a.longest_gap(joined_s, settled_s)
            for application in (a, b, c):
                application.stop()
        return steady_s, moving_s, c.ended[0] - joined_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="on a real Apache Kafka, which is fetched and started")
    parser.add_argument("--slow", type=float, default=3.0, metavar="SECONDS", help="how long a batch of `b` takes")
    parser.add_argument("--assignor", action="append", choices=ASSIGNORS, help="one of them; may be repeated")
    arguments = parser.parse_args()

    from spark_groupsource.broker.server import EmbeddedBroker
    from spark_groupsource.source import reader_process

    # readers of this process are not ended by signals
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
