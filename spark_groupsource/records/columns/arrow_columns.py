"""Conversion of parsed records into columns of the source, as Arrow arrays.

Source: Spark `KafkaRecordToRowConverter` (schema).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, NamedTuple, Sequence

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_arrays import bitmap, consecutive, fixed_width, strings
from spark_groupsource.records.columns.column_types import HEADERS_TYPE, SOURCE_COLUMNS
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.parser import Bytes, Ints, RecordFields, parse_headers

COLUMNS = tuple(column.name for column in SOURCE_COLUMNS)
"""Column names, in the order of Spark's Kafka source."""

MAX_ROWS = 80_000
"""Maximum rows of one Arrow batch. More rows take more memory and gain nothing; fewer raise the cost per row."""

MAX_RECORD_HEADERS = 1_000_000
"""Maximum headers of one record in the column `headers`: a row, and so all of its headers, are in memory at once."""

# a larger received record is not copied: its response and a copy would exceed the memory of a read task
_MAX_COPIED_BYTES = 64 * 1024 * 1024

_HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_ARROW_TYPES: dict[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    HEADERS_TYPE: _HEADERS_TYPE,
}
_TYPES = {column.name: _ARROW_TYPES[column.type] for column in SOURCE_COLUMNS}
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000


def kafka_schema(include_headers: bool = False) -> pa.Schema:
    """Returns the schema of Spark's Kafka source; every column is nullable."""
    return columns_schema(COLUMNS if include_headers else COLUMNS[:-1])


def columns_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the schema of these `COLUMNS`, in the given order."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


class Layout(NamedTuple):
    """The requested columns and offsets."""

    topic_partition: TopicPartition
    columns: tuple[str, ...]
    start_offset: int
    end_offset: int
    max_rows: int


class Selection(NamedTuple):
    """Records to convert.

    Attributes:
        payload: the decompressed records of `batches`.
        counts: number of records of each batch in the payload.
        rows: the selected ones of these records; `fields` and `offsets` are those of the selected records only.
    """

    payload: Bytes
    batches: HeaderColumns
    counts: Ints
    fields: RecordFields
    offsets: Ints
    rows: slice

    def part(self, first: int, after: int) -> Selection:
        """Returns the selected records from index `first` to before `after`."""
        start = self.rows.start
        fields = RecordFields(*(field[first:after] for field in self.fields))
        return self._replace(fields=fields, offsets=self.offsets[first:after], rows=slice(start + first, start + after))

    @property
    def is_received(self) -> bool:
        """True if the payload is a part of the response, whose memory the next response overwrites."""
        return int(self.batches.codec[0]) == 0


def record_batch(selection: Selection, layout: Layout) -> pa.RecordBatch:
    """Converts the selected records.

    Raises: CorruptRecordError for a timestamp beyond the range of the column, for invalid headers, and for more than
        `MAX_RECORD_HEADERS` of one record.
    """
    arrays = [record_column(name, selection, layout) for name in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(layout.columns))


def record_column(name: str, selection: Selection, layout: Layout) -> pa.Array:
    """Returns one column of the selected records. Raises: CorruptRecordError, as `record_batch`."""
    return _BUILDERS[name](selection, layout)


def _per_record(selection: Selection, per_batch: Ints) -> Ints:
    if (per_batch == per_batch[0]).all():
        return np.full(len(selection.offsets), per_batch[0], dtype=np.int64)
    repeated: Ints = np.repeat(per_batch, selection.counts)
    return repeated[selection.rows]


def _timestamp(selection: Selection, layout: Layout) -> pa.Array:
    headers, appended = selection.batches, selection.batches.is_log_append_time
    if appended.all():
        milliseconds = _per_record(selection, headers.max_timestamp)
    else:
        milliseconds = _per_record(selection, headers.base_timestamp)
        milliseconds += selection.fields.timestamp_delta
        if appended.any():
            stamped = _per_record(selection, appended.astype(np.int64)) == 1
            milliseconds[stamped] = _per_record(selection, headers.max_timestamp)[stamped]
    if int(milliseconds.max()) > _MAX_TIMESTAMP_MS or int(milliseconds.min()) < -_MAX_TIMESTAMP_MS:
        first = int(np.argmax((milliseconds > _MAX_TIMESTAMP_MS) | (milliseconds < -_MAX_TIMESTAMP_MS)))
        # the error condition is that of Spark's Kafka source
        raise CorruptRecordError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] Record at offset {selection.offsets[first]} has timestamp "
            f"{milliseconds[first]} ms, which exceeds 64 bits in microseconds. Fix its producer; to read on, leave the "
            "column timestamp out of the schema."
        )
    milliseconds *= 1000
    return fixed_width(_TYPES["timestamp"], milliseconds)


