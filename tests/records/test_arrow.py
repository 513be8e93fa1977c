"""Decoding of fetched record batches into Arrow."""

from __future__ import annotations

import struct
import tracemalloc

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.record_strategies import END, KERNELS, TP, decode, logs, rows_by_columns, rows_by_objects, table

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns import arrow, numpy_kernel, record_groups
from spark_groupsource.records.columns.arrow import (
    COLUMNS,
    AbortedTransaction,
    columns_schema,
    decode_fetched,
    kafka_schema,
)
from spark_groupsource.records.decode import CONTROL_ABORT, CONTROL_COMMIT
from spark_groupsource.records.encode import Record, control_key, encode_batch, with_body
from spark_groupsource.records.header import iter_batches
from spark_groupsource.records.varint import write_varint

NOW = 1_700_000_000_000
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def batch(first, last, *, value=b"v", **options):
    """A batch with the offsets from `first` to `last`."""
    records = [Record(None, value, NOW) for _ in range(first, last + 1)]
    return encode_batch(records, base_offset=first, **options)


def control(offset, kind, producer_id):
    record = Record(control_key(kind), b"\0" * 6, NOW)
    return encode_batch([record], base_offset=offset, control=True, transactional=True, producer_id=producer_id)


def resealed(log, at, data):
    """Returns the batch with bytes replaced and a valid checksum."""
    out = bytearray(log)
    out[at : at + len(data)] = data
    out[17:21] = struct.pack(">I", google_crc32c.value(bytes(out[21:])))
    return bytes(out)


def offsets(block):
    return table(block)["offset"].to_pylist()


@kernels
@given(log=logs(), data=st.data())
@pytest.mark.conformance("FT-021")
def test_arrow_rows_equal_decoded_records(kernel, log, data):
    last = max(header.next_offset for header in iter_batches(log))
    first = next(iter_batches(log)).base_offset
    bounds = st.one_of(st.just(0), st.integers(first, last + 3))
    start, end = data.draw(bounds), data.draw(st.one_of(st.just(END), bounds))
    block = decode(log, start_offset=start, end_offset=end, kernel=kernel, max_rows=data.draw(st.integers(1, 9)))
    expected = rows_by_objects(log, start_offset=start, end_offset=end)
    assert rows_by_columns(block) == expected
    assert block.rows == len(expected)
    assert block.next_offset == max(start, min(last, end))


@given(log=logs(), max_rows=st.integers(1, 9))
def test_arrow_batches_outlive_the_buffer(log, max_rows):
    received = bytearray(log)
    kept = decode(received, max_rows=max_rows)
    received[:] = bytes(len(received))  # as the next response does
    assert rows_by_columns(kept) == rows_by_columns(decode(log, max_rows=max_rows))


