"""References between JSON Schemas: `$id`, `$anchor`, JSON pointers, other documents.

Source: JSON Schema 2020-12 (core, section 8) and drafts 4 to 7, RFC 3986, RFC 6901.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = (
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties",
    "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
_LEGACY = re.compile(r"draft-0[3-7]/")
_WITH_ID = re.compile(r"draft-0[34]/")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MISSING = object()


class SchemaNode(NamedTuple):
    """A schema at its place.

    Attributes:
        base: URI of the schema that contains it, without its own `$id`.
        draft: the `$schema` of its document, empty without.
    """

    schema: Any
    base: str
    draft: str = ""

    @property
    def own_base(self) -> str:
        """URI of the schema, to which its references are relative."""
        identifier = _identifier(self.schema, self.draft)
        return self.base if identifier is None else urldefrag(_joined(self.base, identifier))[0]

    @property
    def reference(self) -> str | None:
        """The reference to another schema, None without."""
        found = (self.schema.get(name) for name in _REFERENCES) if isinstance(self.schema, dict) else ()
        return next((each for each in found if isinstance(each, str)), None)

    @property
    def is_only_reference(self) -> bool:
        """Whether the keywords beside its reference have no effect, as in drafts 3 to 7."""
        return bool(_LEGACY.search(self.draft))

    def inner(self, schema: Any) -> SchemaNode:
        """Returns a schema within this one."""
        return SchemaNode(schema, self.own_base, self.draft)


class JsonDocuments:
    """A document and those to which it refers.

    Args:
        others: name of the reference of a registry -> document.
    """

    def __init__(self, document: Any, others: Mapping[str, Any] = {}) -> None:
        self.root = SchemaNode(document, "", _draft(document))
        self._resources: dict[str, SchemaNode] = {"": self.root}
        self._anchors: dict[tuple[str, str], SchemaNode] = {}
        self._add(self.root)
        for name, other in others.items():
            node = SchemaNode(other, _joined(self.root.own_base, name), _draft(other))
            for uri in (node.base, _plain(name)):
                self._resources.setdefault(uri, node)
            self._add(node)

    def _add(self, root: SchemaNode) -> None:
        """Adds the schemas with an own URI or anchor within a document."""
        pending = [root]
        while pending:
            node = pending.pop()
            base = node.own_base
            if base != node.base or node is root:
                self._resources.setdefault(base, node)
            for name in _anchors(node):
                self._anchors.setdefault((base, name), node)
            pending += map(node.inner, _inner(node.schema))

    def resolve(self, node: SchemaNode) -> SchemaNode | None:
        """Returns the schema to which a schema refers; None if there is none."""
        reference = node.reference or ""
        if reference.startswith("#"):
            uri, fragment = node.own_base, reference[1:]
        else:
            uri, fragment = urldefrag(_joined(node.own_base, reference))
        names = (uri, _plain(urldefrag(reference)[0]))
        resource = next((self._resources[name] for name in names if name in self._resources), None)
        if resource is None:
            return None
        fragment = unquote(fragment)
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return _at_pointer(resource, fragment)
        return self._anchors.get((resource.own_base, fragment))


def _at_pointer(node: SchemaNode, pointer: str) -> SchemaNode | None:
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        found: Any = _MISSING
        if isinstance(node.schema, dict):
            found = node.schema.get(part, _MISSING)
        elif isinstance(node.schema, list) and part.isascii() and part.isdecimal() and len(part) < 10:
            found = node.schema[int(part)] if int(part) < len(node.schema) else _MISSING
        if found is _MISSING:
            return None
        node = node.inner(found)
    return node


def _inner(schema: Any) -> Iterator[Any]:
    """Returns the schemas directly within a schema; values of `const` and `enum` are none."""
    if not isinstance(schema, dict):
        return
    for name in _SCHEMA_MAPS:
        if isinstance(schema.get(name), dict):
            yield from schema[name].values()
    for name in _SCHEMA_LISTS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in _SCHEMAS:
        if isinstance(schema.get(name), dict):
            yield schema[name]


def _draft(document: Any) -> str:
    found = document.get("$schema") if isinstance(document, dict) else None
    return found if isinstance(found, str) else ""


def _identifier(schema: Any, draft: str) -> str | None:
    """Returns the own URI of a schema; beside a reference and as an anchor it has none in drafts 3 to 7."""
    if not isinstance(schema, dict):
        return None
    found = schema.get("id" if _WITH_ID.search(draft) else "$id")
    if not isinstance(found, str) or found.startswith("#"):
        return None
    return None if _LEGACY.search(draft) and isinstance(schema.get("$ref"), str) else found


def _anchors(node: SchemaNode) -> list[str]:
    if not isinstance(node.schema, dict):
        return []
    found = [node.schema.get("$anchor"), node.schema.get("$dynamicAnchor")]
    # drafts 4 to 7
    identifier = node.schema.get("$id", node.schema.get("id"))
    if isinstance(identifier, str) and "#" in identifier:
        found.append(urldefrag(identifier)[1])
    return [each for each in found if isinstance(each, str) and each]


def _joined(base: str, reference: str) -> str:
    try:
        return _plain(urljoin(base, reference))
    except ValueError:
        # no valid URI
        return reference


def _plain(uri: str) -> str:
    return uri.removeprefix("./")
