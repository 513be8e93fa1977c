"""The ``groupsource topics`` commands: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli import text_layout
from spark_groupsource.cli.commands import CommandGroup, invalid_values
from spark_groupsource.cli.common import (
    HELP,
    cluster_options,
    json_option,
    key_values,
    one_line,
    open_cluster,
    print_json,
)
from spark_groupsource.client import admin
from spark_groupsource.client.cluster.cluster_client import ClusterClient, TopicInfo
from spark_groupsource.client.cluster.configs import ConfigEntry, alter_topic_config, describe_topic_configs
from spark_groupsource.common.config_def import INT16_MAX, INT32_MAX
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.monitor.near_names import suggests_topics
from spark_groupsource.monitor.offsets.cluster_reads import log_end_offsets, log_start_offsets, topic_id_text

# partition -> log start offset and log end offset, None if unknown
_Spans = dict[int, "tuple[int | None, int | None]"]
_SPAN_COLUMNS = ("log_start_offset", "log_end_offset")


@click.group(cls=CommandGroup, context_settings=HELP)
def topics() -> None:
    """Creates, lists, describes, alters and deletes topics."""


_topic = click.option("--topic", "names", multiple=True, required=True, metavar="TOPIC", help="Topic; may be repeated.")


@topics.command()
@cluster_options
@_topic
@click.option("--partitions", type=click.IntRange(1, INT32_MAX), help="Default: num.partitions of the broker.")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, INT16_MAX),
    help="Default: default.replication.factor of the broker.",
)
@click.option("--config", "config", multiple=True, metavar="KEY=VALUE", help="Topic setting; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Skip topics that exist.")
def create(
    bootstrap: str,
    command_config: Path | None,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Creates topics."""
    with invalid_values():
        settings = key_values(config, "--config")
    with open_cluster(bootstrap, command_config) as cluster:
        existing = set(cluster.metadata(names, refresh=True).topics) if if_not_exists else set()
        for name in names:
            if name not in existing:
                topic = admin.NewTopic(name, partitions or -1, replication_factor or -1, settings)
                admin.create_topics(cluster, [topic])
                click.echo(f"Created topic {name}.")


@topics.command("list")
@cluster_options
@click.option("--exclude-internal", is_flag=True, help="Omit internal topics.")
@json_option
def list_command(bootstrap: str, command_config: Path | None, exclude_internal: bool, as_json: bool) -> None:
    """Lists the topics of the cluster, one per line."""
    with open_cluster(bootstrap, command_config) as cluster:
        found = admin.list_topics(cluster, internal=not exclude_internal)
    if as_json:
        print_json(map(_topic_row, found.values()))
    else:
        click.echo("".join(f"{name}\n" for name in found), nl=False)


@topics.command()
@cluster_options
@click.option("--topic", "names", multiple=True, metavar="TOPIC", help="Topic; may be repeated. Default: all topics.")
@click.option("--offsets", is_flag=True, help="Show the log start offset and the log end offset of each partition.")
@json_option
def describe(
    bootstrap: str, command_config: Path | None, names: tuple[str, ...], offsets: bool, as_json: bool
) -> None:
    """Describes the partitions, leaders, replicas and settings of topics."""
    with open_cluster(bootstrap, command_config) as cluster:
        with suggests_topics(cluster, names):
            chosen = (
                cluster.describe_topics(names) if names else admin.list_topics(cluster, internal=True)
            )
        spans = {name: _spans(cluster, topic) for name, topic in chosen.items()} if offsets else {}
        has_configs = as_json or not offsets
        configs = describe_topic_configs(cluster, list(chosen)) if has_configs else {}
    unknown = {name: found for name, found in configs.items() if isinstance(found, GroupSourceError)}
    if unknown:
        first = one_line(next(iter(unknown.values())))
        click.echo(f"Warning: The settings of {bounded_names(unknown)} are unknown: {first}", err=True)
    if as_json:
        print_json(_described_row(topic, configs[name], spans.get(name, {})) for name, topic in chosen.items())
    for name, topic in chosen.items() if not as_json else ():
        width = text_layout.output_width()
        click.echo(_offsets_text(topic, spans[name], width) if offsets else _topic_text(topic, configs[name], width))


@topics.command()
@cluster_options
@_topic
@click.option("--if-exists", is_flag=True, help="Skip topics that do not exist.")
def delete(bootstrap: str, command_config: Path | None, names: tuple[str, ...], if_exists: bool) -> None:
    """Deletes topics and their records."""
    with open_cluster(bootstrap, command_config) as cluster:
        existing = set(cluster.metadata(names, refresh=True).topics)
        for name in names:
            if name in existing or not if_exists:
                with suggests_topics(cluster, [name]):
                    admin.delete_topics(cluster, [name])
                click.echo(f"Deleted topic {name}.")


