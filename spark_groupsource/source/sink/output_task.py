"""Write task on an executor: encodes Arrow columns and sends record batches.

A producer with its connections is kept per worker process: Spark runs the tasks of later micro-batches in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_groupsource.client.cluster.cluster_client import ClusterClient, ClusterMetadata, TopicInfo
from spark_groupsource.client.cluster.error_rules import is_missing
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.batch_encoder import BatchEncoder, TopicPartitions
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.options.sink_columns import SINK_COLUMNS
from spark_groupsource.source.options.sink_options import SinkOptions
from spark_groupsource.source.tasks.garbage_collection import exempt_from_collection
from spark_groupsource.source.tasks.kept_clients import kept_client
from spark_groupsource.values.format_options import BINARY

LARGE_BATCH_REMEDY = (
    "Limit a batch with maxBytesPerTrigger or maxOffsetsPerTrigger, compress it (kafka.compression.type), or increase "
    "spark.driver.memory."
)
# 300 MB ended a driver of 1 GB, 900 MB were published by one of 4 GB
_LARGEST_PART = 0.25
_producers: dict[tuple[ClientSettings, ProducerSettings], BatchProducer] = {}


@dataclass
class TaskOutput(WriterCommitMessage):
    """What a write task returns to the driver.

    Attributes:
        batches: the record batches to publish; none if the task has sent them.
        query_id: of the streaming query, the same after a restart; None in a batch query.
    """

    batches: tuple[EncodedBatch, ...]
    record_count: int
    query_id: str | None


def write_records(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> TaskOutput:
    """Writes the records of a task, or encodes them for the driver if the query has a transactional id.

    Returns: the output, when all records are acknowledged.
    Raises: ConfigurationError for a topic that does not exist, for records that cannot be written, and for more than
        the driver can keep; BrokerError and NetworkError after delivery.timeout.ms.
    """
    exempt_from_collection()
    producer = _producer(options)
    counted = _Counted(batches)
    try:
        encoded = encoded_batches(options, producer.cluster, counted)
        kept: tuple[EncodedBatch, ...] = ()
        if options.transactional_id is None:
            producer.send(encoded)
        else:
            # the metadata of a task that sends nothing are not corrected by the error of a leader
            producer.cluster.refresh_topics()
            kept = tuple(_kept(encoded, options.driver_heap_bytes))
    except BaseException:
        # a connection may have caused the error; the next task opens new ones
        _discard(producer)
        raise
    return TaskOutput(kept, counted.record_count, _query_id())


def encoded_batches(
    options: SinkOptions, cluster: ClusterClient, batches: Iterable[pa.RecordBatch]
) -> Iterator[EncodedBatch]:
    """Yields the record batches of a task as they become full, without producer id and sequence.

    Raises: ConfigurationError, BrokerError, NetworkError.
    """
    settings = options.producer
    encoder = BatchEncoder(
        lambda topic, needed: topic_partitions(cluster, topic, options, needed),
        topic=options.topic,
        codec=settings.codec,
        level=settings.level,
        # with 0, each record is a batch
        batch_bytes=max(1, min(settings.batch_bytes, settings.max_request_bytes)),
        max_record_bytes=settings.max_request_bytes,
        buffer_bytes=settings.half_buffer_bytes,
        timestamp_ms=cluster.clock.timestamp_ms,
        first_partition=cluster.rng.randrange(2**31),
    )
    for batch in _with_bytes(options, map(_written_columns, batches)):
        yield from encoder.add(batch)
    yield from encoder.finish()


def _kept(batches: Iterable[EncodedBatch], driver_heap_bytes: int | None) -> Iterator[EncodedBatch]:
    """Yields batches for the driver. Raises: ConfigurationError for more than `_LARGEST_PART` of its heap."""
    size = 0
    for batch in batches:
        size += len(batch.data)
        if driver_heap_bytes is not None and size > driver_heap_bytes * _LARGEST_PART:
            raise ConfigurationError(
                f"A task has more than {size >> 20} MB of records, and the driver, which publishes the records of all "
                f"tasks in one transaction, has a heap of {driver_heap_bytes >> 20} MB. {LARGE_BATCH_REMEDY}"
            )
        yield batch


def topic_partitions(cluster: ClusterClient, topic: str, options: SinkOptions, needed: int) -> TopicPartitions:
    """Returns the partitions of a topic; fewer than are needed if the others are missing (`is_missing`).

    Raises: ConfigurationError if the topic is missing; BrokerError for a missing permission or an
        invalid name; NetworkError after max.block.ms.
    """
    retry = cluster.retry()
    is_cached = True
    while True:
        view = cluster.metadata([topic], refresh=not is_cached, timeout_ms=retry.remaining_ms)
        found = view.topics.get(topic)
        if found is not None and len(found.partitions) >= needed:
            return _partitions_of(found, view)
        if found is not None and is_cached:
            is_cached = False
            continue
        is_cached = False
        code = view.errors.get(topic, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        hint = ""
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            hint = f"Grant the user WRITE on topic {topic}, which contains DESCRIBE."
        missing = f"topic {topic}" if found is None else f"partition {TopicPartition(topic, needed - 1)}"
        error = BrokerError(code, f"Describing {missing}", hint)
        if not error.retriable:
            raise error
        if is_missing(error, retry):
            if found is not None:
                return _partitions_of(found, view)
            named = "option topic" if options.topic is not None else "column topic"
            raise ConfigurationError(f"Topic {topic} does not exist. Create it, or correct {named}.")
        retry.backoff_or_raise(error)


def _partitions_of(topic: TopicInfo, view: ClusterMetadata) -> TopicPartitions:
    leaderless = {number for number, each in topic.partitions.items() if each.leader_id not in view.nodes}
    return TopicPartitions(len(topic.partitions), leaderless)


def _producer(options: SinkOptions) -> BatchProducer:
    client, producer = options.client, options.producer
    return kept_client(
        _producers,
        (client, producer),
        lambda: BatchProducer(ClusterClient(client.bootstrap, client), producer),
        lambda each: each.cluster.close(),
    )


def _discard(producer: BatchProducer) -> None:
    key = producer.cluster.settings, producer.settings
    if _producers.get(key) is producer:
        del _producers[key]
    producer.cluster.close()


def _with_bytes(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Returns the batches with key and value as bytes."""
    if all(each.format == BINARY for each in options.formats):
        return batches
    # the modules of the formats are imported with their first use
    from spark_groupsource.values.column_writers import ColumnWriters

    writers = ColumnWriters(options.formats, options.topic)
    return (encoded for batch in batches for encoded in writers.encoded(batch))


def _written_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the columns of the sink; Spark's sink ignores further ones, and the second one of a name."""
    names = batch.schema.names
    return batch.select([names.index(name) for name in SINK_COLUMNS if name in names])


class _Counted:
    """Batches of records, and the number of records so far."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.record_count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.record_count += batch.num_rows
            yield batch
            # PySpark keeps this batch until it has read the next one: the memory of its encoding is free before that
            pa.default_memory_pool().release_unused()


def _query_id() -> str | None:
    context = TaskContext.get()
    found: str | None = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    return found
