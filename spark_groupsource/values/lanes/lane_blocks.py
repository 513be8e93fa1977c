"""Decoding of a block of values as lanes."""

from __future__ import annotations

from typing import Callable

import numpy as np
import pyarrow as pa

from spark_groupsource.records.columns.arrow_arrays import booleans, integers, is_valid
from spark_groupsource.values.decoded import Decoded
from spark_groupsource.values.lanes.avro_lanes import PADDING, REASONS, Lanes
from spark_groupsource.values.lanes.binary_blocks import Ints, bounds


def decode_lanes(
    data: pa.Array, kind: pa.DataType, read: Callable[[Lanes], pa.Array | None], skipped: Ints | None = None
) -> Decoded:
    """Decodes a binary array.

    Args:
        read: reads all lanes, marks malformed ones, and returns their column.
        skipped: bytes at the begin of each value that are no part of it.
    """
    payload, starts, ends = bounds(data)
    valid = is_valid(data)
    if not valid.any():
        return Decoded(pa.nulls(len(data), kind))
    rows = np.flatnonzero(valid)
    padded = np.zeros(len(payload) + PADDING, np.uint8)
    padded[: len(payload)] = payload
    if skipped is not None:
        starts = starts + skipped
    lanes = Lanes(padded, starts[rows], ends[rows].copy())
    column = read(lanes)
    assert column is not None
    failed = np.flatnonzero(lanes.reason)
    malformed = {int(rows[at]): REASONS[int(lanes.reason[at])] for at in failed}
    if not malformed and len(rows) == len(data):
        return Decoded(column)
    if len(rows) == len(data) and pa.types.is_struct(kind) and kind.num_fields:
        # the fields of a malformed value are not null, but their struct is
        is_null = (lanes.reason != 0) | ~is_valid(column)
        fields = [column.field(at) for at in range(kind.num_fields)]
        return Decoded(pa.StructArray.from_arrays(fields, fields=list(kind), mask=booleans(is_null)), malformed)
    places = np.full(len(data), -1, np.int64)
    places[rows] = np.arange(len(rows))
    places[rows[failed]] = -1
    return Decoded(column.take(integers(places, places >= 0)), malformed)
