"""Spark types of JSON Schema, as Confluent's JSON serializers register it.

Source: JSON Schema 2020-12 and earlier drafts, OpenAPI 3.0 (`nullable`); only what describes types is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping

from pyspark.sql import types as spark

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.json.json_documents import JsonDocuments, SchemaNode

_TEXT, _LONG, _DOUBLE = spark.StringType(), spark.LongType(), spark.DoubleType()
# a number may be an integer
_KINDS: Mapping[str, frozenset[str]] = {
    "number": frozenset(("integer", "fraction")),
    **{name: frozenset((name,)) for name in ("integer", "string", "boolean", "null", "object", "array")},
}
_SCALARS: Mapping[frozenset[str], spark.DataType] = {
    _KINDS["string"]: _TEXT,
    _KINDS["boolean"]: spark.BooleanType(),
    _KINDS["integer"]: _LONG,
    _KINDS["number"]: _DOUBLE,
    frozenset(("fraction",)): _DOUBLE,
}
_NULL = _KINDS["null"]
_MAX_DEPTH = 100
# a definition that several references name is a column at each place
_MAX_TYPES = 20_000
# a choice has those of its alternatives
_SHAPES_OF_A_TYPE = 3


def struct_of_json_schema(text: str, name: str, references: Mapping[str, str] = {}) -> spark.StructType:
    """Returns the type of an object with properties.

    What has no type in Spark, such as a choice of several types or a type within itself, is a string: its JSON text.

    Args:
        name: of the schema, for messages.
        references: name by which the schema refers to another one -> text of that one.
    Raises: ConfigurationError for other schemas, and for one that refers to a schema that does not exist.
    """
    others = {each: _parsed(other, f"{name}, its reference {each},") for each, other in references.items()}
    documents = JsonDocuments(_parsed(text, name), others)
    found = _Parser(documents, name).type_of([documents.root], frozenset(), 0)
    if not isinstance(found, spark.StructType) or not found.fields:
        raise ConfigurationError(
            f"Schema {name} is no object with properties, so it has no columns. Give value.schema as DDL."
        )
    return found


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"Schema {name} is no JSON Schema: {error}. Correct it in the registry.") from None


@dataclass
class _Shape:
    """What schemas that a value must all fit say of it.

    Attributes:
        nodes: they and those that they include.
        kinds: the kinds of values that fit; None for any.
        choices: alternatives of several kinds or structures.
        entered: identities of the schemas.
        is_recursive: whether one of them is within itself.
    """

    nodes: list[SchemaNode] = field(default_factory=list)
    kinds: frozenset[str] | None = None
    choices: list[list[SchemaNode]] = field(default_factory=list)
    entered: set[int] = field(default_factory=set)
    is_recursive: bool = False

    def include(self, other: _Shape) -> None:
        """Adds what another shape says."""
        self.nodes += other.nodes
        self.restrict(other.kinds)
        self.choices += other.choices
        self.entered |= other.entered
        self.is_recursive |= other.is_recursive

    def restrict(self, kinds: frozenset[str] | None) -> None:
        if kinds is not None:
            self.kinds = kinds if self.kinds is None else self.kinds & kinds

    @property
    def other_kinds(self) -> frozenset[str] | None:
        """The kinds without null: every column may be null."""
        if self.kinds is not None:
            return self.kinds - _NULL
        for kind, names in _IMPLIED.items():
            if any(name in each.schema for each in self.nodes for name in names):
                return _KINDS[kind]
        return None


# keywords that have no effect on values of other kinds
_IMPLIED = {
    "object": ("properties", "patternProperties", "additionalProperties"),
    "array": ("items", "prefixItems"),
}


class _Parser:
    def __init__(self, documents: JsonDocuments, name: str) -> None:
        self._documents = documents
        self._name = name
        self._types = 0
        self._shapes = 0

    def type_of(self, nodes: list[SchemaNode], outer: frozenset[int], depth: int) -> spark.DataType:
        """Returns the type of a value that fits all schemas.

        Args:
            outer: identities of the schemas that contain it.
            depth: number of types that contain it.
        """
        self._types += 1
        shape = self._shape(nodes, outer, depth)
        if shape.is_recursive:
            return _TEXT
        kinds = shape.other_kinds
        inner = outer | shape.entered
        found: spark.DataType | None = None
        if kinds == _KINDS["object"]:
            found = self._object(shape.nodes, inner, depth + 1)
        elif kinds == _KINDS["array"]:
            found = self._array(shape.nodes, inner, depth + 1)
        elif kinds is not None:
            found = _SCALARS.get(kinds)
        if found is None:
            found = next((self._common(each, inner, depth + 1) for each in shape.choices), None)
        return _TEXT if found is None else found

    def _shape(self, nodes: Iterable[SchemaNode], outer: frozenset[int], depth: int) -> _Shape:
        self._shapes += 1
        if depth > _MAX_DEPTH or self._types > _MAX_TYPES or self._shapes > _SHAPES_OF_A_TYPE * _MAX_TYPES:
            raise ConfigurationError(
                f"Schema {self._name} is nested deeper than {_MAX_DEPTH} types, or has more than {_MAX_TYPES}, those "
                "that are used repeatedly included. Give value.schema as DDL."
            )
        shape = _Shape()
        pending = list(nodes)[::-1]
        while pending:
            node = pending.pop()
            schema = node.schema
            if schema is False:
                shape.restrict(frozenset())
            if not isinstance(schema, dict) or id(schema) in shape.entered:
                continue
            if id(schema) in outer:
                shape.is_recursive = True
                continue
            shape.entered.add(id(schema))
            included = [] if node.reference is None else [self._referenced(node)]
            if not included or not node.is_only_reference:
                shape.nodes.append(node)
                shape.restrict(_kinds(schema))
                if isinstance(schema.get("allOf"), list):
                    included += map(node.inner, schema["allOf"])
                for name in ("oneOf", "anyOf"):
                    if isinstance(schema.get(name), list):
                        self._choose([node.inner(each) for each in schema[name]], shape, outer, depth + 1)
            # in the order of the schema
            pending += included[::-1]
        return shape

    def _choose(self, alternatives: list[SchemaNode], shape: _Shape, outer: frozenset[int], depth: int) -> None:
        """Adds a choice, or its only alternative besides null."""
        inner = outer | shape.entered
        found = [(each, self._shape([each], inner, depth)) for each in alternatives]
        others = [(each, alternative) for each, alternative in found if alternative.other_kinds != frozenset()]
        if len(others) == 1:
            shape.include(others[0][1])
        elif others:
            shape.choices.append([each for each, _ in others])
            kinds = [alternative.other_kinds for _, alternative in others]
            known = [each for each in kinds if each is not None]
            if len(known) == len(kinds) and not any(each.is_recursive for _, each in others):
                shape.restrict(frozenset().union(*known, _NULL))

    def _referenced(self, node: SchemaNode) -> SchemaNode:
        found = self._documents.resolve(node)
        if found is None:
            raise ConfigurationError(
                f"Schema {self._name} refers to {node.reference}, which does not exist: its references are those of "
                "the registry and its own $id, $anchor and definitions. Correct it in the registry, or give "
                "value.schema as DDL."
            )
        return found

    def _object(self, nodes: list[SchemaNode], outer: frozenset[int], depth: int) -> spark.DataType | None:
        properties: dict[str, list[SchemaNode]] = {}
        for node in nodes:
            if isinstance(node.schema.get("properties"), dict):
                for name, each in node.schema["properties"].items():
                    properties.setdefault(name, []).append(node.inner(each))
        # a property with the schema false is absent
        present = {name: each for name, each in properties.items() if all(node.schema is not False for node in each)}
        if present:
            return spark.StructType(
                [spark.StructField(name, self.type_of(each, outer, depth)) for name, each in present.items()]
            )
        listed = [node.inner(each) for node in nodes for each in _values_of(node.schema)]
        if not listed:
            return None
        return spark.MapType(_TEXT, self._common(listed, outer, depth) or _TEXT)

    def _array(self, nodes: list[SchemaNode], outer: frozenset[int], depth: int) -> spark.DataType | None:
        items: list[SchemaNode] = []
        tuples: list[SchemaNode] = []
        for node in nodes:
            schema = node.schema
            given = schema.get("items")
            listed = schema.get("prefixItems", given)
            if isinstance(listed, list):
                others = (given, schema.get("additionalItems"), schema.get("unevaluatedItems"))
                tuples += map(node.inner, [*listed, *(each for each in others if isinstance(each, dict))])
            elif given is not None:
                items.append(node.inner(given))
        if tuples:
            return spark.ArrayType(self._common([*tuples, *items], outer, depth) or _TEXT)
        return spark.ArrayType(self.type_of(items, outer, depth)) if items else None

    def _common(self, nodes: list[SchemaNode], outer: frozenset[int], depth: int) -> spark.DataType | None:
        """Returns the type that values of each schema have; None if they have several."""
        others = [each for each in nodes if self._shape([each], outer, depth).other_kinds != frozenset()]
        found: list[spark.DataType] = []
        for each in (self.type_of([each], outer, depth) for each in others):
            if each not in found:
                found.append(each)
        if len(found) == 2 and _LONG in found and _DOUBLE in found:
            return _DOUBLE
        return found[0] if len(found) == 1 else None


def _values_of(schema: Mapping[str, Any]) -> list[Any]:
    """Returns the schemas of the values of a map."""
    patterns = schema.get("patternProperties")
    found = list(patterns.values()) if isinstance(patterns, dict) else []
    others = (schema.get(name) for name in ("additionalProperties", "unevaluatedProperties"))
    return found + [each for each in others if isinstance(each, dict)]


def _kinds(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the kinds of values that the type, the constant and the enumeration of a schema allow; None for any."""
    found: frozenset[str] | None = None
    given = schema.get("type")
    names = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
    if names and all(name in _KINDS for name in names):
        found = frozenset().union(*(_KINDS[name] for name in names))
        if schema.get("nullable") is True:
            found |= _NULL
    values = None
    if "const" in schema:
        values = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        values = schema["enum"]
    if values is not None:
        listed = frozenset().union(*map(_kinds_of, values))
        found = listed if found is None else found & listed
    return found


def _kinds_of(value: Any) -> frozenset[str]:
    if isinstance(value, float):
        return frozenset(("integer", "fraction")) if value.is_integer() else frozenset(("fraction",))
    names = {bool: "boolean", int: "integer", str: "string", dict: "object", list: "array"}
    return _KINDS[names.get(type(value), "null")]
