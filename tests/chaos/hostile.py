"""Runs attacks and a fuzzer beside well-behaved clients, and prints their effects.

    PYTHONPATH=jobs:tests python tests/chaos/hostile.py --minutes 10
    PYTHONPATH=jobs:tests python tests/chaos/hostile.py --kafka                # a real Apache Kafka, for comparison
    PYTHONPATH=jobs:tests python tests/chaos/hostile.py --document docs/security.md    # both, and writes the table
    PYTHONPATH=jobs:tests python tests/chaos/hostile.py --bootstrap HOST:PORT [--pid PID]

Every attack runs at least once, in random order, and again until the time is up. Printed are, for each attack, the
longest response times of the neighbors (heartbeats, commits, produce, fetch), the largest resident memory of the
broker, and how many connections it closed and requests it rejected. The run fails if a neighbor got a wrong response or
none, if the broker reported an unexpected error, and, on the embedded broker, beyond 100 ms or 256 MB.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import google_crc32c
from child_processes import start_process, stop_process
from real_kafka import RealKafka
from support.attacks import ATTACKS, Outcome, Target
from support.chaos.neighbors import KINDS, Neighbors, Reading
from support.full_bounds import fill_all_bounds
from support.hostile_frames import run_examples, send_hostile
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, produce, unexpected_errors
from support.state_attacks import STATE_ATTACKS

from spark_groupsource.errors import GroupSourceError
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import JoinGroupRequest, MetadataRequest, OffsetCommitRequest

LIMIT_MS, LIMIT_MB = 100.0, 256.0
_TABLE_HEADER = "| attack | embedded: longest wait | memory | refused | Kafka: longest wait | memory | refused |"
IDLE, FUZZ = "none", "fuzz"
_LABELS = {
    IDLE: "no attack",
    FUZZ: "fuzzer (150 random clients)",
    "nothing": "no attack, between the others",
    "time_lookup_of_headers": "a time look-up in a batch of 3 million empty headers",
    "pipelined_time_lookups": "50 pipelined time look-ups in such a batch",
    "metadata_4mb": "Metadata of 2 million empty names (4 MB)",
    "metadata_100mb": "the same with 100 MB",
    "tags_4mb": "4 MB of unknown tagged fields",
    "auto_create_80000": "Metadata that creates 80,000 topics",
    "create_100000_partitions": "100,000 partitions created by one request, 50,000 by another",
    "describe_configs_2000": "DescribeConfigs that names the broker 2,000 times",
    "describe_groups_300": "DescribeGroups that names a group of 400 kB 300 times",
    "clients_that_do_not_read": "ten clients that request 1 GB each and do not read",
    "half_sent_frames": "fifty frames of 100 MB, of which 4 MB are sent",
    "pipelined_heartbeats": "30,000 pipelined heartbeats",
    "pipelined_metadata": "100 pipelined Metadata requests for all topics",
    "many_connections": "2,000 connections",
    "many_groups": "9,000 groups of one member",
    "many_producer_ids": "20,000 producer ids",
    "fetch_100000_partitions": "Fetch and Produce of 100,000 partitions",
    "long_names": "strings of 40,000 bytes",
    "invalid_batches": "eight invalid record batches",
    "fill_all_bounds": "all bounds of memory filled at the same time",
    **{name: text for name, (_, text) in STATE_ATTACKS.items()},
}
_RECOVERY_S = 60.0
_IDLE_S = 3.0
_FUZZ_EXAMPLES = 150
_CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}


# --- attacks with names and batches ---


def long_names(target: Target) -> Outcome:
    """Strings that are longer than a string of the protocol can be, or become so in a response."""
    long = "n" * 40_000
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")

    def join(group_id: str, instance_id: str | None) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group_id, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            group_instance_id=instance_id, protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip

    topic = MetadataRequest.MetadataRequestTopic(name=long)
    frames = [
        encode_request(join(long, None), 9, 1, "long"),
        encode_request(join("long", long), 9, 1, "long"),
        encode_request(join("long", None), 5, 1, "c" * 32_767),
        encode_request(OffsetCommitRequest(group_id=long, topics=[]), 8, 1, "long"),
        encode_request(MetadataRequest(topics=[topic]), 9, 1, "long"),
    ]
    refused = 0
    for frame in frames:
        with target.connect() as client:
            refused += client.call(bytes(frame)) is None
    return Outcome(0, refused)


def _with(data: bytes, at: int, value: bytes) -> bytes:
    """A batch with other bytes at `at`, and a correct checksum."""
    changed = bytearray(data)
    changed[at : at + len(value)] = value
    changed[17:21] = google_crc32c.value(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def invalid_batches(target: Target) -> Outcome:
    """Record batches with a correct checksum whose header or records are wrong, and one with a wrong checksum."""
    good = batch(b"value", timestamp_ms=int(time.time() * 1000))
    future = int((time.time() + 10 * 365 * 86_400) * 1000).to_bytes(8, "big")
    batches = [
        _with(good, 57, (2).to_bytes(4, "big")),  # record count
        _with(good, 57, (2**31 - 1).to_bytes(4, "big")),
        _with(good, 23, (2_000_000_000).to_bytes(4, "big")),  # last offset delta
        _with(good, 35, future),  # maximum timestamp
        _with(good, 21, b"\0\x07"),  # unknown codec
        _with(good, 21, b"\0\x20"),  # control batch
        _with(good, 61, b"\xff" * (len(good) - 61)),  # records
        good[:20] + bytes([good[20] ^ 1]) + good[21:],  # checksum
    ]
    refused = 0
    with RawConnection(f"{target.address[0]}:{target.address[1]}") as connection:
        create_topic(connection, "invalid")
        for data in batches:
            refused += produce(connection, "invalid", data).error_code != 0
    return Outcome(0, refused)


def _fuzz(seed: int) -> Callable[[Target], Outcome]:
    def fuzz(target: Target) -> Outcome:
        closed = 0

        def run(sent: list[bytes], waits: bool) -> None:
            nonlocal closed
            try:
                closed += send_hostile(target.address, sent, waits)
            except OSError:  # hypothesis would repeat the example
                closed += 1

        run_examples(_FUZZ_EXAMPLES, seed, run)
        return Outcome(0, closed)

    return fuzz


# --- brokers ---


class Broker(NamedTuple):
    """A broker under attack. `log`: the file of its log lines, None if it is not known."""

    address: str
    process_id: int | None
    log: Path | None = None


def _embedded(directory: Path, stack: ExitStack) -> Broker:
    """Starts the embedded broker in a process of its own."""
    command = [str(Path(sys.executable).parent / "groupsource"), "broker", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(directory / "data")]
    command += [part for key, value in _CONFIG.items() for part in ("--config", f"{key}={value}")]
    log_path = directory / "broker.log"
    with open(log_path, "w") as log:
        process = start_process(command, subprocess.PIPE, log)
    stack.callback(stop_process, process, 20)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), log_path.read_text()[-1000:]
    return Broker(line.split()[-1], process.pid, log_path)


def _broker(options: argparse.Namespace, directory: Path, stack: ExitStack) -> Broker:
    if options.bootstrap:
        return Broker(options.bootstrap, options.pid)
    if options.kafka:
        kafka = stack.enter_context(RealKafka(_CONFIG))
        return Broker(kafka.bootstrap_servers, kafka.process_id)
    return _embedded(directory, stack)


# --- the run ---


class Row:
    """What one attack cost, over all its runs."""

    def __init__(self) -> None:
        self.runs = self.refused = 0
        self.peak_mb = 0.0
        self.worst_ms = dict.fromkeys(KINDS, 0.0)

    def add(self, reading: Reading, outcome: Outcome) -> None:
        self.runs += 1
        self.refused += outcome.refused
        self.peak_mb = max(self.peak_mb, reading.peak_mb)
        self.worst_ms = {kind: max(worst, reading.worst_ms[kind]) for kind, worst in self.worst_ms.items()}


def attack(target: Target, neighbors: Neighbors, run: Callable[[Target], Outcome], row: Row) -> list[str]:
    """Runs one attack; returns what was wrong for the neighbors."""
    neighbors.reading()
    try:
        outcome = run(target)
    except (OSError, AssertionError, GroupSourceError):
        outcome = Outcome(0, 1)  # the broker accepts no connection of this client, or does not respond
    time.sleep(0.2)
    reading = neighbors.reading()
    row.add(reading, outcome)
    return reading.failures


def run(options: argparse.Namespace, directory: Path, rows: dict[str, Row]) -> list[str]:
    """Runs the attacks, fills `rows` and returns the problems."""
    randomness = random.Random(options.seed)
    attacks = {**ATTACKS, "long_names": long_names, "invalid_batches": invalid_batches}
    attacks |= {name: attack for name, (attack, _) in STATE_ATTACKS.items()} | {"fill_all_bounds": fill_all_bounds}
    chosen = [name for name in options.only or attacks if name not in options.without]
    rows |= {name: Row() for name in (IDLE, FUZZ, *chosen)}
    problems: list[str] = []
    with ExitStack() as stack:
        broker = _broker(options, directory, stack)
        target = Target(broker.address, broker.process_id)
        neighbors = Neighbors(broker.address, broker.process_id)
        stack.callback(neighbors.stop)
        os.nice(5)  # of three processes on two cores, this one waits
        deadline_s = time.monotonic() + options.minutes * 60
        problems += attack(target, neighbors, _idle, rows[IDLE])
        for name in _schedule(chosen, randomness, deadline_s):
            function = _fuzz(randomness.randrange(2**32)) if name == FUZZ else attacks[name]
            began_s = time.monotonic()
            failures = attack(target, neighbors, function, rows[name])
            print(f"{name} {time.monotonic() - began_s:.0f} s{'; '.join(['', *failures])}", file=sys.stderr, flush=True)
            if failures:
                problems += [f"{name}: {failure}" for failure in failures]
                if not _restart(neighbors, attempts=1 if broker.log else 3):
                    problems.append(f"{name}: the broker serves no new client afterwards")
                    break
            time.sleep(options.pause_s)
    if broker.log is not None:
        problems += unexpected_errors(broker.log.read_text(errors="replace").splitlines())
    return problems + _exceeded(rows, options.limit_ms, options.limit_mb)


def _restart(neighbors: Neighbors, attempts: int) -> bool:
    """Starts the neighbors again; returns False if the broker does not serve them. Waits for another broker."""
    for attempt in range(attempts):
        if neighbors.restart():
            return True
        time.sleep(_RECOVERY_S if attempt < attempts - 1 else 0)
    return False


def _schedule(names: Sequence[str], randomness: random.Random, deadline_s: float) -> Iterator[str]:
    """Every attack once in random order, then again until the deadline; the fuzzer after each of them."""
    has_run: set[str] = set()
    while True:
        for name in randomness.sample(names, len(names)):
            if name in has_run and time.monotonic() >= deadline_s:
                return
            has_run.add(name)
            yield name
            yield FUZZ


def _idle(target: Target) -> Outcome:
    time.sleep(_IDLE_S)
    return Outcome()


def _print_table(rows: dict[str, Row]) -> None:
    print(f"| {'attack':26} | runs |" + "".join(f" {kind:>9} |" for kind in KINDS) + " peak MB | refused |")
    print("|---|" + "--:|" * (len(KINDS) + 3))
    for name, row in rows.items():
        if row.runs:
            times = "".join(f" {row.worst_ms[kind]:9.0f} |" for kind in KINDS)
            print(f"| {name:26} | {row.runs:4} |{times} {row.peak_mb:7.0f} | {row.refused:7} |")
    worst_ms = max(max(row.worst_ms.values()) for row in rows.values())
    print(f"worst {worst_ms:.0f} ms, peak {max(row.peak_mb for row in rows.values()):.0f} MB", flush=True)


def _document(path: Path, embedded: dict[str, Row], kafka: dict[str, Row]) -> None:
    """Replaces the table of a page by one of both brokers: one column of times, the attacks in words."""

    def cells(row: Row | None) -> str:
        if row is None or not row.runs:
            return " not measured |  |  |"
        return f" {max(row.worst_ms.values()):,.0f} ms | {row.peak_mb:,.0f} MB | {row.refused} |"

    before, header, rest = path.read_text().partition(_TABLE_HEADER)
    assert header, f"{path} has no line {_TABLE_HEADER!r}"
    after = rest.splitlines(keepends=True)
    while after and (after[0].startswith("|") or not after[0].strip()):
        del after[0]
    lines = [header, "|---|--:|--:|--:|--:|--:|--:|"]
    lines += [f"| {_LABELS[name]} |{cells(row)}{cells(kafka.get(name))}" for name, row in embedded.items()]
    path.write_text(before + "\n".join(lines) + "\n" + "".join(["\n" * bool(after), *after]))


def _exceeded(rows: dict[str, Row], limit_ms: float | None, limit_mb: float | None) -> list[str]:
    """One line for each attack beyond a limit."""
    exceeded = []
    for name, row in rows.items():
        kind = max(KINDS, key=lambda kind: row.worst_ms[kind])
        if limit_ms is not None and row.worst_ms[kind] > limit_ms:
            exceeded.append(f"{name}: {kind} took {row.worst_ms[kind]:.0f} ms, the limit is {limit_ms:.0f} ms")
        if limit_mb is not None and row.peak_mb > limit_mb:
            exceeded.append(f"{name}: the broker used {row.peak_mb:.0f} MB, the limit is {limit_mb:.0f} MB")
    return exceeded


def _measured(options: argparse.Namespace) -> tuple[list[str], dict[str, Row]]:
    """Runs the attacks on one broker and prints the table, also of a run that is interrupted."""
    options = argparse.Namespace(**vars(options))
    if options.pause_s is None:
        options.pause_s = 10.0 if options.kafka else 0.0
    if not options.kafka and not options.bootstrap:
        options.limit_ms = LIMIT_MS if options.limit_ms is None else options.limit_ms
        options.limit_mb = LIMIT_MB if options.limit_mb is None else options.limit_mb
    rows: dict[str, Row] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="groupsource-hostile-") as directory:
            return run(options, Path(directory), rows), rows
    finally:
        if rows:
            _print_table(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", nargs="*", default=[], metavar="ATTACK")
    parser.add_argument("--without", nargs="*", default=[], metavar="ATTACK")
    parser.add_argument("--pause-s", type=float, help="after each attack; default: 10 on a real Kafka, else 0")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--document", type=Path, metavar="FILE", help="run on both brokers and write the table of FILE")
    where.add_argument("--kafka", action="store_true", help="a real Apache Kafka, fetched for it")
    where.add_argument("--bootstrap", metavar="HOST:PORT", help="a running broker of one node")
    parser.add_argument("--pid", type=int, help="process id of that broker, for its memory")
    parser.add_argument("--limit-ms", type=float, help="default: 100 on the embedded broker, else none")
    parser.add_argument("--limit-mb", type=float, help="default: 256 on the embedded broker, else none")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {options.seed}", flush=True)
    problems, embedded = _measured(options)
    if options.document is not None:
        options.kafka = True
        _, kafka = _measured(options)
        _document(options.document, embedded, kafka)
    for problem in problems:
        print(f"seed {options.seed}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
