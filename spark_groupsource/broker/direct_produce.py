"""Records from Python objects and tables, appended by the broker's process."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping, Sequence, Union

from spark_groupsource.broker.node import Broker
from spark_groupsource.common.arguments import shown
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.column_types import SOURCE_COLUMNS
from spark_groupsource.records.encoded_batch import EncodedBatch

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES, _BUFFER_BYTES = 500_000, 32 << 20
_CHUNK_RECORDS, _CHUNK_BYTES = 10_000, 64 << 20
# one record, whose characters or fields are not records
_SINGLE = (str, bytes, bytearray, memoryview, Mapping)
_RECORD_COLUMNS = frozenset(column.name for column in SOURCE_COLUMNS)
_WRITTEN_COLUMNS = ("key", "value", "headers", "partition")

Records = Union[Sequence[Any], "pa.Table"]
"""Objects, or a table whose rows are the records."""


def records_of(name: str, given: Any) -> Records:
    """Returns the records of an argument: one record, an iterable of records, or a data frame or table of Arrow.

    Raises: ConfigurationError for another object, and for a tuple, which is one record and a sequence of records.
    """
    check_records(name, given)
    if _is_table(given):
        return _table(given)
    return [given] if isinstance(given, _SINGLE) else list(given)


def check_records(name: str, given: Any) -> None:
    """Raises: as `records_of`."""
    if _is_table(given) or isinstance(given, _SINGLE):
        return
    if hasattr(given, "columns"):
        raise ConfigurationError(
            f"Argument {name} must be a list of records or a table that PyArrow reads, got {shown(given)}. "
            "Give its rows as a list."
        )
    if isinstance(given, tuple) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"Argument {name} must be a list of records, got {shown(given)}. Put one record into a list: [record]."
        )


def _is_table(given: Any) -> bool:
    # `toArrow` of Spark; pandas, Arrow and others have the interface of Arrow
    return hasattr(given, "columns") and (hasattr(given, "toArrow") or hasattr(given, "__arrow_c_stream__"))


def _table(given: Any) -> pa.Table:
    """Returns a data frame as an Arrow table, without an index of pandas."""
    import pyarrow as pa

    if hasattr(given, "toArrow"):
        given = given.toArrow()
    if hasattr(given, "reset_index"):
        return pa.Table.from_pandas(given, preserve_index=False)
    return given if isinstance(given, pa.Table) else pa.table(given)


def key_and_value(record: Any) -> tuple[bytes | None, bytes | None]:
    """Returns the key and the value of an object; a tuple is ``(key, value)``.

    Bytes are used as they are, None is null, text is encoded as UTF-8, and everything else as JSON.

    Raises: ConfigurationError for a tuple of another length and for objects that JSON cannot express.
    """
    if isinstance(record, tuple):
        if len(record) != 2:
            raise ConfigurationError(f"A record must be a value or a tuple (key, value), got {len(record)} elements.")
        return _bytes(record[0]), _bytes(record[1])
    return None, _bytes(record)


def encoded_records(
    topic: str, records: Records, partition: int | None, partition_count: int, timestamp_ms: int
) -> Iterator[EncodedBatch]:
    """Yields the record batches of records; those of one partition keep their order.

    Records without a key are written to one partition after the other.

    Raises: ConfigurationError as `key_and_value`, and for a partition that does not exist.
    """
    # an application that starts a broker need not produce, and PyArrow takes 100 ms to import
    from spark_groupsource.records.columns.batch_encoder import BatchEncoder, TopicPartitions
    from spark_groupsource.records.columns.record_lists import with_partition

    if partition is not None and partition >= partition_count:
        raise ConfigurationError(
            f"Argument partition must be from 0 to {partition_count - 1} for topic {topic}, got {partition}."
        )
    encoder = BatchEncoder(
        lambda *_: TopicPartitions(partition_count),
        topic=topic,
        batch_bytes=_BATCH_BYTES,
        buffer_bytes=_BUFFER_BYTES,
        timestamp_ms=lambda: timestamp_ms,
        sticky_bytes=0,
    )
    objects = isinstance(records, Sequence)
    for batch in _columns(map(key_and_value, records)) if objects else _table_columns(records):
        yield from encoder.add(batch if partition is None else with_partition(batch, partition))
    yield from encoder.finish()


def _columns(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[pa.RecordBatch]:
    """Yields keys and values as columns."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        size += len(key or b"") + len(value or b"")
        if len(keys) == _CHUNK_RECORDS or size > _CHUNK_BYTES:
            yield _record_batch(key=keys, value=values)
            keys, values, size = [], [], 0
    if keys:
        yield _record_batch(key=keys, value=values)


def _table_columns(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yields keys, values, headers and partitions of rows: columns with these names, else each row is a JSON object."""
    names = table.column_names
    if "value" not in names or not _RECORD_COLUMNS.issuperset(names):
        yield from _columns(
            (None, _bytes(row)) for batch in table.to_batches(_CHUNK_RECORDS) for row in batch.to_pylist()
        )
        return
    for batch in table.to_batches(_CHUNK_RECORDS):
        columns = {name: batch.column(name) for name in _WRITTEN_COLUMNS if name in names}
        columns.update({name: _bytes_column(each) for name, each in columns.items() if name in ("key", "value")})
        yield _record_batch(**columns)


def _bytes_column(column: pa.Array) -> pa.Array | list[bytes | None]:
    """Returns a column of bytes or text as it is, each other value as JSON."""
    from spark_groupsource.records.columns.binary_columns import is_bytes

    return column if is_bytes(column.type) else [_bytes(each) for each in column.to_pylist()]


def _record_batch(**columns: pa.Array | list[bytes | None]) -> pa.RecordBatch:
    """Returns a record batch of arrays and lists of byte strings."""
    import pyarrow as pa

    from spark_groupsource.records.columns.arrow_arrays import byte_strings

    arrays = [byte_strings(each) if isinstance(each, list) else each for each in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


async def topic_partitions(broker: Broker, topic: str, new_count: int | None = None) -> int:
    """Returns the number of partitions; creates a missing topic with `new_count`, None for num.partitions.

    Raises: ApiError.
    """
    if topic not in broker.partitions.topics:
        await broker.create_topic(topic, broker.config.num_partitions if new_count is None else new_count, {})
    return broker.partitions.topic(topic).partition_count


def append(broker: Broker, batches: Iterable[EncodedBatch]) -> None:
    """Appends batches. Raises: ApiError."""
    for batch in batches:
        result = broker.partitions.partition(*batch.topic_partition).append(batch.data, broker.clock.timestamp_ms())
        broker.on_append(batch.topic_partition, result.size)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_iso_text).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"A record of type {type(value).__name__} cannot be encoded as JSON: {error}. Give bytes or text."
        ) from error


def _iso_text(value: Any) -> str:
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    raise TypeError(f"type {type(value).__name__} has no form in JSON")
