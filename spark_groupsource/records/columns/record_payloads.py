"""Bytes of records by partition, with NumPy.

A slot is the number of a partition among those of an encoder. The lengths and varints of all records are computed as
arrays, and one join of binary columns writes the records.

Source: https://kafka.apache.org/documentation/#record (Kafka `DefaultRecord`).
"""

from __future__ import annotations

from functools import cache
from typing import Callable, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import byte_strings, integers
from spark_groupsource.records.columns.binary_columns import between, binary_bounds, byte_lengths
from spark_groupsource.records.columns.varint_columns import joined_rows, rows_of, varint_widths, varints, zigzag
from spark_groupsource.records.header import HEADER_BYTES
from spark_groupsource.records.key_partitions import Bytes, Numbers, hashes_of_keys

_NULL = 1
# of a record: length, attributes, timestamp delta, offset delta
_MIN_PREFIX_BYTES = 4


class Rows(NamedTuple):
    """Records to write, in order.

    Attributes:
        keys: a binary array; None if all are null.
        values: a binary array.
        headers: the encoded headers of each record with their number; None if no record has one.
        timestamps: in ms.
        slots: the partition of each record.
    """

    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    timestamps: Numbers
    slots: Numbers


class OpenBatches(NamedTuple):
    """The batch of each slot that waits for further records: a number for each slot in each column.

    Attributes:
        counts: number of records; 0 if no batch is open.
        sizes: bytes before compression, with the header of the batch; 0 if no batch is open.
        base_timestamps: of the first record.
    """

    counts: Numbers
    sizes: Numbers
    base_timestamps: Numbers


class Pieces(NamedTuple):
    """Consecutive records of one partition that belong to one batch, a number for each piece; ordered by slot.

    Attributes:
        is_new: True for the first records of a batch; a batch that was open has no room for them and is complete.
        starts, ends: where their bytes are in the payload.
        first_timestamps, max_timestamps: in ms.
    """

    slots: Numbers
    is_new: npt.NDArray[np.bool_]
    counts: Numbers
    starts: Numbers
    ends: Numbers
    first_timestamps: Numbers
    max_timestamps: Numbers


class RecordWriter(NamedTuple):
    """Functions that write records.

    Attributes:
        hashes: see `key_partitions.hashes_of_keys`.
        write: returns the bytes of the records, and the pieces that they are; `OpenBatches` contains them afterwards. A
            batch has at most the given number of bytes, unless it has one record.
    """

    hashes: Callable[[Bytes, Numbers, Numbers], Numbers]
    write: Callable[[Rows, OpenBatches, int], tuple[Bytes, Pieces]]


def write_records(rows: Rows, open_batches: OpenBatches, batch_bytes: int) -> tuple[Bytes, Pieces]:
    """Writes records; see `RecordWriter`."""
    ordered, starts = _by_slot(rows)
    places = _Places(ordered, starts, open_batches, batch_bytes)
    return places.payload(), places.pieces()


