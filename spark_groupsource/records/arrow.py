"""Decoding of fetched record batches into Arrow record batches.

No Python object is created per record. Producers write batches of a hundred records as well as of ten thousand, so
several Kafka batches are decompressed into one buffer and decoded together.

Source: Kafka `CompletedFetch` (which records a consumer returns), Spark `KafkaRecordToRowConverter` (schema).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns import HEADERS_TYPE, SOURCE_COLUMNS
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, SizeLimitError
from spark_groupsource.records.decode import CONTROL_ABORT, control_type, records_payload
from spark_groupsource.records.header import BatchHeader, Buffer, check_crc, corrupt_batch, iter_batches
from spark_groupsource.records.parser import (
    NUMPY_PARSER,
    Ints,
    RecordFields,
    RecordParser,
    check_headers,
    parse_headers,
)
from spark_groupsource.records.slices import record_slices

COLUMNS = tuple(column.name for column in SOURCE_COLUMNS)
"""Column names, in the order of Spark's Kafka source."""

MAX_ROWS = 40_000
"""Maximum rows of one Arrow batch. More rows exceed the processor cache; fewer raise the cost per row."""

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
# maximum decompressed bytes of the batches that are decoded together; a larger batch is decoded in slices
_MAX_GROUP_BYTES = 8 * 1024 * 1024
_MAX_SLICE_BYTES = 2 * 1024 * 1024
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000


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


def kafka_schema(include_headers: bool = False) -> pa.Schema:
    """Returns the schema of Spark's Kafka source; every column is nullable."""
    return columns_schema(COLUMNS if include_headers else COLUMNS[:-1])


