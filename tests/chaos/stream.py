"""Injects faults into streaming applications and checks for lost records.

    PYTHONPATH=jobs:tests python tests/chaos/stream.py --events 200 --seed 7 [--applications 3]
        [--assignor cooperative-sticky] [--kafka] [--executors 8]

A producer writes numbered records during the run, and a monitor compares the committed offsets with the outputs.
Every repeated record must belong to a batch that was in flight during a fault. `--graceful` injects no faults, only
drains and foreign members: then no record may be repeated. `--kafka` uses a real Apache Kafka instead of the embedded
broker. With `--executors` each application has that many executors of one core, which are killed, too, and a member
for each; the time of each hand-over is printed.
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

from chaos.brokers import Broker, EmbeddedBrokerProcess, RealKafkaBroker
from chaos.deliveries import Batch, DeliveryTracker, ForeignOutput, Output, Repeat
from chaos.foreign_member import ForeignMember
from chaos.numbered_producer import NumberedProducer
from chaos.proxy import Proxy
from chaos.streaming_application import SESSION_TIMEOUT_S, TRIGGER, wait_s
from chaos.submitted_application import SubmittedApplication, signal_all
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition

# more than members, so that a new member is assigned partitions
PARTITIONS, PARTITIONS_OF_EXECUTORS = 8, 48
MAX_OFFSETS = 500
RECORDS_PER_S = 200
TOPIC, GROUP = "chaos", "chaos"


class CommitMonitor:
    """Compares the committed offsets with the outputs, in a thread and with a `client` of its own."""

    def __init__(self, client: ClusterClient, deliveries: DeliveryTracker) -> None:
        self.commits: dict[int, int] = {}
        self._client = client
        self._deliveries = deliveries
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commit monitor", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the failure that the monitor found, if any."""
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
                self._deliveries.check_commits(commits)
                self.commits = commits
            except BaseException as error:  # raised by `check`
                self._failure = error


class InFlight:
    """The deliveries that were in flight during a fault; only these may be repeated."""

    def __init__(self) -> None:
        self.count = 0
        self._batches: dict[str, set[int]] = defaultdict(set)
        self._commits: dict[str, dict[int, int]] = {}

    @contextmanager
    def during_fault(self, applications: Iterable[SubmittedApplication]) -> Iterator[None]:
        """Records the batches that are in flight during a fault, and those before, which may not be committed yet."""
        before = {application: application.last_batch() - 1 for application in applications}
        yield
        for application, first in before.items():
            self.count += 1
            # the next batch may have been planned during the fault
            self._batches[application.name].update(range(first, application.last_batch() + 2))

    def at_foreign_fault(self, name: str, commits: dict[int, int]) -> None:
        """Records a fault of a foreign member: the records after the group's `commits` are in flight."""
        self.count += 1
        self._commits[name] = dict(commits)

    def contains(self, repeat: Repeat) -> bool:
        """Returns True when one of the two deliveries was in flight during a fault."""
        return any(self._has(batch, *repeat.position) for batch in (repeat.first, repeat.again))

    def _has(self, batch: Batch, partition: int, offset: int) -> bool:
        if batch.source in self._commits:
            return offset >= self._commits[batch.source].get(partition, 0)
        return batch.number in self._batches[batch.source]


class Event(NamedTuple):
    """A kind of event; `repeats` is True when batches in flight may be repeated."""

    name: str
    weight: int
    repeats: bool


KILL_EXECUTOR = Event("kill executor", 4, True)
# of executors, the driver has no Python workers
ENDS = ("drain", "kill driver", "kill reader")
EVENTS_OF_EXECUTORS = ("drain", "kill driver", "kill reader", "stop driver", "kill broker")
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
    """One event of a run, drawn before the run, so that a seed reproduces the events."""

    event: Event
    target: int
    settles: bool
    randomness: random.Random


