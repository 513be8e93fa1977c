"""Protobuf values as Python objects for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence, TypeVar

import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import byte_strings
from spark_groupsource.values.decoded import Decoded, Malformed, bounded_reason
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.lanes.avro_lanes import TRAILING
from spark_groupsource.values.lanes.avro_scan import DamagedValueError
from spark_groupsource.values.protobuf.protobuf_blocks import ProtobufDecoder
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles, protobuf_message
from spark_groupsource.values.protobuf.protobuf_types import TooManyMessagesError, column_type, message_type
from spark_groupsource.values.registry.protobuf_indexes import Path, read_indexes

Result = TypeVar("Result")
# how often a message within itself is shown
_DEPTHS = (8, 4)


def shown_column(given: ColumnFormat) -> tuple[ColumnFormat, pa.StructType]:
    """Returns a column with messages within themselves to a depth, and its type. Raises: ConfigurationError."""

    def build(depth: int) -> tuple[ColumnFormat, pa.StructType]:
        deep = replace(given, recursion_depth=depth)
        return deep, column_type(protobuf_message(deep), given.column).type

    return _as_deep(build)


def _as_deep(build: Callable[[int], Result]) -> Result:
    """Returns what is built with the deepest messages that are not too many."""
    for depth in _DEPTHS:
        try:
            return build(depth)
        except TooManyMessagesError:
            continue
    return build(1)


class WrittenProtobuf:
    """Decodes values as the messages of their writer's file, which their indexes name.

    Args:
        convert: returns Python objects of decoded values.
    """

    def __init__(self, files: ProtoFiles, convert: Callable[[Decoded], Sequence[Any]]) -> None:
        self._files = files
        self._convert = convert
        self._decoders: dict[Path, ProtobufDecoder | str] = {}

    def decode(self, values: list[bytes], after_ids: list[bytes | None]) -> list[Any]:
        """Returns Python objects, and a `Malformed` for each malformed value.

        Args:
            after_ids: the indexes in the record headers; None for those in the value.
        """
        found: list[Any] = [None] * len(values)
        rows: dict[Path, list[int]] = {}
        bodies: dict[int, bytes] = {}
        for row, (value, after) in enumerate(zip(values, after_ids)):
            try:
                # an id in a record header without indexes is that of a file with one message
                path, size = read_indexes(value if after is None else after or b"\0")
                if after and size < len(after):
                    raise DamagedValueError(TRAILING)
            except (IndexError, DamagedValueError):
                found[row] = Malformed("it has no message indexes after the id of its schema")
                continue
            bodies[row] = value[size:] if after is None else value
            rows.setdefault(path, []).append(row)
        for path, listed in rows.items():
            decoder = self._decoder(path)
            if isinstance(decoder, str):
                decoded: Sequence[Any] = [Malformed(decoder)] * len(listed)
            else:
                decoded = self._convert(decoder.decode(byte_strings([bodies[row] for row in listed])))
            for row, each in zip(listed, decoded):
                found[row] = each
        return found

    def _decoder(self, path: Path) -> ProtobufDecoder | str:
        if path not in self._decoders:
            self._decoders[path] = self._new_decoder(path)
        return self._decoders[path]

    def _new_decoder(self, path: Path) -> ProtobufDecoder | str:
        name = self._files.names.get(path)
        if name is None:
            return f"its schema has no message with indexes {list(path)}"

        def build(depth: int) -> ProtobufDecoder:
            message = self._files.message("message", name, depth)
            return ProtobufDecoder(message, message_type(message))

        try:
            return _as_deep(build)
        except ConfigurationError as error:
            return bounded_reason(str(error))
