"""The commands ``groups list``, ``groups describe`` and ``groups validate-regex``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from spark_groupsource.cli.commands import InvalidValueError, command
from spark_groupsource.cli.common import cluster_options, open_cluster, print_json
from spark_groupsource.cli.effects import Excludes, check_effects
from spark_groupsource.cli.group_tables import (
    list_table,
    members_table,
    offsets_table,
    state_note,
    state_table,
)
from spark_groupsource.cli.groups_command import (
    absent_group_text,
    check_group_options,
    consumer_groups,
    group_command_options,
    group_option,
)
from spark_groupsource.cli.tool_form import ReportedError, is_tool_form, print_error, reject_command_line, table_width
from spark_groupsource.client.admin import GroupDescription, describe_groups, list_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.offsets.cluster_reads import group_lag
from spark_groupsource.monitor.offsets.lag import LagRow, member_row
from spark_groupsource.monitor.tables.estimates import ESTIMATES, estimates

_STATES = ("Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead", "Assigning", "Reconciling")
_TYPES = ("Classic", "Consumer")
_ALL = "all"
# message of RE2 (C++) -> description of RE2/J, which Kafka's tool prints
_REGEX_ERRORS = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


def _listed(name: str, choices: Sequence[str], text: str | None) -> list[str]:
    """Parses the value of ``--state`` or ``--type``; case does not matter.

    Raises: InvalidValueError; ConfigurationError in the form of Kafka's tool.
    """
    if text is None or text in (_ALL, ""):
        return []
    known = {choice.lower(): choice for choice in choices}
    requested = [entry.strip().lower() for entry in text.split(",")]
    for entry in requested:
        if entry not in known:
            allowed = ", ".join(choices)
            if is_tool_form():
                what = "state list" if name == "--state" else "types list"
                raise ConfigurationError(f"Invalid {what} '{text}'. Valid {name.removeprefix('--')}s are: {allowed}")
            raise InvalidValueError(f"Option {name} must be one or more of {allowed}, got {entry!r}.")
    return [known[entry] for entry in requested]


def _completed(choices: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Returns the completion of a comma-separated list; case does not matter."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        listed = before.lower().split(",")
        found = [each for each in choices if each.lower().startswith(last.lower()) and each.lower() not in listed]
        return [CompletionItem(f"{before}{comma}{each}") for each in found]

    return complete


@command("list")
@group_command_options
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[S1,S2]",
    shell_complete=_completed(_STATES),
    help="Show the state of each group; with names, only groups in these states.",
)
@click.option(
    "--type",
    "types",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[T1,T2]",
    shell_complete=_completed(_TYPES),
    help="Show the type of each group; with names, only groups of these types: classic, consumer.",
)
def list_command(
    bootstrap: str,
    command_config: Path | None,
    timeout_ms: int,
    as_json: bool,
    states: str | None,
    types: str | None,
) -> None:
    """Lists the consumer groups of the cluster."""
    chosen_states = _listed("--state", _STATES, states)
    chosen_types = _listed("--type", _TYPES, types)
    with open_cluster(bootstrap, command_config, timeout_ms) as cluster:
        listed = list_groups(cluster, chosen_states, chosen_types)
    found = [g for g in listed if g.protocol_type in ("consumer", "")]
    if as_json:
        print_json({"group": g.group_id, "type": g.group_type or None, "state": g.state or None} for g in found)
    else:
        click.echo(list_table(found, types is not None, states is not None, table_width()), nl=False)


@command()
@group_command_options
@group_option
@click.option("--offsets", is_flag=True, help="Offsets and lag of each partition (the default).")
@click.option("--members", is_flag=True, help="Members and the number of partitions of each.")
@click.option("--state", is_flag=True, help="State, coordinator and assignor of the group.")
@click.option("--verbose", is_flag=True, help="Show more columns.")
@click.option(
    "--estimates",
    "with_estimates",
    is_flag=True,
    help="With --offsets, show the lag also in time and bytes, the rate of commits and the time to catch up.",
)
def describe(
    bootstrap: str,
    command_config: Path | None,
    timeout_ms: int,
    as_json: bool,
    names: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    with_estimates: bool,
) -> None:
    """Shows the offsets, the members or the state of consumer groups."""
    check_group_options(names, all_groups, "describe")
    if offsets + members + state > 1:
        reject_command_line(
            "Give at most one of --offsets, --members and --state.",
            "Option [describe] takes at most one of these options: [members], [offsets], [state]",
        )
    check_effects(
        click.get_current_context(), (Excludes("--estimates", "--members"), Excludes("--estimates", "--state"))
    )
    view = "members" if members else "state" if state else "offsets"
    with open_cluster(bootstrap, command_config, timeout_ms) as cluster:
        chosen = consumer_groups(cluster) if all_groups else sorted(set(names))
        described = describe_groups(cluster, chosen)
        missing = [] if all_groups else [name for name in chosen if described[name].state == "Dead"]
        if missing and is_tool_form():
            reason = described[missing[0]].dead_reason or f"Group {missing[0]} not found."
            name = f"org.apache.kafka.common.errors.GroupIdNotFoundException: {reason}"
            raise ReportedError(absent_group_text(cluster, described[missing[0]]), name)
        existing = [group for group in described.values() if group.state != "Dead"]
        if as_json:
            print_json(row for group in existing for row in _rows(cluster, group, view, with_estimates))
        for group in existing if not as_json else ():
            _show(cluster, group, view, verbose, with_estimates)
        for name in missing:
            print_error(absent_group_text(cluster, described[name]))


@command("validate-regex")
@cluster_options
@click.argument("regex")
def validate_regex(bootstrap: str, command_config: Path | None, regex: str) -> None:
    """Checks a regular expression of a subscription by the rules of RE2, which brokers use (KIP-848).

    No broker is needed.
    """
    from pyarrow import ArrowInvalid, compute

    try:
        # Arrow's functions are those of RE2
        compute.match_substring_regex("", pattern=regex)
    except ArrowInvalid as error:
        found = re.sub(r"^Invalid regular expression: ", "", str(error)).partition(": ")[0]
        click.echo(f"The regular expression `{regex}` is invalid: {_REGEX_ERRORS.get(found, found)}.")
    else:
        click.echo(f"The regular expression `{regex}` is valid.")


def _show(cluster: ClusterClient, group: GroupDescription, view: str, verbose: bool, with_estimates: bool) -> None:
    rows = group_lag(cluster, [group])[group.group_id] if view == "offsets" else []
    note = state_note(group)
    if note is not None:
        click.echo(note, err=True)
    if view == "offsets":
        more = _estimates(cluster, group, rows) if with_estimates else ()
        columns = ESTIMATES if with_estimates else ()
        click.echo(offsets_table(group, rows, verbose, columns, more, table_width()), nl=False)
    elif view == "members":
        click.echo(members_table(group, verbose, table_width()), nl=False)
    elif view == "state":
        click.echo(state_table(group, verbose, table_width()), nl=False)


def _estimates(cluster: ClusterClient, group: GroupDescription, rows: Sequence[LagRow]) -> list[list[Any]]:
    found = estimates(cluster, {group.group_id: rows}, ESTIMATES)
    return [[row[name] for name in ESTIMATES] for row in found]


def _rows(cluster: ClusterClient, group: GroupDescription, view: str, with_estimates: bool) -> Iterable[dict[str, Any]]:
    """Yields the objects of ``--json``: values of Kafka's tool.

    Those that the tables `lag`, `members` and `groups` have, too, are named as their columns.
    """
    if view == "members":
        return _member_rows(group)
    if view == "offsets":
        return _offset_rows(cluster, group, with_estimates)
    coordinator = f"{group.coordinator.host}:{group.coordinator.port}"
    row = {"group": group.group_id, "coordinator": coordinator, "coordinator_id": group.coordinator.node_id}
    return [row | {"assignment_strategy": group.protocol, "state": group.state, "members": len(group.members)}]


def _offset_rows(cluster: ClusterClient, group: GroupDescription, with_estimates: bool) -> Iterator[dict[str, Any]]:
    rows = group_lag(cluster, [group])[group.group_id]
    more = _estimates(cluster, group, rows) if with_estimates else [[] for _ in rows]
    for row, values in zip(rows, more):
        yield {
            "group": group.group_id,
            "topic": row.topic_partition.topic,
            "partition": row.topic_partition.partition,
            "leader_epoch": row.committed.leader_epoch if row.committed and row.committed.leader_epoch >= 0 else None,
            "current_offset": row.committed.offset if row.committed else None,
            "log_end_offset": row.log_end_offset,
            "lag": row.lag,
            "consumer_id": row.member.member_id if row.member else None,
            "host": row.member.client_host if row.member else None,
            "client_id": row.member.client_id if row.member else None,
            **dict(zip(ESTIMATES, values)),
        }


def _member_rows(group: GroupDescription) -> Iterator[dict[str, Any]]:
    for member in group.members:
        yield member_row(group.group_id, member)
