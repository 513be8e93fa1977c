"""Causes rebalances on purpose and compares what each source says of them.

    PYTHONPATH=jobs:tests python tests/chaos/rebalance_causes.py [--count 200] [--seed 1] [CONFIGURATION]

Without a configuration, all run one after the other, each with `--count` rebalances: members of this package on the
embedded broker (own) and on a real Kafka (own-kafka), these with members of other libraries on a real Kafka (mixed),
and members of other libraries only, on a real Kafka and judged from the history alone (foreign). Members join, leave,
are killed, paused, removed by an operator, change their subscription and so on; at the end the broker is restarted. In
`moves`, the coordinator of a group in CompletingRebalance moves between the three nodes of a real Kafka, because its
node is killed or by an election. For each rebalance the cause and the client that caused it are compared with the
events of the embedded coordinator, the reports of own members, and the history in `__consumer_offsets`; the last column
is the merged result that users see.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from chaos import caused_document
from chaos.caused_group import CausedGroup, Injection
from chaos.caused_judgments import (
    Judged,
    Observed,
    deviation_text,
    deviations,
    judge,
    observe,
    report,
    unowned_shares,
)
from chaos.caused_members import SLOW_ASSIGNOR, World
from child_processes import start_process, stop_process
from confluent_kafka import Producer
from kafka_jars import UnavailableError
from real_kafka import LOGGING, RealKafka
from support.kafka_cluster import OFFSETS_TOPIC, KafkaCluster
from support.topics import create_topic

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
# a restarted Kafka can register again only after the session of the killed one has expired
KAFKA_CONFIG = {**CONFIG, "broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
_LOGGING = f"""\
{LOGGING}
logger.groups.name = org.apache.kafka.coordinator.group
logger.groups.level = INFO
"""
EAGER, COOPERATIVE = ("range",), ("cooperative-sticky",)
TWO_ASSIGNORS = ("range", "roundrobin")
OWN_WORLDS = (
    World(("own",), EAGER),
    World(("own",), COOPERATIVE),
    World(("own",), TWO_ASSIGNORS, is_static=True, commit_s=1.0),
    World(("own",), EAGER, has_shared_client=True),
    World(("own",), EAGER, commit_s=2.0, heartbeat_ms=2_000),
    World(("spark",), EAGER, heartbeat_ms=1_000, share=0.3),
)
MIXED_WORLDS = (
    World(("own", "java"), EAGER, commit_s=1.0),
    World(("own", "java"), COOPERATIVE),
    World(("own", "librdkafka"), EAGER, commit_s=1.0),
    World(("own", "kafka-python"), EAGER, commit_s=1.0),
    World(("own", "aiokafka", "console"), EAGER, commit_s=1.0),
    World(("spark", "java"), EAGER, heartbeat_ms=1_000, share=0.3),
)
FOREIGN_WORLDS = (
    World(("java", "console"), EAGER),
    World(("java",), COOPERATIVE),
    World(("java", "librdkafka"), TWO_ASSIGNORS, is_static=True),
    World(("kafka-python", "librdkafka"), EAGER, commit_s=1.0),
    World(("aiokafka", "librdkafka"), EAGER, commit_s=2.0, heartbeat_ms=2_000),
    World(("librdkafka",), COOPERATIVE, commit_s=0.7),
    World(("kafka-python",), EAGER, has_shared_client=True),
)
_START_ATTEMPTS = 4
# the first group of a run
_MOVED_GROUP = "caused-0"
# shorter and longer than the session timeout
_PAUSES_S = (0.0, 8.0, 0.0)


class Configuration(NamedTuple):
    """Members and broker of one run.

    Attributes:
        source: the one that is judged.
        is_moved: a Kafka of three nodes, whose coordinators move.
    """

    worlds: Sequence[World]
    is_kafka: bool
    source: str
    is_moved: bool = False


CONFIGURATIONS = {
    "own": Configuration(OWN_WORLDS, False, "merged"),
    "own-kafka": Configuration(OWN_WORLDS, True, "merged"),
    "mixed": Configuration(MIXED_WORLDS, True, "merged"),
    "foreign": Configuration(FOREIGN_WORLDS, True, "history"),
    "moves": Configuration((World(("own",), (SLOW_ASSIGNOR,)),), True, "merged", is_moved=True),
}


class Broker(Protocol):
    """A broker that can be restarted on its data and address."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def log(self) -> str: ...

    def prepare(self) -> None:
        """Is called before a restart, while the group is Stable."""

    def restart(self, down_s: float) -> None:
        """Kills the broker with SIGKILL and starts it again after a pause, or moves the coordinators."""

    def stop(self) -> None:
        """Stops the broker."""


