"""Avro schemas that refer to types of other schemas of a registry.

Source: Confluent Schema Registry, schema references: the name of a reference is the full name of the type.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

from spark_groupsource.values.schema_text import plain_text, without_comments

_NAMED = ("record", "error", "enum", "fixed")


def with_references(text: str, others: Sequence[str]) -> str:
    """Returns a schema in which each type of `others` is defined where it is first named.

    A name without definition and text that is no JSON remain; the parser of the schema reports them.
    """
    try:
        definitions: dict[str, dict[str, Any]] = {}
        for schema in map(_parsed, others):
            for each in schema if isinstance(schema, list) else [schema]:
                if isinstance(each, dict) and each.get("type") in _NAMED and isinstance(each.get("name"), str):
                    definitions[_full_name(each["name"], each.get("namespace", ""))] = each
        return json.dumps(_defined(_parsed(text), "", definitions))
    except (ValueError, RecursionError):
        return text


def _parsed(text: str) -> Any:
    return json.loads(without_comments(plain_text(text)))


def _defined(schema: Any, namespace: str, definitions: dict[str, dict[str, Any]]) -> Any:
    """Defines names within a schema; removes from `definitions` what it has defined."""
    if isinstance(schema, str):
        for name in (_full_name(schema, namespace), schema):
            if name in definitions:
                space, _, short = name.rpartition(".")
                # its namespace must not be that of the type around it
                return _defined({**definitions.pop(name), "name": short, "namespace": space}, "", definitions)
        return schema
    if isinstance(schema, list):
        return [_defined(each, namespace, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in _NAMED and isinstance(schema.get("name"), str):
        full = _full_name(schema["name"], schema.get("namespace", namespace))
        definitions.pop(full, None)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            return schema
        space = full.rpartition(".")[0]
        return {**schema, "fields": [_defined_field(each, space, definitions) for each in fields]}
    nested = {"array": "items", "map": "values"}.get(kind if isinstance(kind, str) else "", "type")
    return {name: _defined(each, namespace, definitions) if name == nested else each for name, each in schema.items()}


def _defined_field(field: Any, namespace: str, definitions: dict[str, dict[str, Any]]) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        return field
    return {**field, "type": _defined(field["type"], namespace, definitions)}


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
