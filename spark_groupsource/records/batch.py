"""Record batches v2: header, checksum, and records as objects for the control plane.

Knows bytes only. Reading records in bulk is the business of `columns`; the object form here serves the group log, the
command line and small reads, and is what `columns` is proved against.

Source: https://kafka.apache.org/documentation/#recordbatch (Kafka `DefaultRecordBatch`, `DefaultRecord`).
"""

from __future__ import annotations

import struct
from typing import Iterator, NamedTuple, Sequence

import google_crc32c

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, compress, decompress

HEADER_BYTES = 61
LOG_OVERHEAD_BYTES = 12  # base offset and length, which the length itself does not count

CREATE_TIME = 0
LOG_APPEND_TIME = 1

CONTROL_ABORT = 0
CONTROL_COMMIT = 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_CONTROL_KEY = struct.Struct(">hh")
_EPOCH_AT = 12
_MAGIC_AT = 16
_CRC_AT = 17
ATTRIBUTES_AT = 21  # the checksum covers everything from here on
_MAX_TIMESTAMP_AT = 35

CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
# length, attributes, two deltas, key and value lengths, header count
_MIN_RECORD_BYTES = 7


class Record(NamedTuple):
    """One record to write; `offset_delta` is its place in the batch unless given (compacted batches have gaps)."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset_delta: int | None = None


class StoredRecord(NamedTuple):
    """One record read, at its offset."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class BatchHeader(NamedTuple):
    """The fixed part of a batch, and where in its buffer the batch lies: `size` bytes from `position`."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int
    size: int

    @property
    def codec(self) -> int:
        """Number of the compression codec, 0 to 4 where the batch is sound."""
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        """True where the broker's clock stamped the records: all of them carry `max_timestamp`."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where the next batch may begin; compaction keeps it even where the last records are gone."""
        return self.base_offset + self.last_offset_delta + 1


def iter_batches(buffer: bytes | bytearray | memoryview, *, start: int = 0) -> Iterator[BatchHeader]:
    """Headers of the complete batches from byte `start`, in order; a last batch that is cut off ends the walk.

    A broker answers a fetch with as many bytes as were asked for, so a cut last batch is no error. Checksums are not
    looked at.

    Raises: CorruptRecordError where a header makes no sense.
    """
    position = start
    while (size := _whole_size(buffer, position)) is not None:
        header = BatchHeader._make((*_HEADER.unpack_from(buffer, position), position, size))
        _check_header(header)
        yield header
        position += size


def decode_header(head: bytes) -> BatchHeader:
    """The header of the batch that begins with `head`, of 61 bytes or more; its records need not be there.

    Raises: CorruptRecordError where the header makes no sense; struct.error where it is cut.
    """
    _whole_size(head, 0)
    fields = _HEADER.unpack_from(head)
    header = BatchHeader._make((*fields, 0, LOG_OVERHEAD_BYTES + fields[1]))
    _check_header(header)
    return header


def last_batch(buffer: bytes | bytearray | memoryview) -> BatchHeader | None:
    """The header of the last complete batch, or None where there is none; those before it are stepped over.

    Raises: CorruptRecordError where the header, or the length of one before it, makes no sense.
    """
    last = position = 0
    while (size := _whole_size(buffer, position)) is not None:
        last, position = position, position + size
    return next(iter_batches(buffer, start=last), None)


def _whole_size(buffer: bytes | bytearray | memoryview, position: int) -> int | None:
    """Bytes of the batch at `position`, or None where it is not complete."""
    left = len(buffer) - position
    if left < LOG_OVERHEAD_BYTES:
        return None
    base_offset, batch_length = _PREFIX.unpack_from(buffer, position)
    size: int = LOG_OVERHEAD_BYTES + batch_length
    if size < HEADER_BYTES:
        raise CorruptRecordError(
            f"byte {position}: a record batch at offset {base_offset} claims a length of {batch_length} bytes, "
            f"at least {HEADER_BYTES - LOG_OVERHEAD_BYTES} are needed"
        )
    if left > _MAGIC_AT and buffer[position + _MAGIC_AT] != 2:
        raise CorruptRecordError(
            f"byte {position}: a record batch at offset {base_offset} has format version "
            f"{buffer[position + _MAGIC_AT]}; only version 2 (Kafka 0.11 and later) is read"
        )
    return size if size <= left else None


def _check_header(header: BatchHeader) -> None:
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptRecordError(
            f"byte {header.position}: a record batch claims base offset {header.base_offset}, last offset delta "
            f"{header.last_offset_delta} and {header.record_count} records"
        )
    # compaction may remove records, never add them
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptRecordError(
            f"byte {header.position}: the record batch at offset {header.base_offset} claims {header.record_count} "
            f"records in {header.last_offset_delta + 1} offsets"
        )


def check_crc(buffer: bytes | bytearray | memoryview, header: BatchHeader) -> None:
    """Compares the checksum of a batch with its bytes.

    Raises: CorruptRecordError when they differ.
    """
    crc = google_crc32c.value(bytes(memoryview(buffer)[_body(header)]))
    if crc != header.crc:
        raise crc_mismatch(header, crc)


