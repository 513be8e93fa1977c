"""Values of Avro and Protobuf that the decoders of columns return."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from operator import itemgetter
from typing import Any, Callable, Sequence

import fastavro
import pyarrow as pa
from pyspark.sql.types import DataType

from spark_groupsource.records.columns.arrow_arrays import byte_strings
from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.avro.avro_blocks import AvroDecoder
from spark_groupsource.values.avro.avro_expansion import ExpansionRules, expanded
from spark_groupsource.values.avro.avro_schema import AvroType, parse_avro_schema
from spark_groupsource.values.avro.avro_types import spark_type
from spark_groupsource.values.decoded import Decoded
from spark_groupsource.values.protobuf.protobuf_blocks import ProtobufDecoder
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles
from spark_groupsource.values.protobuf.protobuf_types import message_type


def parsed_avro(schema: Any) -> AvroType:
    return parse_avro_schema("Option value.schema", json.dumps(schema))


def spark_column(schema: Any, recursion_depth: int = -1) -> DataType:
    """Returns the type of a column of Spark."""
    return spark_type(expanded(parsed_avro(schema), ExpansionRules("value", recursion_depth)).type)


def decode_avro(
    writer: Any, reader: Any, data: Sequence[bytes | None], *fields: str, recursion_depth: int = -1
) -> Decoded:
    source, target = parsed_avro(writer), parsed_avro(reader)
    kind = arrow_type(spark_column(reader, recursion_depth), "value")
    kind = pa.struct([kind.field(name) for name in fields]) if fields else kind
    found = AvroDecoder(source, target, kind).decode(byte_strings(data))
    found.values.validate(full=True)
    return found


def encode_avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def protobuf_decoder(descriptor_set: bytes, name: str, *fields: str) -> ProtobufDecoder:
    message = ProtoFiles("Option value.schema", b64encode(descriptor_set).decode()).message("value.message.name", name)
    kind = message_type(message)
    return ProtobufDecoder(message, pa.struct([kind.field(name) for name in fields]) if fields else kind)


def decode_protobuf(descriptor_set: bytes, name: str, data: list[bytes | None], *fields: str) -> Decoded:
    found = protobuf_decoder(descriptor_set, name, *fields).decode(byte_strings(data))
    found.values.validate(full=True)
    return found


def ordered(value: Any, key: Callable[[Any], Any] = itemgetter(0)) -> Any:
    """Returns decoded values with the entries of maps in order."""
    if isinstance(value, dict):
        return {name: ordered(each, key) for name, each in value.items()}
    if isinstance(value, list):
        found = [ordered(each, key) for each in value]
        return sorted(found, key=key) if found and isinstance(found[0], tuple) else found
    return tuple(ordered(each, key) for each in value) if isinstance(value, tuple) else value
