"""Batches with some of their records taken out, as compaction leaves them: offsets, sequence numbers and codec stay.

Knows one batch at a time; which records stay is the caller's business. Records that stay are copied as they are; only
a batch that gets a delete horizon has its time stamps written anew, for the horizon takes the place of the base they
count from.

Source: Kafka `MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`; KIP-534 (delete horizon).
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import CODEC_MASK, BatchHeader
from spark_groupsource.records.varint import read_varint, wrap_int64, write_varint

_HAS_DELETE_HORIZON = 0x40
# below this many records a loop beats array operations
_FEW = 48


class KeyedRecord(NamedTuple):
    """What compaction looks at of one record; `start` to `end` are its bytes in the decompressed batch."""

    offset: int
    key: bytes | None
    has_value: bool
    timestamp_delta: int
    start: int
    end: int


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When the tombstones of a batch may go (epoch ms), None where it was not yet decided."""
    return header.base_timestamp if header.attributes & _HAS_DELETE_HORIZON else None


def keyed_records(
    buffer: bytes | bytearray | memoryview, header: BatchHeader
) -> tuple[bytes | memoryview, list[KeyedRecord]]:
    """The decompressed records of a batch, and where each lies in them.

    Raises: CorruptRecordError when the bytes are not the records the header claims.
    """
    payload = records_payload(buffer, header)
    if header.record_count < _FEW:
        return payload, _walk_few(bytes(payload), header)
    # loaded when first needed: a broker that starts need not wait 0.1 s for NumPy
    import numpy as np

    from spark_groupsource.records.parser import parse_records

    fields = parse_records(np.frombuffer(payload, np.uint8), header.record_count)
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


def _walk_few(payload: bytes, header: BatchHeader) -> list[KeyedRecord]:
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
                raise ValueError(f"a record claims {length} bytes, its fields do not fit")
            offset = header.base_offset + offset_delta
            records.append(KeyedRecord(offset, key, value_length >= 0, timestamp_delta, start, end))
            start = end
        if start != len(payload):
            raise ValueError(f"{len(payload) - start} bytes are left over")
    except (ValueError, IndexError) as error:
        raise CorruptRecordError(
            f"byte {header.position}: record {len(records)} of the batch at offset {header.base_offset} does not "
            f"decode: {error}"
        ) from error
    return records


def retain_records(
    header: BatchHeader, payload: bytes | memoryview, kept: Sequence[KeyedRecord], horizon_ms: int | None = None
) -> bytes:
    """The batch with only `kept` of its records, in order; without any it is a header that keeps its offsets.

    `payload` and `kept` are as `keyed_records` gives them. With `horizon_ms` the batch says from when on its tombstones
    may go.
    """
    if not kept:
        # as Kafka writes it: no codec, no base time
        attributes = header.attributes & ~(CODEC_MASK | _HAS_DELETE_HORIZON)
        return with_body(header._replace(attributes=attributes, base_timestamp=-1, record_count=0), b"")
    body = bytearray()
    attributes, base_timestamp = header.attributes, header.base_timestamp
    view = memoryview(payload)
    if horizon_ms is None:
        for record in kept:
            body += view[record.start : record.end]
    else:
        attributes |= _HAS_DELETE_HORIZON
        shift = wrap_int64(header.base_timestamp - horizon_ms)
        base_timestamp = horizon_ms
        for record in kept:
            _write_shifted(body, bytes(view[record.start : record.end]), wrap_int64(record.timestamp_delta + shift))
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = max(wrap_int64(header.base_timestamp + record.timestamp_delta) for record in kept)
    data = compress(header.codec, bytes(body)) if header.codec else bytes(body)
    told = header._replace(
        attributes=attributes, base_timestamp=base_timestamp, max_timestamp=max_timestamp, record_count=len(kept)
    )
    return with_body(told, data)


def _write_shifted(body: bytearray, record: bytes, timestamp_delta: int) -> None:
    _, position = read_varint(record, 0)
    _, behind = read_varint(record, position + 1, 10)
    content = bytearray(record[position : position + 1])
    write_varint(content, timestamp_delta)
    content += record[behind:]
    write_varint(body, len(content))
    body += content
