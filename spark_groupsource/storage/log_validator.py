"""Validation of produced record batches before they are appended.

Source: Kafka `LogValidator`, `UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode
from spark_groupsource.records.compaction import keyed_records
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import BatchHeader, Buffer, check_crc, iter_batches
from spark_groupsource.records.recompression import recompress
from spark_groupsource.storage.log import PartitionLog
from spark_groupsource.storage.producer_state import NO_PRODUCER_ID

_ZSTD = 4
_MAGIC_POSITION = 16
_OLD_MAGIC = (0, 1)
_NO_TIMESTAMP = -1


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


def parse_batch(log: PartitionLog, records: Buffer, allow_zstd: bool) -> BatchHeader:
    """The header of the one batch of `records`, with verified size, checksum and codec.

    Raises: ApiError.
    """
    if len(records) > _MAGIC_POSITION and records[_MAGIC_POSITION] in _OLD_MAGIC:
        raise ApiError(ErrorCode.INVALID_RECORD, "Message formats v0 and v1 are not supported since Produce version 3.")
    try:
        headers = list(iter_batches(records))
        # like Kafka, bytes of an incomplete batch at the end are ignored
        if len(headers) != 1:
            text = f"A partition of a Produce request must have exactly one whole record batch, got {len(headers)}."
            raise ApiError(ErrorCode.INVALID_RECORD, text)
        header = headers[0]
        check_size(log, header.size)
        check_crc(records, header)
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.codec > _ZSTD or (header.codec == _ZSTD and not allow_zstd):
        text = f"Compression codec {header.codec} is not supported by this version of Produce."
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
    return header


def check_size(log: PartitionLog, size: int) -> None:
    """Raises: ApiError for a batch above max.message.bytes."""
    limit = log.config.max_message_bytes
    if size > limit:
        text = f"The record batch has {size} bytes, above max.message.bytes ({limit}) of {log.topic_partition}."
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, text)


def check_records(log: PartitionLog, records: memoryview, header: BatchHeader, timestamp_ms: int) -> None:
    """Checks the header, and by the settings of the topic the keys and timestamps of the records.

    Raises: ApiError.
    """
    text = ""
    if header.is_control or header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        text = "A producer must send data records with contiguous offsets, and at least one."
    elif header.base_offset != 0:
        text = f"The baseOffset of the record batch should be 0, but it is {header.base_offset}"
    elif header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        text = "A transactional batch must have a producer id."
    elif header.producer_id != NO_PRODUCER_ID and (header.base_sequence < 0 or header.producer_epoch < 0):
        text = "A batch with a producer id must have a producer epoch and a base sequence of at least 0."
    if text:
        raise RejectedBatchError(ErrorCode.INVALID_RECORD, text, log.log_start_offset)
    if log.config.is_compacted:
        _check_keys(log, records, header)
    _check_timestamps(log, records, header, timestamp_ms)


def _check_keys(log: PartitionLog, records: memoryview, header: BatchHeader) -> None:
    try:
        _, keyed = keyed_records(records, header)
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
    text = f"Compacted topic cannot accept message without key in topic partition {log.topic_partition}."
    errors = {index: text for index, record in enumerate(keyed) if record.key is None}
    if errors:
        raise RejectedBatchError(ErrorCode.INVALID_RECORD, text, log.log_start_offset, errors)


def _check_timestamps(log: PartitionLog, records: memoryview, header: BatchHeader, timestamp_ms: int) -> None:
    config = log.config
    if config.message_timestamp_type != "CreateTime":
        return
    earliest = timestamp_ms - config.message_timestamp_before_max_ms
    latest = timestamp_ms + config.message_timestamp_after_max_ms
    if earliest < 0 and header.max_timestamp <= latest:
        return  # usually the header is sufficient
    try:
        errors = {
            index: f"Timestamp {record.timestamp_ms} is out of range, which is {earliest} to {latest}"
            for index, record in enumerate(decode_records(records, header))
            if record.timestamp_ms != _NO_TIMESTAMP and not earliest <= record.timestamp_ms <= latest
        }
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
    if errors:
        text = "One or more records have been rejected due to invalid timestamp"
        raise RejectedBatchError(ErrorCode.INVALID_TIMESTAMP, text, log.log_start_offset, errors)


def in_topic_codec(log: PartitionLog, records: memoryview, header: BatchHeader) -> tuple[Buffer, BatchHeader]:
    """The batch in the codec of the topic's compression.type.

    Raises: ApiError.
    """
    codec = log.config.codec
    if codec is None or codec == header.codec:
        return records, header
    try:
        batch, header = recompress(records, header, codec, log.config.codec_level)
    except CorruptRecordError as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
    check_size(log, header.size)  # the batch may be larger in another codec
    return batch, header
