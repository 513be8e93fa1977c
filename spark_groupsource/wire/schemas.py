"""Message schemas as plain data, read from Kafka's JSON schema files.

The files of most APIs are those of kafka-python, read without importing it: its ``__init__`` imports its clients, 0.3 s
of processor time. Those of log records, and of the APIs and versions that it lacks, are in `resources/`.

Source: the README of Kafka's ``clients/src/main/resources/common/message``.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Mapping, NamedTuple

FIXED_FORMATS: Mapping[str, str] = {
    "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"
}  # fmt: skip
"""Type of a number -> its format in the module struct."""

EMPTY = ()
"""The default of a list, or of a structure that can be null, if it is not null."""

_NO_BITS = 1 << 31
LAST_VERSION = 32_767
"""Last version of a field without one, as in ``4+``."""
_COMMENT = re.compile(r"(?m)^\s*//.*$")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_OPERATIONS = {"name": "authorizedOperations", "type": "bitfield"}
CHANGES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("CreatePartitionsRequest", "Assignments"): {"default": "null"},
    ("DescribeClusterResponse", "ClusterAuthorizedOperations"): _OPERATIONS,
    ("DescribeGroupsResponse", "AuthorizedOperations"): _OPERATIONS,
    ("ListOffsetsRequest", "ReplicaId"): {"default": -1},
    ("MetadataResponse", "ClusterAuthorizedOperations"): _OPERATIONS,
    ("MetadataResponse", "TopicAuthorizedOperations"): _OPERATIONS,
}
"""Message and field -> what differs from Kafka's schema: authorized operations are sets, and requests have defaults."""


class Field(NamedTuple):
    """A field of a message or structure.

    `type` is that of an element if `is_array`; `fields` are those of a structure, None for other types. `default` is
    `EMPTY` for a new list or structure, and null for a structure that cannot be null. `versions`, `nullable` and
    `tagged` are the versions that have the field, that allow null, and where it is a tagged field.
    """

    name: str
    json_name: str
    type: str
    is_array: bool
    fields: tuple[Field, ...] | None
    versions: range
    nullable: range
    tagged: range
    tag: int | None
    default: Any


class Schema(NamedTuple):
    """A message. `type` is request, response or data; `flexible` are the versions with tagged fields (KIP-482)."""

    name: str
    type: str
    api_key: int | None
    versions: range
    flexible: range
    fields: tuple[Field, ...]


@lru_cache(maxsize=None)
def schema_of(name: str) -> Schema:
    """Returns the schema of the message class `name`. Raises: FileNotFoundError."""
    file = files("spark_groupsource.wire.resources").joinpath(f"{name}.json")
    if not file.is_file():
        file = kafka_python_directory().joinpath("protocol", "schemas", "resources", f"{name}.json")
    return parse_schema(json.loads(_COMMENT.sub("", file.read_text("utf-8"))))


def parse_schema(found: Mapping[str, Any]) -> Schema:
    """Returns the content of a JSON schema."""
    common = {struct["name"]: struct["fields"] for struct in found.get("commonStructs", ())}
    name = found["name"]
    return Schema(
        name,
        found["type"],
        found.get("apiKey"),
        _versions(found["validVersions"]),
        _versions(found["flexibleVersions"]),
        tuple(_field(name, field, common) for field in found["fields"]),
    )


def present_fields(fields: tuple[Field, ...], version: int) -> list[Field]:
    """Returns the fields that are encoded at `version` in their order, without the tagged ones."""
    return [field for field in fields if version in field.versions and not is_tagged(field, version)]


def tagged_fields(fields: tuple[Field, ...], version: int) -> list[Field]:
    """Returns the tagged fields of `version` in the order of their tags."""
    found = [field for field in fields if version in field.versions and is_tagged(field, version)]
    return sorted(found, key=lambda field: field.tag or 0)


def is_tagged(field: Field, version: int) -> bool:
    return field.tag is not None and version in field.tagged


def bits_of(number: int) -> set[int] | None:
    """Returns the numbers of the bits that are set, None if there is no value."""
    return None if number == _NO_BITS else {bit for bit in range(32) if number >> bit & 1}


def number_of(bits: set[int] | None) -> int:
    """Returns the 32-bit number of a set of bit numbers, the inverse of `bits_of`."""
    return _NO_BITS if bits is None else sum(1 << bit for bit in set(bits))


@lru_cache(maxsize=1)
def kafka_python_directory() -> Any:
    """Returns the directory of kafka-python, which is not imported."""
    spec = find_spec("kafka")
    if spec is None:
        raise ModuleNotFoundError("No module named 'kafka'", name="kafka")
    loader: Any = spec.loader
    return loader.get_resource_reader("kafka").files()


def _field(message: str, found: Mapping[str, Any], common: Mapping[str, Any]) -> Field:
    found = {**found, **CHANGES.get((message, found["name"]), {})}
    is_array = found["type"].startswith("[]")
    kind = found["type"].removeprefix("[]")
    inner = found.get("fields") or common.get(kind)
    fields = None if inner is None else tuple(_field(message, each, common) for each in inner)
    json_name = found["name"][0].lower() + found["name"][1:]
    return Field(
        _CAPITAL.sub("_", found["name"]).lower(),
        json_name,
        kind,
        is_array,
        fields,
        _versions(found["versions"]),
        _versions(found.get("nullableVersions")),
        _versions(found.get("taggedVersions")),
        found.get("tag"),
        _default(kind, is_array, fields is not None, found),
    )


@lru_cache(maxsize=None)
def _versions(text: str | None) -> range:
    """Returns the versions of ``0-3``, ``4+``, ``2`` or ``none``."""
    if not text or text == "none":
        return range(0)
    low, dash, high = text.rstrip("+").partition("-")
    last = int(high) if dash else LAST_VERSION if text.endswith("+") else int(low)
    return range(int(low), last + 1)


def _default(kind: str, is_array: bool, is_struct: bool, found: Mapping[str, Any]) -> Any:
    given = found.get("default", "")
    if given == "null":
        return None
    if is_array:
        return EMPTY
    if is_struct:
        return EMPTY if "nullableVersions" in found else None
    if kind == "bool":
        return str(given).lower() == "true"
    if kind == "float64":
        return float(given or 0)
    if kind in FIXED_FORMATS:
        return int(str(given or 0), 0)
    if kind == "uuid":
        return None  # the zero id; no schema has another default
    if kind == "bitfield":
        return bits_of(int(given) & 0xFFFF_FFFF) if given else None
    return given if kind == "string" else b""
