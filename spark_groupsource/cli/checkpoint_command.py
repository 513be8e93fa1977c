"""The ``groupsource checkpoint`` commands: checkpoint, group and logs compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli.commands import CommandGroup
from spark_groupsource.cli.common import HELP, cluster_options, open_cluster
from spark_groupsource.cli.effects import Excludes, Needs, check_effects
from spark_groupsource.cli.group_tables import reset_csv
from spark_groupsource.cli.text_layout import output_width, table
from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.clock import format_timestamp_ms
from spark_groupsource.common.config_def import INT32_MAX
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.near_names import missing_group_text
from spark_groupsource.source.positions.checkpoint import (
    Checkpoint,
    ComparedRow,
    SourceCheckpoint,
    compare,
    read_checkpoint,
)
from spark_groupsource.source.positions.kafka_checkpoint import export_checkpoint
from spark_groupsource.source.positions.published_progress import progress_group, read_progress

_PLANNED_COLUMNS = ("TOPIC", "PARTITION", "PLANNED", "COMMITTED-BATCH")
_COLUMNS = (*_PLANNED_COLUMNS, "GROUP-OFFSET", "LOG-START", "LOG-END", "RESTART", "LAG")
SHOW_EFFECTS = (
    Excludes("--json", "--export"),
    Excludes("--transactional-id", "--export"),
    Needs("--source", ("--export",)),
    Needs("--command-config", ("--transactional-id",)),
)


@click.group(cls=CommandGroup, context_settings=HELP)
def checkpoint() -> None:
    """Shows the offsets of a Spark checkpoint and where a restart of its query continues, or exports it.

    DIR is the checkpointLocation of a query in a local directory, also of Spark's own Kafka source.
    """


@checkpoint.command()
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option(
    "--export",
    is_flag=True,
    help="Print the offsets after the last committed batch as lines of topic,partition,offset, for "
    "groups reset-offsets --from-file.",
)
@click.option(
    "--source",
    "index",
    type=click.IntRange(0, INT32_MAX),
    metavar="N",
    help="With --export. Default: the only source.",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="kafka.transactional.id of the query: shows the last batch that it has published.",
)
@cluster_options
def show(
    directory: str,
    as_json: bool,
    export: bool,
    index: int | None,
    transactional_id: str | None,
    bootstrap: str,
    command_config: Path | None,
) -> None:
    """Shows the last planned and committed batch, the watermark, the offsets and the settings of a checkpoint.

    The cluster is needed with --transactional-id only.
    """
    check_effects(click.get_current_context(), SHOW_EFFECTS)
    found = read_checkpoint(directory)
    if export:
        done = found.source(index).committed
        if done is None:
            raise ConfigurationError(f"Checkpoint {directory} has no committed batch. There are no offsets to export.")
        click.echo(reset_csv({"": dict(sorted(done.positions.items()))}, with_group=False), nl=False)
        return
    published = {}
    if transactional_id is not None:
        with open_cluster(bootstrap, command_config) as cluster:
            published = {"published_batch": _published_batch(cluster, transactional_id, found)}
    if as_json:
        click.echo(json.dumps({**_as_json(found), **published}, indent=1))
        return
    click.echo(_as_text(found))
    for batch in published.values():
        click.echo(f"Published batch: {'none' if batch is None else batch} (transactional id {transactional_id})")


@checkpoint.command()
@click.argument("directory", metavar="DIR")
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
def export(directory: str, target: Path) -> None:
    """Copies a checkpoint to TARGET for Spark's Kafka source, format kafka.

    The query must have been stopped gracefully, and must have read every partition: Spark's source reads a partition
    without a position from its earliest offset.
    """
    found = read_checkpoint(directory)
    if found.planned_batch is None or found.planned_batch != found.committed_batch:
        raise ConfigurationError(
            f"Exporting checkpoint {directory} failed: batch {found.planned_batch} is not committed. Start the query "
            "once more and stop it gracefully."
        )
    offsets = {source.index: source.planned for source in found.sources if source.kind == "groupsource"}
    if not offsets:
        raise ConfigurationError(f"Exporting checkpoint {directory} failed: none of its sources is groupsource.")
    export_checkpoint(found.path, target, offsets)
    click.echo(f"Wrote {target}, at batch {found.committed_batch}. Start the query with format kafka on it.")


@checkpoint.command("compare")
@click.argument("directory", metavar="DIR")
@cluster_options
@click.option("--group", "group_id", metavar="GROUP", help="Default: the group of the checkpoint.")
@click.option(
    "--source",
    "index",
    type=click.IntRange(0, INT32_MAX),
    metavar="N",
    help="Default: the only source of Kafka.",
)
@click.option(
    "--on-group-reset",
    type=click.Choice(["follow", "fail", "ignore"]),
    default="follow",
    show_default=True,
    help="Option onGroupReset of the query.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of objects instead of the table.")
def compare_command(
    directory: str,
    bootstrap: str,
    command_config: Path | None,
    group_id: str | None,
    index: int | None,
    on_group_reset: str,
    as_json: bool,
) -> None:
    """Compares a checkpoint with the group's committed offsets and the logs: what a restart would read."""
    found = read_checkpoint(directory)
    source = found.source(index)
    group_id = group_id or source.planned.group_id
    if not group_id:
        raise ConfigurationError(f"Checkpoint {directory} does not name its group. Give --group.")
    with open_cluster(bootstrap, command_config) as cluster:
        if describe_groups(cluster, [group_id])[group_id].state == "Dead":
            # the first commit creates it: the comparison shows what the first run would read
            click.echo(f"Warning: {missing_group_text(cluster, group_id)}", err=True)
        rows = compare(cluster, group_id, source, on_group_reset)
    if as_json:
        click.echo(json.dumps([_row_as_json(group_id, row) for row in rows], indent=1))
        return
    click.echo(f"Checkpoint {found.path} and group {group_id}")
    click.echo(_batches(found))
    click.echo(_replay_text(found, source))
    click.echo(_table(_COLUMNS, [_cells(row) for row in rows]))
    for text in dict.fromkeys(row.restart.source for row in rows if row.restart):
        count = sum(row.restart is not None and row.restart.source == text for row in rows)
        click.echo(f"{count} of {len(rows)} partitions: {text}.")
    behind = [row for row in rows if row.restart and (row.restart.offset or 0) < (row.log_start_offset or 0)]
    if behind:
        click.echo(f"{len(behind)} of {len(rows)} partitions: before the log start offset, which is data loss.")


