"""Record parsers and record decoder agree, on valid and corrupt payloads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.record_strategies import PARSERS, record_lists

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compiled_parser import parse_leading_records as compiled_leading
from spark_groupsource.records.decode import decode_records, records_payload
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import BatchHeader, iter_batches
from spark_groupsource.records.parser import parse_headers, parse_leading_records, parse_records, record_bounds
from spark_groupsource.records.varint import write_varint

NOW = 1_700_000_000_000
HEADER = BatchHeader(0, 0, 0, 2, 0, 0, 2**31 - 1, NOW, 0, -1, -1, -1, 0, 0, 0)
parsers = pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)


def payload_of(records):
    batch = encode_batch(records)
    (header,) = iter_batches(batch)
    return bytes(records_payload(batch, header))


def parsed(parse, payload, count):
    """The records at the positions that the parser found, as the record decoder returns them."""
    fields = parse(np.frombuffer(payload, dtype=np.uint8), count)
    headers = parse_headers(np.frombuffer(payload, dtype=np.uint8), fields)

    def cut(start, length):
        return None if length < 0 else payload[start : start + length]

    found = [[] for _ in range(count)]
    for record, key_start, key_length, value_start, value_length in zip(*(column.tolist() for column in headers)):
        found[record].append(
            (cut(key_start, key_length).decode("utf-8", "replace"), cut(value_start, value_length))
        )
    return [
        (row[1], NOW + row[0], cut(row[2], row[3]), cut(row[4], row[5]), tuple(found[record]))
        for record, row in enumerate(zip(*(field.tolist() for field in fields)))
    ]


def by_objects(payload, count):
    batch = encode_batch([Record(None, b"", NOW)])[:61] + payload
    header = HEADER._replace(record_count=count, size=len(batch))
    return [tuple(record) for record in decode_records(batch, header)]


@parsers
@given(records=record_lists(max_size=40))
def test_parsers_agree_with_the_record_decoder(parse, records):
    payload = payload_of(records)
    expected = [
        (record.offset_delta, record.timestamp_ms - records[0].timestamp_ms + NOW, *record[:2], record.headers)
        for record in records
    ]
    assert parsed(parse, payload, len(records)) == expected


def assert_same_result(parse, payload, count):
    try:
        expected = by_objects(payload, count)
    except CorruptRecordError:
        # the record decoder checks that offset deltas increase; for parsed positions `arrow` does
        try:
            found = parsed(parse, payload, count)
        except CorruptRecordError:
            return
        deltas = [record[0] for record in found]
        assert deltas != sorted(set(deltas)) or min(deltas) < 0
    else:
        found = parsed(parse, payload, count)
        assert [(delta, *rest[1:]) for delta, *rest in found] == [(delta, *rest[1:]) for delta, *rest in expected]


@pytest.mark.parametrize("parse", [parse_leading_records, compiled_leading], ids=["numpy", "numba"])
@given(data=st.data())
def test_whole_records_at_the_start_of_a_payload(parse, data):
    records, repeat = data.draw(record_lists(max_size=30)), data.draw(st.sampled_from([1, 9]))
    payload, count = payload_of(records) * repeat, len(records) * repeat
    _, ends = record_bounds(np.frombuffer(payload, dtype=np.uint8), count)
    cut = data.draw(st.one_of(st.integers(0, len(payload)), st.sampled_from([int(end) + 1 for end in ends])))
    whole = [int(end) for end in ends if end <= cut]
    limit = data.draw(st.sampled_from([2, 1000]))
    fields = parse(np.frombuffer(payload[:cut], dtype=np.uint8), limit)
    expected = whole[:limit]
    strict = parse_records(np.frombuffer(payload[: expected[-1] if expected else 0], dtype=np.uint8), len(expected))
    assert [column.tolist() for column in fields] == [column.tolist() for column in strict]


@parsers
@given(payload=st.binary(max_size=80), count=st.integers(0, 8))
def test_random_payloads(parse, payload, count):
    assert_same_result(parse, payload, count)


@parsers
@given(records=record_lists(), data=st.data())
def test_damaged_records(parse, records, data):
    payload = bytearray(payload_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 1, 5]))
    assert_same_result(parse, bytes(payload[: len(payload) - cut]), len(records))


@parsers
@pytest.mark.parametrize(
    "value",
    [
        b"\0" * 500,
        bytes(range(256)),
        b"\0\x7e" * 60,
        payload_of([Record(None, b"v" * 20, NOW)] * 50),
        payload_of([Record(None, b"", NOW)] * 300),
        None,
        b"",
    ],
    ids=["zeros", "every byte", "zeros apart", "records inside", "small records inside", "null", "empty"],
)
@pytest.mark.parametrize("headers", [(), (("h", b"\x80\x80"),)], ids=["plain", "headers"])
def test_values_that_contain_records(parse, value, headers):
    records = [Record(None if i % 3 else b"\0", value, NOW + i, headers) for i in range(200)]
    expected = [(i, record.timestamp_ms, record.key, record.value, headers) for i, record in enumerate(records)]
    assert parsed(parse, payload_of(records), 200) == expected


def record_bytes(body, attributes=0):
    out = bytearray()
    write_varint(out, len(body) + 1)
    return bytes(out) + bytes([attributes]) + body


@parsers
def test_nonzero_attributes_are_ignored(parse):
    payload = b"".join(record_bytes(b"\0" + bytes([2 * i]) + b"\1\2v\0", attributes=i) for i in range(60))
    assert [row[0] for row in parsed(parse, payload, 60)] == list(range(60))


@parsers
def test_a_varint_with_redundant_bytes_is_read(parse):
    # length 6 in three bytes: no writer produces it, every reader accepts it
    payload = b"\x8c\x80\x00" + b"\0\0\0\1\1\0"
    assert parsed(parse, payload * 1, 1) == [(0, NOW, None, None, ())]


@parsers
def test_a_timestamp_delta_wraps_like_a_java_long(parse):
    records = [Record(None, b"", -(2**62)), Record(None, b"", 2**62)]
    fields = parse(np.frombuffer(payload_of(records), dtype=np.uint8), 2)
    assert fields.timestamp_delta.tolist() == [0, 2**63 - 2**64]  # wrapped, as Java's long is


@parsers
@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 1),
        (b"\x0c\0\0\0\1\1\0", 0),
        (b"\x0c\0\0\0\1\1\0", 2),
        (b"\x0a\0\0\0\1\1", 1),  # no header count
        (b"\x0b\0\0\0\1\1\0", 1),  # negative length
        (b"\xfe\xff\xff\xff\x0f\0\0\0\1\1\0", 1),  # 2 GB
        (b"\xff\xff\xff\xff\xff\xff\0\0\0\1\1\0", 1),  # a length that does not end
        (b"\x0c\0\0\0\3\1\0", 1),  # key length -2
        (b"\x0c\0\0\0\1\x04\0", 1),  # value longer than the record
        (b"\x0c\0\0\0\1\1\1", 1),  # header count -1
        (b"\x0c\0\0\0\1\1\x02", 1),  # a header count above the length
        (b"\x10\0\0\0\1\1\x02\1\1", 1),  # a header without key
        (b"\x12\0\0\0\1\1\x02\0\1\0", 1),  # a byte after the headers
        (b"\x0e\0\0\0\1\1\0\0", 1),  # a byte after the record
        (b"\x0c\0\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\0\0\1\1\0", 1),
    ],
)
def test_invalid_records_are_corrupt(parse, payload, count):
    with pytest.raises(CorruptRecordError):
        parsed(parse, payload, count)


@parsers
def test_an_empty_payload_has_no_records(parse):
    assert parsed(parse, b"", 0) == []


def with_headers(count):
    out = bytearray(b"\0\0\1\1")
    write_varint(out, count)
    return bytes(out)


@parsers
@pytest.mark.parametrize("records", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_many_headers_are_parsed_in_bounded_time(parse, records):
    count = 60_000
    payload = record_bytes(with_headers(count) + b"\0\1" * count) * records
    fields = parse(np.frombuffer(payload, dtype=np.uint8), records)
    headers = parse_headers(np.frombuffer(payload, dtype=np.uint8), fields)
    assert len(headers.record) == records * count and (headers.value_length == -1).all()


@example(1)
@given(st.integers(1, 300))
def test_bounds_of_equal_records_are_found(count):
    payload = np.frombuffer(record_bytes(b"\0\0\1\x08abcd\0") * count, dtype=np.uint8)
    begin, end = record_bounds(payload, count)
    assert (end - begin == 10).all() and end[-1] == payload.size
