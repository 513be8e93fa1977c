"""Streaming queries: start, availableNow and micro-batches, beside Spark's Kafka source.

    python benchmarks/run.py --only availableNow --only cold-start --only starts-as-installed
    python benchmarks/run.py --only micro-batch-tcp --only micro-batch-unix

`query_start.py` and `microbatch.py` run the queries and print their phases.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
from functools import partial
from typing import Any, Iterator, Sequence

import microbatch
import query_start
from batch_read import FULL_WARM_READS, cases
from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from bench.spark import CEILING, KAFKA, OWN, RIVAL_NAMES, session
from bench.streams import PHASES, ceiling_writer, streaming_settings
from bench.topics import Topic, client, create, ensure

_CORES = 2
_WARM_QUERIES = 2
_WARM, _COLD = "start of a query, warm JVM", "start of a query, cold"
_DIFFERENCE_S, _COLD_RATIO = 0.3, 1 / 1.1


def small(context: Context) -> Topic:
    """Returns the loaded topic of the queries that have one small micro-batch."""
    topic = Topic(query_start.SMALL, query_start.SMALL_RECORDS, batch_records=query_start.SMALL_RECORDS // 4)
    ensure(context.bootstrap_servers, topic)
    return topic


def available_now(context: Context) -> Iterator[Figure]:
    """start() to the first row, warm; and start() to termination over the large topic, beside the ceiling, too."""
    case = cases(context)[0]
    large = case.topic
    ensure(context.bootstrap_servers, large)
    small(context)
    with session(_CORES) as spark, tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        rounds = warm_starts(spark, context, directory)
        # the JVM compiles the loops over the rows
        warm_queries = FULL_WARM_READS if context.scale >= 1 else 1
        for number in range(warm_queries + context.rounds):
            runs = [
                query_start.run_query(spark, "whole", source, context.bootstrap_servers, large.name, directory)
                for source in (OWN, KAFKA)
            ]
            writer = ceiling_writer(spark, case.read().ceiling, directory)
            runs.append(query_start.run_writer("whole", CEILING, writer))
            for run in runs if number >= warm_queries else ():
                rounds.add(f"{run.source} whole", run.total_ms / 1000)
    yield pair(rounds, _WARM, "start() to the end of the first batch", "first", None, _DIFFERENCE_S)
    yield from phases(rounds, "warm start, phases of the first batch", ("before", *PHASES))
    yield pair(rounds, "availableNow query", "100 records, start() to termination", "small", None)
    title = f"{large.records / 1e6:.3g} M x 100 B, start() to termination, local[{_CORES}]"
    yield pair(rounds, "availableNow query", title, "whole", 2.5)
    yield pair(rounds, "availableNow query", title, "whole", None, rival=CEILING)


def warm_starts(spark: Any, context: Context, directory: str) -> Rounds:
    """Runs short queries of both sources, the first ones of each uncounted."""
    rounds = Rounds()
    for number in range(_WARM_QUERIES + context.rounds):
        for source in (OWN, KAFKA):
            topic = query_start.SMALL
            run = query_start.run_query(spark, "warm", source, context.bootstrap_servers, topic, directory)
            if number >= _WARM_QUERIES:
                rounds.add(f"{source} first", run.first_batch_ms / 1000)
                rounds.add(f"{source} small", run.total_ms / 1000)
                for phase, took_ms in run.phases.items():
                    rounds.add(f"{source} {phase}", took_ms)
    return rounds


def starts_as_installed(context: Context) -> Iterator[Figure]:
    """Warm and cold starts with the archive of PySpark as it is installed, which Python compiles at each start."""
    small(context)
    with session(_CORES) as spark, tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        rounds = warm_starts(spark, context, directory)
    case = "start() to the end of the first batch, PySpark's archive as installed"
    yield pair(rounds, _WARM, case, "first", None, _DIFFERENCE_S)
    case = "Python to the end of the first batch, PySpark's archive as installed"
    yield pair(cold_starts(context), _COLD, case, "cold", _COLD_RATIO)


def phases(rounds: Rounds, measure: str, names: Sequence[str], case: str = "") -> Iterator[Figure]:
    """Yields a row for each phase of a micro-batch that takes time; `before` is that from start() to the trigger."""
    for name in names:
        own, rival = rounds.values[f"{OWN} {name}"], rounds.values[f"{KAFKA} {name}"]
        if any((*own, *rival)):
            yield Figure(measure, f"{case}{name}", "ms", own, RIVAL_NAMES[KAFKA], rival, is_detail=True)


def pair(
    rounds: Rounds,
    measure: str,
    case: str,
    kind: str,
    least_ratio: float | None,
    difference: float | None = None,
    rival: str = KAFKA,
) -> Figure:
    own, others = rounds.values[f"{OWN} {kind}"], rounds.values[f"{rival} {kind}"]
    name = RIVAL_NAMES[rival]
    return Figure(measure, case, "s", own, name, others, least_ratio=least_ratio, largest_difference=difference)


def cold_start(context: Context) -> Iterator[Figure]:
    """From the start of Python to the end of the first micro-batch."""
    small(context)
    yield pair(cold_starts(context), _COLD, "Python to the end of the first batch", "cold", _COLD_RATIO)


def cold_starts(context: Context) -> Rounds:
    """Runs a short query of each source in a new process each."""
    arguments = argparse.Namespace(local=_CORES, rounds=0, records=0, unix_socket=False)
    rounds = Rounds()
    for _ in range(context.rounds):
        for source in (OWN, KAFKA):
            (run,) = query_start.child(arguments, context.bootstrap_servers, source)
            rounds.add(f"{source} cold", run.first_batch_ms / 1000)
    return rounds


def micro_batches(has_unix_socket: bool, context: Context) -> Iterator[Figure]:
    """Micro-batches at 2,000 records per second: median and 99th percentile."""
    with client(context.bootstrap_servers) as cluster:
        create(cluster, microbatch.TOPIC, microbatch.PARTITIONS)
    stopping = threading.Event()
    producer = threading.Thread(
        target=microbatch.produce, args=(context.bootstrap_servers, 2_000, stopping), daemon=True
    )
    producer.start()
    medians, tails = Rounds(), Rounds()
    try:
        with (
            session(_CORES, streaming_settings(has_unix_socket)) as spark,
            tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory,
        ):
            for number in range(context.rounds + 1):
                for source in (OWN, KAFKA):
                    seconds = max(2.0, 8 * context.scale) if number else 1.0
                    found = microbatch.run_query(spark, source, context.bootstrap_servers, seconds, directory)
                    times_ms = [batch.trigger_ms for batch in found.batches]
                    if number:
                        for phase in PHASES:
                            middle = statistics.median(batch.phases[phase] for batch in found.batches)
                            medians.add(f"{source} {phase}", middle)
                        medians.add(source, statistics.median(times_ms))
                        tails.add(source, microbatch.percentile(times_ms, 0.99))
    finally:
        stopping.set()
        producer.join()
    title = "unix sockets" if has_unix_socket else "TCP"
    measure = "micro-batch at 2,000 records/s"
    for kind, rounds, least_ratio in (("median", medians, 1.0), ("99th percentile", tails, 1 / 1.1)):
        values = rounds.values
        case = f"{title}, {kind}"
        yield Figure(measure, case, "ms", values[OWN], RIVAL_NAMES[KAFKA], values[KAFKA], least_ratio=least_ratio)
    yield from phases(medians, "micro-batch, phases", PHASES, f"{title}, ")


MEASURES = (
    Measure("availableNow", available_now, 450),
    Measure("cold-start", cold_start, 240),
    Measure("starts-as-installed", starts_as_installed, 300, is_installed_spark=True),
    Measure("micro-batch-tcp", partial(micro_batches, False), 240),
    Measure("micro-batch-unix", partial(micro_batches, True), 240),
)