def _timestamp_type(selection: Selection, layout: Layout) -> pa.Array:
    kinds = selection.batches.timestamp_type
    if (kinds == kinds[0]).all():
        return _same(int(kinds[0]), selection, layout)
    return fixed_width(pa.int32(), _per_record(selection, kinds).astype(np.int32))


def _offset(selection: Selection, layout: Layout) -> pa.Array:
    return fixed_width(pa.int64(), selection.offsets)


def _partition(selection: Selection, layout: Layout) -> pa.Array:
    return _same(layout.topic_partition.partition, selection, layout)


def _same(number: int, selection: Selection, layout: Layout) -> pa.Array:
    rows = len(selection.offsets)
    return _repeated_number(number, max(rows, layout.max_rows)).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated_number(number: int, rows: int) -> pa.Array:
    return fixed_width(pa.int32(), np.full(rows, number, dtype=np.int32))


def _topic(selection: Selection, layout: Layout) -> pa.Array:
    rows = len(selection.offsets)
    return _repeated(layout.topic_partition.topic, max(rows, layout.max_rows)).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated(text: str, rows: int) -> pa.Array:
    encoded = text.encode()
    return consecutive(pa.string(), np.full(rows, len(encoded)), encoded * rows)


def _key(selection: Selection, layout: Layout) -> pa.Array:
    return _slices(selection, selection.fields.key_start, selection.fields.key_length)


def _value(selection: Selection, layout: Layout) -> pa.Array:
    return _slices(selection, selection.fields.value_start, selection.fields.value_length)


def _slices(selection: Selection, start: Ints, length: Ints) -> pa.Array:
    """Returns the byte strings at `start`, in increasing order, as one binary array; a length of -1 is null.

    The payload becomes one binary array in which the requested strings alternate with the bytes between them, and Arrow
    takes every second element: 14 ns for 100 bytes; a NumPy mask of the bytes takes 120 ns.
    """
    payload, rows = selection.payload, len(start)
    lowest = int(length.min()) if rows else 0
    if rows and lowest < 0 and int(length.max()) < 0:
        return pa.nulls(rows, pa.binary())
    if rows == 1:  # a decompressed record is not copied, because it may be large
        first, after = int(start[0]), int(start[0] + length[0])
        if selection.is_received and after - first <= _MAX_COPIED_BYTES:
            first, after, payload = 0, after - first, payload[first:after].copy()
        ends = np.array([first, after], dtype=np.int32)
        return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(payload)])
    bounds = np.empty(2 * rows + 1, dtype=np.int32)
    bounds[0:-1:2] = start
    bounds[1::2] = start + (np.maximum(length, 0) if lowest < 0 else length)
    bounds[-1] = bounds[-2] if rows else 0
    alternating = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(bounds), pa.py_buffer(payload)])
    taken = alternating.take(_every_second(rows))
    if lowest >= 0:
        return taken
    _, ends, data = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), rows, [bitmap(length >= 0), ends, data])


@lru_cache(maxsize=4)
def _even(rows: int) -> pa.Array:
    return fixed_width(pa.int64(), np.arange(0, 2 * rows, 2, dtype=np.int64))


def _every_second(rows: int) -> pa.Array:
    return _even(max(MAX_ROWS, 1 << (rows - 1).bit_length() if rows else 0)).slice(0, rows)


def _headers(selection: Selection, layout: Layout) -> pa.Array:
    rows = len(selection.offsets)
    counts = selection.fields.header_count
    if not counts.any():
        return pa.nulls(rows, _HEADERS_TYPE)
    most = int(counts.argmax())
    if counts[most] > MAX_RECORD_HEADERS:
        raise CorruptRecordError(
            f"Record at offset {selection.offsets[most]} has {counts[most]} headers, and the column headers holds at "
            f"most {MAX_RECORD_HEADERS}. Set includeHeaders to false."
        )
    found = parse_headers(selection.payload, selection.fields)
    keys = _texts(_slices(selection, found.key_start, found.key_length))
    values = _slices(selection, found.value_start, found.value_length)
    entries = pa.StructArray.from_arrays([keys, values], fields=list(_HEADERS_TYPE.value_type))
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(counts, out=ends[1:])
    # Spark's Kafka source returns null, not an empty array, for a record without headers
    return pa.Array.from_buffers(
        _HEADERS_TYPE, rows, [bitmap(counts > 0), pa.py_buffer(ends)], children=[entries]
    )


def _texts(keys: pa.Array) -> pa.Array:
    """Returns header keys as text; invalid UTF-8 is replaced, as Java does."""
    _, ends, data = keys.buffers()
    texts = pa.Array.from_buffers(pa.string(), len(keys), [None, ends, data])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return strings([key.decode("utf-8", "replace") for key in keys.to_pylist()])
    return texts


_BUILDERS: dict[str, Callable[[Selection, Layout], pa.Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}
