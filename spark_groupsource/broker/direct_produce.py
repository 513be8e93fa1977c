"""Records from Python objects, appended by the process of the broker.

Source: Kafka `BuiltInPartitioner` (records with a key; those without one are distributed round-robin).
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Iterator, Mapping, Sequence

from spark_groupsource.broker.node import Broker
from spark_groupsource.common.arguments import shown
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.partitioner import partition_of_key

_BATCH_RECORDS, _BATCH_BYTES = 1_000, 500_000
# a tuple is one record: (key, value)
_SINGLE = (str, bytes, bytearray, memoryview, Mapping, tuple)


def check_records(name: str, records: Any) -> None:
    """Checks that an argument is a list or another iterable of records.

    Raises: ConfigurationError for one record, whose characters, fields or elements would be the records; and for a data
        frame, whose iteration gives names of columns.
    """
    if hasattr(records, "columns"):
        remedy = 'Give its rows, for example frame.to_dict("records") of pandas or table.to_pylist() of Arrow.'
        raise ConfigurationError(
            f"Argument {name} must be a list of records, got a table ({type(records).__name__}). {remedy}"
        )
    if isinstance(records, _SINGLE) or not isinstance(records, Iterable):
        raise ConfigurationError(
            f"Argument {name} must be a list of records, got {shown(records)}. Put one record into a list: [record]."
        )


def record_of(value: Any, timestamp_ms: int) -> Record:
    """Returns the record of an object; a tuple is ``(key, value)``.

    Bytes are used as they are, None is null, text is encoded as UTF-8, and everything else as JSON.

    Raises: ConfigurationError for a tuple of another length and for objects that JSON cannot express.
    """
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ConfigurationError(f"A record must be a value or a tuple (key, value), got {len(value)} elements.")
        return Record(_bytes(value[0]), _bytes(value[1]), timestamp_ms)
    return Record(None, _bytes(value), timestamp_ms)


def record_batches(
    topic: str, objects: Iterable[Any], partition: int | None, partition_count: int, timestamp_ms: int
) -> Iterator[tuple[TopicPartition, bytes]]:
    """Yields encoded batches; records of one partition keep their order."""
    pending: dict[int, tuple[list[Record], int]] = {}
    without_key = 0
    for value in objects:
        record = record_of(value, timestamp_ms)
        number = partition
        if number is None and record.key is not None:
            number = partition_of_key(record.key, partition_count)
        elif number is None:
            number, without_key = without_key % partition_count, without_key + 1
        records, size = pending.setdefault(number, ([], 0))
        added = len(record.key or b"") + len(record.value or b"")
        if records and (len(records) >= _BATCH_RECORDS or size + added > _BATCH_BYTES):
            yield TopicPartition(topic, number), encode_batch(records)
            records, size = [], 0
        records.append(record)
        pending[number] = records, size + added
    for number, (records, _) in pending.items():
        yield TopicPartition(topic, number), encode_batch(records)


def topic_partitions(broker: Broker, topic: str, new_count: int | None = None) -> int:
    """Returns the number of partitions; creates a missing topic with `new_count`, None for num.partitions.

    Raises: ApiError.
    """
    if topic not in broker.partitions.topics:
        broker.create_topic(topic, broker.config.num_partitions if new_count is None else new_count, {})
    return broker.partitions.topic(topic).partition_count


def append(broker: Broker, batches: Sequence[tuple[TopicPartition, bytes]]) -> None:
    """Appends batches. Raises: ApiError."""
    for topic_partition, batch in batches:
        result = broker.partitions.partition(*topic_partition).append(batch, broker.clock.timestamp_ms())
        broker.on_append(topic_partition, result.size)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"A record of type {type(value).__name__} cannot be encoded as JSON: {error}. Give bytes or text."
        ) from error
