"""Records converted in one pass equal those parsed first."""

from __future__ import annotations

import struct
import threading
from contextlib import suppress

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.record_strategies import END, PARSERS, decode, rows_by_objects

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns import arrow, plain_columns
from spark_groupsource.records.columns.header_columns import header_columns
from spark_groupsource.records.columns.plain_columns import BufferPool, PlainReader
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches

NOW = 1_700_000_000_000
COLUMNS = arrow.COLUMNS[:-1]
BYTES = st.one_of(st.binary(max_size=20), st.integers(0, 300).map(bytes), st.integers(0, 9000).map(lambda n: b"x" * n))
TIMES = st.one_of(st.integers(NOW, NOW + 99), st.integers(-1, 9 * 10**15))


@st.composite
def plain_logs(draw) -> bytes:
    """Batches of records without headers; some have null values, or null keys beside others."""
    key = draw(st.sampled_from([st.none(), BYTES, BYTES, st.one_of(st.none(), BYTES)]))
    value = draw(st.sampled_from([BYTES, BYTES, BYTES, st.one_of(st.none(), BYTES)]))
    offset, log = draw(st.integers(0, 1 << 40)), b""
    for rows in draw(st.lists(st.lists(st.tuples(key, value, TIMES, st.integers(1, 90)), min_size=1, max_size=9))):
        records, delta = [], -1
        for each_key, each_value, time, gap in rows:
            delta += gap
            records.append(Record(each_key, each_value, time, (), delta))
        kind = {"codec": draw(st.sampled_from([0, 0, 3])), "timestamp_type": draw(st.sampled_from([0, 0, 1]))}
        log += encode_batch(records, base_offset=offset, **kind)
        offset += delta + 1 + draw(st.sampled_from([0, 0, 7]))
    return log


def read(log, *, parser="numba", columns=COLUMNS, **options) -> pa.Table:
    # private: each read starts without what earlier ones have found
    arrow._plain = PlainReader()
    batches = decode(log, parser=PARSERS[parser], columns=columns, **options).batches
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=arrow.columns_schema(columns))


def rows(found: pa.Table) -> list[dict[str, object]]:
    if "timestamp" in found.column_names:
        at = found.schema.get_field_index("timestamp")
        found = found.set_column(at, "timestamp", found["timestamp"].cast(pa.int64()))
    return found.to_pylist()


@settings(max_examples=scaled(600, 60))
@given(log=plain_logs(), columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True), data=st.data())
def test_rows_equal_decoded_records(log, columns, data):
    last = max((header.next_offset for header in iter_batches(log)), default=0)
    start = data.draw(st.one_of(st.just(0), st.integers(0, last)))
    end = data.draw(st.one_of(st.just(END), st.integers(start, last + 3)))
    found = rows(read(log, columns=columns, start_offset=start, end_offset=end, max_rows=data.draw(st.integers(9, 40))))
    expected = rows_by_objects(log, start_offset=start, end_offset=end)
    assert found == [{name: row[name] for name in columns} for row in expected]


@settings(max_examples=scaled(600, 60))
@given(log=plain_logs(), data=st.data())
def test_damaged_records_have_the_outcome_of_the_other_parser(log, data):
    damaged = bytearray(log)
    if damaged:
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for parser in PARSERS:
        try:
            for header in iter_batches(damaged):
                body = bytes(damaged[header.position + 21 : header.position + header.size])
                damaged[header.position + 17 : header.position + 21] = struct.pack(">I", google_crc32c.value(body))
            outcomes.append(rows(read(bytes(damaged), parser=parser, max_record_bytes=1 << 20)))
        except CorruptRecordError:
            outcomes.append([{"corrupt": True}])
    assert outcomes[0] == outcomes[1]


def batch(*records: Record, **options) -> bytes:
    return encode_batch(list(records), **options)


def plain(count: int = 3, key: bytes | None = None) -> list[Record]:
    return [Record(key, b"v" * n, NOW + n) for n in range(count)]


