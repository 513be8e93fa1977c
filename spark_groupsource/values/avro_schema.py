"""Avro schemas: names resolved, recursion and unknown types rejected.

Source: Avro specification 1.12, Spark `SchemaConverters` (types of columns).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Mapping, Sequence

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.options import ColumnFormat

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_MAX_DEPTH = 100
# a named type that is used several times is read, and is a column, at each place
_MAX_TYPES = 20_000
_MAX_FIXED_BYTES = (1 << 31) - 1
_DECIMAL_DIGITS = 38


@dataclass(frozen=True)
class AvroField:
    """A field of a record; `default` is JSON, None also without."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True)
class AvroType:
    """A type of a schema, without references to other types.

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

    @property
    def short_name(self) -> str:
        """Name without the namespace."""
        return self.name.rpartition(".")[2]

    @cached_property
    def types(self) -> int:
        """Number of types, with those within."""
        inner = [*(field.type for field in self.fields), *self.branches, *([self.items] if self.items else [])]
        return 1 + sum(each.types for each in inner)


def parse_avro_schema(option: str, text: str, references: Sequence[str] = ()) -> AvroType:
    """Parses a schema in JSON; a bare word is the name of a primitive type.

    Args:
        references: schemas that define types which the schema uses, each after those that it uses itself.
    Raises: ConfigurationError that names the option and the type.
    """
    parser = _Parser(option)
    for each in references:
        parser.parse(_json(option, each), "", ())
    return parser.parse(_json(option, text), "", ())


def _json(option: str, text: str) -> Any:
    try:
        return text if text in PRIMITIVES else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"Option {option} is no Avro schema: {error}. Give its JSON, or a file.") from None


@lru_cache(maxsize=32)
def avro_schema(given: ColumnFormat) -> AvroType:
    """Returns the schema of a column. Raises: ConfigurationError."""
    return parse_avro_schema(f"{given.column}.schema", given.schema or "")


class _Parser:
    def __init__(self, option: str) -> None:
        self._option = option
        self._named: dict[str, AvroType] = {}

    def _invalid(self, fact: str, remedy: str = "Correct the schema.") -> ConfigurationError:
        return ConfigurationError(f"Option {self._option} is no supported Avro schema: {fact}. {remedy}")

    def parse(self, schema: Any, namespace: str, outer: tuple[str, ...]) -> AvroType:
        """Returns the type; `outer` has the names of the types that contain it."""
        if len(outer) > _MAX_DEPTH:
            raise self._invalid(f"it is nested deeper than {_MAX_DEPTH} types")
        if isinstance(schema, list):
            branches = tuple(self.parse(each, namespace, (*outer, "")) for each in schema)
            if not branches or any(each.kind == "union" for each in branches):
                raise self._invalid("a union is empty, or has a union as branch")
            return self._bounded(AvroType("union", branches=_widened(branches)))
        if isinstance(schema, str):
            return self._reference(schema, namespace, outer)
        if not isinstance(schema, dict) or "type" not in schema:
            raise self._invalid(f"{str(schema)[:60]} is no type")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, namespace, outer)
        if kind in ("array", "map"):
            items = self.parse(schema.get("items" if kind == "array" else "values"), namespace, (*outer, ""))
            return self._bounded(AvroType(kind, items=items))
        found = self.parse(kind, namespace, (*outer, ""))
        return self._logical(found, schema) if found.kind in PRIMITIVES else found

    def _bounded(self, found: AvroType) -> AvroType:
        if found.types > _MAX_TYPES:
            raise self._invalid(
                f"it has more than {_MAX_TYPES} types, those that are used repeatedly included",
                "Select other fields as a schema.",
            )
        return found

    def _reference(self, name: str, namespace: str, outer: tuple[str, ...]) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = _full_name(name, namespace)
        if full in outer:
            raise self._invalid(
                f"type {full} contains itself, and Spark has no recursive types", "Select other fields as a schema."
            )
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise self._invalid(f"type {full} is not defined")
        return found

    def _definition(self, schema: Mapping[str, Any], namespace: str, outer: tuple[str, ...]) -> AvroType:
        name, kind = schema.get("name"), schema["type"]
        if not isinstance(name, str) or not name:
            raise self._invalid(f"a {kind} has no name")
        full = _full_name(name, schema.get("namespace", namespace))
        aliases = _names(schema.get("aliases"))
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
                raise self._invalid(f"enum {full} has no symbols")
            default = schema["default"] if schema.get("default") in symbols else ""
            found = AvroType("enum", full, aliases, symbols=tuple(symbols), default=default)
        elif kind == "fixed":
            size = schema.get("size")
            if type(size) is not int or not 0 <= size <= _MAX_FIXED_BYTES:
                raise self._invalid(f"fixed {full} has no size from 0 to {_MAX_FIXED_BYTES}")
            found = self._logical(AvroType("fixed", full, aliases, size=size), schema)
        else:
            given = schema.get("fields")
            if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
                raise self._invalid(f"record {full} has no list of fields")
            if not all(isinstance(each.get("name"), str) and each["name"] for each in given):
                raise self._invalid(f"record {full} has a field without a name")
            space = full.rpartition(".")[0]
            fields = [self._field(each, space, (*outer, full)) for each in given]
            names = [field.name for field in fields]
            if len(set(names)) != len(names):
                raise self._invalid(f"record {full} has a field twice")
            found = self._bounded(AvroType("record", full, aliases, fields=tuple(fields)))
        self._named[full] = found
        return found

    def _field(self, given: Mapping[str, Any], namespace: str, outer: tuple[str, ...]) -> AvroField:
        kind = self.parse(given.get("type"), namespace, outer)
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
            if precision > _DECIMAL_DIGITS:
                raise self._invalid(f"a decimal has precision {precision}, and Spark's have 1 to {_DECIMAL_DIGITS}")
            return replace(found, logical="decimal", precision=precision, scale=scale)
        return replace(found, logical=logical) if logical in _LOGICAL.get(found.kind, ()) else found


_LOGICAL: Mapping[str, tuple[str, ...]] = {
    "int": ("date",),
    "long": tuple(f"{kind}timestamp-{unit}" for kind in ("", "local-") for unit in ("millis", "micros", "nanos")),
}


def _widened(branches: tuple[AvroType, ...]) -> tuple[AvroType, ...]:
    """Returns the branches of a union; two that become one number have no logical types, as in from_avro."""
    kinds = [each.kind for each in branches if each.kind != "null"]
    if sorted(kinds) in (["int", "long"], ["double", "float"]):
        return tuple(replace(each, logical="") for each in branches)
    return branches


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _names(given: Any) -> tuple[str, ...]:
    """Returns aliases without their namespaces; names are compared without them."""
    return tuple(str(each).rpartition(".")[2] for each in given) if isinstance(given, list) else ()


def nullable_branch(union: AvroType) -> AvroType | None:
    """Returns the type of a union in Spark, if it is one type: its only other branch than null, or the wider number."""
    others = [each for each in union.branches if each.kind != "null"]
    if len(others) == 1:
        return others[0]
    kinds = sorted(each.kind for each in others)
    if kinds == ["int", "long"]:
        return AvroType("long")
    if kinds == ["double", "float"]:
        return AvroType("double")
    return None
