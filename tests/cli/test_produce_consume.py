"""``groupsource produce`` and ``consume`` against both clusters and Kafka's own clients."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from support.clusters import Cluster
from support.topics import create_topic, produce

from spark_groupsource.cli.main import main


def run(cluster: Cluster, verb: str, topic: str, *arguments: str, stdin: bytes = b"") -> Result:
    options = [verb, "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, *arguments]
    return CliRunner().invoke(main, options, input=stdin)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consume_prints_the_produced_lines(cluster: Cluster, topic: str, compression: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    lines = "".join(f"line {n} é\n" for n in range(12_000))
    written = run(cluster, "produce", topic, "--compression", compression, stdin=lines.encode())
    assert (written.exit_code, written.stderr) == (0, f"12000 records written to {topic}\n")
    assert run(cluster, "consume", topic).stdout == lines
    assert run(cluster, "consume", topic, "--from", "-2").stdout == "line 11998 é\nline 11999 é\n"
    assert run(cluster, "consume", topic, "--from", "7", "--max-messages", "1").stdout == "line 7 é\n"


def test_keys_map_to_the_partitions_of_the_java_producer(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 6)
    keys = [b"UA", b"B6", b"EV", b"DL", b"", b"a longer key"]
    reference = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2"})
    for key in keys:
        reference.produce(topic, b"reference", key)
    assert reference.flush(30) == 0
    lines = b"=produced\n".join([*keys, b""])
    assert run(cluster, "produce", topic, "--key-separator", "=", stdin=lines).exit_code == 0
    shown = run(cluster, "consume", topic, "--show").stdout.splitlines()
    partitions: dict[str, list[str]] = {"reference": [], "produced": []}
    for line in shown:
        _, _, position, rest = line.split(" ", 3)
        key, _, value = rest.rpartition(" ")
        partitions[value].append(f"{position.partition(':')[0]} {key}")
    assert sorted(partitions["produced"]) == sorted(partitions["reference"])
    assert len(partitions["produced"]) == len(keys)


def test_show_prints_keys_and_positions_of_other_clients(cluster: Cluster, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"v"), (0, b"k", None)], compression_codec="zstd")
    shown = run(cluster, "consume", topic, "--show").stdout.splitlines()
    assert [line.split()[2:] for line in shown] == [["0:0", "-", "v"], ["0:1", "k"]]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("produce", ["--partition", "5"], "Option --partition must be between 0 and 0"),
        ("produce", ["--key-separator", "="], "must occur in each line, got 'x'"),
        ("consume", ["--partition", "5"], "must be a partition of topic"),
        ("consume", ["--from", "noon"], "must be earliest, an offset or -N, got 'noon'"),
    ],
)
def test_invalid_option_is_reported(
    cluster: Cluster, topic: str, verb: str, arguments: list[str], message: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    result = run(cluster, verb, topic, *arguments, stdin=b"x\n")
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("verb", ["produce", "consume"])
def test_unknown_topic_is_reported(cluster: Cluster, topic: str, verb: str) -> None:
    result = run(cluster, verb, topic, stdin=b"x\n")
    assert result.exit_code == 1
    assert topic in result.stderr and len(result.stderr.splitlines()) == 1
