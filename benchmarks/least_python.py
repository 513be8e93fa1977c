"""Least time of a partition of a request in straight-line Python.

    python benchmarks/least_python.py

A loop reads the fields of each partition of an encoded request, does what the request is for, and packs the entry of
the response. It checks nothing, knows neither groups nor members, and has no objects, layers or time slices. What it
takes is a lower limit for a broker in Python without code compiled for these requests.
"""

from __future__ import annotations

import os
import sys
import tempfile
import timeit
from struct import Struct
from typing import Callable

from google_crc32c import value as crc32c

PARTITIONS = (1, 10, 100)
_REPEATS, _CALLS = 30, 100
_HEAD = bytes(60)  # what precedes the partitions: group and member, or limits and topic

# OffsetCommit version 8: partition, offset, leader epoch, metadata, tags
_COMMITTED = Struct(">iqi")
_COMMITTED_RESPONSE = Struct(">ihB")
_KEY_HEAD = b"\x00\x01\x00\x05group\x00\x05topic"
_RECORD = Struct(f">4s{len(_KEY_HEAD)}si3sqi2sqB")
# Fetch version 12: partition, leader epoch, offset, last epoch, log start offset, bytes, tags
_FETCHED = Struct(">iiqiqiB")
# partition, error, high watermark, last stable offset, log start offset, aborted, preferred replica, records, tags
_FETCHED_RESPONSE = Struct(">ihqqqBiBB")


def commit(partitions: int, log: int) -> Callable[[], bytes]:
    """Returns a commit: it packs a record for each partition, appends the batch to a file and stores the offsets."""
    request = _HEAD + b"".join(_COMMITTED.pack(number, 1_000 + number, 0) + b"\1\0" for number in range(partitions))
    stored: dict[tuple[str, int], tuple[int, int, str, int]] = {}

    def handle() -> bytes:
        records: list[bytes] = []
        entries: list[bytes] = []
        read, add, pack, respond = _COMMITTED.unpack_from, records.append, _RECORD.pack, entries.append
        topic, at, timestamp_ms = "topic", len(_HEAD), 1_700_000_000_000
        for _ in range(partitions):
            number, offset, epoch = read(request, at)
            at += _COMMITTED.size
            end = at + request[at]
            metadata = str(request[at + 1 : end], "utf-8") if end > at + 1 else ""
            at = end + 1
            add(pack(b"\x60\0\0\0", _KEY_HEAD, number, b"\x30\0\3", offset, epoch, b"\0\0", timestamp_ms, 0))
            stored[topic, number] = offset, epoch, metadata, timestamp_ms
            respond(_COMMITTED_RESPONSE.pack(number, 0, 0))
        batch = bytes(61) + b"".join(records)
        crc32c(batch)
        os.write(log, batch)
        return b"".join(entries)

    return handle


class _Partition:
    __slots__ = ("offsets", "is_offline")

    def __init__(self) -> None:
        self.offsets = (10, 10, 0)
        self.is_offline = False


def fetch(partitions: int) -> Callable[[], bytes]:
    """Returns a fetch of partitions without new records."""
    request = _HEAD + b"".join(_FETCHED.pack(number, 0, 10, -1, -1, 1 << 20, 0) for number in range(partitions))
    logs = {("topic", number): _Partition() for number in range(partitions)}

    def handle() -> bytes:
        entries: list[bytes] = []
        read, respond, pack, find = _FETCHED.unpack_from, entries.append, _FETCHED_RESPONSE.pack, logs.get
        at = len(_HEAD)
        for _ in range(partitions):
            number, epoch, offset, last_epoch, _start, _most, tags = read(request, at)
            at += _FETCHED.size
            found = find(("topic", number))
            if found is None or tags or epoch or last_epoch >= 0 or found.is_offline:
                raise ValueError(f"Reading the request failed: partition {number} is not idle.")
            end, stable, start = found.offsets
            if offset != end:
                raise ValueError(f"Reading the request failed: partition {number} has records.")
            respond(pack(number, 0, end, stable, start, 1, -1, 1, 0))
        return b"".join(entries)

    return handle


def main() -> int:
    with tempfile.TemporaryFile() as log:
        for partitions in PARTITIONS:
            handlers = {"commit": commit(partitions, log.fileno()), "fetch without records": fetch(partitions)}
            for title, handle in handlers.items():
                least = min(timeit.repeat(handle, number=_CALLS, repeat=_REPEATS)) / _CALLS
                print(f"{title}, {partitions} partitions: {least * 1e6:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
