"""The commands ``groupsource groups why``, ``history`` and ``watch``."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli.common import F, cluster_options, open_cluster
from spark_groupsource.cli.groups import missing_group_text
from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.client import ClusterClient
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.log_text import escaped
from spark_groupsource.monitor.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.definitions import TABLES
from spark_groupsource.monitor.explanation import Explanation
from spark_groupsource.monitor.group_watch import BoundedReads, GroupWatch, WatchUpdate, condition_of, failure_text
from spark_groupsource.monitor.rebalance import Rebalance
from spark_groupsource.monitor.rebalance_sources import GroupHistory, read_history
from spark_groupsource.monitor.tables import rebalance_row
from spark_groupsource.notebook.live_view import GroupReader
from spark_groupsource.notebook.terminal import watch_terminal

_INTERVAL_S = 1.0
_SHOWN: tuple[str, ...] = (
    *("generation", "completed_at", "cause", "client_id", "host", "join_ms", "sync_ms", "members"),
    *("partitions_moved", "partitions_unassigned", "unowned_seconds"),
)

_group_option = click.option("--group", "group", required=True, metavar="GROUP", help="Consumer group.")


def _last_option(default: int | None) -> Callable[[F], F]:
    return click.option(
        "--last",
        type=click.IntRange(1),
        default=default,
        show_default=default is not None,
        metavar="N",
        help="Only the last N rebalances.",
    )


@click.command()
@cluster_options
@_group_option
@_last_option(5)
@click.option("--watch", "is_watching", is_flag=True, help="Then follow further rebalances until interrupted.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON; with --watch, one line per rebalance.")
def why(bootstrap: str, command_config: Path | None, group: str, last: int, is_watching: bool, is_json: bool) -> None:
    """Explains the rebalances of a group, and names the setting to change."""
    with open_cluster(bootstrap, command_config) as cluster:
        if is_watching:
            _follow(cluster, group, last, is_json)
            return
        explanation = _read(cluster, group).explain(last)
        click.echo(json.dumps(explanation.json(), ensure_ascii=False, indent=2) if is_json else repr(explanation))


@click.command()
@cluster_options
@_group_option
@_last_option(None)
@click.option("--json", "form", flag_value="json", help="Print JSON with the columns of table rebalances.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV with the columns of table rebalances.")
def history(bootstrap: str, command_config: Path | None, group: str, last: int | None, form: str | None) -> None:
    """Shows the rebalances of a group as a table."""
    with open_cluster(bootstrap, command_config) as cluster:
        found = _read(cluster, group).rebalances
    rows = _rows(found if last is None else found[-last:])
    if form == "json":
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    elif form == "csv":
        click.echo(_csv(rows), nl=False)
    else:
        click.echo(_table(rows), nl=False)


@click.command()
@cluster_options
@_group_option
def watch(bootstrap: str, command_config: Path | None, group: str) -> None:
    """Follows a group until interrupted.

    In a terminal, a table of its partitions with their lag, and its rebalances. In a pipe, a line or more for each
    rebalance: for whom it waits, and why it happened. While the broker does not respond, both say since when.
    """
    with open_cluster(bootstrap, command_config) as cluster:
        if not sys.stdout.isatty():
            _follow(cluster, group, 0, False)
            return
        reader = GroupReader(cluster.settings, group)
        try:
            watch_terminal(reader.read, _INTERVAL_S)
        finally:
            reader.close()


def _read(cluster: ClusterClient, group: str) -> GroupHistory:
    found = read_history(cluster, group)
    if not found.rebalances:
        described = describe_groups(cluster, [group])[group]
        if described.state == "Dead":
            raise GroupSourceError(missing_group_text(described))
    return found


def _follow(cluster: ClusterClient, group: str, last: int, is_json: bool) -> None:
    """Prints the last rebalances, then each new one, until interrupted."""
    follower, reads = GroupWatch(cluster, group), BoundedReads(cluster)
    try:
        update = reads.read(follower.update)
        _print_update(update, update.completed[max(len(update.completed) - last, 0) :], is_json)
        read_at, failure = _now(), ""
        while True:
            time.sleep(_INTERVAL_S)
            try:
                update = reads.read(follower.update)
            except GroupSourceError as error:
                if failure != condition_of(error):
                    click.echo(f"{_now()}  {failure_text(error, read_at)}", err=is_json)
                failure = condition_of(error)
                continue
            read_at = _now()
            if failure:
                click.echo(f"{read_at}  The broker responds again.", err=is_json)
            failure = ""
            _print_update(update, update.completed, is_json)
    except KeyboardInterrupt:
        return


def _now() -> str:
    return f"{datetime.now():%H:%M:%S}"


def _print_update(update: WatchUpdate, completed: list[Rebalance], is_json: bool) -> None:
    if completed:
        _print_new(Explanation(update.history.facts, completed, ()), is_json)
    if update.progress and not is_json:
        click.echo(f"{_now()}  {escaped(update.progress)}")


def _print_new(explanation: Explanation, is_json: bool) -> None:
    if is_json:
        for form in explanation.json()["rebalances"]:
            click.echo(json.dumps({"group": explanation.group, **form}, ensure_ascii=False))
    else:
        click.echo(repr(explanation))


def _rows(rebalances: list[Rebalance]) -> list[dict[str, Any]]:
    schema = arrow_schema(TABLES["rebalances"])
    rows = [row for batch in record_batches(map(rebalance_row, rebalances), schema) for row in batch.to_pylist()]
    return [{name: _value(value) for name, value in row.items()} for row in rows]


def _value(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    names = [column.name for column in TABLES["rebalances"].columns]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [[name.upper().replace("_", "-") for name in _SHOWN]]
    lines += [["-" if row[name] is None else escaped(str(row[name])) for name in _SHOWN] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(_SHOWN))]
    return "".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths)).rstrip() + "\n" for line in lines)
