"""Kills a broker under load and checks for lost and duplicate records.

    PYTHONPATH=jobs:tests python tests/chaos/broker_kills.py [--kills 500] [--seed N] [--group-records 100000]

The load: an idempotent librdkafka producer with several requests in flight, an idempotent producer on a raw connection,
a producer to a compacted topic, groups without members that commit, and members that commit in their generation.
Segments are small and are compacted continuously, so kills hit rolls and swaps too. After each restart every
acknowledged record and offset must be present, no record of an idempotent producer may be duplicated, and the broker
must serve the groups within two seconds. At the end the broker is restarted cleanly and everything is read from the
beginning.

Exits with status 1 and one line that names the first failed check.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from chaos.broker_loads import (
    BrokerCommand,
    CheckFailed,
    Commits,
    Compacted,
    Idempotent,
    Librdkafka,
    Load,
    commit,
    committed,
)
from support.raw_broker import RawConnection, create_topic, metadata

WIDE = 20  # partitions of the topic whose offsets fill __consumer_offsets


def fill(connection: RawConnection, records: int) -> int:
    """Commits about `records` offsets; returns the number of groups."""
    groups = records // WIDE
    for number in range(groups):
        if commit(connection, f"wide-{number}", {"wide": [(p, number + p) for p in range(WIDE)]}):
            raise CheckFailed("a commit to fill __consumer_offsets failed")
    return groups


def check_wide(connection: RawConnection, groups: range) -> None:
    for number in groups:
        if committed(connection, f"wide-{number}") != {("wide", p): number + p for p in range(WIDE)}:
            raise CheckFailed(f"group wide-{number} has wrong offsets: {committed(connection, f'wide-{number}')}")


class Restarts:
    """Seconds from the start of the broker until it served the groups, and its processor seconds until then."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seconds: list[float] = []
        self._cpu_s: list[float] = []

    def add(self, seconds: float, cpu_s: float) -> None:
        """Raises: CheckFailed when the restart took longer than the limit."""
        self._seconds.append(seconds)
        self._cpu_s.append(cpu_s)
        # on a busy machine the time on the clock means little
        if min(seconds, cpu_s) > self._limit_s:
            text = f"restart {len(self._seconds)} took {seconds:.2f} s, {cpu_s:.2f} s of processor time"
            raise CheckFailed(f"{text}; the limit is {self._limit_s} s")
        if len(self._seconds) % 25 == 0:
            print(f"{len(self._seconds)} kills, slowest restart {max(self._seconds):.2f} s", flush=True)

    def __str__(self) -> str:
        middle = len(self._seconds) // 2
        return (
            f"restart {sorted(self._seconds)[middle]:.2f} s median, {max(self._seconds):.2f} s maximum, "
            f"processor time {sorted(self._cpu_s)[middle]:.2f} s median, {max(self._cpu_s):.2f} s maximum"
        )


def run(directory: Path, options: argparse.Namespace) -> None:
    """Raises: CheckFailed."""
    broker = BrokerCommand(directory)
    restarts = Restarts(options.restart_limit_s)
    try:
        broker.start()
        groups = _prepare(broker, options.group_records)
        loads: list[Load] = [Idempotent(broker), Librdkafka(broker), Compacted(broker)]
        loads += [Commits(broker, f"g{number}", number % 2 == 0) for number in range(4)]
        for load in loads:
            load.start()
        try:
            _kill(broker, loads, groups, restarts, options)
        finally:
            for load in loads:
                load.done.set()
            for load in loads:
                load.join(40)
        _check_all(broker, loads, groups)
    finally:
        if broker.process is not None:
            broker.process.kill()
    cuts = sum("Truncated" in line for line in broker.log_lines())
    records = sum(len(load.acked) for load in loads if isinstance(load, Idempotent))
    commits = sum(load.acked + 1 for load in loads if isinstance(load, Commits))
    print(
        f"{options.kills} kills, {records} records and {commits} commits acknowledged, none missing, none twice; "
        f"{groups * WIDE} offsets of other groups; {restarts}; {cuts} incomplete tails were truncated"
    )


def _prepare(broker: BrokerCommand, group_records: int) -> int:
    """Creates the topics and fills __consumer_offsets; returns the number of groups."""
    with RawConnection(broker.address) as connection:
        create_topic(connection, "wide", WIDE)
        create_topic(connection, "own")
        create_topic(connection, "librdkafka", 2)
        create_topic(connection, "compacted", cleanup_policy="compact", segment_bytes="20000")
        groups = fill(connection, group_records)
    print(f"{groups * WIDE} offsets committed", flush=True)
    return groups


def _kill(
    broker: BrokerCommand, loads: Sequence[Load], groups: int, restarts: Restarts, options: argparse.Namespace
) -> None:
    """Kills and restarts the broker at random times; checks the load after each restart."""
    randomness = random.Random(options.seed)
    for _ in range(options.kills):
        time.sleep(randomness.uniform(0, options.longest_s))
        broker.stop(kill=True)
        before = [load.acknowledged() for load in loads]
        started = time.monotonic()
        broker.start()
        with RawConnection(broker.address) as connection:
            first = randomness.randrange(max(groups - 8, 1))
            check_wide(connection, range(first, min(first + 8, groups)))  # of every partition of __consumer_offsets
            seconds, cpu_s = time.monotonic() - started, broker.cpu_s()
            for load, then in zip(loads, before):
                load.check(connection, then)
                if load.failure:
                    raise CheckFailed(f"{load.name} stopped: {load.failure}")
        restarts.add(seconds, cpu_s)


def _check_all(broker: BrokerCommand, loads: Sequence[Load], groups: int) -> None:
    """Restarts the broker cleanly, reads everything from the beginning, and checks the broker's log."""
    broker.stop(kill=False)
    broker.start()
    with RawConnection(broker.address) as connection:
        for load in loads:
            if isinstance(load, Idempotent):
                load.reset()
            load.check(connection, load.acknowledged())
        check_wide(connection, range(groups))
        assert all(topic.error_code == 0 for topic in metadata(connection, "own", "librdkafka", "compacted").topics)
    broker.stop(kill=False)
    problems = ("damaged", "corrupt", "unexpected error", "offline")
    bad = [line for line in broker.log_lines() if any(problem in line.lower() for problem in problems)]
    if bad:
        raise CheckFailed(f"the broker logged: {bad[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--group-records", type=int, default=100_000)
    parser.add_argument("--longest-s", type=float, default=0.6, help="longest time between a start and the next kill")
    parser.add_argument("--restart-limit-s", type=float, default=5.0, help="also as processor time")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="groupsource-kills-"))
    try:
        run(scratch / "data", options)
    except CheckFailed as error:
        print(f"seed {options.seed}: {error}; the data is in {scratch}", file=sys.stderr)
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