@kernels
@given(log=logs(), columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_requested_columns_only(kernel, log, columns):
    block = decode(log, columns=columns, kernel=kernel)
    assert block.batches[0].schema.equals(columns_schema(columns))
    assert table(block, columns).equals(table(decode(log)).select(columns))


@kernels
@given(log=logs(), data=st.data())
def test_complete_batches_of_a_truncated_log_are_decoded(kernel, log, data):
    cut = data.draw(st.integers(0, len(log)))
    whole = [header for header in iter_batches(log) if header.position + header.size <= cut]
    block = decode(log[:cut], kernel=kernel)
    assert block.next_offset == (whole[-1].next_offset if whole else 0)
    assert rows_by_columns(block) == rows_by_objects(log[: sum(header.size for header in whole)])


@kernels
@given(log=logs(), data=st.data())
def test_damaged_logs_raise_corrupt_record_error_only(kernel, log, data):
    damaged = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    reseal = data.draw(st.booleans())
    try:
        if reseal:  # a broken writer: the checksum is valid
            for header in iter_batches(damaged):
                body = bytes(damaged[header.position + 21 : header.position + header.size])
                damaged[header.position + 17 : header.position + 21] = struct.pack(">I", google_crc32c.value(body))
        expected = rows_by_objects(damaged)
        is_valid = True
    except CorruptRecordError:
        is_valid = False
    try:
        block = decode(damaged, kernel=kernel, max_record_bytes=1 << 20)
        assert table(block).num_rows == block.rows
        if reseal and is_valid:
            assert rows_by_columns(block) == expected
    except CorruptRecordError as error:
        assert str(error).startswith("flights-3: ")


@kernels
def test_one_arrow_batch_from_many_record_batches(kernel):
    log = b"".join(batch(at, at + 9) for at in range(0, 200, 10))
    assert [found.num_rows for found in decode(log, kernel=kernel).batches] == [200]
    assert [found.num_rows for found in decode(log, kernel=kernel, max_rows=45).batches] == [40] * 5
    assert [found.num_rows for found in decode(batch(0, 99), kernel=kernel, max_rows=45).batches] == [45, 45, 10]


def test_schema_equals_that_of_sparks_kafka_source():
    assert kafka_schema().names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert kafka_schema(include_headers=True).names == list(COLUMNS)
    assert str(kafka_schema(True).field("headers").type) == "list<item: struct<key: string, value: binary>>"
    assert kafka_schema().field("timestamp").type == pa.timestamp("us", "UTC")
    assert all(field.nullable for field in kafka_schema())


def test_create_time_and_log_append_time_in_one_block():
    log = encode_batch([Record(None, b"", NOW), Record(None, b"", NOW + 3)]) + encode_batch(
        [Record(None, b"", NOW + 4), Record(None, b"", NOW + 9)], base_offset=2, timestamp_type=1
    )
    found = table(decode(log))
    milliseconds = [value // 1000 for value in found["timestamp"].cast(pa.int64()).to_pylist()]
    assert milliseconds == [NOW, NOW + 3, NOW + 9, NOW + 9]
    assert found["timestampType"].to_pylist() == [0, 0, 1, 1]


def test_a_timestamp_that_exceeds_microseconds_is_corrupt():
    log = encode_batch([Record(None, b"v", 2**62)])
    with pytest.raises(CorruptRecordError, match="leave the column timestamp out"):
        decode(log)
    assert table(decode(log, columns=["value"]), ["value"])["value"].to_pylist() == [b"v"]


def test_invalid_utf8_in_header_keys_is_replaced():
    log = encode_batch([Record(None, b"", NOW, (("kk", b"1"),))])
    found = table(decode(resealed(log, log.index(b"kk"), b"\xff\xfe")))
    assert found["headers"].to_pylist() == [[{"key": "\ufffd\ufffd", "value": b"1"}]]


@pytest.mark.conformance("FT-062", "FT-063")
def test_next_offset_covers_compacted_tails_and_empty_batches():
    compacted = encode_batch([Record(None, b"", NOW, (), 2)], base_offset=10)
    compacted = resealed(compacted, 23, b"\0\0\0\x09")  # offsets 10 to 19, only 12 is retained
    empty = resealed(batch(20, 20)[:61], 57, b"\0\0\0\0")
    empty = resealed(empty, 8, struct.pack(">i", len(empty) - 12))
    block = decode(compacted + empty, start_offset=10)
    assert offsets(block) == [12] and block.next_offset == 21
    assert decode(compacted, start_offset=13).next_offset == 20
    assert decode(compacted, start_offset=10, end_offset=15).next_offset == 15
    assert decode(batch(30, 31), start_offset=10, end_offset=20) == ([], 20, 0)


def test_an_empty_batch_between_others_is_skipped():
    empty = resealed(batch(1, 1)[:61], 57, b"\0\0\0\0")
    empty = resealed(empty, 8, struct.pack(">i", len(empty) - 12))
    assert offsets(decode(batch(0, 0) + empty + batch(2, 3))) == [0, 2, 3]


def test_without_a_complete_batch_the_next_offset_is_the_start_offset():
    assert decode(b"", start_offset=7) == ([], 7, 0)
    assert decode(batch(7, 9)[:-1], start_offset=7) == ([], 7, 0)
    assert decode(batch(3, 5), start_offset=7) == ([], 7, 0)


@pytest.mark.conformance("FT-015")
def test_control_batches_are_omitted():
    log = batch(0, 1, transactional=True, producer_id=1) + control(2, CONTROL_COMMIT, 1) + batch(3, 3)
    for read_committed in (False, True):
        block = decode(log, read_committed=read_committed)
        assert offsets(block) == [0, 1, 3] and block.next_offset == 4
    assert decode(control(5, CONTROL_COMMIT, 1), start_offset=5).next_offset == 6


@pytest.mark.conformance("FT-057", "FT-058", "FT-059", "FT-064", "FT-065", "FT-066")
def test_an_aborted_transaction_ends_at_the_abort_marker_of_its_producer():
    ours = {"transactional": True, "producer_id": 1}
    other = {"transactional": True, "producer_id": 2}
    log = b"".join(
        [
            batch(0, 1, **ours),  # committed
            control(2, CONTROL_COMMIT, 1),
            batch(3, 4, **ours),  # aborted
            batch(5, 6, **other),  # committed
            batch(7, 7),  # not transactional
            batch(8, 8, **ours),  # aborted
            batch(9, 9, producer_id=1),  # idempotent, not transactional
            control(10, CONTROL_ABORT, 1),
            control(11, CONTROL_COMMIT, 2),
            batch(12, 12, **ours),  # committed again
            batch(13, 13, **other),  # aborted
            control(14, CONTROL_ABORT, 2),
        ]
    )
    aborted = [AbortedTransaction(2, 13), AbortedTransaction(1, 3)]  # in any order
    block = decode(log, read_committed=True, aborted=aborted)
    assert offsets(block) == [0, 1, 5, 6, 7, 9, 12]
    assert block.next_offset == 15
    assert offsets(decode(log, aborted=aborted)) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 12, 13]


def test_an_abort_marker_before_the_start_offset_ends_its_transaction():
    ours = {"transactional": True, "producer_id": 1}
    log = batch(3, 4, **ours) + control(5, CONTROL_ABORT, 1) + batch(6, 6, **ours)
    block = decode(log, start_offset=6, read_committed=True, aborted=[AbortedTransaction(1, 3)])
    assert offsets(block) == [6]


@pytest.mark.conformance("FT-060")
def test_an_abort_marker_without_an_open_transaction_has_no_effect():
    ours = {"transactional": True, "producer_id": 1}
    aborts = control(2, CONTROL_ABORT, 1) + control(3, CONTROL_ABORT, 1)
    log = batch(0, 1, **ours) + aborts + batch(4, 5, **ours) + control(6, CONTROL_COMMIT, 1)
    assert offsets(decode(log, read_committed=True, aborted=[AbortedTransaction(1, 0)])) == [4, 5]


@pytest.mark.conformance("FT-061")
def test_an_abort_marker_ends_a_transaction_whose_records_were_removed():
    ours = {"transactional": True, "producer_id": 1}
    log = control(5, CONTROL_ABORT, 1) + batch(6, 6, **ours) + control(7, CONTROL_COMMIT, 1)
    block = decode(log, start_offset=3, read_committed=True, aborted=[AbortedTransaction(1, 3)])
    assert offsets(block) == [6] and block.next_offset == 8


@pytest.mark.conformance("FT-070")
def test_a_control_batch_without_records_is_skipped():
    empty = resealed(control(5, CONTROL_COMMIT, 1)[:61], 57, b"\0\0\0\0")
    empty = resealed(empty, 8, struct.pack(">i", len(empty) - 12))
    for read_committed in (False, True):
        block = decode(batch(3, 4) + empty + batch(6, 7), start_offset=3, read_committed=read_committed)
        assert offsets(block) == [3, 4, 6, 7]


@kernels
@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (57, b"\0\0\0\1", "offset 10 .* its 1 records do not decode"),
        (57, b"\0\0\0\2", "offset 10 .* its 2 records do not decode"),
        (64, b"\x08", "an offset is outside the range of its batch|do not increase"),  # delta 4 of 0 to 2
        (64, b"\x01", "an offset is outside the range of its batch"),  # delta -1
        (72, b"\x00", "do not increase"),
        (21, b"\0\5", "codec 5 does not exist"),
    ],
)
@pytest.mark.conformance("FT-018", "FT-020")
def test_the_error_names_the_corrupt_batch(kernel, at, data, message):
    broken = resealed(batch(10, 12), at, data)
    for log in (broken, batch(0, 4) + broken, batch(0, 4) + broken + batch(20, 22)):
        with pytest.raises(CorruptRecordError, match=f"^flights-3: (?s:.)*{message}"):
            decode(log, kernel=kernel)


