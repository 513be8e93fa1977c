"""Encoding and decoding of record batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.record_strategies import record_lists

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.decode import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    control_type,
    decode_records,
    records_bytes,
    records_payload,
)
from spark_groupsource.records.encode import Record, assign_offset, control_key, encode_batch
from spark_groupsource.records.header import HEADER_BYTES, check_crc, iter_batches, iter_headers, last_batch
from spark_groupsource.records.varint import read_varint, write_varint

NOW = 1_700_000_000_000
ONE = encode_batch([Record(b"k", b"v", NOW)], base_offset=5)


def only(buffer):
    (header,) = iter_batches(buffer)
    return header


@given(record_lists(), st.integers(0, 4), st.integers(0, 1 << 50))
def test_records_round_trip(records, codec, base_offset):
    batch = encode_batch(records, base_offset=base_offset, codec=codec)
    header = only(batch)
    check_crc(batch, header)
    assert header.codec == codec and header.size == len(batch) and header.record_count == len(records)
    assert header.base_offset == base_offset
    assert header.last_offset == base_offset + records[-1].offset_delta == header.next_offset - 1
    found = [(r.offset - base_offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(batch, header)]
    assert found == [(r.offset_delta, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


def test_attributes_round_trip():
    batch = encode_batch(
        [Record(None, b"v", NOW), Record(None, b"w", NOW + 9)],
        timestamp_type=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
        leader_epoch=4,
    )
    header = only(batch)
    assert header.is_log_append_time and header.is_transactional and not header.is_control
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 11)
    assert header.partition_leader_epoch == 4
    assert [record.timestamp_ms for record in decode_records(batch, header)] == [NOW + 9, NOW + 9]


@pytest.mark.parametrize("kind", [CONTROL_ABORT, CONTROL_COMMIT])
def test_control_type_is_read_from_the_key(kind):
    batch = encode_batch([Record(control_key(kind), b"\0" * 6, NOW)], control=True, transactional=True, producer_id=1)
    assert only(batch).is_control
    assert control_type(batch, only(batch)) == kind


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_control_batch_without_a_control_record_is_corrupt(key):
    batch = encode_batch([Record(key, b"", NOW)], control=True)
    with pytest.raises(CorruptRecordError, match="without a control record"):
        control_type(batch, only(batch))


@pytest.mark.parametrize("cut", range(1, len(ONE) + 1))
def test_an_incomplete_last_batch_is_ignored(cut):
    assert [header.base_offset for header in iter_batches(ONE + ONE[:-cut])] == [5]


def test_iteration_starts_at_a_position():
    second = encode_batch([Record(b"k", b"v", NOW)], base_offset=6)
    assert [header.position for header in iter_batches(ONE + second, start=len(ONE))] == [len(ONE)]


def test_last_complete_batch():
    second = encode_batch([Record(b"k", b"v", NOW)], base_offset=6)
    for tail in (b"", ONE[:-1], ONE[:11]):
        assert last_batch(ONE + second + tail).base_offset == 6
    assert last_batch(ONE[:-1]) is None and last_batch(b"") is None
    with pytest.raises(CorruptRecordError, match="its length is"):
        last_batch(ONE + second[:8] + b"\0" * 60)


def patched(at, data, batch=ONE):
    return batch[:at] + data + batch[at + len(data) :]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (patched(8, b"\0\0\0\x30"), "its length is 48 bytes, minimum 49"),
        (patched(8, b"\xff\xff\xff\xff"), "its length is -1 bytes"),
        (patched(16, b"\1"), "format version is 1, supported is 2"),
        (patched(0, b"\xff"), "Record batch at offset -"),
        (patched(23, b"\xff"), "last offset delta"),
        (patched(57, bytes(4), patched(23, b"\xff" * 4)), "last offset delta -1, 0 records"),
        (patched(57, b"\xff"), "records"),
        (patched(57, b"\0\0\0\2"), "2 records in 1 offsets"),
    ],
)
def test_invalid_headers_are_corrupt(batch, message):
    with pytest.raises(CorruptRecordError, match=message):
        list(iter_batches(batch))


@given(st.lists(st.tuples(st.integers(0, 3 * len(ONE) - 1), st.integers(0, 255)), max_size=3), st.integers(0, 80))
def test_valid_headers_before_an_invalid_one_are_found(changes, cut):
    data = bytearray(ONE * 3)
    for at, value in changes:
        data[at] = value
    data = bytes(data[: len(data) - cut])
    expected, is_corrupt = [], False
    try:
        for header in iter_headers(data):
            is_valid = 0 <= header.record_count <= header.last_offset_delta + 1 and header.last_offset_delta >= 0
            if not is_valid or header.base_offset < 0:
                raise CorruptRecordError("")
            expected.append(header)
    except CorruptRecordError:
        is_corrupt = True
    found = []
    try:
        found.extend(iter_batches(data))
    except CorruptRecordError:
        assert is_corrupt
    else:
        assert not is_corrupt and found == expected


@pytest.mark.parametrize("at", range(21, len(ONE)))
def test_the_checksum_covers_every_byte_after_it(at):
    damaged = patched(at, bytes([ONE[at] ^ 0x40]))
    with pytest.raises(CorruptRecordError, match="offset 5 .* stored CRC|last offset delta|records in"):
        check_crc(damaged, only(damaged))


@pytest.mark.parametrize("size", [10, 1 << 20, (1 << 20) + 1])
def test_the_checksum_is_that_of_the_same_bytes_in_any_buffer(size):
    batch = ONE + encode_batch([Record(None, bytes(size), NOW)])
    for buffer in (batch, bytearray(batch), memoryview(batch)):
        for header in iter_batches(buffer):
            check_crc(buffer, header)


@pytest.mark.parametrize("codec", range(5))
def test_the_bytes_of_records_are_their_payload(codec):
    batch = ONE + encode_batch([Record(b"key", b"v" * 50, NOW)], codec=codec)
    for buffer in (batch, bytearray(batch), memoryview(batch)):
        for header in iter_batches(buffer):
            found = records_bytes(buffer, header)
            assert type(found) is bytes and found == bytes(records_payload(buffer, header))


def test_a_record_count_that_disagrees_with_the_bytes():
    batch = encode_batch([Record(None, b"a", NOW), Record(None, b"b", NOW)])
    for count, message in ((1, "8 bytes after the last record"), (0, "16 bytes after the last record")):
        damaged = patched(57, count.to_bytes(4, "big"), batch)
        with pytest.raises(CorruptRecordError, match=message):
            decode_records(damaged, only(damaged))
    many = patched(57, (10**6).to_bytes(4, "big"), patched(23, (10**6).to_bytes(4, "big"), batch))
    with pytest.raises(CorruptRecordError, match="1000000 records in 16 bytes"):
        decode_records(many, only(many))


@given(st.binary(min_size=1, max_size=60), st.integers(0, 4), st.integers(0, 3))
def test_random_payloads_are_corrupt_or_decode(payload, codec, count):
    batch = encode_batch([Record(None, b"x", NOW)])
    header = patched(57, count.to_bytes(4, "big"), patched(23, b"\0\0\0\x09", batch))[:HEADER_BYTES]
    damaged = bytearray(header + payload)
    damaged[8:12] = (len(damaged) - 12).to_bytes(4, "big")
    damaged[22] = codec
    try:
        assert len(list(decode_records(damaged, only(damaged)))) == count
    except CorruptRecordError:
        pass


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value):
    out = bytearray()
    write_varint(out, value)
    assert read_varint(bytes(out), 0, 10) == (value, len(out))


def test_varints_without_an_end_are_rejected():
    with pytest.raises(ValueError, match="longer than 5 bytes"):
        read_varint(b"\x80" * 5 + b"\1", 0)
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)


@pytest.mark.parametrize("log_append_time_ms", [None, NOW + 5])
def test_assign_offset_sets_offset_epoch_and_append_time(log_append_time_ms):
    records = [Record(b"k", b"v", NOW, (("h", b"1"),)), Record(None, None, NOW + 1)]
    log = bytearray(encode_batch(records, codec=3) + encode_batch(records))
    for base_offset, header in zip((100, 102), iter_batches(log)):
        assign_offset(log, header, base_offset, 7, log_append_time_ms)
    found = []
    for header in iter_batches(log):
        check_crc(log, header)
        assert header.partition_leader_epoch == 7
        assert header.is_log_append_time == (log_append_time_ms is not None)
        found += [(record.offset, record.timestamp_ms, record.value) for record in decode_records(log, header)]
    times = (NOW, NOW + 1) if log_append_time_ms is None else (log_append_time_ms, log_append_time_ms)
    assert found == [(100 + i, times[i % 2], (b"v", None)[i % 2]) for i in range(4)]


def test_empty_batches_and_decreasing_deltas_are_not_encoded():
    with pytest.raises(ValueError, match="without records"):
        encode_batch([])
    with pytest.raises(ValueError, match="must increase"):
        encode_batch([Record(None, b"", NOW, (), 3), Record(None, b"", NOW, (), 3)])