@topics.command()
@cluster_options
@_topic
@click.option("--partitions", type=click.IntRange(1, INT32_MAX), help="New number of partitions; it can only grow.")
@click.option("--add-config", multiple=True, metavar="KEY=VALUE", help="Setting to change; may be repeated.")
@click.option("--delete-config", multiple=True, metavar="KEY", help="Setting to reset to its default; may be repeated.")
def alter(
    bootstrap: str,
    command_config: Path | None,
    names: tuple[str, ...],
    partitions: int | None,
    add_config: tuple[str, ...],
    delete_config: tuple[str, ...],
) -> None:
    """Adds partitions and changes settings, as kafka-topics --alter and kafka-configs --alter do."""
    if partitions is None and not add_config and not delete_config:
        raise click.UsageError("Give --partitions, --add-config or --delete-config.")
    with invalid_values():
        changes: dict[str, str | None] = {**key_values(add_config, "--add-config"), **dict.fromkeys(delete_config)}
    with open_cluster(bootstrap, command_config) as cluster:
        for name in names:
            with suggests_topics(cluster, [name]):
                if changes:
                    alter_topic_config(cluster, name, changes)
                if partitions is not None:
                    admin.create_partitions(cluster, {name: partitions})
            click.echo(f"Altered topic {name}.")


def _topic_text(topic: TopicInfo, configs: list[ConfigEntry] | GroupSourceError, width: int | None) -> str:
    """Returns the output of ``kafka-topics --describe``, without the columns of leader election.

    In a terminal that is narrower, the partitions are a table.
    """
    if isinstance(configs, GroupSourceError):
        overrides = "unknown"
    else:
        overrides = ",".join(f"{entry.name}={entry.value}" for entry in configs if not entry.is_default)
    fields = {
        "Topic": topic.name,
        **({} if topic.topic_id is None else {"TopicId": topic_id_text(topic) or ""}),
        "PartitionCount": str(len(topic.partitions)),
        "ReplicationFactor": str(_replication_factor(topic)),
        "Configs": overrides,
    }
    rows = [
        {
            "Topic": topic.name,
            "Partition": str(number),
            "Leader": str(partition.leader_id) if partition.leader_id >= 0 else "none",
            "Replicas": ",".join(map(str, partition.replicas)),
            "Isr": ",".join(map(str, partition.in_sync)),
        }
        for number, partition in sorted(topic.partitions.items())
    ]
    lines = [_tabbed(fields), *(f"\t{_tabbed(row)}" for row in rows)]
    if width is None or all(len(line.expandtabs()) <= width for line in lines):
        return "\n".join(lines)
    head = text_layout.paragraphs([f"{name}:" for name in fields], [list(fields.values())], width)
    cells = [list(row.values())[1:] for row in rows]
    return (head + text_layout.table(["PARTITION", "LEADER", "REPLICAS", "ISR"], cells, width)).removesuffix("\n")


def _tabbed(fields: Mapping[str, str]) -> str:
    return "\t".join(f"{name}: {value}" for name, value in fields.items())


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(p.replicas) for p in topic.partitions.values()), default=0)


def _topic_row(topic: TopicInfo) -> dict[str, Any]:
    """Returns the columns of table `topics` that the metadata has."""
    return {
        "topic": topic.name,
        "topic_id": topic_id_text(topic),
        "partition_count": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
        "is_internal": topic.is_internal,
    }


def _described_row(topic: TopicInfo, configs: list[ConfigEntry] | GroupSourceError, offsets: _Spans) -> dict[str, Any]:
    settings = None
    if not isinstance(configs, GroupSourceError):
        settings = {entry.name: entry.value for entry in configs if not entry.is_default}
    partitions = [
        {
            "partition": number,
            "leader": partition.leader_id if partition.leader_id >= 0 else None,
            "leader_epoch": partition.leader_epoch if partition.leader_epoch >= 0 else None,
            "replicas": list(partition.replicas),
            "isr": list(partition.in_sync),
            **({} if number not in offsets else dict(zip(_SPAN_COLUMNS, offsets[number]))),
        }
        for number, partition in sorted(topic.partitions.items())
    ]
    return {**_topic_row(topic), "configs": settings, "partitions": partitions}


def _spans(cluster: ClusterClient, topic: TopicInfo) -> _Spans:
    """Returns the log start offset and the log end offset of each partition; of those without a leader none."""
    partitions = [TopicPartition(topic.name, number) for number, p in sorted(topic.partitions.items())]
    starts, ends = log_start_offsets(cluster, partitions), log_end_offsets(cluster, partitions)
    return {tp.partition: (starts.get(tp), ends.get(tp)) for tp in partitions}


def _offsets_text(topic: TopicInfo, spans: _Spans, width: int | None) -> str:
    header = ["TOPIC", "PARTITION", "LOG-START-OFFSET", "LOG-END-OFFSET"]
    rows = [
        [topic.name, str(number), *("-" if offset is None else str(offset) for offset in span)]
        for number, span in spans.items()
    ]
    sizes = [max(15, len(topic.name)), 10, 17, 0]
    lines = [" ".join(f"{cell:<{size}}" for cell, size in zip(line, sizes)) for line in (header, *rows)]
    if width is None or all(len(line) <= width for line in lines):
        return "\n".join(lines)
    return text_layout.table(header, rows, width).removesuffix("\n")
