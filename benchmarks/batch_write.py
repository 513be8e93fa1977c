"""Writes beside Spark's Kafka sink: batches and micro-batches.

    python benchmarks/run.py --only batch-write --only micro-batch-write

The rows of a batch come from Spark's `range` on local[2], with keys, so that both sinks have the same partitions. Both
sinks use the defaults of their producers, and Spark's also batches of our size. Each sink is run before the rounds,
ours until each worker has loaded the compiled encoder. The processor time is that of the JVM and its Python processes,
without Kafka. A write with a transactional id is compared with Spark's sink, too, which has none.

The micro-batches have 2,000 rows of Spark's source rate-micro-batch, and follow one another without a pause.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from dataclasses import replace
from typing import Any, Iterator, Mapping, NamedTuple

from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from bench.processor_time import processor_seconds
from bench.spark import CEILING, KAFKA, OWN, Took, session
from bench.streams import streaming_settings
from bench.topics import client, create

MEASURE = "batch write"
_RECORDS = 2_000_000
_PARTITIONS = 6
_CORES = 2
_LARGE, _EXACTLY_ONCE = "kafka with large batches", "groupsource with a transactional id"
_BATCH_ROWS, _WARM_BATCHES, _BATCHES = 2_000, 5, 40
# the most that a transaction may add to a micro-batch
_ADDED_MS = 70
_RIVAL_NAMES = {KAFKA: "Spark's Kafka sink", _LARGE: "Spark's Kafka sink, batch.size=524288"}
# of a worker, until it loads the compiled encoder
_WARM_RECORDS = 2_500_000


def written(
    spark: Any, sink: str, bootstrap_servers: str, topic: str, records: int, size: int, options: Mapping[str, str]
) -> Took:
    """Writes `records` rows of about `size` bytes with a key."""
    rows = spark.range(0, records, 1, 2 * _CORES).selectExpr(
        "cast(id % 100000 as string) as key", f"lpad(cast(id as string), {size - 5}, 'value of a record ') as value"
    )
    given = {**_options(sink, bootstrap_servers, topic), **options}
    begin, spent = time.perf_counter(), processor_seconds()
    rows.write.format(_format(sink)).mode("append").options(**given).save()
    return Took(time.perf_counter() - begin, processor_seconds() - spent)


def _format(sink: str) -> str:
    return {KAFKA: KAFKA, _LARGE: KAFKA, CEILING: CEILING}.get(sink, OWN)


def _options(sink: str, bootstrap_servers: str, topic: str) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic}
    if sink == _LARGE:
        given |= {"kafka.batch.size": "524288", "kafka.linger.ms": "50"}
    if sink == _EXACTLY_ONCE:
        given["kafka.transactional.id"] = topic
    return given


class _Case(NamedTuple):
    """Rows of about `size` bytes; one of `divisor` of the records is written."""

    size: int
    codec: str
    sinks: tuple[str, ...]
    divisor: int = 1


_CASES = (
    _Case(100, "none", (OWN, KAFKA, _LARGE, _EXACTLY_ONCE)),
    _Case(100, "lz4", (OWN, KAFKA, _LARGE, _EXACTLY_ONCE)),
    _Case(100, "zstd", (OWN, KAFKA), 2),
    _Case(1000, "none", (OWN, KAFKA), 5),
    _Case(1000, "lz4", (OWN, KAFKA, _EXACTLY_ONCE), 5),
)


def figures(context: Context) -> Iterator[Figure]:
    with session(_CORES) as spark, client(context.bootstrap_servers) as cluster:
        warm = _CORES * _WARM_RECORDS if context.scale >= 0.4 else 0
        for case in _CASES:
            records, sinks = context.records(_RECORDS) // case.divisor, case.sinks
            topic = f"written-{uuid.uuid4().hex[:8]}"
            create(cluster, topic, _PARTITIONS)
            options = {"kafka.compression.type": case.codec}

            def write(sink: str, count: int = records) -> Took:
                return written(spark, sink, context.bootstrap_servers, topic, count, case.size, options)

            for sink in sinks:
                write(sink, max(records, warm) if sink == OWN else records)
            # the workers keep the compiled encoder
            warm = 0
            rounds, spent = Rounds(), Rounds()
            for number in range(context.rounds):
                # each write leaves garbage and warm pages to the next one
                for sink in sinks[number % len(sinks) :] + sinks[: number % len(sinks)]:
                    took = write(sink)
                    rounds.add(sink, took.seconds)
                    spent.add(sink, took.processor_s / records * 1e6)
            title = f"{records / 1e6:.3g} M x {case.size} B, {case.codec}, local[{_CORES}]"
            for own, rival in [(OWN, each) for each in sinks if _format(each) == KAFKA] + (
                [(_EXACTLY_ONCE, KAFKA)] if _EXACTLY_ONCE in sinks else []
            ):
                is_exact = own == _EXACTLY_ONCE
                name = f"{title}, exactly once" if is_exact else title
                found = rounds.figure(MEASURE, name, "s", own, rival, least_ratio=0.5 if is_exact else None)
                yield replace(found, rival_name=_RIVAL_NAMES[rival])
                found = spent.figure("processor seconds per million written records", name, "s", own, rival)
                yield replace(found, rival_name=_RIVAL_NAMES[rival])


def micro_batches(spark: Any, sink: str, bootstrap_servers: str, topic: str, count: int) -> Took:
    """Returns the median duration of `count` micro-batches after the first ones, and the processor time of each."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _BATCH_ROWS).load()
    rows = stream.selectExpr("cast(value as string) as key", "lpad(cast(value as string), 95, ' ') as value")
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        writer = rows.writeStream.format(_format(sink)).options(**_options(sink, bootstrap_servers, topic))
        query = writer.option("checkpointLocation", directory).trigger(processingTime="0 seconds").start()
        try:
            first = _wait_for(query, _WARM_BATCHES)
            spent = processor_seconds()
            last = _wait_for(query, _WARM_BATCHES + count)
            spent = processor_seconds() - spent
            progress = query.recentProgress
        finally:
            query.stop()
    durations = [each["durationMs"]["triggerExecution"] for each in progress if first < each["batchId"] <= last]
    return Took(statistics.median(durations) / 1000, spent / (last - first))


