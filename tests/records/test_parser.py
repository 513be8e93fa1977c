"""Record kernels and record decoder agree on one payload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.record_strategies import KERNELS, TP, record_lists

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns.arrow import COLUMNS
from spark_groupsource.records.columns.header_columns import header_columns
from spark_groupsource.records.columns.record_kernel import Layout, RecordGroup
from spark_groupsource.records.decode import decode_records, records_payload
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import BatchHeader, iter_batches
from spark_groupsource.records.parser import parse_records, record_bounds
from spark_groupsource.records.varint import write_varint

NOW = 1_700_000_000_000
HEADER = BatchHeader(0, 0, 0, 2, 0, 0, 2**31 - 1, NOW, 0, -1, -1, -1, 0, 0, 0)
LAYOUT = Layout(TP, COLUMNS, 0, 1 << 60, 80_000)
# any timestamp is valid if it is not read
WITHOUT_TIMESTAMPS = LAYOUT._replace(columns=("key", "value", "offset", "headers"))
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def payload_of(records):
    batch = encode_batch(records)
    (header,) = iter_batches(batch)
    return bytes(records_payload(batch, header))


def group_of(payload, count, **options):
    headers = header_columns(encode_batch([Record(None, b"", NOW)]), [0])
    headers = headers._replace(record_count=np.array([count]), last_offset_delta=np.array([2**31 - 1]))
    data = np.frombuffer(payload, dtype=np.uint8)
    return RecordGroup(headers, data, np.array([0]), np.array([len(payload)]), **options)


def rows_of(found):
    """The rows that a kernel has read, as the record decoder returns them."""
    times = found.timestamps_us // 1000
    lists = [tuple((each["key"], each["value"]) for each in row or ()) for row in found.headers.to_pylist()]
    return [*zip(found.offsets.tolist(), times.tolist(), found.keys.to_pylist(), found.values.to_pylist(), lists)]


def parsed(kernel, payload, count, layout=LAYOUT):
    found = kernel(group_of(payload, count), layout)
    assert (found.record_count, found.byte_count) == (count, len(payload))
    return rows_of(found)


def by_objects(payload, count):
    batch = encode_batch([Record(None, b"", NOW)])[:61] + payload
    header = HEADER._replace(record_count=count, size=len(batch))
    return [tuple(record) for record in decode_records(batch, header)]


@kernels
@given(records=record_lists(max_size=40))
def test_kernels_agree_with_the_record_decoder(kernel, records):
    payload = payload_of(records)
    expected = [
        (record.offset_delta, record.timestamp_ms - records[0].timestamp_ms + NOW, *record[:2], record.headers)
        for record in records
    ]
    assert parsed(kernel, payload, len(records)) == expected


def assert_same_result(kernel, payload, count):
    try:
        expected = by_objects(payload, count)
    except CorruptRecordError:
        with pytest.raises(CorruptRecordError):
            kernel(group_of(payload, count), WITHOUT_TIMESTAMPS)
    else:
        found = kernel(group_of(payload, count), WITHOUT_TIMESTAMPS)
        rows = rows_of(found._replace(timestamps_us=found.offsets))
        assert [(offset, *rest[1:]) for offset, *rest in rows] == [(offset, *rest[1:]) for offset, *rest in expected]


@kernels
@given(data=st.data())
def test_whole_records_at_the_start_of_a_payload(kernel, data):
    records = data.draw(record_lists(max_size=30)) * data.draw(st.sampled_from([1, 9]))
    payload = payload_of([record._replace(offset_delta=None) for record in records])
    _, ends = record_bounds(np.frombuffer(payload, dtype=np.uint8), len(records))
    cut = data.draw(st.one_of(st.integers(0, len(payload)), st.sampled_from([int(end) + 1 for end in ends])))
    limit = data.draw(st.sampled_from([2, 1000]))
    whole = [int(end) for end in ends if end <= cut][:limit]
    found = kernel(group_of(payload[:cut], limit, is_open=True), LAYOUT)
    assert found.record_count == found.next_offset == len(whole)
    assert found.byte_count == (whole[-1] if whole else 0)
    assert rows_of(found) == parsed(kernel, payload[: found.byte_count], len(whole))
    assert found.header_count == sum(len(record.headers) for record in records[: len(whole)])


@kernels
@given(payload=st.binary(max_size=80), count=st.integers(0, 8))
def test_random_payloads(kernel, payload, count):
    assert_same_result(kernel, payload, count)


@kernels
@given(records=record_lists(), data=st.data())
def test_damaged_records(kernel, records, data):
    payload = bytearray(payload_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 1, 5]))
    assert_same_result(kernel, bytes(payload[: len(payload) - cut]), len(records))


@kernels
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
def test_values_that_contain_records(kernel, value, headers):
    records = [Record(None if i % 3 else b"\0", value, NOW + i, headers) for i in range(200)]
    expected = [(i, record.timestamp_ms, record.key, record.value, headers) for i, record in enumerate(records)]
    assert parsed(kernel, payload_of(records), 200) == expected


def record_bytes(body, attributes=0):
    out = bytearray()
    write_varint(out, len(body) + 1)
    return bytes(out) + bytes([attributes]) + body


@kernels
def test_nonzero_attributes_are_ignored(kernel):
    payload = b"".join(record_bytes(b"\0" + bytes([2 * i]) + b"\1\2v\0", attributes=i) for i in range(60))
    assert [row[0] for row in parsed(kernel, payload, 60)] == list(range(60))


@kernels
def test_a_varint_with_redundant_bytes_is_read(kernel):
    # length 6 in three bytes: no writer produces it, every reader accepts it
    payload = b"\x8c\x80\x00" + b"\0\0\0\1\1\0"
    assert parsed(kernel, payload * 1, 1) == [(0, NOW, None, None, ())]


def test_a_timestamp_delta_wraps_like_a_java_long():
    records = [Record(None, b"", -(2**62)), Record(None, b"", 2**62)]
    fields = parse_records(np.frombuffer(payload_of(records), dtype=np.uint8), 2)
    assert fields.timestamp_delta.tolist() == [0, 2**63 - 2**64]  # wrapped, as Java's long is


@kernels
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
def test_invalid_records_are_corrupt(kernel, payload, count):
    with pytest.raises(CorruptRecordError):
        parsed(kernel, payload, count)


@kernels
def test_an_empty_payload_has_no_records(kernel):
    assert parsed(kernel, b"", 0) == []


def with_count(count):
    out = bytearray()
    write_varint(out, count)
    return bytes(out)


@kernels
@pytest.mark.parametrize("records", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_many_headers_are_read_in_bounded_time(kernel, records):
    count = 60_000
    deltas = (b"\0\0%c\1\1" % (2 * number) for number in range(records))
    payload = b"".join(record_bytes(delta[1:] + with_count(count) + b"\0\1" * count) for delta in deltas)
    found = kernel(group_of(payload, records), LAYOUT._replace(columns=("offset",)))
    assert found.offsets.tolist() == list(range(records))
    if records == 1:
        (headers,) = kernel(group_of(payload, 1), LAYOUT).headers
        assert len(headers) == count and headers.values.field("value").null_count == count


@example(1)
@given(st.integers(1, 300))
def test_bounds_of_equal_records_are_found(count):
    payload = np.frombuffer(record_bytes(b"\0\0\1\x08abcd\0") * count, dtype=np.uint8)
    begin, end = record_bounds(payload, count)
    assert (end - begin == 10).all() and end[-1] == payload.size
