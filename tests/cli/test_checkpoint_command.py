"""``groupsource checkpoint`` and offset resets that take a checkpoint into account."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from support.clients import open_cluster
from support.clusters import Cluster
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.main import main
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.positions.offset_json import SourceOffset, encode_offset
from spark_groupsource.source.positions.published_progress import WriterProgress, offset_of_progress, progress_group
from spark_groupsource.wire.commit_reports import author_metadata, commit_metadata

READER = "reader-1"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])


def write(directory: Path, batches: list[Mapping[str, Any]], committed: int | None) -> None:
    """Writes the files of Spark: one offset log entry per batch, commit log entries up to `committed`."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    for folder in ("offsets", "commits"):
        (directory / folder).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"6c5c1a0e-0000-0000-0000-000000000001"}')
    for number, encoded in enumerate(batches):
        metadata = {"batchWatermarkMs": 60_000, "batchTimestampMs": 1_700_000_000_000, "conf": conf}
        lines = ["v1", json.dumps(metadata), json.dumps(encoded)]
        (directory / "offsets" / str(number)).write_text("\n".join(lines))
        (directory / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if committed is not None and number <= committed:
            (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def offset(group: str, topic: str, *positions: int, **more: Any) -> dict[str, Any]:
    found = {TopicPartition(topic, number): position for number, position in enumerate(positions)}
    return encode_offset(SourceOffset(positions=found, reader=READER, group_id=group, generation_id=4, **more))


def test_show_prints_batches_offsets_and_settings(tmp_path: Path) -> None:
    acquired = {TopicPartition("flights", number): 0 for number in range(2)}
    write(tmp_path, [offset("g", "flights", 3, 4, acquired=acquired), offset("g", "flights", 10, 20)], committed=0)
    shown = run("show", tmp_path).output
    assert "Last planned batch: 1; last committed batch: 0." in shown
    assert "Group: g, generation 4" in shown and "Watermark: 1970-01-01" in shown
    assert ["flights", "1", "20", "4"] in [line.split() for line in shown.splitlines()]
    assert "spark.sql.shuffle.partitions=2" in shown
    assert run("show", tmp_path, "--export").output == "flights,0,3\nflights,1,4\n\n"
    found = json.loads(run("show", tmp_path, "--json").output)
    assert (found["planned_batch"], found["committed_batch"], found["watermark_ms"]) == (1, 0, 60_000)
    assert found["sources"][0]["offsets"][1]["planned_offset"] == 20


def test_show_prints_the_batch_that_the_query_has_published(embedded: EmbeddedBroker, tmp_path: Path) -> None:
    write(tmp_path, [offset("g", "flights", 3, 4)], committed=0)
    query_id = json.loads(run("show", tmp_path, "--json").output)["query_id"]
    name = f"T-{uuid4().hex[:8]}"
    create_topic(embedded.bootstrap_servers, f"{name}-out")
    options = (tmp_path, "--transactional-id", name, "--bootstrap-server", embedded.bootstrap_servers)
    assert f"Published batch: none (transactional id {name})" in run("show", *options).output
    with open_cluster(embedded.bootstrap_servers) as client:
        progress = offset_of_progress(WriterProgress(query_id, 7), [WriterProgress("another", 9)])
        client.commit(progress_group(name), {TopicPartition(f"{name}-out", 0): progress})
    assert f"Published batch: 7 (transactional id {name})" in run("show", *options).output
    assert json.loads(run("show", *options, "--json").output)["published_batch"] == 7


def test_compare_names_the_offset_that_wins(cluster: Cluster, tmp_path: Path, topic: str, group: str) -> None:
    """A commit ahead, one of this query, a reset by an operator, progress of another member, and none."""
    create_topic(cluster.bootstrap_servers, topic, 5)
    produce(cluster.bootstrap_servers, topic, ((n % 5, None, b"%d" % n) for n in range(100)))
    first = [TopicPartition(topic, number) for number in range(5)]
    committed = {first[2]: 9, first[3]: 2}
    write(tmp_path, [offset(group, topic, *[10] * 5, committed=committed)], committed=0)
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as client:
        own = {first[1]: OffsetAndMetadata(10, author_metadata(READER))}
        client.commit(group, own | {first[0]: OffsetAndMetadata(15), first[2]: OffsetAndMetadata(4)})
        client.commit(group, {first[3]: OffsetAndMetadata(6, "another member", 0)})

    server = ("--bootstrap-server", cluster.bootstrap_servers)
    rows = json.loads(run("compare", tmp_path, *server, "--json").output)
    assert [(row["group_offset"], row["restart_offset"], row["lag"]) for row in rows] == [
        (15, 15, 5),
        (10, 10, 10),
        (4, 4, 16),
        (6, 10, 10),
        (None, 10, 10),
    ]
    assert "ahead of the checkpoint" in rows[0]["restart_source"]
    assert "reset by an operator; the commit is followed" in rows[2]["restart_source"]
    ignored = json.loads(run("compare", tmp_path, *server, "--json", "--on-group-reset", "ignore").output)
    assert ignored[2]["restart_offset"] == 10
    table = run("compare", tmp_path, *server).output
    assert [topic, "2", "10", "10", "4", "0", "20", "4", "16"] in [line.split() for line in table.splitlines()]
    assert "A restart repeats no batch." in table

    reset = ["groups", "reset-offsets", *server, "--group", group, "--topic", f"{topic}:3", "--dry-run"]
    checkpointed = [*reset, "--checkpoint", str(tmp_path), "--to-offset"]
    followed = CliRunner().invoke(main, [*checkpointed, "1"])
    assert (followed.exit_code, followed.stderr) == (0, "")


def test_compare_shows_the_start_of_a_topic_that_was_recreated(
    cluster: Cluster, tmp_path: Path, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(n % 2, None, b"x") for n in range(6)])
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    write(tmp_path, [offset(group, topic, 10, 10, topic_ids={topic: str(uuid4())})], committed=0)
    with open_cluster(cluster.bootstrap_servers) as client:
        of_deleted = OffsetAndMetadata(10, commit_metadata(READER, str(uuid4())))
        of_present = OffsetAndMetadata(2, commit_metadata(READER, str(client.metadata([topic]).topics[topic].topic_id)))
        client.commit(group, {TopicPartition(topic, 0): of_deleted, TopicPartition(topic, 1): of_present})
    rows = json.loads(run("compare", tmp_path, *server, "--json").output)
    assert [(row["restart_offset"], row["lag"]) for row in rows] == [(0, 3), (2, 1)]
    again = "of a topic that was deleted and created again; the query fails unless failOnDataLoss=false"
    assert [row["restart_source"] for row in rows] == [f"log start offset {again}", f"committed offset {again}"]


def test_checkpoint_of_sparks_kafka_source_ignores_the_group(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    write(tmp_path, [{topic: {"0": 0}}], committed=None)
    result = run("compare", tmp_path, "--bootstrap-server", cluster.bootstrap_servers)
    assert (result.exit_code, "does not name its group. Give --group." in result.stderr) == (1, True)
    result = run("compare", tmp_path, "--bootstrap-server", cluster.bootstrap_servers, "--group", "g")
    assert "Warning: Consumer group 'g' does not exist." in result.stderr
    assert "1 of 1 partitions: checkpoint; Spark's Kafka source does not read committed offsets." in result.output
    assert "A restart first repeats batch 0" in result.output


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("s3a://bucket/checkpoint", "only local directories can be read"),
        ("hdfs:/checkpoint", "only local directories can be read"),
        ("/nowhere/checkpoint", "it has no folder offsets"),
    ],
)
def test_unreadable_checkpoints_are_reported(directory: str, message: str) -> None:
    result = run("show", directory)
    assert (result.exit_code, message in result.stderr) == (1, True)


