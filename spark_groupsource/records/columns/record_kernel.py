"""Interface of the record kernels: from record batches to columns.

A kernel finds the records of a group, checks them, and builds the columns that depend on each record. The two kernels
are `numpy_kernel` and, with the extra `fast`, `compiled_kernel`; their tests compare them.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_arrays import bitmap, strings
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.parser import Bytes, Ints

MAX_HEADERS = 250_000
"""Maximum headers of one Arrow batch, unless it has one record: a header takes 100 bytes and more."""

MAX_TIMESTAMP_MS = (2**63 - 1) // 1000

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

NOT_INCREASING = "Invalid offsets: they do not increase."
OUT_OF_RANGE = "Invalid offset: an offset is outside the range of its batch."


class TooManyHeadersError(Exception):
    """The selected records have more than `MAX_HEADERS` headers; they are to be read in smaller groups."""


class Layout(NamedTuple):
    """The requested columns and offsets."""

    topic_partition: TopicPartition
    columns: tuple[str, ...]
    start_offset: int
    end_offset: int
    max_rows: int


class RecordGroup(NamedTuple):
    """Records to read together: those of whole Kafka batches, or the next ones of a large batch.

    Attributes:
        headers: those of the batches, with the number of records to read.
        payload: the decompressed records, or the part of the response that has them.
        starts, ends: start and end of the records of each batch in `payload`.
        lowest_offset: a lower one is invalid.
        is_open: whether records at the end may be missing or incomplete; such a group has one batch.
    """

    headers: HeaderColumns
    payload: Bytes
    starts: Ints
    ends: Ints
    lowest_offset: int = 0
    is_open: bool = False

    @property
    def counts(self) -> Ints:
        """Number of records of each batch."""
        return self.headers.record_count

    @property
    def timestamps(self) -> tuple[Ints, Ints]:
        """For each batch, what the timestamps of its records are relative to, and 0 if all have this one, else 1."""
        appended = self.headers.is_log_append_time
        bases = np.where(appended, self.headers.max_timestamp, self.headers.base_timestamp)
        return bases, (~appended).astype(np.int64)

    def single(self, index: int) -> RecordGroup:
        """Returns the group of one of the batches."""
        chosen = slice(index, index + 1)
        return self._replace(headers=self.headers.part(chosen), starts=self.starts[chosen], ends=self.ends[chosen])


class RecordArrays(NamedTuple):
    """The columns of the selected records of a group; those that are not requested have no defined value.

    Attributes:
        timestamps_us: epoch, microseconds.
        record_count, byte_count, header_count: of all records that were read.
        next_offset: the offset after the last record that was read.
    """

    offsets: Ints
    timestamps_us: Ints
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None
    record_count: int
    byte_count: int
    header_count: int
    next_offset: int


RecordKernel = Callable[[RecordGroup, Layout], RecordArrays]
"""Reads the records of a group whose offsets are in the layout's range.

Raises: CorruptRecordError if the records are invalid, or a requested timestamp exceeds the column; TooManyHeadersError.
"""


def malformed_timestamp(offset: int, timestamp_ms: int) -> CorruptRecordError:
    """Returns the error of a timestamp that exceeds the column."""
    # the error condition is that of Spark's Kafka source
    return CorruptRecordError(
        f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] Record at offset {offset} has timestamp {timestamp_ms} ms, which exceeds "
        "64 bits in microseconds. Fix its producer; to read on, leave the column timestamp out of the schema."
    )


def header_lists(keys: pa.Array, values: pa.Array, bounds: npt.NDArray[np.int32]) -> pa.Array:
    """Returns the column `headers`: those of a record are between two bounds."""
    rows = len(bounds) - 1
    if not len(keys):
        return pa.nulls(rows, HEADERS)
    entries = pa.StructArray.from_arrays([_texts(keys), values], fields=list(HEADERS.value_type))
    # Spark's Kafka source returns null, not an empty array, for a record without headers
    valid = bitmap(bounds[1:] > bounds[:-1])
    return pa.Array.from_buffers(HEADERS, rows, [valid, pa.py_buffer(bounds)], children=[entries])


def _texts(keys: pa.Array) -> pa.Array:
    """Returns header keys as text; invalid UTF-8 is replaced, as Java does."""
    _, ends, data = keys.buffers()
    texts = pa.Array.from_buffers(pa.string(), len(keys), [None, ends, data])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return strings([key.decode("utf-8", "replace") for key in keys.to_pylist()])
    return texts
