"""The command ``groups reset-offsets``."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.cli.common import open_cluster, print_json
from spark_groupsource.cli.effects import Excludes, check_effects
from spark_groupsource.cli.group_tables import reset_csv, reset_table
from spark_groupsource.cli.groups_command import (
    check_group_options,
    consumer_groups,
    group_command_options,
    group_option,
    scope_of,
)
from spark_groupsource.cli.tool_form import (
    JavaLong,
    ReportedError,
    is_tool_form,
    java_error,
    print_error,
    reject_command_line,
    reject_value,
    table_width,
)
from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.config_def import INT64_MAX
from spark_groupsource.errors import ErrorCode, GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.near_names import near_groups, suggests_topics
from spark_groupsource.monitor.offsets.offset_reset import (
    ALL_COMMITTED,
    ResetPlan,
    ResetTarget,
    TargetKind,
    check_inactive,
    datetime_ms,
    plan,
)

_NO_EXECUTE = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require "
    "either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are "
    "scripting this command and want to keep the current default behavior without prompting."
)
_ONLY_A_PLAN = "Nothing is committed: this is the plan. Add --execute to commit the new offsets."
# the order in which Kafka's tool looks at them
_TARGETS = (
    "to-offset",
    "to-earliest",
    "to-latest",
    "shift-by",
    "to-datetime",
    "by-duration",
    "from-file",
    "to-current",
)
EFFECTS = (
    Excludes("--topic", "--all-topics"),
    Excludes("--topic", "--from-file"),
    Excludes("--all-topics", "--from-file"),
    Excludes("--export", "--json"),
)
_DURATION = re.compile(
    r"([+-]?)P(?:([+-]?\d+)D)?(T(?=[\d+-])(?:([+-]?\d+)H)?(?:([+-]?\d+)M)?(?:([+-]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE,
)

_Plans = dict[str, Mapping[TopicPartition, int]]
# group id -> what decides the offset of a restart; None without a checkpoint
_RuleOf = Callable[[str], Any]


@command("reset-offsets")
@group_command_options
@group_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Topic, or partitions of it; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset of the group.")
@click.option("--to-earliest", is_flag=True, help="Reset to the log start offsets.")
@click.option("--to-latest", is_flag=True, help="Reset to the log end offsets.")
@click.option("--to-current", is_flag=True, help="Keep the committed offsets; without one, the log end offset.")
@click.option("--to-offset", type=JavaLong(), metavar="N", help="Reset to one offset.")
@click.option(
    "--shift-by",
    type=JavaLong(),
    metavar="N",
    help="Add N, which may be negative, to the committed offsets.",
)
@click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to the time that is this long ago.")
@click.option("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="Reset to a time; in UTC without a time zone.")
@click.option(
    "--from-file",
    metavar="FILE",
    help="Reset to the offsets of a CSV file, as --export prints it: topic,partition,offset or "
    "group,topic,partition,offset.",
)
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--export", is_flag=True, help="Print the new offsets as CSV.")
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Checkpoint of a Spark query: warn where the query would not continue at the new offset.",
)
def reset_offsets(bootstrap: str, command_config: Path | None, timeout_ms: int, as_json: bool, **given: Any) -> None:
    """Resets the committed offsets of groups without members.

    Without --execute, only shows the new offsets. A scope (--topic or --all-topics) and a target (--to-earliest,
    --to-latest, --to-current, --to-offset, --shift-by, --by-duration, --to-datetime or --from-file) are required; a
    file is the scope, too.
    """
    targets = {name: given.pop(name.replace("-", "_")) for name in _TARGETS}
    options = _ResetOptions(targets=targets, **given)
    if not is_tool_form():
        check_effects(click.get_current_context(), EFFECTS)
    options.check()
    planned: _Plans = {}
    plans: list[ResetPlan] = []
    with open_cluster(bootstrap, command_config, timeout_ms) as cluster:
        rule_of = _restart_rules(cluster, options.checkpoint)
        for name in dict.fromkeys(consumer_groups(cluster) if options.all_groups else options.names):
            found = _plan(cluster, name, options, rule_of, as_json)
            planned[name] = {} if found is None else found.offsets
            if found is not None:
                plans.append(found)
    if as_json:
        print_json(_json_row(each, row) for each in plans for row in each.rows)
    elif options.export:
        click.echo(reset_csv(planned, with_group=len(options.names) != 1), nl=False)
    else:
        current = {
            each.group_id: {TopicPartition(row.topic, row.partition): row.current_offset for row in each.rows}
            for each in plans
        }
        click.echo(reset_table(planned, None if is_tool_form() else current, table_width()), nl=False)


@dataclass(frozen=True)
class _ResetOptions:
    """The options of the command; `targets` are the values by name, as in `_TARGETS`."""

    names: tuple[str, ...]
    all_groups: bool
    topics: tuple[str, ...]
    all_topics: bool
    dry_run: bool
    execute: bool
    export: bool
    checkpoint: Path | None
    targets: Mapping[str, Any]

    def check(self) -> None:
        """Raises: click.UsageError for options that exclude each other or are missing."""
        if self.dry_run and self.execute:
            reject_command_line(
                "Give either --dry-run or --execute.",
                "Option [reset-offsets] only accepts one of [execute] and [dry-run]",
            )
        if not self.dry_run and not self.execute:
            click.echo(_NO_EXECUTE if is_tool_form() else _ONLY_A_PLAN, err=True)
        check_group_options(self.names, self.all_groups, "reset-offsets")
        target = self.target
        if not self.all_topics and not self.topics and target != "from-file":
            text = "One of the reset scopes should be defined: --all-topics, --topic."
            reject_command_line(text, text)

    @property
    def target(self) -> str:
        """The name of the target option that is given. Raises: click.UsageError unless it is exactly one."""
        # 0 is a value
        given = [name for name, value in self.targets.items() if value is not None and value is not False]
        named = ", ".join(f"--{name}" for name in _TARGETS)
        if not given:
            listed = ", ".join(f"[{name}]" for name in _TARGETS)
            reject_command_line(
                f"Give one of {named}.",
                f"Option '[reset-offsets]' requires one of the following scenarios: [{listed}]",
            )
        if len(given) > 1:
            reject_command_line(
                f"Give one of {named}; got --{given[0]} and --{given[1]}.",
                f'Option "[{given[0]}]" can\'t be used with option "[{given[1]}]"',
            )
        return given[0]


def _plan(
    cluster: ClusterClient, group_id: str, options: _ResetOptions, rule_of: _RuleOf, as_json: bool
) -> ResetPlan | None:
    """Plans the reset of one group and executes it with --execute; None, with an error, where it is not possible."""
    try:
        (group,) = describe_groups(cluster, [group_id]).values()
        check_inactive(group)
    except GroupSourceError as error:
        print_error(str(error))
        return None
    target = _target(options.target, options.targets, group_id, is_single=len(options.names) == 1)
    if target is None:
        print_error(f"No reset plan for group {group_id} found")
        return None
    scope = ALL_COMMITTED if options.all_topics else scope_of(options.topics)
    named = [*scope.topics, *(tp.topic for tp in (*scope.partitions, *target.offsets))]
    with suggests_topics(cluster, named):
        found = plan(cluster, group_id, scope, target, rule_of(group_id))
    if group.state == "Dead" and not is_tool_form():
        near = near_groups(cluster, group_id)
        click.echo(f"WARN: {f'Consumer group {group_id!r} does not exist yet. {near}'.rstrip()}", err=True)
    _print_notes(found, target, to_stderr=as_json)
    if options.execute:
        found.execute()
    return found


def _target(option: str, targets: Mapping[str, Any], group_id: str, is_single: bool) -> ResetTarget | None:
    """Returns the target; None if the file has no offsets of the group. Raises: as `reject_value`."""
    value = targets[option]
    if option == "to-offset":
        return ResetTarget(TargetKind.OFFSET, value)
    if option == "shift-by":
        return ResetTarget(TargetKind.SHIFT, value)
    if option == "by-duration":
        return _time_target(option, SystemClock().timestamp_ms() - parse_iso_duration(value))
    if option == "to-datetime":
        return _time_target(option, parse_datetime(value))
    if option == "from-file":
        offsets = _read_file(value, group_id if is_single else None).get(group_id)
        return None if offsets is None else ResetTarget(TargetKind.OFFSETS, offsets=offsets)
    return ResetTarget(TargetKind(option.removeprefix("to-")))


def _time_target(option: str, timestamp_ms: int) -> ResetTarget:
    """Raises: as `reject_value` for a time before 1970: brokers give negative timestamps other meanings."""
    if not 0 <= timestamp_ms <= INT64_MAX:
        text = "Instant exceeds minimum or maximum instant"
        if -INT64_MAX <= timestamp_ms < 0:
            text = f"java.util.concurrent.ExecutionException: {java_error(ErrorCode.UNSUPPORTED_VERSION)}"
        reject_value(f"Option --{option} must be a time since 1970.", text)
    return ResetTarget(TargetKind.TIMESTAMP, timestamp_ms)


def parse_iso_duration(text: str) -> int:
    """Parses ``P1DT2H30M``, as Java's `Duration.parse`; returns milliseconds. Raises: as `reject_value`."""
    found = _DURATION.fullmatch(text)
    if found is None or (found[2] is None and found[3] is None):
        reject_value(
            f"Option --by-duration must be a duration such as P7D or PT1H30M, got {text!r}.",
            "Text cannot be parsed to a Duration",
        )
    days, hours, minutes, seconds = (int(found[at] or 0) for at in (2, 4, 5, 6))
    ms = int((found[7] or "").ljust(3, "0")[:3])
    fraction = -ms if (found[6] or "").startswith("-") else ms
    total = ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1_000 + fraction
    return -total if found[1] == "-" else total


