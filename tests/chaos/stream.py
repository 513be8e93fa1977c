"""Applications of one group under a random hand that drains, kills, stops, cuts and joins; nothing may be lost.

    PYTHONPATH=jobs:tests python tests/chaos/stream.py --events 200 --seed 7 [--applications 3]
        [--assignor cooperative-sticky] [--kafka]

A producer writes numbered records all the while, and all the while the group's commits are compared with what the
outputs hold. Each repeat must have come with a batch that was in flight when its application was hit. `--graceful`
leaves the violent events out: then nothing may be delivered twice at all. `--kafka` puts a real Apache Kafka in the
place of the embedded broker.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from chaos.application import PATIENCE_S, SESSION_TIMEOUT_S
from chaos.applications import Application, signal_all
from chaos.brokers import Broker, EmbeddedProcess, KafkaProcess
from chaos.feed import Feed
from chaos.foreign import ForeignMember
from chaos.ledger import Batch, ForeignOutput, Ledger, Output, Repeat
from chaos.proxy import Proxy
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client.cluster.client import LATEST, Cluster
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition

# more than members, so that one who joins is given something
PARTITIONS = 8
MAX_OFFSETS = 500
RECORDS_PER_S = 200
TOPIC, GROUP = "chaos", "chaos"


class Watch:
    """Compares the group's commits with the outputs all the while, in a thread of its own; `client` is its own too."""

    def __init__(self, client: Cluster, ledger: Ledger) -> None:
        self.commits: dict[int, int] = {}
        self._client = client
        self._ledger = ledger
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what was found wrong."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60)
        self._client.close()

    def _run(self) -> None:
        while not self._ended.wait(0.3) and self._failure is None:
            try:
                found = self._client.fetch_committed(GROUP)
            except GroupSourceError:
                # the broker is down, or the proxy is closed
                continue
            try:
                commits = {p.partition: commit.offset for p, commit in found.items() if commit is not None}
                self._ledger.check_commits(commits)
                self.commits = commits
            except BaseException as error:  # told by `check`
                self._failure = error


class Hits:
    """Which deliveries were in flight when their source was hit; only these may be among the repeats."""

    def __init__(self) -> None:
        self.count = 0
        self._batches: dict[str, set[int]] = defaultdict(set)
        self._floors: dict[str, dict[int, int]] = {}

    @contextmanager
    def on(self, applications: Iterable[Application]) -> Iterator[None]:
        """Around what is done to them: the batch in flight, and the one before, which may not be committed yet."""
        before = {application: application.last_batch() - 1 for application in applications}
        yield
        for application, first in before.items():
            self.count += 1
            # one more may have been planned while the hand was lifted
            self._batches[application.name].update(range(first, application.last_batch() + 2))

    def on_foreign(self, name: str, commits: dict[int, int]) -> None:
        """On a foreign member, when `commits` were the group's: what it had consumed beyond them is in flight."""
        self.count += 1
        self._floors[name] = dict(commits)

    def cover(self, repeat: Repeat) -> bool:
        """True when one of the two deliveries was in flight at a hit."""
        return any(self._has(batch, *repeat.position) for batch in (repeat.first, repeat.again))

    def _has(self, batch: Batch, partition: int, offset: int) -> bool:
        if batch.source in self._floors:
            return offset >= self._floors[batch.source].get(partition, 0)
        return batch.number in self._batches[batch.source]


class Event(NamedTuple):
    """One thing the hand does; `repeats` tells whether batches in flight may be delivered again."""

    name: str
    weight: int
    repeats: bool


EVENTS = (
    Event("drain", 3, False),
    Event("foreign member", 2, False),
    Event("kill driver", 2, True),
    Event("kill reader", 2, True),
    Event("kill worker", 2, True),
    Event("terminate reader", 1, True),
    Event("terminate worker", 1, True),
    Event("stop application", 2, True),
    Event("stop driver", 1, True),
    Event("stop reader", 1, True),
    Event("stop worker", 1, True),
    Event("kill foreign member", 1, True),
    Event("stop foreign member", 1, True),
    Event("kill broker", 2, True),
    Event("cut connections", 2, True),
    Event("slow connections", 1, True),
    Event("hold connections", 1, True),
)


