"""Runs attacks and a fuzzer beside well-behaved clients, and prints their effects.

    PYTHONPATH=jobs:tests python tests/attacks/hostile.py --minutes 10
    PYTHONPATH=jobs:tests python tests/attacks/hostile.py --kafka                # a real Apache Kafka, for comparison
    PYTHONPATH=jobs:tests python tests/attacks/hostile.py --document docs/security.md    # both, and writes its tables
    PYTHONPATH=jobs:tests python tests/attacks/hostile.py --bootstrap HOST:PORT [--pid PID]

Every attack runs at least once, in random order, and again until the time is up. Printed are, for each attack, the
longest response times of the neighbors (heartbeats, commits, produce, fetch), the largest resident memory of the
broker, and how many connections it closed and requests it rejected. The run fails if a neighbor got a wrong response or
none, if the broker reported an unexpected error, and, on the embedded broker, beyond 100 ms or 256 MB. After an attack
that stops the broker, or after which it serves no new client for two minutes, the run continues with another broker.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import google_crc32c
from attacks.attacked_brokers import AttackedBroker, embedded, kafka, running
from attacks.client_attacks import ATTACKS, Outcome, Target
from attacks.full_bounds import STATE, TRANSIENT, fill_all_bounds, measure_all
from attacks.hostile_frames import run_examples, send_hostile
from attacks.hostile_report import FUZZ, IDLE, Row, print_table, write_attacks
from attacks.neighbors import KINDS, Neighbors
from attacks.state_attacks import STATE_ATTACKS
from attacks.tls_attacks import TLS_ATTACKS
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, produce, unexpected_errors

from spark_groupsource.errors import GroupSourceError
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import JoinGroupRequest, MetadataRequest, OffsetCommitRequest

BOUNDS = (*STATE, *TRANSIENT)
LIMIT_MS, LIMIT_MB = 100.0, 256.0
_RECOVERY_S = 120.0
_ATTACK_TIMEOUT_S = 600.0
_IDLE_S, _SETTLE_S = 3.0, 0.2
_FUZZ_EXAMPLES = 150


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


# --- the run ---


class Run:
    """The attacks on one broker. `rows` and `problems` are complete whenever an attack has ended."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.rows: dict[str, Row] = {}
        self.problems: list[str] = []
        self._options = options
        self._directory = directory

    def run(self, broker: AttackedBroker) -> None:
        """Runs the attacks, on another broker after one that stops it."""
        options = self._options
        randomness = random.Random(options.seed)
        attacks = {**ATTACKS, "long_names": long_names, "invalid_batches": invalid_batches}
        attacks |= {name: attack for name, (attack, _) in STATE_ATTACKS.items()} | {"fill_all_bounds": fill_all_bounds}
        if broker.target.tls_address is not None:
            attacks |= {name: attack for name, (attack, _) in TLS_ATTACKS.items()}
        chosen = [name for name in options.only or attacks if name not in options.without]
        self.rows |= {name: Row() for name in (IDLE, FUZZ, *chosen)}
        with ExitStack() as stack:
            stack.callback(broker.close)
            neighbors = Neighbors(broker.address, broker.target.process_id)
            stack.callback(lambda: neighbors.stop())  # of those that run at the end
            deadline_s = time.monotonic() + options.minutes * 60
            self._attack(broker, neighbors, IDLE, _idle)
            for name in _schedule(chosen, randomness, deadline_s):
                function = _fuzz(randomness.randrange(2**32)) if name == FUZZ else attacks[name]
                if not self._attack(broker, neighbors, name, function):
                    note = self._wait_for_broker(broker, neighbors)
                    if note:
                        self.rows[name].note = note
                        self.problems.append(f"{name}: {note}")
                        if not broker.is_replaceable:
                            break
                        broker.replace()
                        neighbors.stop()
                        neighbors = Neighbors(broker.address, broker.target.process_id)
                time.sleep(options.pause_s)
        for log in sorted(self._directory.glob("broker-*.log")):
            self.problems += unexpected_errors(log.read_text(errors="replace").splitlines())
        self.problems += _exceeded(self.rows, options.limit_ms, options.limit_mb)

    def _attack(
        self, broker: AttackedBroker, neighbors: Neighbors, name: str, function: Callable[[Target], Outcome]
    ) -> bool:
        """Runs one attack; returns whether the neighbors were served, otherwise they have ended."""
        neighbors.reading()
        began_s = time.monotonic()
        outcome, failure = _ended(function, broker.target)
        time.sleep(_SETTLE_S)
        reading = neighbors.reading()
        failures = [*reading.failures, *([failure] if failure else [])]
        self.rows[name].add(reading, outcome.refused)
        self.problems += [f"{name}: {failure}" for failure in failures]
        print(f"{name} {time.monotonic() - began_s:.0f} s{'; '.join(['', *failures])}", file=sys.stderr, flush=True)
        return not failures and broker.is_running()

    def _wait_for_broker(self, broker: AttackedBroker, neighbors: Neighbors) -> str:
        """Starts the neighbors again; returns what the attack did if the broker does not serve them."""
        began_s = time.monotonic()
        while broker.is_running():
            if neighbors.restart(_RECOVERY_S):
                return ""
            if time.monotonic() - began_s >= _RECOVERY_S:
                return f"no new client for {time.monotonic() - began_s:.0f} s"
        return "stopped the broker"


