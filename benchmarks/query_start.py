"""Start of a query and availableNow queries, beside Spark's Kafka source.

    python benchmarks/query_start.py [--records 8000000] [--rounds 5] [--cold 3]

Starts an Apache Kafka with a small topic and one of `--records` records of 100 bytes, four partitions each. Queries
with both sources and trigger ``availableNow`` alternate:

* warm: in one JVM, after two queries of each source: start() to the end of the first micro-batch, which has 100
  records, its phases, and start() to termination;
* whole: the same with the large topic;
* cold: in a new process each, from the start of Python to the end of the first micro-batch.

The sink is `noop`. The tables have medians; processor seconds are those of the JVM and its Python processes. On a busy
machine compare the ratios and the processor seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "jobs"), str(HERE)]

from bench.children import checkout_environment, exit_at_sigterm, run_lines  # noqa: E402
from bench.processor_time import processor_seconds  # noqa: E402
from bench.spark import session  # noqa: E402
from bench.streams import (  # noqa: E402
    PHASES,
    SOURCES,
    Sample,
    comparison_rows,
    stream_writer,
    streaming_settings,
)
from real_kafka import RealKafka  # noqa: E402

PARTITIONS = 4
SMALL, LARGE = "small", "large"
SMALL_RECORDS = 100
_TIMEOUT_S = 1_800


class Run(NamedTuple):
    """One query: ms from start() to the end of its first batch and to its termination, phases of the first batch."""

    kind: str
    source: str
    first_batch_ms: float
    total_ms: float
    processor_s: float
    phases: Mapping[str, int]


def fill(kafka: RealKafka, topic: str, count: int) -> None:
    """Creates a topic and produces `count` values of 100 bytes with Kafka's producer."""
    servers = kafka.bootstrap_servers
    create = ("--bootstrap-server", servers, "--create", "--topic", topic, "--partitions", str(PARTITIONS))
    produce = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    for tool, given in (
        ("TopicCommand", create),
        ("ProducerPerformance", (*produce, "--producer-props", f"bootstrap.servers={servers}")),
    ):
        run = kafka.tool(f"org.apache.kafka.tools.{tool}", *given, timeout_s=600)
        if run.returncode:
            raise SystemExit(f"{tool} failed: {run.stderr[-1000:]}")


def run_query(spark: Any, kind: str, source: str, bootstrap_servers: str, topic: str, directory: str) -> Run:
    """Runs one query with trigger availableNow over the topic, from its start."""
    return run_writer(kind, source, stream_writer(spark, source, bootstrap_servers, topic, "earliest", directory))


def run_writer(kind: str, source: str, writer: Any) -> Run:
    """Runs the query of a writer with trigger availableNow."""
    spent, begin_s, begin = processor_seconds(), time.time(), time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    total_ms = (time.perf_counter() - begin) * 1000
    first = query.recentProgress[0]
    durations = first["durationMs"]
    started_s = datetime.fromisoformat(first["timestamp"].replace("Z", "+00:00")).timestamp()
    first_ms = (started_s - begin_s) * 1000 + durations["triggerExecution"]
    phases = {"before": round((started_s - begin_s) * 1000), **{phase: durations.get(phase, 0) for phase in PHASES}}
    return Run(kind, source, first_ms, total_ms, processor_seconds() - spent, phases)


def measure(arguments: argparse.Namespace) -> None:
    """Runs in a process of its own; prints one JSON line for each query."""
    servers = arguments.bootstrap_servers
    with (
        session(arguments.local, streaming_settings(arguments.unix_socket)) as spark,
        tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory,
    ):
        if arguments.cold_source:
            found = run_query(spark, "cold", arguments.cold_source, servers, SMALL, directory)
            print(json.dumps([*found, time.time()]), flush=True)
            return
        for number in range(arguments.rounds + 2):
            for source in SOURCES:
                found = run_query(spark, "warm", source, servers, SMALL, directory)
                if number >= 2:
                    print(json.dumps(found), flush=True)
        for _ in range(arguments.rounds if arguments.records else 0):
            for source in SOURCES:
                print(json.dumps(run_query(spark, "whole", source, servers, LARGE, directory)), flush=True)


def child(arguments: argparse.Namespace, bootstrap_servers: str, cold_source: str | None = None) -> list[Run]:
    """Returns what a process of its own measured."""
    script = Path(__file__).resolve()
    command = [sys.executable, str(script), "--bootstrap-servers", bootstrap_servers, "--local", str(arguments.local)]
    command += ["--rounds", str(arguments.rounds), "--records", str(arguments.records)]
    command += ["--unix-socket"] * arguments.unix_socket
    command += ["--cold-source", cold_source] if cold_source else []
    found, begin_s = [], time.time()
    for line in run_lines(command, _TIMEOUT_S, checkout_environment(HERE.parent)):
        fields = json.loads(line)
        run = Run(*fields[:6])
        if cold_source:
            # the first batch is that of the only query: everything before start() belongs to it
            before_ms = (fields[6] - begin_s) * 1000 - run.total_ms
            run = run._replace(first_batch_ms=before_ms + run.first_batch_ms, total_ms=before_ms + run.total_ms)
        found.append(run)
    return found


def rows(kind: str, found: list[Run]) -> list[list[str]]:
    """Returns a row of each source, and the ratios of ours to theirs with the difference of the first batches."""
    samples = {source: sample([run for run in found if (run.kind, run.source) == (kind, source)]) for source in SOURCES}
    lines = comparison_rows(kind, samples)
    theirs_ms, ours_ms = (samples[source].figures[0] for source in SOURCES)
    lines[-1][3] += f" ({ours_ms - theirs_ms:+,.0f})"
    return lines


def sample(runs: list[Run]) -> Sample:
    """Returns the medians of the runs of one source, in ms."""
    figures = [(run.first_batch_ms, run.total_ms, run.processor_s * 1000) for run in runs]
    phases = [statistics.median(run.phases[phase] for run in runs) for phase in runs[0].phases]
    return Sample(len(runs), [statistics.median(column) for column in zip(*figures)], phases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8_000_000, help="records of the large topic; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=5, help="warm and whole queries of each source")
    parser.add_argument("--cold", type=int, default=3, help="cold processes of each source")
    parser.add_argument("--local", type=int, default=2, help="number of cores")
    parser.add_argument("--unix-socket", action="store_true", help="spark.python.unix.domain.socket.enabled")
    for hidden in ("--bootstrap-servers", "--cold-source"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    exit_at_sigterm()
    if arguments.bootstrap_servers:
        measure(arguments)
        return 0

    table = Table(title="start of a query, median ms")
    columns = ("case", "source", "runs", "first batch", "total", "processor", "before", *PHASES)
    for column in columns:
        table.add_column(column, justify="left" if column in ("case", "source") else "right")
    with RealKafka() as kafka:
        fill(kafka, SMALL, SMALL_RECORDS)
        if arguments.records:
            fill(kafka, LARGE, arguments.records)
        found = child(arguments, kafka.bootstrap_servers) if arguments.rounds else []
        for _ in range(arguments.cold):
            for source in SOURCES:
                found += child(arguments, kafka.bootstrap_servers, source)
    for kind in ("warm", "whole", "cold"):
        if any(run.kind == kind for run in found):
            for row in rows(kind, found):
                table.add_row(*row)
    Console(width=180).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
