"""Types of JSON Schema: references, kinds, choices, and values that fit."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from support.examples import scaled

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow_arrays import byte_strings
from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.json import json_schema
from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.json.json_documents import JsonDocuments, SchemaNode
from spark_groupsource.values.json.json_schema import struct_of_json_schema

P = {"$ref": "#/$defs/P"}
DEFS = {
    "P": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "E": {"enum": ["a", "b"]},
    "N": {"type": "null"},
}
STRUCT = "struct<x:bigint>"
NULL = {"type": "null"}


def type_of(schema: Any, references: dict[str, Any] = {}, **root: Any) -> str:
    """Returns the type of a property with a schema."""
    text = json.dumps({"type": "object", "properties": {"a": schema}, "$defs": DEFS, **root})
    others = {name: json.dumps(each) for name, each in references.items()}
    return struct_of_json_schema(text, "of s", others)["a"].dataType.simpleString()


@pytest.mark.parametrize(
    "schema, expected",
    [
        # as pydantic writes a nested model, with a default, and an optional one
        (P, STRUCT),
        ({"allOf": [P]}, STRUCT),
        ({"allOf": [P], "default": None, "title": "A"}, STRUCT),
        ({"anyOf": [P, NULL], "default": None}, STRUCT),
        ({"oneOf": [NULL, P]}, STRUCT),
        ({"oneOf": [{"const": None}, {"allOf": [P]}]}, STRUCT),
        ({"anyOf": [{"$ref": "#/$defs/N"}, P]}, STRUCT),
        ({"anyOf": [{"enum": [None]}, {"type": ["null"]}, False, {"anyOf": [NULL, P]}]}, STRUCT),
        ({"nullable": True, "allOf": [P]}, STRUCT),
        ({"type": "string", "nullable": True}, "string"),
        ({"type": "object", "nullable": True, "properties": {"x": {"type": "integer"}}}, STRUCT),
        # all parts together
        ({"allOf": [P, {"properties": {"y": {"type": "number"}}}]}, "struct<x:bigint,y:double>"),
        ({"allOf": [{"type": "object"}, {"anyOf": [P, NULL]}], "required": ["x"]}, STRUCT),
        ({"type": "number", "allOf": [{"type": "integer"}]}, "bigint"),
        ({"properties": {"x": {"type": "number"}}, "allOf": [P]}, STRUCT),
        ({**P, "properties": {"y": {"type": "string"}}}, "struct<y:string,x:bigint>"),
        # choices
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "date"}]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, NULL]}, "double"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"oneOf": [P, P]}, STRUCT),
        ({"oneOf": [P, {"type": "string"}]}, "string"),
        ({"oneOf": [{"type": "array", "items": P}, {"type": "array", "items": P, "maxItems": 1}]}, f"array<{STRUCT}>"),
        ({**P, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}, STRUCT),
        # constants and enumerations
        ({"const": 1}, "bigint"),
        ({"const": "a"}, "string"),
        ({"enum": [1, 2, None]}, "bigint"),
        ({"enum": [1, 2.5]}, "double"),
        ({"enum": [True, False]}, "boolean"),
        ({"enum": ["a", 1]}, "string"),
        ({"$ref": "#/$defs/E"}, "string"),
        ({"type": ["integer", "null"], "enum": [1.0, None]}, "bigint"),
        # numbers
        ({"type": "integer", "minimum": 0, "maximum": 255}, "bigint"),
        ({"type": "number", "minimum": 0, "maximum": 255}, "double"),
        ({"type": ["number", "integer"]}, "double"),
        # maps
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"additionalProperties": P}, f"map<string,{STRUCT}>"),
        ({"type": "object", "additionalProperties": {"anyOf": [P, NULL]}}, f"map<string,{STRUCT}>"),
        ({"type": "object", "patternProperties": {"^a": P}, "additionalProperties": False}, f"map<string,{STRUCT}>"),
        ({"patternProperties": {"^a": {"type": "integer"}, "^b": {"type": "string"}}}, "map<string,string>"),
        ({"type": "object", "unevaluatedProperties": {"type": "boolean"}}, "map<string,boolean>"),
        ({**DEFS["P"], "additionalProperties": {"type": "string"}}, STRUCT),
        ({"type": "object", "additionalProperties": True}, "string"),
        ({"type": "object"}, "string"),
        # arrays and tuples
        ({"type": "array", "items": {"type": ["string", "null"]}}, "array<string>"),
        ({"items": P}, f"array<{STRUCT}>"),
        ({"type": "array", "items": [{"type": "number"}, {"type": "integer"}]}, "array<double>"),
        ({"type": "array", "prefixItems": [{"type": "number"}, NULL], "items": False}, "array<double>"),
        ({"type": "array", "prefixItems": [P], "items": P}, f"array<{STRUCT}>"),
        ({"type": "array", "prefixItems": [P], "items": {"type": "string"}}, "array<string>"),
        ({"type": "array", "items": [P], "additionalItems": {"type": "string"}}, "array<string>"),
        ({"type": "array", "items": {"type": "array", "items": [{"type": "number"}] * 2}}, "array<array<double>>"),
        ({"type": "array"}, "string"),
        ({"type": "array", "items": True}, "array<string>"),
        # a type within itself
        ({"$ref": "#"}, "string"),
        ({"type": "array", "items": {"$ref": "#"}}, "array<string>"),
        ({"allOf": [{"$ref": "#/properties/a"}]}, "string"),
        ({"$ref": "#/properties/a"}, "string"),
        # no types
        ({}, "string"),
        (True, "string"),
        ({"type": "file"}, "string"),
        ({"type": []}, "string"),
        ({"type": "string", "enum": [1]}, "string"),
        ({"oneOf": 5, "anyOf": [], "allOf": {}, "type": {}, "enum": 1, "$ref": 7}, "string"),
    ],
)  # fmt: skip
def test_types(schema: Any, expected: str) -> None:
    assert type_of(schema) == expected


def test_a_type_within_itself_is_text_at_each_place() -> None:
    node = {"properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, NULL]}}}
    kind = type_of({"type": "array", "items": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}})
    assert kind == "array<struct<v:bigint,next:string>>"
    # two uses are no recursion
    assert type_of({"properties": {"l": P, "r": P}}) == f"struct<l:{STRUCT},r:{STRUCT}>"


def test_keywords_beside_a_reference_have_no_effect_in_old_drafts() -> None:
    schema = {**P, "type": "string"}
    old = {"$schema": "http://json-schema.org/draft-07/schema#"}
    assert type_of(schema, **old) == STRUCT
    assert type_of(schema, **{"$schema": "https://json-schema.org/draft/2020-12/schema"}) == "string"


BASE = "https://example.com/schemas/order.json"
ADDRESS = {
    "type": "object",
    "properties": {"zip": {"type": "string"}, "country": {"$ref": "country.json"}},
    "$defs": {"floor": {"$anchor": "floor", "type": "integer"}},
}
COUNTRY = {"$id": "https://example.com/schemas/country.json", "enum": ["CH", "AT"]}
ZIP = "struct<zip:string,country:string>"


@pytest.mark.parametrize(
    "identifier, name, own, reference",
    [
        # the name in the registry, with and without a URI of the schema
        *product([None, BASE], ["address.json"], [None], ["address.json", "./address.json"]),
        (BASE, "address.json", None, "https://example.com/schemas/address.json"),
        (BASE, "https://example.com/schemas/address.json", None, "address.json"),
        (None, "https://example.com/schemas/address.json", None, "https://example.com/schemas/address.json"),
        # the $id of the other schema, whatever its name
        *product([None, BASE], ["x"], ["https://example.com/schemas/address.json"], ["https://example.com/schemas/address.json"]),
        (BASE, "x", "https://example.com/schemas/address.json", "address.json"),
        (BASE, "x", "https://example.com/schemas/address.json#", "../schemas/address.json"),
        (BASE, "x", "address.json", "address.json"),
        (BASE, "urn:example:address", None, "urn:example:address"),
        ("urn:example:order", "x", "urn:example:address", "urn:example:address"),
    ],
)  # fmt: skip
def test_other_subjects_are_named_by_reference_or_uri(identifier: Any, name: str, own: Any, reference: str) -> None:
    root = {} if identifier is None else {"$id": identifier}
    other = ADDRESS if own is None else {"$id": own, **ADDRESS}
    references = {name: other, "country.json": COUNTRY}
    assert type_of({"$ref": reference}, references, **root) == ZIP
    for fragment, kind in (
        ("#", ZIP),
        ("#floor", "bigint"),
        ("#/$defs/floor", "bigint"),
        ("#/properties/zip", "string"),
    ):
        assert type_of({"$ref": reference + fragment}, references, **root) == kind


@pytest.mark.parametrize(
    "reference",
    [
        "nope.json",
        "#nope",
        "#/$defs/nope",
        "#/properties/a/items/7",
        "https://[::1",
        "x#/$defs/floor/type/x",
        "#/$defs/P/x/0",
    ],
)
def test_references_to_nothing_are_rejected(reference: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        type_of({"$ref": reference}, {"x": ADDRESS})
    assert f"Schema of s refers to {reference}, which does not exist: " in str(caught.value)


def test_a_reference_that_is_no_json_is_named() -> None:
    with pytest.raises(ConfigurationError, match="Schema of s, its reference x, is no JSON Schema: "):
        struct_of_json_schema("{}", "of s", {"x": "{"})


@pytest.mark.parametrize("levels", [50, 150, 400])
@pytest.mark.parametrize("wrap", ["anyOf", "allOf", "items", "properties"])
def test_deep_schemas_are_bounded(levels: int, wrap: str) -> None:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {
            wrap: {"n": schema}
            if wrap == "properties"
            else schema
            if wrap == "items"
            else [schema, {}][: 1 + (wrap == "allOf")]
        }
    try:
        assert "bigint" in type_of(schema)
        assert levels < 100 or wrap == "allOf"
    except ConfigurationError as error:
        assert levels > 100 and "is nested deeper than 100 types" in str(error)


def test_uses_of_definitions_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(json_schema, "_MAX_TYPES", 500)
    target = [{"$ref": f"#/$defs/{at + 1}"} for at in range(40)]
    levels = {str(at): {"anyOf": [each, {"allOf": [each]}]} for at, each in enumerate(target)}
    with pytest.raises(ConfigurationError, match="has more than 500, those that are used repeatedly included"):
        type_of({"$ref": "#/$defs/0"}, **{"$defs": {**levels, "40": {"type": "string"}}})


DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema": "$id",
    "http://json-schema.org/draft-07/schema#": "$id",
    "http://json-schema.org/draft-06/schema#": "$id",
    "http://json-schema.org/draft-04/schema#": "id",
}
NAMES = ["a", "a b", "a/b", "m~n", "%25", "\u00e9", "0", ""]


def random_document(rng: random.Random, draft: str, uri: str, number: int) -> Any:
    """Returns a document in which every schema has a number, with URIs, anchors and names of every kind."""
    numbers = iter(range(number, 1 << 30))

    def schema(depth: int) -> Any:
        found: dict[str, Any] = {"title": str(next(numbers))}
        if rng.random() < 0.3:
            found[DRAFTS[draft]] = rng.choice(
                [f"sub{next(numbers)}.json", f"dir/{next(numbers)}.json", f"https://e.org/{next(numbers)}"]
            )
        if rng.random() < 0.3 and "2020" in draft:
            found["$anchor"] = f"n{next(numbers)}"
        elif rng.random() < 0.2 and DRAFTS[draft] not in found and "2020" not in draft:
            found[DRAFTS[draft]] = f"#n{next(numbers)}"
        if depth:
            found["properties"] = {name: schema(depth - 1) for name in rng.sample(NAMES, 2)}
            found[rng.choice(["allOf", "anyOf"])] = [schema(depth - 1)]
            found["definitions"] = {name: schema(depth - 1) for name in rng.sample(NAMES, 2)}
            found["enum"] = [{DRAFTS[draft]: "https://example.com/none.json"}]
        return found

    found = schema(2)
    # a document with a relative URI has two absolute ones
    found.pop(DRAFTS[draft], None)
    return {**found, "$schema": draft, **({DRAFTS[draft]: uri} if uri else {})}


def references_of(schema: Any, pointer: str = "") -> list[str]:
    """Returns references that may be in a schema: pointers, anchors and URIs."""
    found = [f"#{pointer}"]
    for name in ("$id", "id", "$anchor"):
        if isinstance(schema, dict) and isinstance(schema.get(name), str):
            found.append(schema[name] if name != "$anchor" else f"#{schema[name]}")
    if isinstance(schema, dict):
        for name, each in schema.items():
            found += references_of(each, f"{pointer}/{quote(name.replace('~', '~0').replace('/', '~1'), safe='~')}")
    elif isinstance(schema, list):
        for at, each in enumerate(schema):
            found += references_of(each, f"{pointer}/{at}")
    return found


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("seed", range(scaled(60, 5)))
def test_references_are_resolved_as_by_another_library(draft: str, seed: int) -> None:
    referencing = pytest.importorskip("referencing")
    from referencing.exceptions import Unresolvable, Unretrievable
    from referencing.jsonschema import specification_with

    rng = random.Random(seed)
    names = ["https://example.com/dir/other.json", "https://example.com/dir/more/third.json"]
    root = random_document(rng, draft, "https://example.com/dir/root.json", 0)
    others = {name: random_document(rng, draft, rng.choice([name, ""]), 1000 * at) for at, name in enumerate(names, 1)}
    specification = specification_with(draft)
    registry = referencing.Registry().with_resources(
        [(name, specification.create_resource(each)) for name, each in others.items()]
    )
    registry = registry.with_resource(BASE, specification.create_resource(root))
    resolver = registry.resolver_with_root(specification.create_resource(root))
    documents = JsonDocuments(root, others)
    tried = [*references_of(root), *names, "other.json", "more/third.json", "#nope", "nope.json", "#/nope"]
    tried += [name + each for name, other in others.items() for each in references_of(other) if each.startswith("#")]
    tried += [each for other in others.values() for each in references_of(other) if each.startswith("https")]
    for reference in tried:
        try:
            expected = resolver.lookup(reference).contents
        except (Unresolvable, Unretrievable):
            expected = None
        found = documents.resolve(SchemaNode({"$ref": reference}, documents.root.own_base, draft))
        # numbers name schemas
        assert (None if found is None else found.schema) == expected, reference


class Values:
    """Random schemas, each with values that fit it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.definitions: dict[str, Any] = {}

    def schema(self, depth: int) -> tuple[Any, Any]:
        """Returns a schema, and a function that returns a value of it."""
        rng = self.rng
        made = rng.choice(
            [self._scalar, self._scalar, self._object, self._array, self._map] if depth else [self._scalar]
        )
        schema, make = made(depth)
        changes: list[Any] = [
            lambda: ({"anyOf": [schema, NULL]}, lambda: None if rng.random() < 0.3 else make()),
            lambda: ({"allOf": [schema, {"description": "d"}]}, make),
            lambda: ({"$ref": self._define(schema)}, make),
            lambda: ({"oneOf": [NULL, {"$ref": self._define(schema)}]}, lambda: None if rng.random() < 0.3 else make()),
        ]
        return rng.choice(changes)() if rng.random() < 0.5 else (schema, make)

    def _define(self, schema: Any) -> str:
        name = f"d/{len(self.definitions)}~"
        self.definitions[name] = schema
        return "#/definitions/" + name.replace("~", "~0").replace("/", "~1")

    def _scalar(self, depth: int) -> tuple[Any, Any]:
        rng = self.rng
        return rng.choice(
            [
                ({"type": "integer"}, lambda: rng.choice([0, -1, 2**63 - 1, -(2**63)])),
                ({"type": "number"}, lambda: rng.choice([0, 1, -1.5, 1e300])),
                ({"type": "string"}, lambda: rng.choice(["", "a", "\u00e9\n", "1", "{}"])),
                ({"type": ["boolean", "null"]}, lambda: rng.choice([True, False, None])),
                ({"enum": [1, 2]}, lambda: rng.choice([1, 2])),
                ({"const": "a"}, lambda: "a"),
                ({}, lambda: rng.choice([1, "a", [1], {"b": 1}, None, True])),
                ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, lambda: rng.choice([1, "a"])),
            ]
        )

    def _object(self, depth: int) -> tuple[Any, Any]:
        made = {name: self.schema(depth - 1) for name in self.rng.sample("abcd", self.rng.randrange(1, 4))}
        properties = {name: schema for name, (schema, _) in made.items()}
        return (
            {"type": "object", "properties": properties},
            lambda: {name: make() for name, (_, make) in made.items() if self.rng.random() < 0.8},
        )

    def _map(self, depth: int) -> tuple[Any, Any]:
        schema, make = self.schema(depth - 1)
        return (
            {"type": "object", "additionalProperties": schema},
            lambda: {name: make() for name in self.rng.sample("xyz", self.rng.randrange(3))},
        )

    def _array(self, depth: int) -> tuple[Any, Any]:
        made = [self.schema(depth - 1) for _ in range(self.rng.choice([1, 1, 2]))]
        if len(made) == 1:
            schema, make = made[0]
            return {"type": "array", "items": schema}, lambda: [make() for _ in range(self.rng.randrange(3))]
        key = self.rng.choice(["items", "prefixItems"])
        return {"type": "array", key: [schema for schema, _ in made]}, lambda: [make() for _, make in made]


@pytest.mark.parametrize("seed", range(scaled(300, 30)))
def test_values_that_fit_are_not_malformed(seed: int) -> None:
    values = Values(seed)
    schema, make = values._object(3)
    text = json.dumps({**schema, "definitions": values.definitions})
    decoder = JsonDecoder(arrow_type(struct_of_json_schema(text, "of s"), "value"))
    data = [json.dumps(make()).encode() for _ in range(10)]
    assert decoder.decode(byte_strings(data)).malformed == {}
