"""Decoding of fetched record batches into Arrow record batches.

No Python object is created per record. Producers write batches of a hundred records as well as of ten thousand, so
several Kafka batches are decompressed into one buffer and decoded together.

Source: Kafka `CompletedFetch` (which records a consumer returns).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Iterator, NamedTuple, Sequence

import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_columns import (
    COLUMNS,
    MAX_ROWS,
    columns_schema,
    kafka_schema,
    record_batch,
)
from spark_groupsource.records.columns.batch_selection import AbortedTransaction, select_batches
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.columns.numpy_kernel import read_numpy
from spark_groupsource.records.columns.record_groups import BatchGroupReader
from spark_groupsource.records.columns.record_kernel import Layout, RecordKernel
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES
from spark_groupsource.records.header import Buffer

__all__ = ["COLUMNS", "AbortedTransaction", "DecodedBlock", "columns_schema", "decode_fetched", "kafka_schema"]


class DecodedBlock(NamedTuple):
    """The records of one partition of a Fetch response, and the next offset to fetch.

    `batches` decodes one Arrow batch at a time. Raises: CorruptRecordError if a record is invalid.
    """

    batches: Iterator[pa.RecordBatch]
    next_offset: int


def decode_fetched(
    buffer: Buffer,
    *,
    topic_partition: TopicPartition,
    columns: Sequence[str],
    start_offset: int,
    end_offset: int,
    read_committed: bool = False,
    aborted: Sequence[AbortedTransaction] = (),
    max_rows: int = MAX_ROWS,
    max_record_bytes: int = DEFAULT_MAX_BYTES,
    kernel: RecordKernel | None = None,
) -> DecodedBlock:
    """Decodes the records from `start_offset` (inclusive) to `end_offset` (exclusive) of one fetched partition.

    The Arrow batches are decoded one by one, from slices of large Kafka batches, so that the memory depends on neither
    the size of the block nor the compression ratio.

    Args:
        buffer: the record batches as fetched; the last may be incomplete.
        columns: names from `COLUMNS`, in the order of the result; other columns are not decoded.
        read_committed: omit the records of the `aborted` transactions. Control batches are always omitted.
        max_rows: maximum rows of one Arrow batch.
        max_record_bytes: maximum bytes of one record.
        kernel: the record kernel; by default the faster one for the records decoded so far.

    Returns: non-empty Arrow batches in offset order. They do not refer to `buffer`, which may be overwritten, except
    for one of an uncompressed record above 64 MiB. `next_offset` is the offset after the last complete batch, including
    gaps and omitted batches, limited to the requested range; it is `start_offset` if the buffer has no complete batch
    in the range.

    Raises: CorruptRecordError with topic, partition and offset, if a header or checksum is invalid.
    """
    view = memoryview(buffer)
    layout = Layout(topic_partition, tuple(columns), start_offset, end_offset, max_rows)
    try:
        headers, next_offset = select_batches(view, start_offset, end_offset, aborted if read_committed else None)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{topic_partition}: {error}") from error
    return DecodedBlock(_decode(view, headers, layout, max_record_bytes, kernel), next_offset)


def _decode(
    view: memoryview, headers: HeaderColumns, layout: Layout, max_record_bytes: int, kernel: RecordKernel | None
) -> Iterator[pa.RecordBatch]:
    reader = BatchGroupReader(view, layout, kernel or _kernels.next(), max_record_bytes)
    try:
        for batches, records in reader.read(headers):
            rows = len(records.offsets)
            if rows:
                yield record_batch(batches, records, layout)
                _kernels.count(rows)
            # the next group uses its memory
            del records
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{layout.topic_partition}: {error}") from error


@lru_cache(maxsize=1)
def compiled_kernel() -> RecordKernel | None:
    """Returns the compiled kernel if numba (extra `fast`) is installed. The first call in a process takes 0.4 s."""
    try:
        from spark_groupsource.records.columns.compiled_kernel import read_compiled
    except (ImportError, RuntimeError):
        # RuntimeError: numba has no writable cache directory, and compiling in each process takes longer than it saves
        return None
    return read_compiled


class _KernelSelector:
    """Selects the NumPy kernel at first, and the compiled one after `compile_after_rows` records.

    The compiled kernel saves 0.1 us per record and takes 0.4 s to load. Loading it after 4 million records, when it
    would have saved as much as loading costs, bounds the total time to twice the optimum; short reads never load it.
    """

    compile_after_rows = 4_000_000

    def __init__(self) -> None:
        self._rows = 0

    def next(self) -> RecordKernel:
        """Returns the kernel for the next block."""
        return self._rows >= self.compile_after_rows and compiled_kernel() or read_numpy

    def count(self, rows: int) -> None:
        """Counts decoded records."""
        self._rows += rows


_kernels = _KernelSelector()
