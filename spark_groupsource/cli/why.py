"""The commands ``groupsource groups why``, ``history`` and ``watch``."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.cli.common import F, cluster_options, open_cluster
from spark_groupsource.cli.effects import Excludes, check_effects
from spark_groupsource.cli.groups_command import absent_group_text
from spark_groupsource.cli.streams import terminates_as_ctrl_c, wait_while_read
from spark_groupsource.cli.text_layout import output_width, sentences, table
from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.config_def import INT32_MAX
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.log_text import escaped
from spark_groupsource.monitor.near_names import near_groups
from spark_groupsource.monitor.offsets.cluster_reads import group_lag
from spark_groupsource.monitor.offsets.offset_reset import TargetKind, parse_target
from spark_groupsource.monitor.rebalances.explanation import Explanation
from spark_groupsource.monitor.rebalances.group_watch import (
    BoundedReads,
    GroupCondition,
    GroupWatch,
    WatchUpdate,
    condition_of,
    condition_text,
    failure_text,
)
from spark_groupsource.monitor.rebalances.rebalance import Rebalance
from spark_groupsource.monitor.rebalances.rebalance_sources import GroupHistory, read_history
from spark_groupsource.monitor.tables.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.table_rows import rebalance_row
from spark_groupsource.notebook.live_view import GroupReader
from spark_groupsource.notebook.terminal import watch_terminal

_INTERVAL_S = 1.0
_LAST = 5
_SHOWN: tuple[str, ...] = (
    *("generation", "completed_at", "cause", "client_id", "host", "join_ms", "sync_ms", "members"),
    *("partitions_moved", "partitions_unassigned", "unowned_seconds"),
)

_group_option = click.option("--group", "group", required=True, metavar="GROUP", help="Consumer group.")


def _last_option(note: str = "") -> Callable[[F], F]:
    return click.option(
        "--last", type=click.IntRange(1, INT32_MAX), metavar="N", help=f"Only the last N rebalances.{note}"
    )


def _since_ms(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    with suppress(ConfigurationError):
        target = parse_target(text, SystemClock().timestamp_ms())
        if target.kind is TargetKind.TIMESTAMP:
            return target.value
    raise click.BadParameter(
        f"It must be a time back such as -12h or a time such as 2026-01-31T03:00:00 (UTC without a zone), got {text!r}."
    )


_since_option = click.option(
    "--since",
    "since_ms",
    callback=_since_ms,
    metavar="-TIME|TIME",
    help="Only rebalances that ended since then: -12h, a time back (ms, s, m, h, d), or a time such as "
    "2026-01-31T03:00:00 (UTC without a zone).",
)


@command()
@cluster_options
@_group_option
@_last_option(f" Default: {_LAST}, all with --since.")
@_since_option
@click.option("--watch", "is_watching", is_flag=True, help="Then follow further rebalances until interrupted.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON; with --watch, one line per rebalance.")
def why(
    bootstrap: str,
    command_config: Path | None,
    group: str,
    last: int | None,
    since_ms: int | None,
    is_watching: bool,
    is_json: bool,
) -> None:
    """Explains the rebalances of a group, and names the setting to change."""
    check_effects(click.get_current_context(), (Excludes("--since", "--watch"),))
    with open_cluster(bootstrap, command_config) as cluster:
        if is_watching:
            with terminates_as_ctrl_c():
                _follow(cluster, group, last or _LAST, is_json, with_lag=False)
            return
        explanation = _read(cluster, group, since_ms).explain(last or (_LAST if since_ms is None else None))
        if is_json:
            click.echo(json.dumps(explanation.json(), ensure_ascii=False, indent=2))
        elif since_ms is not None and not explanation.rebalances:
            click.echo(f"Group {escaped(group)}: no rebalance is recorded since then.")
        else:
            click.echo(_text(explanation))


@command()
@cluster_options
@_group_option
@_last_option()
@_since_option
@click.option("--json", "is_json", is_flag=True, help="Print JSON with the columns of table rebalances.")
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV with the columns of table rebalances.")
def history(
    bootstrap: str,
    command_config: Path | None,
    group: str,
    last: int | None,
    since_ms: int | None,
    is_json: bool,
    is_csv: bool,
) -> None:
    """Shows the rebalances of a group as a table."""
    check_effects(click.get_current_context(), (Excludes("--json", "--csv"),))
    with open_cluster(bootstrap, command_config) as cluster:
        found = _read(cluster, group, since_ms).rebalances
    rows = _rows(found if last is None else found[-last:])
    if is_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    elif is_csv:
        click.echo(_csv(rows), nl=False)
    else:
        click.echo(_table(rows), nl=False)


@command()
@cluster_options
@_group_option
@click.option("--json", "is_json", is_flag=True, help="Print an object per line: states with lag, and rebalances.")
def watch(bootstrap: str, command_config: Path | None, group: str, is_json: bool) -> None:
    """Follows a group until Ctrl-C or SIGTERM.

    In a terminal, a table of its partitions with their lag, and its rebalances. In a pipe, a line with its state and
    lag at once and after each change, and a line or more for each rebalance: for whom it waits, and why it happened.
    While the broker does not respond, both say since when.
    """
    with open_cluster(bootstrap, command_config) as cluster, terminates_as_ctrl_c():
        if is_json or not sys.stdout.isatty():
            _follow(cluster, group, 0, is_json, with_lag=True)
            return
        reader = GroupReader(cluster.settings, group)
        try:
            watch_terminal(reader.read, _INTERVAL_S)
        except KeyboardInterrupt:
            return
        finally:
            reader.close()


def _read(cluster: ClusterClient, group: str, since_ms: int | None) -> GroupHistory:
    found = read_history(cluster, group)
    if not found.rebalances:
        described = describe_groups(cluster, [group])[group]
        if described.state == "Dead":
            raise GroupSourceError(absent_group_text(cluster, described))
    if since_ms is None:
        return found
    return found._replace(rebalances=[each for each in found.rebalances if each.completed_ms >= since_ms])


def _follow(cluster: ClusterClient, group: str, last: int, is_json: bool, with_lag: bool) -> None:
    """Prints the last rebalances, then each new one, and the lag if requested, until interrupted."""
    follower, reads = GroupWatch(cluster, group), BoundedReads(cluster)
    printed: GroupCondition | None = None

    def read() -> tuple[WatchUpdate, GroupCondition]:
        update = follower.update()
        return update, _condition(cluster, update.description, with_lag)

    try:
        if with_lag:
            # before the history, which takes longer
            description = describe_groups(cluster, [group])[group]
            printed = _condition(cluster, description, with_lag)
            _print_condition(cluster, group, printed, None, is_json)
        update, _ = reads.read(read)
        if not with_lag and not update.completed and not is_json:
            click.echo(f"{_now()}  {escaped(group)}: no rebalance is recorded.")
        _print_update(update, update.completed[max(len(update.completed) - last, 0) :], is_json)
        read_at, failure = _now(), ""
        while True:
            wait_while_read(_INTERVAL_S)
            try:
                update, now = reads.read(read)
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
            if with_lag and now != printed:
                _print_condition(cluster, group, now, printed, is_json)
                printed = now
    except KeyboardInterrupt:
        return


def _now() -> str:
    return f"{datetime.now():%H:%M:%S}"


def _print_update(update: WatchUpdate, completed: list[Rebalance], is_json: bool) -> None:
    if completed:
        _print_new(Explanation(update.history.facts, completed, ()), is_json)
    if update.progress and not is_json:
        click.echo(f"{_now()}  {escaped(update.progress)}")


def _condition(cluster: ClusterClient, group: GroupDescription, with_lag: bool) -> GroupCondition:
    rows = group_lag(cluster, [group])[group.group_id] if with_lag and group.state != "Dead" else []
    return GroupCondition(group.state, len(group.members), {row.topic_partition: row.lag for row in rows})


def _print_condition(
    cluster: ClusterClient, name: str, now: GroupCondition, before: GroupCondition | None, is_json: bool
) -> None:
    """Prints the state and lag of a group."""
    if is_json:
        partitions = [{"topic": tp.topic, "partition": tp.partition, "lag": lag} for tp, lag in now.lags.items()]
        state: dict[str, Any] = {"group": name, "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}
        state |= {"state": now.state, "members": now.members, "lag": now.lag, "partitions": partitions}
        click.echo(json.dumps(state, ensure_ascii=False))
    else:
        near = near_groups(cluster, name) if now.state == "Dead" else ""
        click.echo(f"{_now()}  {escaped(f'{name}: {condition_text(now, before)} {near}'.rstrip())}")


def _print_new(explanation: Explanation, is_json: bool) -> None:
    if is_json:
        for form in explanation.json()["rebalances"]:
            click.echo(json.dumps({"group": explanation.group, **form}, ensure_ascii=False))
    else:
        click.echo(_text(explanation))


def _text(explanation: Explanation) -> str:
    return "\n".join(sentences(repr(explanation).split("\n"), output_width()))


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
    return table(lines[0], lines[1:], output_width())
