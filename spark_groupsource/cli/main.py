"""The ``groupsource`` command: its sub-commands, each from a module of its own, loaded when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Mapping

import click

from spark_groupsource import __version__
from spark_groupsource.cli.common import HELP, Commands

# name -> module of this package; a broker that starts does not wait for what decodes records in bulk
_HOMES: Mapping[str, str] = {
    "broker": "broker",
    "consume": "produce_consume",
    "groups": "groups",
    "offsets-log": "offsets_log",
    "produce": "produce_consume",
    "topics": "topics",
}


class _Found(Commands):
    """Finds a command by its name; the function has the same with underscores."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _HOMES:
            return None
        module = import_module(f"spark_groupsource.cli.{_HOMES[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Found, context_settings=HELP)
@click.version_option(__version__, prog_name="groupsource")
def main() -> None:
    """Kafka consumer groups for Spark: an embedded broker, and commands for any Kafka."""