class _EmbeddedBroker:
    """The embedded broker in a process of its own: the threads of this one would delay it."""

    log = ""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._process, self.bootstrap_servers = self._start("127.0.0.1:0")

    def _start(self, address: str) -> tuple[subprocess.Popen[str], str]:
        command = [str(Path(sys.executable).parent / "groupsource"), "broker", "--listen", address]
        command += [part for key, value in CONFIG.items() for part in ("--config", f"{key}={value}")]
        process = start_process([*command, "--data-dir", self._directory], subprocess.PIPE, subprocess.DEVNULL)
        assert process.stdout is not None
        return process, process.stdout.readline().split()[-1]

    def prepare(self) -> None:
        return

    def restart(self, down_s: float) -> None:
        self._process.kill()
        stop_process(self._process, 10)
        time.sleep(down_s)
        self._process, _ = self._start(self.bootstrap_servers)

    def stop(self) -> None:
        stop_process(self._process, 30)


class _Kafka:
    """A real Kafka, which logs its rebalances."""

    def __init__(self, directory: str) -> None:
        logging = Path(directory) / "log4j2.properties"
        logging.write_text(_LOGGING)
        os.environ["KAFKA_OPTS"] = f"-Dlog4j2.configurationFile={logging}"
        self._kafka = RealKafka(KAFKA_CONFIG)
        self._kafka.start()
        self.bootstrap_servers = self._kafka.bootstrap_servers

    @property
    def log(self) -> str:
        return self._kafka.log

    def prepare(self) -> None:
        return

    def restart(self, down_s: float) -> None:
        self._kafka.kill()
        time.sleep(down_s)
        for _ in range(_START_ATTEMPTS):
            try:
                return self._kafka.restart()
            except UnavailableError as error:
                # on a busy machine a start takes longer than a minute
                failure = error
        raise failure

    def stop(self) -> None:
        self._kafka.stop()


class _KafkaNodes:
    """Three nodes of a real Kafka; a restart kills the coordinator, the next one starts it again and elects it."""

    log = ""

    def __init__(self) -> None:
        self._cluster = KafkaCluster(3, CONFIG)
        self._cluster.__enter__()
        self.bootstrap_servers = self._cluster.bootstrap_servers
        self._killed: RealKafka | None = None

    def restart(self, down_s: float) -> None:
        if self._killed is None:
            self._killed = self._cluster.nodes[self._cluster.coordinator(_MOVED_GROUP)]
            self._killed.kill()
        else:
            self._cluster.elect_preferred([OFFSETS_TOPIC])
            self._killed = None

    def prepare(self) -> None:
        """Starts the killed node."""
        if self._killed is not None:
            self._killed.restart()
            self._cluster.wait_in_sync([OFFSETS_TOPIC])

    def stop(self) -> None:
        self._cluster.__exit__()


@contextmanager
def started_broker(is_kafka: bool, is_moved: bool = False) -> Iterator[Broker]:
    """Starts a broker, and stops it at the end."""
    with tempfile.TemporaryDirectory(prefix="causes-broker-") as directory:
        broker: Broker = _KafkaNodes() if is_moved else _Kafka(directory) if is_kafka else _EmbeddedBroker(directory)
        try:
            yield broker
        finally:
            broker.stop()