def _ended(function: Callable[[Target], Outcome], target: Target) -> tuple[Outcome, str]:
    """Runs an attack, for a bounded time; returns its outcome, and why it has none that counts."""
    found: list[Outcome] = []
    errors: list[Exception] = []

    def attack() -> None:
        try:
            found.append(function(target))
        except (OSError, AssertionError, GroupSourceError):
            found.append(Outcome(0, 1))  # the broker accepts no connection of this client, or does not respond
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    thread.join(_ATTACK_TIMEOUT_S)
    if found:
        return found[0], ""
    if errors:
        return Outcome(0, 1), f"the attack failed: {type(errors[0]).__name__}: {errors[0]}"
    return Outcome(0, 1), f"the attack did not end within {_ATTACK_TIMEOUT_S:.0f} s"


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


def _measure(options: argparse.Namespace, is_kafka: bool, runs: list[Run]) -> None:
    """Runs the attacks on one broker, adds the run to `runs` and prints its table, also if it is interrupted."""
    options = argparse.Namespace(**vars(options))
    if options.pause_s is None:
        options.pause_s = 10.0 if is_kafka else 0.0
    if not is_kafka and not options.bootstrap:
        options.limit_ms = LIMIT_MS if options.limit_ms is None else options.limit_ms
        options.limit_mb = LIMIT_MB if options.limit_mb is None else options.limit_mb
    with tempfile.TemporaryDirectory(prefix="groupsource-hostile-") as directory:
        run = Run(options, Path(directory))
        runs.append(run)
        try:
            if options.bootstrap:
                run.run(running(options.bootstrap, options.pid))
            else:
                run.run((kafka if is_kafka else embedded)(Path(directory)))
        finally:
            if run.rows:
                print_table(run.rows)


def _document(options: argparse.Namespace, runs: list[Run]) -> None:
    """Measures the memory of the bounds and runs the attacks on both brokers.

    The page gets each bound when it is measured, and the attacks in every case, with what was measured until then. Only
    its tables are replaced, with `--only` only the rows of these attacks: what is written about them may have to be
    changed by hand.
    """
    measure_all(options.bounds if options.bounds is not None else BOUNDS, options.document)
    try:
        _measure(options, False, runs)
        _measure(options, True, runs)
    finally:
        # with --only, a run of the others stays in the page
        rows = [{name: row for name, row in run.rows.items() if _is_chosen(options, name)} for run in runs]
        embedded_rows, kafka_rows = (rows + [{}, {}])[:2]
        write_attacks(options.document, embedded_rows, kafka_rows, keeps_others=bool(options.only))


def _is_chosen(options: argparse.Namespace, name: str) -> bool:
    return name in options.only or not options.only


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", nargs="*", default=[], metavar="ATTACK")
    parser.add_argument("--without", nargs="*", default=[], metavar="ATTACK")
    parser.add_argument("--pause-s", type=float, help="after each attack; default: 10 on a real Kafka, else 0")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--document", type=Path, metavar="FILE", help="run on both brokers, write the tables of FILE")
    where.add_argument("--kafka", action="store_true", help="a real Apache Kafka, fetched for it")
    where.add_argument("--bootstrap", metavar="HOST:PORT", help="a running broker of one node")
    parser.add_argument("--bounds", nargs="*", metavar="NAME", help="bounds measured for --document; default: all")
    parser.add_argument("--pid", type=int, help="process id of that broker, for its memory")
    parser.add_argument("--limit-ms", type=float, help="default: 100 on the embedded broker, else none")
    parser.add_argument("--limit-mb", type=float, help="default: 256 on the embedded broker, else none")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {options.seed}", flush=True)
    os.nice(5)  # of three processes on two cores, this one waits
    runs: list[Run] = []
    try:
        if options.document is not None:
            _document(options, runs)
        else:
            _measure(options, options.kafka, runs)
    finally:
        # a real Kafka has no limits here
        problems = runs[0].problems if runs else []
        for problem in problems:
            print(f"seed {options.seed}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
