"""Columns of record objects, for records that are not columns already."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import byte_strings, fixed_width, integers, strings
from spark_groupsource.records.encode import Record


def record_columns(records: Sequence[Record], partitions: Sequence[int | None]) -> pa.RecordBatch:
    """Returns the columns that `BatchEncoder` writes.

    Args:
        partitions: of each record; None for that of the key, and the encoder's choice without one.
    """
    headers = [record.headers for record in records]
    times = np.array([record.timestamp_ms for record in records], np.int64)
    numbers = np.array([-1 if number is None else number for number in partitions], np.int64)
    columns = {
        "key": byte_strings([record.key for record in records]),
        "value": byte_strings([record.value for record in records]),
        "headers": header_lists(headers),
        "timestamp": fixed_width(pa.timestamp("ms"), times),
        "partition": integers(numbers, np.array([number is not None for number in partitions], np.bool_)),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def header_lists(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    """Returns the headers of each record as a column of the type that Spark's sink has."""
    ends = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(each) for each in headers], out=ends[1:])
    names = strings([name for each in headers for name, _ in each])
    values = byte_strings([value for each in headers for _, value in each])
    items = pa.StructArray.from_arrays([names, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)]), items)


def with_partition(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Returns a record batch whose records are all for one partition."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["partition"] = integers(np.full(batch.num_rows, partition))
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
