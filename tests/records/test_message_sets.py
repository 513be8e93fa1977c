"""Messages of formats v0 and v1 as record batches.

The other writer is that of kafka-python.
"""

import struct
import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from spark_groupsource.client.records.partition_fetch import PartitionState
from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compression import compress
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    OldFormatError,
    check_crc,
    iter_batches,
    last_batch,
)
from spark_groupsource.records.message_sets import with_record_batches
from spark_groupsource.wire.messages import FetchResponse

NOW = 1_700_000_000_000
ROWS = [(b"a", b"one"), (None, b"two"), (b"c", None), (b"", b"")]
ATTRIBUTES_AT = 17


def message_set(magic, codec=0, rows=ROWS, base=0):
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for number, (key, value) in enumerate(rows):
        builder.append(base + number, NOW + number if magic else None, key, value)
    # the broker gives a compressed message the offset of its last one
    last = base + len(rows) - 1
    data = bytes(builder.build())
    return struct.pack(">q", last) + data[8:] if codec else data


def message(magic, offset, key, value, *, attributes=0, timestamp=NOW):
    fields = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        fields += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(fields) + 4, zlib.crc32(fields)) + fields


def records(data):
    """Returns (offset, timestamp, key, value) of each record; checksums are verified."""
    converted = with_record_batches(memoryview(data))
    found = []
    for header in iter_batches(converted):
        check_crc(converted, header)
        found += [(r.offset, r.timestamp_ms, r.key, r.value) for r in decode_records(converted, header)]
    return found


def expected(magic, rows=ROWS, base=0):
    return [(base + n, NOW + n if magic else -1, key, value) for n, (key, value) in enumerate(rows)]


# kafka-python needs other packages for snappy, and for LZ4 in format v0
@pytest.mark.parametrize("magic, codec", [(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)])
def test_messages_of_each_codec(magic, codec):
    data = message_set(magic, codec)
    assert records(data) == expected(magic)
    batches = list(iter_batches(with_record_batches(memoryview(data))))
    assert [(b.codec, b.partition_leader_epoch) for b in batches] == [(3 if codec else 0, -1)]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_in_snappy(magic):
    inner = message_set(magic)
    assert records(message(magic, 3, None, compress(2, inner), attributes=2)) == expected(magic)


@pytest.mark.parametrize("has_content_size", [False, True])
def test_header_checksum_of_lz4_in_format_v0_is_ignored(has_content_size):
    """Java's producers computed it over other bytes (KAFKA-3160)."""
    frame = lz4.frame.compress(message_set(0), store_size=has_content_size)
    checksum_at = 14 if has_content_size else 6
    old = frame[:checksum_at] + bytes([frame[checksum_at] ^ 0x55]) + frame[checksum_at + 1 :]
    for each in (frame, old):
        assert records(message(0, 3, None, each, attributes=3)) == expected(0)
    with pytest.raises(CorruptRecordError, match="Cannot decompress"):
        records(message(1, 3, None, old, attributes=3))


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_incomplete_last_message_is_dropped(cut):
    data = message_set(1) + message(1, 4, b"k" * 20, b"v")
    assert records(data[:-cut]) == expected(1)


def test_relative_offsets_end_at_the_offset_of_the_wrapper():
    inner = b"".join(message(1, relative, None, b"%d" % relative) for relative in (0, 3, 4))
    data = message(1, 104, None, compress(1, inner), attributes=1)
    assert [row[0] for row in records(data)] == [100, 103, 104]


def test_absolute_offsets_of_format_v0_are_kept():
    inner = b"".join(message(0, offset, None, b"v") for offset in (7, 9))
    assert [row[0] for row in records(message(0, 9, None, compress(2, inner), attributes=2))] == [7, 9]


def test_log_append_time_is_that_of_the_wrapper_or_of_each_message():
    inner = b"".join(message(1, relative, None, b"v", timestamp=5) for relative in (0, 1))
    data = message(1, 1, None, compress(1, inner), attributes=0x09, timestamp=NOW)
    data += message(1, 2, None, b"v", attributes=0x08, timestamp=NOW + 1)
    data += message(1, 3, None, b"v", attributes=0x08, timestamp=NOW + 2)
    data += message(1, 4, None, b"v", timestamp=NOW - 9)
    assert [row[1] for row in records(data)] == [NOW, NOW, NOW + 1, NOW + 2, NOW - 9]
    kinds = [header.timestamp_type for header in iter_batches(with_record_batches(memoryview(data)))]
    assert kinds == [LOG_APPEND_TIME, LOG_APPEND_TIME, LOG_APPEND_TIME, CREATE_TIME]