def test_wrong_record_counts_of_two_batches_are_corrupt_even_if_their_sum_is_correct():
    one, other = batch(0, 2, value=b"v" * 9), batch(3, 5, value=b"v" * 9)
    log = resealed(one, 57, b"\0\0\0\2") + resealed(resealed(other, 57, b"\0\0\0\4"), 23, b"\0\0\0\3")
    with pytest.raises(CorruptRecordError, match="offset 0 .* its 2 records"):
        decode(log)


@pytest.mark.conformance("FT-019")
def test_a_wrong_checksum_is_corrupt():
    damaged = bytearray(batch(0, 4) + batch(5, 9))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="^flights-3: Record batch at offset 5 .* stored CRC"):
        decode(damaged)
    # batches after the requested range are not verified
    assert decode(damaged, end_offset=5).rows == 5


def test_a_damaged_base_offset_is_not_taken_as_the_end_of_the_range():
    # the checksum does not cover the base offset
    damaged = b"\x70" + batch(0, 4)[1:] + batch(5, 9)
    with pytest.raises(CorruptRecordError, match="the previous batch ends at offset"):
        decode(damaged, end_offset=10)


def test_batches_out_of_order_are_corrupt():
    with pytest.raises(CorruptRecordError, match="the previous batch ends at offset"):
        decode(batch(5, 6) + batch(6, 7))


