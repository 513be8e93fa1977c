"""Options of typed keys and values, parsed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.registry_address import RegistryAddress

BINARY = "binary"
JSON, AVRO = "json", "avro"
FORMATS = (BINARY, "string", JSON, AVRO, "short", "int", "long", "float", "double", "uuid")
FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
_WITH_SCHEMA = (JSON, AVRO)
_MAX_SCHEMA_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class ColumnFormat:
    """Format of the column `key` or `value`.

    Attributes:
        format: one of `FORMATS`.
        schema: text of the schema; None if it is not given.
        flatten: whether the fields of the value are columns, in place of the column.
        registry: has the schemas that the headers of the values name; None for values without header.
    """

    column: str
    format: str = BINARY
    schema: str | None = None
    flatten: bool = False
    registry: RegistryAddress | None = None


@dataclass(frozen=True)
class ValueOptions:
    """Formats of key and value, and what becomes of a record with a malformed one."""

    key: ColumnFormat = ColumnFormat("key")
    value: ColumnFormat = ColumnFormat("value")
    mode: str = FAILFAST

    @property
    def is_typed(self) -> bool:
        """True if a column is decoded."""
        return self.key.format != BINARY or self.value.format != BINARY


def check_format(given: ColumnFormat) -> ColumnFormat:
    """Returns the format of a column.

    Raises: ConfigurationError for options that contradict each other.
    """
    name = given.column
    if given.schema is not None and given.format not in _WITH_SCHEMA:
        raise ConfigurationError(
            f"Option {name}.schema has no effect with {name}.format={given.format}. Set {name}.format to json or avro."
        )
    if given.registry is not None and given.format != AVRO:
        raise ConfigurationError(
            f"Option {name}.schema.registry.url has no effect with {name}.format={given.format}. Set it to avro."
        )
    if given.flatten and given.format not in _WITH_SCHEMA:
        raise ConfigurationError(
            f"Option {name}.flatten needs values with fields, and {name}.format is {given.format}. Set it to json or "
            "avro."
        )
    if given.schema is None and given.format == AVRO:
        raise ConfigurationError(
            f"Option {name}.schema is missing: {name}.format is avro. Give the Avro schema of the producer."
        )
    return given


def parse_mode(name: str, text: str) -> str:
    """Parses one of `MODES`, in any case."""
    if text.strip().upper() not in MODES:
        raise ConfigurationError(f"Option {name} must be one of {', '.join(MODES)}, got {text!r}.")
    return text.strip().upper()


def parse_schema_text(name: str, text: str) -> str:
    """Returns the text of a schema; one that begins with ``/`` or ``file:/`` is the path of a file with the schema."""
    text = text.strip()
    if not text.startswith(("/", "file:/")):
        if not text:
            raise ConfigurationError(f"Option {name} must not be empty. Give it a schema, or the path of a file.")
        return text
    path = "/" + text.removeprefix("file:").lstrip("/")
    try:
        if os.path.getsize(path) > _MAX_SCHEMA_BYTES:
            raise ConfigurationError(f"Option {name} names {path}, which is larger than 16 MiB. Give a smaller schema.")
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"Reading the schema of option {name} failed: {error}. Give the path of a readable file on the driver."
        ) from None
