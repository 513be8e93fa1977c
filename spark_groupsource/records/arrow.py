"""Decoding of fetched record batches into Arrow record batches.

No Python object is created per record. Producers write batches of a hundred records as well as of ten thousand, so
several Kafka batches are decompressed into one buffer and decoded together.

Source: Kafka `CompletedFetch` (which records a consumer returns).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Iterator, NamedTuple, Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.arrow_columns import (
    COLUMNS,
    MAX_ROWS,
    Layout,
    Selection,
    columns_schema,
    kafka_schema,
    record_batch,
)
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, SizeLimitError
from spark_groupsource.records.decode import CONTROL_ABORT, check_record_count, control_type, records_payload
from spark_groupsource.records.header import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_crc,
    corrupt_batch,
    iter_batches,
)
from spark_groupsource.records.parser import NUMPY_PARSER, Ints, RecordFields, RecordParser, check_headers
from spark_groupsource.records.plain_columns import BufferPool, Parts, PlainReader, ReadPlain
from spark_groupsource.records.slices import record_slices

__all__ = ["COLUMNS", "AbortedTransaction", "DecodedBlock", "columns_schema", "decode_fetched", "kafka_schema"]

# maximum decompressed bytes of the batches that are decoded together; a larger batch is decoded in slices
_MAX_GROUP_BYTES = 8 * 1024 * 1024
_MAX_SLICE_BYTES = 2 * 1024 * 1024
# maximum headers of one Arrow batch, unless one record has more
_MAX_HEADERS = 250_000


class AbortedTransaction(NamedTuple):
    """An aborted transaction of a Fetch response; `first_offset` is the offset of its first record."""

    producer_id: int
    first_offset: int


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
        headers, next_offset = _select(view, layout, aborted if read_committed else None)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{topic_partition}: {error}") from error
    return DecodedBlock(_decode(view, headers, layout, max_record_bytes, parser), next_offset)


def _decode(
    view: memoryview, headers: list[BatchHeader], layout: Layout, max_record_bytes: int, parser: RecordParser | None
) -> Iterator[pa.RecordBatch]:
    def choose() -> RecordParser:
        return parser or _parsers.next()

    try:
        for group in _groups(view, headers, layout, max_record_bytes, choose):
            for batch in _decode_group(group, layout):
                _parsers.count(batch.num_rows)
                yield batch
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
    from spark_groupsource.records.compiled_columns import plain_columns

    return plain_columns


_plain = PlainReader()
_payloads = BufferPool()


_NextParser = Callable[[], RecordParser]
"""Returns the parser for the next group."""


class _RecordGroup(NamedTuple):
    """Records to decode together: those of whole Kafka batches, or a slice of one.

    Attributes:
        payload: the decompressed records, or the part of the response that has them.
        counts: number of records per header.
        starts, ends: start and end of the records of each header in `payload`.
        parser: parses them.
        fields: the positions of the fields, None if they are not parsed yet.
        lowest_offset: the offset after the previous slice of the batch.
    """

    headers: list[BatchHeader]
    payload: npt.NDArray[np.uint8]
    counts: Ints
    starts: Ints
    ends: Ints
    parser: RecordParser
    fields: RecordFields | None = None
    lowest_offset: int = 0

    @property
    def parts(self) -> Parts:
        return Parts(self.starts, self.ends, self.counts)

    def parsed(self) -> RecordFields:
        """Returns the positions of the fields. Raises: CorruptRecordError."""
        if self.fields is not None:
            return self.fields
        if self.parser.parse_batches is not None:
            return self.parser.parse_batches(self.payload, self.starts, self.ends, self.counts)
        return self.parser.parse_all(self.payload, int(self.counts.sum()))

    def single(self, index: int) -> _RecordGroup:
        """Returns the group of one of the headers."""
        payload, count = self.payload[self.starts[index] : self.ends[index]], self.counts[index : index + 1]
        return _RecordGroup([self.headers[index]], payload, count, _ints([0]), _ints([payload.size]), self.parser)


def _select(
    view: memoryview, layout: Layout, aborted: Sequence[AbortedTransaction] | None
) -> tuple[list[BatchHeader], int]:
    """Returns the headers of the batches whose records a consumer returns, and the next offset to fetch.

    `aborted` is None with isolation level read_uncommitted.
    """
    pending = sorted(aborted or (), key=lambda transaction: transaction.first_offset, reverse=True)
    aborted_producers: set[int] = set()
    headers: list[BatchHeader] = []
    next_offset = layout.start_offset
    previous_end = 0
    is_after_range = False
    received = np.frombuffer(view, np.uint8)
    for header in iter_batches(view):
        if header.base_offset < previous_end:
            raise corrupt_batch(
                header.base_offset, header.position, f"the previous batch ends at offset {previous_end - 1}"
            )
        if is_after_range:
            break
        previous_end = header.next_offset
        if header.base_offset >= layout.end_offset:
            # the checksum does not cover the base offset: the next header must confirm that the range ends here
            next_offset = layout.end_offset
            is_after_range = True
            continue
        _check_crc(received, header)
        next_offset = max(next_offset, header.next_offset)
        # an aborted transaction lasts from its first offset to its producer's abort marker (Kafka `CompletedFetch`)
        while pending and pending[-1].first_offset <= header.last_offset:
            aborted_producers.add(pending.pop().producer_id)
        if header.is_control:
            if header.producer_id in aborted_producers and control_type(view, header) == CONTROL_ABORT:
                aborted_producers.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborted_producers:
            continue
        elif header.last_offset >= layout.start_offset:
            headers.append(header)
    return headers, max(layout.start_offset, min(next_offset, layout.end_offset))


def _check_crc(received: npt.NDArray[np.uint8], header: BatchHeader) -> None:
    """Verifies a checksum without a copy of the batch: the library accepts arrays, but no views of memory."""
    covered = received[header.position + ATTRIBUTES_AT : header.position + header.size]
    if google_crc32c.extend(0, covered) != header.crc:
        check_crc(received.data, header)


def _groups(
    view: memoryview, headers: list[BatchHeader], layout: Layout, max_record_bytes: int, parser: _NextParser
) -> Iterator[_RecordGroup]:
    """Decompresses batches; joins as many as fit in one Arrow batch, and divides larger ones.

    Uncompressed records are not copied, if the parser skips the headers of the batches between them.
    """
    members: list[BatchHeader] = []
    payloads: list[bytes | memoryview] = []
    rows = size = 0
    chosen = parser()
    is_in_place = False
    max_bytes = min(_MAX_GROUP_BYTES, max_record_bytes)
    for header in headers:
        payload: bytes | memoryview | None = b""
        is_skipping = chosen.parse_batches is not None
        is_read_in_place = is_skipping and not header.codec and _is_small(header, layout, max_bytes)
        if is_read_in_place:
            added = header.size - HEADER_BYTES
            check_record_count(header, added)
        else:
            payload = _whole_payload(view, header, layout, max_bytes)
            added = 0 if payload is None else len(payload)
        is_full = rows + header.record_count > layout.max_rows or size + added > _MAX_GROUP_BYTES
        if members and (is_full or payload is None or is_read_in_place != is_in_place):
            yield _group(view, members, payloads, chosen)
            members, payloads, rows, size = [], [], 0, 0
            chosen = parser()
        if payload is None:
            yield from _slices_of(view, header, layout, max_record_bytes, parser)
            continue
        is_in_place = is_read_in_place
        members.append(header)
        if not is_in_place:
            payloads.append(payload)
        rows += header.record_count
        size += added
    if members:
        yield _group(view, members, payloads, chosen)


def _is_small(header: BatchHeader, layout: Layout, max_bytes: int) -> bool:
    """Returns whether a batch is decoded at once, unless it expands."""
    return header.record_count <= layout.max_rows and header.size <= max_bytes


def _whole_payload(view: memoryview, header: BatchHeader, layout: Layout, max_bytes: int) -> bytes | memoryview | None:
    """Returns the decompressed records of a batch, None if they are too many to be decoded at once."""
    if not _is_small(header, layout, max_bytes):
        return None
    try:
        return records_payload(view, header, max_bytes)
    except SizeLimitError:
        return None


def _group(
    view: memoryview, members: list[BatchHeader], payloads: list[bytes | memoryview], parser: RecordParser
) -> _RecordGroup:
    """Returns the group of batches; without `payloads`, their records are parsed in the response."""
    counts = _ints([header.record_count for header in members])
    if payloads:
        sizes = _ints([len(payload) for payload in payloads])
        ends = np.cumsum(sizes)
        return _RecordGroup(members, _joined(payloads, ends), counts, ends - sizes, ends, parser)
    begin = members[0].position
    starts = _ints([header.position for header in members]) - (begin - HEADER_BYTES)
    ends = starts + (_ints([header.size for header in members]) - HEADER_BYTES)
    received = view[begin : members[-1].position + members[-1].size]
    return _RecordGroup(members, np.frombuffer(received, dtype=np.uint8), counts, starts, ends, parser)


def _joined(payloads: list[bytes | memoryview], ends: Ints) -> npt.NDArray[np.uint8]:
    if len(payloads) == 1:
        return np.frombuffer(payloads[0], dtype=np.uint8)
    joined = _payloads.take(int(ends[-1]))
    for payload, end in zip(payloads, ends.tolist()):
        joined[end - len(payload) : end] = np.frombuffer(payload, dtype=np.uint8)
    return joined


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _slices_of(
    view: memoryview, header: BatchHeader, layout: Layout, max_record_bytes: int, parser: _NextParser
) -> Iterator[_RecordGroup]:
    lowest_offset = header.base_offset
    slices = record_slices(
        view,
        header,
        max_slice_bytes=_MAX_SLICE_BYTES,
        max_slice_items=layout.max_rows,
        max_record_bytes=max_record_bytes,
        parser=lambda payload, limit: parser().parse_leading(payload, limit),
    )
    try:
        for found in slices:
            if found is not None:
                payload, fields = found
                count = len(fields.end)
                bounds = _ints([count]), _ints([0]), _ints([payload.size])
                yield _RecordGroup([header], payload, *bounds, NUMPY_PARSER, fields, lowest_offset)
                lowest_offset = header.base_offset + int(fields.offset_delta[-1]) + 1
    except CorruptRecordError as error:
        raise _undecodable(header, error) from error


def _undecodable(header: BatchHeader, error: CorruptRecordError) -> CorruptRecordError:
    return corrupt_batch(
        header.base_offset, header.position, f"its {header.record_count} records do not decode: {error}"
    )


def _decode_group(group: _RecordGroup, layout: Layout) -> Iterator[pa.RecordBatch]:
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
        if len(ends) == 1 or len(group.headers) == 1:
            for first, after in zip([0, *ends], ends):
                yield record_batch(selection.part(first, after), layout)
            return
    except CorruptRecordError as error:
        if len(group.headers) == 1:
            raise _undecodable(group.headers[0], error) from error
    # decode one batch at a time to find the corrupt one, or to limit the headers
    for index in range(len(group.headers)):
        yield from _decode_group(group.single(index), layout)


def _select_records(group: _RecordGroup, layout: Layout) -> Selection | None:
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


def _offsets(group: _RecordGroup, last: Ints, fields: RecordFields) -> Ints:
    """Returns the absolute offsets; checks that they increase and are in the range of their batches."""
    headers, counts = group.headers, group.counts
    base = np.array([header.base_offset for header in headers], dtype=np.int64)
    offsets: Ints = np.repeat(base, counts)
    offsets += fields.offset_delta
    if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
        raise CorruptRecordError("Invalid offsets: they do not increase.")
    if len(offsets) and offsets[0] < group.lowest_offset and group.fields is not None:
        raise CorruptRecordError("Invalid offsets: they do not increase.")
    present = counts > 0
    first_delta = fields.offset_delta[(last - counts + 1)[present]]
    limit = np.array([header.last_offset_delta for header in headers], dtype=np.int64)
    if (first_delta < 0).any() or (fields.offset_delta[last[present]] > limit[present]).any():
        raise CorruptRecordError("Invalid offset: an offset is outside the range of its batch.")
    return offsets


