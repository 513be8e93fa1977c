from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import record_lists

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    HEADER_BYTES,
    Record,
    assign_offsets,
    check_crc,
    control_key,
    control_type,
    decode_records,
    encode_batch,
    iter_batches,
    last_batch,
    read_varint,
    write_varint,
)

NOW = 1_700_000_000_000
ONE = encode_batch([Record(b"k", b"v", NOW)], base_offset=5)


def only(buffer):
    (header,) = iter_batches(buffer)
    return header


@given(record_lists(), st.integers(0, 4), st.integers(0, 1 << 50))
def test_records_come_back(records, codec, base_offset):
    batch = encode_batch(records, base_offset=base_offset, codec=codec)
    header = only(batch)
    check_crc(batch, header)
    assert header.codec == codec and header.size == len(batch) and header.record_count == len(records)
    assert header.base_offset == base_offset
    assert header.last_offset == base_offset + records[-1].offset_delta == header.next_offset - 1
    found = [(r.offset - base_offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(batch, header)]
    assert found == [(r.offset_delta, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


def test_attributes():
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
    assert header.log_append_time and header.is_transactional and not header.is_control
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 11)
    assert header.partition_leader_epoch == 4
    assert [record.timestamp_ms for record in decode_records(batch, header)] == [NOW + 9, NOW + 9]


@pytest.mark.parametrize("kind", [CONTROL_ABORT, CONTROL_COMMIT])
def test_control_batches(kind):
    batch = encode_batch([Record(control_key(kind), b"\0" * 6, NOW)], control=True, transactional=True, producer_id=1)
    assert only(batch).is_control
    assert control_type(batch, only(batch)) == kind


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_control_batch_without_a_control_record(key):
    batch = encode_batch([Record(key, b"", NOW)], control=True)
    with pytest.raises(CorruptRecordError, match="no control record"):
        control_type(batch, only(batch))


@pytest.mark.parametrize("cut", range(1, len(ONE) + 1))
def test_a_last_batch_that_is_cut_off_ends_the_walk(cut):
    assert [header.base_offset for header in iter_batches(ONE + ONE[:-cut])] == [5]


def test_walk_from_a_position():
    second = encode_batch([Record(b"k", b"v", NOW)], base_offset=6)
    assert [header.position for header in iter_batches(ONE + second, start=len(ONE))] == [len(ONE)]


def test_the_last_whole_batch():
    second = encode_batch([Record(b"k", b"v", NOW)], base_offset=6)
    for tail in (b"", ONE[:-1], ONE[:11]):
        assert last_batch(ONE + second + tail).base_offset == 6
    assert last_batch(ONE[:-1]) is None and last_batch(b"") is None
    with pytest.raises(CorruptRecordError, match="claims a length"):
        last_batch(ONE + second[:8] + b"\0" * 60)


def patched(at, data, batch=ONE):
    return batch[:at] + data + batch[at + len(data) :]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (patched(8, b"\0\0\0\x30"), "at least 49 are needed"),
        (patched(8, b"\xff\xff\xff\xff"), "claims a length of -1"),
        (patched(16, b"\1"), "format version 1; only version 2"),
        (patched(0, b"\xff"), "claims base offset"),
        (patched(23, b"\xff"), "last offset delta"),
        (patched(57, b"\xff"), "records"),
        (patched(57, b"\0\0\0\2"), "2 records in 1 offsets"),
    ],
)
def test_senseless_headers(batch, message):
    with pytest.raises(CorruptRecordError, match=message):
        list(iter_batches(batch))


@pytest.mark.parametrize("at", range(21, len(ONE)))
def test_every_byte_behind_the_checksum_is_covered(at):
    damaged = patched(at, bytes([ONE[at] ^ 0x40]))
    with pytest.raises(CorruptRecordError, match="offset 5 carries checksum|claims"):
        check_crc(damaged, only(damaged))


def test_a_record_count_that_disagrees_with_the_bytes():
    batch = encode_batch([Record(None, b"a", NOW), Record(None, b"b", NOW)])
    for count, message in ((1, "8 bytes are left over"), (0, "16 bytes are left over")):
        damaged = patched(57, count.to_bytes(4, "big"), batch)
        with pytest.raises(CorruptRecordError, match=message):
            decode_records(damaged, only(damaged))
    claims_many = patched(57, (10**6).to_bytes(4, "big"), patched(23, (10**6).to_bytes(4, "big"), batch))
    with pytest.raises(CorruptRecordError, match="1000000 records in 16 bytes"):
        decode_records(claims_many, only(claims_many))


@given(st.binary(min_size=1, max_size=60), st.integers(0, 4), st.integers(0, 3))
def test_senseless_records_are_corrupt(payload, codec, count):
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
def test_varints(value):
    out = bytearray()
    write_varint(out, value)
    assert read_varint(bytes(out), 0, 10) == (value, len(out))


def test_varints_that_do_not_end():
    with pytest.raises(ValueError, match="longer than 5 bytes"):
        read_varint(b"\x80" * 5 + b"\1", 0)
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)


@pytest.mark.parametrize("log_append_time_ms", [None, NOW + 5])
def test_assign_offsets(log_append_time_ms):
    records = [Record(b"k", b"v", NOW, (("h", b"1"),)), Record(None, None, NOW + 1)]
    log = bytearray(encode_batch(records, codec=3) + encode_batch(records))
    assert assign_offsets(log, 100, 7, log_append_time_ms) == 104
    found = []
    for header in iter_batches(log):
        check_crc(log, header)
        assert header.partition_leader_epoch == 7
        assert header.log_append_time == (log_append_time_ms is not None)
        found += [(record.offset, record.timestamp_ms, record.value) for record in decode_records(log, header)]
    times = (NOW, NOW + 1) if log_append_time_ms is None else (log_append_time_ms, log_append_time_ms)
    assert found == [(100 + i, times[i % 2], (b"v", None)[i % 2]) for i in range(4)]


def test_offsets_are_assigned_to_whole_batches_only():
    with pytest.raises(CorruptRecordError, match="not a whole record batch"):
        assign_offsets(bytearray(ONE + ONE[:-1]), 0, 0)


def test_what_cannot_be_encoded():
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])
    with pytest.raises(ValueError, match="must rise"):
        encode_batch([Record(None, b"", NOW, (), 3), Record(None, b"", NOW, (), 3)])
