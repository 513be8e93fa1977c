"""Options, JSON output, error reporting and properties files shared by all commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.security import bootstrap_text
from spark_groupsource.client.rejected_settings import REJECTED_SETTINGS, is_accepted_value
from spark_groupsource.client.settings import ACCEPTED_SETTINGS, ClientSettings, GroupSettings, without_prefix
from spark_groupsource.common.config_def import trim
from spark_groupsource.common.config_providers import resolve
from spark_groupsource.common.properties_text import Property, decode, entries
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.model import bounded_names

F = TypeVar("F", bound=Callable[..., Any])

# a key without separator and value, which is no part of a password
_SETTING_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+")

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
# settings of Kafka's clients that a command skips in properties files
_IGNORED = frozenset(
    {
        *REJECTED_SETTINGS,
        *(
            "acks auto.include.jmx.reporter auto.register.schemas batch.size bootstrap.controllers buffer.memory "
            "compression.gzip.level "
            "compression.lz4.level compression.type compression.zstd.level delivery.timeout.ms "
            "enable.idempotence key.serializer linger.ms max.block.ms "
            "max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms "
            "partitioner.adaptive.partitioning.enable "
            "partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys retries "
            "transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer"
        ).split(),
    }
)
_KNOWN = frozenset({name for key in ACCEPTED_SETTINGS.values() for name in (key.name, *key.aliases)})
# basic.auth, bearer.auth and schema.registry are settings of Confluent's serializers
_IGNORED_PREFIXES = (
    "basic.auth.",
    "bearer.auth.",
    "confluent.",
    "metrics.",
    "sasl.client.callback.",
    "sasl.kerberos.",
    "sasl.login.",
    "sasl.oauthbearer.",
    "schema.registry.",
)


class SettingsError(ConfigurationError):
    """A properties file, one of its settings or an address is invalid."""


def one_line(error: GroupSourceError) -> str:
    """Returns the message of an error in one line, with settings named as in properties files."""
    return without_prefix(" ".join(str(error).split()))


def cluster_options(command: F) -> F:
    """Adds ``--bootstrap-server`` and ``--command-config``, named as in Kafka's tools."""
    command = click.option(
        "--command-config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Properties file with client settings, as for kafka-consumer-groups.",
    )(command)
    return click.option(
        "--bootstrap-server",
        "--bootstrap-servers",
        "bootstrap",
        default="localhost:9092",
        envvar="GROUPSOURCE_BOOTSTRAP_SERVER",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Brokers of the initial connection.",
    )(command)


@contextmanager
def open_cluster(
    bootstrap: str, command_config: Path | None, timeout_ms: int | None = None
) -> Iterator[ClusterClient]:
    """A client of the cluster, closed at exit.

    Args:
        timeout_ms: how long each operation may take; None for default.api.timeout.ms.
    Raises: SettingsError for an unreadable file, an unknown setting or an invalid address.
    """
    parsed = client_settings(bootstrap, command_config, timeout_ms)
    with ClusterClient(parsed.bootstrap, parsed) as cluster:
        yield cluster


def client_settings(bootstrap: str, command_config: Path | None, timeout_ms: int | None = None) -> ClientSettings:
    """Parses the options of `cluster_options`; arguments and errors as of `open_cluster`."""
    try:
        settings = client_properties(command_config)
        if _is_default("bootstrap"):
            bootstrap = bootstrap_text(settings) or bootstrap
        parsed = ClientSettings.parse({**settings, "bootstrap.servers": bootstrap})
    except ConfigurationError as error:
        raise SettingsError(str(error)) from error
    if timeout_ms is None:
        return parsed
    return replace(parsed, default_api_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms)


def _is_default(parameter: str) -> bool:
    """Returns whether the running command has a parameter that the user has not given."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(parameter) is ParameterSource.DEFAULT


def member_settings(command_config: Path | None, group_id: str, topic: str) -> GroupSettings:
    """Returns the settings of a member: those of the file, as of a streaming query with the same options.

    Raises: SettingsError.
    """
    try:
        settings = client_properties(command_config, warns=False)
        return GroupSettings.parse({**settings, "group.id": group_id}, topics=(topic,))
    except ConfigurationError as error:
        raise SettingsError(str(error)) from error


def client_properties(path: Path | None, *, warns: bool = True) -> dict[str, str]:
    """Reads the settings of a Kafka client, none without a file; those without effect here are skipped.

    Args:
        warns: whether one warning names them.
    Raises: ConfigurationError.
    """
    if path is None:
        return {}
    settings = read_properties(path)
    skipped = sorted(name for name, text in settings.items() if _is_ignored(name) and not is_accepted_value(name, text))
    if skipped and warns:
        click.echo(f"Warning: Settings of {path} without effect here are skipped: {bounded_names(skipped)}.", err=True)
    return resolve({name: value for name, value in settings.items() if not _is_ignored(name)})


def read_properties(path: Path, option: str = "--command-config") -> dict[str, str]:
    """Returns the settings of a properties file, in the format of Java's `Properties.load`.

    Raises: ConfigurationError with the name of the file, and the number of the invalid line if there is one. A line may
        contain a password, so that its text is not shown.
    """
    found = {}
    for entry in _load(path, option):
        if not entry.key or not (entry.has_separator or _SETTING_NAME.fullmatch(entry.key)):
            raise ConfigurationError(
                f"Line {entry.line} of {path} must be KEY=VALUE. Check the file that {option} names."
            )
        found[entry.key] = trim(entry.value)
    return found


def _load(path: Path, option: str) -> list[Property]:
    """Returns the entries of a properties file. Raises: ConfigurationError."""
    try:
        return list(entries(decode(path.read_bytes())))
    except (OSError, ValueError, ConfigurationError) as error:
        reason = str(error).rstrip(".")
        raise ConfigurationError(f"Cannot read properties file {path}: {reason}. Check {option}.") from error


def read_lines(path: Path, option: str) -> list[str]:
    """Returns the lines of a file, except empty ones and comments that start with ``#``. Raises: ConfigurationError."""
    lines = map(str.strip, _read_text(path, option).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _read_text(path: Path, option: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read properties file {path}: {error}. Check {option}.") from error


def key_values(entries: Iterable[str], origin: str) -> dict[str, str]:
    """Parses ``KEY=VALUE`` texts; the last of several values of a key wins.

    Raises: ConfigurationError with the invalid entry and its origin, an option or a file.
    """
    found: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"Settings of {origin} must be KEY=VALUE, got {entry!r}.")
        found[key.strip()] = value.strip()
    return found


def _is_ignored(name: str) -> bool:
    """Returns whether a properties file of Kafka's clients may have this setting, which has no effect here."""
    return name not in _KNOWN and (name in _IGNORED or name.startswith(_IGNORED_PREFIXES))


def json_option(command: F) -> F:
    """Adds ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print a JSON array of objects instead of the table."
    )(command)


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints an array with one row per line."""
    lines = ",\n ".join(json.dumps(dict(row), ensure_ascii=False) for row in rows)
    click.echo(f"[{lines}]")
