"""The ``groupsource doctor`` command: checks the way from Spark to a group."""

from __future__ import annotations

import json
from pathlib import Path

import click

from spark_groupsource.cli.commands import command, invalid_values
from spark_groupsource.cli.common import client_settings, cluster_options
from spark_groupsource.cli.doctor_checks import CLUSTER_CHECKS, Target
from spark_groupsource.cli.doctor_findings import CheckLine, Status, failed, run_checks
from spark_groupsource.cli.doctor_machine import MACHINE_CHECKS
from spark_groupsource.cli.doctor_queries import QUERY_CHECKS, Readiness
from spark_groupsource.cli.effects import Excludes, check_effects
from spark_groupsource.cli.text_layout import filled, output_width
from spark_groupsource.client.settings import without_prefix
from spark_groupsource.common.config_def import INT32_MAX
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import escaped
from spark_groupsource.monitor.selection import parse_selection

_SETTINGS = "settings"
_CLUSTER_OPTIONS = ("bootstrap-server", "command-config", "topic", "group", "transactional-id", "checkpoint", "timeout")
_RULES = tuple(Excludes("--queries", f"--{option}") for option in _CLUSTER_OPTIONS)


@command()
@cluster_options
@click.option("--topic", metavar="NAMES", help="Topics to check: names and patterns, separated by commas.")
@click.option("--group", metavar="GROUP", help="Consumer group to check.")
@click.option("--transactional-id", metavar="ID", help="kafka.transactional.id of a query that writes exactly once.")
@click.option("--checkpoint", metavar="DIR", help="checkpointLocation of a query, in a local directory.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(100, INT32_MAX),
    default=5_000,
    show_default=True,
    metavar="MS",
    help="How long each request may take, in milliseconds.",
)
@click.option(
    "--queries",
    type=click.Choice([each.value for each in Readiness]),
    help="Check only that a streaming query runs here; with joined also that its reader process responds and its "
    "members have joined their group. No request is sent to Kafka: for probes of Kubernetes.",
)
@click.option("--json", "is_json", is_flag=True, help="Print a JSON array of objects instead of the lines.")
def doctor(
    bootstrap: str,
    command_config: Path | None,
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    checkpoint: str | None,
    timeout_ms: int,
    queries: str | None,
    is_json: bool,
) -> None:
    """Checks what a query needs: addresses, versions, login, topics, group, transaction, checkpoint, machine.

    Each line starts with good, bad or unknown, and says what to do. Nothing is changed, and no group is joined. The
    exit status is 1 if a line is bad.
    """
    check_effects(click.get_current_context(), _RULES)
    with invalid_values():
        topics = None if topic is None else parse_selection("--topic", topic)
    if queries is not None:
        findings = run_checks(QUERY_CHECKS, Readiness(queries))
    else:
        findings = run_checks(MACHINE_CHECKS, None)
        try:
            settings = client_settings(bootstrap, command_config, timeout_ms)
        except ConfigurationError as error:
            findings.append(failed(_SETTINGS, error))
        else:
            with Target(settings, topics, group, checkpoint, timeout_ms, transactional_id) as target:
                findings += run_checks(CLUSTER_CHECKS, target)
    findings = [f._replace(text=without_prefix(f.text), fix=without_prefix(f.fix)) for f in findings]
    if is_json:
        click.echo(json.dumps([f._asdict() for f in findings], ensure_ascii=False, indent=1))
    else:
        width = output_width()
        click.echo("\n".join(_text(finding, width) for finding in findings))
    click.get_current_context().exit(int(any(f.status is Status.BAD for f in findings)))


def _text(finding: CheckLine, width: int | None) -> str:
    """Returns the line of a check, divided where it is wider than the terminal."""
    text = escaped(" ".join(filter(None, (finding.text, finding.fix))))
    label = f"{finding.status.value:<8} {finding.check:<19} "
    if width is None or len(label) + len(text) <= width:
        return f"{label}{text}"
    if width < 2 * len(label):
        return "\n".join([label.rstrip(), *filled(text, width, "    ", "    ")])
    return "\n".join(filled(text, width, label, " " * len(label)))
