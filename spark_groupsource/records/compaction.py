"""Removal of records from a batch for log compaction.

Offsets, sequence numbers and codec do not change, and retained records are copied. When a batch gets a delete horizon,
its timestamp deltas are rewritten, because the horizon replaces the base timestamp.

Source: Kafka `MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`; KIP-534 (delete horizon).
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import CODEC_MASK, BatchHeader, Buffer, corrupt_batch
from spark_groupsource.records.varint import read_varint, wrap_int64, write_varint

_HAS_DELETE_HORIZON = 0x40
# with fewer records a loop is faster than array operations
_FEW = 48


class KeyedRecord(NamedTuple):
    """A record as compaction needs it; `start` to `end` are its bytes in the decompressed batch."""

    offset: int
    key: bytes | None
    has_value: bool
    timestamp_delta: int
    start: int
    end: int


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Returns the time from which tombstones of a batch may be removed (epoch ms), None if it is not set."""
    return header.base_timestamp if header.attributes & _HAS_DELETE_HORIZON else None


def keyed_records(
    buffer: Buffer, header: BatchHeader
) -> tuple[bytes | memoryview, list[KeyedRecord]]:
    """Returns the decompressed records of a batch, and the position of each.

    Raises: CorruptRecordError if the bytes are not the records that the header announces.
    """
    payload = records_payload(buffer, header)
    if header.record_count < _FEW:
        return payload, _parse_few(bytes(payload), header)
    # imported when first needed: NumPy adds 0.1 s to the start of a broker
    import numpy as np

    from spark_groupsource.records.parser import parse_records

    try:
        fields = parse_records(np.frombuffer(payload, np.uint8), header.record_count)
    except CorruptRecordError as error:
        raise corrupt_batch(header.base_offset, header.position, str(error)) from error
    view = memoryview(payload)
    records, start = [], 0
    columns = (fields.offset_delta, fields.timestamp_delta, fields.key_start, fields.key_length, fields.value_length)
    for offset_delta, timestamp_delta, key_start, key_length, value_length, end in zip(
        *(column.tolist() for column in columns), fields.end.tolist()
    ):
        key = bytes(view[key_start : key_start + key_length]) if key_length >= 0 else None
        offset = header.base_offset + offset_delta
        records.append(KeyedRecord(offset, key, value_length >= 0, timestamp_delta, start, end))
        start = end
    return payload, records


def _parse_few(payload: bytes, header: BatchHeader) -> list[KeyedRecord]:
    records = []
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
            offset = header.base_offset + offset_delta
            records.append(KeyedRecord(offset, key, value_length >= 0, timestamp_delta, start, end))
            start = end
        if start != len(payload):
            raise ValueError(f"{len(payload) - start} bytes after the last record")
    except (ValueError, IndexError) as error:
        raise corrupt_batch(header.base_offset, header.position, f"record {len(records)}: {error}") from error
    return records


def retain_records(
    header: BatchHeader, payload: bytes | memoryview, retained: Sequence[KeyedRecord], horizon_ms: int | None = None
) -> bytes:
    """Returns the batch with only the `retained` records; without any it is a header with the offsets.

    `payload` and `retained` are results of `keyed_records`. `horizon_ms` sets the delete horizon.
    """
    if not retained:
        # like Kafka: no codec, no base timestamp
        attributes = header.attributes & ~(CODEC_MASK | _HAS_DELETE_HORIZON)
        return with_body(header._replace(attributes=attributes, base_timestamp=-1, record_count=0), b"")
    body = bytearray()
    attributes, base_timestamp = header.attributes, header.base_timestamp
    view = memoryview(payload)
    if horizon_ms is None:
        for record in retained:
            body += view[record.start : record.end]
    else:
        attributes |= _HAS_DELETE_HORIZON
        shift = wrap_int64(header.base_timestamp - horizon_ms)
        base_timestamp = horizon_ms
        for record in retained:
            timestamp_delta = wrap_int64(record.timestamp_delta + shift)
            _write_with_timestamp(body, bytes(view[record.start : record.end]), timestamp_delta)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = max(wrap_int64(header.base_timestamp + record.timestamp_delta) for record in retained)
    data = compress(header.codec, bytes(body)) if header.codec else bytes(body)
    new_header = header._replace(
        attributes=attributes, base_timestamp=base_timestamp, max_timestamp=max_timestamp, record_count=len(retained)
    )
    return with_body(new_header, data)


def _write_with_timestamp(body: bytearray, record: bytes, timestamp_delta: int) -> None:
    _, position = read_varint(record, 0)
    _, after_timestamp = read_varint(record, position + 1, 10)
    content = bytearray(record[position : position + 1])
    write_varint(content, timestamp_delta)
    content += record[after_timestamp:]
    write_varint(body, len(content))
    body += content