@pytest.mark.parametrize("codec", (0, 1))
def test_format_v0_has_no_timestamp_type(codec):
    data = message_set(1, codec) + message_set(0, codec, base=4)
    converted = with_record_batches(memoryview(data))
    assert [header.timestamp_type for header in iter_batches(converted)] == [CREATE_TIME, NO_TIMESTAMP_TYPE]


@pytest.mark.parametrize("offsets", [(0, 2**31), (5, 2**40)])
def test_gaps_of_compaction_begin_a_new_batch_where_a_delta_would_overflow(offsets):
    assert [row[0] for row in records(b"".join(message(1, at, None, b"v") for at in offsets))] == list(offsets)


def test_many_messages_are_several_batches():
    data = b"".join(message(1, at, None, b"%d" % at) for at in range(2_500))
    assert [row[3] for row in records(data)] == [b"%d" % at for at in range(2_500)]
    assert len(list(iter_batches(with_record_batches(memoryview(data))))) == 3


def test_record_batches_among_messages_are_copied():
    batch = encode_batch([Record(b"k", b"v", NOW)], base_offset=4, leader_epoch=3)
    data = message_set(0) + batch + message_set(1, base=5)
    assert batch in bytes(with_record_batches(memoryview(data)))
    assert [row[0] for row in records(data)] == list(range(9))


@pytest.mark.parametrize(
    "data, error",
    [
        (message(1, 7, b"k", b"v")[:-1] + b"w", "offset 7 .* stored CRC"),
        (message(1, 7, b"k", b"v", attributes=5), "codec 5 has no messages"),
        (message(1, 7, None, None, attributes=1), "codec 1 has no messages"),
        (message(1, 7, None, b"not gzip at all", attributes=1), "offset 7 .*Cannot decompress"),
        (message(1, 7, None, compress(1, b""), attributes=1), "incomplete or of another format"),
        (message(1, 7, None, compress(1, message(0, 0, None, b"")), attributes=1), "incomplete or of another format"),
        (message(1, 7, None, compress(1, message(1, 0, None, b"")[:-1]), attributes=1), "incomplete or of another"),
        (message(1, 7, None, b"v") + message(1, 7, None, b"v"), "do not increase"),
        (message(3, 7, None, b"v"), "format version is 3, supported are 0 to 2"),
        (struct.pack(">qiI", 7, 13, 0) + bytes(9), "length is 13 bytes, minimum 14"),
    ],
)
def test_invalid_messages_are_corrupt(data, error):
    with pytest.raises(CorruptRecordError, match=error):
        records(data)


@pytest.mark.parametrize("at", range(12, 40))
@pytest.mark.parametrize("magic", [0, 1])
def test_each_byte_after_the_length_is_checked(magic, at):
    data = message(magic, 7, b"key", b"value" * 4)
    damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
    with pytest.raises(CorruptRecordError, match="offset 7"):
        records(damaged)


@given(st.binary(max_size=80), st.integers(0, 1), st.integers(0, 15))
def test_random_messages_are_corrupt_or_converted(payload, magic, attributes):
    fields = struct.pack(">bb", magic, attributes) + payload
    data = struct.pack(">qiI", 3, len(fields) + 4, zlib.crc32(fields)) + fields
    try:
        records(data)
    except CorruptRecordError:
        pass


def test_fetched_messages_advance_the_position():
    row = FetchResponse.FetchableTopicResponse.PartitionData
    state = PartitionState(TopicPartition("t", 0), 2, 10)
    data = row(partition_index=0, error_code=0, high_watermark=9, records=message_set(1, 1))
    block = state.accept(data)
    assert block is not None and block.next_offset == state.position == 4
    assert last_batch(block.data).last_offset == 3


def test_other_readers_name_the_format():
    for magic in (0, 1):
        with pytest.raises(OldFormatError, match=f"format version is {magic}, supported is 2"):
            list(iter_batches(message_set(magic)))
