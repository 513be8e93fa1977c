"""Header of a record batch v2: fields, validation and checksum.

Source: https://kafka.apache.org/documentation/#recordbatch (Kafka `DefaultRecordBatch`).
"""

from __future__ import annotations

import struct
from typing import Iterator, NamedTuple, TypeAlias

import google_crc32c

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import new_tuple

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
LOG_OVERHEAD_BYTES = 12
"""Base offset and length, which the length does not include."""
MAGIC = 2
"""The only record format version that is stored and decoded; fetched messages of 0 and 1 are converted."""
MIN_MESSAGE_BYTES = 14
"""Minimum length of a message of format v0, without offset and length: checksum, format, attributes, null, null."""

NO_TIMESTAMP_TYPE = -1
"""Timestamp type of messages of format v0, which have no timestamp."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
NO_TIMESTAMP_TYPE_FLAG = 0x80
"""Set only in converted messages of format v0; Kafka does not use this bit."""

HEADER_LAYOUT = struct.Struct(">qiibIhiqqqhii")
PREFIX_LAYOUT = struct.Struct(">qi")
"""Base offset and length."""
_LENGTH_AND_MAGIC = struct.Struct(">8xi4xb")
_MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
"""Position of the attributes; the checksum covers the batch from here to its end."""
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
_CRC_BYTES = 1 << 20


class OldFormatError(CorruptRecordError):
    """An entry is a message of format v0 or v1; see `message_sets`."""


class BatchHeader(NamedTuple):
    """The header of a batch, and its place in the buffer: `size` bytes from `position`."""

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
        """Number of the compression codec; 5 to 7 are undefined."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if the broker set the timestamps: every record has `max_timestamp`."""
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def timestamp_type(self) -> int:
        """`CREATE_TIME`, `LOG_APPEND_TIME` or `NO_TIMESTAMP_TYPE`."""
        return NO_TIMESTAMP_TYPE if self.attributes & NO_TIMESTAMP_TYPE_FLAG else int(self.is_log_append_time)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The lowest possible base offset of the next batch. Compaction preserves it if it removes the last records."""
        return self.base_offset + self.last_offset_delta + 1


def iter_batches(buffer: Buffer, *, start: int = 0) -> Iterator[BatchHeader]:
    """Yields the headers of the complete batches from byte `start`. An incomplete last batch is ignored.

    A broker fills a Fetch response up to the requested size, so an incomplete last batch is no error. Checksums are not
    verified.

    Raises: CorruptRecordError if a header is invalid.
    """
    position, end = start, len(buffer)
    last_possible, unpack = end - HEADER_BYTES, HEADER_LAYOUT.unpack_from
    while position <= last_possible:
        # few calls: a restarting broker reads the header of every batch that is not flushed
        fields = unpack(buffer, position)
        base_offset, batch_length, _, magic, _, _, last_offset_delta, _, _, _, _, _, record_count = fields
        size = LOG_OVERHEAD_BYTES + batch_length
        if magic != MAGIC or size < HEADER_BYTES or position + size > end:
            break
        header = new_tuple(BatchHeader, (*fields, position, size))
        if base_offset < 0 or last_offset_delta < 0 or not 0 <= record_count <= last_offset_delta + 1:
            _validate(header)
        yield header
        position += size
    _complete_size(buffer, position)


def iter_headers(buffer: Buffer) -> Iterator[BatchHeader]:
    """Yields the headers as `iter_batches` does, with any record count and any offsets.

    Raises: CorruptRecordError if a length or the format version is invalid.
    """
    position = 0
    while (size := _complete_size(buffer, position)) is not None:
        yield BatchHeader._make((*HEADER_LAYOUT.unpack_from(buffer, position), position, size))
        position += size


def first_header(buffer: Buffer) -> BatchHeader | None:
    """Returns the first of `iter_headers`, None without a complete batch.

    Raises: CorruptRecordError if its length or the format version is invalid.
    """
    if len(buffer) >= HEADER_BYTES:
        # the usual case with few calls: every Produce needs it
        fields = HEADER_LAYOUT.unpack_from(buffer)
        size = LOG_OVERHEAD_BYTES + fields[1]
        if fields[3] == MAGIC and HEADER_BYTES <= size <= len(buffer):
            return new_tuple(BatchHeader, (*fields, 0, size))
    _complete_size(buffer, 0)  # raises unless the batch is incomplete
    return None


def has_transactional_flag(buffer: Buffer) -> bool:
    """Returns whether the first batch of a buffer says that it is transactional; a fast check, the batch may be
    invalid.
    """
    return len(buffer) >= HEADER_BYTES and bool(buffer[ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG)


def decode_header(head: bytes) -> BatchHeader:
    """Decodes the header of the batch that starts with `head`, of 61 bytes or more. The records may be missing.

    Raises: CorruptRecordError if the header is invalid; struct.error if it is incomplete.
    """
    fields = HEADER_LAYOUT.unpack_from(head)
    base_offset, batch_length, _, magic, _, _, last_offset_delta, _, _, _, _, _, record_count = fields
    if magic != MAGIC or batch_length < _MIN_LENGTH:
        _complete_size(head, 0)  # raises
    header = new_tuple(BatchHeader, (*fields, 0, LOG_OVERHEAD_BYTES + batch_length))
    if base_offset < 0 or last_offset_delta < 0 or not 0 <= record_count <= last_offset_delta + 1:
        _validate(header)  # raises
    return header


def last_batch(buffer: Buffer) -> BatchHeader | None:
    """Returns the header of the last complete batch, or None. Of the batches before it only the lengths are read.

    Raises: CorruptRecordError if the header, or the length of a batch before it, is invalid.
    """
    positions, not_a_batch = batch_positions(buffer)
    if not_a_batch is not None:
        raise not_a_batch
    return next(iter_batches(buffer, start=positions[-1])) if positions else None


def batch_positions(buffer: Buffer) -> tuple[list[int], CorruptRecordError | None]:
    """Returns the positions of the complete batches, and the error of what follows them if it is no batch.

    Only the lengths and format versions are read. An incomplete last batch is no error.
    """
    positions: list[int] = []
    position, last_possible, read = 0, len(buffer) - HEADER_BYTES, _LENGTH_AND_MAGIC.unpack_from
    while position <= last_possible:
        length, magic = read(buffer, position)
        following = position + LOG_OVERHEAD_BYTES + length
        if magic != MAGIC or length < _MIN_LENGTH or following > len(buffer):
            break
        positions.append(position)
        position = following
    try:
        _complete_size(buffer, position)
    except CorruptRecordError as error:
        return positions, error
    return positions, None


def _complete_size(buffer: Buffer, position: int) -> int | None:
    """Bytes of the batch at `position`, or None if it is incomplete."""
    left = len(buffer) - position
    if left < LOG_OVERHEAD_BYTES:
        return None
    base_offset, batch_length = PREFIX_LAYOUT.unpack_from(buffer, position)
    size: int = LOG_OVERHEAD_BYTES + batch_length
    if size < HEADER_BYTES or left > MAGIC_AT and buffer[position + MAGIC_AT] != MAGIC:
        magic = buffer[position + MAGIC_AT] if left > MAGIC_AT else MAGIC
        raise _not_a_batch(base_offset, batch_length, position, magic)
    return size if size <= left else None


def _not_a_batch(base_offset: int, batch_length: int, position: int, magic: int) -> CorruptRecordError:
    """Returns the error of an entry whose length or format version is not that of a record batch."""
    is_message = magic in (0, 1) and batch_length >= MIN_MESSAGE_BYTES
    if batch_length < _MIN_LENGTH and not is_message:
        return corrupt_batch(base_offset, position, f"its length is {batch_length} bytes, minimum {_MIN_LENGTH}")
    error = corrupt_batch(
        base_offset, position, f"its format version is {magic}, supported is {MAGIC} (Kafka 0.11 and later)"
    )
    return OldFormatError(str(error)) if is_message else error


def _validate(header: BatchHeader) -> None:
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        raise corrupt_batch(
            header.base_offset,
            header.position,
            f"last offset delta {header.last_offset_delta}, {header.record_count} records",
        )
    # compaction removes records, so a batch may have fewer records than offsets
    if header.record_count > header.last_offset_delta + 1:
        raise corrupt_batch(
            header.base_offset,
            header.position,
            f"{header.record_count} records in {header.last_offset_delta + 1} offsets",
        )


def check_crc(buffer: Buffer, header: BatchHeader) -> None:
    """Verifies the checksum of a batch.

    Raises: CorruptRecordError if it differs from the checksum of the bytes.
    """
    crc = crc_of(buffer, header)
    if crc != header.crc:
        raise corrupt_batch(
            header.base_offset,
            header.position,
            f"stored CRC {header.crc:08x}, computed {crc:08x}; the bytes changed on disk or in transit",
        )


def crc_of(buffer: Buffer, header: BatchHeader) -> int:
    """Computes the CRC-32C of a batch, which covers everything from the attributes on."""
    start, end = header.position + ATTRIBUTES_AT, header.position + header.size
    return extended_crc(0, (buffer if isinstance(buffer, bytes) else memoryview(buffer))[start:end])


def extended_crc(crc: int, buffer: Buffer) -> int:
    """Returns the CRC-32C of the bytes that `crc` covers and of those that follow them."""
    # the library takes only bytes, so others are copied; a large buffer in parts
    if isinstance(buffer, bytes) or len(buffer) <= _CRC_BYTES:
        found: int = google_crc32c.extend(crc, bytes(buffer))
        return found
    view = memoryview(buffer)
    for start in range(0, len(view), _CRC_BYTES):
        crc = google_crc32c.extend(crc, bytes(view[start : start + _CRC_BYTES]))
    return crc


def corrupt_batch(base_offset: int, position: int, fact: str) -> CorruptRecordError:
    """Returns the error of a batch at byte `position` of its buffer."""
    return CorruptRecordError(f"Record batch at offset {base_offset} (byte {position}) is corrupt: {fact.rstrip('.')}.")
