"""Two applications of one group under a random hand that drains, kills, stops and joins; nothing may be lost.

    PYTHONPATH=jobs:tests python tests/chaos/stream.py --events 200 --seed 7

A producer writes numbered records all the while. After each event, and in between, the group's commits are compared
with what the outputs hold. `--graceful` leaves the violent events out: then nothing may be delivered twice either.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from chaos.application import SESSION_TIMEOUT_S
from chaos.ledger import Ledger
from confluent_kafka import Producer
from processes import popen_leashed, stop_process
from support.members import RdMember
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client.cluster import LATEST, Cluster
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.net import Address, listen
from spark_groupsource.source.control import control_directory
from spark_groupsource.source.local import is_alive

# more than members, so that one who joins is given something
PARTITIONS = 6
MAX_OFFSETS = 500
RECORDS_PER_S = 200
TOPIC, GROUP = "chaos", "chaos"
APPLICATION = Path(__file__).with_name("application.py")
BROKER_CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}


class Feed:
    """A producer of the numbers 0, 1, 2, …; `acknowledged` are those a broker has taken."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5, "log_level": 0}
        )
        self.acknowledged: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the producer cannot send its last records"

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.05):
            for _ in range(RECORDS_PER_S // 20):
                self._producer.produce(
                    TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered(number)
                )
                number += 1
            self._producer.poll(0)
        self._producer.flush(100)

    def _delivered(self, number: int) -> Callable[[object, object], None]:
        return lambda error, _: None if error else self.acknowledged.add(number)


class Broker:
    """The embedded broker as a process that can be killed and comes back at the same address."""

    def __init__(self, data_dir: Path) -> None:
        with listen(Address("127.0.0.1", 0)) as probe:
            self.bootstrap_servers = f"127.0.0.1:{probe.getsockname()[1]}"
        self._command = [str(Path(sys.executable).parent / "groupsource"), "broker"]
        self._command += ["--listen", self.bootstrap_servers, "--data-dir", str(data_dir)]
        self._log = data_dir.with_suffix(".log")
        self._command += [part for key, value in BROKER_CONFIG.items() for part in ("--config", f"{key}={value}")]
        self.start()

    def start(self) -> None:
        with open(self._log, "a") as log:
            self._process = popen_leashed(self._command, subprocess.PIPE, log)
        assert self._process.stdout is not None
        assert "listening" in self._process.stdout.readline(), "the broker did not start"

    def kill(self) -> None:
        self._process.kill()
        stop_process(self._process, 5)

    def stop(self) -> None:
        stop_process(self._process, 20)


class Application:
    """One run after the other of the application, with an output and a checkpoint that stay."""

    def __init__(self, name: str, directory: Path, bootstrap_servers: str, attempts: int) -> None:
        self.name, self.directory = name, directory / name
        self.log = directory / f"{name}.log"
        self._master = f"local[2,{attempts}]"
        self._arguments = [bootstrap_servers, TOPIC, GROUP, str(self.directory), str(MAX_OFFSETS)]
        self.directory.mkdir()
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", self._master]
        command += ["--driver-memory", "512m", "--conf", "spark.ui.enabled=false", str(APPLICATION), *self._arguments]
        with open(self.log, "a") as log:
            self.process = popen_leashed(command, log, subprocess.STDOUT, environment)

    @property
    def is_ready(self) -> bool:
        """True once the reader of its query listens."""
        return self.process.poll() is None and bool(self.readers())

    def readers(self) -> list[int]:
        """Process ids of the query's readers: one, but for a moment around a restart."""
        pids = [int(path.name.rpartition("-")[2]) for path in control_directory(self.process.pid).iterdir()]
        return [pid for pid in pids if is_alive(pid)]

    def workers(self) -> list[int]:
        """Process ids of the Python workers that read."""
        table = _process_table()
        daemons = {pid for pid, (above, args) in table.items() if "daemon" in args and above == self.process.pid}
        return [pid for pid, (above, _) in table.items() if above in daemons and pid not in self.readers()]

    def python(self) -> list[int]:
        """The process id of the user's Python."""
        table = _process_table()
        return [p for p, (above, args) in table.items() if above == self.process.pid and APPLICATION.name in args]

    def end(self, timeout_s: float) -> None:
        """Waits for the end of a run that was told to stop."""
        wait_until(lambda: self.process.poll() is not None, f"the end of application {self.name}", timeout_s, 0.1)
        # children of a killed driver end by themselves; until then they may hold the output
        wait_until(lambda: not self.readers(), f"the end of the readers of {self.name}", timeout_s, 0.1)


def _process_table() -> dict[int, tuple[int, str]]:
    told = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in told.stdout.splitlines())
    return {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}