def test_damaged_offsets_are_reported(tmp_path: Path) -> None:
    write(tmp_path, [{}], committed=None)
    (tmp_path / "offsets" / "0").write_text("v9\n{}\n{}")
    result = run("show", tmp_path)
    assert result.exit_code == 1
    assert "its format is 'v9', not 'v1'" in result.stderr


def test_export_writes_what_sparks_kafka_source_reads(tmp_path: Path) -> None:
    counts = {"t": 2}
    batches = [offset("g", "t", 3, 4, partition_counts=counts), offset("g", "t", 10, 20, partition_counts=counts)]
    source, target = tmp_path / "source", tmp_path / "target"
    write(source, batches, committed=1)
    assert "at batch 1. Start the query with format kafka" in run("export", source, target).output
    lines = [(target / "offsets" / name).read_text().split("\n") for name in ("0", "1")]
    assert [found[2] for found in lines] == ['{"t":{"0":3,"1":4}}', '{"t":{"0":10,"1":20}}']
    assert lines[1][:2] == (source / "offsets" / "1").read_text().split("\n")[:2]
    assert not (target / "offsets" / ".1.crc").exists()
    assert (target / "metadata").read_text() == (source / "metadata").read_text()
    result = run("export", source, target)
    assert (result.exit_code, "it exists. Give the path of a new directory." in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("positions", "committed", "message"),
    [
        ((3, 4), None, "batch 0 is not committed. Start the query once more and stop it gracefully."),
        ((3,), 0, "it has no position of t-1, which other members of group g read. Stop the other members"),
    ],
)
def test_export_of_an_incomplete_checkpoint_is_rejected(
    tmp_path: Path, positions: tuple[int, ...], committed: int | None, message: str
) -> None:
    source = tmp_path / "source"
    write(source, [offset("g", "t", *positions, partition_counts={"t": 2})], committed=committed)
    result = run("export", source, tmp_path / "target")
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "target").exists()


def test_export_of_a_checkpoint_of_another_source_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "source", [{"t": {"0": 3}}], committed=0)
    assert "none of its sources is groupsource" in run("export", tmp_path / "source", tmp_path / "target").stderr