@pytest.mark.parametrize(
    ("log", "is_plain"),
    [
        (batch(*plain()), True),
        (batch(*plain(key=b"k")), True),
        (batch(*plain(key=b"")), True),
        (batch(*plain(), codec=3), True),
        (batch(*plain(), timestamp_type=1), True),
        (batch(*plain(300)) + batch(*plain(), base_offset=400), True),
        (batch(Record(None, None, NOW), *plain()), False),
        (batch(Record(b"k", b"v", NOW), *plain()), False),
        (batch(Record(None, b"v", NOW, (("h", b"x"),)), *plain()), False),
    ],
)
def test_which_records_are_plain(monkeypatch, log, is_plain):
    parsed: list[object] = []
    # private: whether records take the other path
    select = arrow._select_records
    monkeypatch.setattr(arrow, "_select_records", lambda *args: parsed.append(args) or select(*args))
    found = rows(read(log))
    assert found == [{name: row[name] for name in COLUMNS} for row in rows_by_objects(log)]
    assert bool(parsed) is not is_plain
    # the keys are not read
    assert read(log, columns=("value",))["value"].to_pylist() == [row["value"] for row in found]


def test_groups_that_are_not_plain_are_skipped_with_increasing_distance():
    reader, tried = PlainReader(), []

    def leave(*args):
        tried.append(number)

    layout = arrow.Layout(None, ("value",), 0, END, 10)
    headers = header_columns(batch(*plain()), [0])
    one = np.ones(1, np.int64)
    for number in range(20):
        assert reader.read(leave, np.zeros(9, np.uint8), plain_columns.Parts(one, one, one), headers, layout) is None
    assert tried == [0, 2, 5, 10, 19]


def test_batches_that_are_kept_are_not_overwritten():
    logs = [batch(*[Record(b"%d" % at, b"%d" % at * 9, NOW + at)] * 50) for at in range(30)]
    kept = [read(log) for log in logs]
    assert [rows(found) for found in kept] == [rows(read(log, parser="numpy")) for log in logs]
    value = read(logs[0])["value"].chunk(0)[10:11]
    part = pa.array(np.frombuffer(value.buffers()[2], np.uint8))
    for log in logs:
        read(log)
    assert value.to_pylist() == [b"0" * 9] and part[0].as_py() == ord("0")


def test_memory_that_nothing_refers_to_is_used_again(monkeypatch):
    monkeypatch.setattr(plain_columns, "_MAX_KEPT_BYTES", 4 << 20)
    pool = BufferPool()
    first, second, third = pool.take(1000), pool.take(2 << 20), pool.take(2 << 20)
    address = first.ctypes.data
    assert len({address, second.ctypes.data, third.ctypes.data}) == 3
    # the third exceeds the limit
    assert sum(len(each[0]) for each in pool._kept) == 3 << 20
    view = pa.py_buffer(first.view(np.int64))
    del first, second, third
    assert pool.take(1000).ctypes.data != address
    del view
    again = pool.take(500), pool.take(500)
    assert address in [each.ctypes.data for each in again]
    del again
    # free memory of other sizes is released
    assert len(pool.take(4 << 20)) == 4 << 20
    # private: the buffers that are kept
    assert [len(each[0]) for each in pool._kept] == [4 << 20]
    assert len(pool.take(50 << 20)) == 50 << 20
    assert pool._kept == []


def test_threads_never_get_the_same_memory(monkeypatch):
    pool, taken = BufferPool(), []
    pool.take(100)
    barrier = threading.Barrier(2)

    def wait_for_the_other(*numbers):
        # after the memory was found unused, before it is returned
        with suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)
        return max(numbers)

    monkeypatch.setattr(plain_columns, "max", wait_for_the_other, raising=False)
    threads = [threading.Thread(target=lambda: taken.append(pool.take(100))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not np.shares_memory(*taken)
