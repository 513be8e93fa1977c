"""Timestamp of a record of a batch."""

from __future__ import annotations

import pytest

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.encode import LOG_APPEND_TIME, Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.records.timestamp_lookup import timestamp_from

RECORDS = [Record(b"k" * size, b"v" * size, 10_000 + 100 * size, (("h", b"x"),)) for size in (0, 1, 63, 64, 300, 20)]


@pytest.mark.parametrize("codec", [0, 1])
def test_timestamp_of_the_first_record_from_an_offset_on(codec: int) -> None:
    data = encode_batch(RECORDS, base_offset=7, codec=codec)
    (header,) = iter_batches(data)
    found = [timestamp_from(data, header, offset) for offset in range(6, 14)]
    expected = [record.timestamp_ms for record in RECORDS]
    assert found == [expected[0], *expected, None]


def test_log_append_time_and_invalid_bytes() -> None:
    data = encode_batch(RECORDS, timestamp_type=LOG_APPEND_TIME)
    (header,) = iter_batches(data)
    assert timestamp_from(data, header, 2) == header.max_timestamp and timestamp_from(data, header, 6) is None
    damaged = bytearray(encode_batch(RECORDS))
    damaged[61] = 1
    (header,) = iter_batches(damaged)
    with pytest.raises(CorruptRecordError):
        timestamp_from(damaged, header, 3)
