"""Rows of a table as Arrow record batches."""

from __future__ import annotations

from itertools import islice
from typing import Iterable, Iterator, Sequence

import pyarrow as pa

from spark_groupsource.monitor.tables.definitions import TableDefinition
from spark_groupsource.monitor.tables.table_rows import Row

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<int>": pa.list_(pa.int32()),
}
_ROWS_PER_BATCH = 10_000


def arrow_schema(table: TableDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """Returns the schema of the columns in the given order, None for all."""
    names = [column.name for column in table.columns] if columns is None else columns
    return pa.schema([(name, _TYPES[table.column(name).type]) for name in names])


def record_batches(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Converts rows; timestamps are epoch microseconds. Without rows there is no batch."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, _ROWS_PER_BATCH)):
        columns = [pa.array([row.get(field.name) for row in chunk], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
