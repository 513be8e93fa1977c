"""The two record kernels return the same columns."""

from __future__ import annotations

import gc
import struct
import threading

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.record_strategies import END, KERNELS, decode, logs, rows_by_objects

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.columns import buffer_pool
from spark_groupsource.records.columns.arrow import COLUMNS, columns_schema
from spark_groupsource.records.columns.buffer_pool import BufferPool
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches

NOW = 1_700_000_000_000
BYTES = st.one_of(st.binary(max_size=20), st.integers(0, 300).map(bytes), st.integers(0, 9000).map(lambda n: b"x" * n))
TIMES = st.one_of(st.integers(NOW, NOW + 99), st.integers(-1, 9 * 10**15))


@st.composite
def large_logs(draw) -> bytes:
    """Batches of records with lengths and gaps on both sides of the varint bounds, without headers."""
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


BATCHES = st.one_of(logs(), large_logs())


def read(log, *, kernel="numba", columns=COLUMNS, **options) -> list[dict[str, object]]:
    batches = decode(log, kernel=KERNELS[kernel], columns=columns, **options).batches
    for batch in batches:
        batch.validate(full=True)
    found = pa.Table.from_batches(batches, schema=columns_schema(columns))
    if "timestamp" in columns:
        at = found.schema.get_field_index("timestamp")
        found = found.set_column(at, "timestamp", found["timestamp"].cast(pa.int64()))
    return found.to_pylist()


@settings(max_examples=scaled(600, 60))
@given(log=BATCHES, columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True), data=st.data())
def test_rows_equal_decoded_records(log, columns, data):
    last = max((header.next_offset for header in iter_batches(log)), default=0)
    start = data.draw(st.one_of(st.just(0), st.integers(0, last)))
    end = data.draw(st.one_of(st.just(END), st.integers(start, last + 3)))
    options = {"start_offset": start, "end_offset": end, "max_rows": data.draw(st.integers(1, 40))}
    expected = [
        {name: row[name] for name in columns} for row in rows_by_objects(log, start_offset=start, end_offset=end)
    ]
    for kernel in KERNELS:
        assert read(log, kernel=kernel, columns=columns, **options) == expected


@settings(max_examples=scaled(600, 60))
@given(log=BATCHES, columns=st.sampled_from([COLUMNS, ("value",), ("offset", "headers")]), data=st.data())
def test_damaged_records_have_the_same_outcome(log, columns, data):
    damaged = bytearray(log)
    if damaged:
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    start, max_rows = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([3, 40]))
    outcomes = []
    for kernel in KERNELS:
        try:
            for header in iter_batches(damaged):
                body = bytes(damaged[header.position + 21 : header.position + header.size])
                damaged[header.position + 17 : header.position + 21] = struct.pack(">I", google_crc32c.value(body))
            options = {"start_offset": start, "max_rows": max_rows, "max_record_bytes": 1 << 20}
            outcomes.append(read(bytes(damaged), kernel=kernel, columns=columns, **options))
        except CorruptRecordError as error:
            # the batch that the error names
            outcomes.append(str(error).split(" is corrupt")[0])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_batches_that_are_kept_are_not_overwritten(kernel, codec):
    logs = [
        encode_batch([Record(b"%d" % at, b"%d" % at * 9, NOW + at, (("h", b"%d" % at),))] * 50, codec=codec)
        for at in range(30)
    ]
    kept = [decode(log, kernel=KERNELS[kernel]).batches for log in logs]
    for log, (found,) in zip(logs, kept):
        (again,) = decode(log, kernel=KERNELS["numpy"]).batches
        assert found.equals(again)
    value = kept[0][0]["value"][10:11]
    part = pa.array(np.frombuffer(value.buffers()[2], np.uint8))
    del kept
    for log in logs:
        decode(log, kernel=KERNELS[kernel])
    assert value.to_pylist() == [b"0" * 9] and part[0].as_py() == ord("0")


def derived(taken):
    """Objects that refer to the memory of an array."""
    read_only = taken[1:].view()
    read_only.setflags(write=False)
    array = pa.Array.from_buffers(pa.uint8(), len(taken), [None, pa.py_buffer(taken)])
    return {
        "slice": taken[:5],
        "other type": taken.view(np.int64)[1:],
        "read-only view": read_only,
        "memoryview": memoryview(taken)[3:],
        "buffer": pa.py_buffer(taken.view(np.int64)).slice(8),
        "Arrow array": array[2:4],
        "NumPy array of Arrow's": np.frombuffer(array.buffers()[1], np.uint8)[:1],
    }


@pytest.mark.parametrize("name", derived(np.zeros(64, np.uint8)))
def test_memory_is_not_used_again_while_something_refers_to_it(name):
    pool = BufferPool()
    taken = pool.take(1000)
    address, kept = taken.ctypes.data, derived(taken)[name]
    del taken
    gc.collect()
    assert pool.take(1000).ctypes.data != address
    del kept
    assert address in [each.ctypes.data for each in (pool.take(500), pool.take(500))]


def test_memory_that_nothing_refers_to_is_bounded(monkeypatch):
    monkeypatch.setattr(buffer_pool, "_MAX_FREE_BYTES", 4 << 20)
    pool = BufferPool()
    taken = [pool.take(size) for size in (1000, 2 << 20, 3 << 20)]
    assert len({each.ctypes.data for each in taken}) == 3
    # private: the memory that is kept
    assert pool._free == []
    while taken:
        taken.pop(0)
    assert [each.size for each in pool._free] == [3 << 20]
    # memory that is much too large is not used
    assert len(pool.take(1000)) == 1000 and len(pool.take(0)) == 0
    assert len(pool.take(50 << 20)) == 50 << 20
    assert sum(each.size for each in pool._free) <= 4 << 20


def test_threads_never_get_the_same_memory():
    pool, rounds, errors = BufferPool(), 3000, []

    def use(number):
        for _ in range(rounds):
            taken = pool.take(100)
            taken[:] = number
            other = pool.take(100)
            other[:] = number
            if (taken != number).any() or np.shares_memory(taken, other):
                errors.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
