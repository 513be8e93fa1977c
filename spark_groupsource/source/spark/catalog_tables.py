"""Options of tables in Spark's catalog (``CREATE TABLE``).

Spark passes the options of such a table, among other properties, when it requests the schema, and none when the
table is read. It stores the schema, with the metadata of its columns, so the metadata of the first column carry the
options. Passwords are not stored: the metadata are part of every DataFrame of the table and of files written from it.
"""

from __future__ import annotations

import json
from typing import Mapping

from pyspark.sql.types import StructField, StructType

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.secret_options import SECRET_OPTIONS, is_reference

_METADATA = "groupsource.options"
# a property that only a table of the catalog has, and the prefix of its options
_PROVIDER, _OPTION = "provider", "option."


def is_catalog_table(options: Mapping[str, str]) -> bool:
    """Returns True if Spark creates a table of the catalog with these options."""
    return _PROVIDER in options and any(name.startswith(_OPTION) for name in options)


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options without the properties that Spark adds for a table of the catalog."""
    if not is_catalog_table(options):
        return dict(options)
    return {name.removeprefix(_OPTION): text for name, text in options.items() if name.startswith(_OPTION)}


def with_options(
    schema: StructType | str, options: Mapping[str, str], *, in_every_column: bool = False
) -> StructType:
    """Returns the schema with the options in the metadata of its first column.

    Args:
        in_every_column: for a table that SQL writes to. Spark has the metadata of a column where it casts, renames or
            fills it.
    Raises: ConfigurationError for a password, and for a schema as DDL, which has no metadata.
    """
    if isinstance(schema, str):
        raise ConfigurationError(
            "Creating a table of the catalog failed: value.schema or key.schema is DDL, with which Spark stores no "
            "options. Give the schema as the JSON of a StructType (schema.json())."
        )
    for name, value in options.items():
        if name.lower() in SECRET_OPTIONS and not is_reference(value):
            raise ConfigurationError(
                f"Option {name} is not stored in a table of the catalog. Give a reference such as ${{file:/PATH:KEY}} "
                "(in SQL, Spark replaces ${env:NAME} by the value), create a temporary view, or give the option with "
                "each read: spark.read.option(...).table(...)."
            )
    text, count = json.dumps(dict(options)), len(schema.fields) if in_every_column else 1
    carriers = [
        StructField(each.name, each.dataType, each.nullable, {**each.metadata, _METADATA: text})
        for each in schema.fields[:count]
    ]
    return StructType([*carriers, *schema.fields[count:]])


def stored_options(schema: StructType) -> dict[str, str]:
    """Returns the options that `with_options` has stored; none if the schema has none."""
    found: dict[str, str] = {}
    for field in schema.fields:
        found.update(json.loads(field.metadata.get(_METADATA, "{}")))
    return found
