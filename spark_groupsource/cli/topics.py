"""The ``groupsource topics`` commands: create, list, describe, alter and delete topics."""

from __future__ import annotations

from pathlib import Path

import click

from spark_groupsource.cli.common import HELP, CommandGroup, cluster_options, key_values, open_cluster
from spark_groupsource.client import admin
from spark_groupsource.client.cluster.client import EARLIEST, LATEST, ClusterClient, TopicInfo
from spark_groupsource.client.cluster.configs import TOPIC_RESOURCE, alter_config, describe_config
from spark_groupsource.model import TopicPartition


@click.group(cls=CommandGroup, context_settings=HELP)
def topics() -> None:
    """Creates, lists, describes, alters and deletes topics."""


_topic = click.option("--topic", "names", multiple=True, required=True, metavar="TOPIC", help="Topic; may be repeated.")


@topics.command()
@cluster_options
@_topic
@click.option("--partitions", type=click.IntRange(1), help="Default: num.partitions of the broker.")
@click.option("--replication-factor", type=click.IntRange(1), help="Default: default.replication.factor of the broker.")
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
def list_command(bootstrap: str, command_config: Path | None, exclude_internal: bool) -> None:
    """Lists the topics of the cluster, one per line."""
    with open_cluster(bootstrap, command_config) as cluster:
        for name in admin.list_topics(cluster, internal=not exclude_internal):
            click.echo(name)


@topics.command()
@cluster_options
@click.option("--topic", "names", multiple=True, metavar="TOPIC", help="Topic; may be repeated. Default: all topics.")
@click.option("--offsets", is_flag=True, help="Show the log start offset and the log end offset of each partition.")
def describe(bootstrap: str, command_config: Path | None, names: tuple[str, ...], offsets: bool) -> None:
    """Describes the partitions, leaders, replicas and settings of topics."""
    with open_cluster(bootstrap, command_config) as cluster:
        chosen = cluster.describe_topics(names, refresh=True) if names else admin.list_topics(cluster, internal=True)
        for topic in chosen.values():
            click.echo(_offsets_text(cluster, topic) if offsets else _topic_text(cluster, topic))


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
                admin.delete_topics(cluster, [name])
                click.echo(f"Deleted topic {name}.")


@topics.command()
@cluster_options
@_topic
@click.option("--partitions", type=click.IntRange(1), help="New number of partitions; it can only grow.")
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
    changes: dict[str, str | None] = {**key_values(add_config, "--add-config"), **dict.fromkeys(delete_config)}
    with open_cluster(bootstrap, command_config) as cluster:
        for name in names:
            if changes:
                alter_config(cluster, TOPIC_RESOURCE, name, changes)
            if partitions is not None:
                admin.create_partitions(cluster, {name: partitions})
            click.echo(f"Altered topic {name}.")


def _topic_text(cluster: ClusterClient, topic: TopicInfo) -> str:
    """Returns the output of ``kafka-topics --describe``, without the columns of leader election."""
    config = describe_config(cluster, TOPIC_RESOURCE, topic.name)
    overrides = ",".join(f"{entry.name}={entry.value}" for entry in config.values() if not entry.is_default)
    replication = max((len(p.replicas) for p in topic.partitions.values()), default=0)
    identity = f"\tTopicId: {topic.topic_id}" if topic.topic_id is not None else ""
    lines = [
        f"Topic: {topic.name}{identity}\tPartitionCount: {len(topic.partitions)}\t"
        f"ReplicationFactor: {replication}\tConfigs: {overrides}"
    ]
    for number in sorted(topic.partitions):
        partition = topic.partitions[number]
        leader = partition.leader_id if partition.leader_id >= 0 else "none"
        replicas, in_sync = (",".join(map(str, ids)) for ids in (partition.replicas, partition.in_sync))
        lines.append(
            f"\tTopic: {topic.name}\tPartition: {number}\tLeader: {leader}\tReplicas: {replicas}\tIsr: {in_sync}"
        )
    return "\n".join(lines)


def _offsets_text(cluster: ClusterClient, topic: TopicInfo) -> str:
    partitions = [TopicPartition(topic.name, number) for number in sorted(topic.partitions)]
    starts = cluster.list_offsets({tp: EARLIEST for tp in partitions})
    ends = cluster.list_offsets({tp: LATEST for tp in partitions})
    width = max(15, len(topic.name))
    lines = [f"{'TOPIC':<{width}} {'PARTITION':<10} {'LOG-START-OFFSET':<17} LOG-END-OFFSET"]
    lines += [
        f"{topic.name:<{width}} {tp.partition:<10} {starts[tp].offset:<17} {ends[tp].offset}" for tp in partitions
    ]
    return "\n".join(lines)
