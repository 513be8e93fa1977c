"""Batch reads beside Spark's Kafka source and the ceiling of PySpark.

    python benchmarks/run.py --only batch-read-1 --only batch-read-2

Each of local[1] and local[2] has a JVM of its own, warmed up by reads with each source. The ceiling is a data
source of prebuilt Arrow batches of the same schema (`bench/ceiling.py`): a ratio that it does not have beside Spark's
Kafka source itself is out of reach. The sink is `noop`. Both sources must read the same rows: their numbers, and sums
of hashes of each column, are compared before the rounds, of a part of a large topic.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, Iterator, Mapping, NamedTuple

from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from bench.spark import CEILING, KAFKA, OWN, RIVAL_NAMES, Read, check_same_rows, session, timed
from bench.topics import PARTITIONS, Topic, client, create, ending_offsets, ensure, fixed, json, keyed

from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.columns import arrow
from spark_groupsource.records.header import iter_batches

MEASURE = "batch read"
# the processor caches and the JVM's optimizing compiler need some seconds
_WARM_RECORDS = 1_000_000
_WARM_READS = 4
# of a full run, with each source: the compilers of the JVM take an eighth of the processor time of the second read, and
# a sixteenth from the fourth on
FULL_WARM_READS = 5
_CHECKED_RECORDS = 400_000


class Case(NamedTuple):
    """One topic, the least ratios by rival and number of processors, and the title."""

    title: str
    topic: Topic
    beside: Mapping[str, tuple[float | None, float | None]]
    columns: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    cores: tuple[int, ...] = (1, 2)
    value_bytes: int = 100

    def read(self) -> Read:
        ceiling = {"records": self.topic.records, "tasks": PARTITIONS, "valueBytes": self.value_bytes}
        rows = {"batchRows": min(40_000, max(1, 4_000_000 // self.value_bytes))}
        options = {key: str(value) for key, value in {**ceiling, **rows}.items()}
        return Read(self.topic.name, self.columns, self.options, options)


def cases(context: Context) -> list[Case]:
    def topic(name: str, count: int, batch_records: int, **rest: Any) -> Topic:
        step = batch_records * PARTITIONS
        return Topic(name, context.records(count, step), batch_records=batch_records, **rest)

    base = topic("bytes", 8_000_000, 150)
    found = [
        Case("100 B, all columns", base, {CEILING: (0.95, 0.8), KAFKA: (3.4, 3.0)}),
        Case("100 B, value", base, {CEILING: (None, None), KAFKA: (4.0, 3.5)}, columns=("value",)),
    ]
    for codec, least_ratio in (("lz4", 2.8), ("zstd", 2.8), ("snappy", 2.8), ("gzip", 2.0)):
        shape = topic(f"json-{codec}", 8_000_000, 1_000, make=json, codec=codec)
        beside = {CEILING: (None, None), KAFKA: (None, least_ratio)}
        found.append(Case(f"JSON of 93 B, {codec}", shape, beside, cores=(2,), value_bytes=93))
    with_headers = {"includeHeaders": "true"}
    committed = {"kafka.isolation.level": "read_committed"}
    compact = {"cleanup.policy": "compact", "segment.bytes": "8000000", "min.cleanable.dirty.ratio": "0.01"}
    small: dict[str, tuple[float | None, float | None]] = {KAFKA: (None, 2.0)}
    sized = {CEILING: (None, None), **small}
    return found + [
        Case("10 B", topic("values-10", 4_000_000, 1_000, make=fixed(10)), sized, cores=(2,), value_bytes=10),
        Case("10 kB", topic("values-10k", 80_000, 50, make=fixed(10_000)), sized, cores=(2,), value_bytes=10_000),
        Case(
            "100 B, 5 headers", topic("headers", 1_000_000, 100, make=fixed(100, 5)), small, (), with_headers, (2,)
        ),
        Case("compacted", topic("compacted", 4_000_000, 150, make=keyed, config=compact), small, cores=(2,)),
        Case("transactional", topic("transactional", 1_000_000, 1_000), small, (), committed, (2,)),
    ]


def figures(cores: int, context: Context) -> Iterator[Figure]:
    chosen = [case for case in cases(context) if cores in case.cores]
    for case in chosen:
        load(context, case.topic)
    with session(cores) as spark:
        warm_up(spark, cores, context, chosen[0])
        for case in chosen:
            try:
                yield from measure(spark, cores, context, case)
            except Exception as error:
                yield Figure(MEASURE, f"{case.title}, local[{cores}]", "", error=repr(error))


def warm_up(spark: Any, cores: int, context: Context, case: Case) -> None:
    """Reads a part of a topic with each source, and with our own until each worker has loaded the compiled parser.

    A quick run ends before.
    """
    count = min(_WARM_RECORDS, case.topic.records)
    read = case.read()
    options = {"endingOffsets": ending_offsets(case.topic, count)}
    part = read._replace(options=options, ceiling={**read.ceiling, "records": str(count)})
    for source in (KAFKA, CEILING, OWN):
        for _ in range(2):
            timed(spark, source, context.bootstrap_servers, part)
    until_compiled = -(-cores * arrow._kernels.compile_after_rows // case.topic.records)
    for _ in range(min(until_compiled, _WARM_READS)):
        timed(spark, OWN, context.bootstrap_servers, read._replace(columns=("value",)))
    for _ in range(FULL_WARM_READS if context.scale >= 1 else 0):
        for source in (KAFKA, CEILING, OWN):
            timed(spark, source, context.bootstrap_servers, read)


def checked(case: Case, context: Context) -> Read:
    """Returns the read of the rows to compare: a part of them, unless the run is full or offsets are missing."""
    read = case.read()
    if context.scale >= 1 or case.topic.config or case.topic.name == "transactional":
        return read
    count = min(_CHECKED_RECORDS, case.topic.records // 5)
    return read._replace(options={**read.options, "endingOffsets": ending_offsets(case.topic, count)})


def measure(spark: Any, cores: int, context: Context, case: Case) -> Iterator[Figure]:
    read = case.read()
    if cores == max(case.cores):
        check_same_rows(spark, context.bootstrap_servers, checked(case, context))
    rounds, spent = Rounds(), Rounds()
    sources = [OWN, *case.beside]
    for source in sources:
        timed(spark, source, context.bootstrap_servers, read)  # compiles what this case alone needs
    # the case with a bound beside the ceiling, whose ratios are narrow, has one round more than the others
    is_bound = case.beside.get(CEILING, (None, None))[cores - 1] is not None
    for number in range(max(1, context.rounds - (not is_bound))):
        # the order changes, because each read leaves garbage and warm pages to the next one
        for source in sources[number % len(sources) :] + sources[: number % len(sources)]:
            took = timed(spark, source, context.bootstrap_servers, read)
            rounds.add(source, took.seconds)
            spent.add(source, took.processor_s / case.topic.records * 1e6)
    title = f"{case.topic.records / 1e6:.3g} M x {case.title}, local[{cores}]"
    for source, least_ratio in case.beside.items():
        figure = rounds.figure(MEASURE, title, "s", OWN, source, least_ratio=least_ratio[cores - 1])
        yield replace(figure, rival_name=RIVAL_NAMES[source])
    for source in case.beside:
        bound = 1 / 0.6 if source == KAFKA and case.topic.name == "bytes" else None
        figure = spent.figure("processor seconds per million records", title, "s", OWN, source, least_ratio=bound)
        yield replace(figure, rival_name=RIVAL_NAMES[source])


def load(context: Context, topic: Topic) -> None:
    """Loads a topic, in transactions or with compaction if its name says so."""
    if topic.name == "transactional":
        load_transactions(context.bootstrap_servers, topic)
        return
    ensure(context.bootstrap_servers, topic)
    if "cleanup.policy" in topic.config:
        wait_for_compaction(context.bootstrap_servers, topic)


def load_transactions(bootstrap_servers: str, topic: Topic) -> None:
    """Produces transactions of 20,000 records, of which every fifth is aborted."""
    from confluent_kafka import Producer

    with client(bootstrap_servers) as cluster:
        if not create(cluster, topic.name, topic.partitions):
            return
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": "benchmark",
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 20,
        }
    )
    producer.init_transactions(60)
    value = bytes(range(32, 132))
    for number, begin in enumerate(range(0, topic.records, 20_000)):
        producer.begin_transaction()
        for record in range(begin, min(begin + 20_000, topic.records)):
            producer.produce(topic.name, value, partition=record // 500 % topic.partitions)
        if number % 5 == 4:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def wait_for_compaction(bootstrap_servers: str, topic: Topic) -> None:
    """Waits until the broker has compacted the topic: its number of records no longer changes."""
    before, deadline = -1, time.monotonic() + 60
    while time.monotonic() < deadline:
        count = count_records(bootstrap_servers, topic)
        if count == before and count < topic.records:
            return
        before = count
        time.sleep(2)


def count_records(bootstrap_servers: str, topic: Topic) -> int:
    """Returns the number of records in the log of partition 0."""
    tp = TopicPartition(topic.name, 0)
    with client(bootstrap_servers) as cluster:
        end = cluster.list_offsets({tp: -1})[tp].offset
        blocks = PartitionFetcher(cluster).fetch_blocks([OffsetRange(tp, 0, end)])
        return sum(header.record_count for block in blocks for header in iter_batches(block.data))


MEASURES = tuple(Measure(f"batch-read-{cores}", partial(figures, cores), 600) for cores in (1, 2))
