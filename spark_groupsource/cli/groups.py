"""The ``groupsource groups`` commands: the output of ``kafka-consumer-groups``."""

from __future__ import annotations

from pathlib import Path

import click

from spark_groupsource.cli.common import HELP, CommandGroup, cluster_options, open_cluster
from spark_groupsource.cli.group_tables import (
    list_table,
    members_table,
    offsets_table,
    state_note,
    state_table,
)
from spark_groupsource.client.admin import GroupDescription, describe_groups, list_groups
from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.monitor.cluster_reads import group_lag

_STATES = ("Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead")
_ALL = "all"


@click.group(cls=CommandGroup, context_settings=HELP)
def groups() -> None:
    """Lists and describes consumer groups."""


@groups.command("list")
@cluster_options
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[S1,S2]",
    help="Show the state of each group; with names, only groups in these states.",
)
@click.option("--type", "with_type", is_flag=True, help="Show the type of each group.")
def list_command(bootstrap: str, command_config: Path | None, states: str | None, with_type: bool) -> None:
    """Lists the consumer groups of the cluster."""
    requested = _states(states)
    with open_cluster(bootstrap, command_config) as cluster:
        found = [g for g in list_groups(cluster, requested) if g.protocol_type in ("consumer", "")]
    click.echo(list_table(found, with_type, states is not None), nl=False)


@groups.command()
@cluster_options
@click.option("--group", "names", multiple=True, metavar="GROUP", help="Group to describe; may be repeated.")
@click.option("--all-groups", is_flag=True, help="Describe every group.")
@click.option("--offsets", "view", flag_value="offsets", help="Offsets and lag of each partition (the default).")
@click.option("--members", "view", flag_value="members", help="Members and the number of partitions of each.")
@click.option("--state", "view", flag_value="state", help="State, coordinator and assignor of the group.")
@click.option("--verbose", is_flag=True, help="Show more columns.")
def describe(
    bootstrap: str,
    command_config: Path | None,
    names: tuple[str, ...],
    all_groups: bool,
    view: str | None,
    verbose: bool,
) -> None:
    """Shows the offsets, the members or the state of consumer groups."""
    if bool(names) == all_groups:
        raise click.UsageError("Give either --group GROUP (one or more) or --all-groups.")
    with open_cluster(bootstrap, command_config) as cluster:
        if all_groups:
            names = tuple(g.group_id for g in list_groups(cluster) if g.protocol_type in ("consumer", ""))
        described = describe_groups(cluster, sorted(set(names)))
        for group in described.values():
            _show(cluster, group, view or "offsets", verbose)
    missing = [name for name, group in described.items() if group.state == "Dead"]
    if missing and not all_groups:
        raise GroupSourceError(f"Consumer group {missing[0]!r} does not exist. Run: groupsource groups list.")


def _show(cluster: Cluster, group: GroupDescription, view: str, verbose: bool) -> None:
    if group.state == "Dead":
        return
    rows = group_lag(cluster, [group])[group.group_id] if view == "offsets" else []
    note = state_note(group)
    if note is not None:
        click.echo(note, err=True)
    if view == "offsets":
        click.echo(offsets_table(group, rows, verbose), nl=False)
    elif view == "members":
        click.echo(members_table(group, verbose), nl=False)
    else:
        click.echo(state_table(group, verbose), nl=False)


def _states(text: str | None) -> list[str]:
    if text is None or text == _ALL:
        return []
    known = {state.lower(): state for state in _STATES}
    requested = [entry.strip().lower() for entry in text.split(",")]
    for entry in requested:
        if entry not in known:
            raise ConfigurationError(f"Option --state must be one or more of {', '.join(_STATES)}, got {entry!r}.")
    return [known[entry] for entry in requested]
