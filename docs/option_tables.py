"""Generates docs/options.md from the tables of settings and the commands."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping

import click

from spark_groupsource.broker.config import FIXED_SETTINGS, BrokerConfig
from spark_groupsource.broker.group.coordinator_config import GroupConfig
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.cli.main import main as groupsource
from spark_groupsource.client.network.security import SECURITY_KEYS
from spark_groupsource.client.records.producer_settings import CONNECTION_KEYS, PRODUCER_FIXED_KEYS, ProducerSettings
from spark_groupsource.client.rejected_settings import (
    ACCEPTED_VALUES,
    EQUAL_SETTINGS,
    PRODUCER_REJECTED_SETTINGS,
    REJECTED_SETTINGS,
    UNUSED_SETTINGS,
)
from spark_groupsource.client.settings import (
    FIXED_KEYS,
    ClientSettings,
    GroupSettings,
)
from spark_groupsource.common.config_def import (
    INT32_MAX,
    INT64_MAX,
    NO_DEFAULT_VALUE,
    ConfigKey,
    ConfigType,
    config_keys,
    format_value,
)
from spark_groupsource.source.options.sink_options import SINK_OPTIONS
from spark_groupsource.source.options.source_options import BOTH, UNSUPPORTED_OPTIONS, SourceOptions
from spark_groupsource.source.options.table_options import TABLE_OPTIONS
from spark_groupsource.source.options.value_options import VALUE_OPTIONS

_INTRODUCTION = """\
# Options and settings