def _wait_for(query: Any, batch: int) -> int:
    """Waits for a batch; returns the number of the last one."""
    while (last := (query.lastProgress or {"batchId": -1})["batchId"]) < batch:
        time.sleep(0.1)
        if query.exception() is not None:
            raise query.exception()
    return int(last)


def micro_batch_figures(context: Context) -> Iterator[Figure]:
    sinks, rounds, spent = (KAFKA, _EXACTLY_ONCE, OWN), Rounds(), Rounds()
    with session(_CORES, streaming_settings(True)) as spark, client(context.bootstrap_servers) as cluster:
        for number in range(context.rounds + 1):
            for sink in sinks:
                topic = f"written-{uuid.uuid4().hex[:8]}"
                create(cluster, topic, _PARTITIONS)
                count = max(round(_BATCHES * context.scale), 5)
                took = micro_batches(spark, sink, context.bootstrap_servers, topic, count)
                if number:
                    rounds.add(sink, took.seconds * 1000)
                    spent.add(sink, took.processor_s * 1000)
    title = f"{_BATCH_ROWS:,} records"
    for own, name in ((_EXACTLY_ONCE, f"{title}, exactly once"), (OWN, title)):
        bound = _ADDED_MS if own == _EXACTLY_ONCE else None
        found = rounds.figure("micro-batch written", f"{name}, median", "ms", own, KAFKA, largest_difference=bound)
        yield replace(found, rival_name=_RIVAL_NAMES[KAFKA])
        found = spent.figure("micro-batch written", f"{name}, processor time", "ms", own, KAFKA, is_detail=True)
        yield replace(found, rival_name=_RIVAL_NAMES[KAFKA])


MEASURES = (Measure("batch-write", figures, 600), Measure("micro-batch-write", micro_batch_figures, 600))