def crc_mismatch(header: BatchHeader, crc: int) -> CorruptRecordError:
    """The error for a batch whose bytes have the checksum `crc`."""
    return CorruptRecordError(
        f"byte {header.position}: the record batch at offset {header.base_offset} carries checksum {header.crc:08x}, "
        f"its bytes have {crc:08x}; they were damaged on disk or on the way"
    )


def _body(header: BatchHeader) -> slice:
    """What the checksum covers: everything from the attributes on."""
    return slice(header.position + ATTRIBUTES_AT, header.position + header.size)


def records_payload(
    buffer: bytes | bytearray | memoryview, header: BatchHeader, max_bytes: int = DEFAULT_MAX_BYTES
) -> bytes | memoryview:
    """The records of a batch, decompressed: a view of `buffer` where they were not compressed.

    Raises: CorruptRecordError when they do not decompress, exceed `max_bytes`, or cannot be as many as claimed.
    """
    payload = memoryview(buffer)[header.position + HEADER_BYTES : header.position + header.size]
    result = decompress(header.codec, payload, max_bytes) if header.codec else payload
    if header.record_count * _MIN_RECORD_BYTES > len(result):
        raise CorruptRecordError(
            f"byte {header.position}: the record batch at offset {header.base_offset} claims {header.record_count} "
            f"records in {len(result)} bytes"
        )
    return result


def decode_records(buffer: bytes | bytearray | memoryview, header: BatchHeader) -> Iterator[StoredRecord]:
    """The records of one batch as objects, in order; the whole batch is decoded before the first is handed out.

    Control batches are decoded like others; see `control_type`. The checksum is not looked at.

    Raises: CorruptRecordError when the bytes are not exactly the records the header claims.
    """
    payload = bytes(records_payload(buffer, header))
    records: list[StoredRecord] = []
    try:
        _decode_into(records, payload, header)
    except (ValueError, IndexError) as error:
        raise CorruptRecordError(
            f"byte {header.position}: record {len(records)} of the batch at offset {header.base_offset} does not "
            f"decode: {error}"
        ) from error
    return iter(records)


def _decode_into(records: list[StoredRecord], payload: bytes, header: BatchHeader) -> None:
    """Adds the records of a batch, each at a cost of about a microsecond: a start replays every one of a group log."""
    base_offset, base_timestamp, last_offset_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    stamp = header.max_timestamp if header.log_append_time else None
    position, last_delta, size = 0, -1, len(payload)
    for _ in range(header.record_count):
        length, position = read_varint(payload, position)
        end = position + length
        if length < 0 or end > size:
            raise ValueError(f"a record claims {length} bytes where {size - position} are left")
        timestamp_delta = 0
        # a varint below 64 is one byte, twice its value; the byte at `position` is the attributes, without a meaning
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
            raise ValueError(f"offset delta {delta} after {last_delta}, the last being {last_offset_delta}")
        last_delta = delta
        key, position = _read_bytes(payload, position, end)
        value, position = _read_bytes(payload, position, end)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if payload[position]:
            headers, position = _read_headers(payload, position, end)
        else:
            position += 1
        if position != end:
            raise ValueError(f"a record ends {end - position} bytes off its length")
        timestamp_ms = base_timestamp if stamp is None else stamp
        if timestamp_delta and stamp is None:
            timestamp_ms = wrap_int64(base_timestamp + timestamp_delta)
        records.append(StoredRecord(base_offset + delta, timestamp_ms, key, value, headers))
    if position != size:
        raise ValueError(f"{size - position} bytes are left over")


