"""Each table, read from both brokers and compared with Kafka's tools."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from support.clusters import Cluster as Servers
from support.java_tools import GROUPS, JavaTools
from support.members import LibrdkafkaMember
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.cli.main import main
from spark_groupsource.client.admin import delete_records
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, GroupSourceError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.rebalances.event_sources import group_events
from spark_groupsource.monitor.rebalances.group_watch import GroupWatch
from spark_groupsource.monitor.selection import NameSelection, parse_selection
from spark_groupsource.monitor.tables.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.table_rows import TableQuery, read_rows
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC, EventKind


@pytest.fixture
def client(cluster: Servers) -> Iterator[ClusterClient]:
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as opened:
        yield opened


def read(
    client: ClusterClient, table: str, group: str = "", topic: str = "", columns: set[str] = frozenset()
) -> list[Any]:
    """Returns the rows; every column of the definition is present."""
    definition = TABLES[table]
    query = TableQuery(
        table,
        frozenset(columns) or frozenset(column.name for column in definition.columns),
        parse_selection("group", group) if group else None,
        parse_selection("topic", topic) if topic else None,
    )
    rows = list(read_rows(client, query))
    defined, found = {column.name for column in definition.columns}, {name for row in rows for name in row}
    # a column that no row has would be null for ever
    assert found == defined if rows and not columns else found <= defined
    return pa.Table.from_batches(record_batches(rows, arrow_schema(definition)), arrow_schema(definition)).to_pylist()


def commit(client: ClusterClient, group: str, topic: str, *offsets: int) -> None:
    client.commit(group, {TopicPartition(topic, n): OffsetAndMetadata(offset) for n, offset in enumerate(offsets)})


def test_topics_and_partitions(client: ClusterClient, cluster: Servers, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2, {"retention.ms": "-1", "max.message.bytes": "100000"})
    produce(cluster.bootstrap_servers, topic, [(1, None, b"x" * 100)] * 3)
    (row,) = read(client, "topics", topic=topic)
    assert (row["topic"], row["partition_count"], row["replication_factor"]) == (topic, 2, 1)
    assert (row["is_internal"], row["configs"]) == (False, "max.message.bytes=100000,retention.ms=-1")
    assert len(row["topic_id"]) == 22
    first, second = read(client, "partitions", topic=f"{topic}.*")
    assert (first["topic"], first["partition"], first["leader"]) == (topic, 0, 1)
    assert first["replicas"] == first["isr"] == [1]
    assert (first["log_start_offset"], first["log_end_offset"], first["size"]) == (0, 0, 0)
    assert (second["log_start_offset"], second["log_end_offset"]) == (0, 3) and 300 < second["size"] < 1_000
    assert topic in [row["topic"] for row in read(client, "topics")]
    assert not any(row["is_internal"] for row in read(client, "topics"))
    with pytest.raises(BrokerError, match="The topic does not exist. Create it, or correct the name."):
        read(client, "partitions", topic="missing")


@pytest.mark.slow
def test_lag_of_a_group_without_members(client: ClusterClient, cluster: Servers, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 3)
    value = b"x" * 200
    produce(cluster.bootstrap_servers, topic, [(n, None, value) for n in (0, 1) for _ in range(50)], linger_ms=0)
    commit(client, group, topic, 10, 50)
    committed_ms = time.time() * 1_000
    wait_until(lambda: time.time() * 1_000 > committed_ms + 1_100, "the commits are a second old")
    behind, done = read(client, "lag", group)
    assert [behind[name] for name in ("group", "topic", "partition", "current_offset", "log_end_offset", "lag")] == [
        group,
        topic,
        0,
        10,
        50,
        40,
    ]
    assert behind["consumer_id"] is behind["host"] is behind["client_id"] is None
    assert 1_000 < behind["lag_ms"] < 60_000 and 40 * 200 < behind["lag_bytes"] < 40 * 350
    assert behind["records_per_second"] == 0.0 and behind["catch_up_ms"] is None
    assert [done[name] for name in ("lag", "lag_ms", "lag_bytes", "catch_up_ms", "log_end_lag_ms")] == [0, 0, 0, 0, 0]
    commit(client, group, topic, 45)
    (behind, _) = read(client, "lag", group)
    assert 0 < behind["records_per_second"] <= 35
    delete_records(client, {TopicPartition(topic, 0): 48})
    (behind, _) = read(client, "lag", group)
    # the group continues at the start of the log, with two records
    assert behind["lag"] == 5 and behind["lag_ms"] > 1_000 and 2 * 200 < behind["lag_bytes"] < 50 * 350
    # only the partitions of the topic are requested
    assert len(read(client, "lag", group, topic=topic)) == 2 and read(client, "lag", group, topic="other.*") == []
    offsets = read(client, "offsets", f"{group}|x", topic)
    names = ("partition", "current_offset", "leader_epoch")
    assert [[row[name] for name in names] for row in offsets] == [[0, 45, None], [1, 50, None]]


def test_columns_that_are_not_selected_are_not_computed(
    client: ClusterClient, cluster: Servers, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    commit(client, group, topic, 0)
    (row,) = read(client, "lag", group, columns={"group", "lag"})
    assert (row["lag"], row["lag_ms"], row["records_per_second"]) == (0, None, None)


def test_lag_ms_of_a_position_within_a_batch(client: ClusterClient, cluster: Servers, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    from confluent_kafka import Producer

    timestamp_ms = int(time.time() * 1_000)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 200})
    for minutes in (30, 20, 10):
        producer.produce(topic, b"x" * 10_000, timestamp=timestamp_ms - minutes * 60_000)
    assert producer.flush(20) == 0
    for offset, minutes in ((0, 30), (1, 20), (2, 10)):
        commit(client, group, topic, offset)
        (row,) = read(client, "lag", group, columns={"lag_ms", "log_end_lag_ms"})
        assert minutes * 60_000 <= row["lag_ms"] < (minutes + 2) * 60_000
        assert row["log_end_lag_ms"] == (minutes - 10) * 60_000
    # the newest record is in another batch
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")])
    (row,) = read(client, "lag", group, columns={"log_end_lag_ms"})
    assert 10 * 60_000 <= row["log_end_lag_ms"] < 12 * 60_000


def test_members_and_groups_equal_kafkas_tool(
    client: ClusterClient, cluster: Servers, topic: str, group: str, java: JavaTools
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 3)
    produce(cluster.bootstrap_servers, topic, [(n % 3, None, b"x") for n in range(9)])

    def tool(*arguments: str) -> list[list[str]]:
        address = ("--bootstrap-server", cluster.bootstrap_servers)
        return java.rows(GROUPS, *address, "--describe", "--group", group, *arguments)[1:]

    with LibrdkafkaMember(cluster.bootstrap_servers, group, topic, client_id="one") as one:
        names = {"client_id": "two", "group_instance_id": "second"}
        with LibrdkafkaMember(cluster.bootstrap_servers, group, topic, **names) as two:
            wait_until(lambda: {len(one.partitions), len(two.partitions)} == {1, 2}, "three partitions are shared")
            wait_until(lambda: sum(row["lag"] == 0 for row in read(client, "lag", group)) == 3, "all is committed")
            ours = read(client, "members", group)
            cells = ("group", "consumer_id", "group_instance_id", "host", "client_id", "partitions")
            listed = [["-" if row[name] is None else str(row[name]) for name in cells] for row in ours]
            theirs = [row[:2] + ([] if row[2].startswith("/") else [row[2]]) + row[-3:] for row in tool("--members")]
            assert sorted(row[1] for row in listed) == sorted(row[1] for row in theirs)
            assert sorted(row[-3:] for row in listed) == sorted(row[-3:] for row in theirs)
            assert {row["group_instance_id"] for row in ours} == {None, "second"}
            assert sorted(row["is_leader"] for row in ours) == [False, True]
            assert {row["assignment"] for row in ours} == {
                f"{topic}:{','.join(str(p.partition) for p in sorted(each.partitions))}" for each in (one, two)
            }
            (row,) = read(client, "groups", group)
            coordinator, node = row["coordinator"].split()
            assert tool("--state") == [[group, coordinator, node, row["assignment_strategy"], "Stable", "2"]]
            assert (row["state"], row["members"]) == ("Stable", 2) and row["generation"] >= 1
            # by partition, and not by member as in Kafka's tool
            assert [row["partition"] for row in read(client, "lag", group)] == [0, 1, 2]
            names = ["group", "topic", "partition", "current_offset", "log_end_offset", "lag"]
            names += ["consumer_id", "host", "client_id"]
            assert sorted(tool()) == sorted([str(row[name]) for name in names] for row in read(client, "lag", group))
    assert group in [row["group"] for row in read(client, "groups", "g-.*")]


def test_a_group_that_does_not_exist(client: ClusterClient) -> None:
    for table in ("groups", "members", "lag"):
        with pytest.raises(GroupSourceError, match="Consumer group 'missing' does not exist. Run: groupsource groups"):
            read(client, table, "missing")
        assert read(client, table, "missing.*") == []


def is_recorded(client: ClusterClient, group: str, generation: int) -> bool:
    """Whether the embedded coordinator has stored the events of a rebalance, which follow its record; True on Kafka."""
    if not client.metadata([GROUP_EVENTS_TOPIC], refresh=True).partitions_of(GROUP_EVENTS_TOPIC):
        return True
    events = group_events(client, NameSelection((group,))).get(group, ())
    return any(event.kind is EventKind.ASSIGNED and event.generation == generation for event in events)


def check_history_commands(bootstrap_servers: str, group: str) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["groups", *arguments, "--bootstrap-server", bootstrap_servers])
        assert result.exit_code == 0, result.output
        return result.stdout

    lines = run("why", "--group", group, "--last", "2").splitlines()
    assert "Generation 3: second (/127.0.0.1" in lines[0] and ") left" in lines[0]
    assert any("Generation 4: first (/127.0.0.1" in line for line in lines)
    form = json.loads(run("why", "--group", group, "--json"))
    assert [entry["cause"] for entry in form["rebalances"]] == ["JOINED", "JOINED", "LEFT", "LEFT"]
    table = run("history", "--group", group, "--last", "3").splitlines()
    assert table[0].split()[:4] == ["GENERATION", "COMPLETED-AT", "CAUSE", "CLIENT-ID"] and len(table) == 4
    rows = json.loads(run("history", "--group", group, "--json"))
    printed = list(csv.DictReader(run("history", "--group", group, "--csv").splitlines()))
    expected = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    # a failure shows the fields that differ, which the comparison of all rows cuts
    assert [(line.items() - row.items(), row.items() - line.items()) for line, row in zip(printed, expected)] == [
        (set(), set())
    ] * len(expected)
    assert printed == expected
    result = CliRunner().invoke(main, ["groups", "why", "--group", "missing", "--bootstrap-server", bootstrap_servers])
    assert result.exit_code == 1 and "Consumer group 'missing' does not exist." in result.stderr


def test_rebalances_and_the_log_of_a_group(client: ClusterClient, cluster: Servers, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    with LibrdkafkaMember(cluster.bootstrap_servers, group, topic, client_id="first") as first:
        first.wait_for_partitions(2)
        with LibrdkafkaMember(cluster.bootstrap_servers, group, topic, client_id="second") as second:
            second.wait_for_partitions(1)
        wait_until(lambda: len(read(client, "rebalances", group)) == 3, "the third rebalance")
        follower = GroupWatch(client, group)
        assert [r.generation for r in follower.update().completed] == [1, 2, 3]
        assert follower.update().completed == []
    wait_until(lambda: len(read(client, "rebalances", group)) == 4, "the group is empty")
    # its events follow its record, so the second call returns it
    assert [[r.generation for r in follower.update().completed] for _ in range(2)] == [[], [4]]
    wait_until(lambda: is_recorded(client, group, 4), "the events of the last rebalance are stored")
    check_history_commands(cluster.bootstrap_servers, group)
    commit(client, group, topic, 0)
    rows = read(client, "rebalances", group)
    assert [row["generation"] for row in rows] == [1, 2, 3, 4]
    assert [row["cause"] for row in rows] == ["JOINED", "JOINED", "LEFT", "LEFT"]
    assert [row["client_id"] for row in rows] == ["first", "second", "second", "first"]
    assert [row["members"] for row in rows] == [1, 2, 1, 0]
    assert [row["partitions_moved"] for row in rows] == [0, 1, 1, 0] and rows[3]["partitions_unassigned"] == 2
    assert all(row["host"].startswith("/127.0.0.1") and row["completed_at"] is not None for row in rows)
    assert all(0 <= row["sync_ms"] < 10_000 for row in rows[:3])
    (summary,) = read(client, "groups", group)
    assert (summary["generation"], summary["state"]) == (4, "Empty")
    log = read(client, "offsets_log", group)
    assert {row["group"] for row in log} == {group}
    assert [row["generation"] for row in log if row["type"] == "group"][-4:] == [1, 2, 3, 4]
    (offset,) = [row for row in log if row["type"] == "offset"]
    assert (offset["topic"], offset["topic_partition"], offset["committed_offset"]) == (topic, 0, 0)
    assert offset["is_tombstone"] is False and offset["timestamp"] is not None
