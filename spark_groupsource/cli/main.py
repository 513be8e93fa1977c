"""The ``groupsource`` command: imports the module of a subcommand on demand."""

from __future__ import annotations

from importlib import import_module
from typing import Mapping

import click

from spark_groupsource import __version__
from spark_groupsource.cli.common import HELP, CommandGroup

# command -> module of this package, imported on demand: the broker must not load the record decoder at startup
_MODULES: Mapping[str, str] = {
    "broker": "broker",
    "consume": "produce_consume",
    "groups": "groups",
    "offsets-log": "offsets_log",
    "produce": "produce_consume",
    "topics": "topics",
}


class _LazyGroup(CommandGroup):
    """Imports a command by its name; the function has the same name with underscores."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = import_module(f"spark_groupsource.cli.{_MODULES[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings=HELP)
@click.version_option(__version__, prog_name="groupsource")
def main() -> None:
    """Kafka consumer groups for Spark: an embedded broker, and tools for any Kafka cluster."""
