"""Encoding of record batches, and offset assignment as on append.

Source: Kafka `DefaultRecordBatch.writeHeader`, `DefaultRecord.writeTo`, `LogValidator`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Sequence

import google_crc32c

from spark_groupsource.records.compression import compress
from spark_groupsource.records.decode import CONTROL_KEY_LAYOUT
from spark_groupsource.records.header import (
    ATTRIBUTES_AT,
    CONTROL_FLAG,
    CRC_AT,
    CREATE_TIME,
    EPOCH_AT,
    HEADER_BYTES,
    HEADER_LAYOUT,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP_TYPE,
    NO_TIMESTAMP_TYPE_FLAG,
    PREFIX_LAYOUT,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    crc_of,
    extended_crc,
)
from spark_groupsource.records.varint import encode_varint, wrap_int64, write_varint

# the header before and after its checksum, which covers all that follows
_UNCHECKED_HEADER, _CHECKED_HEADER = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_TIMESTAMP_TYPE_FLAGS = {
    NO_TIMESTAMP_TYPE: NO_TIMESTAMP_TYPE_FLAG, CREATE_TIME: 0, LOG_APPEND_TIME: LOG_APPEND_TIME_FLAG
}  # fmt: skip
_SMALL_NUMBERS = 1_024
_VARINTS = tuple(map(encode_varint, range(_SMALL_NUMBERS)))
_MOST_CONTENT = _SMALL_NUMBERS - 10


class Record(NamedTuple):
    """A record to write. `offset_delta` defaults to the previous one plus 1; compacted batches have gaps."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset_delta: int | None = None


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """Encodes one batch of `records`.

    Args:
        codec: 0 to 4, an index of `compression.CODECS`.
        level: of the codec, None for its default.
        timestamp_type: with `LOG_APPEND_TIME` every record has the largest timestamp; `NO_TIMESTAMP_TYPE` is for
            converted messages only.

    Raises: ValueError if there is no record, or if offset deltas do not increase.
    """
    if not records:
        raise ValueError("Cannot encode a record batch without records.")
    base_timestamp = records[0].timestamp_ms
    payload = bytearray()
    delta = -1
    for record in records:
        previous, delta = delta, delta + 1 if record.offset_delta is None else record.offset_delta
        if delta <= previous:
            raise ValueError(f"Offset deltas of a record batch must increase, got {delta} after {previous}.")
        _encode_record(payload, record, wrap_int64(record.timestamp_ms - base_timestamp), delta)
    attributes = (
        codec
        | _TIMESTAMP_TYPE_FLAGS[timestamp_type]
        | (TRANSACTIONAL_FLAG if transactional else 0)
        | (CONTROL_FLAG if control else 0)
    )
    body = compress(codec, bytes(payload), level) if codec else payload
    max_timestamp = max(record.timestamp_ms for record in records)
    return _assemble(
        body, base_offset, leader_epoch, attributes, delta, base_timestamp, max_timestamp, producer_id, producer_epoch,
        base_sequence, len(records),
    )  # fmt: skip


def assemble_batch(payload: bytes | bytearray, record_count: int, timestamp_ms: int) -> bytes:
    """Returns the batch of encoded records with consecutive offsets and one timestamp, as `encode_batch` does."""
    return _assemble(payload, 0, 0, 0, record_count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, record_count)


def with_body(header: BatchHeader, body: Buffer) -> bytes:
    """Returns a batch of `header` and `body`; the body has the codec of the header's attributes.

    Length and checksum are computed; those of `header` are ignored.
    """
    return _assemble(
        body, header.base_offset, header.partition_leader_epoch, header.attributes, header.last_offset_delta,
        header.base_timestamp, header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
        header.record_count,
    )  # fmt: skip


def write_header(batch: bytearray, header: BatchHeader) -> None:
    """Writes `header` into the first `HEADER_BYTES` of a batch, with its length and checksum."""
    placed = header._replace(batch_length=len(batch) - LOG_OVERHEAD_BYTES, position=0, size=len(batch))
    HEADER_LAYOUT.pack_into(batch, 0, *placed[:13])
    _CRC.pack_into(batch, CRC_AT, crc_of(batch, placed))


def with_timestamps(batch: Buffer, header: BatchHeader, attributes: int, max_timestamp: int) -> bytearray:
    """Returns the batch of `header` with other attributes and another largest timestamp."""
    changed = bytearray(memoryview(batch)[header.position : header.position + header.size])
    _ATTRIBUTES.pack_into(changed, ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(changed, MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(changed, CRC_AT, crc_of(changed, header._replace(position=0)))
    return changed


def _assemble(
    body: Buffer, base_offset: int, leader_epoch: int, attributes: int, last_offset_delta: int,
    base_timestamp: int, max_timestamp: int, producer_id: int, producer_epoch: int, base_sequence: int,
    record_count: int,
) -> bytes:  # fmt: skip
    checked = _CHECKED_HEADER.pack(
        attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence,
        record_count,
    )  # fmt: skip
    crc = extended_crc(google_crc32c.value(checked), body)
    length = HEADER_BYTES + len(body) - LOG_OVERHEAD_BYTES
    return b"".join((_UNCHECKED_HEADER.pack(base_offset, length, leader_epoch, MAGIC, crc), checked, body))


def _encode_record(payload: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    key, value = record.key, record.value
    if key is not None and value is not None and not record.headers and 0 <= timestamp_delta < 64:
        content = len(key) + len(value)
        if content < _MOST_CONTENT and offset_delta < _SMALL_NUMBERS:
            # fast path for coordinator records
            delta, key_size, value_size = _VARINTS[offset_delta], _VARINTS[len(key)], _VARINTS[len(value)]
            size = _VARINTS[content + len(delta) + len(key_size) + len(value_size) + 3]
            payload += b"".join(
                (size, b"\0", _VARINTS[timestamp_delta], delta, key_size, key, value_size, value, b"\0")
            )
            return
    body = bytearray(b"\0")
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    write_varint(body, len(record.headers))
    for name, header_value in record.headers:
        _write_bytes(body, name.encode("utf-8"))
        _write_bytes(body, header_value)
    write_varint(payload, len(body))
    payload += body


def _write_bytes(body: bytearray, data: bytes | None) -> None:
    if data is None:
        body.append(1)
    elif len(data) < 64:
        body.append(len(data) << 1)
        body += data
    else:
        write_varint(body, len(data))
        body += data


def control_key(control_type: int) -> bytes:
    """Returns the key of a control record."""
    return CONTROL_KEY_LAYOUT.pack(0, control_type)


def assign_offset(
    buffer: bytearray, header: BatchHeader, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None
) -> None:
    """Assigns offset and leader epoch of one batch in `buffer`, in place, as a broker does on append.

    The checksum covers neither. With `log_append_time_ms` the timestamp type and the largest timestamp change, and the
    checksum is computed again.
    """
    PREFIX_LAYOUT.pack_into(buffer, header.position, base_offset, header.batch_length)
    _EPOCH.pack_into(buffer, header.position + EPOCH_AT, leader_epoch)
    if log_append_time_ms is not None:
        attributes = header.attributes | LOG_APPEND_TIME_FLAG
        _ATTRIBUTES.pack_into(buffer, header.position + ATTRIBUTES_AT, attributes)
        _TIMESTAMP.pack_into(buffer, header.position + MAX_TIMESTAMP_AT, log_append_time_ms)
        _CRC.pack_into(buffer, header.position + CRC_AT, crc_of(buffer, header))