def test_a_decompression_bomb_is_corrupt():
    bomb = batch(0, 0, value=b"\0" * 3_000_000, codec=4)
    assert len(bomb) < 1000
    assert decode(bomb).rows == 1
    with pytest.raises(CorruptRecordError, match="exceeds the limit of 1000000 bytes"):
        decode(bomb, max_record_bytes=1_000_000)


@pytest.mark.parametrize("codec", [1, 3, 4])
@pytest.mark.slow
def test_memory_depends_on_neither_the_size_nor_the_ratio_of_a_batch(codec):
    records = [Record(None, b"%04d" % number * 50_000, NOW) for number in range(150)]
    log = encode_batch(records, codec=codec)
    del records
    decode(batch(0, 0, codec=codec))  # what it imports is no memory of the batch
    pa.default_memory_pool().release_unused()
    before, values = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    try:
        block = decode_fetched(log, topic_partition=TP, columns=COLUMNS, start_offset=0, end_offset=END)
        for found in block.batches:
            values += sum(len(value.as_py()) for value in found.column("value"))
            # a batch, the slice it was decoded from, and the lookahead
            assert pa.total_allocated_bytes() - before < 12_000_000
        assert tracemalloc.get_traced_memory()[1] < 24_000_000
    finally:
        tracemalloc.stop()
    assert values == 150 * 200_000


def test_a_batch_whose_offsets_exceed_64_bits_is_corrupt():
    log = encode_batch([Record(None, b"v", NOW)] * 3, base_offset=2**63 - 2)
    with pytest.raises(CorruptRecordError, match=f"is corrupt: its last offset is {2**63}"):
        decode(log, end_offset=2**63 - 1)


def test_batches_are_decoded_together_up_to_a_size(monkeypatch):
    # private: the size is that of a processor cache
    monkeypatch.setattr(record_groups, "_GROUP_BYTES", 5000)
    compressed = b"".join(batch(at, at, value=b"x" * 2000, codec=3) for at in range(5))
    assert [found.num_rows for found in decode(compressed).batches] == [3, 2]
    received = b"".join(batch(at, at, value=b"x" * 2000) for at in range(5))
    assert [found.num_rows for found in decode(received, kernel=KERNELS["numba"]).batches] == [2, 2, 1]


def test_the_compiled_kernel_is_selected_after_many_records():
    selector = arrow._KernelSelector()  # private: no result depends on it
    assert selector.next() is KERNELS["numpy"]
    selector.count(selector.compile_after_rows)
    assert selector.next() is KERNELS["numba"]


def test_the_numpy_kernel_is_selected_without_numba(monkeypatch):
    monkeypatch.setattr(arrow, "compiled_kernel", lambda: None)
    selector = arrow._KernelSelector()  # private: no result depends on it
    selector.count(selector.compile_after_rows)
    assert selector.next() is KERNELS["numpy"]


# --- many headers ---


def record_of_headers(count: int) -> bytes:
    """A batch of one record with `count` headers of two bytes."""
    body = bytearray(b"\0\0\0\1\1")
    write_varint(body, count)
    body += b"\0\1" * count
    payload = bytearray()
    write_varint(payload, len(body))
    (header,) = iter_batches(encode_batch([Record(None, None, 1)]))
    return with_body(header, bytes(payload + body))


@kernels
@pytest.mark.parametrize(("batches", "records"), [(1, 300), (3, 100)])
def test_records_with_many_headers_are_several_arrow_batches(kernel, batches, records):
    headers = (("", None),) * 1000
    each = [Record(None, None, 1, headers)] * records
    data = b"".join(encode_batch(each, base_offset=records * number) for number in range(batches))
    found = decode(data, columns=("offset", "headers"), kernel=kernel)
    assert len(found.batches) > 1 and max(batch.num_rows for batch in found.batches) <= 250
    assert table(found, ("offset", "headers"))["offset"].to_pylist() == list(range(records * batches))
    assert all(len(each) == 1000 for batch in found.batches for each in batch.column(1))
    assert [batch.num_rows for batch in decode(data, columns=("offset",), kernel=kernel).batches] == [records * batches]


@kernels
def test_a_record_with_too_many_headers_is_reported_with_the_option(kernel, monkeypatch):
    monkeypatch.setattr(numpy_kernel, "MAX_RECORD_HEADERS", 260_000)
    data = record_of_headers(260_001)
    with pytest.raises(CorruptRecordError, match="offset 0 has 260001 headers.*Set includeHeaders to false"):
        decode(data, kernel=kernel)
    assert decode(data, columns=("offset",), kernel=kernel).rows == 1
