"""Scans of the batches of a segment file, read in parts.

Source: Kafka `FileLogInputStream`, `LogSegment.recover`.
"""

from __future__ import annotations

import struct
from typing import Callable, Iterator, NamedTuple

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import new_tuple
from spark_groupsource.records.header import (
    LOG_OVERHEAD_BYTES,
    PRODUCER_ID_AT,
    BatchHeader,
    batch_positions,
    check_crc,
    crc_of,
    iter_batches,
)

# the kernel clears new memory: larger parts take 1.3 times as long
_SCAN_BYTES = 1 << 17
MAX_RELATIVE_OFFSET = 2**31 - 1
"""The largest distance of an offset from the base offset of its segment."""
_NO_PRODUCER = b"\xff" * 8

ReadAt = Callable[[int, int], bytes]
"""(position, bytes) -> exactly these bytes of the file; raises StorageError"""


class StoredBatch(NamedTuple):
    """A batch of a segment: its header, the buffer that the header refers to, its position in the file."""

    header: BatchHeader
    buffer: bytes
    position: int


class InvalidBatchError(Exception):
    """The bytes at `position` of the file are no valid batch; `is_complete` if they are a whole batch."""

    def __init__(self, position: int, reason: str, is_complete: bool) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason.rstrip(".")
        self.is_complete = is_complete


def scan_batches(
    read: ReadAt,
    start: int,
    end: int,
    min_offset: int,
    expected_offset: int | None = None,
    is_verified: Callable[[int, int], bool] | None = None,
) -> Iterator[StoredBatch]:
    """Yields the batches between two positions, whose base offsets increase from `min_offset` on.

    `min_offset` is the base offset of the segment, and an offset that its indexes cannot store is invalid: no checksum
    covers it. With `expected_offset` the batches must be contiguous from that offset on. The checksums between two
    positions are verified unless `is_verified` returns True.

    Raises: InvalidBatchError, StorageError.
    """
    is_contiguous, max_offset = expected_offset is not None, min_offset + MAX_RELATIVE_OFFSET
    if expected_offset is not None:
        min_offset = expected_offset
    while start < end:
        chunk = _read_chunk(read, start, end)
        is_checked = is_verified is None or not is_verified(start, start + len(chunk))
        position = start
        try:
            for header in iter_batches(chunk):
                base_offset = header.base_offset
                last_offset = base_offset + header.last_offset_delta
                is_gap = is_contiguous and base_offset != min_offset
                if is_gap or base_offset < min_offset or last_offset > max_offset:
                    reason = f"a batch has base offset {base_offset}, expected {min_offset}"
                    raise InvalidBatchError(position, reason, True)
                if is_checked and crc_of(chunk, header) != header.crc:
                    check_stored_crc(chunk, header, position)
                yield new_tuple(StoredBatch, (header, chunk, position))
                position += header.size
                min_offset = last_offset + 1
        except CorruptRecordError as error:
            raise InvalidBatchError(position, str(error), False) from error
        if position == start:
            raise _incomplete(start, end)
        start = position


def scan_producer_batches(read: ReadAt, start: int, end: int) -> Iterator[StoredBatch]:
    """Yields the batches of producers with an id, and control batches, without verifying checksums and offsets.

    Raises: InvalidBatchError, StorageError.
    """
    while start < end:
        chunk = _read_chunk(read, start, end)
        positions, not_a_batch = batch_positions(chunk)
        for at in positions:
            if chunk[at + PRODUCER_ID_AT : at + PRODUCER_ID_AT + 8] != _NO_PRODUCER:
                try:
                    header = next(iter_batches(chunk, start=at))
                except CorruptRecordError as error:
                    raise InvalidBatchError(start + at, str(error), False) from error
                yield StoredBatch(header, chunk, start + at)
        start += positions[-1] + LOG_OVERHEAD_BYTES + _length(chunk, positions[-1]) if positions else 0
        if not_a_batch is not None:
            raise InvalidBatchError(start, str(not_a_batch), False)
        if not positions:
            raise _incomplete(start, end)


def _read_chunk(read: ReadAt, start: int, end: int) -> bytes:
    """Reads at least one batch, if it is complete."""
    chunk = read(start, min(_SCAN_BYTES, end - start))
    if len(chunk) >= LOG_OVERHEAD_BYTES:
        size = LOG_OVERHEAD_BYTES + _length(chunk, 0)
        if len(chunk) < size <= end - start:
            chunk = read(start, size)
    return chunk


def _length(chunk: bytes, at: int) -> int:
    length: int = struct.unpack_from(">i", chunk, at + 8)[0]
    return length


def check_stored_crc(chunk: bytes, header: BatchHeader, position: int) -> None:
    """Raises: InvalidBatchError."""
    try:
        check_crc(chunk, header)
    except CorruptRecordError as error:
        raise InvalidBatchError(position, str(error), True) from error


def _incomplete(start: int, end: int) -> InvalidBatchError:
    return InvalidBatchError(start, f"the last {end - start} bytes are no complete batch", False)