def run(
    broker: Broker,
    directory: Path,
    count: int,
    seed: int,
    worlds: Sequence[World],
    actions: Sequence[str] = (),
    settle_s: float = 1.5,
    pauses_s: Sequence[float] = (),
) -> tuple[list[Injection], list[Judged], list[Observed]]:
    """Causes about `count` rebalances, and judges every source.

    Args:
        actions: the actions of each group; without them, random ones.
        pauses_s: seconds for which the broker is down, one for each restart.
    """
    bootstrap = broker.bootstrap_servers
    settings = ClientSettings.parse({"bootstrap.servers": bootstrap})
    ended = threading.Event()
    topics = [f"causes-{n}-{letter}" for n in range(len(worlds)) for letter in "ab"]
    for topic in topics:
        create_topic(bootstrap, topic, 6)
    traffic = threading.Thread(target=produce, args=(bootstrap, topics, ended), daemon=True)
    traffic.start()
    with ClusterClient(settings.bootstrap, settings) as cluster:
        groups = []
        for n, world in enumerate(worlds):
            log = directory / f"caused-{n}.log"
            groups.append(CausedGroup(settings, topics[2 * n : 2 * n + 2], world, seed * 1_000 + n, log, settle_s))

        def read() -> list[Observed]:
            cases = {group.name: (group.world.assignors == COOPERATIVE, group.injections) for group in groups}
            return observe(cluster, cases, broker.log, directory / "times.jsonl")

        try:
            intact = act_in_all(groups, count, seed, actions)
            observed = read()
            # without a restart, what was caused before it is judged
            with _reported_unavailability():
                for pause_s in pauses_s:
                    restart(broker, intact, pause_s)
                observed = read() if pauses_s else observed
            ended.set()
            traffic.join()
            return [i for group in groups for i in group.injections], judge(observed), observed
        finally:
            ended.set()
            for group in groups:
                group.stop()


@contextmanager
def _reported_unavailability() -> Iterator[None]:
    try:
        yield
    except UnavailableError as error:
        print(f"Restarting the broker failed: {error}", file=sys.stderr)


