"""Which transactions of a partition were aborted: what a reader of committed records has to leave out.

Kept in Kafka's own form, a ``.txnindex`` beside the segment that holds the abort marker. Knows those rows and files;
which transactions end how is told by the markers in the log.

Source: KIP-98; Kafka `TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.storage.files import replace_file

SUFFIX = ".txnindex"
_VERSION = 0
# version, producer id, first offset, last offset, last stable offset
_ROW = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """One aborted transaction: its records lie from `first_offset` to before its marker at `last_offset`.

    `last_stable_offset` is that of the log right behind the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode(rows: Iterable[AbortedTransaction]) -> bytes:
    """The content of an index file."""
    return b"".join(_ROW.pack(_VERSION, *row) for row in rows)


def decode(data: bytes) -> list[AbortedTransaction]:
    """The rows of an index file, in the order of their markers.

    Raises: CorruptRecordError when the bytes are not such rows.
    """
    if len(data) % _ROW.size:
        raise CorruptRecordError(f"an index of aborted transactions has {len(data)} bytes, no multiple of {_ROW.size}")
    rows = []
    last = -1
    for version, *values in _ROW.iter_unpack(data):
        row = AbortedTransaction(*values)
        if version != _VERSION or row.first_offset < 0 or not max(row.first_offset, last) < row.last_offset:
            raise CorruptRecordError(f"an index of aborted transactions holds a senseless row: {version}, {row}")
        rows.append(row)
        last = row.last_offset
    return rows


class TransactionIndex:
    """Those of one partition, in the order of their markers."""

    def __init__(self, rows: Sequence[AbortedTransaction] = ()) -> None:
        self._rows = list(rows)
        self._ends = [row.last_offset for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: AbortedTransaction) -> None:
        """Takes in the transaction whose abort marker was written last."""
        self._rows.append(row)
        self._ends.append(row.last_offset)

    def between(self, start: int, end: int) -> list[AbortedTransaction]:
        """The transactions whose marker lies from offset `start` on and before `end`."""
        return self._rows[bisect_left(self._ends, start) : bisect_left(self._ends, end)]

    def overlapping(self, start: int, end: int) -> list[AbortedTransaction]:
        """The transactions with records, or the marker, from offset `start` on and before `end`."""
        return [row for row in self._rows[bisect_left(self._ends, start) :] if row.first_offset < end]

    def replace(self, start: int, end: int, rows: Sequence[AbortedTransaction]) -> None:
        """Puts `rows` in the place of those whose marker lies from `start` on and before `end`."""
        first, last = bisect_left(self._ends, start), bisect_left(self._ends, end)
        self._rows[first:last] = rows
        self._ends[first:last] = [row.last_offset for row in rows]


def read_all(directory: Path) -> list[AbortedTransaction]:
    """The rows of every index file of a partition.

    Raises: CorruptRecordError when one of them is damaged; StorageError when one cannot be read.
    """
    rows: list[AbortedTransaction] = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            rows += decode(path.read_bytes())
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from error
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{path}: {error}") from error
    return rows


def append(log_path: Path, row: AbortedTransaction) -> None:
    """Adds a row to the index of the segment `log_path`.

    Raises: StorageError.
    """
    path = log_path.with_suffix(SUFFIX)
    try:
        with open(path, "ab") as file:
            file.write(encode([row]))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; free space or mend the disk") from error


def write(log_path: Path, rows: Sequence[AbortedTransaction]) -> None:
    """Makes `rows` the index of the segment `log_path`, which has no file where there are none.

    Raises: StorageError.
    """
    path = log_path.with_suffix(SUFFIX)
    data = encode(rows)
    try:
        known = path.read_bytes() if path.exists() else b""
        if data == known:
            return
        if not data:
            path.unlink()
            return
    except OSError as error:
        raise StorageError(f"{path} cannot be replaced: {error.strerror}; check permissions") from error
    replace_file(path, data)
