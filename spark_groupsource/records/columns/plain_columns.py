"""Arrow batches of plain records: no headers, no null values.

A compiled reader converts such records in one pass (`compiled_columns`), without the positions of their fields. It
leaves other records, and invalid ones, to `arrow`.
"""

from __future__ import annotations

import sys
from typing import Callable, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import fixed_width
from spark_groupsource.records.columns.arrow_columns import Layout, Selection, columns_schema, record_column
from spark_groupsource.records.columns.header_columns import HeaderColumns
from spark_groupsource.records.parser import Bytes, Ints, RecordFields

_MAX_KEPT_BYTES = 48 << 20
_ROUNDED_BYTES = 1 << 20
_MAX_SKIPPED = 64
_NO_FIELDS = RecordFields(*[np.empty(0, np.int64)] * len(RecordFields._fields))


class Parts(NamedTuple):
    """The record batches of a payload: where the records of each start and end, and their number."""

    starts: Ints
    ends: Ints
    counts: Ints


class BatchBases(NamedTuple):
    """The fields of batch headers from which those of records are computed.

    `factors`: 1 if the timestamp of a record is relative to that of the batch, 0 if it is that of the batch.
    """

    offsets: Ints
    last_deltas: Ints
    timestamps: Ints
    factors: Ints


class Strings(NamedTuple):
    """Byte strings, one after the other; each is between two of `bounds`."""

    data: Bytes
    bounds: npt.NDArray[np.int32]


class PlainColumns(NamedTuple):
    """The columns of records; `keys` is None if all are null."""

    keys: Strings | None
    values: Strings
    offsets: Ints
    timestamps_us: Ints


ReadPlain = Callable[[Bytes, Parts, BatchBases, bool, bool], PlainColumns | None]
"""Reads a payload, with or without keys and values; None if the records are left to another reader."""


class BufferPool:
    """Memory that is used again when nothing refers to it.

    The kernel clears new memory, which takes longer than the copy of the records into it. Threads may share a pool:
    what one looks at is not in the pool.
    """

    def __init__(self) -> None:
        # each in a list of its own, which refers to it
        self._kept: list[list[Bytes]] = []

    def take(self, size: int) -> Bytes:
        """Returns `size` bytes; their content is undefined."""
        others: list[list[Bytes]] = []
        while (memory := self._next()) is not None:
            if _is_unused(memory) and size <= len(memory[0]) <= max(4 * size, _ROUNDED_BYTES):
                break
            others.append(memory)
        else:
            memory = [np.empty(-(-size // _ROUNDED_BYTES) * _ROUNDED_BYTES, np.uint8)]
            others.sort(key=_is_unused)
            while others and _is_unused(others[-1]) and _size([*others, memory]) > _MAX_KEPT_BYTES:
                del others[-1]
        taken = memory[0][:size]
        self._kept += [*others, memory] if _size([*others, memory]) <= _MAX_KEPT_BYTES else others
        return taken

    def _next(self) -> list[Bytes] | None:
        try:
            return self._kept.pop()
        except IndexError:
            return None


def _is_unused(memory: list[Bytes]) -> bool:
    # referred to by the list and the call; an array that was returned, and each view of it, refer to it, too
    return sys.getrefcount(memory[0]) <= 2


def _size(kept: list[list[Bytes]]) -> int:
    return sum(len(memory[0]) for memory in kept)


class PlainReader:
    """Converts groups of records until they are not plain; then it skips 1, 2, 4 and up to 64 groups."""

    def __init__(self) -> None:
        self._skipped = self._to_skip = 0

    def read(
        self, read_plain: ReadPlain, payload: Bytes, parts: Parts, headers: HeaderColumns, layout: Layout
    ) -> pa.RecordBatch | None:
        """Returns the batch of all records, None if they are to be read otherwise."""
        if self._skipped < self._to_skip:
            self._skipped += 1
            return None
        columns = layout.columns
        is_whole = headers.base_offset[0] >= layout.start_offset and headers.last_offset[-1] < layout.end_offset
        if not is_whole or "headers" in columns or not parts.counts.any():
            return None
        found = read_plain(payload, parts, _bases(headers), "key" in columns, "value" in columns)
        self._skipped, self._to_skip = 0, min(max(2 * self._to_skip, 1), _MAX_SKIPPED) if found is None else 0
        return None if found is None else _record_batch(found, parts, headers, layout)


def _bases(headers: HeaderColumns) -> BatchBases:
    appended = headers.is_log_append_time
    timestamps = np.where(appended, headers.max_timestamp, headers.base_timestamp)
    return BatchBases(headers.base_offset, headers.last_offset_delta, timestamps, (~appended).astype(np.int64))


def _record_batch(
    found: PlainColumns, parts: Parts, headers: HeaderColumns, layout: Layout
) -> pa.RecordBatch:
    rows = len(found.offsets)
    built: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: pa.nulls(rows, pa.binary()) if found.keys is None else _binary(found.keys),
        "value": lambda: _binary(found.values),
        "timestamp": lambda: fixed_width(pa.timestamp("us", tz="UTC"), found.timestamps_us),
    }
    selection = Selection(found.values.data, headers, parts.counts, _NO_FIELDS, found.offsets, slice(0, rows))
    arrays = [
        built[name]() if name in built else record_column(name, selection, layout) for name in layout.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(layout.columns))


def _binary(found: Strings) -> pa.Array:
    data = found.data[: found.bounds[-1]]
    return pa.Array.from_buffers(
        pa.binary(), len(found.bounds) - 1, [None, pa.py_buffer(found.bounds), pa.py_buffer(data)]
    )
