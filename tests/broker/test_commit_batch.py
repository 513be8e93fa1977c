"""Record batch of a commit: equality with the encoding of each record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled

from spark_groupsource.broker.coordinators.commit_batch import commit_batch
from spark_groupsource.broker.group import CommitRecords, LogRecord
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue, encode_key, encode_offset_value

_TEXT = st.one_of(st.text(max_size=4), st.sampled_from(["é" * 300, "m" * 40_000]))
_INT64 = st.integers(-(2**63), 2**63 - 1)
_OFFSETS = st.builds(
    lambda topic, partition, *value: (TopicPartition(topic, partition), OffsetValue(*value)),
    st.sampled_from(["", "t", "topic", "ü" * 130]),
    st.integers(0, 2**31 - 1),
    _INT64,
    st.integers(-1, 2**31 - 1),
    _TEXT,
    st.sampled_from([0, 2**41]),
)


def encoded(records, timestamp_ms):
    return encode_batch([Record(record.key, record.value, timestamp_ms) for record in records])


def offsets(count, metadata=""):
    return [(TopicPartition("topic", number), OffsetValue(number, 3, metadata, 9)) for number in range(count)]


@settings(max_examples=scaled(100), deadline=None)
@given(st.text(max_size=5), st.lists(_OFFSETS, min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 2**41))
def test_the_batch_is_that_of_the_encoded_records(group_id, some, repeated, timestamp_ms):
    records = CommitRecords(group_id, [(key, value) for key, value in some if len(value.metadata) < 2**15] * repeated)
    if records:
        assert commit_batch(records, timestamp_ms) == encoded(records, timestamp_ms)


def test_offset_deltas_of_any_length():
    for count in (1, 63, 64, 65, 999, 1_000, 1_001):
        for metadata in ("", "reader", "m" * 600):
            records = CommitRecords("group", offsets(count, metadata))
            assert commit_batch(records, 7) == encoded(records, 7)


def test_records_are_encoded_where_they_are_read():
    records = CommitRecords("group", offsets(3))
    expected = [
        LogRecord(encode_key(OffsetKey("group", "topic", number)), encode_offset_value(OffsetValue(number, 3, "", 9)))
        for number in range(3)
    ]
    assert list(records) == expected
    assert [records[0], records[-1]] == [expected[0], expected[2]]
    assert list(records[1:]) == expected[1:] and len(records) == 3
