"""Arrow record batches with the columns of the source.

Source: Spark `KafkaRecordToRowConverter` (schema).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Sequence

import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import consecutive, fixed_width
from spark_groupsource.records.columns.column_types import HEADERS_TYPE, SOURCE_COLUMNS
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.columns.record_kernel import HEADERS, Layout, RecordArrays

COLUMNS = tuple(column.name for column in SOURCE_COLUMNS)
"""Column names, in the order of Spark's Kafka source."""

MAX_ROWS = 80_000
"""Maximum rows of one Arrow batch. More rows take more memory and gain nothing; fewer raise the cost per row."""

_ARROW_TYPES: dict[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    HEADERS_TYPE: HEADERS,
}
_TYPES = {column.name: _ARROW_TYPES[column.type] for column in SOURCE_COLUMNS}


def kafka_schema(include_headers: bool = False) -> pa.Schema:
    """Returns the schema of Spark's Kafka source; every column is nullable."""
    return columns_schema(COLUMNS if include_headers else COLUMNS[:-1])


def columns_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the schema of these `COLUMNS`, in the given order."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def record_batch(batches: HeaderColumns, records: RecordArrays, layout: Layout) -> pa.RecordBatch:
    """Returns the requested columns of the records of `batches`."""
    rows = len(records.offsets)
    columns: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: records.keys,
        "value": lambda: records.values,
        "topic": lambda: _topic(layout, rows),
        "partition": lambda: _same(layout.topic_partition.partition, rows, layout),
        "offset": lambda: fixed_width(pa.int64(), records.offsets),
        "timestamp": lambda: fixed_width(_TYPES["timestamp"], records.timestamps_us),
        "timestampType": lambda: _timestamp_types(batches, records, layout),
        "headers": lambda: records.headers,
    }
    arrays = [columns[name]() for name in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(layout.columns))


def _timestamp_types(batches: HeaderColumns, records: RecordArrays, layout: Layout) -> pa.Array:
    kinds = batches.timestamp_type
    if (kinds == kinds[0]).all():
        return _same(int(kinds[0]), len(records.offsets), layout)
    batch = np.searchsorted(batches.base_offset, records.offsets, side="right") - 1
    return fixed_width(pa.int32(), kinds[batch].astype(np.int32))


def _same(number: int, rows: int, layout: Layout) -> pa.Array:
    return _repeated_number(number, max(rows, layout.max_rows)).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated_number(number: int, rows: int) -> pa.Array:
    return fixed_width(pa.int32(), np.full(rows, number, dtype=np.int32))


def _topic(layout: Layout, rows: int) -> pa.Array:
    return _repeated(layout.topic_partition.topic, max(rows, layout.max_rows)).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated(text: str, rows: int) -> pa.Array:
    encoded = text.encode()
    return consecutive(pa.string(), np.full(rows, len(encoded)), encoded * rows)
