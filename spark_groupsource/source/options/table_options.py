"""Options of tables: ``format("groupsource").option("table", "lag")``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX
from spark_groupsource.common.config_def import ConfigKey, ConfigType, closest, comma_list, config_keys, setting
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.selection import NameSelection, parse_name, parse_name_pattern, parse_selection
from spark_groupsource.monitor.tables.definitions import TableDefinition, parse_table
from spark_groupsource.source.options.cluster_options import ClusterOptions, parse_cluster
from spark_groupsource.source.options.option_row import QueryKind, SourceOption, by_lower_name, kafka_settings
from spark_groupsource.source.options.secret_options import resolve_references

TABLE_OPTION = "table"


def _parse_offsets(name: str, text: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigurationError(f"Option {name} must be a JSON array of offsets, got {text!r}.")
    return tuple(found)


@dataclass(frozen=True)
class TableOptions(ClusterOptions):
    """The options of one table, parsed."""

    table: TableDefinition = setting(
        ConfigKey(TABLE_OPTION, ConfigType.STRING, None, "Table to read; docs/tables.md has them.", parser=parse_table)
    )
    group: NameSelection | None = setting(
        ConfigKey(
            "group",
            ConfigType.STRING,
            None,
            "Name of the group to read, exactly as given.",
            parser=parse_name,
            is_trimmed=False,
        )
    )
    group_pattern: NameSelection | None = setting(
        ConfigKey(
            "groupPattern",
            ConfigType.STRING,
            None,
            "Regular expression (Python's re): groups whose whole name it matches are read. Instead of group.",
            parser=parse_name_pattern,
        )
    )
    topic: NameSelection | None = setting(
        ConfigKey(
            "topic",
            ConfigType.STRING,
            None,
            "Topics to read: names or regular expressions (Python's re, full match), separated by commas.",
            parser=parse_selection,
        )
    )
    starting_offsets: str = setting(
        SourceOption(
            "startingOffsets",
            ConfigType.STRING,
            "earliest",
            "Start of a stream of offsets_log when it first starts.",
            choices=("earliest", "latest"),
        )
    )
    drain: tuple[str, ...] | None = setting(
        ConfigKey(
            "drain",
            ConfigType.STRING,
            None,
            "For table queries: id or name of a query, or the names of its readers separated by commas. The query "
            "finishes its batch, commits it and leaves its group; the table has its readers. Read it again until all "
            "are drained, then stop the query.",
            parser=lambda name, text: comma_list(text),
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

    @property
    def groups(self) -> NameSelection | None:
        """The selected groups; None for all."""
        return self.group or self.group_pattern


TABLE_OPTIONS: Mapping[str, ConfigKey] = {key.name.lower(): key for key in config_keys(TableOptions).values()}
"""Lower-case name -> option."""

_FIELDS = {key.name.lower(): name for name, key in config_keys(TableOptions).items()}


# field -> the column of `TableDefinition.filters` that it selects by
_FILTERS = {"group": "group", "group_pattern": "group", "topic": "topic"}


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
    given = by_lower_name(resolve_references(options))
    kafka = kafka_settings(given)
    for key, (name, text) in given.items():
        if key in TABLE_OPTIONS:
            values[_FIELDS[key]] = TABLE_OPTIONS[key].parse(text)
        elif not key.startswith(OPTION_PREFIX):
            near = closest(key, TABLE_OPTIONS)
            hint = f"Did you mean {TABLE_OPTIONS[near].name}?" if near else "Leave it out."
            raise ConfigurationError(f"Option {name} is unknown for a table. {hint}")
    table: TableDefinition = values["table"]
    for field_name, column in _FILTERS.items():
        if field_name in values and column not in table.filters:
            name = config_keys(TableOptions)[field_name].name
            raise ConfigurationError(f"Option {name} is not allowed for table {table.name}. Leave it out.")
    if "group" in values and "group_pattern" in values:
        raise ConfigurationError("Options group and groupPattern exclude each other. Remove one of them.")
    for name in {"drain", "drained_offsets"} & values.keys() if table.name != "queries" else ():
        raise ConfigurationError(f"Option {name} is not allowed for table {table.name}. Use table queries.")
    if query == "stream" and not table.is_streamable:
        raise ConfigurationError(
            f"Table {table.name} cannot be read as a stream. Use spark.read, or table offsets_log."
        )
    address, client = parse_cluster(kafka, is_required=table.name != "queries")
    return TableOptions(bootstrap_servers=address, client=client, **values)
