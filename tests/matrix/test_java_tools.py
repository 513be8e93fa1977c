"""Kafka's command line tools with the embedded broker and Kafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.java_tools import (
    CONSOLE_CONSUMER,
    DELETE_RECORDS,
    GROUPS,
    OFFSETS,
    TOPICS,
    JavaTools,
)
from support.members import JavaMember, JavaProducer, LibrdkafkaMember
from support.topics import HOUR_MS, create_hourly_topic, create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.kafka

Tool = Callable[..., list[list[str]]]


@pytest.fixture
def tool(java: JavaTools, cluster: Any) -> Tool:
    """Runs a tool against the cluster; returns the words of each printed line."""
    return lambda main, *arguments: java.rows(main, "--bootstrap-server", cluster.bootstrap_servers, *arguments)


@pytest.fixture
def filled(cluster: Any, topic: str) -> str:
    """A topic of two partitions with ten records each, one per hour from 1970."""
    create_hourly_topic(cluster.bootstrap_servers, topic)
    return topic


# --- topics and offsets ---


def test_topic_command(tool: Tool, topic: str) -> None:
    assert tool(TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=1000") == [
        ["Created", "topic", f"{topic}."]
    ]
    assert [topic] in tool(TOPICS, "--list")
    assert tool(TOPICS, "--alter", "--topic", topic, "--partitions", "3") == []
    head, *partitions = tool(TOPICS, "--describe", "--topic", topic)
    assert head[:2] == ["Topic:", topic] and head[4:8] == ["PartitionCount:", "3", "ReplicationFactor:", "1"]
    assert "retention.ms=1000" in head[-1]
    leaders = [["Topic:", topic, "Partition:", str(n), "Leader:", "1", "Replicas:", "1", "Isr:", "1"] for n in range(3)]
    assert [row[:10] for row in partitions] == leaders
    assert tool(TOPICS, "--describe", "--topic", topic, "--unavailable-partitions") == []
    assert tool(TOPICS, "--describe", "--topic", topic, "--under-replicated-partitions") == []
    assert tool(TOPICS, "--create", "--if-not-exists", "--topic", topic) == []
    again = tool(TOPICS, "--create", "--topic", topic)
    assert "already exists" in " ".join(" ".join(row) for row in again)
    fewer = tool(TOPICS, "--alter", "--topic", topic, "--partitions", "2")
    assert fewer[0][:6] == ["Error", "while", "executing", "topic", "command", ":"], fewer
    assert tool(TOPICS, "--delete", "--topic", topic) == []
    assert wait_until(lambda: [topic] not in tool(TOPICS, "--list"), "the topic is deleted")


def test_get_offset_shell(tool: Tool, filled: str) -> None:
    def offsets(*arguments: str) -> list[list[str]]:
        return sorted(tool(OFFSETS, *arguments))

    both = ("--topic", filled)
    assert offsets(*both) == [[f"{filled}:{n}:10"] for n in range(2)]
    assert offsets(*both, "--time", "earliest") == [[f"{filled}:{n}:0"] for n in range(2)]
    assert offsets(*both, "--time", "max-timestamp") == [[f"{filled}:{n}:9"] for n in range(2)]
    assert offsets(*both, "--time", str(3 * HOUR_MS)) == [[f"{filled}:{n}:2"] for n in range(2)]
    assert offsets(*both, "--partitions", "1") == [[f"{filled}:1:10"]]
    assert offsets("--topic-partitions", f"{filled}:0", "--time", "-2") == [[f"{filled}:0:0"]]


def test_delete_records_command(tool: Tool, filled: str, tmp_path: Path) -> None:
    wanted = [{"topic": filled, "partition": 0, "offset": 4}, {"topic": filled, "partition": 1, "offset": -1}]
    path = tmp_path / "wanted.json"
    path.write_text(json.dumps({"partitions": wanted, "version": 1}))
    returned = tool(DELETE_RECORDS, "--offset-json-file", str(path))
    assert ["partition:", f"{filled}-0", "low_watermark:", "4"] in returned
    assert ["partition:", f"{filled}-1", "low_watermark:", "10"] in returned
    earliest = tool(OFFSETS, "--topic", filled, "--time", "earliest")
    assert sorted(earliest) == [[f"{filled}:0:4"], [f"{filled}:1:10"]]


def test_console_consumer(tool: Tool, filled: str, group: str) -> None:
    read = ("--topic", filled, "--from-beginning", "--max-messages", "20", "--group", group)
    returned = tool(CONSOLE_CONSUMER, *read)
    assert sorted(row[0] for row in returned[:20]) == sorted(f"v{n}" for n in range(20))
    assert returned[-1] == ["Processed", "a", "total", "of", "20", "messages"]


# --- groups ---


def test_list_and_describe_a_group_with_members(tool: Tool, cluster: Any, filled: str, group: str) -> None:
    with LibrdkafkaMember(cluster.bootstrap_servers, group, filled, client_id="reader") as member:
        wait_until(lambda: sum(member.seen.values()) == 20, "all records are read")

        def caught_up() -> bool:
            rows = tool(GROUPS, "--describe", "--group", group)
            return sorted(row[2:6] for row in rows[1:]) == [["0", "10", "10", "0"], ["1", "10", "10", "0"]]

        wait_until(caught_up, "the commits are visible")
        rows = tool(GROUPS, "--describe", "--group", group, "--offsets")[1:]
        assert {row[0] for row in rows} == {group} and {tuple(row[7:]) for row in rows} == {("/127.0.0.1", "reader")}
        (row,) = tool(GROUPS, "--describe", "--group", group, "--members")[1:]
        assert (row[0], row[2], row[3], row[4]) == (group, "/127.0.0.1", "reader", "2") and row[1].startswith("reader-")
        (row,) = tool(GROUPS, "--describe", "--group", group, "--members", "--verbose")[1:]
        assert f"{filled}:0,1" in " ".join(row) or f"{filled}(0,1)" in " ".join(row)
        (row,) = tool(GROUPS, "--describe", "--group", group, "--state")[1:]
        address, coordinator, assignor, state, members = row[1:6]
        assert (address, coordinator) == (cluster.bootstrap_servers, "(1)")
        assert (assignor, state, members) == ("range", "Stable", "1")
        assert [group] in tool(GROUPS, "--list")
        assert [group, "Stable"] in tool(GROUPS, "--list", "--state")
        assert [group, "Stable"] in tool(GROUPS, "--list", "--state", "Stable")
        assert [group, "Stable"] not in tool(GROUPS, "--list", "--state", "Empty")
        assert [group, "Classic"] in tool(GROUPS, "--list", "--type")
        everything = tool(GROUPS, "--describe", "--all-groups")
        assert len([row for row in everything if row[:2] == [group, filled]]) == 2
        # operations that a group with members rejects
        reset = ("--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
        assert "inactive" in " ".join(" ".join(row) for row in tool(GROUPS, *reset))
        returned = " ".join(" ".join(row) for row in tool(GROUPS, "--delete", "--group", group))
        assert "GroupNotEmptyException" in returned
        returned = tool(GROUPS, "--delete-offsets", "--group", group, "--topic", filled)
        assert "subscribed" in " ".join(" ".join(row) for row in returned)
    (row,) = tool(GROUPS, "--describe", "--group", group, "--state")[1:2]
    assert row[-2:] == ["Empty", "0"]


# option -> offsets of partitions 0 and 1, from offset 5 in both
RESETS = {
    "--to-earliest": ("0", "0"),
    "--to-latest": ("10", "10"),
    "--to-current": ("5", "5"),
    "--to-offset 3": ("3", "3"),
    "--to-offset 99": ("10", "10"),
    "--shift-by 2": ("7", "7"),
    "--shift-by -2": ("3", "3"),
    "--shift-by -99": ("0", "0"),
    "--to-datetime 1970-01-01T04:30:00.000": ("4", "4"),
    "--to-datetime 2500-01-01T00:00:00.000": ("10", "10"),
    "--by-duration P1D": ("10", "10"),
}


def offsets_of(rows: list[list[str]], topic: str) -> dict[str, str]:
    return {row[2]: row[3] for row in rows if row[1:2] == [topic]}


@pytest.fixture
def client(cluster: Any) -> Iterator[ClusterClient]:
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    opened = ClusterClient(settings.bootstrap, settings)
    yield opened
    opened.close()


def commit(client: ClusterClient, group: str, topic: str, offset: int) -> None:
    client.commit(group, {TopicPartition(topic, number): OffsetAndMetadata(offset) for number in range(2)})


def committed(client: ClusterClient, group: str) -> tuple[str, ...]:
    found = client.fetch_committed(group)
    return tuple(str(commit.offset) for _, commit in sorted(found.items()) if commit is not None)


def test_every_option_of_reset_offsets(
    tool: Tool, client: ClusterClient, filled: str, group: str, tmp_path: Path
) -> None:
    both = ("--reset-offsets", "--group", group, "--topic", filled)
    returned = tool(GROUPS, *both, "--to-offset", "5", "--execute")
    assert offsets_of(returned, filled) == offsets_of(tool(GROUPS, "--describe", "--group", group), filled)
    for form, expected in RESETS.items():
        commit(client, group, filled, 5)
        dry = tool(GROUPS, *both, *form.split(), "--dry-run")
        assert offsets_of(dry, filled) == dict(zip("01", expected)), form
        assert committed(client, group) == ("5", "5"), form
        done = tool(GROUPS, *both, *form.split(), "--execute")
        assert offsets_of(done, filled) == dict(zip("01", expected)), form
        assert committed(client, group) == expected, form
    # one partition; all topics; a plan, exported and read again
    one = ("--reset-offsets", "--group", group, "--topic", f"{filled}:1", "--to-offset", "2", "--execute")
    assert offsets_of(tool(GROUPS, *one), filled) == {"1": "2"}
    everything = ("--reset-offsets", "--group", group, "--all-topics", "--to-offset", "6")
    ((plan,), *more) = tool(GROUPS, *everything, "--export", "--dry-run")
    rows = sorted(line.strip('"') for line in [plan, *(line for (line,) in more)])
    assert rows == [f"{filled},0,6", f"{filled},1,6"]
    path = tmp_path / "plan.csv"
    path.write_text(f"{filled},0,1\n{filled},1,8\n")
    returned = tool(GROUPS, "--reset-offsets", "--group", group, "--from-file", str(path), "--execute")
    assert offsets_of(returned, filled) == {"0": "1", "1": "8"}
    assert offsets_of(tool(GROUPS, "--describe", "--group", group), filled) == {"0": "1", "1": "8"}


def test_delete_offsets_and_groups(tool: Tool, filled: str, group: str) -> None:
    other = f"{group}-2"
    for each in (group, other):
        tool(GROUPS, "--reset-offsets", "--group", each, "--topic", filled, "--to-latest", "--execute")
    returned = tool(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{filled}:0")
    assert [filled, "0", "Successful"] in returned
    assert offsets_of(tool(GROUPS, "--describe", "--group", group), filled) == {"1": "10"}
    returned = tool(GROUPS, "--delete", "--group", group, "--group", other)
    assert "successful" in " ".join(" ".join(row) for row in returned) and len(returned) == 1
    assert not {group, other} & {row[0] for row in tool(GROUPS, "--list")}
    returned = tool(GROUPS, "--delete", "--group", group)
    assert "GroupIdNotFoundException" in " ".join(" ".join(row) for row in returned)
    returned = tool(GROUPS, "--describe", "--group", group)
    assert f"Group {group} not found" in " ".join(" ".join(row) for row in returned)


# --- programs that produce and consume ---


def test_verifiable_producer_and_consumer(cluster: Any, topic: str, group: str, tool: Tool) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with JavaProducer(cluster.bootstrap_servers, topic, 100) as producer:
        with JavaMember(cluster.bootstrap_servers, group, topic, "--max-messages", "100") as member:
            sent = producer.finish()
            assert len(sent) == 100
            member.wait_for("shutdown_complete")
            assert member.consumed == 100
    committed = offsets_of(tool(GROUPS, "--describe", "--group", group), topic)
    assert sum(int(offset) for offset in committed.values() if offset != "-") == 100
    ends = tool(OFFSETS, "--topic", topic)
    assert sum(int(end.rpartition(":")[2]) for (end,) in ends) == 100


def test_console_producer(cluster: Any, topic: str, tool: Tool) -> None:
    from real_kafka import run_tool

    create_topic(cluster.bootstrap_servers, topic, 1)
    arguments = ("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic)
    run: subprocess.CompletedProcess[str] = run_tool(
        "org.apache.kafka.tools.ConsoleProducer", *arguments, stdin="one\ntwo\nthree\n"
    )
    assert run.returncode == 0, run.stderr
    assert tool(OFFSETS, "--topic", topic) == [[f"{topic}:0:3"]]


def test_java_reads_the_records_of_every_client_library(cluster: Any, topic: str, tool: Tool) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        produce(cluster.bootstrap_servers, topic, [(0, None, codec.encode())], compression_codec=codec)
    read = ("--topic", topic, "--from-beginning", "--max-messages", "5")
    assert [row[0] for row in tool(CONSOLE_CONSUMER, *read)[:5]] == list(codecs)
