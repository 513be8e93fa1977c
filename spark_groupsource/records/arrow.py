"""Record batches as fetched, straight into Arrow record batches of the source's schema.

Knows bytes and columns: no socket, no Spark, and no Python object per record. Several batches are decompressed one
behind the other and decoded at once, because producers write batches of a hundred records as well as of ten thousand.

Source: Kafka `CompletedFetch` (which records a consumer sees), Spark `KafkaRecordToRowConverter` (schema).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES
from spark_groupsource.records.decode import CONTROL_ABORT, control_type, records_payload
from spark_groupsource.records.header import BatchHeader, check_crc, iter_batches
from spark_groupsource.records.parser import Ints, RecordFields, parse_headers, parse_records

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Column names, in the order of Spark's own Kafka source."""

MAX_ROWS = 40_000
"""Rows of one Arrow batch: large enough to make its fixed cost small, small enough to stay in the processor's cache."""

_HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS_TYPE,
}
# batches are gathered up to this size; with one batch's bound added it stays far below what 32-bit offsets reach
_MAX_GROUP_BYTES = 64 * 1024 * 1024
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000


class AbortedTransaction(NamedTuple):
    """An aborted transaction as a fetch answer names it: its records begin at `first_offset`."""

    producer_id: int
    first_offset: int


class DecodedBlock(NamedTuple):
    """What became of one fetched block; `next_offset` is the next offset to fetch, behind everything looked at."""

    batches: list[pa.RecordBatch]
    next_offset: int
    rows: int


def kafka_schema(include_headers: bool = False) -> pa.Schema:
    """The schema of Spark's own Kafka source; everything may be null."""
    return columns_schema(COLUMNS if include_headers else COLUMNS[:-1])


def columns_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of a choice of `COLUMNS`, in the order given."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


RecordParser = Callable[[npt.NDArray[np.uint8], int], RecordFields]


def decode_fetched(
    buffer: bytes | bytearray | memoryview,
    *,
    topic_partition: TopicPartition,
    columns: Sequence[str],
    start_offset: int,
    end_offset: int,
    read_committed: bool = False,
    aborted: Sequence[AbortedTransaction] = (),
    max_rows: int = MAX_ROWS,
    max_batch_bytes: int = DEFAULT_MAX_BYTES,
    parser: RecordParser | None = None,
) -> DecodedBlock:
    """The records of one fetch answer from `start_offset` (included) to `end_offset` (excluded), by columns.

    Args:
        buffer: the record batches of one partition as fetched; the last may be cut off.
        columns: names out of `COLUMNS`, in the order wanted; what is not named is not decoded.
        read_committed: leaves out the records of `aborted` transactions. Control batches are always left out.
        max_rows: rows of one Arrow batch.
        max_batch_bytes: bound of one batch when decompressed.
        parser: a certain record walk instead of whichever is faster by now; for tests and measurements.

    Returns: Arrow batches in offset order, none of them empty; `next_offset` lies behind the last whole batch, gaps and
    left-out batches included, at least `start_offset` and at most `end_offset`. It equals `start_offset` where the
    buffer holds no whole batch from there on.

    Raises: CorruptRecordError when a checksum or a record is wrong, naming topic, partition and offset.
    """
    view = memoryview(buffer)
    layout = _Layout(topic_partition, tuple(columns), start_offset, end_offset, max_rows)
    decoded: list[pa.RecordBatch] = []
    try:
        headers, next_offset = _visible(view, layout, aborted if read_committed else None)
        for group in _groups(view, headers, max_rows, max_batch_bytes):
            decoded += _decode_group(group, layout, parser or _choice.next())
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{topic_partition}: {error}") from error
    rows = sum(batch.num_rows for batch in decoded)
    _choice.decoded(rows)
    return DecodedBlock(decoded, next_offset, rows)


@lru_cache(maxsize=1)
def compiled_parser() -> RecordParser | None:
    """The compiled walk where numba is installed (extra `fast`); looked for once in a process, at a cost of 0.4 s."""
    try:
        from spark_groupsource.records.compiled_parser import parse_records as compiled
    except (ImportError, RuntimeError):
        # RuntimeError: numba found no directory it may keep compiled code in; compiling in each process would cost more
        return None
    return compiled


class _WalkChoice:
    """NumPy's walk to begin with, the compiled one once a process has decoded so much that loading it has paid.

    It saves 0.1 us per record and costs 0.4 s: whoever changes over after the records it would have paid for by then
    never takes more than twice the least possible, and short reads do not wait for it at all.
    """

    pays_after_rows = 4_000_000

    def __init__(self) -> None:
        self._rows = 0

    def next(self) -> RecordParser:
        """The walk for the next block."""
        return self._rows >= self.pays_after_rows and compiled_parser() or parse_records

    def decoded(self, rows: int) -> None:
        self._rows += rows


_choice = _WalkChoice()


class _Layout(NamedTuple):
    """What the caller wants."""

    topic_partition: TopicPartition
    columns: tuple[str, ...]
    start_offset: int
    end_offset: int
    max_rows: int


