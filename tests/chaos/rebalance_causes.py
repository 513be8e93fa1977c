"""Causes rebalances on purpose and compares what each source says of them.

    PYTHONPATH=jobs:tests python tests/chaos/rebalance_causes.py [--count 200] [--seed 1] [--kafka] [--members foreign]

Groups of members of this package and of other client libraries run side by side. Members join, leave, are killed,
paused, removed by an operator, change their subscription and so on. For each rebalance the cause and the client that
caused it are compared with the events of the embedded coordinator, the observations of own members, and the history in
`__consumer_offsets`; the last column is the merged result that users see.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from child_processes import start_process, stop_process
from confluent_kafka import Producer
from real_kafka import RealKafka
from support.chaos.caused_group import CausedGroup, Expected, Injection, World
from support.topics import create_topic

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.monitor.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.event_sources import application_events, group_events
from spark_groupsource.monitor.group_history import group_records
from spark_groupsource.monitor.rebalance import Rebalance
from spark_groupsource.monitor.rebalance_sources import read_history
from spark_groupsource.monitor.rebalances import rebalances
from spark_groupsource.monitor.selection import NameSelection

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
EAGER, COOPERATIVE = ("range",), ("cooperative-sticky",)
FOREIGN_WORLDS = (
    World(("librdkafka",), EAGER),
    World(("kafka-python", "librdkafka"), EAGER, commit_s=1.0),
    World(("aiokafka", "librdkafka"), EAGER, commit_s=1.0),
    World(("librdkafka",), COOPERATIVE, commit_s=0.7),
    World(("librdkafka",), ("range", "roundrobin"), is_static=True),
    World(("librdkafka", "aiokafka"), EAGER, commit_s=2.0, heartbeat_ms=2_000),
)
OWN_WORLDS = (
    World(("own",), EAGER),
    World(("own", "librdkafka"), EAGER, commit_s=1.0),
    World(("own",), COOPERATIVE),
    World(("own",), ("range", "roundrobin"), is_static=True, commit_s=1.0),
    World(("own", "kafka-python"), EAGER, commit_s=1.0),
    World(("own", "librdkafka"), COOPERATIVE, commit_s=1.0, heartbeat_ms=1_500),
)
SOURCES = ("events", "own members", "history", "merged")


class Judged(NamedTuple):
    """One expected rebalance and what a source says."""

    source: str
    expected: Expected
    found: Rebalance | None

    @property
    def is_cause_right(self) -> bool:
        return self.found is not None and self.found.cause.value == self.expected.cause

    @property
    def is_actor_right(self) -> bool:
        """The client is the expected one; for causes without an expected client, always."""
        if self.expected.client is None:
            return True
        actor = None if self.found is None else self.found.actor
        return actor is not None and actor.client_id == self.expected.client


@contextmanager
def broker(is_kafka: bool) -> Iterator[str]:
    """Starts a broker; yields its address."""
    if is_kafka:
        with RealKafka(CONFIG) as kafka:
            yield kafka.bootstrap_servers
        return
    # in a process of its own: the threads of this one would delay it
    command = [str(Path(sys.executable).parent / "groupsource"), "broker", "--listen", "127.0.0.1:0"]
    command += [part for key, value in CONFIG.items() for part in ("--config", f"{key}={value}")]
    with tempfile.TemporaryDirectory(prefix="causes-broker-") as directory:
        process = start_process([*command, "--data-dir", directory], subprocess.PIPE, subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            stop_process(process, 30)


def run(
    bootstrap: str,
    directory: Path,
    count: int,
    seed: int,
    worlds: Sequence[World],
    actions: Sequence[str] = (),
    settle_s: float = 1.5,
) -> tuple[list[Injection], list[Judged]]:
    """Causes about `count` rebalances, and judges every source."""
    settings = ClientSettings.parse({"bootstrap.servers": bootstrap})
    ended = threading.Event()
    topics = [f"causes-{n}-{letter}" for n in range(len(worlds)) for letter in "ab"]
    for topic in topics:
        create_topic(bootstrap, topic, 6)
    traffic = threading.Thread(target=produce, args=(bootstrap, topics, ended), daemon=True)
    traffic.start()
    with Cluster(settings.bootstrap, settings) as cluster:
        groups = [
            CausedGroup(
                bootstrap,
                Cluster(settings.bootstrap, settings),
                f"caused-{number}",
                topics[2 * number : 2 * number + 2],
                world,
                seed * 1_000 + number,
                directory / f"caused-{number}.log",
                settle_s,
            )
            for number, world in enumerate(worlds)
        ]
        share = -(-count // len(groups))
        threads = [
            threading.Thread(target=act, args=(group, share, seed * 1_000 + n, actions))
            for n, group in enumerate(groups)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        traffic.join()
        return [i for group in groups for i in group.injections], judge(cluster, groups)


def act(group: CausedGroup, count: int, seed: int, actions: Sequence[str]) -> None:
    """Performs random actions until `count` rebalances are expected; causes that are rare come first."""
    choice, done = random.Random(seed), Counter[str]()
    planned = list(actions)
    try:
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
            if actions and not planned:
                break
    except Exception:
        print(f"{group.name}: {traceback.format_exc()}", file=sys.stderr)
    finally:
        group.stop()


def produce(bootstrap: str, topics: Sequence[str], ended: threading.Event) -> None:
    """Writes to every topic until the end, so that clients which commit new offsets only do commit."""
    producer = Producer({"bootstrap.servers": bootstrap})
    while not ended.is_set():
        for topic in topics:
            for partition in range(6):
                producer.produce(topic, b"x", partition=partition)
        producer.flush(10)
        time.sleep(0.2)


def judge(cluster: Cluster, groups: Sequence[CausedGroup]) -> list[Judged]:
    """Compares the expected rebalances with those of each source."""
    found = []
    selection = NameSelection(tuple(group.name for group in groups))
    records, events = group_records(cluster, selection), group_events(cluster, selection)
    own = application_events(cluster, selection)
    for group in groups:
        name = group.name
        history = list(rebalances(name, records.get(name, ())))
        sources: Mapping[str, list[Rebalance]] = {
            "events": list(rebalances_from_events(events.get(name, ()))),
            "own members": list(rebalances_from_events(own.get(name, ()))),
            "history": history,
            "merged": read_history(cluster, name).rebalances,
        }
        for injection in group.injections:
            window = [r for r in history if injection.from_ms <= r.completed_ms <= injection.to_ms]
            expected = list(injection.expected)
            is_cooperative = group.world.assignors == COOPERATIVE
            for at, actual in enumerate(window):
                if at < len(expected):
                    wanted = expected[at]
                elif is_cooperative and actual.moves:
                    wanted = Expected("COOPERATIVE_SECOND_ROUND", None)
                else:
                    continue
                for source in SOURCES:
                    if not sources[source]:
                        continue
                    same = [r for r in sources[source] if r.generation == actual.generation]
                    nearest = min(same, key=lambda r: abs(r.completed_ms - actual.completed_ms), default=None)
                    found.append(Judged(source, wanted, nearest))
            if len(window) != len(expected) and not is_cooperative:
                print(f"{name} {injection.action}: {[r.cause.value for r in window]}, expected {expected}")
    return found


def report(judged: Sequence[Judged], is_verbose: bool) -> dict[str, tuple[float, float, int]]:
    """Prints the table; returns source -> share of right causes, share of right clients, number."""
    causes = sorted({j.expected.cause for j in judged})
    print(f"{'cause':<26}" + "".join(f"{source:>24}" for source in SOURCES))
    shares = {}
    for cause in [*causes, "total"]:
        cells = []
        for source in SOURCES:
            chosen = [j for j in judged if j.source == source and cause in (j.expected.cause, "total")]
            right, actor = sum(j.is_cause_right for j in chosen), sum(j.is_actor_right for j in chosen)
            cells.append(f"{right}/{len(chosen)}, actor {actor}" if chosen else "-")
            if chosen and cause == "total":
                shares[source] = (right / len(chosen), actor / len(chosen), len(chosen))
        print(f"{cause:<26}" + "".join(f"{cell:>24}" for cell in cells))
    for j in judged if is_verbose else ():
        if not (j.is_cause_right and j.is_actor_right):
            cause = "none" if j.found is None else f"{j.found.cause.value} {j.found.difference} {j.found.actor}"
            where = "" if j.found is None else f"{j.found.group} generation {j.found.generation}"
            print(f"wrong ({j.source}): expected {j.expected.cause} {j.expected.client}, {where}: {cause}")
    for source, (right, actor, number) in shares.items():
        print(f"{source}: {right:.1%} of {number} causes, {actor:.1%} of the clients right")
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description="Cause rebalances and judge the sources of their causes.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="a real Kafka instead of the embedded broker")
    parser.add_argument("--members", choices=("own", "foreign", "both"), default="both")
    parser.add_argument("--logs", type=Path, help="directory for the output of the members")
    options = parser.parse_args()
    worlds = {"own": OWN_WORLDS, "foreign": FOREIGN_WORLDS, "both": OWN_WORLDS[:4] + FOREIGN_WORLDS[:4]}
    with tempfile.TemporaryDirectory(prefix="causes-") as scratch, broker(options.kafka) as bootstrap:
        directory = options.logs or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        injections, judged = run(bootstrap, directory, options.count, options.seed, worlds[options.members])
        print(f"{len(injections)} actions")
        report(judged, is_verbose=True)


if __name__ == "__main__":
    main()
