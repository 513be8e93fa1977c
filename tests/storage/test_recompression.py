"""Recompression changes only the codec of a batch."""

from __future__ import annotations

import pytest

from spark_groupsource.broker.storage.log_validator import recompress
from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import check_crc, iter_batches

RECORDS = [Record(b"k", b"value %d" % number * 9, 1_000 + number, (("h", b"1"),)) for number in range(30)]
CHANGED = {"batch_length", "crc", "attributes", "position", "size"}


@pytest.mark.parametrize("timestamp_type", [0, 1])
@pytest.mark.parametrize("level", [None, 1, 9])
@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_only_the_codec_changes(codec, level, timestamp_type):
    original = (codec + 2) % len(CODECS)
    batch = b"before" + encode_batch(
        RECORDS, base_offset=7, codec=original, timestamp_type=timestamp_type, producer_id=5, producer_epoch=2,
        base_sequence=3, transactional=True, leader_epoch=4,
    )  # fmt: skip
    (header,) = iter_batches(batch, start=6)
    recompressed, new = recompress(batch, header, codec, level)
    assert next(iter_batches(recompressed)) == new
    check_crc(recompressed, new)
    assert (new.codec, new.size, new.attributes >> 3) == (codec, len(recompressed), header.attributes >> 3)
    assert {name for name in header._fields if getattr(new, name) != getattr(header, name)} <= CHANGED
    assert list(decode_records(recompressed, new)) == list(decode_records(batch, header))


def test_a_higher_level_compresses_better():
    batch = encode_batch([Record(None, bytes(range(256)) * 60 + b"%d" % number, number) for number in range(20)])
    (header,) = iter_batches(batch)
    for codec in (1, 3, 4):
        low, high = (recompress(batch, header, codec, level)[1].size for level in (1, 9))
        assert high < low


def test_damaged_data_is_corrupt():
    batch = bytearray(encode_batch(RECORDS, codec=1))
    batch[70:80] = bytes(10)
    (header,) = iter_batches(batch)
    with pytest.raises(CorruptRecordError, match="gzip"):
        recompress(batch, header, 0)
