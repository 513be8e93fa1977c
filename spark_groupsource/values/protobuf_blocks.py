"""Decoding of blocks of Protobuf values.

Source: Confluent wire format (the indexes of the message in its file, after the id of the schema).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_groupsource.values.binary_blocks import bounds, is_valid
from spark_groupsource.values.decoded import Decoded
from spark_groupsource.values.lane_blocks import decode_lanes
from spark_groupsource.values.protobuf_columns import Message
from spark_groupsource.values.protobuf_schema import ProtoMessage
from spark_groupsource.values.schema_headers import NamedSchemas


class ProtobufDecoder:
    """Decodes values of one message.

    Args:
        kind: type of the column, with the selected fields.
    """

    def __init__(self, message: ProtoMessage, kind: pa.DataType) -> None:
        self._kind = kind
        self._message = Message(message, kind)
        self._name = message.name
        self._prefixes = _indexes(message.path)

    def decode(self, data: pa.Array) -> Decoded:
        return decode_lanes(data, self._kind, self._message.read)

    def decode_named(self, named: NamedSchemas) -> Decoded:
        """Decodes values with an id of a schema; after an id in the value follow the indexes of the message."""
        data = named.data
        payload, starts, ends = bounds(data)
        # an id in a record header is the text of a UUID, and has no indexes in the value
        has_indexes = np.zeros(len(data), np.bool_)
        for schema_id, rows in named.rows.items():
            has_indexes[rows] = not isinstance(schema_id, str)
        has_indexes &= is_valid(data)
        skipped = np.full(len(data), -1, np.int64)
        skipped[~has_indexes] = 0
        for prefix in self._prefixes:
            begins = np.flatnonzero((skipped < 0) & (ends - starts >= len(prefix)))
            same = (payload[starts[begins][:, None] + np.arange(len(prefix))] == prefix).all(axis=1)
            skipped[begins[same]] = len(prefix)
        others = np.flatnonzero(skipped < 0)
        malformed = {int(row): f"its message indexes are not those of {self._name}" for row in others}
        if len(others):
            places = np.arange(len(data))
            data = data.take(pa.array(places, mask=skipped < 0))
        found = decode_lanes(data, self._kind, self._message.read, np.maximum(skipped, 0))
        malformed = {**named.malformed, **malformed, **found.malformed}
        schema_ids = {
            int(row): str(schema_id)
            for schema_id, rows in (named.rows if malformed else {}).items()
            for row in rows
            if int(row) in malformed
        }
        return Decoded(found.values, malformed, schema_ids)


def _indexes(path: tuple[int, ...]) -> list[np.ndarray]:
    """Returns the encodings of the indexes of a message; that of the first one in a file has two."""
    encoded = b"".join(_varint(2 * number) for number in (len(path), *path))
    found = [encoded] if path != (0,) else [b"\0", encoded]
    return [np.frombuffer(each, np.uint8) for each in found]


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
