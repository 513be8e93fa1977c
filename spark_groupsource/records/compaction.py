"""Removal of records from a batch for log compaction.

The records of a batch are read in slices, because a small compressed batch may have millions of them.

Offsets, sequence numbers and codec do not change, and retained records are copied. When a batch gets a delete horizon,
its timestamp deltas are rewritten, because the horizon replaces the base timestamp.

Source: Kafka `MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`; KIP-534 (delete horizon).
"""

from __future__ import annotations

from itertools import compress as selected
from typing import TYPE_CHECKING, Iterator, NamedTuple, Sequence

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import SizeLimitError, compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import CODEC_MASK, BatchHeader, Buffer, corrupt_batch
from spark_groupsource.records.varint import read_varint, wrap_int64, write_varint

if TYPE_CHECKING:
    from spark_groupsource.records.slices import RecordSlice

_HAS_DELETE_HORIZON = 0x40
# with fewer records a loop is faster than array operations
_FEW = 48
_FEW_BYTES = 1 << 16
_SLICE_BYTES = 1 << 18
_SLICE_ITEMS = 4096


class KeyedSlice(NamedTuple):
    """Records of a batch as compaction needs them, by column.

    `starts` and `ends` are the positions of the records in `payload`; the key of a record without one is None.
    """

    payload: bytes | memoryview
    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    has_value: Sequence[bool]
    timestamp_deltas: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Returns the time from which tombstones of a batch may be removed (epoch ms), None if it is not set."""
    return header.base_timestamp if header.attributes & _HAS_DELETE_HORIZON else None


class KeyedRecords:
    """The records of one batch, in slices of bounded size.

    Raises: CorruptRecordError if the bytes of a small batch are not the records that the header announces.
    """

    def __init__(self, buffer: Buffer, header: BatchHeader) -> None:
        self._buffer = buffer
        self._header = header
        self._few: KeyedSlice | None = None
        if header.record_count < _FEW and header.size <= _FEW_BYTES:
            try:
                self._few = _parse_few(bytes(records_payload(buffer, header, _FEW_BYTES)), header)
            except SizeLimitError:
                pass  # they are read in slices

    def check(self) -> Iterator[None]:
        """Checks the records of a large batch; yields between steps of some milliseconds.

        Raises: CorruptRecordError if the bytes are not the records that the header announces.
        """
        if self._few is None:
            for _ in self._slices():
                yield

    def slices(self) -> Iterator[KeyedSlice | None]:
        """Yields all records in slices, and None between the parts of a large record.

        Raises: as `check`.
        """
        if self._few is not None:
            yield self._few
            return
        for found in self._slices():
            if found is None:
                yield None
                continue
            payload, fields = found.payload.data, found.fields
            ends = fields.end.tolist()
            yield KeyedSlice(
                payload,
                (fields.offset_delta + self._header.base_offset).tolist(),
                [
                    bytes(payload[start : start + length]) if length >= 0 else None
                    for start, length in zip(fields.key_start.tolist(), fields.key_length.tolist())
                ],
                (fields.value_length >= 0).tolist(),
                fields.timestamp_delta.tolist(),
                [0, *ends[:-1]],
                ends,
            )

    def _slices(self) -> Iterator[RecordSlice | None]:
        # imported when first needed: NumPy adds 0.1 s to the start of a broker
        from spark_groupsource.records.slices import record_slices

        header = self._header
        try:
            yield from record_slices(
                self._buffer, header, max_slice_bytes=_SLICE_BYTES, max_slice_items=_SLICE_ITEMS
            )
        except CorruptRecordError as error:
            raise corrupt_batch(header.base_offset, header.position, str(error)) from error


def _parse_few(payload: bytes, header: BatchHeader) -> KeyedSlice:
    offsets: list[int] = []
    keys: list[bytes | None] = []
    has_value: list[bool] = []
    timestamp_deltas: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    start = 0
    try:
        for _ in range(header.record_count):
            length, position = read_varint(payload, start)
            end = position + length
            timestamp_delta, position = read_varint(payload, position + 1, 10)
            offset_delta, position = read_varint(payload, position)
            key_length, position = read_varint(payload, position)
            key = payload[position : position + key_length] if key_length >= 0 else None
            value_length, position = read_varint(payload, position + max(key_length, 0))
            if not position + max(value_length, 0) < end <= len(payload):
                raise ValueError(f"length {length} does not match the fields")
            offsets.append(header.base_offset + offset_delta)
            keys.append(key)
            has_value.append(value_length >= 0)
            timestamp_deltas.append(timestamp_delta)
            starts.append(start)
            ends.append(end)
            start = end
        if start != len(payload):
            raise ValueError(f"{len(payload) - start} bytes after the last record")
    except (ValueError, IndexError) as error:
        raise corrupt_batch(header.base_offset, header.position, f"record {len(starts)}: {error}") from error
    return KeyedSlice(payload, offsets, keys, has_value, timestamp_deltas, starts, ends)


def empty_batch(header: BatchHeader) -> bytes:
    """Returns the batch without records: a header with the offsets. Like Kafka: no codec, no base timestamp."""
    attributes = header.attributes & ~(CODEC_MASK | _HAS_DELETE_HORIZON)
    return with_body(header._replace(attributes=attributes, base_timestamp=-1, record_count=0), b"")


class RetainedBatch:
    """Builder of the batch with the retained records; `horizon_ms` sets the delete horizon."""

    def __init__(self, header: BatchHeader, horizon_ms: int | None = None) -> None:
        self._header = header
        self._horizon_ms = horizon_ms
        self._body = bytearray()
        self._max_timestamp: int | None = None
        self._count = 0

    @property
    def size(self) -> int:
        """Bytes of the records, decompressed."""
        return len(self._body)

    def add(self, found: KeyedSlice, is_retained: Sequence[int]) -> None:
        """Adds the records of a slice whose item in `is_retained` is not 0."""
        view, base_timestamp = memoryview(found.payload), self._header.base_timestamp
        deltas = list(selected(found.timestamp_deltas, is_retained))
        if not deltas:
            return
        self._count += len(deltas)
        largest = max(wrap_int64(base_timestamp + delta) for delta in deltas)
        self._max_timestamp = largest if self._max_timestamp is None else max(self._max_timestamp, largest)
        bounds = zip(selected(found.starts, is_retained), selected(found.ends, is_retained))
        if self._horizon_ms is None:
            for start, end in bounds:
                self._body += view[start:end]
            return
        shift = wrap_int64(base_timestamp - self._horizon_ms)
        for (start, end), delta in zip(bounds, deltas):
            _write_with_timestamp(self._body, bytes(view[start:end]), wrap_int64(delta + shift))

    def build(self) -> bytes:
        """Returns the batch, an empty one without records."""
        header = self._header
        if self._max_timestamp is None:
            return empty_batch(header)
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if self._horizon_ms is not None:
            attributes, base_timestamp = attributes | _HAS_DELETE_HORIZON, self._horizon_ms
        new_header = header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp if header.is_log_append_time else self._max_timestamp,
            record_count=self._count,
        )
        body = bytes(self._body)
        return with_body(new_header, compress(header.codec, body) if header.codec else body)


def _write_with_timestamp(body: bytearray, record: bytes, timestamp_delta: int) -> None:
    _, position = read_varint(record, 0)
    _, after_timestamp = read_varint(record, position + 1, 10)
    content = bytearray(record[position : position + 1])
    write_varint(content, timestamp_delta)
    content += record[after_timestamp:]
    write_varint(body, len(content))
    body += content