class Step(NamedTuple):
    """One event of a run, drawn beforehand, so that a seed repeats the run whatever the applications do meanwhile."""

    event: Event
    target: int
    settles: bool
    chance: random.Random


def draw(seed: int, count: int, applications: int, graceful: bool) -> list[Step]:
    """The events of a run. Each is drawn by its weight, but none comes again before half of the others have come."""
    chance = random.Random(seed)
    events = [event for event in EVENTS if not (graceful and event.repeats)]
    steps: list[Step] = []
    for number in range(count):
        recent = {step.event for step in steps[-(len(events) // 2) :]}
        (event,) = chance.choices(events, [0 if event in recent else event.weight for event in events])
        # events that follow at once meet a group that is still moving
        settles = chance.random() < 0.6
        steps.append(Step(event, chance.randrange(applications), settles, random.Random(f"{seed} {number}")))
    return steps


class Chaos:
    """One run in `directory`."""

    def __init__(self, directory: Path, *, kafka: bool, applications: int, assignor: str) -> None:
        self._directory = directory
        self._assignor = assignor
        self._random = random.Random()
        self._proxy = Proxy()
        self._broker: Broker = (KafkaProcess if kafka else EmbeddedProcess)(directory, self._proxy)
        self._broker.start()
        create_topic(self._proxy.address, TOPIC, PARTITIONS)
        settings = ClientSettings.parse({"bootstrap.servers": self._proxy.address, "default.api.timeout.ms": "5000"})
        self._client = Cluster(settings.bootstrap, settings)
        self._ledger = Ledger()
        self._watch = Watch(Cluster(settings.bootstrap, settings), self._ledger)
        self._feed = Feed(self._proxy.address, TOPIC, PARTITIONS, RECORDS_PER_S)
        arguments = ["--bootstrap-servers", self._proxy.address, "--topic", TOPIC, "--group", GROUP]
        arguments += ["--max-offsets", str(MAX_OFFSETS), "--assignor", assignor]
        # some fail with their first task, the others try it again
        self._applications = [
            Application(name, directory, attempts, arguments)
            for name, attempts in list(zip("abc", (1, 4, 4)))[:applications]
        ]
        for application in self._applications:
            self._ledger.add(Output(application.name, application.directory))
        self._foreign: list[ForeignMember] = []
        self.hits = Hits()
        self.repeats = 0

    # -- what is seen ------------------------------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        partitions = {TopicPartition(TOPIC, n): LATEST for n in range(PARTITIONS)}

        def found() -> dict[int, int] | None:
            try:
                return {p.partition: found.offset for p, found in self._client.list_offsets(partitions).items()}
            except GroupSourceError:
                return None

        ends = wait_until(found, "the ends of the logs are told", 60, 0.2)
        assert ends is not None
        return ends

    def settle(self, what: str) -> None:
        """Waits until what is in the logs now is committed."""
        ends = self.ends()

        def reached() -> bool:
            self._watch.check()
            return all(self._watch.commits.get(p, 0) >= end for p, end in ends.items())

        wait_until(reached, f"all is committed after {what}", PATIENCE_S, 0.2)

    def wait_ready(self, application: Application) -> None:
        wait_until(lambda: application.is_ready, f"application {application.name} reads", PATIENCE_S, 0.2)

    # -- the hand ----------------------------------------------------------------------------------------------------

    def run(self, steps: list[Step]) -> None:
        for application in self._applications:
            # a driver killed while it writes its first plan leaves a file over which Spark never starts again
            wait_until(lambda: application.last_batch() >= 0, f"application {application.name} begins", PATIENCE_S, 0.2)
            self.wait_ready(application)
        began = time.monotonic()
        for number, step in enumerate(steps, 1):
            self._random = step.chance
            target = self._applications[step.target]
            self.wait_ready(target)
            said = getattr(self, "_" + step.event.name.replace(" ", "_"))(target)
            if step.settles:
                self.settle(step.event.name)
            else:
                time.sleep(self._random.uniform(0.2, 2))
            self._watch.check()
            repeats = len(self._ledger.repeats())
            at_s = time.monotonic() - began
            repeated = f"; {repeats - self.repeats} repeated" if repeats > self.repeats else ""
            print(f"{at_s:6.1f} s  event {number}: {step.event.name} {said}{repeated}", flush=True)
            self.repeats = repeats
        self._finish()

    def _drain(self, target: Application) -> str:
        signal_all(self._random.choice([[target.process.pid], target.python()]), signal.SIGTERM)
        target.end()
        target.start()
        return target.name

    def _kill_driver(self, target: Application) -> str:
        with self.hits.on([target]):
            target.process.kill()
            target.end()
        target.start()
        return target.name

    def _kill_reader(self, target: Application) -> str:
        return self._signal(target, target.readers(), signal.SIGKILL)

    def _kill_worker(self, target: Application) -> str:
        return self._signal(target, target.workers(), signal.SIGKILL)

    def _terminate_reader(self, target: Application) -> str:
        return self._signal(target, target.readers(), signal.SIGTERM)

    def _terminate_worker(self, target: Application) -> str:
        return self._signal(target, target.workers(), signal.SIGTERM)

    def _signal(self, target: Application, pids: list[int], number: signal.Signals) -> str:
        with self.hits.on([target]):
            reached = signal_all(pids, number)
        return f"of {target.name}, {reached} processes"

    def _stop_reader(self, target: Application) -> str:
        return self._stop(target, target.readers())

    def _stop_worker(self, target: Application) -> str:
        return self._stop(target, target.workers())

    def _stop_driver(self, target: Application) -> str:
        return self._stop(target, [target.process.pid])

    def _stop_application(self, target: Application) -> str:
        return self._stop(target, target.everything())

    def _stop(self, target: Application, pids: list[int]) -> str:
        with self.hits.on([target]):
            stopped_s = self._longer_than_a_session()
            signal_all(pids, signal.SIGSTOP)
            time.sleep(stopped_s)
            signal_all(pids, signal.SIGCONT)
        return f"of {target.name}, {len(pids)} processes for {stopped_s:.1f} s"

    def _longer_than_a_session(self) -> float:
        return SESSION_TIMEOUT_S + self._random.uniform(1, 3)

    def _foreign_member(self, target: Application) -> str:
        member = self._joined()
        time.sleep(self._random.uniform(0.5, 3))
        member.stop()
        return f"consumed {member.consumed}"

    def _kill_foreign_member(self, target: Application) -> str:
        member = self._joined()
        time.sleep(self._random.uniform(0.5, 3))
        self.hits.on_foreign(member.rows.name, self._watch.commits)
        member.process.kill()
        member.stop()
        return f"consumed {member.consumed}"

    def _stop_foreign_member(self, target: Application) -> str:
        member = self._joined()
        self.hits.on_foreign(member.rows.name, self._watch.commits)
        signal_all([member.process.pid], signal.SIGSTOP)
        time.sleep(self._longer_than_a_session())
        signal_all([member.process.pid], signal.SIGCONT)
        member.stop()
        return f"consumed {member.consumed}"

    def _joined(self) -> ForeignMember:
        """A foreign member that consumes."""
        rows = self._directory / f"foreign-{len(self._foreign)}.rows"
        timeout_ms = SESSION_TIMEOUT_S * 1000
        member = ForeignMember(self._proxy.address, GROUP, TOPIC, rows, timeout_ms, self._assignor)
        self._foreign.append(member)
        self._ledger.add(ForeignOutput(rows.name, rows))
        wait_until(lambda: member.consumed, "the foreign member consumes", PATIENCE_S, 0.1)
        return member

    def _kill_broker(self, target: Application) -> str:
        with self.hits.on(self._applications):
            down_s = self._random.uniform(0.2, 3)
            self._broker.kill()
            time.sleep(down_s)
            self._broker.start()
        return f"for {down_s:.1f} s"

    def _cut_connections(self, target: Application) -> str:
        with self.hits.on(self._applications):
            cut = []
            for _ in range(3):
                cut.append(self._proxy.drop(self._random.choice([0.3, 1]), self._random))
                # those that were cut come back
                time.sleep(0.3)
        return f"{cut}"

    def _slow_connections(self, target: Application) -> str:
        with self.hits.on(self._applications):
            delay_s = self._random.uniform(0.05, 0.3)
            self._proxy.delay(delay_s)
            time.sleep(self._random.uniform(2, 6))
            self._proxy.delay(0)
        return f"by {delay_s * 1000:.0f} ms"

    def _hold_connections(self, target: Application) -> str:
        with self.hits.on(self._applications):
            held_s = self._longer_than_a_session()
            self._proxy.hold()
            time.sleep(held_s)
            self._proxy.release()
        return f"for {held_s:.1f} s"

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._feed.stop()
        self.settle("the last event")
        for application in self._applications:
            self.wait_ready(application)
            application.process.terminate()
        for application in self._applications:
            application.end()
        ends = self.ends()
        wait_until(lambda: self._watch.commits == ends, "the last commits are compared", 20, 0.1)
        self._watch.check()
        missing = self._ledger.missing(ends)
        repeats = self._ledger.repeats()
        stray = [repeat for repeat in repeats if not self.hits.cover(repeat)]
        self.repeats = len(repeats)
        batches = {batch for repeat in repeats for batch in (repeat.first, repeat.again)}
        failures = sum(len(application.failures()) for application in self._applications)
        print(
            f"{sum(ends.values())} records, {len(missing)} missing, {self.repeats} repeated in {len(batches)} batches "
            f"(bound {self.bound}; {len(stray)} of them not in flight at a hit), {failures} queries failed and went "
            f"on, commits compared with the outputs {self._ledger.checks} times",
            flush=True,
        )
        assert not missing, f"lost: {missing[:20]}"
        lost = self._feed.acknowledged - self._ledger.values()
        assert self._foreign or not lost, f"acknowledged and in no output: {sorted(lost)[:20]}"
        assert not stray, f"repeated, but not in flight at a hit: {stray[:10]}"
        assert self.repeats <= self.bound

    @property
    def bound(self) -> int:
        """Most repeats: of whoever was hit, the batch in flight and one that is checkpointed, not committed."""
        return self.hits.count * 2 * MAX_OFFSETS

    def close(self) -> None:
        for member in self._foreign:
            member.stop()
        for application in self._applications:
            application.close()
        self._watch.stop()
        self._client.close()
        self._broker.stop()
        self._proxy.close()


def run(
    directory: Path,
    events: int,
    seed: int,
    *,
    graceful: bool = False,
    kafka: bool = False,
    applications: int = 2,
    assignor: str = "range",
) -> Chaos:
    """One run; AssertionError where something was lost, repeated beyond what was in flight, or committed too early."""
    chaos = Chaos(directory, kafka=kafka, applications=applications, assignor=assignor)
    try:
        chaos.run(draw(seed, events, applications, graceful))
    finally:
        chaos.close()
    return chaos


def main() -> None:
    parser = argparse.ArgumentParser(description="Streams under fire: nothing may be lost.")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="repeats a run's events; default: a new one")
    parser.add_argument("--graceful", action="store_true", help="no violent events: nothing may be repeated")
    parser.add_argument("--kafka", action="store_true", help="on a real Apache Kafka")
    parser.add_argument("--applications", type=int, default=2, choices=(2, 3))
    parser.add_argument("--assignor", default="range", help="of every member, foreign ones too")
    parser.add_argument("--directory", type=Path, default=None, help="kept; default: a new temporary one")
    options = parser.parse_args()
    # so that a run which is told to end takes its children with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="groupsource-chaos-"))
    directory.mkdir(exist_ok=True)
    print(f"seed {seed}, {options.events} events, in {directory}", flush=True)
    run(
        directory,
        options.events,
        seed,
        graceful=options.graceful,
        kafka=options.kafka,
        applications=options.applications,
        assignor=options.assignor,
    )


if __name__ == "__main__":
    main()
