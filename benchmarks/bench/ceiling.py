"""Ceiling of PySpark: source of prebuilt Arrow batches, sink that discards.

Each task yields the same Arrow batch again and again, so nothing is fetched or decoded; a write task receives its
batches, so nothing is encoded or sent. Workers import this module, so its directory is on their PYTHONPATH.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_groupsource.source.options.schema import select_columns, spark_schema

NAME = "ceiling"


class CeilingSource(DataSource):
    """Options: `records`, `tasks`, `valueBytes`, `batchRows`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def streamReader(self, schema: StructType) -> CeilingStreamReader:
        return CeilingStreamReader(self.reader(schema))

    def reader(self, schema: StructType) -> CeilingReader:
        names = select_columns(schema, include_headers=False).names
        records, tasks = int(self.options["records"]), int(self.options["tasks"])
        return CeilingReader(names, records, tasks, int(self.options["valueBytes"]), int(self.options["batchRows"]))


    def writer(self, schema: StructType, overwrite: bool) -> CeilingWriter:
        return CeilingWriter()


class CeilingWriter(DataSourceArrowWriter):
    """Receives batches, and does nothing with them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class CeilingReader(DataSourceReader):
    """Divides the records evenly among the tasks."""

    def __init__(self, columns: tuple[str, ...], records: int, tasks: int, value_bytes: int, batch_rows: int) -> None:
        self._columns, self._records, self._tasks = columns, records, tasks
        self._value_bytes, self._batch_rows = value_bytes, batch_rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _batch(self._columns, self._batch_rows, self._value_bytes)
        remaining = self._records // self._tasks
        while remaining > 0:
            yield batch.slice(0, remaining) if remaining < batch.num_rows else batch
            remaining -= batch.num_rows


class CeilingStreamReader(DataSourceStreamReader):
    """All records are in the first micro-batch."""

    def __init__(self, batch_reader: CeilingReader) -> None:
        self._batch_reader = batch_reader

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:
        return {"batch": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._batch_reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._batch_reader.read(partition)


@lru_cache(maxsize=4)
def _batch(columns: tuple[str, ...], rows: int, value_bytes: int) -> pa.RecordBatch:
    # read tasks alone need them, and a source without them starts its queries earlier
    from spark_groupsource.model import TopicPartition
    from spark_groupsource.records.columns.arrow import COLUMNS, decode_fetched
    from spark_groupsource.records.encode import Record, encode_batch

    data = encode_batch([Record(None, b"x" * value_bytes, 1_700_000_000_000 + number) for number in range(rows)])
    names = columns or COLUMNS[:-1]
    decoded = decode_fetched(
        data, topic_partition=TopicPartition("ceiling", 0), columns=names, start_offset=0, end_offset=rows
    )
    (batch,) = decoded.batches
    return batch
