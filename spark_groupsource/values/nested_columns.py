"""Parts of nested Arrow columns, and columns of bytes joined by list."""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import bitmap, booleans, integers, is_valid, to_numbers


class ListParts(NamedTuple):
    """The elements of all lists of a column, one list after the other, or the entries of all maps.

    Attributes:
        counts: number of elements of each list; 0 of a null.
        items: the elements; of maps, structs of key and value.
    """

    counts: npt.NDArray[np.int64]
    items: pa.Array

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Where the elements of each list start, and the end of the last one."""
        return np.concatenate(([0], np.cumsum(self.counts)))


def list_parts(column: pa.Array) -> ListParts:
    """Returns the elements of a column of lists or maps."""
    if not len(column):
        return ListParts(np.zeros(0, np.int64), column.values[:0])
    offsets = to_numbers(column.offsets).astype(np.int64)
    valid = is_valid(column)
    lengths = np.diff(offsets)
    counts = np.where(valid, lengths, 0)
    items = column.values[int(offsets[0]) : int(offsets[-1])]
    if int(counts.sum()) < len(items):
        # a null may refer to elements
        items = items.filter(booleans(np.repeat(valid, lengths)))
    return ListParts(counts, items)


def as_lists(column: pa.Array, parts: ListParts, values: pa.Array) -> pa.Array:
    """Returns lists of values, one for each element of a column's lists."""
    offsets = pa.py_buffer(parts.bounds.astype(np.int32))
    return pa.Array.from_buffers(
        pa.list_(values.type), len(column), [bitmap(is_valid(column)), offsets], children=[values]
    )


def restored(column: pa.Array, write: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Returns what `write` returns for the values that are not null, and null for a null."""
    if not column.null_count:
        return write(column)
    valid = is_valid(column)
    places = np.cumsum(valid) - 1
    return write(column.filter(booleans(valid))).take(integers(places, valid))
