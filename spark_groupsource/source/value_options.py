"""Options of typed keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_groupsource.config_def import ConfigType, setting
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.source_option import SourceOption
from spark_groupsource.values.options import (
    BINARY,
    FAILFAST,
    FORMATS,
    ColumnFormat,
    ValueOptions,
    check_format,
    parse_mode,
    parse_schema_text,
)
from spark_groupsource.values.registry_address import RegistryAddress, parse_urls


def _format(column: str) -> Any:
    doc = f"Format of the column {column}: binary as in Kafka, or decoded: text, JSON, Avro or one of Kafka's serdes."
    return setting(SourceOption(f"{column}.format", ConfigType.STRING, BINARY, doc, choices=FORMATS))


def _schema(column: str) -> Any:
    doc = (
        f"Schema of the column {column}: for json DDL (id bigint, name string) or the JSON of a StructType, for avro "
        "an Avro schema. Text that begins with / or file:/ is the path of a file on the driver."
    )
    return setting(SourceOption(f"{column}.schema", ConfigType.STRING, None, doc, parser=parse_schema_text))


def _registry_url(column: str) -> Any:
    doc = (
        f"Addresses of a schema registry, separated by commas: each {column} begins with a zero byte and the id of its "
        f"writer's Avro schema, and is read as {column}.schema."
    )
    return setting(SourceOption(f"{column}.schema.registry.url", ConfigType.STRING, None, doc, parser=parse_urls))


def _user_info(column: str) -> Any:
    doc = f"User and password for {column}.schema.registry.url, as user:password."
    return setting(SourceOption(f"{column}.basic.auth.user.info", ConfigType.PASSWORD, None, doc))


def _address(urls: tuple[str, ...] | None, user_info: str | None, column: str) -> RegistryAddress | None:
    if urls is None and user_info is not None:
        raise ConfigurationError(
            f"Option {column}.basic.auth.user.info has no effect without {column}.schema.registry.url. Set both."
        )
    return None if urls is None else RegistryAddress(urls, user_info)


@dataclass(frozen=True)
class ValueKeys:
    """The options as they are given."""

    key_format: str = _format("key")
    key_schema: str | None = _schema("key")
    key_registry: tuple[str, ...] | None = _registry_url("key")
    key_user_info: str | None = _user_info("key")
    value_format: str = _format("value")
    value_schema: str | None = _schema("value")
    value_registry: tuple[str, ...] | None = _registry_url("value")
    value_user_info: str | None = _user_info("value")
    value_flatten: bool = setting(
        SourceOption(
            "value.flatten",
            ConfigType.BOOLEAN,
            False,
            "Whether the fields of the value are columns, in place of the column value.",
        )
    )
    mode: str = setting(
        SourceOption(
            "mode",
            ConfigType.STRING,
            FAILFAST,
            "Reaction to a malformed key or value: FAILFAST fails the query, PERMISSIVE returns null and describes "
            "it in the column _error, DROPMALFORMED leaves the record out.",
            parser=parse_mode,
        )
    )


def value_options(given: ValueKeys) -> ValueOptions:
    """Returns the formats of key and value. Raises: ConfigurationError for options that contradict each other."""
    key = _address(given.key_registry, given.key_user_info, "key")
    value = _address(given.value_registry, given.value_user_info, "value")
    return ValueOptions(
        check_format(ColumnFormat("key", given.key_format, given.key_schema, registry=key)),
        check_format(ColumnFormat("value", given.value_format, given.value_schema, given.value_flatten, value)),
        given.mode,
    )
