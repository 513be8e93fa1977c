"""The ``groupsource groups`` commands: those of ``kafka-consumer-groups``, and more."""

from __future__ import annotations

from collections.abc import Iterable

import click

from spark_groupsource import __version__
from spark_groupsource.cli.commands import invalid_values
from spark_groupsource.cli.common import HELP, F, cluster_options, json_option
from spark_groupsource.cli.tool_form import JavaLong, ToolGroup, is_tool_form, reject_command_line
from spark_groupsource.client.admin import GroupDescription, list_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.config_def import INT32_MAX
from spark_groupsource.monitor.near_names import missing_group_text
from spark_groupsource.monitor.offsets.offset_reset import ResetScope, parse_scope


class _Groups(ToolGroup):
    modules = {
        "delete": "group_deletes",
        "delete-offsets": "group_deletes",
        "describe": "group_read_commands",
        "history": "why",
        "list": "group_read_commands:list_command",
        "reset-offsets": "group_resets",
        "validate-regex": "group_read_commands",
        "watch": "why",
        "why": "why",
    }


@click.group(cls=_Groups, context_settings=HELP)
@click.version_option(__version__, message="%(version)s")
def groups() -> None:
    """Lists, describes, resets and deletes consumer groups.

    The form of kafka-consumer-groups works too, with its exit status: groupsource groups --describe --group GROUP.
    """


def group_command_options(command: F) -> F:
    """Adds the options of every command that reads a cluster."""
    command = json_option(command)
    command = click.option(
        "--timeout",
        "timeout_ms",
        type=JavaLong(1),
        # the operating system has no longer timeouts than some years
        callback=lambda ctx, param, value: min(value, INT32_MAX),
        default=30_000,
        show_default=True,
        metavar="MS",
        help="How long each operation may take.",
    )(command)
    return cluster_options(command)


def group_option(command: F) -> F:
    """Adds ``--group`` and ``--all-groups``."""
    command = click.option("--all-groups", is_flag=True, help="Apply to all consumer groups.")(command)
    return click.option("--group", "names", multiple=True, metavar="GROUP", help="Group; may be repeated.")(command)


def check_group_options(names: tuple[str, ...], all_groups: bool, action: str) -> None:
    """Raises: click.UsageError unless exactly one of the options is given."""
    text = "Give either --group GROUP (one or more) or --all-groups."
    if names and all_groups:
        reject_command_line(text, 'Option "[group]" can\'t be used with option "[all-groups]"')
    if not names and not all_groups:
        reject_command_line(text, f"Option [{action}] takes one of these options: [group], [all-groups]")


def scope_of(topics: Iterable[str]) -> ResetScope:
    """Parses the values of ``--topic``. Raises: InvalidValueError; ConfigurationError in the form of Kafka's tool."""
    if is_tool_form():
        return parse_scope(topics)
    with invalid_values():
        return parse_scope(topics)


def absent_group_text(cluster: ClusterClient, group: GroupDescription) -> str:
    """Returns why a group in state ``Dead`` is not shown."""
    if "not a consumer group" in group.dead_reason:
        return (
            f"Group {group.group_id!r} is not a consumer group. Describe it with kafka-share-groups or "
            "kafka-streams-groups."
        )
    return missing_group_text(cluster, group.group_id)


def consumer_groups(cluster: ClusterClient) -> list[str]:
    """Returns the ids of all groups with the consumer protocol or without one, sorted."""
    return [g.group_id for g in list_groups(cluster) if g.protocol_type in ("consumer", "")]
