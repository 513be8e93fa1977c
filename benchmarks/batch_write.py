"""Batch writes beside Spark's Kafka sink.

    python benchmarks/run.py --only batch-write

The rows come from Spark's `range` on local[2], with keys, so that both sinks have the same partitions. Both sinks use
the defaults of their producers, and Spark's also batches of our size. Each sink is run before the rounds, ours until
each worker has loaded the compiled encoder. The processor time is that of the JVM and its Python processes, without
Kafka.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any, Iterator, Mapping

from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from bench.processor_time import processor_seconds
from bench.spark import KAFKA, OWN, Took, session
from bench.topics import client, create

MEASURE = "batch write"
_RECORDS = 2_000_000
_PARTITIONS = 6
_CORES = 2
_LARGE = "kafka with large batches"
_RIVAL_NAMES = {KAFKA: "Spark's Kafka sink", _LARGE: "Spark's Kafka sink, batch.size=524288"}
# of a worker, until it loads the compiled encoder
_WARM_RECORDS = 2_500_000


def written(
    spark: Any, sink: str, bootstrap_servers: str, topic: str, records: int, options: Mapping[str, str]
) -> Took:
    """Writes `records` rows of about 100 bytes with a key."""
    rows = spark.range(0, records, 1, 2 * _CORES).selectExpr(
        "cast(id % 100000 as string) as key", "lpad(cast(id as string), 95, 'value of a record ') as value"
    )
    given = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, **options}
    if sink == _LARGE:
        given |= {"kafka.batch.size": "524288", "kafka.linger.ms": "50"}
    begin, spent = time.perf_counter(), processor_seconds()
    rows.write.format(OWN if sink == OWN else KAFKA).mode("append").options(**given).save()
    return Took(time.perf_counter() - begin, processor_seconds() - spent)


def figures(context: Context) -> Iterator[Figure]:
    records, sinks = context.records(_RECORDS), (OWN, KAFKA, _LARGE)
    with session(_CORES) as spark, client(context.bootstrap_servers) as cluster:
        for codec in ("none", "lz4"):
            topic = f"written-{uuid.uuid4().hex[:8]}"
            create(cluster, topic, _PARTITIONS)
            options = {"kafka.compression.type": codec}
            for sink in sinks:
                count = max(records, _CORES * _WARM_RECORDS) if sink == OWN and context.scale >= 0.4 else records
                written(spark, sink, context.bootstrap_servers, topic, count, options)
            rounds, spent = Rounds(), Rounds()
            for number in range(context.rounds):
                # each write leaves garbage and warm pages to the next one
                for sink in sinks[number % len(sinks) :] + sinks[: number % len(sinks)]:
                    took = written(spark, sink, context.bootstrap_servers, topic, records, options)
                    rounds.add(sink, took.seconds)
                    spent.add(sink, took.processor_s / records * 1e6)
            title = f"{records / 1e6:.3g} M x 100 B, {codec}, local[{_CORES}]"
            for sink in sinks[1:]:
                yield replace(rounds.figure(MEASURE, title, "s", OWN, sink), rival_name=_RIVAL_NAMES[sink])
                found = spent.figure("processor seconds per million written records", title, "s", OWN, sink)
                yield replace(found, rival_name=_RIVAL_NAMES[sink])


MEASURES = (Measure("batch-write", figures, 600),)
