"""Avro schemas with their names resolved.

A type may contain itself. What a column can have of a schema is decided by `avro_expansion`.

Source: Avro specification 1.12; Avro `Schema.Parser`, which accepts comments.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Mapping, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.format_options import ColumnFormat
from spark_groupsource.values.schema_text import plain_text, without_comments

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MAX_DEPTH = 100
"""Types that may be nested in the text of a schema, and in a column."""
_MAX_FIXED_BYTES = (1 << 31) - 1


@dataclass(frozen=True)
class AvroField:
    """A field of a record; `default` is JSON, None also without."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(eq=False)
class AvroType:
    """A type of a schema; a named type is the same object wherever it is used, also within itself.

    Attributes:
        kind: a primitive type, or record, enum, array, map, fixed, union.
        name: full name of a named type, else empty.
        aliases: of a named type, without namespaces.
        logical: logical type, empty without. That of nanoseconds is a number in Spark.
        fields: of a record.
        symbols: of an enum.
        default: symbol of an enum for those that it does not have, else empty.
        items: of an array, or the values of a map.
        branches: of a union.
        size: bytes of a fixed.
        precision, scale: of a decimal.
        depth: number of types that are nested, itself included; infinite if a type contains itself.
        is_empty: whether values have no bytes.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str = ""
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str = ""
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0
    depth: float = field(init=False, default=math.inf)
    is_empty: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        # the fields of a record follow, because they may contain it
        if self.kind != "record":
            self._complete([*self.branches, *([self.items] if self.items else [])])
            self.is_empty = self.kind == "null" or (self.kind == "fixed" and not self.size)

    def add_fields(self, fields: tuple[AvroField, ...]) -> None:
        """Completes a record."""
        self.fields = fields
        self._complete([each.type for each in fields])
        self.is_empty = all(each.type.is_empty for each in fields)

    def _complete(self, inner: Sequence[AvroType]) -> None:
        self.depth = 1 + max((each.depth for each in inner), default=0)

    @property
    def short_name(self) -> str:
        """Name without the namespace."""
        return self.name.rpartition(".")[2]

    @cached_property
    def only(self) -> AvroType | None:
        """The type of a union in Spark, if it is one type: its only branch other than null, or the wider number."""
        others = [each for each in self.branches if each.kind != "null"]
        if len(others) == 1:
            return others[0]
        wider = _WIDER.get(tuple(sorted(each.kind for each in others)))
        return None if wider is None else AvroType(wider)

    @cached_property
    def read_branches(self) -> tuple[AvroType, ...]:
        """The branches of a union as values are read; two that become one number have no logical types."""
        if self.only is None or self.only in self.branches:
            return self.branches
        return tuple(replace(each, logical="") for each in self.branches)

    @property
    def is_struct(self) -> bool:
        """Whether a union is a struct of its members in Spark."""
        return self.only is None and any(each.kind != "null" for each in self.branches)


_WIDER: Mapping[tuple[str, ...], str] = {("int", "long"): "long", ("double", "float"): "double"}


def parse_avro_schema(source: str, text: str) -> AvroType:
    """Parses a schema in JSON, which may have comments; a bare word is the name of a primitive type.

    Args:
        source: where the schema is, for messages.
    Raises: ConfigurationError that names the source and the type.
    """
    return _Parser(source).parse(_json(source, text), "", 0)


def _json(source: str, text: str) -> Any:
    text = plain_text(text)
    if text in PRIMITIVES:
        return text
    try:
        return json.loads(text if "/" not in text else without_comments(text))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source} is no Avro schema: {str(error)[:200]}. Correct the schema.") from None


@lru_cache(maxsize=32)
def avro_schema(given: ColumnFormat) -> AvroType:
    """Returns the schema of a column. Raises: ConfigurationError."""
    source = f"Option {given.column}.schema"
    if given.reader is not None:
        source = f"The schema of subject {given.reader.subject}"
    return parse_avro_schema(source, given.schema or "")


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._named: dict[str, AvroType] = {}

    def _invalid(self, fact: str) -> ConfigurationError:
        return ConfigurationError(f"{self._source} is no supported Avro schema: {fact}. Correct the schema.")

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:
        """Returns the type; `depth` is the number of types that contain it in the text."""
        if depth > MAX_DEPTH:
            raise self._invalid(f"it is nested deeper than {MAX_DEPTH} types")
        if isinstance(schema, list):
            branches = tuple(self.parse(each, namespace, depth + 1) for each in schema)
            if any(each.kind == "union" for each in branches):
                raise self._invalid("a union has a union as branch")
            return AvroType("union", branches=branches)
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise self._invalid(f"{_shown(schema)} is no type")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, namespace, depth)
        if kind in ("array", "map"):
            items = self.parse(schema.get("items" if kind == "array" else "values"), namespace, depth + 1)
            return AvroType(kind, items=items)
        found = self.parse(kind, namespace, depth + 1)
        return self._logical(found, schema) if found.kind in PRIMITIVES else found

    def _reference(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = _full_name(name, namespace)
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise self._invalid(f"type {_shown(full)} is not defined")
        return found

    def _definition(self, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        name, kind = schema.get("name"), schema["type"]
        if not _is_name(name):
            raise self._invalid(f"a {kind} has no name")
        full = _full_name(str(name), schema.get("namespace", namespace))
        aliases = _names(schema.get("aliases"))
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(map(_is_name, symbols)):
                raise self._invalid(f"enum {_shown(full)} has no list of symbols")
            default = schema["default"] if schema.get("default") in symbols else ""
            found = AvroType("enum", full, aliases, symbols=tuple(symbols), default=default)
        elif kind == "fixed":
            size = schema.get("size")
            if type(size) is not int or not 0 <= size <= _MAX_FIXED_BYTES:
                raise self._invalid(f"fixed {_shown(full)} has no size from 0 to {_MAX_FIXED_BYTES}")
            found = self._logical(AvroType("fixed", full, aliases, size=size), schema)
        else:
            found = self._named[full] = AvroType("record", full, aliases)
            found.add_fields(self._fields(schema.get("fields"), full, depth + 1))
        self._named[full] = found
        return found

    def _fields(self, given: Any, record: str, depth: int) -> tuple[AvroField, ...]:
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise self._invalid(f"record {_shown(record)} has no list of fields")
        if not all(_is_name(each.get("name")) for each in given):
            raise self._invalid(f"record {_shown(record)} has a field without a name")
        fields = tuple(self._field(each, record.rpartition(".")[0], depth) for each in given)
        if len({each.name for each in fields}) != len(fields):
            raise self._invalid(f"record {_shown(record)} has a field twice")
        return fields

    def _field(self, given: Mapping[str, Any], namespace: str, depth: int) -> AvroField:
        kind = self.parse(given.get("type"), namespace, depth)
        has_default = "default" in given
        return AvroField(given["name"], kind, _names(given.get("aliases")), has_default, given.get("default"))

    def _logical(self, found: AvroType, schema: Mapping[str, Any]) -> AvroType:
        """Adds the logical type; one that does not fit its type is ignored, as the specification requires."""
        logical = schema.get("logicalType", "")
        if logical == "decimal" and found.kind in ("bytes", "fixed"):
            precision, scale = schema.get("precision", 0), schema.get("scale", 0)
            if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
                return found
            if found.kind == "fixed" and precision > math.floor((8 * found.size - 1) * math.log10(2)):
                # Avro's LogicalTypes.Decimal ignores a precision that the size cannot hold
                return found
            return replace(found, logical="decimal", precision=precision, scale=scale)
        return replace(found, logical=logical) if logical in _LOGICAL.get(found.kind, ()) else found


_LOGICAL: Mapping[str, tuple[str, ...]] = {
    "int": ("date",),
    "long": tuple(f"{kind}timestamp-{unit}" for kind in ("", "local-") for unit in ("millis", "micros", "nanos")),
}


def _is_name(given: Any) -> bool:
    """Returns whether a name of JSON is text; a surrogate that an escape has alone is none."""
    return isinstance(given, str) and bool(given) and not any("\ud800" <= each <= "\udfff" for each in given)


def _shown(given: Any) -> str:
    return str(given)[:60].encode(errors="replace").decode()


def _full_name(name: str, namespace: Any) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _names(given: Any) -> tuple[str, ...]:
    """Returns aliases without their namespaces; names are compared without them."""
    return tuple(str(each).rpartition(".")[2] for each in given) if isinstance(given, list) else ()
