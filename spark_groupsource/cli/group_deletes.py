"""The commands ``groups delete`` and ``groups delete-offsets``."""

from __future__ import annotations

from pathlib import Path

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.cli.common import open_cluster, print_json
from spark_groupsource.cli.group_tables import deletions_table
from spark_groupsource.cli.groups_command import (
    check_group_options,
    consumer_groups,
    group_command_options,
    group_option,
    scope_of,
)
from spark_groupsource.cli.tool_form import (
    is_tool_form,
    java_error,
    java_message,
    print_error,
    reject_command_line,
    table_width,
)
from spark_groupsource.client.admin import delete_groups, try_delete_offsets
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import REMEDIES, BrokerError, ErrorCode, error_name
from spark_groupsource.log_text import escaped
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.near_names import missing_group_text, near_groups, near_topic

_GROUP_ERRORS = (
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.NON_EMPTY_GROUP,
)
_PARTITION_ERRORS = (
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


@command()
@group_command_options
@group_option
@click.option("--topic", "topics", multiple=True, hidden=True)
def delete(
    bootstrap: str,
    command_config: Path | None,
    timeout_ms: int,
    as_json: bool,
    names: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
) -> None:
    """Deletes consumer groups without members, with their committed offsets."""
    check_group_options(names, all_groups, "delete")
    if topics:
        reject_command_line(
            "Option --topic is of groups delete-offsets.",
            "The consumer does not support topic-specific offset deletion from a consumer group.",
        )
    failed: dict[str, int] = {}
    with open_cluster(bootstrap, command_config, timeout_ms) as cluster:
        chosen = consumer_groups(cluster) if all_groups else list(dict.fromkeys(names))
        for name in chosen:
            try:
                delete_groups(cluster, [name])
            except BrokerError as error:
                failed[name] = error.code
        absent = [name for name, code in failed.items() if code == ErrorCode.GROUP_ID_NOT_FOUND]
        suggestions = {name: near_groups(cluster, name) for name in absent}
    deleted = ", ".join(f"'{escaped(name)}'" for name in chosen if name not in failed)
    if as_json:
        print_json({"group": name, "error": error_name(failed[name]) if name in failed else None} for name in chosen)
    if failed:
        print_error("Deletion of some consumer groups failed:")
        for name, code in failed.items():
            text = f"* Group '{escaped(name)}' could not be deleted due to: {java_error(code)}"
            if is_tool_form():
                click.echo(text)
            else:
                near = suggestions.get(name, "")
                click.echo(" ".join(filter(None, (text, REMEDIES.get(code, ""), near))), err=True)
        if deleted and not as_json:
            click.echo(f"\nThese consumer groups were deleted successfully: {deleted}")
    elif not as_json:
        click.echo(f"Deletion of requested consumer groups ({deleted}) was successful.")


@command("delete-offsets")
@group_command_options
@click.option("--group", "names", multiple=True, metavar="GROUP", help="Group whose offsets are deleted; required.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Topic, or partitions of it; may be repeated, required.",
)
def delete_offsets(
    bootstrap: str,
    command_config: Path | None,
    timeout_ms: int,
    as_json: bool,
    names: tuple[str, ...],
    topics: tuple[str, ...],
) -> None:
    """Deletes committed offsets of topics that no member of the group subscribes to."""
    if len(names) != 1 or not topics:
        reject_command_line(
            "Give --group GROUP once, and --topic TOPIC (one or more).",
            "Option [delete-offsets] takes the following options: [group], [topic]",
        )
    codes: dict[TopicPartition, int] = {}
    with open_cluster(bootstrap, command_config, timeout_ms) as cluster:
        partitions = _partitions(cluster, topics, codes)
        group_code, found = try_delete_offsets(cluster, names[0], partitions)
        # an error of the group is one of each partition
        codes |= dict.fromkeys(partitions, group_code) if group_code else found
        absent = {tp.topic for tp, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        hints = [f"Topic {name!r} does not exist. {near_topic(cluster, [name])}" for name in sorted(absent)]
        if group_code == ErrorCode.GROUP_ID_NOT_FOUND:
            hints = [missing_group_text(cluster, names[0])]
    if as_json:
        print_json(
            {"topic": tp.topic, "partition": tp.partition, "error": error_name(code) if code else None}
            for tp, code in sorted(codes.items())
        )
    # Kafka's tool reports success if the partitions of a topic are not known
    first = group_code or next((code for code in (found if is_tool_form() else codes).values() if code), 0)
    if first:
        print_error(_error_text(first))
        for hint in hints if not is_tool_form() else ():
            click.echo(hint.rstrip(), err=True)
    elif not as_json:
        click.echo(f"Request succeeded for deleting offsets from group {escaped(names[0])}.")
    if not as_json:
        statuses = {tp: f"Error: {java_error(code)}" if code else "Successful" for tp, code in codes.items()}
        click.echo(deletions_table(statuses, table_width()), nl=False)


def _partitions(
    cluster: ClusterClient, topics: tuple[str, ...], codes: dict[TopicPartition, int]
) -> list[TopicPartition]:
    """Returns the given partitions; adds topics that cannot be described to `codes`."""
    scope = scope_of(topics)
    partitions = set(scope.partitions)
    for topic in scope.topics:
        try:
            described = cluster.describe_topics([topic])
        except BrokerError as error:
            codes[TopicPartition(topic, -1)] = error.code
        else:
            partitions |= {TopicPartition(topic, number) for number in described[topic].partitions}
    return sorted(partitions)


def _error_text(code: int) -> str:
    if code in _GROUP_ERRORS:
        return java_message(code)
    if code in _PARTITION_ERRORS:
        return "Encountered some partition-level error, see the follow-up details."
    return f"Encountered some unknown error: {error_name(code)}"
