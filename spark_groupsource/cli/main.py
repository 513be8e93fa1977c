"""The ``groupsource`` command: imports the module of a subcommand on demand."""

from __future__ import annotations

from typing import Mapping

import click

from spark_groupsource import __version__
from spark_groupsource.cli.commands import LazyGroup
from spark_groupsource.cli.common import HELP

# command -> module of this package, imported on demand: the broker must not load the record decoder at startup
_MODULES: Mapping[str, str] = {
    "broker": "broker_command",
    "checkpoint": "checkpoint_command",
    "compile-pyspark": "compile_pyspark",
    "completion": "completion",
    "consume": "consume",
    "doctor": "doctor",
    "examples": "examples",
    "exporter": "exporter",
    "groups": "groups_command",
    "offsets-log": "offsets_log_command",
    "produce": "produce_command",
    "topics": "topics_command",
    "ui": "ui_command",
}


# action of Kafka's tools -> the groups of commands that have it
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "alter": ("topics",),
    "create": ("topics",),
    "delete": ("groups", "topics"),
    "delete-offsets": ("groups",),
    "describe": ("groups", "topics"),
    "list": ("groups", "topics"),
    "reset-offsets": ("groups",),
}


class _Main(LazyGroup):
    modules = _MODULES

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-"):
            action = next((arg[2:] for arg in args if arg.startswith("--") and arg[2:] in _ACTIONS), None)
            if action is not None:
                lines = " or ".join(f"{ctx.command_path} {name} {action}" for name in _ACTIONS[action])
                ctx.fail(f"Option --{action} is one of Kafka's tools. Run: {lines} ...")
        return super().parse_args(ctx, args)


@click.group(cls=_Main, context_settings=HELP)
@click.version_option(__version__, prog_name="groupsource")
def main() -> None:
    """Kafka consumer groups for Spark: an embedded broker, and tools for any Kafka cluster."""
