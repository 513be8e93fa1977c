"""Decoding of blocks of Avro values."""

from __future__ import annotations

import pyarrow as pa

from spark_groupsource.values.avro.avro_resolution import resolved
from spark_groupsource.values.avro.avro_schema import AvroType
from spark_groupsource.values.decoded import Decoded
from spark_groupsource.values.lanes.avro_lanes import TRAILING, Lanes
from spark_groupsource.values.lanes.lane_blocks import decode_lanes


class AvroDecoder:
    """Decodes Avro values of one writer's schema, without a header.

    Args:
        reader: schema of the column.
        kind: type of the column; of records, only its fields are decoded.
    Raises: UnresolvedError if values of the writer cannot be read as those of the reader.
    """

    def __init__(self, writer: AvroType, reader: AvroType, kind: pa.DataType) -> None:
        self._kind = kind
        self._node = resolved(writer, reader, kind)

    def decode(self, data: pa.Array) -> Decoded:
        return decode_lanes(data, self._kind, self._read)

    def _read(self, lanes: Lanes) -> pa.Array | None:
        column = self._node.read(lanes)
        lanes.fail(lanes.position != lanes.end, TRAILING)
        return column