def _published_batch(cluster: ClusterClient, transactional_id: str, found: Checkpoint) -> int | None:
    """Returns the last batch that the query of a checkpoint has published; None if there is none."""
    progress = read_progress(cluster.fetch_committed(progress_group(transactional_id)).values())
    return next((each.batch for each in progress if each.writer == found.query_id), None)


def _batches(found: Checkpoint) -> str:
    names = ["none" if each is None else str(each) for each in (found.planned_batch, found.committed_batch)]
    return f"Last planned batch: {names[0]}; last committed batch: {names[1]}."


def _replay_text(found: Checkpoint, source: SourceCheckpoint) -> str:
    if found.planned_batch == found.committed_batch:
        return "A restart repeats no batch."
    count = sum(r.end - r.start for r in source.replayed)
    return (
        f"A restart first repeats batch {found.planned_batch}: at most {count} offsets of {len(source.replayed)} "
        "partitions."
    )


def _as_text(found: Checkpoint) -> str:
    lines = [f"Checkpoint {found.path}", f"Query id: {found.query_id or 'unknown'}", _batches(found)]
    if found.planned_batch is not None:
        lines.append(f"Planned at: {format_timestamp_ms(found.planned_at_ms)} (local time)")
        watermark = format_timestamp_ms(found.watermark_ms) if found.watermark_ms else "none"
        lines.append(f"Watermark: {watermark}")
    for source in found.sources:
        lines.append(f"\nSource {source.index}: {source.kind}")
        if source.planned.group_id:
            lines.append(f"Group: {source.planned.group_id}, generation {source.planned.generation_id}")
        if source.kind != "other":
            done = source.committed.positions if source.committed else {}
            rows = [
                [tp.topic, str(tp.partition), str(offset), _text(done.get(tp))]
                for tp, offset in sorted(source.planned.positions.items())
            ]
            lines.append(_table(_PLANNED_COLUMNS, rows))
    if found.configs:
        lines.append("\nSettings")
        lines += [f"{name}={value}" for name, value in sorted(found.configs.items())]
    return "\n".join(lines)


def _as_json(found: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "query_id": found.query_id,
        "planned_batch": found.planned_batch,
        "committed_batch": found.committed_batch,
        "watermark_ms": found.watermark_ms,
        "planned_at_ms": found.planned_at_ms,
        "configs": dict(found.configs),
        "sources": [
            {
                "source": source.index,
                "kind": source.kind,
                "group": source.planned.group_id or None,
                "generation": source.planned.generation_id,
                "offsets": [
                    {
                        "topic": tp.topic,
                        "partition": tp.partition,
                        "planned_offset": offset,
                        "committed_batch_offset": source.committed.positions.get(tp) if source.committed else None,
                    }
                    for tp, offset in sorted(source.planned.positions.items())
                ],
            }
            for source in found.sources
        ],
    }


def _row_as_json(group_id: str, row: ComparedRow) -> dict[str, Any]:
    found = {"group": group_id, **row._asdict(), "lag": row.lag}
    restart = found.pop("restart")
    found["restart_offset"] = restart.offset if restart else None
    found["restart_source"] = restart.source if restart else None
    return found


def _cells(row: ComparedRow) -> list[str]:
    numbers = (row.planned_offset, row.committed_batch_offset, row.group_offset, row.log_start_offset)
    restart = row.restart.offset if row.restart else None
    return [row.topic, str(row.partition), *map(_text, (*numbers, row.log_end_offset, restart, row.lag))]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(header, rows, output_width()).removesuffix("\n")


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)
