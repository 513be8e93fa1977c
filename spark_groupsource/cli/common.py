"""What the commands share: how a cluster is named on the command line, and how an error becomes one line.

Knows click; knows nothing of what the commands do.
"""

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


class Commands(click.Group):
    """A group of commands whose errors are one line on standard error and exit status 1, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GroupSourceError as error:
            raise click.ClickException(" ".join(str(error).split())) from error


def cluster_options(command: F) -> F:
    """Adds ``--bootstrap-server`` and ``--command-config``, Kafka's own names for them."""
    command = click.option(
        "--command-config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Properties file with client settings, as kafka-consumer-groups takes it.",
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
        help="Broker to ask first.",
    )(command)


@contextmanager
def open_cluster(bootstrap: str, command_config: Path | None) -> Iterator[Cluster]:
    """A client of the named cluster, closed at the end.

    Raises: ConfigurationError for an unreadable file, an unknown setting or an address that is none.
    """
    settings = read_properties(command_config) if command_config else {}
    parsed = ClientSettings.parse({**settings, "bootstrap.servers": bootstrap})
    with Cluster(parsed.bootstrap, parsed) as cluster:
        yield cluster


def read_properties(path: Path) -> dict[str, str]:
    """Settings of a properties file: ``name=value`` lines, ``#`` and ``!`` before comments.

    Raises: ConfigurationError naming the file, and the line that is no setting.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); give a properties file") from error
    rows = [line for line in map(str.strip, lines) if line and line[0] not in "#!"]
    return key_values(rows, str(path))


def key_values(entries: Iterable[str], where: str) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping.

    Raises: ConfigurationError naming the entry and `where` it stands.
    """
    found: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"{where}: {entry!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
