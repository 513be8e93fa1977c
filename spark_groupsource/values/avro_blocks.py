"""Decoding of blocks of Avro values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_groupsource.values.avro_columns import node
from spark_groupsource.values.avro_lanes import PADDING, REASONS, TRAILING, Lanes
from spark_groupsource.values.avro_schema import AvroType
from spark_groupsource.values.binary_blocks import bounds, is_valid
from spark_groupsource.values.decoded import Decoded


class AvroDecoder:
    """Decodes Avro values of one writer's schema, without a header.

    Args:
        kind: type of the column; of records, only its fields are decoded.
    """

    def __init__(self, writer: AvroType, kind: pa.DataType) -> None:
        self._kind = kind
        self._node = node(writer, kind)

    def decode(self, data: pa.Array) -> Decoded:
        payload, starts, ends = bounds(data)
        valid = is_valid(data)
        if not valid.any():
            return Decoded(pa.nulls(len(data), self._kind))
        rows = np.flatnonzero(valid)
        padded = np.zeros(len(payload) + PADDING, np.uint8)
        padded[: len(payload)] = payload
        lanes = Lanes(padded, starts[rows], ends[rows].copy())
        column = self._node.read(lanes)
        assert column is not None
        lanes.fail(lanes.position != lanes.end, TRAILING)
        failed = np.flatnonzero(lanes.reason)
        malformed = {int(rows[at]): REASONS[int(lanes.reason[at])] for at in failed}
        if not malformed and len(rows) == len(data):
            return Decoded(column)
        places = np.full(len(data), -1, np.int64)
        places[rows] = np.arange(len(rows))
        places[rows[failed]] = -1
        return Decoded(column.take(pa.array(places, mask=places < 0)), malformed)
