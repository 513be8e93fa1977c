"""Transaction index: aborted transactions of a partition, which read_committed consumers skip.

The index of a segment is a ``.txnindex`` file in Kafka's format, with the transactions whose abort marker is in the
segment.

Source: KIP-98; Kafka `TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

from spark_groupsource.errors import CorruptRecordError, StorageError
from spark_groupsource.storage.files import replace_file

TXN_INDEX_SUFFIX = ".txnindex"
_VERSION = 0
# version, producer id, first offset, last offset, last stable offset
_ROW = struct.Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    """One aborted transaction: its records are from `first_offset` to before its marker at `last_offset`.

    `last_stable_offset` is that of the log after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_rows(rows: Iterable[AbortedTxn]) -> bytes:
    """The content of an index file."""
    return b"".join(_ROW.pack(_VERSION, *row) for row in rows)


def decode_rows(data: bytes) -> list[AbortedTxn]:
    """The rows of an index file, in the order of their markers.

    Raises: CorruptRecordError when the content is invalid.
    """
    if len(data) % _ROW.size:
        raise CorruptRecordError(f"A transaction index has {len(data)} bytes, no multiple of {_ROW.size}.")
    rows = []
    last = -1
    for version, *values in _ROW.iter_unpack(data):
        row = AbortedTxn(*values)
        if version != _VERSION or row.first_offset < 0 or not max(row.first_offset, last) < row.last_offset:
            raise CorruptRecordError(f"A transaction index has an invalid row: version {version}, {row}.")
        rows.append(row)
        last = row.last_offset
    return rows


class TransactionIndex:
    """Aborted transactions of one partition, in the order of their markers."""

    __slots__ = ("_ends", "_rows")

    def __init__(self, rows: Sequence[AbortedTxn] = ()) -> None:
        self._rows = list(rows)
        self._ends = [row.last_offset for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: AbortedTxn) -> None:
        """Adds a transaction whose abort marker is after all others."""
        self._rows.append(row)
        self._ends.append(row.last_offset)

    def between(self, start: int, end: int) -> list[AbortedTxn]:
        """The transactions whose marker is from offset `start` (included) to `end` (excluded)."""
        return self._rows[bisect_left(self._ends, start) : bisect_left(self._ends, end)]

    def overlapping(self, start: int, end: int) -> list[AbortedTxn]:
        """The transactions with records or the marker from offset `start` (included) to `end` (excluded).

        As in Kafka, the search ends at a last stable offset of at least `end`: later transactions begin there.
        """
        found = []
        for index in range(bisect_left(self._ends, start), len(self._rows)):
            row = self._rows[index]
            if row.first_offset < end:
                found.append(row)
            if row.last_stable_offset >= end:
                break
        return found

    def remove_before(self, offset: int) -> None:
        """Removes the transactions whose marker is below `offset`, which became the log start offset."""
        self.replace(0, offset, ())

    def replace(self, start: int, end: int, rows: Sequence[AbortedTxn]) -> None:
        """Replaces the transactions whose marker is from `start` (included) to `end` (excluded)."""
        first, last = bisect_left(self._ends, start), bisect_left(self._ends, end)
        self._rows[first:last] = rows
        self._ends[first:last] = [row.last_offset for row in rows]


def read_rows(directory: Path, before: int) -> list[AbortedTxn]:
    """The rows of the index files of a partition, of segments with a base offset below `before`.

    Raises: CorruptRecordError when one is corrupt; StorageError when one cannot be read.
    """
    rows: list[AbortedTxn] = []
    for path in sorted(directory.glob(f"[0-9]*{TXN_INDEX_SUFFIX}")):
        if not path.stem.isdigit():
            continue
        if int(path.stem) >= before:
            break
        try:
            rows += decode_rows(path.read_bytes())
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}. Restore it from a copy.") from error
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{path}: {error}") from error
    return rows


def append_row(log_path: Path, row: AbortedTxn) -> None:
    """Adds a row to the index of the segment `log_path`.

    Raises: StorageError.
    """
    path = log_path.with_suffix(TXN_INDEX_SUFFIX)
    try:
        with open(path, "ab") as file:
            file.write(encode_rows([row]))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}. Free space or check the disk.") from error


def write_rows(log_path: Path, rows: Sequence[AbortedTxn]) -> None:
    """Replaces the index of the segment `log_path`; an empty index has no file.

    Raises: StorageError.
    """
    path = log_path.with_suffix(TXN_INDEX_SUFFIX)
    data = encode_rows(rows)
    try:
        known = path.read_bytes() if path.exists() else b""
        if data == known:
            return
        if not data:
            path.unlink()
            return
    except OSError as error:
        raise StorageError(f"{path} cannot be replaced: {error.strerror}. Check permissions.") from error
    replace_file(path, data)
