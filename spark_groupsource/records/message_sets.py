"""Messages of formats v0 and v1, converted to record batches.

Brokers before 4.0 write them to topics with ``message.format.version`` below 0.11, and segments from before an upgrade
keep them. Fetch responses contain them as they are stored.

Source: Kafka `LegacyRecord`, `AbstractLegacyRecordBatch`; KIP-32 (timestamps, relative offsets), KAFKA-3160 (LZ4).
"""

from __future__ import annotations

import struct
import zlib
from typing import Iterator, NamedTuple

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import CODECS, decompress
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import (
    CODEC_MASK,
    CREATE_TIME,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    MIN_MESSAGE_BYTES,
    NO_TIMESTAMP_TYPE,
    PREFIX_LAYOUT,
    corrupt_batch,
)

NO_TIMESTAMP = -1
"""Timestamp of a message of format v0."""

_FIELDS = struct.Struct(">Ibb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LZ4 = CODECS.index("lz4")
_LZ4_MAGIC_BYTES = 4
_LZ4_CONTENT_SIZE_FLAG = 0x08
# a converted batch has at most as many records as Java's producer puts in one of 16 KiB
_MAX_RECORDS = 1_000
_MAX_OFFSET_DELTA = 2**31 - 1


class _Message(NamedTuple):
    """A message; `magic` is its format version, `timestamp_type` that of a record batch."""

    offset: int
    magic: int
    codec: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def with_record_batches(data: memoryview) -> memoryview:
    """Returns fetched bytes with their messages as record batches; record batches among them are copied.

    Compressed messages become compressed batches, so that memory does not depend on the compression ratio. An
    incomplete last entry is dropped. Timestamps of format v0 are -1, their type `NO_TIMESTAMP_TYPE`.

    Raises: CorruptRecordError if a message, its checksum or its compressed messages are invalid.
    """
    converted = bytearray()
    pending: list[_Message] = []
    position = 0
    while (size := _complete_size(data, position)) is not None:
        entry = data[position : position + size]
        if entry[MAGIC_AT] == MAGIC:
            converted += _encoded(pending, 0)
            converted += entry
        else:
            message = _decode(entry, position)
            if message.codec or not _continues(pending, message):
                converted += _encoded(pending, 0)
            if message.codec:
                converted += _encoded(list(_inner_messages(message, position)), _LZ4)
            else:
                pending.append(message)
        position += size
    converted += _encoded(pending, 0)
    return memoryview(converted)


def _complete_size(data: memoryview, position: int) -> int | None:
    """Returns the bytes of the entry at `position`, None if it is incomplete."""
    left = len(data) - position
    if left <= MAGIC_AT:
        return None
    offset, length = PREFIX_LAYOUT.unpack_from(data, position)
    minimum = HEADER_BYTES - LOG_OVERHEAD_BYTES if data[position + MAGIC_AT] == MAGIC else MIN_MESSAGE_BYTES
    if length < minimum:
        raise corrupt_batch(offset, position, f"its length is {length} bytes, minimum {minimum}")
    size: int = LOG_OVERHEAD_BYTES + length
    return size if size <= left else None


def _decode(entry: memoryview, position: int) -> _Message:
    """Decodes one whole message; `position` is that of its buffer, for errors."""
    (offset, _), (crc, magic, attributes) = PREFIX_LAYOUT.unpack_from(entry), _FIELDS.unpack_from(entry, 12)
    if magic not in (0, 1):
        raise corrupt_batch(offset, position, f"its format version is {magic}, supported are 0 to {MAGIC}")
    computed = zlib.crc32(entry[MAGIC_AT:])
    if crc != computed:
        raise corrupt_batch(
            offset, position, f"stored CRC {crc:08x}, computed {computed:08x}; the bytes changed on disk or in transit"
        )
    is_log_append_time = magic == 1 and bool(attributes & LOG_APPEND_TIME_FLAG)
    at = LOG_OVERHEAD_BYTES + _FIELDS.size
    timestamp_ms = NO_TIMESTAMP
    try:
        if magic == 1:
            (timestamp_ms,) = _TIMESTAMP.unpack_from(entry, at)
            at += _TIMESTAMP.size
        key, at = _field(entry, at)
        value, at = _field(entry, at)
    except (struct.error, ValueError) as error:
        raise corrupt_batch(offset, position, f"its key or value exceeds its {len(entry)} bytes") from error
    if at != len(entry):
        raise corrupt_batch(offset, position, f"{len(entry) - at} bytes after the value")
    kind = NO_TIMESTAMP_TYPE if magic == 0 else LOG_APPEND_TIME if is_log_append_time else CREATE_TIME
    return _Message(offset, magic, attributes & CODEC_MASK, kind, timestamp_ms, key, value)


def _field(entry: memoryview, at: int) -> tuple[bytes | None, int]:
    """Returns a key or value, and the position after it. Raises: ValueError, struct.error."""
    (length,) = _LENGTH.unpack_from(entry, at)
    at += _LENGTH.size
    if length == -1:
        return None, at
    if not 0 <= length <= len(entry) - at:
        raise ValueError(length)
    return bytes(entry[at : at + length]), at + length


def _inner_messages(wrapper: _Message, position: int) -> Iterator[_Message]:
    """Yields the messages of a compressed one, with absolute offsets.

    In format v1 their offsets are relative, and the offset of the wrapper is that of the last one. Log append time is
    that of the wrapper.
    """
    value = wrapper.value
    if value is None or wrapper.codec > _LZ4:
        raise corrupt_batch(wrapper.offset, position, f"a compressed message of codec {wrapper.codec} has no messages")
    if wrapper.magic == 0 and wrapper.codec == _LZ4:
        value = _with_frame_checksum(value)
    try:
        data = memoryview(decompress(wrapper.codec, value))
    except CorruptRecordError as error:
        raise corrupt_batch(wrapper.offset, position, str(error)) from error
    inner, at = [], 0
    while (size := _complete_size(data, at)) is not None:
        inner.append(_decode(data[at : at + size], position))
        at += size
    if not inner or at != len(data) or any(each.magic != wrapper.magic or each.codec for each in inner):
        raise corrupt_batch(wrapper.offset, position, "its compressed messages are incomplete or of another format")
    base = wrapper.offset - inner[-1].offset if wrapper.magic == 1 else 0
    for message in inner:
        if wrapper.timestamp_type == LOG_APPEND_TIME:
            message = message._replace(timestamp_type=LOG_APPEND_TIME, timestamp_ms=wrapper.timestamp_ms)
        yield message._replace(offset=base + message.offset)


def _continues(pending: list[_Message], message: _Message) -> bool:
    """Returns whether a message fits into the batch of the pending ones."""
    if not pending:
        return True
    first = pending[0]
    if len(pending) >= _MAX_RECORDS or message.offset - first.offset > _MAX_OFFSET_DELTA:
        return False
    if message.timestamp_type == LOG_APPEND_TIME and message.timestamp_ms != first.timestamp_ms:
        return False
    return message.timestamp_type == first.timestamp_type


def _encoded(messages: list[_Message], codec: int) -> bytes:
    """Returns the batch of the messages, empty without one, and clears the list."""
    if not messages:
        return b""
    base = messages[0].offset
    records = [Record(m.key, m.value, m.timestamp_ms, offset_delta=m.offset - base) for m in messages]
    kind = messages[0].timestamp_type
    try:
        batch = encode_batch(records, base_offset=base, codec=codec, timestamp_type=kind, leader_epoch=-1)
    except (ValueError, struct.error) as error:
        raise corrupt_batch(base, 0, f"the offsets of its messages do not increase: {error}") from error
    messages.clear()
    return batch


def _with_frame_checksum(frame: bytes) -> bytes:
    """Returns an LZ4 frame of format v0 with the checksum of its header as LZ4 defines it.

    Java's producers computed it over the magic bytes, too (KAFKA-3160).
    """
    if len(frame) <= _LZ4_MAGIC_BYTES + 2:
        return frame
    end = _LZ4_MAGIC_BYTES + (10 if frame[_LZ4_MAGIC_BYTES] & _LZ4_CONTENT_SIZE_FLAG else 2)
    checksum = _xxh32_of_short(frame[_LZ4_MAGIC_BYTES:end]) >> 8 & 0xFF
    return frame[:end] + bytes((checksum,)) + frame[end + 1 :]


def _xxh32_of_short(data: bytes) -> int:
    """Returns the XXH32 of less than 16 bytes, with seed 0."""
    mask, prime_2, prime_3, prime_4, prime_5 = 0xFFFFFFFF, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    value = (prime_5 + len(data)) & mask
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        value = (value + word * prime_3) & mask
        value = ((value << 17 | value >> 15) & mask) * prime_4 & mask
    for byte in data[whole:]:
        value = (value + byte * prime_5) & mask
        value = ((value << 11 | value >> 21) & mask) * 0x9E3779B1 & mask
    value = (value ^ value >> 15) * prime_2 & mask
    value = (value ^ value >> 13) * prime_3 & mask
    return value ^ value >> 16
