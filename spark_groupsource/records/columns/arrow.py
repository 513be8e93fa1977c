"""Decoding of fetched record batches into Arrow record batches.

No Python object is created per record. Producers write batches of a hundred records as well as of ten thousand, so
several Kafka batches are decompressed into one buffer and decoded together.

Source: Kafka `CompletedFetch` (which records a consumer returns).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Iterator, NamedTuple, Sequence

import numpy as np
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_columns import (
    COLUMNS,
    MAX_ROWS,
    Layout,
    Selection,
    columns_schema,
    kafka_schema,
    record_batch,
)
from spark_groupsource.records.columns.batch_selection import AbortedTransaction, select_batches
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.columns.plain_columns import PlainReader, ReadPlain
from spark_groupsource.records.columns.record_groups import RecordGroup, record_groups, undecodable
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES
from spark_groupsource.records.header import Buffer
from spark_groupsource.records.parser import NUMPY_PARSER, Ints, RecordFields, RecordParser, check_headers

__all__ = ["COLUMNS", "AbortedTransaction", "DecodedBlock", "columns_schema", "decode_fetched", "kafka_schema"]

# maximum headers of one Arrow batch, unless one record has more
_MAX_HEADERS = 250_000


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
    parser: RecordParser | None = None,
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
        parser: the record parser; by default the faster one for the records decoded so far.

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
    return DecodedBlock(_decode(view, headers, layout, max_record_bytes, parser), next_offset)


def _decode(
    view: memoryview, headers: HeaderColumns, layout: Layout, max_record_bytes: int, parser: RecordParser | None
) -> Iterator[pa.RecordBatch]:
    def choose() -> RecordParser:
        return parser or _parsers.next()

    try:
        for group in record_groups(view, headers, layout, max_record_bytes, choose):
            for batch in _decode_group(group, layout):
                _parsers.count(batch.num_rows)
                yield batch
            # the next group uses its memory
            del group
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{layout.topic_partition}: {error}") from error


@lru_cache(maxsize=1)
def compiled_parser() -> RecordParser | None:
    """Returns the compiled parser if numba (extra `fast`) is installed. The first call in a process takes 0.4 s."""
    try:
        from spark_groupsource.records.compiled_parser import COMPILED_PARSER
    except (ImportError, RuntimeError):
        # RuntimeError: numba has no writable cache directory, and compiling in each process takes longer than it saves
        return None
    return COMPILED_PARSER


class _ParserSelector:
    """Selects the NumPy parser at first, and the compiled one after `compile_after_rows` records.

    The compiled parser saves 0.1 us per record and takes 0.4 s to load. Loading it after 4 million records, when it
    would have saved as much as loading costs, bounds the total time to twice the optimum; short reads never load it.
    """

    compile_after_rows = 4_000_000

    def __init__(self) -> None:
        self._rows = 0

    def next(self) -> RecordParser:
        """Returns the parser for the next block."""
        return self._rows >= self.compile_after_rows and compiled_parser() or NUMPY_PARSER

    def count(self, rows: int) -> None:
        """Counts decoded records."""
        self._rows += rows


_parsers = _ParserSelector()


@lru_cache(maxsize=1)
def _read_plain() -> ReadPlain:
    """Returns the compiled reader of plain records; only with the compiled parser."""
    from spark_groupsource.records.columns.compiled_columns import plain_columns

    return plain_columns


_plain = PlainReader()


def _decode_group(group: RecordGroup, layout: Layout) -> Iterator[pa.RecordBatch]:
    if group.parser.parse_batches is not None and group.fields is None:
        plain = _plain.read(_read_plain(), group.payload, group.parts, group.headers, layout)
        if plain is not None:
            yield plain
            return
    try:
        selection = _select_records(group, layout)
        if selection is None:
            return
        ends = _row_ends(selection, layout)
        if len(ends) == 1 or group.headers.batch_count == 1:
            for first, after in zip([0, *ends], ends):
                yield record_batch(selection.part(first, after), layout)
            return
    except CorruptRecordError as error:
        if group.headers.batch_count == 1:
            raise undecodable(group.headers, error) from error
    # decode one batch at a time to find the corrupt one, or to limit the headers
    for index in range(group.headers.batch_count):
        yield from _decode_group(group.single(index), layout)


def _select_records(group: RecordGroup, layout: Layout) -> Selection | None:
    counts, fields = group.counts, group.parsed()
    last = np.cumsum(counts) - 1
    present = counts > 0
    # compaction leaves batches without records; they have no payload
    sizes = group.ends - group.starts
    if not np.array_equal(fields.end[last[present]], group.ends[present]) or sizes[~present].any():
        raise CorruptRecordError("Invalid record count: it does not match the payload.")
    offsets = _offsets(group, last, fields)
    low, high = 0, len(offsets)
    if high and (offsets[0] < layout.start_offset or offsets[-1] >= layout.end_offset):
        low, high = np.searchsorted(offsets, (layout.start_offset, layout.end_offset)).tolist()
    if low >= high:
        return None
    if "headers" not in layout.columns and fields.header_count.any():
        for _ in check_headers(group.payload, fields):
            pass
    whole = Selection(group.payload, group.headers, counts, fields, offsets, slice(0, len(offsets)))
    return whole.part(low, high)


def _row_ends(selection: Selection, layout: Layout) -> list[int]:
    """Returns the end of each Arrow batch; with headers they are many, because a header takes 100 bytes and more."""
    rows = len(selection.offsets)
    headers = np.cumsum(selection.fields.header_count)
    if "headers" not in layout.columns or int(headers[-1]) <= _MAX_HEADERS:
        return [rows]
    ends = [0]
    while ends[-1] < rows:
        before = int(headers[ends[-1] - 1]) if ends[-1] else 0
        ends.append(max(ends[-1] + 1, int(np.searchsorted(headers, before + _MAX_HEADERS, side="right"))))
    return ends[1:]


def _offsets(group: RecordGroup, last: Ints, fields: RecordFields) -> Ints:
    """Returns the absolute offsets; checks that they increase and are in the range of their batches."""
    headers, counts = group.headers, group.counts
    offsets: Ints = np.repeat(headers.base_offset, counts)
    offsets += fields.offset_delta
    if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
        raise CorruptRecordError("Invalid offsets: they do not increase.")
    if len(offsets) and offsets[0] < group.lowest_offset and group.fields is not None:
        raise CorruptRecordError("Invalid offsets: they do not increase.")
    present = counts > 0
    first_delta = fields.offset_delta[(last - counts + 1)[present]]
    if (first_delta < 0).any() or (fields.offset_delta[last[present]] > headers.last_offset_delta[present]).any():
        raise CorruptRecordError("Invalid offset: an offset is outside the range of its batch.")
    return offsets


