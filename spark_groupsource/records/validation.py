"""Validation of the records of a produced batch, by column.

Source: Kafka `LogValidator.validateRecord`, `DefaultRecord.readFrom`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generator, Iterable, NamedTuple

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import SizeLimitError
from spark_groupsource.records.decode import StoredRecord, decode_records, records_payload
from spark_groupsource.records.header import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_FLAG, BatchHeader, Buffer
from spark_groupsource.records.plain_records import check_plain_records

if TYPE_CHECKING:
    from spark_groupsource.records.slices import RecordSlice

NO_TIMESTAMP = -1
"""The timestamp of a record without one."""

MAX_RECORD_ERRORS = 1_000
"""Maximum errors of records that a summary lists: a batch may have millions of records."""

# with fewer records a loop is faster than array operations
_FEW_RECORDS = 64
_FEW_BYTES = 1 << 16
_SLICE_BYTES = 1 << 20
_SLICE_ITEMS = 20_000
_FREE_HEADERS = 1_000_000
# larger batches are checked in slices
_PLAIN_BYTES = 1 << 21
_PLAIN_COMPRESSED_BYTES = 1 << 17


class RecordRules(NamedTuple):
    """Requirements for every record.

    Attributes:
        needs_key: the topic is compacted.
        earliest_ms: lowest valid timestamp, epoch ms.
        latest_ms: highest valid timestamp. Records without timestamp are valid.
        max_record_bytes: limit of one record, decompressed.
        max_bytes: limit of all records, decompressed.
    """

    needs_key: bool
    earliest_ms: int
    latest_ms: int
    max_record_bytes: int
    max_bytes: int


class RecordsSummary:
    """Summary of the records of a batch.

    Attributes:
        max_timestamp: the largest, `NO_TIMESTAMP` without any.
        is_contiguous: whether the offset deltas are 0, 1, 2 and so on.
        missing_keys: index of each record without a key, where the rules require one.
        invalid_timestamps: index of each record with an invalid timestamp -> timestamp.
        size: bytes of the records, decompressed.
    """

    __slots__ = ("invalid_timestamps", "is_contiguous", "max_timestamp", "missing_keys", "size")

    def __init__(self) -> None:
        self.max_timestamp = NO_TIMESTAMP
        self.is_contiguous = True
        self.missing_keys: list[int] = []
        self.invalid_timestamps: dict[int, int] = {}
        self.size = 0


def summarize_plain_records(
    batch: memoryview, header: BatchHeader, needs_key: bool, earliest_ms: int, latest_ms: int
) -> RecordsSummary | None:
    """Returns the summary of a batch whose records are valid and in plain form, as most are; None for any other.

    Takes about 1 ms at most; the arguments are those of `RecordRules`, with timestamps of 64 bits.
    """
    if header.attributes & CODEC_MASK:
        if header.size > _PLAIN_COMPRESSED_BYTES:
            return None
        try:
            data, start = bytes(records_payload(batch, header, _PLAIN_BYTES)), 0
        except CorruptRecordError:
            return None
    else:
        if header.size > _PLAIN_BYTES:
            return None
        data, start = bytes(batch), HEADER_BYTES
    found = check_plain_records(data, header.record_count, start)
    if found is None:
        return None
    highest = header.base_timestamp + found.max_timestamp_delta
    if highest > latest_ms or header.base_timestamp + found.min_timestamp_delta < earliest_ms:
        return None
    if needs_key and not found.has_keys:
        return None
    summary = RecordsSummary()
    summary.max_timestamp = max(NO_TIMESTAMP, highest)
    summary.size = len(data) - start
    return summary


def summarize_records(
    buffer: Buffer, header: BatchHeader, rules: RecordRules
) -> Generator[None, None, RecordsSummary]:
    """Checks all records of a batch and returns their summary; yields between steps of some milliseconds.

    Raises: CorruptRecordError if the bytes are not the records that the header announces; SizeLimitError if the records
        exceed the limits of `rules`.
    """
    summary = RecordsSummary()
    # the timestamps of the records count, also if the producer claims that the broker has set them
    header = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME_FLAG)
    if header.record_count <= _FEW_RECORDS and header.size <= _FEW_BYTES:
        try:
            records = decode_records(buffer, header, _FEW_BYTES)
        except CorruptRecordError:
            pass  # the slices show whether the records are invalid, or have other offset deltas
        else:
            _add_few(summary, records, header, rules)
            return summary
    # imported when first needed: NumPy adds 0.1 s to the start of a broker
    from spark_groupsource.records.parser import check_headers
    from spark_groupsource.records.slices import record_slices

    first = headers = 0
    slices = record_slices(
        buffer,
        header,
        max_slice_bytes=_SLICE_BYTES,
        max_slice_items=_SLICE_ITEMS,
        max_record_bytes=rules.max_record_bytes,
    )
    for found in slices:
        if found is not None:
            summary.size += found.payload.size
            headers += int(found.fields.header_count.sum())
            if summary.size > rules.max_bytes:
                raise SizeLimitError(f"The records exceed the limit of {rules.max_bytes} bytes.")
            if headers > max(_FREE_HEADERS, header.size):
                raise SizeLimitError(f"{headers} record headers in {header.size} bytes exceed the limit.")
            if headers:
                yield from check_headers(found.payload, found.fields)
            _add_slice(summary, found, first, header, rules)
            first += len(found.fields.end)
        yield
    return summary


def _add_few(
    summary: RecordsSummary, records: Iterable[StoredRecord], header: BatchHeader, rules: RecordRules
) -> None:
    for index, record in enumerate(records):
        summary.is_contiguous &= record.offset == header.base_offset + index
        timestamp_ms = record.timestamp_ms
        summary.max_timestamp = max(summary.max_timestamp, timestamp_ms)
        if rules.needs_key and record.key is None:
            summary.missing_keys.append(index)
        elif timestamp_ms != NO_TIMESTAMP and not rules.earliest_ms <= timestamp_ms <= rules.latest_ms:
            summary.invalid_timestamps[index] = timestamp_ms


def _add_slice(
    summary: RecordsSummary, found: RecordSlice, first: int, header: BatchHeader, rules: RecordRules
) -> None:
    """Adds a slice whose first record has index `first`."""
    import numpy as np

    fields = found.fields
    count = len(fields.end)
    summary.is_contiguous &= bool((fields.offset_delta == np.arange(first, first + count)).all())
    timestamps = fields.timestamp_delta + np.int64(header.base_timestamp)  # wraps, as Java's long does
    highest = int(timestamps.max())
    summary.max_timestamp = max(summary.max_timestamp, highest)
    is_missing = fields.key_length < 0
    if rules.needs_key and is_missing.any():
        free = MAX_RECORD_ERRORS - len(summary.missing_keys)
        summary.missing_keys += (np.flatnonzero(is_missing)[:free] + first).tolist()
    if highest > rules.latest_ms or int(timestamps.min()) < rules.earliest_ms:
        invalid = (timestamps > rules.latest_ms) | (timestamps < rules.earliest_ms)
        invalid &= timestamps != NO_TIMESTAMP
        if rules.needs_key:
            invalid &= ~is_missing
        rows = np.flatnonzero(invalid)[: MAX_RECORD_ERRORS - len(summary.invalid_timestamps)]
        summary.invalid_timestamps.update(zip((rows + first).tolist(), timestamps[rows].tolist()))
