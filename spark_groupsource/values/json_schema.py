"""Spark types of JSON Schema, as Confluent's JSON serializers register it.

Source: JSON Schema 2020-12 and earlier drafts; only what describes types is read.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from pyspark.sql import types as spark

from spark_groupsource.errors import ConfigurationError

_SCALARS: Mapping[str, spark.DataType] = {
    "string": spark.StringType(),
    "integer": spark.LongType(),
    "number": spark.DoubleType(),
    "boolean": spark.BooleanType(),
}
_MAX_DEPTH = 100
# a definition that several references name is a column at each place
_MAX_TYPES = 20_000


def struct_of_json_schema(text: str, name: str) -> spark.StructType:
    """Returns the type of an object with properties.

    A type that Spark does not have, such as a choice of several types, is a string: its JSON text.

    Args:
        name: of the schema, for messages.
    Raises: ConfigurationError for other schemas, and for a schema that contains itself.
    """
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"Schema {name} is no JSON Schema: {error}. Correct it in the registry.") from None
    found = _Parser(root, name).parse(root, ())
    if not isinstance(found, spark.StructType) or not found.fields:
        raise ConfigurationError(
            f"Schema {name} is no object with properties, so it has no columns. Give value.schema as DDL."
        )
    return found


class _Parser:
    def __init__(self, root: Any, name: str) -> None:
        self._root = root
        self._name = name
        self._found = 0

    def parse(self, schema: Any, outer: tuple[str, ...]) -> spark.DataType:
        """Returns the type of a schema; `outer` has the references that contain it."""
        self._found += 1
        if len(outer) > _MAX_DEPTH or self._found > _MAX_TYPES:
            raise ConfigurationError(
                f"Schema {self._name} is nested deeper than {_MAX_DEPTH} types, or has more than {_MAX_TYPES}, those "
                "that are used repeatedly included. Give value.schema as DDL."
            )
        if not isinstance(schema, dict):
            return spark.StringType()
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), outer)
        for choice in ("oneOf", "anyOf"):
            given = schema.get(choice)
            others = [each for each in given if each != {"type": "null"}] if isinstance(given, list) else []
            if len(others) == 1:
                return self.parse(others[0], (*outer, ""))
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            kind = (
                "number" if sorted(map(str, kinds)) == ["integer", "number"] else kinds[0] if len(kinds) == 1 else None
            )
        if kind == "array" and "items" in schema:
            return spark.ArrayType(self.parse(schema["items"], (*outer, "")))
        if kind == "object" and isinstance(schema.get("properties"), dict) and schema["properties"]:
            fields = schema["properties"].items()
            return spark.StructType([spark.StructField(name, self.parse(each, (*outer, ""))) for name, each in fields])
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return spark.MapType(spark.StringType(), self.parse(schema["additionalProperties"], (*outer, "")))
        return _SCALARS.get(str(kind), spark.StringType())

    def _reference(self, reference: str, outer: tuple[str, ...]) -> spark.DataType:
        if reference in outer:
            raise ConfigurationError(
                f"Schema {self._name} has the type {reference}, which contains itself, and Spark has no recursive "
                "types. Give value.schema as DDL."
            )
        found = self._root
        if not reference.startswith("#"):
            raise ConfigurationError(
                f"Schema {self._name} refers to {reference}, which is not in it. Give value.schema as DDL."
            )
        for part in filter(None, reference[1:].split("/")):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if found is None:
            raise ConfigurationError(
                f"Schema {self._name} refers to {reference}, which does not exist. Correct it in the registry."
            )
        return self.parse(found, (*outer, reference))
