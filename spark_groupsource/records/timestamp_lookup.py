"""Search for a record of a batch by timestamp, in bounded steps.

Source: Kafka `FileRecords.searchForTimestamp`.
"""

from __future__ import annotations

from typing import Generator

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import SizeLimitError
from spark_groupsource.records.decode import decode_records, records_payload
from spark_groupsource.records.header import BatchHeader, Buffer, corrupt_batch
from spark_groupsource.records.varint import read_varint, wrap_int64

# with fewer records a loop is faster than array operations
_FEW_RECORDS = 64
_FEW_BYTES = 1 << 16
_SLICE_BYTES = 1 << 18
_SLICE_ITEMS = 20_000


def first_record_at(
    buffer: Buffer, header: BatchHeader, timestamp_ms: int, min_offset: int
) -> Generator[None, None, tuple[int, int] | None]:
    """Returns timestamp and offset of the first record from `min_offset` on that is not before `timestamp_ms`.

    Headers of records are not parsed. Yields between steps of some milliseconds.

    Raises: CorruptRecordError if the bytes are not the records that the header announces.
    """
    if header.record_count <= _FEW_RECORDS and header.size <= _FEW_BYTES:
        try:
            for record in decode_records(buffer, header, _FEW_BYTES):
                if record.timestamp_ms >= timestamp_ms and record.offset >= min_offset:
                    return record.timestamp_ms, record.offset
            return None
        except SizeLimitError:
            pass
    # imported when first needed: NumPy adds 0.1 s to the start of a broker
    import numpy as np

    from spark_groupsource.records.slices import record_slices

    slices = record_slices(buffer, header, max_slice_bytes=_SLICE_BYTES, max_slice_items=_SLICE_ITEMS)
    try:
        for found in slices:
            if found is not None:
                fields = found.fields
                offsets = fields.offset_delta + header.base_offset
                if header.is_log_append_time:
                    timestamps = np.full(len(offsets), header.max_timestamp)
                else:
                    timestamps = fields.timestamp_delta + np.int64(header.base_timestamp)
                matching = np.flatnonzero((timestamps >= timestamp_ms) & (offsets >= min_offset))
                if matching.size:
                    return int(timestamps[matching[0]]), int(offsets[matching[0]])
            yield
    except CorruptRecordError as error:
        raise corrupt_batch(header.base_offset, header.position, str(error)) from error
    return None


def timestamp_from(buffer: Buffer, header: BatchHeader, min_offset: int) -> int | None:
    """Returns the timestamp of the first record from `min_offset` on; None if the batch has none.

    Keys, values and headers are not parsed.

    Raises: CorruptRecordError if the bytes before are not records.
    """
    if header.is_log_append_time:
        return header.max_timestamp if header.last_offset >= min_offset else None
    payload = bytes(records_payload(buffer, header))
    position = 0
    try:
        for _ in range(header.record_count):
            length, position = read_varint(payload, position)
            timestamp_delta, after = read_varint(payload, position + 1, 10)
            offset_delta, _ = read_varint(payload, after)
            if header.base_offset + offset_delta >= min_offset:
                return wrap_int64(header.base_timestamp + timestamp_delta)
            if length < 0:
                raise ValueError(f"length {length}")
            position += length
    except (ValueError, IndexError) as error:
        raise corrupt_batch(header.base_offset, header.position, str(error)) from error
    return None
