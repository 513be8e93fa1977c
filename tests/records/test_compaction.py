"""Removal of records from batches for compaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compaction import KeyedRecords, RetainedBatch, delete_horizon_ms
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import check_crc, iter_batches

RECORDS = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=40),
        st.integers(0, 10**13),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
        st.none(),
    ),
    min_size=1,
    max_size=120,
)


def head(data: bytes):
    (header,) = iter_batches(data)
    check_crc(data, header)
    return header


def keyed_records(data: bytes, header) -> list[tuple[int, bytes | None, bool]]:
    slices = [found for found in KeyedRecords(data, header).slices() if found is not None]
    return [each for found in slices for each in zip(found.offsets, found.keys, found.has_value)]


def retain(data: bytes, header, indexes, horizon: int | None = None) -> bytes:
    retained, first = RetainedBatch(header, horizon), 0
    for found in KeyedRecords(data, header).slices():
        if found is not None:
            retained.add(found, bytes(first + number in indexes for number in range(len(found.keys))))
            first += len(found.keys)
    return retained.build()


@settings(max_examples=scaled(150), deadline=None)
@given(records=RECORDS, codec=st.integers(0, 4), appended=st.booleans(), horizon=st.none() | st.integers(0, 10**13),
       data=st.data())  # fmt: skip
def test_retained_records_do_not_change(records, codec, appended, horizon, data):
    batch = encode_batch(
        records, base_offset=100, codec=codec, timestamp_type=int(appended), producer_id=7, producer_epoch=1,
        base_sequence=5, leader_epoch=3,
    )  # fmt: skip
    header = head(batch)
    before = list(decode_records(batch, header))
    assert keyed_records(batch, header) == [
        (record.offset, record.key, record.value is not None) for record in before
    ]
    indexes = data.draw(st.sets(st.integers(0, len(records) - 1)))
    after = retain(batch, header, indexes, horizon if indexes else None)
    new = head(after)
    assert list(decode_records(after, new)) == [record for number, record in enumerate(before) if number in indexes]
    for name in ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence",
                 "partition_leader_epoch", "is_log_append_time"):  # fmt: skip
        assert getattr(new, name) == getattr(header, name)
    assert delete_horizon_ms(new) == (horizon if indexes else None)
    if indexes:
        assert new.max_timestamp == max(r.timestamp_ms for n, r in enumerate(before) if n in indexes)
        # a batch with a delete horizon can be compacted again
        again = retain(after, new, {0})
        assert list(decode_records(again, head(again))) == list(decode_records(after, new))[:1]
        assert delete_horizon_ms(head(again)) == horizon


@pytest.mark.parametrize("count", [3, 100])
def test_invalid_records_are_corrupt(count):
    batch = bytearray(encode_batch([Record(b"k", b"v", 1)] * count))
    batch[61] = 0x7F
    header = next(iter_batches(batch))
    with pytest.raises(CorruptRecordError):
        for _ in KeyedRecords(batch, header).check():
            pass


def test_a_batch_of_many_records_is_read_in_slices():
    count = 20_000
    batch = encode_batch([Record(b"%d" % (number % 10), b"v", 1) for number in range(count)], codec=4)
    header = head(batch)
    slices = [found for found in KeyedRecords(batch, header).slices() if found is not None]
    assert max(len(found.keys) for found in slices) <= 4096 and sum(len(found.keys) for found in slices) == count
    assert sum(1 for _ in KeyedRecords(batch, header).check()) >= count / 4096
    rest = retain(batch, header, set(range(count - 10, count)))
    assert [record.offset for record in decode_records(rest, head(rest))] == list(range(count - 10, count))