A name that is not on this page is rejected; the error suggests the closest known name.
"""
_NUMBERS = (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)


def options_page() -> str:
    """The text of docs/options.md."""
    sections = (_source_section, _sink_section, _client_section, _topic_section, _broker_section, _command_section)
    return "\n".join([_INTRODUCTION, *(line for section in sections for line in section())])


# --- sections ---


def _source_section() -> Iterator[str]:
    keys = [*config_keys(SourceOptions).values(), *VALUE_OPTIONS.values()]
    yield from (
        "## Source options",
        "",
        'Options of `spark.readStream.format("groupsource")` and `spark.read.format("groupsource")`. Names are',
        "case-insensitive. The last line of a description has the type or the values, then bounds and unit, and which",
        "queries use the option, if not all: in others it is rejected, or ignored with a warning.",
        "",
    )
    yield from _table(
        ["Option", "Default", "Description"],
        ([f"`{key.name}`", _default(key), _description(key, _queries(key))] for key in keys),
    )
    yield from (
        "`key.schema.registry.ssl.*` and `value.schema.registry.ssl.*` are the settings `ssl.*` of",
        "[TLS](#tls-and-sasl), for the connections to a schema registry.",
        "",
    )
    yield from ("With the option `table` ([tables.md](tables.md)) the options are these, and `kafka.*`:", "")
    yield from _table(
        ["Option", "Default", "Description"],
        ([f"`{key.name}`", _default(key), _description(key)] for key in TABLE_OPTIONS.values()),
    )
    yield from ("Options of other sources that are rejected with a reason:", "")
    yield from _table(["Option", "Reason"], ([f"`{name}`", reason] for name, reason in UNSUPPORTED_OPTIONS.items()))


def _sink_section() -> Iterator[str]:
    yield from (
        "## Sink options",
        "",
        'Options of `df.writeStream.format("groupsource")` and `df.write.format("groupsource")`; see',
        "[writing.md](writing.md).",
        "",
    )
    yield from _table(
        ["Option", "Default", "Description"],
        ([f"`{key.name}`", _default(key), _description(key, _queries(key))] for key in SINK_OPTIONS.values()),
    )
    yield from (
        "Settings of the producer, with the prefix `kafka.`. Names and defaults are those of Kafka's Java producer",
        "unless stated otherwise; some names of librdkafka are accepted as aliases. [TLS and SASL](#tls-and-sasl) are",
        "those of reads, and so is `kafka.group.id`, which names the group of the source.",
        "",
    )
    keys = [*config_keys(ProducerSettings).values(), *CONNECTION_KEYS.values(), *PRODUCER_FIXED_KEYS.values()]
    yield from _table(
        ["Setting", "Default", "Description"],
        ([_names(key), _sink_default(key), _description(key, _java_default(key))] for key in keys),
    )
    yield from ("Rejected, except with a value that says what is the case anyway; others as for reads:", "")
    yield from _table(
        ["Setting", "Accepted", "Reason"],
        (
            [f"`{name}`", _accepted(name), text[:1].upper() + text[1:]]
            for name, text in PRODUCER_REJECTED_SETTINGS.items()
            if name not in REJECTED_SETTINGS
        ),
    )


def _sink_default(key: ConfigKey) -> str:
    names = {"acks": "`all`", "compression.type": "`none`"}
    return names.get(key.name, _default(key))


def _client_section() -> Iterator[str]:
    groups = config_keys(GroupSettings)
    connections = {**config_keys(ClientSettings), **FIXED_KEYS}
    common = {key.name for key in connections.values()}
    members = [key for key in groups.values() if key.name not in common]
    tables: Mapping[str, Iterable[ConfigKey]] = {
        "Connections, metadata and fetches": connections.values(),
        "Members": members,
        "TLS and SASL": SECURITY_KEYS.values(),
    }
    yield from (
        "## Kafka client settings",
        "",
        "Source options with the prefix `kafka.`; in a properties file (`--command-config`) without it. Names and",
        "defaults are those of Kafka's Java consumer unless stated otherwise; some names of librdkafka are accepted as",
        "aliases. An alias is ignored where the setting is also given under its own name.",
        "",
    )
    for title, keys in tables.items():
        yield from (f"### {title}", "")
        yield from _table(
            ["Setting", "Default", "Description"],
            ([_names(key), _default(key), _description(key)] for key in keys),
        )
    differing = [key for keys in tables.values() for key in keys if key.kafka_default is not None]
    yield from ("### Differences from the Java consumer", "", "Different defaults:", "")
    yield from _table(
        ["Setting", "Java", "Default"],
        ([f"`{key.name}`", _value(key.kafka_default), _default(key)] for key in differing),
    )
    yield from (
        "Rejected, except with a value that says what is the case anyway, and where the other settings leave the",
        "setting without effect in Kafka too (TLS, SASL or OAUTHBEARER that are not used,",
        "`auto.commit.interval.ms` with `enable.auto.commit=false`):",
        "",
    )
    yield from _table(
        ["Setting", "Accepted", "Reason"],
        ([f"`{name}`", _accepted(name), text[:1].upper() + text[1:]] for name, text in REJECTED_SETTINGS.items()),
    )
    yield from ("Accepted with every value, without effect, as in Kafka's consumer:", "")
    yield from _table(["Setting", "Used by"], ([f"`{name}`", user] for name, user in UNUSED_SETTINGS.items()))


def _accepted(name: str) -> str:
    if name in EQUAL_SETTINGS:
        return f"the value of `{EQUAL_SETTINGS[name]}`"
    return " ".join(f"`{value}`" if value else "empty" for value in ACCEPTED_VALUES.get(name, ()))


def _topic_section() -> Iterator[str]:
    yield from (
        "## Topic settings of the embedded broker",
        "",
        "Set at the creation of a topic and changed with `kafka-configs --entity-type topics`. The broker setting",
        "that a description names supplies the default of topics that do not set a value.",
        "",
    )
    rows = (
        [f"`{key.name}`", _default(key), _description(key, _broker_name(key))]
        for key in config_keys(TopicConfig).values()
    )
    yield from _table(["Setting", "Default", "Description"], rows)


def _broker_section() -> Iterator[str]:
    yield from (
        "## Broker settings of the embedded broker",
        "",
        "Given as `groupsource broker --config NAME=VALUE` or `EmbeddedBroker(config={...})`. The broker settings in",
        "the table of topic settings are accepted, too. They and the settings marked *dynamic* can be changed at run",
        "time with `kafka-configs --entity-type brokers`.",
        "",
    )
    keys = [*config_keys(BrokerConfig).values(), *config_keys(GroupConfig).values()]
    yield from _table(
        ["Setting", "Default", "Description"],
        ([f"`{key.name}`", _default(key), _description(key, "dynamic" if key.dynamic else "")] for key in keys),
    )
    yield from ("Accepted with a value that says what is the case anyway:", "")
    yield from _table(
        ["Setting", "Accepted", "Reason"],
        (
            [f"`{name}`", " ".join(f"`{value}`" for value in values), reason[:1].upper() + reason[1:] + "."]
            for name, (values, reason) in FIXED_SETTINGS.items()
        ),
    )


def _command_section() -> Iterator[str]:
    yield from ("## Commands", "", "Every command has `-h` and `--help`.", "")
    context = click.Context(groupsource, info_name="groupsource")
    for name in groupsource.list_commands(context):
        command = groupsource.get_command(context, name)
        assert command is not None
        yield from _command(command, f"groupsource {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _command(child, f"{path} {name}")
        return
    arguments = [f" [{p.human_readable_name}]..." for p in command.params if isinstance(p, click.Argument)]
    yield from (f"### `{path}{''.join(arguments)}`", "")
    for paragraph in (command.help or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    options = [param for param in command.params if isinstance(param, click.Option)]
    yield from _table(["Option", "Default", "Description"], map(_flag, options))


def _flag(option: click.Option) -> list[str]:
    metavar = "" if option.is_flag else f" {_metavar(option)}"
    names = ", ".join(f"`{name}{metavar}`" for name in (*option.opts, *option.secondary_opts))
    required = "required" if option.required else ""
    # click marks "no default" by an object of its own in some versions
    default = str(option.default) if option.show_default and not option.required else required
    variable = f" Environment variable: `{option.envvar}`." if option.envvar else ""
    return [names, default, f"{option.help or ''}{variable}"]


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return "N" if isinstance(option.type, click.IntRange) else option.type.name.upper()


# --- cells ---


def _names(key: ConfigKey) -> str:
    aliases = ", ".join(f"`{alias}`" for alias in key.aliases)
    return f"`{key.name}`" + (f" (alias {aliases})" if aliases else "")


def _queries(key: Any) -> str:
    if key.queries == BOTH:
        return ""
    (kind,) = key.queries
    return f"{kind} queries only, {key.elsewhere} in others"


def _java_default(key: ConfigKey) -> str:
    return "" if key.kafka_default is None else f"in Java {_value(key.kafka_default) or 'empty'}"


def _broker_name(key: Any) -> str:
    return f"broker setting `{key.broker_name}`" if key.broker_name and key.is_broker_setting else ""


def _description(key: ConfigKey, note: str = "") -> str:
    """The description, and in a second line what a value may be and where it has an effect."""
    return f"{key.doc}<br>*{'; '.join(filter(None, (_values(key), note)))}*"


def _default(key: ConfigKey) -> str:
    return "required" if key.default is NO_DEFAULT_VALUE else _value(key.default)


def _value(value: Any) -> str:
    if value is None or value in ("", ()):
        return ""
    return f"`{format_value(value)}`"


def _values(key: ConfigKey) -> str:
    """Type, bounds and unit, or the choices."""
    if key.choices:
        choices = ", ".join(f"`{choice}`" for choice in key.choices)
        return f"list of {choices}" if key.type is ConfigType.LIST else choices
    text = key.type.value + (_bounds(key) if key.type in _NUMBERS else "")
    return f"{text}, {key.unit}" if key.unit else text


def _bounds(key: ConfigKey) -> str:
    has_maximum = key.high is not None and key.high not in (INT32_MAX, INT64_MAX)
    if key.low is not None and has_maximum:
        return f", {key.low} to {key.high}"
    if has_maximum:
        return f", at most {key.high}"
    return f", at least {key.low}" if key.low is not None else ""


def _table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield from ("| " + " | ".join(_escape(cell) for cell in line) + " |" for line in (header, ["---"] * len(header)))
    yield from ("| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows)
    yield ""


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")
