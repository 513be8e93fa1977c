"""Validation of produced batches as by Kafka's LogValidator."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.log_validator import (
    RejectedBatchError,
    ValidatedBatch,
    begin_validation,
    check_format,
)
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.common.coroutines import begin, run_at_once
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.records import validation
from spark_groupsource.records.compression import CODECS, compress
from spark_groupsource.records.decode import decode_records, records_payload
from spark_groupsource.records.encode import Record, encode_batch, with_body
from spark_groupsource.records.header import BatchHeader, check_crc, iter_batches
from spark_groupsource.records.varint import write_varint

NOW = 1_700_000_000_000
DAY = 86_400_000
BOUNDED = TopicConfig(message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=1_000)
COMPACTED = TopicConfig(cleanup_policy=("compact",))
BOUNDED_COMPACTED = TopicConfig(
    cleanup_policy=("compact",), message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=1_000
)
APPEND_TIME = TopicConfig(message_timestamp_type="LogAppendTime")
codecs = pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
# batches of up to 64 records are checked in a loop, larger ones by column
sizes = pytest.mark.parametrize("count", [3, 300], ids=["few", "many"])


def records(count, timestamp_ms=NOW, key=b"k", value=b"hello"):
    return [Record(key, value, timestamp_ms) for _ in range(count)]


def batch(count=3, codec=0, **options):
    return encode_batch(records(count), codec=codec, **options)


def changed(data: bytes, **fields) -> bytes:
    """The batch with other header fields and a valid checksum."""
    (header,) = iter_batches(data)
    return with_body(header._replace(**fields), data[61:])


def with_payload(data: bytes, payload: bytes, **fields) -> bytes:
    """The batch with other bytes as its decompressed records."""
    (header,) = iter_batches(data)
    return with_body(header._replace(**fields), compress(header.codec, payload))


def validated(data, config=TopicConfig(), now=NOW) -> tuple[bytes, BatchHeader]:
    log = PartitionLog(Path("/nonexistent"), TopicPartition("t", 0), config, FileCache(), print)
    result = begin_validation(log, data, check_format(data), now)
    found, header = result if isinstance(result, ValidatedBatch) else run_at_once(result)
    assert next(iter_batches(found)) == header
    check_crc(found, header)
    return bytes(found), header


def rejected(data, config=TopicConfig(), now=NOW) -> ApiError:
    with pytest.raises(ApiError) as caught:
        validated(data, config, now)
    return caught.value


# --- the header ---


@pytest.mark.conformance("LV-009", "LV-051")
@codecs
@sizes
def test_a_valid_batch_does_not_change(codec, count):
    data = batch(count, codec, producer_id=1324, producer_epoch=10, base_sequence=984, transactional=True)
    assert validated(data) == (data, next(iter_batches(data)))


@pytest.mark.conformance("LV-003")
@codecs
def test_a_batch_without_records_is_rejected(codec):
    empty = changed(batch(1, codec), record_count=0)
    error = rejected(empty)
    assert error.code is ErrorCode.INVALID_RECORD and "0 records" in error.message


@pytest.mark.conformance("LV-001", "LV-011")
@pytest.mark.parametrize("last_offset_delta, count", [(0, 3), (15, 3), (-3, 3), (2**31 - 1, 3), (2, -1), (2, 0)])
@codecs
def test_record_count_and_offsets_must_agree(codec, last_offset_delta, count):
    error = rejected(changed(batch(3, codec), last_offset_delta=last_offset_delta, record_count=count))
    assert error.code is ErrorCode.INVALID_RECORD and "records for the offsets" in error.message


@pytest.mark.conformance("LV-012")
@pytest.mark.parametrize("count", [1, 2, 4, 6, 1000, 2**31 - 1])
@codecs
def test_the_record_count_must_be_that_of_the_records(codec, count):
    data = changed(batch(3, codec), last_offset_delta=count - 1, record_count=count)
    assert rejected(data).code is ErrorCode.INVALID_RECORD


@pytest.mark.conformance("LV-010")
def test_a_record_count_that_matches_is_accepted():
    data = changed(batch(3), last_offset_delta=2, record_count=3)
    assert validated(data)[0] == data


@pytest.mark.conformance("LV-002")
@codecs
def test_one_batch_per_partition(codec):
    error = rejected(batch(1, codec) + batch(2, codec))
    assert error.code is ErrorCode.INVALID_RECORD and "exactly one whole record batch" in error.message


@pytest.mark.conformance("LV-016")
@codecs
def test_a_wrong_checksum_is_corrupt(codec):
    data = bytearray(batch(3, codec))
    data[-1] ^= 1
    assert rejected(data).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.conformance("LV-017")
@codecs
def test_a_producer_id_needs_a_sequence(codec):
    error = rejected(batch(3, codec, producer_id=1234, producer_epoch=0, base_sequence=-1))
    assert error.code is ErrorCode.INVALID_RECORD and "base sequence" in error.message


@pytest.mark.conformance("LV-030")
@codecs
def test_control_records_of_a_producer_are_rejected(codec):
    data = batch(1, codec, control=True, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    error = rejected(data)
    assert error.code is ErrorCode.INVALID_RECORD and "control records" in error.message


def test_the_base_offset_must_be_0():
    error = rejected(encode_batch(records(1), base_offset=7))
    assert error.code is ErrorCode.INVALID_RECORD and "it is 7" in error.message


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_rejected(codec):
    assert rejected(changed(batch(1), attributes=codec)).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# --- the records ---


INVALID = {
    "garbage": b"\xa5" * 400,
    "zeros": b"\0" * 400,
    "nothing": b"",
    "cut": b"\x14\0\0\0\x02k\x08ab",
    "a field beyond the record": b"\x10\0\0\0\x02k\x7eb\0",
    "a negative header count": b"\x0e\0\0\0\x02k\1\1",
    "a header without key": b"\x14\0\0\0\x02k\1\2\1\2a",
    "bytes after the headers": b"\x10\0\0\0\x02k\1\0\0",
    "a record of 2 GB": b"\xfe\xff\xff\xff\x0f\0\0\0\x02k\1\0",
}


@pytest.mark.parametrize("payload", INVALID.values(), ids=INVALID)
@codecs
@sizes
def test_invalid_records_are_rejected(codec, count, payload):
    valid = batch(count)
    (header,) = iter_batches(valid)
    before = bytes(records_payload(valid, header))[: -(len(valid) - 61) // count] if count > 3 else b""
    data = with_payload(batch(count, codec), before + payload)
    assert rejected(data).code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("codec", range(1, len(CODECS)), ids=CODECS[1:])
@sizes
def test_records_that_do_not_decompress_are_rejected(codec, count):
    good = batch(count, codec)
    (header,) = iter_batches(good)
    error = rejected(with_body(header, b"not " + good[61:]))
    assert error.code is ErrorCode.INVALID_RECORD


@codecs
@sizes
@pytest.mark.parametrize("first", [1, 7, 2_000_000_000])
def test_offset_deltas_must_be_contiguous(codec, count, first):
    for deltas in ([*range(first, first + count)], [*range(count - 1), first + count]):
        written = [Record(b"k", b"v", NOW, offset_delta=delta) for delta in deltas]
        error = rejected(changed(encode_batch(written, codec=codec), last_offset_delta=count - 1))
        assert error.code is ErrorCode.INVALID_RECORD and f"are not 0 to {count - 1}" in error.message


@pytest.mark.conformance("LV-018", "LV-045")
@sizes
@codecs
@pytest.mark.conformance("UL-059")
def test_keys_are_required_on_compacted_topics(codec, count):
    missing_keys = {1, count - 1}
    written = [Record(None if index in missing_keys else b"k", b"v", NOW) for index in range(count)]
    data = encode_batch(written, codec=codec)
    error = rejected(data, COMPACTED)
    assert isinstance(error, RejectedBatchError) and error.code is ErrorCode.INVALID_RECORD
    assert set(error.record_errors) == missing_keys and "2 record errors" in error.message
    assert "without key in topic partition t-0" in error.record_errors[1]
    assert validated(data)[0] == data
    assert validated(batch(count, codec), COMPACTED)[0] == batch(count, codec)


def test_a_bounded_number_of_record_errors_is_returned():
    error = rejected(encode_batch([Record(None, b"", NOW)] * 5_000), COMPACTED)
    assert isinstance(error, RejectedBatchError) and len(error.record_errors) == 1_000 and len(error.message) < 500


# --- timestamps ---


@pytest.mark.conformance("LV-015", "LV-019", "LV-044", "LV-047", "LV-048")
@codecs
@sizes
@pytest.mark.parametrize("timestamp_ms", [NOW - 1_001, NOW + 1_001, -2, 0])
def test_timestamps_out_of_range_are_rejected(codec, count, timestamp_ms):
    error = rejected(encode_batch(records(count, timestamp_ms), codec=codec), BOUNDED)
    assert isinstance(error, RejectedBatchError) and error.code is ErrorCode.INVALID_TIMESTAMP
    assert list(error.record_errors) == list(range(count))
    assert f"Timestamp {timestamp_ms} of the record with index 0" in error.record_errors[0]


def test_a_timestamp_beyond_the_range_of_longs_wraps_and_is_rejected():
    data = encode_batch([Record(b"k", b"v", 2**63 - 1), Record(b"k", b"v", -(2**63))])
    assert rejected(data, BOUNDED).code is ErrorCode.INVALID_TIMESTAMP


@sizes
def test_timestamps_at_the_bounds_and_none_are_valid(count):
    for timestamp_ms in (NOW - 1_000, NOW + 1_000, -1):
        data = encode_batch(records(count, timestamp_ms))
        assert validated(data, BOUNDED)[0] == data


@pytest.mark.conformance("LV-046")
@sizes
def test_an_invalid_timestamp_decides_the_code_of_several_errors(count):
    written = records(count)
    written[0] = Record(None, b"", NOW)
    written[2] = Record(b"k", b"", NOW - 5_000)
    error = rejected(encode_batch(written), BOUNDED_COMPACTED)
    assert isinstance(error, RejectedBatchError) and error.code is ErrorCode.INVALID_TIMESTAMP
    assert list(error.record_errors) == [0, 2]


@pytest.mark.conformance("LV-009", "LV-051")
@codecs
@sizes
def test_the_largest_timestamp_is_that_of_the_records(codec, count):
    data = batch(count, codec)
    for wrong in (NOW + 10 * DAY, 0, -1):
        assert validated(changed(data, max_timestamp=wrong))[0] == data


@codecs
def test_log_append_time_ignores_the_timestamps_of_the_producer(codec):
    data = encode_batch(records(3, 1_234), codec=codec)
    assert validated(data, APPEND_TIME)[0] == data


def test_a_producer_must_not_set_log_append_time():
    data = batch(3, timestamp_type=1)
    assert rejected(data, APPEND_TIME).code is ErrorCode.INVALID_TIMESTAMP
    # as in Kafka, the type is corrected where the topic has the timestamps of producers
    assert validated(data)[0] == batch(3)


# --- codecs and sizes ---


@pytest.mark.conformance("LV-007", "LV-050")
@codecs
@sizes
def test_another_codec_of_the_topic_recompresses(codec, count):
    written = [Record(b"k", b"v", NOW + index % 2) for index in range(count)]
    source = encode_batch(written, codec=codec, producer_id=1324, producer_epoch=10, base_sequence=984)
    for target, name in enumerate(CODECS):
        if target == codec:
            continue
        found, header = validated(source, TopicConfig(compression_type="uncompressed" if name == "none" else name))
        assert header.codec == target and header.max_timestamp == NOW + 1
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1324, 10, 984)
        (before,) = iter_batches(source)
        assert list(decode_records(found, header)) == list(decode_records(source, before))


@pytest.mark.conformance("LV-049")
def test_another_level_of_the_same_codec_does_not_recompress():
    data = encode_batch([Record(None, b"some" * 256, -1), Record(None, b"data" * 256, -1)], codec=1)
    assert validated(data, TopicConfig(compression_type="gzip", compression_gzip_level=1))[0] == data


@codecs
def test_a_batch_above_the_limit_is_too_large_before_its_content_is_checked(codec):
    data = batch(codec=codec)
    assert validated(data, TopicConfig(max_message_bytes=len(data)))[0] == data
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    assert rejected(damaged, TopicConfig(max_message_bytes=len(data) - 1)).code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_another_codec_makes_too_large_is_rejected():
    data = encode_batch(records(10, value=b"v" * 1_000), codec=4)
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=10_000)
    assert len(data) < 1_000 and rejected(data, config).code is ErrorCode.MESSAGE_TOO_LARGE
    larger = TopicConfig(compression_type="uncompressed", max_message_bytes=11_000)
    assert len(validated(data, larger)[0]) > 10_000


def bomb(payload: bytes, count: int) -> bytes:
    (header,) = iter_batches(batch(1))
    fields = {"attributes": 4, "record_count": count, "last_offset_delta": count - 1}
    return with_body(header._replace(**fields), compress(4, payload))


def test_a_record_that_expands_beyond_the_limit_is_too_large():
    data = bomb(b"\xfe\xff\xff\x3f" + b"\0" * 70_000_000, 1)
    assert len(data) < 20_000
    error = rejected(data)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE and "exceeds the limit of 67108864 bytes" in error.message


def test_headers_that_expand_beyond_the_limit_are_too_large(monkeypatch):
    count = 20_000
    monkeypatch.setattr(validation, "_FREE_HEADERS", 2 * count - 1)
    two = bytearray()
    for offset_delta in (b"\0", b"\2"):
        body = bytearray(b"\0\0" + offset_delta + b"\1\1")
        write_varint(body, count)
        body += b"\0\0" * count
        write_varint(two, len(body))
        two += body
    error = rejected(bomb(bytes(two), 2))
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE and f"{2 * count} record headers" in error.message


def test_a_batch_that_expands_is_validated_in_small_steps():
    count = 8_000_000
    one = b"\x0c\0\0\0\1\1\0"
    data = bomb(one * count, count)
    assert len(data) < 50_000
    log = PartitionLog(Path("/nonexistent"), TopicPartition("t", 0), TopicConfig(), FileCache(), print)
    validation = begin_validation(log, data, check_format(data), NOW)
    assert not isinstance(validation, ValidatedBatch)
    for _ in range(20):
        begin(validation, 0)
    validation.close()


# --- after the append ---


def stored(tmp_path, config, *batches):
    """The batches as they are in the log of a partition."""
    log = PartitionLog(tmp_path, TopicPartition("t", 0), config, FileCache(), print)
    log.create()
    partition = Partition(uuid.uuid4(), log, print)
    for data in batches:
        partition.append(data, NOW)
    partition.append_transaction_marker(5, 0, True, 0, NOW)
    data = bytes(log.read(0, 1 << 20))
    return data, list(iter_batches(data))


@pytest.mark.conformance("LV-023", "LV-025", "LV-031")
@pytest.mark.parametrize("compression", ["producer", "gzip"])
@codecs
def test_offsets_are_assigned_from_the_log_end_offset(tmp_path, codec, compression):
    data, headers = stored(tmp_path, TopicConfig(compression_type=compression), batch(3, codec), batch(300, codec))
    offsets = [record.offset for header in headers for record in decode_records(data, header)]
    assert offsets == list(range(304))
    # control batches keep their codec
    assert [header.codec for header in headers] == [codec if compression == "producer" else 1] * 2 + [0]


@pytest.mark.conformance("LV-052", "LV-053", "LV-054")
@pytest.mark.parametrize("compression", ["producer", "gzip"])
@codecs
def test_log_append_time_is_stored(tmp_path, codec, compression):
    config = TopicConfig(compression_type=compression, message_timestamp_type="LogAppendTime")
    data, headers = stored(tmp_path, config, encode_batch(records(3, 1_234), codec=codec))
    for header in headers:
        check_crc(data, header)
        assert header.is_log_append_time and header.max_timestamp == NOW
        assert {record.timestamp_ms for record in decode_records(data, header)} == {NOW}
    assert headers[0].codec == (codec if compression == "producer" else 1)
