"""Decoding of record batches into one Python object per record.

Used for the logs of the coordinators, the command line and small reads. `arrow` decodes in bulk; its tests compare it
with this module.

Source: https://kafka.apache.org/documentation/#record (Kafka `DefaultRecord`, `ControlRecordType`).
"""

from __future__ import annotations

import struct
from typing import Iterator, NamedTuple

from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, decompress
from spark_groupsource.records.header import CODEC_MASK, HEADER_BYTES, BatchHeader, Buffer, corrupt_batch
from spark_groupsource.records.varint import read_varint, wrap_int64

CONTROL_ABORT = 0
CONTROL_COMMIT = 1

CONTROL_KEY_LAYOUT = struct.Struct(">hh")
# length, attributes, two deltas, key and value lengths, header count
_MIN_RECORD_BYTES = 7


class StoredRecord(NamedTuple):
    """A record with its offset."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_payload(buffer: Buffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes | memoryview:
    """Returns the records of a batch, decompressed. If they are not compressed, it is a view of `buffer`.

    Raises: CorruptRecordError if they do not decompress, exceed `max_bytes`, or are too small for the record count.
    """
    payload = memoryview(buffer)[header.position + HEADER_BYTES : header.position + header.size]
    result = decompress(header.codec, payload, max_bytes) if header.codec else payload
    check_record_count(header, len(result))
    return result


def records_bytes(buffer: Buffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """As `records_payload`, but a copy."""
    if header.attributes & CODEC_MASK or not isinstance(buffer, bytes):
        return bytes(records_payload(buffer, header, max_bytes))
    payload = buffer[header.position + HEADER_BYTES : header.position + header.size]
    check_record_count(header, len(payload))
    return payload


def check_record_count(header: BatchHeader, payload_bytes: int) -> None:
    """Raises: CorruptRecordError if the decompressed records are too small for the record count."""
    if header.record_count * _MIN_RECORD_BYTES > payload_bytes:
        raise corrupt_batch(
            header.base_offset, header.position, f"{header.record_count} records in {payload_bytes} bytes"
        )


def decode_records(
    buffer: Buffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_BYTES
) -> Iterator[StoredRecord]:
    """Decodes the records of one batch. The whole batch is decoded before the first record is returned.

    Control batches are decoded like others; see `control_type`. The checksum is not verified.

    Raises: CorruptRecordError if the bytes are not exactly the records that the header announces, or exceed `max_bytes`
        decompressed.
    """
    payload = records_bytes(buffer, header, max_bytes)
    records: list[StoredRecord] = []
    try:
        _decode_into(records, payload, header)
    except (ValueError, IndexError) as error:
        raise corrupt_batch(header.base_offset, header.position, f"record {len(records)}: {error}") from error
    return iter(records)


def _decode_into(records: list[StoredRecord], payload: bytes, header: BatchHeader) -> None:
    """Appends the records of a batch, about 1 us each: a restarting broker replays every coordinator record."""
    base_offset, base_timestamp, last_offset_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    append_timestamp = header.max_timestamp if header.is_log_append_time else None
    position, last_delta, size = 0, -1, len(payload)
    for _ in range(header.record_count):
        length, position = read_varint(payload, position)
        end = position + length
        if length < 0 or end > size:
            raise ValueError(f"length {length}, {size - position} bytes left")
        timestamp_delta = 0
        # a varint below 64 is one byte, twice its value; the byte at `position` is the attributes, which are unused
        if payload[position + 1]:
            timestamp_delta, position = read_varint(payload, position + 1, 10)
        else:
            position += 2
        raw = payload[position]
        if raw < 0x80 and not raw & 1:
            delta, position = raw >> 1, position + 1
        else:
            delta, position = read_varint(payload, position)
        if not last_delta < delta <= last_offset_delta:
            raise ValueError(f"offset delta {delta} after {last_delta}, maximum {last_offset_delta}")
        last_delta = delta
        key, position = _read_bytes(payload, position, end)
        value, position = _read_bytes(payload, position, end)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if payload[position]:
            headers, position = _read_headers(payload, position, end)
        else:
            position += 1
        if position != end:
            raise ValueError(f"its fields end {end - position} bytes before its length")
        timestamp_ms = base_timestamp if append_timestamp is None else append_timestamp
        if timestamp_delta and append_timestamp is None:
            timestamp_ms = wrap_int64(base_timestamp + timestamp_delta)
        records.append(StoredRecord(base_offset + delta, timestamp_ms, key, value, headers))
    if position != size:
        raise ValueError(f"{size - position} bytes after the last record")


def _read_headers(payload: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = read_varint(payload, position)
    if count < 0:
        raise ValueError(f"header count {count}")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(payload, position, end)
        if name is None:
            raise ValueError("null header key")
        value, position = _read_bytes(payload, position, end)
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _read_bytes(payload: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    raw = payload[position]
    if raw < 0x80:
        length, position = (raw >> 1) ^ -(raw & 1), position + 1
    else:
        length, position = read_varint(payload, position)
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise ValueError(f"field length {length}, {end - position} bytes left")
    return payload[position : position + length], position + length


def control_type(buffer: Buffer, header: BatchHeader) -> int:
    """Returns the type of a control batch: `CONTROL_ABORT`, `CONTROL_COMMIT` or a newer type.

    Raises: CorruptRecordError if the batch has no control record.
    """
    first = next(decode_records(buffer, header), None)
    if first is None or first.key is None or len(first.key) < CONTROL_KEY_LAYOUT.size:
        raise corrupt_batch(header.base_offset, header.position, "a control batch without a control record")
    return int(CONTROL_KEY_LAYOUT.unpack_from(first.key)[1])