def columns_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the schema of these `COLUMNS`, in the given order."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


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

    Returns: non-empty Arrow batches in offset order. `next_offset` is the offset after the last complete batch,
    including gaps and omitted batches, limited to the requested range; it is `start_offset` if the buffer has no
    complete batch in the range.

    Raises: CorruptRecordError with topic, partition and offset, if a header or checksum is invalid.
    """
    view = memoryview(buffer)
    layout = _Layout(topic_partition, tuple(columns), start_offset, end_offset, max_rows)
    try:
        headers, next_offset = _select(view, layout, aborted if read_committed else None)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{topic_partition}: {error}") from error
    return DecodedBlock(_decode(view, headers, layout, max_record_bytes, parser), next_offset)


def _decode(
    view: memoryview, headers: list[BatchHeader], layout: _Layout, max_record_bytes: int, parser: RecordParser | None
) -> Iterator[pa.RecordBatch]:
    def choose() -> RecordParser:
        return parser or _parsers.next()

    try:
        for group in _groups(view, headers, layout, max_record_bytes, choose):
            for batch in _decode_group(group, layout, choose):
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


_NextParser = Callable[[], RecordParser]
"""Returns the parser for the next group."""


class _Layout(NamedTuple):
    """The requested columns and offsets."""

    topic_partition: TopicPartition
    columns: tuple[str, ...]
    start_offset: int
    end_offset: int
    max_rows: int


class _Group(NamedTuple):
    """Records to decode together: those of whole Kafka batches, or a slice of one.

    Attributes:
        payload: the decompressed records.
        counts: number of records per header.
        ends: end of the records of each header in `payload`.
        fields: the positions of the fields, None if they are not parsed yet.
        lowest_offset: the offset after the previous slice of the batch.
    """

    headers: list[BatchHeader]
    payload: npt.NDArray[np.uint8]
    counts: Ints
    ends: Ints
    fields: RecordFields | None = None
    lowest_offset: int = 0


def _select(
    view: memoryview, layout: _Layout, aborted: Sequence[AbortedTransaction] | None
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
        check_crc(view, header)
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


def _groups(
    view: memoryview, headers: list[BatchHeader], layout: _Layout, max_record_bytes: int, parser: _NextParser
) -> Iterator[_Group]:
    """Decompresses batches; joins as many as fit in one Arrow batch, and divides larger ones."""
    members: list[BatchHeader] = []
    payloads: list[bytes | memoryview] = []
    rows = size = 0
    for header in headers:
        payload = _whole_payload(view, header, layout.max_rows, min(_MAX_GROUP_BYTES, max_record_bytes))
        added = 0 if payload is None else len(payload)
        is_full = rows + header.record_count > layout.max_rows or size + added > _MAX_GROUP_BYTES
        if members and (is_full or payload is None):
            yield _group(members, payloads)
            members, payloads, rows, size = [], [], 0, 0
        if payload is None:
            yield from _slices_of(view, header, layout, max_record_bytes, parser)
            continue
        members.append(header)
        payloads.append(payload)
        rows += header.record_count
        size += added
    if members:
        yield _group(members, payloads)


def _whole_payload(view: memoryview, header: BatchHeader, max_rows: int, max_bytes: int) -> bytes | memoryview | None:
    """The decompressed records of a batch, None if they are too many to be decoded at once."""
    if header.record_count > max_rows or header.size > max_bytes:
        return None
    try:
        return records_payload(view, header, max_bytes)
    except SizeLimitError:
        return None


def _group(members: list[BatchHeader], payloads: list[bytes | memoryview]) -> _Group:
    joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    counts = np.array([header.record_count for header in members], dtype=np.int64)
    ends = np.cumsum(np.array([len(payload) for payload in payloads], dtype=np.int64))
    return _Group(members, np.frombuffer(joined, dtype=np.uint8), counts, ends)


def _slices_of(
    view: memoryview, header: BatchHeader, layout: _Layout, max_record_bytes: int, parser: _NextParser
) -> Iterator[_Group]:
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
                one = np.array([[count], [payload.size]], dtype=np.int64)
                yield _Group([header], payload, one[0], one[1], fields, lowest_offset)
                lowest_offset = header.base_offset + int(fields.offset_delta[-1]) + 1
    except CorruptRecordError as error:
        raise _undecodable(header, error) from error


def _undecodable(header: BatchHeader, error: CorruptRecordError) -> CorruptRecordError:
    return corrupt_batch(
        header.base_offset, header.position, f"its {header.record_count} records do not decode: {error}"
    )


def _decode_group(group: _Group, layout: _Layout, parser: _NextParser) -> Iterator[pa.RecordBatch]:
    try:
        whole = _decode_together(group, layout, parser)
    except CorruptRecordError as error:
        if len(group.headers) == 1:
            raise _undecodable(group.headers[0], error) from error
    else:
        if whole is not None:
            for row in range(0, whole.num_rows, layout.max_rows):
                yield whole.slice(row, layout.max_rows)
        return
    # decode one batch at a time to find the corrupt one
    begin = 0
    for header, count, end in zip(group.headers, group.counts, group.ends.tolist()):
        single = _Group([header], group.payload[begin:end], np.array([count]), np.array([end - begin], dtype=np.int64))
        yield from _decode_group(single, layout, parser)
        begin = end


def _decode_together(group: _Group, layout: _Layout, parser: _NextParser) -> pa.RecordBatch | None:
    counts = group.counts
    fields = parser().parse_all(group.payload, int(counts.sum())) if group.fields is None else group.fields
    last = np.cumsum(counts) - 1
    present = counts > 0
    # compaction leaves batches without records; they have no payload
    sizes = np.diff(group.ends, prepend=0)
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
    chosen = RecordFields(*(field[low:high] for field in fields))
    selection = _Selection(group, counts, chosen, offsets[low:high], slice(low, high))
    arrays = [_BUILDERS[name](selection, layout) for name in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(layout.columns))


class _Selection(NamedTuple):
    """The requested records of a group: the `fields` and `offsets` of `rows`; `counts` are the records per batch."""

    group: _Group
    counts: Ints
    fields: RecordFields
    offsets: Ints
    rows: slice


def _offsets(group: _Group, last: Ints, fields: RecordFields) -> Ints:
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


def _per_record(selection: _Selection, per_batch: list[int]) -> Ints:
    if per_batch.count(per_batch[0]) == len(per_batch):
        return np.full(len(selection.offsets), per_batch[0], dtype=np.int64)
    repeated: Ints = np.repeat(np.array(per_batch, dtype=np.int64), selection.counts)
    return repeated[selection.rows]


def _timestamp(selection: _Selection, layout: _Layout) -> pa.Array:
    headers = selection.group.headers
    appended = [header.is_log_append_time for header in headers]
    if all(appended):
        milliseconds = _per_record(selection, [header.max_timestamp for header in headers])
    else:
        milliseconds = _per_record(selection, [header.base_timestamp for header in headers])
        milliseconds += selection.fields.timestamp_delta
        if any(appended):
            stamped = _per_record(selection, [int(flag) for flag in appended]) == 1
            milliseconds[stamped] = _per_record(selection, [header.max_timestamp for header in headers])[stamped]
    if int(milliseconds.max()) > _MAX_TIMESTAMP_MS or int(milliseconds.min()) < -_MAX_TIMESTAMP_MS:
        first = int(np.argmax((milliseconds > _MAX_TIMESTAMP_MS) | (milliseconds < -_MAX_TIMESTAMP_MS)))
        # the error condition is that of Spark's Kafka source
        raise CorruptRecordError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] Record at offset {selection.offsets[first]} has timestamp "
            f"{milliseconds[first]} ms, which exceeds 64 bits in microseconds. Fix its producer; to read on, leave the "
            "column timestamp out of the schema."
        )
    milliseconds *= 1000
    return _fixed(_TYPES["timestamp"], milliseconds)


def _timestamp_type(selection: _Selection, layout: _Layout) -> pa.Array:
    kinds = _per_record(selection, [int(header.is_log_append_time) for header in selection.group.headers])
    return _fixed(pa.int32(), kinds.astype(np.int32))


def _offset(selection: _Selection, layout: _Layout) -> pa.Array:
    return _fixed(pa.int64(), selection.offsets)


def _partition(selection: _Selection, layout: _Layout) -> pa.Array:
    return _fixed(pa.int32(), np.full(len(selection.offsets), layout.topic_partition.partition, dtype=np.int32))


def _fixed(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _topic(selection: _Selection, layout: _Layout) -> pa.Array:
    rows = len(selection.offsets)
    return _repeated(layout.topic_partition.topic, max(rows, layout.max_rows)).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _key(selection: _Selection, layout: _Layout) -> pa.Array:
    return _slices(selection.group.payload, selection.fields.key_start, selection.fields.key_length)


def _value(selection: _Selection, layout: _Layout) -> pa.Array:
    return _slices(selection.group.payload, selection.fields.value_start, selection.fields.value_length)


def _slices(payload: npt.NDArray[np.uint8], start: Ints, length: Ints) -> pa.Array:
    """Returns the byte strings at `start`, in increasing order, as one binary array; a length of -1 is null.

    The payload becomes one binary array in which the requested strings alternate with the bytes between them, and Arrow
    takes every second element: 14 ns for 100 bytes; a NumPy mask of the bytes takes 120 ns.
    """
    rows = len(start)
    lowest = int(length.min()) if rows else 0
    if rows and lowest < 0 and int(length.max()) < 0:
        return pa.nulls(rows, pa.binary())
    if rows == 1:  # without a copy: one record may be large
        ends = np.array([start[0], start[0] + length[0]], dtype=np.int32)
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
    return pa.Array.from_buffers(pa.binary(), rows, [_validity(length >= 0), ends, data])


@lru_cache(maxsize=4)
def _even(rows: int) -> pa.Array:
    return _fixed(pa.int64(), np.arange(0, 2 * rows, 2, dtype=np.int64))


def _every_second(rows: int) -> pa.Array:
    return _even(max(MAX_ROWS, 1 << (rows - 1).bit_length() if rows else 0)).slice(0, rows)


def _validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _headers(selection: _Selection, layout: _Layout) -> pa.Array:
    rows = len(selection.offsets)
    counts = selection.fields.header_count
    if not counts.any():
        return pa.nulls(rows, _HEADERS_TYPE)
    found = parse_headers(selection.group.payload, selection.fields)
    keys = _texts(_slices(selection.group.payload, found.key_start, found.key_length))
    values = _slices(selection.group.payload, found.value_start, found.value_length)
    entries = pa.StructArray.from_arrays([keys, values], fields=list(_HEADERS_TYPE.value_type))
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(counts, out=ends[1:])
    # Spark's Kafka source returns null, not an empty array, for a record without headers
    return pa.Array.from_buffers(
        _HEADERS_TYPE, rows, [_validity(counts > 0), pa.py_buffer(ends)], children=[entries]
    )


def _texts(keys: pa.Array) -> pa.Array:
    """Returns header keys as text; invalid UTF-8 is replaced, as Java does."""
    _, ends, data = keys.buffers()
    texts = pa.Array.from_buffers(pa.string(), len(keys), [None, ends, data])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    return texts


_BUILDERS: dict[str, Callable[[_Selection, _Layout], pa.Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}