def draw(seed: int, count: int, applications: int, graceful: bool, executors: int = 0) -> list[Step]:
    """Draws the events of a run by their weights; none is repeated before half of the others."""
    randomness = random.Random(seed)
    kinds: list[Event] = [*EVENTS]
    if executors:
        kinds = [KILL_EXECUTOR, *(event for event in EVENTS if event.name in EVENTS_OF_EXECUTORS)]
    events = [event for event in kinds if not (graceful and event.repeats)]
    steps: list[Step] = []
    for number in range(count):
        recent = {step.event for step in steps[-(len(events) // 2) :]}
        (event,) = randomness.choices(events, [0 if event in recent else event.weight for event in events])
        # without settling, the next event meets a rebalancing group
        settles = randomness.random() < 0.6
        steps.append(Step(event, randomness.randrange(applications), settles, random.Random(f"{seed} {number}")))
    return steps


class FaultRun:
    """One run in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        kafka: bool,
        applications: int,
        assignor: str,
        records_per_s: int,
        trigger: str,
        executors: int = 0,
    ) -> None:
        self._directory = directory
        self._assignor = assignor
        self._partitions = PARTITIONS_OF_EXECUTORS if executors else PARTITIONS
        self._random = random.Random()
        self._prints_hand_over = executors > 0
        self._proxy = Proxy()
        self._broker: Broker = (RealKafkaBroker if kafka else EmbeddedBrokerProcess)(directory, self._proxy)
        self._broker.start()
        create_topic(self._proxy.address, TOPIC, self._partitions)
        settings = ClientSettings.parse({"bootstrap.servers": self._proxy.address, "default.api.timeout.ms": "5000"})
        self._client = ClusterClient(settings.bootstrap, settings)
        self._deliveries = DeliveryTracker()
        self._monitor = CommitMonitor(ClusterClient(settings.bootstrap, settings), self._deliveries)
        self._producer = NumberedProducer(self._proxy.address, TOPIC, self._partitions, records_per_s)
        arguments = ["--bootstrap-servers", self._proxy.address, "--topic", TOPIC, "--group", GROUP]
        arguments += ["--max-offsets", str(MAX_OFFSETS), "--assignor", assignor, "--trigger", trigger]
        arguments += ["--members", "auto" if executors else "2"]
        # with one attempt a failed task fails the query; with four Spark retries it
        self._applications = [
            SubmittedApplication(name, directory, attempts, arguments, executors=executors)
            for name, attempts in list(zip("abc", (1, 4, 4)))[:applications]
        ]
        for application in self._applications:
            self._deliveries.add(Output(application.name, application.directory))
        self._foreign: list[ForeignMember] = []
        self.in_flight = InFlight()
        self.repeats = 0

    # -- observations ------------------------------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        partitions = {TopicPartition(TOPIC, n): LATEST for n in range(self._partitions)}

        def found() -> dict[int, int] | None:
            try:
                return {p.partition: found.offset for p, found in self._client.list_offsets(partitions).items()}
            except GroupSourceError:
                return None

        ends = wait_until(found, "the log end offsets are listed", 60, 0.2)
        assert ends is not None
        return ends

    def settle(self, what: str) -> None:
        """Waits until the group has committed the current log end offsets."""
        ends = self.ends()

        def reached() -> bool:
            self._monitor.check()
            return all(self._monitor.commits.get(p, 0) >= end for p, end in ends.items())

        wait_until(reached, f"the group commits all records after {what}", wait_s(), 0.2)

    # -- events ----------------------------------------------------------------------------------------------------

    def run(self, steps: list[Step]) -> None:
        for application in self._applications:
            # Spark cannot restart over the partial first offset log that a killed driver leaves
            wait_until(lambda: application.last_batch() >= 0, f"{application.name} plans a batch", wait_s(), 0.2)
            application.wait_ready()
        began = time.monotonic()
        for number, step in enumerate(steps, 1):
            self._random = step.randomness
            target = self._applications[step.target]
            target.wait_ready()
            event_began, former = time.monotonic(), self._members_of(target) if step.event.name in ENDS else set()
            outcome = getattr(self, "_" + step.event.name.replace(" ", "_"))(target)
            handed_over = ""
            if self._prints_hand_over:
                self._wait_handed_over(former)
                handed_over = f"; handed over after {time.monotonic() - event_began:.1f} s"
            if step.settles:
                self.settle(step.event.name)
            else:
                time.sleep(self._random.uniform(0.2, 2))
            self._monitor.check()
            repeats = len(self._deliveries.repeats())
            at_s = time.monotonic() - began
            repeated = f"; {repeats - self.repeats} repeated" if repeats > self.repeats else ""
            print(f"{at_s:6.1f} s  event {number}: {step.event.name} {outcome}{handed_over}{repeated}", flush=True)
            self.repeats = repeats
        self._finish()

    def _kill_executor(self, target: SubmittedApplication) -> str:
        wait_until(target.executors, f"executors of {target.name}", wait_s(), 0.2)
        return self._signal(target, [self._random.choice(target.executors())], signal.SIGKILL)

    def _members_of(self, target: SubmittedApplication) -> set[str]:
        members = self._group().members if self._prints_hand_over else ()
        return {member.member_id for member in members if member.client_id.startswith(f"{target.name}-")}

    def _group(self) -> GroupDescription:
        return describe_groups(self._client, [GROUP])[GROUP]

    def _wait_handed_over(self, former: set[str]) -> None:
        """Waits until the group is Stable, and members other than the former ones own every partition."""

        def is_handed_over() -> bool:
            try:
                found = self._group()
            except GroupSourceError:
                return False
            owned = [p for member in found.members for p in member.assignment]
            is_complete = found.state == "Stable" and len(owned) == self._partitions
            return is_complete and not former & {member.member_id for member in found.members}

        wait_until(is_handed_over, "other members own every partition", wait_s(), 0.1)

    def _drain(self, target: SubmittedApplication) -> str:
        # the last one is the process group, as signalled by timeout and service managers
        group = [-target.process.pid]
        signal_all(self._random.choice([[target.process.pid], target.python(), group]), signal.SIGTERM)
        target.end()
        target.start()
        return target.name

    def _kill_driver(self, target: SubmittedApplication) -> str:
        with self.in_flight.during_fault([target]):
            target.process.kill()
            target.end()
        target.start()
        return target.name

    def _kill_reader(self, target: SubmittedApplication) -> str:
        return self._signal(target, target.readers(), signal.SIGKILL)

    def _kill_worker(self, target: SubmittedApplication) -> str:
        return self._signal(target, target.workers(), signal.SIGKILL)

    def _terminate_reader(self, target: SubmittedApplication) -> str:
        return self._signal(target, target.readers(), signal.SIGTERM)

    def _terminate_worker(self, target: SubmittedApplication) -> str:
        return self._signal(target, target.workers(), signal.SIGTERM)

    def _signal(self, target: SubmittedApplication, pids: list[int], number: signal.Signals) -> str:
        with self.in_flight.during_fault([target]):
            reached = signal_all(pids, number)
        return f"of {target.name}, {reached} processes"

    def _stop_reader(self, target: SubmittedApplication) -> str:
        return self._stop(target, target.readers())

    def _stop_worker(self, target: SubmittedApplication) -> str:
        return self._stop(target, target.workers())

    def _stop_driver(self, target: SubmittedApplication) -> str:
        return self._stop(target, [target.process.pid])

    def _stop_application(self, target: SubmittedApplication) -> str:
        return self._stop(target, target.all_processes())

    def _stop(self, target: SubmittedApplication, pids: list[int]) -> str:
        with self.in_flight.during_fault([target]):
            stopped_s = self._longer_than_a_session()
            signal_all(pids, signal.SIGSTOP)
            time.sleep(stopped_s)
            signal_all(pids, signal.SIGCONT)
        return f"of {target.name}, {len(pids)} processes for {stopped_s:.1f} s"

    def _longer_than_a_session(self) -> float:
        return SESSION_TIMEOUT_S + self._random.uniform(1, 3)

    def _foreign_member(self, target: SubmittedApplication) -> str:
        member = self._start_foreign_member()
        time.sleep(self._random.uniform(0.5, 3))
        member.stop()
        return f"consumed {member.consumed}"

    def _kill_foreign_member(self, target: SubmittedApplication) -> str:
        member = self._start_foreign_member()
        time.sleep(self._random.uniform(0.5, 3))
        self.in_flight.at_foreign_fault(member.rows.name, self._monitor.commits)
        member.process.kill()
        member.stop()
        return f"consumed {member.consumed}"

    def _stop_foreign_member(self, target: SubmittedApplication) -> str:
        member = self._start_foreign_member()
        self.in_flight.at_foreign_fault(member.rows.name, self._monitor.commits)
        signal_all([member.process.pid], signal.SIGSTOP)
        time.sleep(self._longer_than_a_session())
        signal_all([member.process.pid], signal.SIGCONT)
        member.stop()
        return f"consumed {member.consumed}"

    def _start_foreign_member(self) -> ForeignMember:
        """Starts a foreign member and waits until it consumes."""
        rows = self._directory / f"foreign-{len(self._foreign)}.rows"
        timeout_ms = SESSION_TIMEOUT_S * 1000
        member = ForeignMember(self._proxy.address, GROUP, TOPIC, rows, timeout_ms, self._assignor)
        self._foreign.append(member)
        self._deliveries.add(ForeignOutput(rows.name, rows))
        wait_until(lambda: member.consumed, "the foreign member consumes", wait_s(), 0.1)
        return member

    def _kill_broker(self, target: SubmittedApplication) -> str:
        with self.in_flight.during_fault(self._applications):
            down_s = self._random.uniform(0.2, 3)
            self._broker.kill()
            time.sleep(down_s)
            self._broker.start()
        return f"for {down_s:.1f} s"

    def _cut_connections(self, target: SubmittedApplication) -> str:
        with self.in_flight.during_fault(self._applications):
            dropped = []
            for _ in range(3):
                dropped.append(self._proxy.drop(self._random.choice([0.3, 1]), self._random))
                # clients reconnect
                time.sleep(0.3)
        return f"dropped {dropped}"

    def _slow_connections(self, target: SubmittedApplication) -> str:
        with self.in_flight.during_fault(self._applications):
            delay_s = self._random.uniform(0.05, 0.3)
            self._proxy.delay(delay_s)
            time.sleep(self._random.uniform(2, 6))
            self._proxy.delay(0)
        return f"by {delay_s * 1000:.0f} ms"

    def _hold_connections(self, target: SubmittedApplication) -> str:
        with self.in_flight.during_fault(self._applications):
            held_s = self._longer_than_a_session()
            self._proxy.hold()
            time.sleep(held_s)
            self._proxy.release()
        return f"for {held_s:.1f} s"

    # -- final checks ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._producer.stop()
        self.settle("the last event")
        for application in self._applications:
            application.wait_ready()
            application.process.terminate()
        for application in self._applications:
            application.end()
        ends = self.ends()
        wait_until(lambda: self._monitor.commits == ends, "the last commits are checked", 20, 0.1)
        self._monitor.check()
        missing = self._deliveries.missing(ends)
        repeats = self._deliveries.repeats()
        unexplained = [repeat for repeat in repeats if not self.in_flight.contains(repeat)]
        self.repeats = len(repeats)
        batches = {batch for repeat in repeats for batch in (repeat.first, repeat.again)}
        failures = sum(len(application.failures()) for application in self._applications)
        print(
            f"{sum(ends.values())} records, {len(missing)} missing, {self.repeats} repeated in {len(batches)} batches "
            f"(bound {self.bound}; {len(unexplained)} of them outside faults), {failures} query failures, "
            f"committed offsets checked {self._deliveries.checks} times",
            flush=True,
        )
        assert not missing, f"lost: {missing[:20]}"
        lost = self._producer.acknowledged - self._deliveries.values()
        assert self._foreign or not lost, f"acknowledged and in no output: {sorted(lost)[:20]}"
        assert not unexplained, f"repeated, but not in flight during a fault: {unexplained[:10]}"
        assert self.repeats <= self.bound

    @property
    def bound(self) -> int:
        """Upper bound of repeats: per fault, the batch in flight and one that is checkpointed and not committed."""
        return self.in_flight.count * 2 * MAX_OFFSETS

    def close(self) -> None:
        for member in self._foreign:
            member.stop()
        for application in self._applications:
            application.close()
        self._monitor.stop()
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
    records_per_s: int = RECORDS_PER_S,
    trigger: str = TRIGGER,
    executors: int = 0,
) -> FaultRun:
    """Runs the events.

    Raises: AssertionError when a record is lost, repeated outside a fault, or committed before it is in an output.
    """
    fault_run = FaultRun(
        directory,
        kafka=kafka,
        applications=applications,
        assignor=assignor,
        records_per_s=records_per_s,
        trigger=trigger,
        executors=executors,
    )
    try:
        fault_run.run(draw(seed, events, applications, graceful, executors))
    finally:
        fault_run.close()
    return fault_run


def main() -> None:
    parser = argparse.ArgumentParser(description="Inject faults into streaming applications and check the records.")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="reproduces the events of a run; default: random")
    parser.add_argument("--graceful", action="store_true", help="no faults: no record may be repeated")
    parser.add_argument("--kafka", action="store_true", help="on a real Apache Kafka")
    parser.add_argument("--applications", type=int, default=2, choices=(2, 3))
    parser.add_argument("--assignor", default="range", help="of all members, including foreign members")
    parser.add_argument("--executors", type=int, default=0, help="of each application; default: those of its driver")
    parser.add_argument("--directory", type=Path, default=None, help="kept; default: a new temporary one")
    options = parser.parse_args()
    # so that the run stops its child processes
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
        executors=options.executors,
    )


if __name__ == "__main__":
    main()