class Event(NamedTuple):
    """One thing the hand does; `hits` is how many applications may repeat their batches in flight, 0 if graceful."""

    name: str
    weight: int
    hits: int


EVENTS = (
    Event("drain", 3, 0),
    Event("foreign member", 2, 0),
    Event("kill driver", 2, 1),
    Event("kill reader", 2, 1),
    Event("kill worker", 2, 1),
    Event("stop reader", 2, 1),
    Event("stop driver", 1, 1),
    Event("kill broker", 2, 3),
)


class Chaos:
    """One run in `directory`."""

    def __init__(self, directory: Path, seed: int, graceful: bool) -> None:
        self._random = random.Random(seed)
        self._events = [event for event in EVENTS if not (graceful and event.hits)]
        self._broker = Broker(directory / "broker")
        servers = self._broker.bootstrap_servers
        create_topic(servers, TOPIC, PARTITIONS)
        settings = ClientSettings.parse({"bootstrap.servers": servers, "default.api.timeout.ms": "5000"})
        self._client = Cluster(settings.bootstrap, settings)
        self._feed = Feed(servers)
        self._applications = [Application(name, directory, servers, n) for name, n in (("a", 1), ("b", 4))]
        self._ledger = Ledger([application.directory for application in self._applications])
        self._members: list[RdMember] = []
        self.hits = 0
        self.repeats = 0

    # -- what is seen ------------------------------------------------------------------------------------------------

    def commits(self) -> dict[int, int]:
        found = self._client.fetch_committed(GROUP)
        return {p.partition: commit.offset for p, commit in found.items() if commit is not None}

    def ends(self) -> dict[int, int]:
        partitions = {TopicPartition(TOPIC, n): LATEST for n in range(PARTITIONS)}
        return {p.partition: found.offset for p, found in self._client.list_offsets(partitions).items()}

    def settle(self, what: str) -> None:
        """Waits until what is in the logs now is committed, comparing commits and outputs all the while."""
        ends = self.ends()

        def reached() -> bool:
            try:
                commits = self.commits()
            except GroupSourceError:
                return False
            self._ledger.check_commits(commits)
            return all(commits.get(p, 0) >= end for p, end in ends.items())

        wait_until(reached, f"all is committed after {what}", 120, 0.5)

    # -- the hand ----------------------------------------------------------------------------------------------------

    def run(self, events: int) -> None:
        wait_until(lambda: all(a.is_ready for a in self._applications), "both applications read", 120, 0.2)
        began = time.monotonic()
        for number in range(events):
            (event,) = self._random.choices(self._events, [event.weight for event in self._events])
            self.hits += event.hits
            target = self._random.choice(self._applications)
            wait_until(lambda: target.is_ready, f"application {target.name} reads", 120, 0.2)
            said = getattr(self, "_" + event.name.replace(" ", "_"))(target)
            self._settle_or_go_on(event)
            repeats = self._ledger.repeats()
            print(
                f"{time.monotonic() - began:6.1f} s  event {number + 1}: {event.name} {said}; "
                f"{repeats - self.repeats} repeated",
                flush=True,
            )
            self.repeats = repeats
        self._finish()

    def _settle_or_go_on(self, event: Event) -> None:
        # events that follow at once meet a group that is still moving
        if self._random.random() < 0.6:
            self.settle(event.name)
        else:
            time.sleep(self._random.uniform(0.2, 2))

    def _drain(self, target: Application) -> str:
        pids = self._random.choice([[target.process.pid], target.python()])
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        target.end(60)
        target.start()
        return target.name

    def _foreign_member(self, target: Application) -> str:
        member = RdMember(self._broker.bootstrap_servers, GROUP, TOPIC, session_timeout_ms=6000)
        self._ledger.foreign.append(member.seen)
        self._members.append(member)
        wait_until(lambda: member.partitions, "the foreign member owns something", 90, 0.1)
        time.sleep(self._random.uniform(0.5, 3))
        member.stop()
        self._members.remove(member)
        return f"consumed {sum(member.seen.values())}"

    def _kill_driver(self, target: Application) -> str:
        target.process.kill()
        target.end(60)
        target.start()
        return target.name

    def _kill_reader(self, target: Application) -> str:
        return self._signal(target, target.readers(), signal.SIGKILL)

    def _kill_worker(self, target: Application) -> str:
        return self._signal(target, target.workers(), signal.SIGKILL)

    def _signal(self, target: Application, pids: list[int], number: signal.Signals) -> str:
        killed = 0
        for pid in pids:
            try:
                os.kill(pid, number)
                killed += 1
            except ProcessLookupError:
                # ended by itself since it was looked up
                continue
        return f"of {target.name}, {killed} processes"

    def _stop_reader(self, target: Application) -> str:
        return self._stop(target, target.readers())

    def _stop_driver(self, target: Application) -> str:
        return self._stop(target, [target.process.pid])

    def _stop(self, target: Application, pids: list[int]) -> str:
        stopped_s = SESSION_TIMEOUT_S + self._random.uniform(1, 3)
        self._signal(target, pids, signal.SIGSTOP)
        time.sleep(stopped_s)
        self._signal(target, pids, signal.SIGCONT)
        return f"of {target.name} for {stopped_s:.1f} s"

    def _kill_broker(self, target: Application) -> str:
        self._broker.kill()
        time.sleep(self._random.uniform(0.2, 3))
        self._broker.start()
        return ""

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._feed.stop()
        self.settle("the last event")
        for application in self._applications:
            wait_until(lambda: application.is_ready, f"application {application.name} reads", 120, 0.2)
            application.process.terminate()
        for application in self._applications:
            application.end(60)
        ends, commits = self.ends(), self.commits()
        self._ledger.check_commits(commits)
        missing = self._ledger.missing(ends)
        self.repeats = self._ledger.repeats()
        print(
            f"{sum(ends.values())} records, {len(missing)} missing, {self.repeats} repeated "
            f"(bound {self.bound}), commits compared with the outputs {self._ledger.checks} times",
            flush=True,
        )
        assert not missing, f"lost: {missing[:20]}"
        assert commits == ends
        lost = self._feed.acknowledged - set().union(*(output.values for output in self._ledger.outputs))
        assert self._ledger.foreign or not lost, f"acknowledged and in no output: {sorted(lost)[:20]}"
        assert self.repeats <= self.bound

    @property
    def bound(self) -> int:
        """Most repeats: of each application hit, the batch in flight and one that is checkpointed, not committed."""
        return self.hits * 2 * MAX_OFFSETS

    def close(self) -> None:
        for member in self._members:
            member.stop()
        for application in self._applications:
            stop_process(application.process, 10)
        self._client.close()
        self._broker.stop()


def run(directory: Path, events: int, seed: int, graceful: bool = False) -> Chaos:
    """One run; AssertionError where something was lost, repeated beyond the bound, or committed too early."""
    chaos = Chaos(directory, seed, graceful)
    try:
        chaos.run(events)
    finally:
        chaos.close()
    return chaos


def main() -> None:
    parser = argparse.ArgumentParser(description="Streams under fire: nothing may be lost.")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="repeats a run's events; default: a new one")
    parser.add_argument("--graceful", action="store_true", help="no violent events: nothing may be repeated")
    parser.add_argument("--directory", type=Path, default=None, help="kept; default: a new temporary one")
    options = parser.parse_args()
    # so that a run which is told to end takes its children with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="groupsource-chaos-"))
    directory.mkdir(exist_ok=True)
    print(f"seed {seed}, {options.events} events, in {directory}", flush=True)
    run(directory, options.events, seed, options.graceful)


if __name__ == "__main__":
    main()
