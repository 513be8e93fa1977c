"""The ``groupsource`` command: imports the module of a subcommand on demand."""

from __future__ import annotations

from typing import Mapping

import click

from spark_groupsource import __version__
from spark_groupsource.cli.commands import LazyGroup
from spark_groupsource.cli.common import HELP

# command -> module of this package, imported on demand: the broker must not load the record decoder at startup
_MODULES: Mapping[str, str] = {
    "broker": "broker",
    "checkpoint": "checkpoint",
    "compile-pyspark": "compile_pyspark",
    "completion": "completion",
    "consume": "consume",
    "doctor": "doctor",
    "exporter": "exporter",
    "groups": "groups",
    "offsets-log": "offsets_log",
    "produce": "produce",
    "topics": "topics",
}


class _Main(LazyGroup):
    modules = _MODULES


@click.group(cls=_Main, context_settings=HELP)
@click.version_option(__version__, prog_name="groupsource")
def main() -> None:
    """Kafka consumer groups for Spark: an embedded broker, and tools for any Kafka cluster."""
