"""Options of tables: ``format("groupsource").option("table", "lag")``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.config_def import ConfigKey, ConfigType, closest, config_keys, setting
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.definitions import TableDefinition, parse_table
from spark_groupsource.monitor.selection import NameSelection, parse_selection
from spark_groupsource.net import parse_addresses
from spark_groupsource.source.options import UNRESOLVED, QueryKind, is_embedded
from spark_groupsource.source.secret_options import resolve_references

TABLE_OPTION = "table"


def _parse_offsets(name: str, text: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigurationError(f"Option {name} must be a JSON array of offsets, got {text[:100]!r}.")
    return tuple(found)


@dataclass(frozen=True)
class TableOptions:
    """The options of one table, parsed; `client` holds the ``kafka.*`` settings."""

    table: TableDefinition = setting(
        ConfigKey(TABLE_OPTION, ConfigType.STRING, None, "Table to read; docs/tables.md has them.", parser=parse_table)
    )
    group: NameSelection | None = setting(
        ConfigKey(
            "group",
            ConfigType.STRING,
            None,
            "Groups to read: names or regular expressions (Python's re, full match), separated by commas.",
            parser=parse_selection,
        )
    )
    topic: NameSelection | None = setting(
        ConfigKey("topic", ConfigType.STRING, None, "Topics to read, in the same form.", parser=parse_selection)
    )
    starting_offsets: str = setting(
        ConfigKey(
            "startingOffsets",
            ConfigType.STRING,
            "earliest",
            "Start of a stream of offsets_log when it first starts.",
            choices=("earliest", "latest"),
        )
    )
    drain: str | None = setting(
        ConfigKey(
            "drain",
            ConfigType.STRING,
            None,
            "For table queries: id or name of a query, or the names of its readers separated by commas. The query "
            "finishes its batch, commits it and leaves its group; the table has its readers. Read it again until all "
            "are drained, then stop the query.",
        )
    )
    drained_offsets: tuple[Mapping[str, Any], ...] | None = setting(
        ConfigKey(
            "drainedOffsets",
            ConfigType.STRING,
            None,
            "With drain: JSON array of the end offsets in the last progress, given while no trigger is active, so that "
            "the query need not wait for its next trigger.",
            parser=_parse_offsets,
        )
    )
    bootstrap_servers: str = ""
    client: ClientSettings = field(default_factory=lambda: ClientSettings(()))

    def client_settings(self, bootstrap_servers: str) -> ClientSettings:
        """Returns the client's settings with the address that `bootstrap_servers` was resolved to."""
        return replace(self.client, bootstrap=parse_addresses(bootstrap_servers))


TABLE_OPTIONS: Mapping[str, ConfigKey] = {key.name.lower(): key for key in config_keys(TableOptions).values()}
"""Lower-case name -> option."""

_FIELDS = {key.name.lower(): name for name, key in config_keys(TableOptions).items()}


def is_table(options: Mapping[str, str]) -> bool:
    """Returns True if the options name a table."""
    return any(name.lower() == TABLE_OPTION for name in options)


def parse_table_options(options: Mapping[str, str], query: QueryKind | None = None) -> TableOptions:
    """Parses the options of a table.

    Args:
        query: the kind of query; None checks only what does not depend on it.
    Raises: ConfigurationError that names the option.
    """
    values: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    for name, text in resolve_references(options).items():
        key = name.lower()
        if key.startswith("kafka."):
            kafka[key.removeprefix("kafka.")] = str(text)
        elif key in TABLE_OPTIONS:
            values[_FIELDS[key]] = TABLE_OPTIONS[key].parse(str(text))
        else:
            near = closest(key, TABLE_OPTIONS)
            hint = f"Did you mean {TABLE_OPTIONS[near].name}?" if near else "Leave it out."
            raise ConfigurationError(f"Option {name} is unknown for a table. {hint}")
    table: TableDefinition = values["table"]
    for name in {"group", "topic"} & values.keys() - table.filters:
        raise ConfigurationError(f"Option {name} is not allowed for table {table.name}. Leave it out.")
    for name in {"drain", "drained_offsets"} & values.keys() if table.name != "queries" else ():
        raise ConfigurationError(f"Option {name} is not allowed for table {table.name}. Use table queries.")
    if query == "stream" and not table.is_streamable:
        raise ConfigurationError(
            f"Table {table.name} cannot be read as a stream. Use spark.read, or table offsets_log."
        )
    address = kafka.get("bootstrap.servers") or kafka.get("metadata.broker.list", "")
    if not address.strip() and table.name != "queries":
        raise ConfigurationError(
            "Option kafka.bootstrap.servers is missing. Give host:port of a broker, or embedded for an embedded broker."
        )
    settings = {name: text for name, text in kafka.items() if name != "metadata.broker.list"}
    client = ClientSettings.parse(
        {**settings, "bootstrap.servers": UNRESOLVED if is_embedded(address) or not address.strip() else address}
    )
    return TableOptions(bootstrap_servers=address, client=client, **values)
