"""``groupsource topics`` against both clusters, verified with librdkafka."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from support.clusters import Cluster
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.cli.main import main
from spark_groupsource.monitor.tables.definitions import TABLES


def run(bootstrap_servers: str, verb: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["topics", verb, "--bootstrap-server", bootstrap_servers, *arguments])


def test_create_list_describe_delete(cluster: Cluster, topic: str) -> None:
    created = run(cluster.bootstrap_servers, "create", "--topic", topic, "--partitions", "3")
    assert (created.exit_code, created.stdout) == (0, f"Created topic {topic}.\n")
    seen = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=10).topics
    assert len(seen[topic].partitions) == 3
    assert topic in run(cluster.bootstrap_servers, "list").stdout.splitlines()
    described = run(cluster.bootstrap_servers, "describe", "--topic", topic).stdout.splitlines()
    assert described[0].startswith(f"Topic: {topic}\t")
    assert "\tPartitionCount: 3\tReplicationFactor: 1\t" in described[0]
    assert described[3] == f"\tTopic: {topic}\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1"
    assert run(cluster.bootstrap_servers, "delete", "--topic", topic).exit_code == 0
    assert topic not in run(cluster.bootstrap_servers, "list").stdout.splitlines()


def test_describe_shows_topic_settings(cluster: Cluster, topic: str) -> None:
    assert run(cluster.bootstrap_servers, "create", "--topic", topic, "--config", "retention.ms=1234").exit_code == 0
    # a broker of Kafka learns of the topic after its controller
    described = wait_until(
        lambda: (found := run(cluster.bootstrap_servers, "describe", "--topic", topic)).exit_code == 0 and found,
        "the topic is described",
    )
    assert "retention.ms=1234" in described.stdout


def test_describe_offsets_of_each_partition(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, ((1, None, b"x") for _ in range(7)))
    rows = run(cluster.bootstrap_servers, "describe", "--topic", topic, "--offsets").stdout.splitlines()
    assert [row.split() for row in rows[1:]] == [[topic, "0", "0", "0"], [topic, "1", "0", "7"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "--topic", "taken"], "TOPIC_ALREADY_EXISTS"),
        (["create", "--topic", "new", "--config", "retention.ms"], "--config must be KEY=VALUE, got 'retention.ms'"),
        (["create", "--topic", "new", "--config", "color=blue"], "INVALID_CONFIG"),
        (["create", "--topic", "a/b"], "INVALID_TOPIC_EXCEPTION"),
        (["describe", "--topic", "missing"], "missing"),
        (["delete", "--topic", "missing"], "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_error_is_one_line(cluster: Cluster, arguments: list[str], message: str) -> None:
    run(cluster.bootstrap_servers, "create", "--topic", "taken", "--if-not-exists")
    result = run(cluster.bootstrap_servers, *arguments)
    assert result.exit_code == (2 if "KEY=VALUE" in message else 1)
    assert result.stderr.startswith("Error: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_if_exists_and_if_not_exists(cluster: Cluster, topic: str) -> None:
    for _ in range(2):
        assert run(cluster.bootstrap_servers, "create", "--topic", topic, "--if-not-exists").exit_code == 0
    assert run(cluster.bootstrap_servers, "delete", "--topic", f"{topic}-missing", "--if-exists").exit_code == 0


@pytest.mark.usefixtures("short_retries")
@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("127.0.0.1:1", 1, "127.0.0.1:1"),
        ("nonsense", 1, "host:port"),
        ("no-such-host.invalid:9092", 1, "cannot be resolved"),
    ],
)
def test_invalid_address_is_reported(address: str, status: int, message: str) -> None:
    result = run(address, "list")
    assert result.exit_code == status
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_alter_adds_partitions_and_changes_settings(cluster: Cluster, topic: str) -> None:
    run(cluster.bootstrap_servers, "create", "--topic", topic, "--config", "retention.ms=1000")
    change = ("--partitions", "3", "--add-config", "retention.bytes=5000", "--delete-config", "retention.ms")
    result = run(cluster.bootstrap_servers, "alter", "--topic", topic, *change)
    assert (result.exit_code, result.stdout) == (0, f"Altered topic {topic}.\n")
    described = run(cluster.bootstrap_servers, "describe", "--topic", topic).stdout
    assert "PartitionCount: 3" in described and "retention.bytes=5000" in described
    assert "retention.ms=1000" not in described
    result = run(cluster.bootstrap_servers, "alter", "--topic", topic, "--add-config", "color=blue")
    assert (result.exit_code, "INVALID_CONFIG" in result.stderr) == (1, True)


def test_json_has_the_columns_of_the_tables(cluster: Cluster, topic: str) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, 2, {"retention.ms": "77"})
    produce(servers, topic, ((1, None, b"x") for _ in range(3)))
    (row,) = [each for each in json.loads(run(servers, "list", "--json").stdout) if each["topic"] == topic]
    assert row.keys() <= {column.name for column in TABLES["topics"].columns}
    assert (row["partition_count"], row["replication_factor"], row["is_internal"]) == (2, 1, False)
    (described,) = json.loads(run(servers, "describe", "--topic", topic, "--json").stdout)
    assert row.items() <= described.items() and described["configs"]["retention.ms"] == "77"
    assert [(p["partition"], p["leader"], p["replicas"], p["isr"]) for p in described["partitions"]] == [
        (0, 1, [1], [1]), (1, 1, [1], [1]),
    ]  # fmt: skip
    (described,) = json.loads(run(servers, "describe", "--topic", topic, "--offsets", "--json").stdout)
    assert [(p["log_start_offset"], p["log_end_offset"]) for p in described["partitions"]] == [(0, 0), (0, 3)]
    assert f"TopicId: {row['topic_id']}\t" in run(servers, "describe", "--topic", topic).stdout
    assert topic in [each["topic"] for each in json.loads(run(servers, "describe", "--json").stdout)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe"],
        ["describe", "--json"],
        ["delete"],
        ["alter", "--partitions", "5"],
        ["alter", "--add-config", "retention.ms=5"],
    ],
)
def test_a_misspelled_topic_is_named_with_near_ones(cluster: Cluster, topic: str, arguments: list[str]) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    misspelled = topic.replace("t-", "T-")
    result = run(cluster.bootstrap_servers, *arguments, "--topic", misspelled)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert f"UNKNOWN_TOPIC_OR_PARTITION (3). The topic does not exist. Did you mean '{topic}'" in result.stderr
