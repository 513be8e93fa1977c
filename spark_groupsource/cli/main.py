"""The ``groupsource`` command: its sub-commands, each from a module of its own."""

from __future__ import annotations

import click

from spark_groupsource.cli.broker import broker
from spark_groupsource.cli.groups import groups
from spark_groupsource.cli.offsets_log import offsets_log
from spark_groupsource.cli.options import HELP, Commands
from spark_groupsource.cli.records import consume, produce
from spark_groupsource.cli.topics import topics


@click.group(cls=Commands, context_settings=HELP)
@click.version_option(package_name="spark-groupsource", prog_name="groupsource")
def main() -> None:
    """Kafka consumer groups for Spark: an embedded broker, and commands for any Kafka."""


for _command in (broker, topics, groups, produce, consume, offsets_log):
    main.add_command(_command)