def act_in_all(groups: Sequence[CausedGroup], count: int, seed: int, actions: Sequence[str]) -> list[CausedGroup]:
    """Divides `count` rebalances among groups by the shares of their worlds; returns those without an exception."""
    total = sum(group.world.share for group in groups)
    intact = list(groups)

    def act_on(number: int, group: CausedGroup) -> None:
        try:
            act(group, -(-count * group.world.share // total), seed * 1_000 + number, actions)
        except Exception:
            print(f"{group.name}: {traceback.format_exc()}", file=sys.stderr)
            intact.remove(group)

    _in_threads([(act_on, (number, group)) for number, group in enumerate(groups)])
    return intact


def _in_threads(calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    threads = [threading.Thread(target=function, args=arguments) for function, arguments in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def act(group: CausedGroup, count: float, seed: int, actions: Sequence[str]) -> None:
    """Performs random actions until `count` rebalances are expected; causes that are rare come first."""
    choice, done = random.Random(seed), Counter[str]()
    planned = list(actions)
    while sum(len(i.expected) for i in group.injections) < count:
        possible = {action.__name__: action for action in group.actions()}
        if planned and planned[0] not in possible:
            name = "join"
        elif planned:
            name = planned.pop(0)
        else:
            # the least frequent actions, with some randomness
            name = min(sorted(possible), key=lambda each: done[each] + choice.random() * 2)
        done[name] += 1
        group.run(possible[name])
        print(f"{time.strftime('%H:%M:%S')} {group.name} {name}", file=sys.stderr, flush=True)
        if actions and not planned:
            break


def restart(broker: Broker, groups: Sequence[CausedGroup], pause_s: float) -> None:
    """Restarts the broker; every rebalance until the groups are Stable again is because of it."""
    broker.prepare()
    _in_threads([(group.begin_rebalance, ()) for group in groups if group.world.assignors == (SLOW_ASSIGNOR,)])
    from_ms = int(time.time() * 1_000)
    broker.restart(pause_s)

    def settle(group: CausedGroup) -> None:
        try:
            group.settle("restart_broker", from_ms)
        except AssertionError as error:
            print(f"{group.name} after a restart of the broker: {error}", file=sys.stderr)

    _in_threads([(settle, (group,)) for group in groups])


def produce(bootstrap: str, topics: Sequence[str], ended: threading.Event) -> None:
    """Writes to every topic until the end, so that clients which commit new offsets only do commit."""
    producer = Producer({"bootstrap.servers": bootstrap})
    while not ended.is_set():
        for topic in topics:
            for partition in range(6):
                producer.produce(topic, b"x", partition=partition)
        producer.flush(10)
        time.sleep(0.2)


def print_times(observed: Sequence[Observed]) -> None:
    """Prints how far the times of members and history are from those of the coordinator."""
    for name, values in deviations(observed).items():
        print(f"deviation of {name}: {deviation_text(values)}")
    unowned = unowned_shares(observed)
    if unowned is not None:
        said, exact = unowned
        text = f"{said:.1f}, of the coordinator {exact:.1f}: {said / exact - 1:+.2%}"
        print(f"partition-seconds without an owner: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cause rebalances and judge the sources of their causes.")
    parser.add_argument("configurations", nargs="*", metavar="|".join(CONFIGURATIONS), help="default: all")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=len(_PAUSES_S), help="restarts of the broker at the end")
    parser.add_argument("--pace", type=float, default=1.0, help="factor of the timeouts, for a busy machine")
    parser.add_argument("--group", type=int, action="append", help="number of a group of the configuration")
    parser.add_argument("--logs", type=Path, help="directory for the output of the members")
    parser.add_argument("--keep", type=Path, help="directory for what the sources have: a file per configuration")
    parser.add_argument("--judge", type=Path, help="judge the files of a directory of --keep again, without a run")
    parser.add_argument("--document", type=Path, help="with --keep or --judge: the page whose tables are written")
    options = parser.parse_args()
    if options.judge is None:
        run_all(options)
    kept = {}
    for path in sorted(directory.glob("*.pickle")) if (directory := options.judge or options.keep) else ():
        kept[path.stem] = pickle.loads(path.read_bytes())
        if options.judge is not None:
            print(f"--- {path.stem}")
            report(judge(kept[path.stem]), kept[path.stem])
            print_times(kept[path.stem])
    if options.document is not None:
        caused_document.write(options.document, kept)


def run_all(options: argparse.Namespace) -> None:
    """Runs the configurations one after the other."""
    lines = []
    for name in options.configurations or CONFIGURATIONS:
        worlds, is_kafka, source, is_moved = CONFIGURATIONS[name]
        actions: tuple[str, ...] = ()
        pauses_s = _PAUSES_S[: options.restarts]
        if is_moved:
            actions, pauses_s = ("join",) * 3, (0.0,) * options.count
        numbers = range(len(worlds)) if options.group is None else options.group
        chosen = [worlds[number]._replace(pace=options.pace) for number in numbers]
        with tempfile.TemporaryDirectory(prefix="causes-") as scratch, started_broker(is_kafka, is_moved) as broker:
            directory = (options.logs or Path(scratch)) / name
            directory.mkdir(parents=True, exist_ok=True)
            print(f"--- {name}", flush=True)
            injections, judged, observed = run(
                broker, directory, options.count, options.seed, chosen, actions, pauses_s=pauses_s
            )
            print(f"{len(injections)} actions: {dict(Counter(i.action for i in injections))}")
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{name}.pickle").write_bytes(pickle.dumps(observed))
            shares = report(judged, observed)
            print_times(observed)
        cause, actor, number = shares[source]
        lines.append(f"| {name} | {number} | {source} | {cause:.1%} | {actor:.1%} |")
    print("| members | rebalances | source | causes right | clients right |", "|---|---|---|---|---|", *lines, sep="\n")


if __name__ == "__main__":
    main()
