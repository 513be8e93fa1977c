"""Validation of produced record batches before they are appended.

A batch is small when it arrives and may be large when it is decompressed, so its records are checked with pauses.

Source: Kafka `LogValidator`, `UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Coroutine, Mapping, NamedTuple

from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.producer_state import NO_PRODUCER_ID
from spark_groupsource.common.coroutines import in_thread, run_parts
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode
from spark_groupsource.model import new_tuple
from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, SizeLimitError, compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import with_body, with_timestamps
from spark_groupsource.records.header import (
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    check_crc,
    decode_header,
    first_header,
    iter_headers,
)
from spark_groupsource.records.validation import (
    NO_TIMESTAMP,
    RecordRules,
    RecordsSummary,
    summarize_plain_records,
    summarize_records,
)

_ZSTD = 4
_MAGIC_POSITION = 16
_OLD_MAGIC = (0, 1)
# a record must fit in the memory of the broker, and so must the records of a batch that is compressed again
_MAX_WHOLE_BYTES = 64 * 1024 * 1024
# more bytes are compressed in the worker thread
_INLINE_BYTES = 256 * 1024
_SHOWN_ERRORS = 3
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

class RejectedBatchError(ApiError):
    """A complete, uncorrupted batch is rejected because of its content.

    Attributes:
        log_start_offset: reported to the producer with the error.
        record_errors: index of each invalid record in the batch -> reason; empty if the whole batch is invalid.
    """

    def __init__(
        self, code: ErrorCode, message: str, log_start_offset: int, record_errors: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(code, message)
        self.log_start_offset = log_start_offset
        self.record_errors = dict(record_errors or {})


class ValidatedBatch(NamedTuple):
    """A batch to append, and its header."""

    records: Buffer
    header: BatchHeader


def begin_validation(
    log: PartitionLog, records: Buffer, header: BatchHeader, timestamp_ms: int
) -> ValidatedBatch | Coroutine[Any, Any, ValidatedBatch]:
    """Validates the only batch of `records` by the settings of `log`, at `timestamp_ms` (epoch ms).

    The result has the codec of the topic and the largest timestamp of its records. Returns a coroutine if its records
    have to be read, which may take long.

    Args: `header`, the result of `check_format`.

    Raises: ApiError.
    """
    _check_batch(log, records, header)
    batch = memoryview(records)[: header.size]
    _check_header(log, header)
    config = log.config
    earliest_ms, latest_ms = _valid_timestamps(log, timestamp_ms)
    summary = summarize_plain_records(batch, header, config.is_compacted, earliest_ms, latest_ms)
    if summary is None or config.compression_type != "producer" or header.attributes & LOG_APPEND_TIME_FLAG:
        return _validate_records(log, batch, header, timestamp_ms, summary)
    if summary.max_timestamp == header.max_timestamp or config.message_timestamp_type == "LogAppendTime":
        return new_tuple(ValidatedBatch, (batch, header))
    return _with_valid_timestamps(log, ValidatedBatch(batch, header), summary.max_timestamp)


async def _validate_records(
    log: PartitionLog, batch: memoryview, header: BatchHeader, timestamp_ms: int, summary: RecordsSummary | None
) -> ValidatedBatch:
    """Validates the records, unless there is a `summary` of them, and converts the batch to the codec of the topic.

    Raises: ApiError.
    """
    try:
        if summary is None:
            summary = await run_parts(summarize_records(batch, header, _rules(log, timestamp_ms)))
        _check_summary(log, header, summary)
        codec = header.codec if log.config.codec is None else log.config.codec
        if codec != header.codec:
            convert = partial(
                recompress,
                batch,
                header,
                codec,
                log.config.codec_level,
                max(_MAX_WHOLE_BYTES, log.config.max_message_bytes),
            )
            is_small = summary.size <= _INLINE_BYTES
            converted, header = convert() if is_small else (await in_thread(convert))
            batch = memoryview(converted)
            check_size(log, header.size)  # the batch may be larger in another codec
    except SizeLimitError as error:
        # a producer divides the batch and sends it again
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"The record batch is too large: {error}") from error
    except CorruptRecordError as error:
        raise _rejected(log, str(error)) from error
    return _with_valid_timestamps(log, ValidatedBatch(batch, header), summary.max_timestamp)


def check_format(records: Buffer, allow_zstd: bool = True) -> BatchHeader:
    """Returns the header of the only batch of `records`; nothing but the header is verified.

    Source: Kafka `ProduceRequest.validateRecords`, which precedes the checks of transaction and partition.

    Raises: ApiError.
    """
    if len(records) > _MAGIC_POSITION and records[_MAGIC_POSITION] in _OLD_MAGIC:
        raise ApiError(ErrorCode.INVALID_RECORD, "Message formats v0 and v1 are not supported since Produce version 3.")
    try:
        header = first_header(records)
        if header is not None and header.attributes & CODEC_MASK == _ZSTD and not allow_zstd:
            text = "Compression codec zstd is not supported by this version of Produce."
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
        if header is None or header.size != len(records):
            # like Kafka, bytes of an incomplete batch at the end are ignored
            count = len(list(iter_headers(records)))
            if header is None or count != 1:
                text = f"A partition of a Produce request must have exactly one whole record batch, got {count}."
                raise ApiError(ErrorCode.INVALID_RECORD, text)
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return header


def _check_batch(log: PartitionLog, records: Buffer, header: BatchHeader) -> None:
    """Verifies size, checksum and codec of a batch. Raises: ApiError."""
    check_size(log, header.size)
    try:
        check_crc(records, header)
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    codec = header.attributes & CODEC_MASK
    if codec > _ZSTD:
        text = f"Compression codec {codec} is not supported by this version of Produce."
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)


def check_size(log: PartitionLog, size: int) -> None:
    """Raises: ApiError for a batch above max.message.bytes."""
    limit = log.config.max_message_bytes
    if size > limit:
        text = f"The record batch has {size} bytes, above max.message.bytes ({limit}) of {log.topic_partition}."
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, text)


def check_segment_size(log: PartitionLog, size: int) -> None:
    """Raises: ApiError for a batch above segment.bytes, which Kafka checks after the content."""
    limit = log.config.segment_bytes
    if size > limit:
        text = f"The record batch has {size} bytes, above segment.bytes ({limit}) of {log.topic_partition}."
        raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE, text)


def _check_header(log: PartitionLog, header: BatchHeader) -> None:
    """Raises: ApiError."""
    text = ""
    if header.base_offset != 0:
        text = f"The baseOffset of the record batch should be 0, but it is {header.base_offset}."
    elif header.last_offset_delta < 0 or header.record_count != header.last_offset_delta + 1:
        text = f"The batch has {header.record_count} records for the offsets 0 to {header.last_offset_delta}."
    elif header.attributes & CONTROL_FLAG:
        text = "A producer must send data records, not control records."
    elif header.producer_id == NO_PRODUCER_ID:
        if header.attributes & TRANSACTIONAL_FLAG:
            text = "A transactional batch must have a producer id."
    elif header.base_sequence < 0:
        text = "A batch with a producer id must have a base sequence of at least 0."
    if text:
        raise _rejected(log, text)


def _valid_timestamps(log: PartitionLog, timestamp_ms: int) -> tuple[int, int]:
    """Returns the lowest and highest valid timestamp of a record."""
    config = log.config
    if config.message_timestamp_type != "CreateTime":
        return _INT64_MIN, _INT64_MAX
    earliest_ms = timestamp_ms - config.message_timestamp_before_max_ms
    return earliest_ms, min(timestamp_ms + config.message_timestamp_after_max_ms, _INT64_MAX)


def _rules(log: PartitionLog, timestamp_ms: int) -> RecordRules:
    config = log.config
    earliest_ms, latest_ms = _valid_timestamps(log, timestamp_ms)
    return RecordRules(
        needs_key=config.is_compacted,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
        max_record_bytes=max(_MAX_WHOLE_BYTES, config.max_message_bytes),
        max_bytes=max(DEFAULT_MAX_BYTES, config.max_message_bytes),
    )


def _check_summary(log: PartitionLog, header: BatchHeader, summary: RecordsSummary) -> None:
    """Raises: RejectedBatchError with the reason for each invalid record."""
    if not summary.is_contiguous:
        # Kafka rejects such a batch if it is compressed, and stores it otherwise
        raise _rejected(log, f"The offset deltas of the records are not 0 to {header.last_offset_delta}.")
    is_append_time = log.config.message_timestamp_type == "LogAppendTime"
    if header.is_log_append_time and (is_append_time or summary.max_timestamp == NO_TIMESTAMP):
        text = "A producer must not set the timestamp type LogAppendTime."
        raise _rejected(log, text, ErrorCode.INVALID_TIMESTAMP, {0: text})
    if not summary.missing_keys and not summary.invalid_timestamps:
        return
    text = f"Compacted topic cannot accept message without key in topic partition {log.topic_partition}."
    errors = dict.fromkeys(summary.missing_keys, text)
    for index, timestamp_ms in summary.invalid_timestamps.items():
        errors[index] = f"Timestamp {timestamp_ms} of the record with index {index} is out of range."
    errors = dict(sorted(errors.items()))
    if summary.invalid_timestamps:
        text = "One or more records have been rejected due to invalid timestamp."
        raise _rejected(log, text, ErrorCode.INVALID_TIMESTAMP, errors)
    shown = " ".join(f"Record {index}: {errors[index]}" for index in list(errors)[:_SHOWN_ERRORS])
    text = f"One or more records have been rejected due to {len(errors)} record errors in total. The first: {shown}"
    raise _rejected(log, text, ErrorCode.INVALID_RECORD, errors)


def _with_valid_timestamps(log: PartitionLog, batch: ValidatedBatch, max_timestamp: int) -> ValidatedBatch:
    """Returns the batch with the largest timestamp of its records; with LogAppendTime it is set when the batch is
    appended.
    """
    header = batch.header
    attributes = header.attributes & ~LOG_APPEND_TIME_FLAG
    is_append_time = log.config.message_timestamp_type == "LogAppendTime"
    if is_append_time or (attributes, max_timestamp) == (header.attributes, header.max_timestamp):
        return batch
    changed = with_timestamps(batch.records, header, attributes, max_timestamp)
    return ValidatedBatch(changed, next(iter_headers(changed)))


def _rejected(
    log: PartitionLog,
    text: str,
    code: ErrorCode = ErrorCode.INVALID_RECORD,
    record_errors: Mapping[int, str] | None = None,
) -> RejectedBatchError:
    return RejectedBatchError(code, text, log.log_start_offset, record_errors)


def recompress(
    buffer: Buffer, header: BatchHeader, codec: int, level: int | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> tuple[bytes, BatchHeader]:
    """Returns the batch of `header` with its records compressed by `codec`, and its new header.

    Records, offsets, timestamps and the producer fields of the header do not change.

    Args:
        codec: 0 to 4, an index of `compression.CODECS`.
        level: compression level of the codec, None for its default.
        max_bytes: limit of the decompressed records.

    Raises: CorruptRecordError if the records do not decompress, exceed the limit, or are too small for the record
        count.
    """
    body = compress(codec, bytes(records_payload(buffer, header, max_bytes)), level)
    batch = with_body(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), body)
    return batch, decode_header(batch)
