"""Least time of a Produce request in straight-line Python.

    python benchmarks/least_python.py

A function reads the fields of an encoded request, verifies the checksum of the batch, assigns its offset, appends it to
a file and packs the response. It checks no records, knows neither topics nor producers, and has no objects, layers or
time slices. What it takes, in addition to a request that does nothing, is a lower limit for a broker in Python.
"""

from __future__ import annotations

import os
import sys
import tempfile
import timeit
from struct import Struct
from typing import Callable

from google_crc32c import value as crc32c

from spark_groupsource.records.encode import Record, encode_batch

_REPEATS, _CALLS = 30, 100
_HEAD = bytes(60)  # what precedes the partitions: acks, timeout, topic
# version 9: partition, bytes; batch: length, checksum, last offset delta
_PRODUCED = Struct(">ii")
_BATCH = Struct(">8xi5xI2xi")
_BASE_OFFSET = Struct(">q")
_OVERHEAD, _CHECKED_FROM = 12, 21
# partition, error, base offset, append time, log start offset, errors of records, message
_RESPONSE = Struct(">ihqqqBB")


def produce(records: int, log: int) -> Callable[[], bytes]:
    """Returns a Produce of one batch."""
    batch = encode_batch([Record(None, b"x" * 100, 1_700_000_000_000) for _ in range(records)])
    request = _HEAD + _PRODUCED.pack(0, len(batch)) + batch
    ends = {("topic", 0): 10}

    def handle() -> bytes:
        number, size = _PRODUCED.unpack_from(request, len(_HEAD))
        at = len(_HEAD) + _PRODUCED.size
        data = bytearray(request[at : at + size])
        length, crc, last_delta = _BATCH.unpack_from(data, 0)
        end = ends["topic", number]
        if length + _OVERHEAD != size or crc32c(bytes(data[_CHECKED_FROM:])) != crc:
            raise ValueError("Reading the request failed: the batch is corrupt.")
        _BASE_OFFSET.pack_into(data, 0, end)
        os.pwrite(log, data, 0)
        ends["topic", number] = end + last_delta + 1
        return _RESPONSE.pack(number, 0, end, -1, 0, 0, 0)

    return handle


def main() -> int:
    with tempfile.TemporaryFile() as log:
        for records in (1, 150):
            handle = produce(records, log.fileno())
            least = min(timeit.repeat(handle, number=_CALLS, repeat=_REPEATS)) / _CALLS
            print(f"Produce of {records} records of 100 B: {least * 1e6:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
