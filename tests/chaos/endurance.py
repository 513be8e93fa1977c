"""Runs micro-batches with rebalances and checks the growth of resource usage.

    PYTHONPATH=jobs:tests python tests/chaos/endurance.py [--minutes 5] [--kafka]

Two members read a constant rate of records without a pause between batches; a foreign member joins for 20 s and leaves
for 20 s, repeatedly. Every second the run samples memory, threads, sockets and file descriptors of the driver JVM, the
reader process and the Python workers, and the JVM heap after a garbage collection every five seconds. It compares the
second fifth of the run, after the warm-up, with the last fifth.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from chaos.foreign_member import ForeignMember
from chaos.numbered_producer import NumberedProducer
from chaos.submitted_application import SubmittedApplication
from real_kafka import RealKafka
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker

SCRIPT = Path(__file__).with_name("endurance_application.py")
TOPIC, GROUP = "endurance", "endurance"
PARTITIONS = 6
RECORDS_PER_S = 200
VISIT_S = 20.0
BROKER_CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
# the JVM touches the whole heap at the start, so that later growth of its memory is outside the heap
JAVA = "-Xms512m -XX:+AlwaysPreTouch"

# transient threads of Spark: pools of the block manager grow up to 128 and shrink after a minute, and the monitor of a
# Python task ends up to two seconds after the task
POOLS = ("block-manager-", "Worker Monitor")

# permitted growth: a share, and an absolute amount for transient resources
TOLERANCE = {
    "rss_mb": (0.05, 6.0),
    "threads": (0.0, 3.0),
    "sockets": (0.0, 3.0),
    "descriptors": (0.0, 4.0),
    "processes": (0.0, 1.0),
    "heap_mb": (0.05, 4.0),
}


class Sample(NamedTuple):
    """Resource usage of all processes of one role."""

    rss_mb: float
    threads: int
    sockets: int
    descriptors: int
    processes: int
    names: Counter[str]
    """Number of threads by name, with digits replaced."""


FIELDS = Sample._fields[:-1]


def sample(pids: Iterable[int]) -> Sample:
    """Returns the usage of these processes; a process that has exited is skipped."""
    found = Sample(0.0, 0, 0, 0, 0, Counter())
    for pid in pids:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            names = Counter(_thread_names(pid))
            open_files = list(_open_files(pid))
            rss_mb = int(status["VmRSS"].split()[0]) / 1024
        except (OSError, KeyError):
            # the process has exited
            continue
        found = Sample(
            found.rss_mb + rss_mb,
            found.threads + sum(names.values()),
            found.sockets + sum(name.startswith("socket:") for name in open_files),
            found.descriptors + len(open_files),
            found.processes + 1,
            found.names + names,
        )
    return found


def _thread_names(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            name = entry.read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            # the thread has exited
            continue
        if not name.startswith(POOLS):
            yield re.sub(r"\d+", "#", name)


def _open_files(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(entry)
        except FileNotFoundError:
            # the file was closed
            continue


def compare(role: str, name: str, values: Sequence[float]) -> list[str]:
    """Prints the medians of the second and the last fifth; returns one line when the growth exceeds the tolerance."""
    fifth = len(values) // 5
    was, is_now = statistics.median(values[fifth : 2 * fifth]), statistics.median(values[-fifth:])
    print(f"{role:10}{name:14}{was:14.1f}{is_now:14.1f}")
    share, amount = TOLERANCE[name]
    return [f"{role}: {name} grew from {was:.1f} to {is_now:.1f}"] if is_now > was * (1 + share) + amount else []


class Endurance:
    """One run of `minutes`; `report_growth` returns the findings."""

    def __init__(self, directory: Path, bootstrap_servers: str, minutes: float) -> None:
        self._directory = directory
        self._servers = bootstrap_servers
        self._seconds = minutes * 60
        self._samples: dict[str, list[Sample]] = {"driver": [], "reader": [], "workers": []}
        self._visits = 0
        arguments = ["--bootstrap-servers", bootstrap_servers, "--topic", TOPIC, "--group", GROUP]
        self._application = SubmittedApplication("endurance", directory, 1, arguments, SCRIPT, JAVA)

    def run(self) -> None:
        application = self._application
        wait_until(lambda: application.is_ready, "the application is ready", 120, 0.2)
        wait_until(lambda: self.reports, "the first batches", 60, 0.2)
        ended = threading.Event()
        visitor = threading.Thread(target=self._visit, args=(ended,), daemon=True)
        visitor.start()
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            assert application.process.poll() is None, application.log.read_text()[-3000:]
            self._samples["driver"].append(sample([application.process.pid]))
            self._samples["reader"].append(sample(application.readers()))
            self._samples["workers"].append(sample(application.workers()))
            time.sleep(1)
        self._all_reports = self.reports
        ended.set()
        visitor.join(60)
        application.process.terminate()
        application.end()

    def _visit(self, ended: threading.Event) -> None:
        """Starts and stops foreign members; they exit with this thread."""
        while not ended.wait(VISIT_S):
            rows = self._directory / f"foreign-{self._visits}.rows"
            with ForeignMember(self._servers, GROUP, TOPIC, rows, 10_000):
                ended.wait(VISIT_S)
                self._visits += 1

    @property
    def reports(self) -> list[dict[str, float]]:
        lines = self._application.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"time"')]

    def report_growth(self) -> list[str]:
        """Prints the run as a table; returns one line per resource that grew."""
        first, last = self._all_reports[0], self._all_reports[-1]
        batches, seconds = last["batch"] - first["batch"], last["time"] - first["time"]
        print(f"{batches:.0f} batches in {seconds:.0f} s, {batches / seconds:.1f} a second; {self._visits} visits")
        print(f"{'':10}{'':14}{'second fifth':>14}{'last fifth':>14}")
        grown = []
        for role, samples in self._samples.items():
            for name in FIELDS:
                grown += compare(role, name, [getattr(sample, name) for sample in samples])
            early, late = samples[len(samples) // 5].names, samples[-1].names
            print(f"{role:10}more threads: {', '.join(f'{n} {name}' for name, n in (late - early).items()) or 'none'}")
        heap = [report["heap_bytes"] / 2**20 for report in self._all_reports]
        return grown + compare("driver", "heap_mb", heap)

    def close(self) -> None:
        self._application.close()


def run(directory: Path, minutes: float, kafka: bool = False) -> None:
    """Runs once.

    Raises: AssertionError naming the resources that grew.
    """
    with ExitStack() as stack:
        broker: Any = RealKafka(BROKER_CONFIG) if kafka else EmbeddedBroker(config=BROKER_CONFIG)
        servers = stack.enter_context(broker).bootstrap_servers
        create_topic(servers, TOPIC, PARTITIONS)
        producer = NumberedProducer(servers, TOPIC, PARTITIONS, RECORDS_PER_S)
        stack.callback(producer.stop)
        endurance = Endurance(directory, servers, minutes)
        stack.callback(endurance.close)
        endurance.run()
        grown = endurance.report_growth()
    assert not grown, "; ".join(grown)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run micro-batches without pause and check resource usage.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kafka", action="store_true", help="on a real Apache Kafka")
    parser.add_argument("--directory", type=Path, default=None, help="kept; default: a new temporary one")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = options.directory or Path(tempfile.mkdtemp(prefix="groupsource-endurance-"))
    directory.mkdir(exist_ok=True)
    run(directory, options.minutes, options.kafka)


if __name__ == "__main__":
    main()
