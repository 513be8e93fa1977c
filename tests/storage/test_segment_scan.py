"""Scans of the batches of a segment file, in several reads."""

from __future__ import annotations

import pytest

from spark_groupsource.broker.storage import segment_scan
from spark_groupsource.broker.storage.segment_scan import InvalidBatchError, scan_batches, scan_producer_batches
from spark_groupsource.records.encode import Record, encode_batch

NOW = 1_700_000_000_000


def batch(offset: int, *, value: bytes = b"v", **options) -> bytes:
    return encode_batch([Record(None, value, NOW)], base_offset=offset, **options)


# the third does not fit into one read of 200 bytes
BATCHES = [
    batch(0),
    batch(1, producer_id=7, producer_epoch=0, base_sequence=0),
    batch(2, value=b"x" * 500),
    batch(3, value=b"x" * 500, producer_id=8, producer_epoch=0, base_sequence=0),
    batch(4),
]
LOG = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:index])) for index in range(len(BATCHES))]


class File:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, position: int, size: int) -> bytes:
        assert position + size <= len(self.content)
        return self.content[position : position + size]


@pytest.fixture(params=[70, 200, 1 << 17])
def chunk_bytes(request, monkeypatch):
    # private: the size is that of memory that is used again
    monkeypatch.setattr(segment_scan, "_SCAN_BYTES", request.param)


def scanned(batches) -> list[tuple[int, int]]:
    found = []
    for stored in batches:
        size = stored.header.size
        whole = bytes(stored.buffer[stored.header.position : stored.header.position + size])
        assert whole == LOG[stored.position : stored.position + size]
        found.append((stored.position, stored.header.base_offset))
    return found


def test_every_batch_is_found(chunk_bytes):
    every = list(zip(STARTS, range(5)))
    assert scanned(scan_batches(File(LOG).read, 0, len(LOG), 0)) == every
    assert scanned(scan_batches(File(LOG).read, STARTS[2], STARTS[4], 0)) == every[2:4]


def test_only_the_batches_of_producers_are_found(chunk_bytes):
    found = scanned(scan_producer_batches(File(LOG).read, 0, len(LOG)))
    assert found == [(STARTS[1], 1), (STARTS[3], 3)]


@pytest.mark.parametrize("scan", [lambda *bounds: scan_batches(*bounds, 0), scan_producer_batches])
def test_bytes_that_are_no_batch_are_reported_at_their_position(chunk_bytes, scan):
    for damaged, reason in ((LOG[:-9], "no complete batch"), (LOG + b"\0" * 99, "its length is 0 bytes")):
        with pytest.raises(InvalidBatchError, match=reason) as error:
            list(scan(File(damaged).read, 0, len(damaged)))
        assert error.value.position == (STARTS[4] if len(damaged) < len(LOG) else len(LOG))
        assert not error.value.is_complete


def test_checksums_are_verified_unless_they_have_been(chunk_bytes):
    damaged = File(LOG[: STARTS[3] + 70] + b"?" + LOG[STARTS[3] + 71 :])
    with pytest.raises(InvalidBatchError, match="stored CRC") as error:
        list(scan_batches(damaged.read, 0, len(LOG), 0))
    assert error.value.position == STARTS[3] and error.value.is_complete
    asked = []

    def is_verified(start: int, stop: int) -> bool:
        asked.append((start, stop))
        return True

    found = scan_batches(damaged.read, 0, len(LOG), 0, is_verified=is_verified)
    assert [stored.header.base_offset for stored in found] == [0, 1, 2, 3, 4]
    # what is read is what is asked for
    assert asked[0][0] == 0 and asked[-1][1] == len(LOG)


def test_offsets_that_do_not_increase_are_invalid(chunk_bytes):
    for first, expected in ((3, None), (0, 1), (2, 1)):
        log = batch(first) + batch(2)
        with pytest.raises(InvalidBatchError, match="a batch has base offset"):
            list(scan_batches(File(log).read, 0, len(log), 0, expected))