class _Group(NamedTuple):
    """Batches decoded together: their records, decompressed, one behind the other; `ends` is where each batch's end."""

    headers: list[BatchHeader]
    payload: npt.NDArray[np.uint8]
    ends: Ints


def _visible(
    view: memoryview, layout: _Layout, aborted: Sequence[AbortedTransaction] | None
) -> tuple[list[BatchHeader], int]:
    """Headers of the batches a consumer sees records of, all checksums checked; and the next offset to fetch.

    `aborted` is None where uncommitted records are wanted too.
    """
    pending = sorted(aborted or (), key=lambda transaction: transaction.first_offset, reverse=True)
    aborted_producers: set[int] = set()
    headers: list[BatchHeader] = []
    next_offset = layout.start_offset
    previous_end = 0
    behind_range = False
    for header in iter_batches(view):
        if header.base_offset < previous_end:
            raise CorruptRecordError(
                f"byte {header.position}: the record batch at offset {header.base_offset} follows one that ends before "
                f"offset {previous_end}; offsets must rise"
            )
        if behind_range:
            break
        previous_end = header.next_offset
        if header.base_offset >= layout.end_offset:
            # no checksum covers a base offset: the next header shows whether this batch really lies behind the range
            next_offset = layout.end_offset
            behind_range = True
            continue
        check_crc(view, header)
        next_offset = max(next_offset, header.next_offset)
        # a transaction is aborted from its first offset to its producer's abort marker (Kafka `CompletedFetch`)
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


def _groups(view: memoryview, headers: list[BatchHeader], max_rows: int, max_batch_bytes: int) -> Iterator[_Group]:
    """Batches decompressed and put together, as many as make one Arrow batch."""
    members: list[BatchHeader] = []
    payloads: list[bytes | memoryview] = []
    rows = size = 0
    for header in headers:
        payload = records_payload(view, header, max_batch_bytes)
        if members and (rows + header.record_count > max_rows or size + len(payload) > _MAX_GROUP_BYTES):
            yield _group(members, payloads)
            members, payloads, rows, size = [], [], 0, 0
        members.append(header)
        payloads.append(payload)
        rows += header.record_count
        size += len(payload)
    if members:
        yield _group(members, payloads)


def _group(members: list[BatchHeader], payloads: list[bytes | memoryview]) -> _Group:
    joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    ends = np.cumsum(np.array([len(payload) for payload in payloads], dtype=np.int64))
    return _Group(members, np.frombuffer(joined, dtype=np.uint8), ends)


def _decode_group(group: _Group, layout: _Layout, parser: RecordParser) -> list[pa.RecordBatch]:
    try:
        return _decode_together(group, layout, parser)
    except CorruptRecordError as error:
        if len(group.headers) == 1:
            header = group.headers[0]
            raise CorruptRecordError(
                f"byte {header.position}: the record batch at offset {header.base_offset} has {header.record_count} "
                f"records that do not decode: {error}"
            ) from error
    # one by one, to name the batch that is broken
    begin = 0
    decoded: list[pa.RecordBatch] = []
    for header, end in zip(group.headers, group.ends.tolist()):
        alone = _Group([header], group.payload[begin:end], np.array([end - begin], dtype=np.int64))
        decoded += _decode_group(alone, layout, parser)
        begin = end
    return decoded


def _decode_together(group: _Group, layout: _Layout, parser: RecordParser) -> list[pa.RecordBatch]:
    counts = np.array([header.record_count for header in group.headers], dtype=np.int64)
    fields = parser(group.payload, int(counts.sum()))
    last = np.cumsum(counts) - 1
    present = counts > 0
    # a batch without records, left behind by compaction, has no bytes either
    sizes = np.diff(group.ends, prepend=0)
    if not np.array_equal(fields.end[last[present]], group.ends[present]) or sizes[~present].any():
        raise CorruptRecordError("record counts disagree with the bytes")
    offsets = _offsets(group.headers, counts, last, fields)
    low, high = 0, len(offsets)
    if high and (offsets[0] < layout.start_offset or offsets[-1] >= layout.end_offset):
        low, high = np.searchsorted(offsets, (layout.start_offset, layout.end_offset)).tolist()
    if low >= high:
        return []
    if "headers" not in layout.columns and fields.header_count.any():
        parse_headers(group.payload, fields)  # only for its checks
    chosen = RecordFields(*(field[low:high] for field in fields))
    cut = _Cut(group, counts, chosen, offsets[low:high], slice(low, high))
    arrays = [_BUILDERS[name](cut, layout) for name in layout.columns]
    whole = pa.RecordBatch.from_arrays(arrays, schema=columns_schema(layout.columns))
    return [whole.slice(row, layout.max_rows) for row in range(0, whole.num_rows, layout.max_rows)]


class _Cut(NamedTuple):
    """The wanted records of a group: `fields` and `offsets` of those in `rows`; `counts` are the records per batch."""

    group: _Group
    counts: Ints
    fields: RecordFields
    offsets: Ints
    rows: slice


