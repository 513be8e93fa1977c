"""Reads of a topic into Arrow without Spark: ourselves, aiokafka, and confluent-kafka.

    python benchmarks/run.py --only arrow-clients

Each reads the same topic into Arrow arrays of the columns of Spark's Kafka source, in this process; the rate is records
per processor second of the process, so it is that of one core. The other clients return an object per record, from
which the columns are built as a user would build them. Ourselves: the read task, with and without the extra `fast`.
"""

from __future__ import annotations

import asyncio
import resource
from operator import attrgetter
from typing import Any, Callable, Iterator, Sequence

import pyarrow as pa
from bench.context import Context, Measure
from bench.figures import Figure, Rounds
from bench.topics import PARTITIONS, Topic, end_offsets, ensure

from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.model import OffsetRange
from spark_groupsource.records.columns import arrow
from spark_groupsource.records.columns.arrow import COLUMNS, kafka_schema
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.tasks.task_partition import GroupInputPartition
from spark_groupsource.source.tasks.task_reader import read_task

MEASURE = "records to Arrow per core, without Spark"
_TARGET_RATIO = 5.0
_CHUNK = 10_000
_SCHEMA = kafka_schema()
_FIELDS = attrgetter("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type")


def processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def own(bootstrap_servers: str, topic: Topic) -> int:
    ends = end_offsets(bootstrap_servers, topic.name)
    task = GroupInputPartition(
        ranges=[OffsetRange(tp, 0, end) for tp, end in ends.items()],
        settings=ClientSettings(bootstrap=parse_addresses(bootstrap_servers)),
        fail_on_data_loss=True,
    )
    return sum(batch.num_rows for batch in read_task(task, SelectedColumns(COLUMNS[:-1])))


def own_numpy(bootstrap_servers: str, topic: Topic) -> int:
    """Reads with the NumPy parser, as without the extra `fast`."""
    before = arrow._kernels.compile_after_rows
    arrow._kernels.compile_after_rows = 1 << 62
    try:
        return own(bootstrap_servers, topic)
    finally:
        arrow._kernels.compile_after_rows = before


def own_compiled(bootstrap_servers: str, topic: Topic) -> int:
    """Reads with the compiled parser, as a task does after its first records."""
    before = arrow._kernels.compile_after_rows
    arrow._kernels.compile_after_rows = 0
    try:
        return own(bootstrap_servers, topic)
    finally:
        arrow._kernels.compile_after_rows = before


def batch_of(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Returns the records (key, value, topic, partition, offset, timestamp in ms, its type) as an Arrow batch."""
    columns = list(zip(*rows))
    arrays = [pa.array(values, _SCHEMA.field(n).type) for n, values in enumerate(columns) if n != 5]
    stamps = pa.array(columns[5], pa.timestamp("ms", tz="UTC")).cast(_SCHEMA.field(5).type)
    return pa.RecordBatch.from_arrays([*arrays[:5], stamps, *arrays[5:]], schema=_SCHEMA)


def read_aiokafka(bootstrap_servers: str, topic: Topic) -> int:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Partition

    async def read() -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([Partition(topic.name, number) for number in range(PARTITIONS)])
            count = 0
            while count < topic.records:
                for found in (await consumer.getmany(timeout_ms=1000, max_records=_CHUNK)).values():
                    count += batch_of([_FIELDS(record) for record in found]).num_rows
            return count
        finally:
            await consumer.stop()

    return asyncio.run(read())


def read_confluent(bootstrap_servers: str, topic: Topic) -> int:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([Partition(topic.name, number, 0) for number in range(PARTITIONS)])
        count = 0
        while count < topic.records:
            rows = []
            for message in consumer.consume(_CHUNK, 1.0):
                place = message.topic(), message.partition(), message.offset()
                kind, stamp = message.timestamp()
                rows.append((message.key(), message.value(), *place, stamp, kind))
            if rows:
                count += batch_of(rows).num_rows
        return count
    finally:
        consumer.close()


READERS: dict[str, Callable[[str, Topic], int]] = {
    "numpy": own_numpy,
    "compiled": own_compiled,
    "aiokafka": read_aiokafka,
    "confluent-kafka": read_confluent,
}


def figures(context: Context) -> Iterator[Figure]:
    topic = Topic("clients", context.records(1_200_000, 600))
    ensure(context.bootstrap_servers, topic)
    readers = dict(READERS)
    if arrow.compiled_kernel() is None:
        del readers["compiled"]
    rounds = Rounds()
    for number in range(context.rounds + 1):
        for name, read in readers.items():
            began = processor_s()
            count = read(context.bootstrap_servers, topic)
            if count != topic.records:
                raise RuntimeError(f"{name} read {count} of {topic.records} records")
            if number:  # the first round imports
                rounds.add(name, count / (processor_s() - began) / 1e6)
    for name in ("numpy", "compiled"):
        if name in readers:
            for rival in ("aiokafka", "confluent-kafka"):
                case = f"100 B, {'extra fast' if name == 'compiled' else 'without fast'}"
                yield rounds.figure(MEASURE, case, "M records/s", name, rival, is_rate=True, least_ratio=_TARGET_RATIO)


MEASURES = (Measure("arrow-clients", figures),)