def encoded_headers(counts: Numbers, names: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the headers of each record as they are written, with their number.

    Args:
        counts: number of headers of each record.
        names, values: binary arrays of all headers, one record after the other.
    """
    name_sizes, value_sizes = (zigzag(byte_lengths(each)) for each in (names, values))
    written = joined_rows(rows_of([varints(name_sizes)]), names, rows_of([varints(value_sizes)]), values)
    data, bounds = binary_bounds(written)
    ends = np.concatenate(([0], np.cumsum(counts)))
    return joined_rows(rows_of([varints(zigzag(counts))]), between(data, bounds[ends]))


class _Places:
    """The place of each record in the batches, for records that are ordered by slot."""

    def __init__(self, rows: Rows, starts: Numbers, open_batches: OpenBatches, batch_bytes: int) -> None:
        self._rows, self._open, self._limit = rows, open_batches, batch_bytes
        count = len(rows.slots)
        self._key_sizes = None if rows.keys is None else byte_lengths(rows.keys)
        self._value_sizes = byte_lengths(rows.values)
        content = _content_sizes(self._value_sizes)
        content += 1 if self._key_sizes is None else _content_sizes(self._key_sizes)
        content += 1 if rows.headers is None else byte_lengths(rows.headers)
        self._content = content
        # of each piece
        self._slots = rows.slots[starts]
        counts = np.diff(starts, append=count)
        present, sizes = open_batches.counts[self._slots], open_batches.sizes[self._slots]
        first = np.where(present > 0, open_batches.base_timestamps[self._slots], rows.timestamps[starts])
        self._offset_deltas = np.arange(count) - np.repeat(starts - present, counts)
        self._time_deltas = zigzag(rows.timestamps - np.repeat(first, counts))
        self._tails, self._sizes = self._record_sizes(slice(0, count), self._offset_deltas, self._time_deltas)
        room = batch_bytes - np.where(present > 0, sizes, HEADER_BYTES)
        self._starts, self._is_new = starts, present == 0
        is_full = np.add.reduceat(self._sizes, starts) > room
        if is_full.any():
            self._divide(is_full, counts, room)

    def _record_sizes(self, part: slice, offset_deltas: Numbers, time_deltas: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the length of each record as it is written, and its bytes with the length."""
        tails = self._content[part] + 1 + varint_widths(time_deltas) + varint_widths(offset_deltas << 1)
        return tails, tails + varint_widths(tails << 1)

    def _divide(self, is_full: npt.NDArray[np.bool_], counts: Numbers, room: Numbers) -> None:
        """Divides the pieces that do not fit into the open batch of their slot."""
        at_most = np.cumsum(self._content + _MIN_PREFIX_BYTES)
        starts, is_new = [], []
        for start, size, left, is_first, divided in zip(
            self._starts.tolist(), counts.tolist(), room.tolist(), self._is_new.tolist(), is_full.tolist()
        ):
            starts.append(start)
            is_new.append(is_first)
            if not divided:
                continue
            end = start + size
            fitting = int(np.searchsorted(np.cumsum(self._sizes[start:end]), left, "right"))
            if not fitting and not is_first:
                starts.pop()
                is_new.pop()
            start += max(fitting, int(is_first))
            while start < end:
                starts.append(start)
                is_new.append(True)
                before = int(at_most[start - 1]) if start else 0
                last = int(np.searchsorted(at_most, before + self._limit - HEADER_BYTES, "right"))
                part = slice(start, min(end, max(last, start + 1)))
                offset_deltas = np.arange(part.stop - start)
                time_deltas = zigzag(self._rows.timestamps[part] - self._rows.timestamps[start])
                tails, sizes = self._record_sizes(part, offset_deltas, time_deltas)
                fitting = int(np.searchsorted(np.cumsum(sizes), self._limit - HEADER_BYTES, "right"))
                kept = slice(0, max(1, fitting))
                chosen = slice(start, start + kept.stop)
                self._offset_deltas[chosen], self._time_deltas[chosen] = offset_deltas[kept], time_deltas[kept]
                self._tails[chosen], self._sizes[chosen] = tails[kept], sizes[kept]
                start = min(part.stop, chosen.stop)
        self._starts, self._is_new = np.array(starts, np.int64), np.array(is_new, np.bool_)
        self._slots = self._rows.slots[self._starts]

    def payload(self) -> Bytes:
        """Returns the bytes of the records."""
        rows, count = self._rows, len(self._content)
        zeros = np.zeros((count, 1), np.int16)
        value_sizes = varints(zigzag(self._value_sizes))
        begin = [varints(self._tails << 1), zeros, varints(self._time_deltas), varints(self._offset_deltas << 1)]
        parts = []
        if self._key_sizes is None:
            parts.append(rows_of([*begin, np.full((count, 1), _NULL, np.int16), value_sizes]))
        else:
            parts += [rows_of([*begin, varints(zigzag(self._key_sizes))]), rows.keys, rows_of([value_sizes])]
        parts += [rows.values, _no_headers() if rows.headers is None else rows.headers]
        data, bounds = binary_bounds(joined_rows(*parts))
        return data[: int(bounds[-1])]

    def pieces(self) -> Pieces:
        """Returns the pieces, and adds them to the open batches."""
        slots, is_new, starts = self._slots, self._is_new, self._starts
        counts = np.diff(starts, append=len(self._content))
        ends = np.cumsum(np.add.reduceat(self._sizes, starts))
        sizes = np.diff(ends, prepend=0)
        times = self._rows.timestamps
        first = times[starts]
        # the last piece of each slot is that of its open batch
        is_last = np.append(slots[1:] != slots[:-1], True)
        chosen, new = slots[is_last], is_new[is_last]
        opened = self._open
        opened.counts[chosen] = np.where(new, 0, opened.counts[chosen]) + counts[is_last]
        opened.sizes[chosen] = np.where(new, HEADER_BYTES, opened.sizes[chosen]) + sizes[is_last]
        opened.base_timestamps[chosen] = np.where(new, first[is_last], opened.base_timestamps[chosen])
        return Pieces(slots, is_new, counts, ends - sizes, ends, first, np.maximum.reduceat(times, starts))


def _by_slot(rows: Rows) -> tuple[Rows, Numbers]:
    """Returns the records ordered by slot, and where those of each slot start."""
    slots = rows.slots
    if (slots == slots[0]).all():
        return rows, np.zeros(1, np.int64)
    # NumPy sorts numbers of 16 bits by their digits
    small = slots.astype(np.uint16) if int(slots.max()) < 1 << 16 else slots
    order = np.argsort(small, kind="stable")
    at = integers(order)
    keys, values, headers = (None if each is None else each.take(at) for each in rows[:3])
    ordered = Rows(keys, values, headers, rows.timestamps[order], slots[order])
    return ordered, np.append(0, np.flatnonzero(np.diff(ordered.slots)) + 1)


def _content_sizes(lengths: Numbers) -> Numbers:
    """Returns the bytes of fields with these lengths and the varints of the lengths."""
    return np.maximum(lengths, 0) + varint_widths(zigzag(lengths))


@cache
def _no_headers() -> pa.Scalar:
    """Returns the bytes of no headers."""
    return byte_strings([b"\0"])[0]


NUMPY_WRITER = RecordWriter(hashes_of_keys, write_records)
