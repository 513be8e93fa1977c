"""``groupsource groups`` and ``kafka-consumer-groups``: arguments, output and exit status."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

from click.testing import CliRunner
from support.clusters import Cluster
from support.java_tools import GROUPS, JavaTools
from support.members import LibrdkafkaMember
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.cli.main import main
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

HOUR_MS = 3_600_000
# T: the topic; G1, G2: groups without members; A: a group with a member that subscribes to T; DIR: a directory
COMMAND_LINES = """
--list --state
--list --type
--list --state stable --type classic,consumer
--list --state Empty
--describe --group G1
--describe --group=G1 --offsets --verbose
--describe --group G2 --members
--describe --group G2 --members --verbose
--group G1 --describe --timeout 20000
--describe --group missing
--describe --group missing --state
--describe --group G1 --group missing
--describe --group G1 --group G2
--describe --all-groups
--reset-offsets --group G1 --topic T --to-earliest
--reset-offsets --group G1 --topic T --to-earliest --dry-run
--reset-offsets --group G1 --topic T:0 --to-offset 3 --execute
--describe --group G1
--reset-offsets --group G1 --all-topics --to-offset 300 --dry-run
--reset-offsets --group G1 --all-topics --shift-by -1 --execute
--reset-offsets --group G1 --all-topics --shift-by -100 --dry-run
--reset-offsets --group G1 --topic T --shift-by -1 --dry-run
--reset-offsets --group G2 --topic T --shift-by 0 --dry-run
--reset-offsets --group G2 --topic T --to-offset 0 --dry-run
--reset-offsets --group G1 --topic T --to-current --dry-run
--reset-offsets --group G1 --topic T --to-current --dry-run --export
--reset-offsets --group G1 --group G2 --topic T --to-current --dry-run --export
--reset-offsets --group G1 --topic T --by-duration PT1H --dry-run
--reset-offsets --group G1 --topic T --to-datetime 1970-01-01T03:00:00.000 --dry-run
--reset-offsets --group G1 --topic T --to-datetime 1970-01-01T03:00:00.000+01:00 --dry-run
--reset-offsets --group G1 --topic T:1 --to-latest --execute
--reset-offsets --group G1 --topic T:0,9 --to-latest --dry-run
--reset-offsets --group G1 --topic missing --to-latest --dry-run
--reset-offsets --group G1 --from-file DIR/topics.csv --dry-run
--reset-offsets --group G1 --group G2 --from-file DIR/groups.csv --execute
--reset-offsets --group A --topic T --to-latest --execute
--reset-offsets --group A --group G1 --topic T --to-latest --dry-run
--delete-offsets --group G1 --topic T:1
--delete-offsets --group G1 --topic T --topic missing
--delete-offsets --group missing --topic T
--delete-offsets --group A --topic T
--delete --group missing
--delete --group A
--delete --group G2 --group missing
--describe --group G2
--delete --group G1
"""
# the broker has no part in their result
REJECTED_LINES = """
--list --state sleepy
--list --type magic
--describe --group G1 --all-groups
--describe --group G1 --members --state
--describe
--describe --group G1 --timeout soon
--reset-offsets --group G1 --topic T --to-offset ten --dry-run
--reset-offsets --group G1 --topic T --by-duration P99999D --dry-run
--reset-offsets --group G1 --topic T --by-duration P999999999999D --dry-run
--reset-offsets --group G1 --topic T --to-datetime 1960-01-01T00:00:00.000 --dry-run
--reset-offsets --group G1 --from-file DIR/negative.csv --dry-run
--reset-offsets --group G1 --topic T --by-duration soon --dry-run
--reset-offsets --group G1 --topic T --to-datetime soon --dry-run
--reset-offsets --group G1 --topic T:x --to-latest --dry-run
--reset-offsets --group G1 --topic T:0:1 --to-latest --dry-run
--reset-offsets --group G1 --topic T --dry-run
--reset-offsets --group G1 --to-latest --dry-run
--reset-offsets --group G1 --to-latest --to-earliest --topic T --dry-run
--reset-offsets --group G1 --to-latest --topic T --dry-run --execute
--reset-offsets --group G1 --from-file DIR/missing.csv --dry-run
--reset-offsets --topic T --to-latest --dry-run
--delete-offsets --group G1
--delete --group G1 --topic T
--delete
--validate-regex a.*b
--validate-regex a[
--validate-regex (a
--validate-regex *
--validate-regex a\\
--validate-regex (?=a)
"""
# messages that enumerate a Java set, whose order changes from run to run
_SETS = re.compile(r"((Invalid (state|types) list|Option \S+ (requires|takes (one|the))).*?): .*")


def _fill(cluster: Cluster, topic: str, groups: list[str]) -> None:
    """Writes ten records to each of two partitions, one per hour from 1970, and commits offsets of the groups."""
    from confluent_kafka import Producer

    create_topic(cluster.bootstrap_servers, topic, 2, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(20):
        producer.produce(topic, b"v%d" % number, partition=number % 2, timestamp=(number // 2 + 1) * HOUR_MS)
    assert producer.flush(20) == 0
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as client:
        for group in groups:
            commits = {TopicPartition(topic, 0): OffsetAndMetadata(5)}
            if group.endswith("2"):
                commits[TopicPartition(topic, 1)] = OffsetAndMetadata(6)
            client.commit(group, commits)


def _arguments(line: str, names: dict[str, str]) -> list[str]:
    """Returns the words of a line with the names instead of the placeholders."""
    pattern = rf"\b({'|'.join(names)})\b"
    return [re.sub(pattern, lambda found: names[found[1]], word) for word in line.split()]


def _normalized(text: str, names: dict[str, str], is_of_all_groups: bool) -> list[str]:
    """Returns the lines in sorted order, with the placeholders for names; of other groups' lines, none."""
    for placeholder, name in names.items():
        text = text.replace(name, placeholder)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if is_of_all_groups:
        lines = [line for line in lines if line.split()[0] in ("GROUP", "G1", "G2", "A") or "Error" in line]
    return sorted(lines)


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line and not line.startswith("WARN: No action")), "")
    # the tool prints one quote too many after the argument of --topic
    return _SETS.sub(r"\1", line).replace("''", "'")


