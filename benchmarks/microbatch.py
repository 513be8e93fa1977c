"""Micro-batches at a constant rate of records, beside Spark's Kafka source.

    python benchmarks/microbatch.py [--rate 2000] [--seconds 10] [--rounds 4]

Starts an Apache Kafka with a topic of four partitions and produces 100-byte records at a constant rate. Streaming
queries with both sources alternate in one JVM, each for some seconds, with trigger ``processingTime=0`` and sink
`noop`; the first batches of each query are left out. Everything runs twice: with
``spark.python.unix.domain.socket.enabled`` and without it. The table has the median and the 99th percentile of a
micro-batch, the median of each phase of its progress, and processor seconds (JVM and its Python processes) per batch.

On a busy machine compare the ratios and the processor seconds: waits depend on the load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.children import checkout_environment, exit_at_sigterm, run_lines
from bench.processor_time import processor_seconds
from bench.spark import session
from bench.streams import PHASES, SOURCES, Sample, comparison_rows, stream_writer, streaming_settings
from rich.console import Console
from rich.table import Table

JOBS = Path(__file__).resolve().parent.parent / "jobs"
sys.path.insert(0, str(JOBS))

from real_kafka import RealKafka  # noqa: E402

PARTITIONS = 4
TOPIC = "ticks"
# a micro-batch of 5 ms has ten records at the default rate
_TICK_S = 0.005
_WARM_UP_BATCHES = 10
_TIMEOUT_S = 1_800


class Batch(NamedTuple):
    """Duration of one micro-batch, of its phases, in ms, and its number of records."""

    trigger_ms: int
    phases: dict[str, int]
    records: int


class Round(NamedTuple):
    """Batches of one query, and the processor seconds that were used while they ran."""

    source: str
    batches: list[Batch]
    processor_s: float


def produce(bootstrap_servers: str, rate: int, stopping: threading.Event) -> None:
    """Produces `rate` records per second until `stopping` is set."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1})
    value, produced, begin = bytes(100), 0, time.monotonic()
    while not stopping.wait(_TICK_S):
        due = int((time.monotonic() - begin) * rate)
        try:
            for number in range(produced, due):
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
        except BufferError:
            # the broker is slower than the rate; the next tick does not repeat what it has missed
            pass
        produced = due
        producer.poll(0)
    producer.flush(10)


def run_query(spark: Any, source: str, bootstrap_servers: str, seconds: float, directory: str) -> Round:
    """Runs one query for `seconds` after its first batches."""
    writer = stream_writer(spark, source, bootstrap_servers, TOPIC, "latest", directory)
    query = writer.trigger(processingTime="0 seconds").start()
    while (query.lastProgress or {"batchId": -1})["batchId"] < _WARM_UP_BATCHES:
        time.sleep(0.1)
        if query.exception() is not None:
            raise query.exception()
    spent = processor_seconds()
    time.sleep(seconds)
    spent = processor_seconds() - spent
    progress = [json.loads(each.json) if hasattr(each, "json") else each for each in query.recentProgress]
    query.stop()
    batches = []
    for each in progress:
        durations = each["durationMs"]
        if each["batchId"] > _WARM_UP_BATCHES and each["numInputRows"]:
            phases = {phase: durations.get(phase, 0) for phase in PHASES}
            batches.append(Batch(durations["triggerExecution"], phases, each["numInputRows"]))
    return Round(source, batches, spent)


def measure(cores: int, bootstrap_servers: str, has_unix_socket: bool, seconds: float, rounds: int) -> None:
    """Runs in a process of its own; prints one JSON line for each query."""
    with (
        session(cores, streaming_settings(has_unix_socket)) as spark,
        tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory,
    ):
        for number in range(rounds + 1):
            for source in SOURCES:
                found = run_query(spark, source, bootstrap_servers, seconds if number else 1, directory)
                if number:
                    print(json.dumps([found.source, found.batches, found.processor_s]), flush=True)


def child(arguments: argparse.Namespace, bootstrap_servers: str, has_unix_socket: bool) -> list[Round]:
    """Returns what a process of its own measured."""
    script = Path(__file__).resolve()
    command = [sys.executable, str(script), "--bootstrap-servers", bootstrap_servers, "--local", str(arguments.local)]
    command += ["--seconds", str(arguments.seconds), "--rounds", str(arguments.rounds)]
    command += ["--unix-socket"] * has_unix_socket
    found = []
    for line in run_lines(command, _TIMEOUT_S, checkout_environment(script.parent.parent)):
        source, batches, processor_s = json.loads(line)
        found.append(Round(source, [Batch(*batch) for batch in batches], processor_s))
    return found


def percentile(values: list[int], share: float) -> int:
    """Returns the smallest value that is not exceeded by `share` of all."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def sample(rounds: list[Round]) -> Sample:
    """Returns the medians of the batches of one source, and the processor time per batch, in ms."""
    batches = [batch for each in rounds for batch in each.batches]
    triggers = [batch.trigger_ms for batch in batches]
    spent_ms = sum(each.processor_s for each in rounds) / len(batches) * 1000
    phases = [statistics.median(batch.phases[phase] for batch in batches) for phase in PHASES]
    return Sample(len(batches), [statistics.median(triggers), percentile(triggers, 0.99), spent_ms], phases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=2_000, help="records per second")
    parser.add_argument("--seconds", type=float, default=10, help="time of each query after its first batches")
    parser.add_argument("--rounds", type=int, default=4, help="queries of each source, which alternate")
    parser.add_argument("--local", type=int, default=2, help="number of cores")
    parser.add_argument("--sockets", choices=("both", "tcp", "unix"), default="both")
    parser.add_argument("--bootstrap-servers", help=argparse.SUPPRESS)
    parser.add_argument("--unix-socket", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    exit_at_sigterm()
    if arguments.bootstrap_servers:
        measure(
            arguments.local, arguments.bootstrap_servers, arguments.unix_socket, arguments.seconds, arguments.rounds
        )
        return 0

    table = Table(title=f"micro-batches at {arguments.rate:,} records/s, ms")
    for column in ("socket", "source", "batches", "median", "p99", "processor", *PHASES):
        table.add_column(column, justify="right" if column not in ("socket", "source") else "left")
    kinds = {"tcp": [False], "unix": [True], "both": [False, True]}[arguments.sockets]
    stopping = threading.Event()
    with RealKafka() as kafka:
        created = kafka.tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", TOPIC),
            *("--partitions", str(PARTITIONS)),
        )
        if created.returncode:
            raise SystemExit(f"topic {TOPIC} could not be created: {created.stderr[-1000:]}")
        servers = kafka.bootstrap_servers
        producer = threading.Thread(target=produce, args=(servers, arguments.rate, stopping), daemon=True)
        producer.start()
        try:
            for has_unix_socket in kinds:
                title = "unix" if has_unix_socket else "tcp"
                found = child(arguments, servers, has_unix_socket)
                samples = {source: sample([each for each in found if each.source == source]) for source in SOURCES}
                for row in comparison_rows(title, samples):
                    table.add_row(*row)
        finally:
            stopping.set()
            producer.join()
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
