"""Transaction index: aborted transactions of a partition, which read_committed consumers skip.

The index of a segment is a ``.txnindex`` file in Kafka's format, with the transactions whose abort marker is in the
segment.

Source: KIP-98; Kafka `TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right, insort
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from spark_groupsource.broker.storage.files import read_exactly, replace_file, write_exactly
from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import CorruptRecordError, StorageError

TXN_INDEX_SUFFIX = ".txnindex"
_VERSION = 0
# version, producer id, first offset, last offset, last stable offset
_ROW = struct.Struct(">hqqqq")
_COLUMNS = [
    ("version", ">i2"), ("producer_id", ">i8"), ("first_offset", ">i8"), ("last_offset", ">i8"),
    ("last_stable_offset", ">i8"),
]  # fmt: skip
_FIRST_BLOCK_ROWS = 128


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
    """Aborted transactions of the partition in `directory`, in the order of their markers.

    They are read from the files: a client can abort any number of transactions, so memory has only their number by
    segment.
    """

    __slots__ = ("_bases", "_counts", "_directory")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._bases: list[int] = []  # of the segments with aborted transactions, in ascending order
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    # --- changes ---

    def load(self, before: int) -> None:
        """Counts the rows of segments with a base offset below `before`.

        Raises: CorruptRecordError when one is corrupt; StorageError when one cannot be read.
        """
        for path in sorted(Path(self._directory).glob(f"[0-9]*{TXN_INDEX_SUFFIX}")):
            if path.stem.isdigit() and int(path.stem) < before:
                self._set_count(int(path.stem), len(_read_file(path)))

    def add(self, base_offset: int, row: AbortedTxn) -> bool:
        """Adds a transaction whose abort marker is after all others, in the segment with this base offset.

        Returns: whether it is the first one of the segment, whose file may be new.

        Raises: StorageError.
        """
        count, path = self._counts.get(base_offset, 0), self._path(base_offset)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_exactly(descriptor, encode_rows([row]), count * _ROW.size)
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = describe_os_error(error, "Free space or check the disk.")
            raise StorageError(f"{path} cannot be written: {reason}") from error
        self._set_count(base_offset, count + 1)
        return not count

    def rows_below(self, base_offset: int, offset: int) -> list[AbortedTxn]:
        """The transactions of a segment whose marker is below `offset`. Raises: StorageError, CorruptRecordError."""
        rows = _read_file(self._path(base_offset)) if base_offset in self._counts else []
        return [row for row in rows if row.last_offset < offset]

    def write(self, base_offset: int, rows: Sequence[AbortedTxn]) -> None:
        """Replaces the transactions of a segment; an empty index has no file. Durable on return.

        Raises: StorageError.
        """
        path, data = self._path(base_offset), encode_rows(rows)
        try:
            known = path.read_bytes() if path.exists() else b""
            if known and not data:
                path.unlink()
        except OSError as error:
            reason = describe_os_error(error, "Check permissions.")
            raise StorageError(f"{path} cannot be replaced: {reason}") from error
        if data and data != known:
            replace_file(path, data)
        self._set_count(base_offset, len(rows))

    def segments_replaced(self, base_offset: int, end: int, count: int) -> None:
        """Must be called when a file with `count` rows has replaced those of the segments up to offset `end`."""
        for base in [base for base in self._bases if base_offset <= base < end]:
            self._set_count(base, 0)
        self._set_count(base_offset, count)

    def remove_before(self, base_offset: int) -> None:
        """Must be called when the segments with a lower base offset were deleted."""
        for base in self._bases[: bisect_left(self._bases, base_offset)]:
            self._set_count(base, 0)

    def _set_count(self, base_offset: int, count: int) -> None:
        if count and base_offset not in self._counts:
            insort(self._bases, base_offset)
        elif not count and base_offset in self._counts:
            self._bases.remove(base_offset)
        if count:
            self._counts[base_offset] = count
        else:
            self._counts.pop(base_offset, None)

    # --- search ---

    def overlapping(self, start: int, end: int) -> list[AbortedTxn]:
        """The transactions with records or the marker from offset `start` (included) to `end` (excluded).

        As in Kafka, the search ends at a last stable offset of at least `end`: later transactions begin there.

        Raises: StorageError.
        """
        import numpy as np  # with the first aborted transaction only

        found: list[AbortedTxn] = []
        for base in self._bases[max(bisect_right(self._bases, start) - 1, 0) :]:
            for data in self._blocks(base, start):
                rows = np.frombuffer(data, _COLUMNS)
                reached = np.flatnonzero(rows["last_stable_offset"] >= end)
                if len(reached):
                    rows = rows[: reached[0] + 1]
                overlapping = rows[rows["first_offset"] < end]
                found += [AbortedTxn(*values) for _, *values in overlapping.tolist()]
                if len(reached):
                    return found
        return found

    def _blocks(self, base_offset: int, start: int) -> Iterator[bytes]:
        """Rows of a segment from the first one whose marker is not below `start` on, in blocks of increasing size."""
        count, path = self._counts[base_offset], self._path(base_offset)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            reason = describe_os_error(error, "Restore it from a copy.")
            raise StorageError(f"{path} cannot be opened: {reason}") from error
        try:

            def marker_at(number: int) -> int:
                data = read_exactly(descriptor, _ROW.size, number * _ROW.size, path)
                return AbortedTxn(*_ROW.unpack(data)[1:]).last_offset

            first = 0 if start <= base_offset else bisect_left(_Numbers(count, marker_at), start)
            size = _FIRST_BLOCK_ROWS
            while first < count:
                size = min(size, count - first)
                yield read_exactly(descriptor, size * _ROW.size, first * _ROW.size, path)
                first += size
                size *= 4
        finally:
            os.close(descriptor)

    def _path(self, base_offset: int) -> Path:
        return Path(f"{self._directory}{os.sep}{base_offset:020d}{TXN_INDEX_SUFFIX}")


class _Numbers(Sequence[int]):
    """The values of a function of the numbers below `count`, which ascend."""

    def __init__(self, count: int, value_at: Callable[[int], int]) -> None:
        self._count = count
        self._value_at = value_at

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        return self._value_at(number)


def _read_file(path: Path) -> list[AbortedTxn]:
    """Raises: CorruptRecordError, StorageError."""
    try:
        return decode_rows(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {describe_os_error(error, 'Restore it from a copy.')}") from error
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{path}: {error}") from error
