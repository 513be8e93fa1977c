"""Brokers of earlier releases: queries, tables, commands, message formats."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from support.clusters import Cluster
from support.old_kafka import RELEASES, OldKafka
from support.query_harness import QueryHarness
from support.sink_application import KilledError, SinkApplication
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.cli.main import main
from spark_groupsource.errors import TransactionAbortedError, UnsupportedVersionError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.process.reader_process import ReaderProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.kafka]

CODECS = ("none", "gzip", "snappy", "lz4")


@pytest.fixture(scope="module", params=RELEASES)
def old(request: pytest.FixtureRequest) -> Iterator[OldKafka]:
    with OldKafka(request.param) as running:
        yield running


def command(old: OldKafka, *arguments: str, text: str | None = None) -> str:
    """Returns the output of a command of groupsource."""
    result = CliRunner().invoke(main, [*arguments, "--bootstrap-server", old.bootstrap_servers], input=text)
    assert result.exit_code == 0, result.output
    return result.output


def test_query_commits_and_continues_after_a_restart(
    spark: SparkSession, old: OldKafka, topic: str, group: str, tmp_path: Path
) -> None:
    harness = QueryHarness(spark, Cluster(old.release, old.bootstrap_servers), topic, group, tmp_path)
    try:
        for _ in range(2):
            harness.produce(40)
            query = harness.start("a")
            harness.wait_committed()
            stop_gracefully(query, 60)
        assert harness.values("a") == list(range(80))
        reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", old.bootstrap_servers)
        assert reader.option("subscribe", topic).load().count() == 80

        def table(name: str) -> list[dict[str, object]]:
            return [row.asDict() for row in reader.option("table", name).load().collect()]

        reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", old.bootstrap_servers)
        assert [row["log_end_offset"] for row in table("partitions") if row["topic"] == topic] == [20] * 4
        assert [row["state"] for row in table("groups") if row["group"] == group] == ["Empty"]
        assert [row["lag"] for row in table("lag") if row["group"] == group] == [0] * 4
        # the members of a run may join in one round or in two
        assert len({row["generation"] for row in table("rebalances") if row["group"] == group}) >= 2
    finally:
        harness.close()
    described = command(old, "groups", "--describe", "--group", group)
    assert [line.split()[3:6] for line in described.splitlines() if topic in line] == [["20", "20", "0"]] * 4


def test_commands_produce_and_consume(old: OldKafka, topic: str, group: str) -> None:
    create_topic(old.bootstrap_servers, topic, replication_factor=1)
    for codec in CODECS:
        command(old, "produce", "--topic", topic, "--compression", codec, text=f"{codec}\n")
    for _ in range(2):
        assert command(old, "consume", "--topic", topic).split() == list(CODECS)
    assert command(old, "consume", "--topic", topic, "--group", group).split() == list(CODECS)
    assert command(old, "consume", "--topic", topic, "--group", group) == ""


@pytest.mark.parametrize("step", ["sent", "ended"])
def test_a_copy_is_exactly_once_since_kafka_2_5(
    old: OldKafka, topic: str, group: str, step: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    for name in (topic, output):
        create_topic(old.bootstrap_servers, name, 1, replication_factor=1)
    produce(old.bootstrap_servers, topic, [(0, None, b"%d" % number) for number in range(80)])
    application = SinkApplication(tmp_path, old.bootstrap_servers, topic, group, output)
    if old.release == "2.1.1":
        with pytest.raises(TransactionAbortedError, match="exactly-once with a group needs Kafka 2.5"):
            application.trigger()
        application.stop()
        return
    application.kill_at = step
    with pytest.raises(KilledError):
        application.trigger()
    while application.trigger():
        pass
    application.stop()
    settings = tmp_path / "client.properties"
    settings.write_text("isolation.level=read_committed\n")
    found = command(old, "consume", "--topic", output, "--command-config", str(settings))
    assert found.split() == [str(number) for number in range(80)]


@pytest.mark.usefixtures("in_process")
def test_static_members_need_kafka_2_3(old: OldKafka, topic: str, group: str) -> None:
    create_topic(old.bootstrap_servers, topic, replication_factor=1)
    given = {"kafka.bootstrap.servers": old.bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    options = parse_options({**given, "kafka.group.instance.id": "app", "startingOffsets": "earliest"}, "stream")
    reader = ReaderProcess(options, os.getpid())
    try:
        if old.release == "2.1.1":
            with pytest.raises(UnsupportedVersionError, match="newer broker, or remove kafka.group.instance.id"):
                reader.latest_offset({}, Limits())
        else:
            assert reader.latest_offset({}, Limits())[topic] == {"0": 0}
    finally:
        reader.stop()


# Kafka 2.1 has no incremental changes
@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
@pytest.mark.parametrize("version, magic", [("0.9.0", 0), ("0.10.2", 1)])
@pytest.mark.parametrize("codec", CODECS)
def test_topic_that_was_upgraded_from_an_old_message_format(
    old: OldKafka, topic: str, version: str, magic: int, codec: str
) -> None:
    if old.release[0] in "34":
        pytest.skip("Kafka 3 ignores message.format.version, Kafka 4 does not have it")
    create_topic(old.bootstrap_servers, topic, 1, {"message.format.version": version}, replication_factor=1)
    rows = [(0, b"k%d" % n if n % 3 else None, b"v%d" % n if n % 5 else None) for n in range(300)]
    produce(old.bootstrap_servers, topic, rows[:200], compression_codec=codec, batch_num_messages=50)
    admin = AdminClient({"bootstrap.servers": old.bootstrap_servers})
    newer = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"message.format.version": "2.1"})
    admin.alter_configs([newer])[newer].result(30)
    produce(old.bootstrap_servers, topic, rows[200:], compression_codec=codec)

    producer = Producer({"bootstrap.servers": old.bootstrap_servers})

    def is_upgraded() -> bool:
        # only format v2 has headers
        producer.produce(topic, b"later", headers={"h": b"1"})
        assert not producer.flush(30)
        return bool(json.loads(command(old, "consume", "--topic", topic, "--last", "1", "--json")).get("headers"))

    wait_until(is_upgraded, "the partition has the new format")
    records = [json.loads(line) for line in command(old, "consume", "--topic", topic, "--json").splitlines()]
    assert [record["offset"] for record in records] == list(range(len(records)))
    text = [tuple(each and each.decode() for each in row[1:]) for row in rows]
    assert [(record["key"], record["value"]) for record in records[:300]] == text
    assert [record["timestamp"] > 0 for record in records[:200]] == [bool(magic)] * 200
