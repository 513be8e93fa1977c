"""Options, error reporting and properties files shared by all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import ConfigurationError, GroupSourceError

F = TypeVar("F", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class CommandGroup(click.Group):
    """A click group that reports a `GroupSourceError` as one line on standard error, with exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GroupSourceError as error:
            raise click.ClickException(" ".join(str(error).split())) from error


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
def open_cluster(bootstrap: str, command_config: Path | None) -> Iterator[Cluster]:
    """A client of the cluster, closed at exit.

    Raises: ConfigurationError for an unreadable file, an unknown setting or an invalid address.
    """
    settings = read_properties(command_config) if command_config else {}
    parsed = ClientSettings.parse({**settings, "bootstrap.servers": bootstrap})
    with Cluster(parsed.bootstrap, parsed) as cluster:
        yield cluster


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a properties file: ``name=value`` lines and comments that start with ``#`` or ``!``.

    Raises: ConfigurationError with the name of the file, and the invalid line if there is one.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read properties file {path}: {error}. Check --command-config.") from error
    rows = [line for line in map(str.strip, lines) if line and line[0] not in "#!"]
    return key_values(rows, str(path))


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
