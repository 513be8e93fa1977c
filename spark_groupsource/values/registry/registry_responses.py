"""Responses of a schema registry, parsed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeVar

from spark_groupsource.values.schema_text import plain_text

_T = TypeVar("_T")


class Reference(NamedTuple):
    """The version of a subject by whose `name` a schema refers to it."""

    name: str
    subject: str
    version: int


class SchemaResponse(NamedTuple):
    """A schema, or a version of a subject.

    Attributes:
        kind: AVRO, JSON or PROTOBUF.
        version, schema_id: of a version of a subject; 0 for a schema that was requested by its id.
    """

    schema: str
    kind: str
    references: tuple[Reference, ...] = ()
    version: int = 0
    schema_id: int = 0


def parse_schema_response(body: bytes, is_version: bool) -> SchemaResponse:
    """Parses a response.

    Args:
        is_version: whether it is that of a version of a subject.
    Raises: ValueError if it is none of a schema registry.
    """
    found = _parsed(body)
    if not isinstance(found, dict):
        raise ValueError("the response is no JSON object")
    references = found.get("references") or []
    if not isinstance(references, list) or not all(isinstance(each, dict) for each in references):
        raise ValueError("the response has references that are no list of objects")
    return SchemaResponse(
        plain_text(_field(found, "schema", str)),
        _field(found, "schemaType", str) if found.get("schemaType") is not None else "AVRO",
        tuple(
            Reference(_field(each, "name", str), _field(each, "subject", str), _field(each, "version", int))
            for each in references
        ),
        _field(found, "version", int) if is_version else 0,
        _field(found, "id", int) if is_version else 0,
    )


def parse_schema_id(body: bytes) -> int:
    """Parses the response to a schema that was sent. Raises: ValueError if it is none of a schema registry."""
    found = _parsed(body)
    if not isinstance(found, dict):
        raise ValueError("the response is no JSON object")
    return _field(found, "id", int)


def parse_error_message(body: bytes) -> str:
    """Returns the text of an error; empty for a body of another server."""
    try:
        found = _parsed(body)
    except ValueError:
        return ""
    return str(found.get("message", "")) if isinstance(found, dict) else ""


def parse_error_code(body: bytes) -> int | None:
    """Returns the code in the body of an error; None for a body of another server."""
    try:
        found = _parsed(body)
    except ValueError:
        return None
    code = found.get("error_code") if isinstance(found, dict) else None
    return code if isinstance(code, int) else None


def _parsed(body: bytes) -> Any:
    if not body.strip():
        raise ValueError("the response is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the response is no JSON: {str(error)[:100]}") from None


def _field(found: dict[str, Any], name: str, kind: type[_T]) -> _T:
    value = found.get(name)
    # true is an int in Python
    if type(value) is not kind:
        fact = "no" if name not in found else "another type of"
        raise ValueError(f"the response has {fact} {name}")
    return value