def _read_headers(payload: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = read_varint(payload, position)
    if count < 0:
        raise ValueError(f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(payload, position, end)
        if name is None:
            raise ValueError("a header has no key")
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
        raise ValueError(f"a field claims {length} bytes where {end - position} are left")
    return payload[position : position + length], position + length


def read_varint(payload: bytes, position: int, max_bytes: int = 5) -> tuple[int, int]:
    """A zigzag varint and the position after it; 5 bytes hold 32 bits, 10 hold 64. What does not fit is cut off.

    Raises: ValueError when it does not end within `max_bytes`; IndexError when the payload ends first.
    """
    raw = shift = 0
    while True:
        byte = payload[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * max_bytes:
            raise ValueError(f"a varint is longer than {max_bytes} bytes")
    raw &= 0xFFFFFFFF if max_bytes == 5 else 0xFFFFFFFFFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), position


def wrap_int64(value: int) -> int:
    """`value` as Java's long arithmetic leaves it."""
    return (value + 0x8000000000000000 & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


def control_type(buffer: bytes | bytearray | memoryview, header: BatchHeader) -> int:
    """What a control batch says: `CONTROL_ABORT`, `CONTROL_COMMIT` or a later type.

    Raises: CorruptRecordError when the batch holds no control record.
    """
    first = next(decode_records(buffer, header), None)
    if first is None or first.key is None or len(first.key) < _CONTROL_KEY.size:
        raise CorruptRecordError(
            f"byte {header.position}: the control batch at offset {header.base_offset} holds no control record"
        )
    return int(_CONTROL_KEY.unpack_from(first.key)[1])


def control_key(kind: int) -> bytes:
    """Key of the record in a control batch."""
    return _CONTROL_KEY.pack(0, kind)


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    timestamp_type: int = CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """One batch holding `records`, at least one, with its checksum.

    Args: `codec` 0 to 4 as in `compression.CODECS`; `timestamp_type` 1 makes every record read with the largest
    timestamp; offset deltas must rise.

    Raises: ValueError when there is no record, or offset deltas do not rise.
    """
    if not records:
        raise ValueError("a record batch needs at least one record")
    base_timestamp = records[0].timestamp_ms
    payload = bytearray()
    delta = -1
    for record in records:
        previous, delta = delta, delta + 1 if record.offset_delta is None else record.offset_delta
        if delta <= previous:
            raise ValueError(f"offset delta {delta} follows {previous}; deltas must rise")
        _encode_record(payload, record, wrap_int64(record.timestamp_ms - base_timestamp), delta)
    attributes = (
        codec
        | (_LOG_APPEND_TIME if timestamp_type == LOG_APPEND_TIME else 0)
        | (_TRANSACTIONAL if transactional else 0)
        | (_CONTROL if control else 0)
    )
    body = compress(codec, bytes(payload)) if codec else payload
    max_timestamp = max(record.timestamp_ms for record in records)
    return _assemble(
        body, base_offset, leader_epoch, attributes, delta, base_timestamp, max_timestamp, producer_id, producer_epoch,
        base_sequence, len(records),
    )  # fmt: skip


def with_body(header: BatchHeader, body: bytes) -> bytes:
    """The batch that `header` tells of around `body`, its records in the codec of the header's attributes.

    Size and checksum are those of the new batch, whatever the header says of them.
    """
    return _assemble(
        body, header.base_offset, header.partition_leader_epoch, header.attributes, header.last_offset_delta,
        header.base_timestamp, header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
        header.record_count,
    )  # fmt: skip


def _assemble(
    body: bytes | bytearray, base_offset: int, leader_epoch: int, attributes: int, last_offset_delta: int,
    base_timestamp: int, max_timestamp: int, producer_id: int, producer_epoch: int, base_sequence: int,
    record_count: int,
) -> bytes:  # fmt: skip
    size = HEADER_BYTES + len(body)
    batch = bytearray(size)
    _HEADER.pack_into(
        batch, 0, base_offset, size - LOG_OVERHEAD_BYTES, leader_epoch, 2, 0, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count,
    )  # fmt: skip
    batch[HEADER_BYTES:] = body
    _CRC.pack_into(batch, _CRC_AT, google_crc32c.value(bytes(memoryview(batch)[ATTRIBUTES_AT:])))
    return bytes(batch)


def _encode_record(payload: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    key, value = record.key, record.value
    if key is not None and value is not None and not record.headers and 0 <= timestamp_delta < 64 > offset_delta:
        key_size, value_size = len(key), len(value)
        if key_size < 64 > value_size:
            # the record of a group log: each number is one byte, twice its value
            write_varint(payload, key_size + value_size + 6)
            payload += bytes((0, timestamp_delta << 1, offset_delta << 1, key_size << 1))
            payload += key
            payload.append(value_size << 1)
            payload += value
            payload.append(0)
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


def write_varint(out: bytearray, value: int) -> None:
    """Appends `value` as a zigzag varint."""
    if 0 <= value < 64:
        out.append(value << 1)
        return
    raw = value << 1 if value >= 0 else ~(value << 1)
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def assign_offsets(
    buffer: bytearray, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None
) -> int:
    """Gives the batches in `buffer` consecutive offsets from `base_offset`, in place, as a broker does on append.

    Neither base offset nor leader epoch is under the checksum; with `log_append_time_ms` the timestamp type and the
    largest timestamp change, and the checksum is computed anew.

    Returns: the offset after the last record.

    Raises: CorruptRecordError when the buffer is not whole batches.
    """
    position = 0
    for header in iter_batches(buffer):
        assign_offset(buffer, header, base_offset, leader_epoch, log_append_time_ms)
        base_offset += header.last_offset_delta + 1
        position = header.position + header.size
    if position != len(buffer):
        raise CorruptRecordError(f"{len(buffer) - position} bytes after byte {position} are not a whole record batch")
    return base_offset


def assign_offset(
    buffer: bytearray, header: BatchHeader, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None
) -> None:
    """`assign_offsets` for one batch whose header was read."""
    _PREFIX.pack_into(buffer, header.position, base_offset, header.batch_length)
    _EPOCH.pack_into(buffer, header.position + _EPOCH_AT, leader_epoch)
    if log_append_time_ms is not None:
        attributes = header.attributes | _LOG_APPEND_TIME
        _ATTRIBUTES.pack_into(buffer, header.position + ATTRIBUTES_AT, attributes)
        _TIMESTAMP.pack_into(buffer, header.position + _MAX_TIMESTAMP_AT, log_append_time_ms)
        crc = google_crc32c.value(bytes(memoryview(buffer)[_body(header)]))
        _CRC.pack_into(buffer, header.position + _CRC_AT, crc)