def test_the_command_lines_of_kafkas_tool(cluster: Cluster, java: JavaTools, topic: str, tmp_path: Path) -> None:
    run = uuid4().hex[:12]
    theirs = {"G1": f"{run}-k-1", "G2": f"{run}-k-2", "A": f"{run}-active"}
    ours = {"G1": f"{run}-o-1", "G2": f"{run}-o-2", "A": f"{run}-active"}
    _fill(cluster, topic, [theirs["G1"], theirs["G2"], ours["G1"], ours["G2"]])
    differences = []
    for side, names in (("theirs", theirs), ("ours", ours)):
        directory = tmp_path / side
        directory.mkdir()
        (directory / "negative.csv").write_text(f"{topic},0,-3\n")
        (directory / "topics.csv").write_text(f"{topic},0,2\n{topic},1,50\n")
        (directory / "groups.csv").write_text(f"{names['G1']},{topic},0,2\n{names['G2']},{topic},1,5\n")
    with LibrdkafkaMember(cluster.bootstrap_servers, theirs["A"], topic) as member:
        wait_until(lambda: len(member.partitions) == 2, "the member owns the topic")
        for line in (COMMAND_LINES + (REJECTED_LINES if cluster.name == "embedded" else "")).strip().splitlines():
            is_of_all_groups = "--list" in line or "--all-groups" in line
            results = []
            for side, names in (("theirs", theirs), ("ours", ours)):
                shown = {**names, "T": topic, "DIR": str(tmp_path / side)}
                words = [*_arguments(line, shown), "--bootstrap-server", cluster.bootstrap_servers]
                if side == "theirs":
                    done = java.call(GROUPS, *words)
                    out, err, status = done.stdout, done.stderr, done.returncode
                else:
                    result = CliRunner().invoke(main, ["groups", *words])
                    out, err, status = result.stdout, result.stderr, result.exit_code
                lines = _normalized(out, shown, is_of_all_groups)
                # an exit in the middle is an exception in the shared JVM, which the tool reports as an error
                lines = [text for text in lines if text != "Error: Executing consumer group command failed due to"]
                first = _normalized(_first_line(err), shown, False) if status else []
                results.append((status, lines, first))
            if results[0] != results[1]:
                differences.append((line, *results, repr(result.exception)))
    assert not differences, "\n".join(map(str, [text for each in differences for text in each]))
