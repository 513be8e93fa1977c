"""Nodes that advance over Avro types that are not selected."""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Mapping

import pyarrow as pa

from spark_groupsource.values.avro.avro_columns import AvroNode, Boolean, Bytes, Enum, Fixed, Float, Integer, Null
from spark_groupsource.values.avro.avro_nested import ArrayNode, Branch, RecordNode, UnionNode
from spark_groupsource.values.avro.avro_schema import MAX_DEPTH, AvroType
from spark_groupsource.values.avro.avro_walk import WalkedNode

SCALARS: Mapping[str, Callable[[AvroType, pa.DataType | None], AvroNode]] = {
    "null": lambda writer, kind: Null(kind),
    "boolean": lambda writer, kind: Boolean(kind),
    "float": lambda writer, kind: Float(4, kind),
    "double": lambda writer, kind: Float(8, kind),
    "int": lambda writer, kind: Integer(True, 1, 1, kind),
    "long": lambda writer, kind: Integer(False, 1, 1, kind),
    "bytes": lambda writer, kind: Bytes(kind),
    "string": lambda writer, kind: Bytes(kind),
    "fixed": lambda writer, kind: Fixed(writer.size, kind),
}
"""Nodes of types without others, by kind."""


# a type that is used several times has one node, so that the nodes are no more than the types of the schema
@lru_cache(maxsize=20_000)
def skipped(writer: AvroType) -> AvroNode:
    """Returns the node of a type that is not selected."""
    if writer.is_empty:
        return Null(None)
    if writer.depth > MAX_DEPTH:
        return WalkedNode(writer)
    if writer.kind == "record":
        return RecordNode([("", skipped(field.type)) for field in writer.fields if not field.type.is_empty], {}, None)
    if writer.kind == "union":
        return UnionNode([Branch("", skipped(each)) for each in writer.branches], False, None)
    if writer.items is not None:
        return ArrayNode(skipped(writer.items), writer.kind == "map", writer.items.is_empty, None)
    if writer.kind == "enum":
        return Enum(range(len(writer.symbols)), writer.symbols, None)
    return SCALARS[writer.kind](writer, None)
