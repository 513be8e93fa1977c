"""Protobuf values as Python objects for people."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import pyarrow as pa

from spark_groupsource.records.arrow_arrays import byte_strings
from spark_groupsource.values.avro_scan import DamagedValueError
from spark_groupsource.values.decoded import Decoded, Malformed, bounded_reason
from spark_groupsource.values.proto_files import InvalidProtoError
from spark_groupsource.values.protobuf_blocks import ProtobufDecoder
from spark_groupsource.values.protobuf_indexes import Path, read_indexes
from spark_groupsource.values.protobuf_schema import ProtoField, ProtoFiles, ProtoMessage

_SCALARS = {
    **dict.fromkeys(("int32", "uint32", "sint32", "fixed32", "sfixed32"), pa.int32()),
    **dict.fromkeys(("int64", "uint64", "sint64", "fixed64", "sfixed64"), pa.int64()),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
_TIMES = {"Timestamp": pa.timestamp("us", tz="UTC"), "Duration": pa.duration("us")}


def plain_message_type(message: ProtoMessage) -> pa.StructType:
    """Returns the Arrow type of the column that `protobuf_types.message_type` describes, without PySpark."""
    found = [(each.name, _field_type(each)) for each in message.fields]
    return pa.struct([pa.field(name, kind) for name, kind in found if kind is not None])


def _field_type(field: ProtoField) -> pa.DataType | None:
    kind = _value_type(field)
    if kind is None or pa.types.is_map(kind) or not field.is_repeated:
        return kind
    return pa.list_(pa.field("element", kind))


def _value_type(field: ProtoField) -> pa.DataType | None:
    if field.message is None:
        return _SCALARS[field.kind]
    if field.message.time:
        return _TIMES[field.message.time]
    if field.message.is_map_entry and field.is_repeated:
        key, value = (_value_type(each) for each in field.message.fields)
        return None if value is None else pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
    found = plain_message_type(field.message)
    return found if found.num_fields else None


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
        try:
            message = self._files.message("message", name)
        except InvalidProtoError as error:
            return bounded_reason(str(error))
        return ProtobufDecoder(message, plain_message_type(message))
