"""Cost curves of batch reads by records, partitions and batch size.

    python benchmarks/run.py --only curve-records --only curve-partitions --only curve-batches

The cost per record must not depend on the number of records; the others are beside Spark's Kafka source.
"""

from __future__ import annotations

import statistics
import time
import uuid
from functools import partial
from typing import Any, Callable, Iterator

from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from bench.spark import KAFKA, OWN, RIVAL_NAMES, Read, check_same_rows, session, timed
from bench.topics import PARTITIONS, Topic, ending_offsets, ensure, fixed

from spark_groupsource.source.options.schema import spark_schema
from spark_groupsource.source.process import reader_process
from spark_groupsource.source.spark.datasource import GroupDataSource
from spark_groupsource.source.spark.stream_reader import GroupStreamReader

CORES = 2
_MANY = 10_000
# read in one round, without a comparison of the rows
_SLOW = 1_000
# at scale 1; a read of 1,000 partitions by Spark's source took 264 s
_READ_PARTITIONS = 1_000
_FLAT_FROM = 3_000_000
_IDLE, _IDLE_TRIGGERS = "trigger without records", 20


def by_records(context: Context) -> Iterator[Figure]:
    """Seconds per million records for 1, 10 and 50 million records of 10 B at scale 1, of one topic."""
    sizes = [context.records(count, 4_000) for count in (1_000_000, 10_000_000, 50_000_000)]
    topic = Topic(f"curve-{sizes[-1]}", sizes[-1], fixed(10), 1_000)
    rounds, spent = Rounds(), Rounds()
    with session(CORES) as spark:
        ensure(context.bootstrap_servers, topic)
        reads = {size: Read(topic.name, options={"endingOffsets": ending_offsets(topic, size)}) for size in sizes}
        timed(spark, OWN, context.bootstrap_servers, reads[sizes[1]])
        for _ in range(context.rounds):
            for size, read in reads.items():
                took = timed(spark, OWN, context.bootstrap_servers, read)
                rounds.add(str(size), took.seconds / size * 1e6)
                spent.add(str(size), took.processor_s / size * 1e6)
    middle = sizes[1]
    for size in sizes:
        title = f"{size / 1e6:.3g} M records of 10 B"
        rival = f"ourselves with {middle / 1e6:.3g} M"
        # below a few million records, the start of the tasks counts
        least_ratio = 0.9 if size > middle >= _FLAT_FROM else None
        for kind, found in (("seconds", rounds), ("processor seconds", spent)):
            values, beside = found.values[str(size)], found.values[str(middle)]
            yield Figure(f"{kind} per million records", title, "s", values, rival, beside, least_ratio=least_ratio)


def by_partitions(context: Context) -> Iterator[Figure]:
    """Triggers without records for 4 to 10,000 partitions, and batch reads of 10 records in each, up to 1,000."""
    with session(CORES) as spark:
        for count in (4, 100, 1_000, _MANY):
            if count * 0.1 > 10_000 * context.scale:
                continue
            # one CreateTopics request of Kafka creates fewer than 10,000 partitions
            names = [f"wide-{count}-{number}" for number in range(max(1, count // 2_000))]
            for name in names:
                each = count // len(names)
                ensure(context.bootstrap_servers, Topic(name, 10 * each, batch_records=10, partitions=each))
            case, measure = f"{count:,} partitions", "10 records in each partition"
            largest_s = 0.3 if count >= _MANY else None
            yield or_error(_IDLE, case, partial(idle_trigger, context, case, names, largest_s))
            if count > _READ_PARTITIONS * context.scale:
                continue
            is_slow = count >= _SLOW
            few = context._replace(rounds=1) if is_slow else context
            yield or_error(measure, case, partial(beside_kafka, spark, few, measure, case, names, 1.0, not is_slow))


def or_error(measure: str, case: str, make: Callable[[], Figure]) -> Figure:
    """Returns the figure, or the error of its measurement."""
    try:
        return make()
    except Exception as error:
        return Figure(measure, case, "", error=repr(error))


def idle_trigger(context: Context, case: str, topics: list[str], largest_s: float | None) -> Figure:
    """Returns the durations of Spark's calls of a reader process without new records, with its pauses.

    The reader runs in this process: Spark reports no durations of triggers without records.
    """
    reader_process.install_signal_handlers = lambda terminate: None
    group, servers = f"benchmark-{uuid.uuid4().hex[:8]}", context.bootstrap_servers
    options = {"kafka.bootstrap.servers": servers, "kafka.group.id": group, "subscribe": ",".join(topics)}
    reader = GroupDataSource(options).streamReader(spark_schema(include_headers=False))
    assert isinstance(reader, GroupStreamReader)
    try:
        limit, took = reader.getDefaultReadLimit(), []
        end = reader.latestOffset({}, limit)
        for _ in range(_IDLE_TRIGGERS):
            began = time.perf_counter()
            end = reader.latestOffset(end, limit)
            took.append(time.perf_counter() - began)
    finally:
        reader.stop()
    return Figure(_IDLE, case, "s", [statistics.median(took)], largest_value=largest_s)


def by_batch_size(context: Context) -> Iterator[Figure]:
    """Batch read of records of 100 B, with few or many records in a record batch."""
    with session(CORES) as spark:
        for count in (1, 10, 100, 1_000, 8_000):
            step = count * PARTITIONS
            records = context.records(min(2_000_000, 100_000 * count), step)
            topic = Topic(f"batches-{count}", records, batch_records=count)
            ensure(context.bootstrap_servers, topic)
            title = f"{records / 1e6:.3g} M records, {count:,} per record batch"
            yield beside_kafka(spark, context, "records per record batch", title, [topic.name], 1.0)


def beside_kafka(
    spark: Any,
    context: Context,
    measure: str,
    case: str,
    topics: list[str],
    least_ratio: float,
    is_checked: bool = True,
) -> Figure:
    """Returns the seconds of a read of topics by both sources; `is_checked`: after a comparison of the rows."""
    read = Read(",".join(topics))
    if is_checked:
        check_same_rows(spark, context.bootstrap_servers, read)
    rounds = Rounds()
    for _ in range(context.rounds):
        for source, name in ((OWN, OWN), (KAFKA, RIVAL_NAMES[KAFKA])):
            rounds.add(name, timed(spark, source, context.bootstrap_servers, read).seconds)
    return rounds.figure(measure, f"{case}, local[{CORES}]", "s", OWN, RIVAL_NAMES[KAFKA], least_ratio=least_ratio)


MEASURES = (
    Measure("curve-records", by_records, 420),
    # in a full run, one read of 1,000 partitions by the rival takes 264 s
    Measure("curve-partitions", by_partitions, 900),
    Measure("curve-batches", by_batch_size, 300),
)
