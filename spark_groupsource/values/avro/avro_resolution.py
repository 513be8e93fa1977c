"""Resolution of a writer's Avro schema by that of the reader.

Source: Avro specification 1.12 (schema resolution), Avro `Resolver` (the choice of a union's branch).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Mapping

import pyarrow as pa

from spark_groupsource.values.avro.avro_columns import (
    AvroNode,
    Boolean,
    Bytes,
    Enum,
    Fixed,
    Float,
    Integer,
    Mismatch,
    Null,
)
from spark_groupsource.values.avro.avro_defaults import default_value
from spark_groupsource.values.avro.avro_nested import ArrayNode, Branch, MemberNode, RecordNode, UnionNode
from spark_groupsource.values.avro.avro_schema import MAX_DEPTH, AvroField, AvroType
from spark_groupsource.values.avro.avro_walk import WalkedNode

_PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NANOS = {"-millis": 1_000_000, "-micros": 1000, "-nanos": 1}
_NAMED = ("record", "error", "enum", "fixed")
# nodes of types without others, by kind
_SCALARS: Mapping[str, Callable[[AvroType, pa.DataType | None], AvroNode]] = {
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


class UnresolvedError(ValueError):
    """The writer's schema cannot be read as the reader's; the message is the reason."""


def resolved(writer: AvroType, reader: AvroType, kind: pa.DataType | None, path: str = "value") -> AvroNode:
    """Returns the node that reads values of the writer.

    Args:
        kind: type of the column, with the selected fields of the reader; None for one that is only skipped.
        path: names of the fields, for the reason.
    Raises: UnresolvedError.
    """
    if kind is None:
        return skipped(writer)
    if writer.kind == "union":
        return _from_union(writer, reader, kind, path)
    if reader.kind == "union":
        branch = _to_union(writer, reader, kind, path)
        is_member = reader.is_struct and writer.kind != "null"
        return MemberNode(branch.member, branch.node, kind) if is_member else branch.node
    if not _fits(writer, reader):
        raise _mismatch(writer, reader, path)
    return _SELECTED[writer.kind](writer, reader, kind, path)


def _mismatch(writer: AvroType, reader: AvroType, path: str) -> UnresolvedError:
    fact = f"was written as {_shown(writer)}, the schema of the query has {_shown(reader)}"
    return UnresolvedError(f"field {path} {fact}")


def _shown(avro: AvroType) -> str:
    if avro.logical == "decimal":
        return f"decimal({avro.precision},{avro.scale})"
    if avro.kind == "fixed":
        return f"fixed {avro.name} of {avro.size} bytes"
    return f"{avro.kind} {avro.name or avro.logical}".rstrip()[:60]


def _fits(writer: AvroType, reader: AvroType) -> bool:
    """Returns whether the outermost types match."""
    if writer.kind != reader.kind:
        is_promoted = reader.kind in _PROMOTIONS.get(writer.kind, ())
        return is_promoted and (not writer.logical or not reader.logical) and reader.logical != "decimal"
    if writer.kind in _NAMED and writer.short_name not in (reader.short_name, *reader.aliases):
        return False
    if writer.size != reader.size:
        return False
    if writer.logical == reader.logical == "decimal":
        return writer.scale == reader.scale and writer.precision <= reader.precision
    return not writer.logical or not reader.logical or _unitless(writer.logical) == _unitless(reader.logical)


def _unitless(logical: str) -> str:
    return logical.rpartition("-")[0] if logical.endswith(tuple(_NANOS)) else logical


def _integer(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> AvroNode:
    # the number of a writer without unit has that of the reader
    unit = writer.logical if reader.logical and writer.logical else reader.logical
    written = next((nanos for suffix, nanos in _NANOS.items() if unit.endswith(suffix)), 0)
    # the column of a time has microseconds, that of nanoseconds is a number of them
    target = _NANOS["-nanos" if reader.logical.endswith("-nanos") else "-micros"]
    if not written:
        return Integer(writer.kind == "int", 1, 1, kind)
    return Integer(writer.kind == "int", max(written // target, 1), max(target // written, 1), kind)


def _enum(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> AvroNode:
    places = {symbol: place for place, symbol in enumerate(reader.symbols)}
    other = places.get(reader.default, -1)
    return Enum([places.get(symbol, other) for symbol in writer.symbols], reader.symbols, kind)


def _array(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> AvroNode:
    assert writer.items is not None and reader.items is not None
    is_map = writer.kind == "map"
    item = resolved(writer.items, reader.items, kind.item_type if is_map else kind.value_type, f"{path}.element")
    return ArrayNode(item, is_map, writer.items.is_empty, kind)


def _record(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> AvroNode:
    selected = {field.name: field.type for field in kind}
    known = {field.name: field for field in writer.fields}
    source: dict[str, AvroField] = {}
    defaults = {}
    for field in reader.fields:
        if field.name not in selected:
            continue
        written = next((known[name] for name in (field.name, *field.aliases) if name in known), None)
        if written is None:
            defaults[field.name] = _default(field, selected[field.name], f"{path}.{field.name}")
        else:
            source[written.name] = field
    fields = []
    for written in writer.fields:
        target = source.get(written.name)
        if target is None:
            fields.append(("", skipped(written.type)))
        else:
            inner = f"{path}.{target.name}".removeprefix("value.")
            fields.append((target.name, resolved(written.type, target.type, selected[target.name], inner)))
    return RecordNode(fields, defaults, kind)


def _default(field: AvroField, kind: pa.DataType, path: str) -> pa.Array:
    path = path.removeprefix("value.")
    if not field.has_default:
        raise UnresolvedError(f"field {path} was not written, and the schema of the query has no default for it")
    try:
        return pa.array([default_value(field.type, field.default, kind)], kind)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise UnresolvedError(f"the default of field {path} is invalid: {str(error)[:100]}") from None


def _from_union(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> AvroNode:
    is_struct = reader.kind == "union" and reader.is_struct
    branches, problems = [], []
    for branch in writer.branches:
        try:
            if reader.kind == "union":
                branches.append(_to_union(branch, reader, kind, path))
            else:
                branches.append(Branch("", resolved(branch, reader, kind, path)))
        except UnresolvedError as error:
            problems.append(error)
            branches.append(Branch("", Mismatch(kind)))
    if problems and len(problems) == len(branches):
        raise problems[0]
    return UnionNode(branches, is_struct, kind)


def _to_union(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> Branch:
    """Returns the first branch of the reader's union that is the same type, else the first that it can be read as."""
    members = [each for each in reader.branches if each.kind != "null"]
    exact = [each for each in reader.read_branches if each.kind == writer.kind and each.name == writer.name]
    for branch in [*exact, *(each for each in reader.read_branches if each not in exact)]:
        if not _fits(writer, branch):
            continue
        try:
            if branch.kind == "null" or not reader.is_struct:
                return Branch("", resolved(writer, branch, kind, path))
            member = f"member{members.index(branch)}"
            index = kind.get_field_index(member)
            if index < 0:
                return Branch(_UNSELECTED, skipped(writer))
            return Branch(member, resolved(writer, branch, kind.field(index).type, path))
        except UnresolvedError:
            continue
    raise _mismatch(writer, reader, path)


# a member that is not selected
_UNSELECTED = "-"


def _scalar(writer: AvroType, reader: AvroType, kind: pa.DataType, path: str) -> AvroNode:
    return _SCALARS[writer.kind](writer, kind)


_SELECTED: Mapping[str, Callable[[AvroType, AvroType, pa.DataType, str], AvroNode]] = {
    **dict.fromkeys(_SCALARS, _scalar),
    "int": _integer,
    "long": _integer,
    "enum": _enum,
    "record": _record,
    "array": _array,
    "map": _array,
}


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
    return _SCALARS[writer.kind](writer, None)
