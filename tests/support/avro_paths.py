"""Every way in which an Avro value is read, compared.

Values of a block advance together, items of long arrays are found one by one, and what is not selected is skipped. The
result for a value must not depend on the way, nor on the other values of the block.
"""

from __future__ import annotations

from typing import Iterator
from unittest.mock import patch

import pyarrow as pa
from support.avro_reference import raw_rows

from spark_groupsource.values.avro import avro_nested, avro_resolution
from spark_groupsource.values.avro.avro_blocks import AvroDecoder, WrittenAvroDecoder
from spark_groupsource.values.avro.avro_schema import AvroType
from spark_groupsource.values.registry.schema_headers import read_confluent

Outcome = tuple[str, "str | None"]
"""The value as text, and why it is malformed."""
# an integer of ten bytes, bytes that are no value of most schemas, none, and a tombstone
_NEIGHBORS: tuple[bytes | None, ...] = (b"\xff" * 9 + b"\x01", b"\x80" * 30, b"", None)


def outcomes(decoder: AvroDecoder, data: list[bytes | None]) -> list[Outcome]:
    """Returns the outcome of each value of one block."""
    found = decoder.decode(pa.array(data, pa.binary()))
    found.values.validate(full=True)
    assert not any(found.values[row].is_valid for row in found.malformed)
    return [(repr(each), found.malformed.get(row)) for row, each in enumerate(raw_rows(found.values))]


def paths(
    writer: AvroType, reader: AvroType, kind: pa.DataType, data: list[bytes]
) -> Iterator[tuple[str, list[Outcome]]]:
    """Returns the name of each way, and the outcomes of the values."""
    decoder = AvroDecoder(writer, reader, kind)
    yield "together", outcomes(decoder, list(data))
    # with the path that an array takes in a small block
    yield "alone", [outcomes(decoder, [each])[0] for each in data]
    mixed = [other for each in data for other in (each, *_NEIGHBORS)]
    yield "beside others", outcomes(decoder, mixed)[:: 1 + len(_NEIGHBORS)]
    yield "in a slice", _sliced(decoder, data)
    with patch.object(avro_nested, "_FEW_LANES", 0):
        yield "arrays together", outcomes(decoder, list(data))
    for piece in (1, 3):
        with patch.object(avro_nested, "_FEW_LANES", 1 << 30), patch.object(avro_nested, "_PIECE", piece):
            yield f"arrays by {piece} items", outcomes(decoder, list(data))
    with patch.object(avro_resolution, "MAX_DEPTH", 0):
        avro_resolution.skipped.cache_clear()
        yield "skipped one by one", outcomes(AvroDecoder(writer, reader, kind), list(data))
    avro_resolution.skipped.cache_clear()


def _sliced(decoder: AvroDecoder, data: list[bytes]) -> list[Outcome]:
    values = pa.array([b"\x01\x02", *data, b"\xff"], pa.binary()).slice(1, len(data))
    found = decoder.decode(values)
    return [(repr(each), found.malformed.get(row)) for row, each in enumerate(raw_rows(found.values))]


class _Registry:
    """Two ids of the same schema, and one of another."""

    def __init__(self, text: str) -> None:
        self._texts = {1: text, 2: text, 3: '"string"'}

    def schema(self, schema_id: int) -> str | None:
        return self._texts.get(schema_id)


def check_written(text: str, reader: AvroType, kind: pa.DataType, data: list[bytes], expected: list[Outcome]) -> None:
    """Compares the values beside values of other schemas, each named by an id.

    Args:
        text: the writer's schema.
        expected: the outcomes of the values alone.
    Raises: AssertionError for another outcome.
    """
    values: list[bytes | None] = []
    for row, each in enumerate(data):
        values += [b"\0\0\0\0" + bytes([1 + row % 2]) + each, b"\0\0\0\0\3\2a", None, b"\0\0\0\0\4", b"no"]
    named = read_confluent(pa.array(values, pa.binary()), None, "header")
    found = WrittenAvroDecoder(_Registry(text), reader, kind).decode_named(named)  # type: ignore[arg-type]
    found.values.validate(full=True)
    shown = [(repr(each), found.malformed.get(row)) for row, each in enumerate(raw_rows(found.values))][::5]
    for value, one, other in zip(data, expected, shown):
        assert one == other, f"{value.hex()} is {one} alone, and {other} beside other schemas"


def check_paths(writer: AvroType, reader: AvroType, kind: pa.DataType, data: list[bytes]) -> list[Outcome]:
    """Returns the outcomes. Raises: AssertionError if a way has others."""
    expected: list[Outcome] | None = None
    for name, found in paths(writer, reader, kind, data):
        expected = expected or found
        for value, one, other in zip(data, expected, found):
            assert one == other, f"{value.hex()} is {one} together, and {other} {name}"
    return expected or []