def parse_datetime(text: str) -> int:
    """Parses the times of Kafka's tool (`Utils.getDateTime`); returns epoch ms. Raises: as `reject_value`."""
    option = f"Option --to-datetime must be a time such as 2026-01-31T10:00:00.000, got {text!r}."
    if "T" not in text:
        reject_value(
            option,
            "java.text.ParseException: Error parsing timestamp. It does not contain a 'T' according to ISO8601 format",
        )
    try:
        # Python 3.10 accepts neither Z nor +0100
        plain = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace("Z", "+00:00"))
        return datetime_ms(datetime.fromisoformat(re.sub(r"\.(\d{1,6})", lambda m: f".{m[1]:0<6}", plain)))
    except ValueError:
        reject_value(option, f'java.text.ParseException: Unparseable date: "{text}"')


def _read_file(path: str, group_id: str | None) -> dict[str, dict[TopicPartition, int]]:
    """Returns the offsets of each group; `group_id` is that of a file without groups.

    Raises: ReportedError for an unreadable file or an invalid line; click.UsageError for a negative offset.
    """
    try:
        lines = list(csv.reader(Path(path).read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ReportedError(
            f"Reading {path} failed: {error}. Check --from-file.", f"java.io.IOException: Unable to read file {path}"
        ) from error
    found: dict[str, dict[TopicPartition, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            *group, topic, partition, offset = (cell.strip() for cell in line)
            (name,) = group or [group_id or ""]
            if not group and group_id is None:
                raise ValueError("no group")
            found.setdefault(name, {})[TopicPartition(topic, int(partition))] = int(offset)
            is_negative = int(offset) < 0
        except ValueError as error:
            expected = "topic,partition,offset or group,topic,partition,offset"
            text = (
                f"Line {number} of {path} must be {expected}, got {','.join(line)[:100]!r}. Check --from-file; with "
                "several groups, each line names its group."
            )
            raise ReportedError(text, text) from error
        if is_negative:
            reject_command_line(f"Line {number} of {path} has a negative offset.", "Invalid negative offset")
    return found


def _print_notes(found: ResetPlan, target: ResetTarget, to_stderr: bool) -> None:
    for row in found.rows:
        if row.note and target.kind is TargetKind.TIMESTAMP:
            click.echo(f"\nWarn: {row.note}", err=to_stderr)
        elif row.note:
            click.echo(f"WARN: {row.note}.", err=True)
    for warning in found.warnings:
        click.echo(f"WARN: {warning}", err=True)


def _restart_rules(cluster: ClusterClient, checkpoint: Path | None) -> _RuleOf:
    if checkpoint is None:
        return lambda group_id: None
    # imported here: the other commands do not need the source
    from spark_groupsource.source.positions.checkpoint import read_checkpoint

    found = read_checkpoint(checkpoint)
    return lambda group_id: found.restart_rule(cluster, group_id)


def _json_row(found: ResetPlan, row: Any) -> dict[str, Any]:
    return {
        "group": found.group_id,
        "topic": row.topic,
        "partition": row.partition,
        "current_offset": row.current_offset,
        "new_offset": row.new_offset,
        "log_start_offset": row.log_start_offset,
        "log_end_offset": row.log_end_offset,
        "lag": row.lag,
        "is_executed": found.is_executed,
        "note": row.note or None,
        "restart_offset": None if row.restart is None else row.restart.offset,
        "restart_source": None if row.restart is None else row.restart.source,
    }