def _offsets(headers: list[BatchHeader], counts: Ints, last: Ints, fields: RecordFields) -> Ints:
    """Absolute offsets, proved to rise and to stay inside their batches."""
    base = np.array([header.base_offset for header in headers], dtype=np.int64)
    offsets: Ints = np.repeat(base, counts)
    offsets += fields.offset_delta
    if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
        raise CorruptRecordError("offsets do not rise from record to record")
    present = counts > 0
    first_delta = fields.offset_delta[(last - counts + 1)[present]]
    limit = np.array([header.last_offset_delta for header in headers], dtype=np.int64)
    if (first_delta < 0).any() or (fields.offset_delta[last[present]] > limit[present]).any():
        raise CorruptRecordError("an offset lies outside its batch")
    return offsets


def _per_record(cut: _Cut, per_batch: list[int]) -> Ints:
    if per_batch.count(per_batch[0]) == len(per_batch):
        return np.full(len(cut.offsets), per_batch[0], dtype=np.int64)
    repeated: Ints = np.repeat(np.array(per_batch, dtype=np.int64), cut.counts)
    return repeated[cut.rows]


def _timestamp(cut: _Cut, layout: _Layout) -> pa.Array:
    headers = cut.group.headers
    appended = [header.is_log_append_time for header in headers]
    if all(appended):
        milliseconds = _per_record(cut, [header.max_timestamp for header in headers])
    else:
        milliseconds = _per_record(cut, [header.base_timestamp for header in headers])
        milliseconds += cut.fields.timestamp_delta
        if any(appended):
            stamped = _per_record(cut, [int(flag) for flag in appended]) == 1
            milliseconds[stamped] = _per_record(cut, [header.max_timestamp for header in headers])[stamped]
    if int(milliseconds.max()) > _MAX_TIMESTAMP_MS or int(milliseconds.min()) < -_MAX_TIMESTAMP_MS:
        first = int(np.argmax((milliseconds > _MAX_TIMESTAMP_MS) | (milliseconds < -_MAX_TIMESTAMP_MS)))
        # the name is that of Spark's own source
        raise CorruptRecordError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] the record at offset {cut.offsets[first]} has the timestamp "
            f"{milliseconds[first]} ms, which does not fit into microseconds; mend its producer, and leave the column "
            "timestamp out of the schema to read on"
        )
    milliseconds *= 1000
    return _fixed(_TYPES["timestamp"], milliseconds)


def _timestamp_type(cut: _Cut, layout: _Layout) -> pa.Array:
    kinds = _per_record(cut, [int(header.is_log_append_time) for header in cut.group.headers])
    return _fixed(pa.int32(), kinds.astype(np.int32))


def _offset(cut: _Cut, layout: _Layout) -> pa.Array:
    return _fixed(pa.int64(), cut.offsets)


def _partition(cut: _Cut, layout: _Layout) -> pa.Array:
    return _fixed(pa.int32(), np.full(len(cut.offsets), layout.topic_partition.partition, dtype=np.int32))


def _fixed(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _topic(cut: _Cut, layout: _Layout) -> pa.Array:
    rows = len(cut.offsets)
    return _repeated(layout.topic_partition.topic, max(rows, layout.max_rows)).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _key(cut: _Cut, layout: _Layout) -> pa.Array:
    return _cut_out(cut.group.payload, cut.fields.key_start, cut.fields.key_length)


def _value(cut: _Cut, layout: _Layout) -> pa.Array:
    return _cut_out(cut.group.payload, cut.fields.value_start, cut.fields.value_length)


def _cut_out(payload: npt.NDArray[np.uint8], start: Ints, length: Ints) -> pa.Array:
    """The byte strings at `start`, which must rise, as one binary array; a length of -1 is null.

    The payload is seen as one binary array, in which wanted strings and what lies between them alternate; Arrow then
    takes every second one. That is 14 ns for 100 bytes; a NumPy mask of the kept bytes takes 120 ns.
    """
    rows = len(start)
    lowest = int(length.min()) if rows else 0
    if rows and lowest < 0 and int(length.max()) < 0:
        return pa.nulls(rows, pa.binary())
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


def _headers(cut: _Cut, layout: _Layout) -> pa.Array:
    rows = len(cut.offsets)
    counts = cut.fields.header_count
    if not counts.any():
        return pa.nulls(rows, _HEADERS_TYPE)
    found = parse_headers(cut.group.payload, cut.fields)
    keys = _texts(_cut_out(cut.group.payload, found.key_start, found.key_length))
    values = _cut_out(cut.group.payload, found.value_start, found.value_length)
    entries = pa.StructArray.from_arrays([keys, values], fields=list(_HEADERS_TYPE.value_type))
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(counts, out=ends[1:])
    # Spark's source gives null, not an empty array, to a record without headers
    return pa.Array.from_buffers(
        _HEADERS_TYPE, rows, [_validity(counts > 0), pa.py_buffer(ends)], children=[entries]
    )


def _texts(keys: pa.Array) -> pa.Array:
    """Header keys as text; what is not UTF-8 is replaced, as Java does."""
    _, ends, data = keys.buffers()
    texts = pa.Array.from_buffers(pa.string(), len(keys), [None, ends, data])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    return texts


_BUILDERS: dict[str, Callable[[_Cut, _Layout], pa.Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}
