"""Values of Kafka's serializers: text, big-endian numbers, UUIDs.

Source: Kafka `org.apache.kafka.common.serialization`.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import (
    bitmap,
    consecutive,
    fixed_width,
    is_valid,
    strings,
    to_numbers,
)
from spark_groupsource.records.columns.binary_columns import is_text, to_binary
from spark_groupsource.values.decoded import Decoded
from spark_groupsource.values.lanes.binary_blocks import as_text, bounds, is_utf8


class _Number(NamedTuple):
    """Layout of a number in bytes, and the type of its column."""

    layout: str
    kind: pa.DataType


NUMBERS = {
    "short": _Number(">i2", pa.int16()),
    "int": _Number(">i4", pa.int32()),
    "long": _Number(">i8", pa.int64()),
    "float": _Number(">f4", pa.float32()),
    "double": _Number(">f8", pa.float64()),
}


class StringDecoder:
    """Text in UTF-8; invalid bytes become U+FFFD, as in Kafka's StringDeserializer. No value is malformed."""

    def decode(self, data: pa.Array) -> Decoded:
        text = as_text(data)
        if not is_utf8(text):
            replaced = [None if each is None else each.decode("utf-8", "replace") for each in data.to_pylist()]
            text = strings(replaced)
        return Decoded(text)


class NumberDecoder:
    """Numbers of a fixed width; a value of another length is malformed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = NUMBERS[name]

    def decode(self, data: pa.Array) -> Decoded:
        layout = np.dtype(self._number.layout)
        payload, starts, ends = bounds(data)
        valid = is_valid(data)
        fits = valid & (ends - starts == layout.itemsize)
        numbers = np.zeros(len(data), layout)
        rows = starts[fits][:, None] + np.arange(layout.itemsize)
        numbers[fits] = payload[rows].view(layout)[:, 0] if len(rows) else []
        malformed = {
            int(row): f"{ends[row] - starts[row]} bytes, {self._name} has {layout.itemsize}"
            for row in np.flatnonzero(valid & ~fits)
        }
        return Decoded(fixed_width(self._number.kind, numbers.astype(layout.newbyteorder("=")), fits), malformed)


class UuidDecoder:
    """UUIDs in text form, as Kafka's UUIDSerializer writes them; the column is their text in lower case."""

    def decode(self, data: pa.Array) -> Decoded:
        text = pc.utf8_lower(as_text(data)) if is_utf8(as_text(data)) else None
        if text is not None:
            is_uuid = pc.match_substring_regex(text, "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
            if pc.all(is_uuid, min_count=0).as_py():
                return Decoded(text)
        values: list[str | None] = []
        malformed = {}
        for row, value in enumerate(data.to_pylist()):
            found = None if value is None else _uuid(value)
            if value is not None and found is None:
                malformed[row] = f"{len(value)} bytes, which are no UUID in text form"
            values.append(found)
        return Decoded(strings(values), malformed)


def _uuid(value: bytes) -> str | None:
    parts = value.split(b"-")
    is_uuid = [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        byte in b"0123456789abcdefABCDEF" for part in parts for byte in part
    )
    return value.decode("ascii").lower() if is_uuid else None


def number_writer(name: str, kind: pa.DataType, column: str) -> Callable[[pa.Array], pa.Array]:
    """Returns the writer of numbers, as Kafka's serializer of this name; a null remains null.

    Args:
        column: for messages.
    Raises: ConfigurationError for a column with other numbers.
    """
    number = NUMBERS[name]
    names = _WRITTEN[name]
    if str(kind) not in names:
        raise ConfigurationError(
            f"Column {column} is {kind}; with {column}.format={name} it must be {' or '.join(names)}. Cast it."
        )

    def write(values: pa.Array) -> pa.Array:
        layout = np.dtype(number.layout)
        data = to_numbers(values).astype(layout)
        found = consecutive(pa.binary(), np.full(len(data), layout.itemsize), data.view(np.uint8))
        return pa.Array.from_buffers(pa.binary(), len(data), [bitmap(is_valid(values)), *found.buffers()[1:]])

    return write


# numbers that each format has without loss
_INTEGERS = ("int8", "int16", "int32", "int64")
_WRITTEN = {
    "short": _INTEGERS[:2],
    "int": _INTEGERS[:3],
    "long": _INTEGERS,
    "float": ("float", *_INTEGERS[:2]),
    "double": ("float", "double", *_INTEGERS[:3]),
}


def uuid_writer(kind: pa.DataType, column: str) -> Callable[[pa.Array], pa.Array]:
    """Returns the writer of UUIDs, which are their text in lower case; a null remains null.

    Raises: ConfigurationError for a column of another type than strings; the writer raises it for another text.
    """
    if not is_text(kind):
        raise ConfigurationError(f"Column {column} is {kind}; with {column}.format=uuid it must be string. Cast it.")

    def write(values: pa.Array) -> pa.Array:
        decoded = UuidDecoder().decode(to_binary(values))
        if decoded.malformed:
            raise ConfigurationError(
                f"Writing column {column} failed: it has {decoded.malformed[min(decoded.malformed)]}. Correct it, or "
                f"set {column}.format to string."
            )
        return to_binary(decoded.values)

    return write
